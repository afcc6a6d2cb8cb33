"""plan: ask the model for its next step.

The answer is recorded, with its calls as plan items, before anything acts on it; if the node runs again, the recorded
answer counts and the model is not asked (G1). Before the model is asked, every call it made has exactly one result, in
its own order (G5). The step budget is counted here (G6).
"""

from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import interrupt

from graph import models, protocol
from graph.answers import Answer, normalise
from graph.gate import as_call
from graph.orphans import orphan, question
from graph.services import Services, owned_by
from graph.state import TurnState
from placet.record import items, turns
from placet.record.crashpoints import outside
from placet.record.database import Transaction
from placet.record.items import Item
from placet.record.runs import Owned


async def plan(services: Services, state: TurnState, config: RunnableConfig) -> dict[str, Any]:
    """The model's next step, or how the turn ends."""
    owned = owned_by(config)
    async with services.database.read() as tx:
        unanswered = await _unanswered(tx, owned, state["messages"])
        turn = await turns.get(tx, owned.tenant_id, owned.turn_id)
        recorded = await items.recorded_answer(tx, owned.tenant_id, owned.turn_id, state["step"] + 1)

    left = [item for item in unanswered if item.result is None and item.turn_id == owned.turn_id]
    if any(was_sent(item) for item in left) or (left and turn.status not in turns.ENDED):
        return await _lead_back(services, owned, left)

    results = [protocol.tool_message(_result(item), call_id=item.call_id, tool=item.tool) for item in unanswered]
    done: dict[str, Any] = {"messages": results, "calls": []}
    if turn.status in turns.ENDED:  # cancelled meanwhile: the history is complete, nothing more is asked (T3)
        return {**done, "ending": "cancelled"}
    if recorded is None and state["step"] >= turn.max_steps:
        return {**done, "ending": "exhausted"}
    if recorded is None:
        try:
            recorded = await _ask(services, owned, [*state["messages"], *results], state["step"] + 1)
        except models.ModelError as error:
            problem = {"code": error.code, "message": str(error), "retryable": error.retryable}
            return {**done, "ending": "failed", "error": problem}

    answer = Answer.from_json(recorded)
    return {
        "messages": [*results, answer.as_message()],
        "step": answer.step,
        "calls": [],
        "ending": None if answer.calls else "completed",
    }


async def _lead_back(services: Services, owned: Owned, left: list[Item]) -> dict[str, Any]:
    """Calls whose pipeline ended without a result, because the node at which they stood is in this graph no more (G8).

    What was sent is looked up, also for a turn that has ended (T3): its pipeline begins anew, and finds in the rows how far
    it is. What was not is orphaned, and waits until somebody cancels or migrates the turn.
    """
    sent = [item for item in left if was_sent(item)]
    if not sent and owned.because != "migrate":
        await orphan(services, owned, left)
        interrupt(question(left))
    return {"calls": [as_call(item) for item in sent or left]}


def was_sent(item: Item) -> bool:
    """Whether the call without a result has left, so that what became of it must be looked up."""
    return item.status in ("executing", "unknown")


async def _ask(services: Services, owned: Owned, history: list[AnyMessage], step: int) -> dict[str, Any]:
    """Ask the model and record its answer; an answer that was recorded meanwhile counts instead."""
    async with outside("model"):
        said = await models.ask(
            services.model,
            [protocol.system_message(), *in_order(history)],
            [models.tool_schema(tool) for tool in services.registry],
            message_id=f"{owned.turn_id}:{step}",
        )
    answer = normalise(said, turn_id=str(owned.turn_id), step=step)
    async with services.database.transaction("answer") as tx:
        await items.record_answer(
            tx,
            owned,
            step,
            answer.as_json(),
            [items.Proposed(call.call_id, call.tool, dict(call.arguments)) for call in answer.calls],
            rationale=answer.text,
        )
    return answer.as_json()


async def _unanswered(tx: Transaction, owned: Owned, messages: list[AnyMessage]) -> list[Item]:
    """Calls whose result the history has not yet: of this step, or of a turn that ended early; in the model's order."""
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    unanswered: list[Item] = []
    for message in messages:
        if not isinstance(message, AIMessage) or {call["id"] for call in message.tool_calls} <= answered:
            continue
        turn_id, _, step = str(message.id).rpartition(":")
        calls = await items.of_step(tx, owned.tenant_id, UUID(turn_id), int(step))
        unanswered += [item for item in calls if item.call_id not in answered and item.thread_id == owned.thread_id]
    return unanswered


def _result(item: Item) -> dict[str, Any]:
    """The call's one result; of a turn that ended without it, what can honestly be said (E4)."""
    if item.result is not None:
        return item.result
    if was_sent(item):
        return protocol.unknown_do_not_repeat(item.tool, operation_id="", evidence="The turn ended before its answer.")
    return protocol.failed("turn_ended", "The turn ended before this call ran.", retryable=False)


def _not_ours(call: ToolCall) -> ToolMessage:
    """A call that came along with a copied conversation: its approval and its effect did not (E2)."""
    result = protocol.failed("not_of_this_thread", "This call was made in another conversation.", retryable=False)
    return protocol.tool_message(result, call_id=str(call["id"]), tool=call["name"])


def in_order(messages: list[AnyMessage]) -> list[BaseMessage]:
    """The history as providers demand it: each result directly behind the message that made the call, in its order."""
    results = {message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)}
    ordered: list[BaseMessage] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            continue
        ordered.append(message)
        if isinstance(message, AIMessage):
            ordered.extend(results.get(str(call["id"])) or _not_ours(call) for call in message.tool_calls)
    return ordered
