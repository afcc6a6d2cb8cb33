"""What a client gets of a run: a stream of server-sent events, or the outcome when it is there (L1, L3).

    event: metadata     data: {"run_id": …, "attempt": 1}          id: 0
    event: updates|call:6f…     data: {…}                          id: 1000001
    : heartbeat                                                    every 5 s

Ids are the numbers of the stored parts, so that any server process goes on behind any of them. What a client did not
ask for is left out here; a pause is told also to those who did not ask for updates, as LangGraph does.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.utils import message_chunk_to_message

from graph import protocol
from placet.api.langgraph.opened import LangGraph
from placet.emit import as_interrupt, encode
from placet.record import client_runs, people, streams, turns
from placet.record.client_runs import ClientRun
from placet.record.errors import Conflict
from placet.record.people import User
from placet.record.streams import Part

HEARTBEAT = 5.0  # seconds
BEAT = b": heartbeat\r\n\r\n"


class NoSuchPart(Conflict):
    """The `Last-Event-ID` is no number that this server gave."""

    code = "bad_last_event_id"
    status = 422


def read_last_event_id(given: str | None) -> int | None:
    """The number to go on behind; -1 from the start; None when the client named none."""
    if given is None or not given.strip():
        return None
    try:
        number = int(given)
    except ValueError:
        raise NoSuchPart(f"Last-Event-ID is a number that was sent before, or -1; got {given[:40]!r}.") from None
    if not -1 <= number < 2**62:
        raise NoSuchPart(f"Last-Event-ID is a number that was sent before, or -1; got {given[:40]!r}.")
    return number


Refused = Callable[
    [], Awaitable[dict[str, Any] | None]
]  # what a viewer is told when it is no longer theirs to see (L4)


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who follows a run, and how."""

    run: ClientRun
    modes: Sequence[str]
    refused: Refused
    after: int | None = None  # behind which part; None or -1: from the start
    cancels: User | None = None  # who cancels the run by going away


async def follow(house: LangGraph, run: ClientRun, after: int) -> AsyncGenerator[list[Part] | None]:
    """Parts of the run as they come, until it has ended; None every few seconds in which nothing came.

    Ends early when the process stops: the client comes back to another one with the number it has.
    """
    async with house.following.of(run.run_id) as knock:
        while not house.following.stopping.is_set():
            knock.clear()
            async with house.services.database.read() as tx:
                [progress] = await streams.progress(tx, [run.run_id])  # before the parts: what had ended is complete
                parts = await streams.behind(tx, run.run_id, after) if progress.last > after else []
            if parts:
                after = parts[-1].n
                yield parts
                if after < progress.last:
                    continue
            if progress.work == "ended":
                return
            if not knock.is_set():
                try:
                    async with asyncio.timeout(HEARTBEAT):
                        await knock.wait()
                except TimeoutError:
                    yield None


# The outcome


async def outcome(house: LangGraph, viewer: Viewer) -> AsyncIterator[bytes]:
    """Newlines while it lasts, then the state with `__interrupt__` where it paused, or `__error__`."""
    done = False
    try:
        async with aclosing(follow(house, viewer.run, 2**62)) as parts:
            async for _ in parts:
                yield b"\n"
                if (refused := await viewer.refused()) is not None:
                    break
            else:
                refused = await viewer.refused()
        if refused is not None:
            done = True
            yield encode({"__error__": {"error": refused["code"], "message": refused["message"]}}).encode()
            return
        now = await _again(house, viewer.run)
        if not now.ended:  # the process stops. A body that does not end sends the client to `Location`, on another one
            raise asyncio.CancelledError
        done = True
        yield (await _result(house, now)).encode()
    except (GeneratorExit, asyncio.CancelledError):  # a fault of ours is no client's going away
        if not done:
            _gone(house, viewer)
        raise


async def _result(house: LangGraph, run: ClientRun) -> str:
    if (error := error_of(run)) is not None:
        return encode({"__error__": error})
    kept = await _kept(house, run)
    interrupts = {"__interrupt__": kept["interrupts"]} if kept["interrupts"] else {}
    return encode({**kept["values"], **interrupts})


async def _kept(house: LangGraph, run: ClientRun) -> dict[str, Any]:
    """The state in which the run left its thread; of an old run, or one that was not followed, as it is now."""
    async with house.services.database.read() as tx:
        kept = await streams.outcome(tx, run.run_id)
    if kept is not None:
        found: dict[str, Any] = json.loads(kept)
        return found
    snapshot = await house.reader.at(run.thread_id)
    interrupts = [as_interrupt(interrupt) for interrupt in snapshot.interrupts]
    return {"values": snapshot.values or {}, "interrupts": interrupts}


def error_of(run: ClientRun) -> dict[str, Any] | None:
    """What LangGraph's clients are told of a run that failed."""
    if run.status != "error":
        return None
    error = run.error or {}
    message = error.get("message") or (
        "All model turns of this request are used up." if run.outcome == "exhausted" else "The run failed."
    )
    return {"error": error.get("code") or run.outcome or "error", "message": message}


