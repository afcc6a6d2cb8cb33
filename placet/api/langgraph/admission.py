"""Admission: what a client's run becomes (L2, T4).

A message becomes a turn; a resume becomes decisions, by the same `decide` as every other door, as who is authenticated; an
empty run wakes a turn that waits. Turn or decision, the run that is due and the client's run are one transaction, so that
what was answered with 2xx is never lost (L3, A4). A busy thread applies the multitask strategy to messages, never to
decisions. What the client says of a checkpoint only has to be the latest: nothing is run from an older one (E2).
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from langchain_core.messages import BaseMessage, convert_to_messages

from graph import Graph, deciding, protocol
from graph.services import Services
from placet.api.langgraph.answers import Answer, read_answers
from placet.api.langgraph.assistants import ASSISTANT_ID
from placet.api.langgraph.bodies import Mode, RunCreate
from placet.api.langgraph.state import Reader, checkpoint_id, task_interrupts
from placet.api.langgraph.steering import change_state, check_goto, check_may_steer
from placet.record import approvals, client_runs, runs, threads, turns
from placet.record.approvals import Approval
from placet.record.canonical import NotPlain, canonical
from placet.record.client_runs import ClientRun
from placet.record.decisions import InvalidDecision, NotTheSameRequest, check_may_decide, outcome, read_decision
from placet.record.errors import Conflict, InvalidInput, NotAllowed
from placet.record.people import User

CHANNEL = "langgraph"
LOOKED_BACK = 50  # checkpoints in which an interrupt that is no longer pending is looked for


class ThreadBusy(Conflict):
    """A run of the thread is due or goes on, and the client said to reject then."""

    code = "thread_busy"


class NothingPending(Conflict):
    """Nothing on this thread waits for an answer; the details say how its last turn stands."""

    code = "nothing_pending"


class Ambiguous(Conflict):
    """Several calls wait; the answer has to say which it is about. The details list them by interrupt id."""

    code = "ambiguous_answer"


class StaleInterrupt(Conflict):
    """The interrupt that was answered is no longer pending; the details list what is, and say what became of it."""

    code = "stale_interrupt"


class EditNotSeen(Conflict):
    """An edit counts when its author has seen its preview (A8): the details carry it, with the hash to send along."""

    code = "edit_not_seen"


class StaleCheckpoint(Conflict):
    """The thread has moved on since the checkpoint that the client names; nothing is run from an older one."""

    code = "stale_checkpoint"


@dataclass(frozen=True, slots=True)
class Asked:
    """A client's run as it is admitted."""

    user: User
    thread_id: UUID
    body: RunCreate
    modes: list[Mode]
    create: bool = False  # the thread, when there is none
    applied: dict[str, Any] = field(default_factory=dict)  # where a rule won over a wish (L1)

    def kept(self) -> dict[str, Any]:
        """What is remembered of it."""
        return {
            "metadata": self.body.metadata or {},
            "strategy": self.body.multitask_strategy or "enqueue",
            "modes": self.modes,
            "subgraphs": bool(self.body.stream_subgraphs),
            "applied": self.applied,
        }


async def admit(services: Services, graph: Graph, asked: Asked) -> ClientRun:
    """Admit the run; it is due, or what it asks is done, when this returns.

    Raises `InvalidInput` (422), `NotAllowed` (403), `UnknownThread` (404), and with 409 `TurnWaits`, `ThreadBusy`,
    `NothingPending`, `Ambiguous`, `StaleInterrupt`, `StaleCheckpoint`, or what `decide` raises.
    """
    body = asked.body
    if body.durability in ("async", "exit"):
        asked.applied["durability"] = "sync"
    command = body.command
    if body.after_seconds and (command is not None or body.input is None):
        asked.applied["after_seconds"] = 0
    if command is not None and command.resumes:
        if command.steers or body.input is not None:
            raise InvalidInput("A resume comes alone: without input, update and goto.", field="command")
        async with deciding.refusals_kept(services, asked.user, f"thread:{asked.thread_id}", channel=CHANNEL):
            return await _resume(services, graph, asked, command.resume)
    if command is not None and command.steers:
        return await _steer(services, graph, asked)
    if body.input is not None:
        message = request_of(body.input)
        await _check_latest(services, graph, asked)
        return await _message(services, asked, message)
    return await _wake(services, graph, asked)


