"""Checkpoints of an older state version: migrated by a registered function, or refused by name (G8).

    @migration(1)          # from version 1 to 2, values in, values out
    def _two(values): return {**values, "note": ""}

A migrated checkpoint is written as a new one, under the run's epoch, before anything runs. Whatever was paused starts its
call's pipeline again, which reads where it stands from the rows. A newer version is always refused: the turn is left as
it is, for a process that knows it.
"""

from collections.abc import Callable
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.base.id import uuid6

from graph import state
from placet.record.checkpointer import FencedSaver
from placet.record.errors import Conflict

Values = dict[str, Any]
Migration = Callable[[Values], Values]
MIGRATIONS: dict[int, Migration] = {}  # from which version


class StateVersionMismatch(Conflict):
    """The checkpoint was written by another version of the graph, and there is no way from there; nothing was run."""

    code = "state_version_mismatch"


def migration(version: int) -> Callable[[Migration], Migration]:
    """Register the function that brings values of `version` to the next one."""

    def register(function: Migration) -> Migration:
        MIGRATIONS[version] = function
        return function

    return register


async def bring_up_to_date(saver: FencedSaver, config: RunnableConfig) -> None:
    """Migrate the thread's latest checkpoint when it is older; raises `StateVersionMismatch` when that cannot be."""
    latest = await saver.aget_tuple(config)
    if latest is None:
        return
    old = latest.checkpoint["channel_values"]
    found = old.get("state_version", state.STATE_VERSION)
    if found == state.STATE_VERSION:
        return
    values = _migrated(dict(old), found)
    changed = {name for name, value in values.items() if name not in old or old[name] != value}
    versions = dict(latest.checkpoint["channel_versions"])
    raised: ChannelVersions = {name: saver.get_next_version(_text(versions.get(name)), None) for name in changed}
    checkpoint: Checkpoint = {
        **latest.checkpoint,
        "id": str(uuid6(clock_seq=-2)),
        "channel_values": values,
        "channel_versions": {**versions, **raised},
    }
    step = latest.metadata.get("step", 0) + 1
    metadata: CheckpointMetadata = {"source": "update", "step": step, "parents": {}}
    await saver.aput(latest.config, checkpoint, metadata, raised)


def _text(version: str | int | float | None) -> str | None:
    return None if version is None else str(version)


def _migrated(values: Values, found: int) -> Values:
    version = found
    while version < state.STATE_VERSION and version in MIGRATIONS:
        version += 1
        values = {**MIGRATIONS[version - 1](values), "state_version": version}
    if version != state.STATE_VERSION:
        what = "newer than" if found > state.STATE_VERSION else "too old for"
        raise StateVersionMismatch(
            f"The checkpoint has state version {found}, {what} this code, which has {state.STATE_VERSION}. Run the code that "
            "wrote it, or register a migration.",
            found=found,
            expected=state.STATE_VERSION,
        )
    return values