async def _again(house: LangGraph, run: ClientRun) -> ClientRun:
    """The run as it is now, also when somebody removed it from sight while this client waits for it."""
    async with house.services.database.read() as tx:
        return await client_runs.get(tx, run.tenant_id, run.thread_id, run.client_run_id, removed=True)


# The stream


async def events(house: LangGraph, viewer: Viewer) -> AsyncIterator[bytes]:
    """Server-sent events of the run."""
    run, after = viewer.run, viewer.after if viewer.after is not None and viewer.after >= 0 else None
    said = Said(frozenset(viewer.modes), behind=after or 0)
    done = False
    try:
        if after is None:
            yield event("metadata", encode({"run_id": run.client_run_id, "attempt": max(run.attempt, 1)}), 0)
        start, looked = 0 if said.adds_up else said.behind, time.monotonic()
        async with aclosing(follow(house, run, start)) as parts:
            async for some in parts:
                if time.monotonic() - looked >= HEARTBEAT:
                    looked = time.monotonic()
                    if (refused := await viewer.refused()) is not None:
                        yield event("error", encode({"error": refused["code"], "message": refused["message"]}), None)
                        return
                if some is None:
                    yield BEAT
                for part in some or ():
                    for one in said.events(part, run.client_run_id):
                        yield one
        now = await _again(house, run)
        if not now.ended:
            return
        done = True
        if said.shown == 0 and "values" in viewer.modes and now.status != "error" and after is None:
            kept = await _kept(house, now)  # nothing was recorded of it: its outcome at least
            interrupts = {"__interrupt__": kept["interrupts"]} if kept["interrupts"] else {}
            yield event("values", encode({**kept["values"], **interrupts}), None)
        if (error := error_of(now)) is not None:
            yield event("error", encode(error), None)
    except (GeneratorExit, asyncio.CancelledError):  # a fault of ours is no client's going away
        if not done:
            _gone(house, viewer)
        raise


def event(name: str, data: str, number: int | None) -> bytes:
    """One server-sent event; JSON has no line breaks of its own."""
    id_ = f"id: {number}\r\n" if number is not None else ""
    return f"event: {name}\r\ndata: {data}\r\n{id_}\r\n".encode()


@dataclass(slots=True)
class Said:
    """What was said to one client so far; turns stored parts into its events."""

    modes: frozenset[str]
    behind: int  # what the client has already
    shown: int = 0
    _messages: dict[str, AIMessageChunk | None] = field(default_factory=dict)

    @property
    def adds_up(self) -> bool:
        """Whether events hold what came before, so that one who comes back needs the parts from the start."""
        return "messages" in self.modes and "messages-tuple" not in self.modes

    def events(self, part: Part, run_id: UUID) -> list[bytes]:
        """The events of a part, none for what the client has or did not ask for."""
        made = self._of(part, run_id)
        if part.n <= self.behind:
            return []
        self.shown += len(made)
        return made

    def _of(self, part: Part, run_id: UUID) -> list[bytes]:
        name = "|".join([part.mode, *part.namespace])
        match part.mode:
            case "metadata":
                self._messages.clear()
                return [event("metadata", encode({"run_id": run_id, **json.loads(part.data)}), part.n)]
            case "messages" if "messages-tuple" in self.modes:
                return [event(name, part.data, part.n)]
            case "messages" if "messages" in self.modes:
                return self._added(part)
            case "updates" if "updates" not in self.modes:
                told = json.loads(part.data)
                if not isinstance(told, dict) or not told.get("__interrupt__"):
                    return []
                return [event("|".join(["values", *part.namespace]), part.data, part.n)]
            case mode if mode in self.modes:
                return [event(name, part.data, part.n)]
            case _:
                return []

    def _added(self, part: Part) -> list[bytes]:
        """`messages`: each event holds the message as far as it is."""
        raw, meta = json.loads(part.data)
        key = str(raw.get("id"))
        first = []
        if key not in self._messages:
            first = [event("messages/metadata", encode({key: {"metadata": meta}}), None)]
        known = self._messages.get(key)
        if raw.get("type") != "AIMessageChunk":
            self._messages[key] = None
            return [*first, event("messages/complete", encode([raw]), part.n)]
        chunk = AIMessageChunk(**raw)
        whole = known + chunk if known is not None else chunk
        self._messages[key] = whole
        return [*first, event("messages/partial", encode([message_chunk_to_message(whole)]), part.n)]


# Going away


def _gone(house: LangGraph, viewer: Viewer) -> None:
    """The client is gone. The run goes on, unless it had said to cancel it then; our own stop cancels nothing."""
    if viewer.cancels is not None and not house.following.stopping.is_set():
        house.following.later(cancel(house, viewer.cancels, viewer.run, "the client went away"))


async def cancel(house: LangGraph, user: User, run: ClientRun, reason: str) -> None:
    """Cancel the run's turn for good (T3). Raises `TurnEnded` with what happened, `NotAllowed`."""
    async with house.services.database.transaction("cancel_run") as tx:
        now = await people.get(tx, user.tenant_id, user.user_id)
        await turns.cancel(tx, now, run.turn_id, reason=reason, result=protocol.cancelled("the call"))