def request_of(given: object) -> str:
    """The last message of the user in `{"messages": […]}`; raises `InvalidInput`."""
    said = given.get("messages") if isinstance(given, dict) else None
    if said is None:
        raise InvalidInput('A run starts with {"messages": [{"role": "user", "content": "…"}]}.', field="input")
    messages = read_messages(said, "input.messages")
    users = [message for message in messages if message.type == "human"]
    if not users:
        raise InvalidInput("Among the messages is none of the user.", field="input.messages")
    return str(users[-1].text)


def read_messages(said: object, where: str) -> list[BaseMessage]:
    """Messages in any form that LangChain reads; raises `InvalidInput`."""
    try:
        return convert_to_messages(said if isinstance(said, list) else [said])  # type: ignore[list-item]
    except Exception as error:  # noqa: BLE001  # LangChain raises many kinds for what it cannot read
        first = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise InvalidInput(f"The messages cannot be read: {first}", field=where) from None


# A message of the user


async def _message(services: Services, asked: Asked, message: str) -> ClientRun:
    settings, user, thread_id = services.settings, asked.user, asked.thread_id
    strategy = asked.body.multitask_strategy or "enqueue"
    async with services.database.transaction("ask_client") as tx:
        if asked.create:
            await threads.insert(tx, user, thread_id, metadata={})
        await runs.lock_thread(tx, thread_id)
        thread = await threads.get(tx, user, thread_id)
        if strategy == "reject" and thread.status == "busy":
            raise ThreadBusy("A run of this thread goes on; wait for it, or choose another multitask strategy.")
        if strategy in ("interrupt", "rollback") and await turns.supersede(
            tx, user, thread_id, result=protocol.superseded("the call")
        ):
            asked.applied["multitask_strategy"] = "supersede"
        turn = await turns.create(
            tx,
            user,
            message,
            max_steps=settings.max_steps,
            max_chars=settings.max_message_chars,
            thread_id=thread_id,
            after=timedelta(seconds=asked.body.after_seconds or 0),
        )
        await threads.add_metadata(tx, user, thread_id, {"graph_id": "placet", "assistant_id": ASSISTANT_ID})
        return await client_runs.insert(tx, user, thread_id, turn.turn_id, kind="message", **asked.kept())


# Decisions


async def _resume(services: Services, graph: Graph, asked: Asked, resume: object) -> ClientRun:
    """Every answer is read and checked before the first is recorded; they become true together, or none does."""
    answers = read_answers(resume)
    async with services.database.read() as tx:
        await threads.get(tx, asked.user, asked.thread_id)
    questions = await _questions(services, graph, asked, answers)
    prepared: list[deciding.Prepared] = []
    for answer, approval in zip(answers, questions, strict=True):
        raw = answer.raw
        if "payload_hash" not in raw:
            raw = {**raw, "payload_hash": approval.payload_hash.hex()}
            if raw.get("kind") == "approve_with_changes":
                await _refuse_unseen(services, asked.user, approval, raw)
        prepared.append(await deciding.prepare(services, approval.approval_id, raw, asked.user))
    async with services.database.transaction("decide") as tx:
        for one in prepared:
            await deciding.record(tx, services, one, asked.user, channel=CHANNEL)
        return await client_runs.insert(
            tx, asked.user, asked.thread_id, questions[0].turn_id, kind="resume", **asked.kept()
        )


async def _questions(services: Services, graph: Graph, asked: Asked, answers: list[Answer]) -> list[Approval]:
    """The approval that each answer is about, with the hash that its author was shown."""
    named = any(answer.interrupt_id for answer in answers)
    shown: dict[str, dict[str, Any]] = {}
    if named or asked.body.checkpoint is not None or asked.body.checkpoint_id is not None:
        snapshot = await Reader(graph, services.database).at(asked.thread_id)
        shown = {
            interrupt["id"]: interrupt["value"] for many in task_interrupts(snapshot).values() for interrupt in many
        }
        if not named:
            check_latest(asked.body, checkpoint_id(snapshot))
    gone = {answer.interrupt_id for answer in answers if answer.interrupt_id} - shown.keys()
    before = await _answered_before(services, graph, asked, gone) if gone else {}
    found = [await _question(services, asked, answer, shown, before) for answer in answers]
    if len({approval.approval_id for approval in found}) < len(found):
        raise InvalidDecision("Two answers are about the same call.")
    return found


