"""One segment of a turn: from a claim to a pause or an end.

Loads the checkpoint, starts the turn (T6), runs the graph until nothing moves, and settles what the turn waits for
together with the release of the thread. A wake-up brings no answer: decisions are read from their rows.
"""

import re
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Protocol, cast

import structlog
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, StateSnapshot, StreamMode

from graph import Graph, protocol
from graph.orphans import orphan
from graph.plan import was_sent
from graph.said import said
from graph.services import Services
from graph.state import Ending, first_state
from graph.versions import StateVersionMismatch, bring_up_to_date
from placet.record import items, runs, turns
from placet.record.canonical import NotPlain, check_plain
from placet.record.checkpointer import FencedSaver, config_of
from placet.record.database import AWAY
from placet.record.decisions import InvalidDecision
from placet.record.errors import Conflict, PlacetError
from placet.record.runs import Owned

log = structlog.get_logger()
Resume = Command[Any]
INTERRUPT_ID = re.compile(r"[0-9a-f]{32}")


class AmbiguousAnswer(Conflict):
    """It cannot be said which question this answers; the details list those that are pending (A6)."""

    code = "ambiguous_answer"


class NothingLeads(Conflict):
    """The checkpoint waits at a step that this graph does not have, and there is no call to show for it (G8)."""

    code = "nothing_leads"


class Sink(Protocol):
    """Where a run that is followed says what it does; none of it decides anything."""

    @property
    def modes(self) -> Sequence[StreamMode]: ...

    @property
    def subgraphs(self) -> bool: ...

    async def put(self, namespace: tuple[str, ...], mode: str, part: Any) -> None:
        """Take one part of the graph's stream; `namespace` is the subgraph's, empty for the graph itself."""

    async def end(self, state: StateSnapshot) -> None:
        """The run has come to a pause or an end with this state; what was put must be out before this returns."""


async def advance(
    services: Services,
    graph: Graph,
    owned: Owned,
    *,
    resume: Resume | None = None,
    acting: str | None = None,
    sink: Sink | None = None,
) -> turns.Status:
    """Run the claimed turn on; returns the status in which it was left.

    `resume` is a client's `Command`, whose answer is handed to `decide` as `acting`, an authenticated user id. LangGraph
    would end the turn over an answer that it cannot store or place, so the run goes on without that, and then
    `InvalidDecision` or `AmbiguousAnswer` is raised (A6). Raises `StaleEpoch` when the thread was lost on the way: its new
    owner goes on. A database that is away is raised too: the lease lapses, and the run is taken up again. `sink` hears what
    a followed run does.
    """
    saver = FencedSaver(services.database, owned)
    bound = graph.copy(update={"checkpointer": saver})
    more = {"langgraph_auth_user_id": acting} if acting else {}
    config = cast("RunnableConfig", config_of(owned, **more))
    unusable = await _unusable(bound, config, resume) if resume is not None else None
    status = await _advance(services, bound, saver, owned, config, None if unusable else resume, sink)
    if unusable is not None:
        raise unusable
    return status


async def _unusable(graph: Graph, config: RunnableConfig, resume: Resume) -> PlacetError | None:
    """Why the answer cannot be given to the graph; None when it can."""
    if resume.update is not None or resume.goto or resume.graph is not None:
        return InvalidDecision("A resume brings an answer, and neither changes the state nor goes anywhere else.")
    answer = resume.resume
    try:
        check_plain(answer)
    except NotPlain as error:
        return InvalidDecision(f"The answer cannot be used: {error}.")
    pending = {question.id for question in (await graph.aget_state(config)).interrupts}
    if isinstance(answer, dict) and answer and all(INTERRUPT_ID.fullmatch(key) for key in answer):
        if strangers := sorted(set(answer) - pending):
            return AmbiguousAnswer(f"No question {', '.join(strangers)[:200]} is pending.", pending=sorted(pending))
    elif len(pending) != 1:
        return AmbiguousAnswer(
            f"{len(pending)} questions are pending; answer each by its id: {{id: decision}}.", pending=sorted(pending)
        )
    return None


