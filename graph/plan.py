"""plan: ask the model for its next step.

The answer is recorded, with its calls as plan items, before anything acts on it; if the node runs again, the recorded
answer counts and the model is not asked (G1). Before the model is asked, every call it made has exactly one result, in
its own order (G5). The step budget is counted here (G6).
"""

from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import interrupt

from graph import models, protocol
from graph.answers import Answer, normalise
from graph.gate import as_call
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
        results = await _missing_results(tx, state["messages"])
        turn = await turns.get(tx, owned.tenant_id, owned.turn_id)
        recorded = await items.recorded_answer(tx, owned.turn_id, state["step"] + 1)

        lost = [item for item in await items.of_step(tx, owned.turn_id, state["step"]) if item.result is None]
    if lost and turn.status not in turns.ENDED:
        return await _lost(services, owned, lost)

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


async def _lost(services: Services, owned: Owned, calls: list[Item]) -> dict[str, Any]:
    """A pipeline ended without a result: the node that its call stood at is not in this graph any more (G8).

    The call is orphaned and the turn waits. Asked to migrate, its pipeline begins anew; it finds in the rows how far the
    call is.
    """
    if owned.because == "migrate" or any(call.status in ("executing", "unknown") for call in calls):
        return {"calls": [as_call(call) for call in calls]}
    async with services.database.transaction("orphan_lost") as tx:
        await items.orphan_open(tx, owned, because="The step that it waited in no longer exists in the graph.")
    interrupt({"type": "orphaned", "calls": [str(call.item_id) for call in calls], "do": "Cancel or migrate the turn."})
    return {"calls": [as_call(call) for call in calls]}


async def _ask(services: Services, owned: Owned, history: list[AnyMessage], step: int) -> dict[str, Any]:
    """Ask the model and record its answer; an answer that was recorded meanwhile counts instead."""
    async with outside("model"):
        said = await models.ask(
            services.model,
            [protocol.system_message(), *in_order(history)],
            [models.tool_schema(tool) for tool in services.registry],
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


async def _missing_results(tx: Transaction, messages: list[AnyMessage]) -> list[AnyMessage]:
    """Results of calls that the history has not yet, from the rows: of this step, or of a turn that ended early."""
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    missing: list[AnyMessage] = []
    for message in messages:
        if not isinstance(message, AIMessage) or {call["id"] for call in message.tool_calls} <= answered:
            continue
        turn_id, _, step = str(message.id).rpartition(":")
        calls = {item.call_id: item for item in await items.of_step(tx, UUID(turn_id), int(step))}
        for call in message.tool_calls:
            if call["id"] not in answered:
                result = _result(calls[str(call["id"])])
                missing.append(protocol.tool_message(result, call_id=str(call["id"]), tool=call["name"]))
    return missing


def _result(item: Item) -> dict[str, Any]:
    """The call's one result; of a turn that ended without it, what can honestly be said (E4)."""
    if item.result is not None:
        return item.result
    if item.status in ("executing", "unknown"):
        return protocol.unknown_do_not_repeat(item.tool, operation_id="", evidence="The turn ended before its answer.")
    return protocol.failed("turn_ended", "The turn ended before this call ran.", retryable=False)


def in_order(messages: list[AnyMessage]) -> list[BaseMessage]:
    """The history as providers demand it: each result directly behind the message that made the call, in its order."""
    results = {message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)}
    ordered: list[BaseMessage] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            continue
        ordered.append(message)
        if isinstance(message, AIMessage):
            ordered.extend(results[str(call["id"])] for call in message.tool_calls)
    return ordered
