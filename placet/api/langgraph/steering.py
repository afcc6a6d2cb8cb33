"""What an operator may do to a thread's state: add messages to the conversation, or have the turn planned again (L1).

Writing a state is authority over what a graph does next, so it is bounded: verdicts, approvals and effects are rows that
no state can stand in for, and of the state only the conversation can be added to. Who added to it decides nothing that is
asked in it (A5). It claims the thread like a run, so it
never writes beside one.
"""

from typing import Any, cast
from uuid import UUID, uuid4

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig

from graph import Graph
from graph.services import Services
from placet.record import audit, runs, threads, turns
from placet.record.checkpointer import FencedSaver, config_of
from placet.record.errors import Conflict, InvalidInput, NotAllowed
from placet.record.people import User
from placet.record.runs import Owned

MAX_MESSAGES = 20
GOTO = "plan"


class StateInUse(Conflict):
    """A run goes on, or the thread has no state yet, or is paused: it cannot be written now."""

    code = "state_in_use"


def check_may_steer(user: User) -> None:
    """Raise `NotAllowed` unless the user is an operator."""
    if not user.is_a("operator"):
        raise NotAllowed(f"Writing a state needs the role operator; {user.user_id} is {', '.join(user.roles)}.")


def check_goto(goto: object) -> None:
    """Raise `InvalidInput` unless `goto` is `plan`, the only node that may be gone to."""
    if goto and goto not in (GOTO, [GOTO]):
        raise InvalidInput(
            f"goto: only {GOTO!r} can be gone to; calls are reached through the gate and their approvals.", field="goto"
        )


async def change_state(services: Services, graph: Graph, user: User, thread_id: UUID, values: object) -> str:
    """Add an operator's messages to the conversation; returns the new checkpoint's id.

    Calls that wait are shown again under new interrupt ids. Raises `InvalidInput`, `NotAllowed`, `StateInUse`.
    """
    check_may_steer(user)
    messages = _added(values, services.settings.max_message_chars)
    owned, turn = await _claim(services, user, thread_id, messages)
    waits = turn.status in turns.WAITING
    bound = graph.copy(update={"checkpointer": FencedSaver(services.database, owned)})
    changed = await bound.aupdate_state(
        cast("RunnableConfig", config_of(owned)), {"messages": messages}, as_node="gate" if waits else "plan"
    )
    async with services.database.transaction("state_changed") as tx:
        await runs.fence(tx, owned)
        if waits:
            await runs.make_due(tx, owned.tenant_id, thread_id, owned.turn_id, because="resume")
        await turns.settle(tx, owned, ending=None)
    return str(changed["configurable"]["checkpoint_id"])


async def _claim(
    services: Services, user: User, thread_id: UUID, messages: list[BaseMessage]
) -> tuple[Owned, turns.Turn]:
    settings = services.settings
    async with services.database.transaction("claim_state") as tx:
        await runs.lock_thread(tx, thread_id)  # before it is read: a decision or a cancellation may be on its way
        thread = await threads.get(tx, user, thread_id)
        if thread.turn_id is None or thread.status == "busy":
            raise StateInUse(
                "The thread has no state yet." if thread.turn_id is None else "A run of this thread goes on."
            )
        turn = await turns.latest(tx, user.tenant_id, thread_id)
        await runs.make_due(tx, user.tenant_id, thread_id, turn.turn_id, because="update")
        owned = await runs.claim(
            tx, user.tenant_id, owner=f"operator:{user.user_id}", lease=settings.lease, thread_id=thread_id
        )
        if owned is None or owned.turn_id != turn.turn_id:
            raise StateInUse(f"The thread's turn is {turn.status}, and it could not be claimed; look again.")
        await threads.steer(tx, user, thread_id)
        said: list[dict[str, Any]] = [{"type": message.type, "text": message.text} for message in messages]
        await audit.append(
            tx,
            user.tenant_id,
            actor=user.user_id,
            action="state_updated",
            subject=f"thread:{thread_id}",
            body={"messages": said},
        )
    return owned, turn


def _added(values: object, max_chars: int) -> list[BaseMessage]:
    """The messages to add: of a user or the agent, plain text, without calls and results."""
    if not isinstance(values, dict) or set(values) != {"messages"}:
        raise InvalidInput('Of a state only messages can be added: {"messages": […]}.', field="values")
    given = values["messages"]
    try:
        messages = convert_to_messages(given if isinstance(given, list) else [given])
    except Exception:  # noqa: BLE001  # LangChain raises many kinds for what it cannot read
        raise InvalidInput("The messages cannot be read.", field="values.messages") from None
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise InvalidInput(f"Between 1 and {MAX_MESSAGES} messages; got {len(messages)}.", field="values.messages")
    return [_plain(message, max_chars) for message in messages]


def _plain(message: BaseMessage, max_chars: int) -> BaseMessage:
    text = str(message.text)
    if message.type not in ("human", "ai") or getattr(message, "tool_calls", None):
        raise InvalidInput(
            "Calls and their results come from the graph alone; add messages of a user or the agent.",
            field="values.messages",
        )
    if not text.strip() or len(text) > max_chars:
        raise InvalidInput(f"A message has between 1 and {max_chars:,} characters.", field="values.messages")
    kind = HumanMessage if message.type == "human" else AIMessage
    return kind(text, id=f"update:{uuid4()}")