async def _answered_before(services: Services, graph: Graph, asked: Asked, ids: set[str]) -> dict[str, dict[str, Any]]:
    """What is stored about approvals that interrupts of older checkpoints showed: who answers late is told it (A3)."""
    found: dict[str, UUID] = {}
    async for snapshot in Reader(graph, services.database).history(asked.thread_id, limit=LOOKED_BACK):
        for many in task_interrupts(snapshot).values():
            for interrupt in many:
                if interrupt["id"] in ids and interrupt["value"].get("type") == "tool_approval":
                    found.setdefault(interrupt["id"], UUID(interrupt["value"]["approval_id"]))
        if ids <= found.keys():
            break
    async with services.database.read() as tx:
        return {
            id_: {"outcome": outcome(await approvals.get(tx, asked.user.tenant_id, approval_id), first=False).public()}
            for id_, approval_id in found.items()
        }


async def _question(
    services: Services,
    asked: Asked,
    answer: Answer,
    shown: dict[str, dict[str, Any]],
    before: dict[str, dict[str, Any]],
) -> Approval:
    tenant = asked.user.tenant_id
    async with services.database.read() as tx:
        if answer.interrupt_id is not None:
            value = shown.get(answer.interrupt_id)
            if value is None:
                raise StaleInterrupt(
                    f"The interrupt {answer.interrupt_id} is not pending (any more); nothing was recorded.",
                    interrupt_id=answer.interrupt_id,
                    pending=sorted(shown),
                    **before.get(answer.interrupt_id, {}),
                )
            if value.get("type") != "tool_approval":
                raise Conflict(f"This is not decided by a resume: {value.get('type')}.", waiting=value)
            approval = await approvals.get(tx, tenant, UUID(value["approval_id"]))
            if value["payload_hash"] != approval.payload_hash.hex() and approval.status == "pending":
                raise NotTheSameRequest(
                    "What the interrupt shows is not what is pending now: look at it again, then decide.",
                    pending_hash=approval.payload_hash.hex(),
                )
            return approval
        if answer.approval_id is not None:
            approval = await approvals.get(tx, tenant, answer.approval_id)
            if approval.thread_id != asked.thread_id:
                raise approvals.UnknownApproval(f"There is no approval {answer.approval_id} on this thread.")
            return approval
        turn = await turns.latest(tx, tenant, asked.thread_id)
        pending = await approvals.waiting(tx, tenant, turn_id=turn.turn_id)
    if answer.item_id is not None:
        pending = [approval for approval in pending if approval.item_id == answer.item_id]
        if not pending:
            async with services.database.read() as tx:
                last = await approvals.latest(tx, tenant, answer.item_id)
            if last is not None and last.thread_id == asked.thread_id:
                return last  # decided or closed: `decide` answers with what is stored (A3)
    if not pending:
        raise NothingPending(
            f"Nothing waits for an answer on this thread; its last turn is {turn.status}. Nothing was recorded.",
            turn_id=str(turn.turn_id),
            status=turn.status,
        )
    if len(pending) > 1:
        raise Ambiguous(
            f"{len(pending)} calls wait; answer by interrupt id: {{id: decision}}. Nothing was recorded.",
            approvals=[str(approval.approval_id) for approval in pending],
        )
    if answer.echo is not None and not _is_of(answer.echo, pending[0]):
        raise NotTheSameRequest(
            f"The answer is about {answer.echo['action'][:100]}, and what waits is another call ({pending[0].tool}): look "
            "at it, then decide. Nothing was recorded.",
            pending_hash=pending[0].payload_hash.hex(),
        )
    return pending[0]


def _is_of(echo: dict[str, Any], asked: Approval) -> bool:
    """Whether what the client showed is what is pending."""
    try:
        return echo["action"] == asked.tool and canonical(echo["args"]) == canonical(asked.content["arguments"])
    except NotPlain:
        return False


