"""One segment of a turn: from a claim to a pause or an end.

Loads the checkpoint, starts the turn (T6), runs the graph until nothing moves, and settles what the turn waits for
together with the release of the thread. A wake-up brings no answer: decisions are read from their rows.
"""

from typing import Any, cast

import psycopg
import structlog
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command
from psycopg_pool import PoolTimeout

from graph import Graph
from graph.said import said
from graph.services import Services
from graph.state import STATE_VERSION, first_state
from placet.record import runs, turns
from placet.record.checkpointer import FencedSaver, config_of
from placet.record.errors import Conflict, PlacetError
from placet.record.runs import Owned

log = structlog.get_logger()
Resume = Command[Any]


class StateVersionMismatch(Conflict):
    """The checkpoint was written by another version of the graph; nothing was run (G8)."""

    code = "state_version_mismatch"


async def advance(
    services: Services, graph: Graph, owned: Owned, *, resume: Resume | None = None, acting: str | None = None
) -> turns.Status:
    """Run the claimed turn on; returns the status in which it was left.

    `resume` is a client's `Command`, whose values are handed to `decide` as `acting`, an authenticated user id. Raises
    `StaleEpoch` when the thread was lost on the way: its new owner goes on. A database that is away is raised too: the
    lease lapses, and the run is taken up again.
    """
    bound = graph.copy(update={"checkpointer": FencedSaver(services.database, owned)})
    more = {"langgraph_auth_user_id": acting} if acting else {}
    config = cast("RunnableConfig", config_of(owned, **more))
    try:
        status = await _run(services, bound, owned, config, resume)
    except (psycopg.OperationalError, PoolTimeout):
        raise
    except Exception as error:
        if runs.is_stale(error):
            raise
        await services.settled()
        log.exception("turn_failed", turn_id=str(owned.turn_id), epoch=owned.epoch)
        own = getattr(error, "code", None)
        problem = {
            "code": own if isinstance(own, str) else "internal_error",
            "message": str(error) if isinstance(error, PlacetError) else said(error, 2000),
            "retryable": True,
        }
        async with services.database.transaction("fail") as tx:
            status = await turns.settle(tx, owned, ending="failed", error=problem)
    return status


async def _run(
    services: Services, graph: Graph, owned: Owned, config: RunnableConfig, resume: Resume | None
) -> turns.Status:
    before = await graph.aget_state(config)
    _check_version(before.values)
    async with services.database.transaction("start") as tx:
        status = await turns.start(tx, owned)
        turn = await turns.get(tx, owned.tenant_id, owned.turn_id)
    begun = before.values.get("turn_id") == str(owned.turn_id)
    if not begun and status in turns.ENDED:  # cancelled before it ever ran: nothing to close
        async with services.database.transaction("nothing_to_close") as tx:
            return await turns.settle(tx, owned, ending=None)

    await graph.ainvoke(resume if begun else first_state(turn), config, durability="sync")
    await services.settled()
    after = await graph.aget_state(config)
    ending = after.values["ending"] if not after.next else None
    async with services.database.transaction("settle") as tx:
        return await turns.settle(
            tx,
            owned,
            ending=None if ending == "cancelled" else ending,
            output_text=str(after.values["messages"][-1].text) if ending == "completed" else None,
            error=after.values.get("error"),
        )


def _check_version(values: dict[str, Any]) -> None:
    found = values.get("state_version", STATE_VERSION)
    if found != STATE_VERSION:
        raise StateVersionMismatch(
            f"The checkpoint has state version {found}, this code has {STATE_VERSION}; run the version that wrote it, "
            "or register a migration.",
            found=found,
            expected=STATE_VERSION,
        )