async def _advance(
    services: Services,
    graph: Graph,
    saver: FencedSaver,
    owned: Owned,
    config: RunnableConfig,
    resume: Resume | None,
    sink: Sink | None,
) -> turns.Status:
    try:
        await bring_up_to_date(saver, config)
        status = await _run(services, graph, owned, config, resume, sink)
    except StateVersionMismatch as error:
        log.error("turn_refused", turn_id=str(owned.turn_id), error=str(error))
        async with services.database.transaction("refuse") as tx:
            status = await turns.refuse(tx, owned, error.as_json())
    except AWAY:
        # A sibling's call may be out: the thread is kept until its receipt is stored (E3).
        await services.settled(owned)
        raise
    except Exception as error:
        if runs.is_stale(error):
            raise
        await services.settled(owned)
        log.exception("turn_failed", turn_id=str(owned.turn_id), epoch=owned.epoch)
        own = getattr(error, "code", None)
        problem = {
            "code": own if isinstance(own, str) else "internal_error",
            "message": str(error) if isinstance(error, PlacetError) else said(error, 2000),
            "retryable": True,
        }
        leftover = protocol.failed("turn_ended", "The turn broke off before this call ran.", retryable=False)
        async with services.database.transaction("fail") as tx:
            await turns.start(tx, owned)  # a turn that its run could not even load ends by the same way
            status = await turns.settle(tx, owned, ending="failed", error=problem, leftover=leftover)
    return status


async def _run(
    services: Services,
    graph: Graph,
    owned: Owned,
    config: RunnableConfig,
    resume: Resume | None,
    sink: Sink | None = None,
) -> turns.Status:
    before = await graph.aget_state(config)
    async with services.database.transaction("start") as tx:
        status = await turns.start(tx, owned)
        turn = await turns.get(tx, owned.tenant_id, owned.turn_id)
    begun = before.values.get("turn_id") == str(owned.turn_id)
    if not begun and status in turns.ENDED:  # cancelled before it ever ran: nothing to close
        async with services.database.transaction("nothing_to_close") as tx:
            return await turns.settle(tx, owned, ending=None)

    if begun and not before.next and _is_reopened(owned, before.values["ending"]):
        await graph.aupdate_state(config, {"ending": None, "error": None}, as_node="call")  # plan is next
    await _go(graph, config, resume if begun else first_state(turn, said=_again(owned, before)), sink)
    await services.settled(owned)
    after = await graph.aget_state(config)
    if _leads_nowhere(after) and not await _orphaned(services, owned):
        # Plan is next, and leads back what was sent.
        await graph.aupdate_state(config, {"ending": None}, as_node="call")
        await _go(graph, config, None, sink)
        after = await graph.aget_state(config)
    if sink is not None:
        await sink.end(after)
    ending = after.values["ending"] if not after.next else None
    async with services.database.transaction("settle") as tx:
        return await turns.settle(
            tx,
            owned,
            ending=None if ending == "cancelled" else ending,
            output_text=str(after.values["messages"][-1].text) if ending == "completed" else None,
            error=after.values.get("error"),
        )


def _again(owned: Owned, before: StateSnapshot) -> str:
    """A turn is tried again after another one of its thread: its message stands behind that one's, or the model would
    take it for answered."""
    known = {message.id for message in before.values.get("messages", [])}
    return f":{owned.run_id}" if f"user:{owned.turn_id}" in known else ""


async def _go(graph: Graph, config: RunnableConfig, given: Any, sink: Sink | None) -> None:
    """Run the graph until nothing moves, and let whoever follows it hear."""
    if sink is None or not sink.modes:
        await graph.ainvoke(given, config, durability="sync")
        return
    parts = graph.astream(given, config, stream_mode=list(sink.modes), subgraphs=sink.subgraphs, durability="sync")
    async with aclosing(cast("Any", parts)) as stream:
        async for part in stream:
            namespace, mode, chunk = part if sink.subgraphs else ((), *part)
            await sink.put(namespace, mode, chunk)


def _is_reopened(owned: Owned, ending: Ending | None) -> bool:
    """A person retries a failed turn, or has seen to a call that this graph does not lead to."""
    if ending is None:
        return owned.because == "migrate" or owned.because.startswith("resolved:")
    return owned.because == "retry" and ending in ("failed", "cancelled")  # cancelled: its closing run was over before


def _leads_nowhere(state: StateSnapshot) -> bool:
    """The graph has no node for what comes next, and no end was reached: another graph wrote this checkpoint (G8)."""
    return not state.next and state.values["ending"] is None


async def _orphaned(services: Services, owned: Owned) -> bool:
    """Orphan the calls to which nothing leads. False when one of them was sent: that is looked up first (E5, T3)."""
    async with services.database.read() as tx:
        turn = await turns.get(tx, owned.tenant_id, owned.turn_id)
        left = [item for item in await items.of_turn(tx, owned.tenant_id, owned.turn_id) if item.result is None]
    if any(was_sent(item) for item in left):
        return False
    if turn.status in turns.ENDED:
        return True
    if not left:
        raise NothingLeads(
            "The checkpoint waits at a step that this graph does not have; run the version that wrote it."
        )
    await orphan(services, owned, left)
    return True
