"""What a followed run says, written where any server process can read it (L1).

The process that runs a turn is not the one that streams it, so parts go through the database: collected for a moment,
then written together under the run's epoch. Token by token costs a few round trips a second, not one per token.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langgraph.types import Interrupt, StateSnapshot, StreamMode
from pydantic_core import to_json

from graph.models import MESSAGE_ID
from placet.record import streams
from placet.record.database import Database
from placet.record.runs import Owned
from placet.record.streams import ATTEMPT, Part, Wanted

PAUSE = 0.05  # seconds for which parts are collected
BATCH = 200  # parts that are not waited with


def encode(value: object) -> str:
    """JSON of whatever LangGraph puts into a state or a stream: messages, interrupts, snapshots."""
    return to_json(_plain(value), fallback=repr, inf_nan_mode="null").decode()


def _plain(value: object) -> object:
    match value:
        case Interrupt():
            return as_interrupt(value)
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case BaseException():
            return f"{type(value).__name__}: {value}"
        case _:
            return value


def _named(part: tuple[BaseMessage, dict[str, Any]]) -> tuple[BaseMessage, dict[str, Any]]:
    """A token under the id of the message that it becomes part of, so that clients see one message grow."""
    message, about = part
    final = about.get(MESSAGE_ID)
    return (message.model_copy(update={"id": final}), about) if final else part


def as_interrupt(interrupt: Interrupt) -> dict[str, Any]:
    """An interrupt as LangGraph's clients know it."""
    return {"id": interrupt.id, "value": interrupt.value}


async def emitter(database: Database, owned: Owned) -> "Emitter | None":
    """A sink for the claimed run, if any client follows it."""
    async with database.read() as tx:
        wanted = await streams.wanted(tx, owned)
    return Emitter(database, owned, wanted) if wanted is not None else None


class Emitter:
    """The parts of one attempt of a run."""

    def __init__(self, database: Database, owned: Owned, wanted: Wanted) -> None:
        self.modes: Sequence[StreamMode] = graph_modes(wanted.modes)
        self.subgraphs = wanted.subgraphs
        self._database = database
        self._owned = owned
        self._n = owned.attempt * ATTEMPT
        self._parts: list[Part] = []
        self._writing: asyncio.Task[None] | None = None
        if owned.attempt > 1:
            self._add((), "metadata", encode({"attempt": owned.attempt}))

    async def put(self, namespace: tuple[str, ...], mode: str, part: Any) -> None:
        """Keep a part for the next batch; raises what went wrong with the one before."""
        self._add(namespace, mode, encode(_named(part) if mode == "messages" else part))
        if len(self._parts) >= BATCH:
            await self._flush()
        elif self._writing is None or self._writing.done():
            if self._writing is not None:
                self._writing.result()
            self._writing = asyncio.create_task(self._soon())

    async def end(self, state: StateSnapshot) -> None:
        """Write what is left, and the state in which the run leaves its thread, for those who wait for it."""
        interrupts = [as_interrupt(interrupt) for interrupt in state.interrupts]
        self._add((), "outcome", encode({"values": state.values, "interrupts": interrupts}))
        await self._flush()

    def _add(self, namespace: tuple[str, ...], mode: str, data: str) -> None:
        self._n += 1
        self._parts.append(Part(self._n, mode, list(namespace), data))

    async def _soon(self) -> None:
        await asyncio.sleep(PAUSE)
        await self._write()

    async def _flush(self) -> None:
        if self._writing is not None:
            await self._writing
            self._writing = None
        await self._write()

    async def _write(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            async with self._database.read() as tx:
                await streams.append(tx, self._owned, parts)


def graph_modes(asked: Sequence[str]) -> list[StreamMode]:
    """The graph's own modes for what clients ask: `messages` in both its forms is one, and a pause is always told."""
    modes = {"messages" if mode == "messages-tuple" else mode for mode in asked}
    return cast("list[StreamMode]", sorted(modes | {"updates"})) if modes else []