async def _refuse_unseen(services: Services, user: User, approval: Approval, raw: dict[str, Any]) -> None:
    """Show what the edit would do instead of taking it (A8)."""
    decision = read_decision(raw)
    assert decision.arguments is not None
    check_may_decide(user, approval)
    edited = await deciding.prepare_edit(services, approval, decision.arguments)
    raise EditNotSeen(
        "Look at what the edited call would do, then send it again with this payload_hash. Nothing was recorded.",
        payload_hash=edited.payload_hash.hex(),
        preview=edited.preview,
    )


async def _check_latest(services: Services, graph: Graph, asked: Asked) -> None:
    """As `check_latest`, for who may see the thread: its latest checkpoint is told to nobody else."""
    if asked.body.checkpoint_id is None and asked.body.checkpoint is None:
        return
    latest: str | None = None
    try:
        async with services.database.read() as tx:
            await threads.get(tx, asked.user, asked.thread_id)
        latest = checkpoint_id(await Reader(graph, services.database).at(asked.thread_id))
    except threads.NoSuchThread:
        if not asked.create:
            raise
    check_latest(asked.body, latest)


def check_latest(body: RunCreate, latest: str | None) -> None:
    """Raise `StaleCheckpoint` unless the checkpoint that the client names, if any, is the thread's latest."""
    named = body.checkpoint_id or (body.checkpoint.checkpoint_id if body.checkpoint else None)
    if named is not None and named != latest:
        raise StaleCheckpoint(
            "The thread has moved on since that checkpoint, and nothing is run from an older one.",
            checkpoint_id=named,
            latest=latest,
        )


# Waking and steering


async def _wake(services: Services, graph: Graph, asked: Asked) -> ClientRun:
    """No input: look again at what waits. It decides nothing, and starts nothing."""
    if not any(asked.user.is_a(role) for role in ("requester", "reviewer", "operator")):
        raise NotAllowed(
            f"{asked.user.user_id} is {', '.join(asked.user.roles)}, and looks; a run is for those who act."
        )
    await _check_latest(services, graph, asked)
    async with services.database.transaction("wake") as tx:
        await threads.get(tx, asked.user, asked.thread_id)
        await runs.lock_thread(tx, asked.thread_id)
        turn = await turns.latest(tx, asked.user.tenant_id, asked.thread_id)
        if turn.status in turns.ENDED:
            raise NothingPending(
                f"There is nothing to go on with: the last turn is {turn.status}. Send a message.", status=turn.status
            )
        if turn.status != "created":  # one that waits for its time or its turn is followed, not started before it
            await runs.make_due(tx, turn.tenant_id, turn.thread_id, turn.turn_id, because="resume")
        return await client_runs.insert(tx, asked.user, asked.thread_id, turn.turn_id, kind="wake", **asked.kept())


async def _steer(services: Services, graph: Graph, asked: Asked) -> ClientRun:
    """An operator's update, then an operator's goto; neither executes anything without a verdict or an approval."""
    assert asked.body.command is not None
    command, user = asked.body.command, asked.user
    check_may_steer(user)
    check_goto(command.goto)
    async with services.database.read() as tx:
        await threads.get(tx, user, asked.thread_id)
        turn = await turns.latest(tx, user.tenant_id, asked.thread_id)
    await _check_latest(services, graph, asked)
    if command.goto and turn.status in turns.ENDED and turn.status != "failed":
        raise _nowhere_to_go(turn)
    if command.update:
        await change_state(services, graph, user, asked.thread_id, command.update)
    async with services.database.transaction("steer") as tx:
        await runs.lock_thread(tx, asked.thread_id)
        if command.goto:
            turn = await turns.latest(tx, user.tenant_id, asked.thread_id)
            if turn.status == "failed":
                await turns.retry(tx, user, turn.turn_id)
            elif turn.status in turns.ENDED:
                raise _nowhere_to_go(turn)
            else:
                await runs.make_due(tx, turn.tenant_id, turn.thread_id, turn.turn_id, because="resume")
        return await client_runs.insert(tx, user, asked.thread_id, turn.turn_id, kind="update", **asked.kept())


def _nowhere_to_go(turn: turns.Turn) -> NothingPending:
    return NothingPending(
        f"The last turn is {turn.status}: there is no planning to go back to. Send a message.", status=turn.status
    )


def new_thread_id() -> UUID:
    """For a run without a thread."""
    return uuid4()
