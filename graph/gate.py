"""gate: the only way to the call pipelines (G2).

It validates each call's arguments, asks the policy, and freezes each verdict, in the rows and in the state. Gated calls
of one model turn are asked together; an automatic call that changes something and stands behind a gated one is deferred,
as are gated calls beyond the limit (G4). If the node runs again, what is frozen stays frozen.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.runnables import RunnableConfig

from graph import protocol
from graph.answers import Answer, CallError
from graph.asking import Assessed, InvalidArguments, assess, draft, requirement, validate
from graph.services import Services, owned_by
from graph.state import INLINE_BYTES, Call, TurnState
from placet.record import approvals, canonical, items, runs, turns
from placet.record.approvals import Revision
from placet.record.canonical import restored
from placet.record.items import Gated, Item
from placet.record.runs import Owned
from tools.registry import schema_version


@dataclass(frozen=True, slots=True)
class _Judged:
    """What the gate found out about one call, before it is frozen."""

    gated: Gated
    assessed: Assessed | None = None
    revision: Revision | None = None  # what people will be shown


async def gate(services: Services, state: TurnState, config: RunnableConfig) -> dict[str, Any]:
    """Freeze a verdict for every call of this step; the state then lists those that go on."""
    owned = owned_by(config)
    async with services.database.read() as tx:
        calls = await items.of_step(tx, owned.tenant_id, owned.turn_id, state["step"])
        recorded = await items.recorded_answer(tx, owned.tenant_id, owned.turn_id, state["step"])
        turn = await turns.get(tx, owned.tenant_id, owned.turn_id)
    if any(call.status == "proposed" and call.verdict is None for call in calls):
        assert recorded is not None
        answer = Answer.from_json(recorded)
        judged = await asyncio.gather(
            *(_judge(services, item, call.error) for item, call in zip(calls, answer.calls, strict=True))
        )
        decided = _in_line(judged, services.settings.max_gated_calls)
        await _freeze(services, owned, decided, answer.text, turn.requester)
        async with services.database.read() as tx:
            calls = await items.of_step(tx, owned.tenant_id, owned.turn_id, state["step"])
    return {"calls": [as_call(item) for item in calls if item.result is None]}


async def _judge(services: Services, item: Item, error: CallError | None) -> _Judged:
    """One call on its own: malformed, unknown, or with the policy's verdict."""
    if error is not None:
        result = protocol.invalid(error.code, error.message, field=error.field)
        return _Judged(Gated(item.item_id, "invalid", result=result))
    if item.tool not in services.registry:
        result = protocol.unknown_tool(item.tool, [tool.name for tool in services.registry])
        return _Judged(Gated(item.item_id, "invalid", result=result))
    tool = services.registry[item.tool]
    try:
        arguments, raw = validate(tool, restored(item.proposed))
    except InvalidArguments as invalid:
        result = protocol.invalid(invalid.code, str(invalid), field=str(invalid.details["field"]))
        return _Judged(Gated(item.item_id, "invalid", result=result))

    assessed = await assess(services, tool, arguments, raw)
    gated = Gated(
        item.item_id,
        "proposed",
        mode=tool.mode,
        schema_version=schema_version(tool),
        arguments=raw,
        facts=assessed.facts_json,
        verdict=assessed.verdict.as_json(),
    )
    if assessed.verdict.kind == "deny":
        denied = protocol.denied_by_policy(tool.name, reason=assessed.verdict.reason, rule=assessed.verdict.rule)
        return _Judged(replace(gated, status="denied", result=denied), assessed)
    if assessed.verdict.kind == "ask":
        return _Judged(replace(gated, status="awaiting_approval"), assessed, await draft(assessed))
    return _Judged(gated, assessed)


def _in_line(judged: list[_Judged], limit: int) -> list[_Judged]:
    """Defer what stands behind a gated call and changes something, and gated calls beyond the limit (G4)."""
    decided: list[_Judged] = []
    asked: list[str] = []
    for call in judged:
        tool = call.assessed.tool if call.assessed else None
        if tool is None or call.gated.result is not None:
            decided.append(call)
        elif call.revision is not None:
            if len(asked) < limit:
                asked.append(tool.name)
                decided.append(call)
            else:
                decided.append(_deferred(call, protocol.deferred(tool.name, limit=limit)))
        elif asked and tool.mode == "mutating":
            decided.append(_deferred(call, protocol.deferred(tool.name, waits_for=asked[0])))
        else:
            decided.append(call)
    return decided


def _deferred(call: _Judged, result: dict[str, Any]) -> _Judged:
    return replace(call, gated=replace(call.gated, status="deferred", result=result), revision=None)


def _cancelled(call: _Judged) -> _Judged:
    tool = call.assessed.tool.name if call.assessed else "the call"
    return replace(call, gated=replace(call.gated, status="cancelled", result=protocol.cancelled(tool)), revision=None)


async def _freeze(services: Services, owned: Owned, judged: list[_Judged], rationale: str, requester: str) -> None:
    """Verdicts and asks become true together, or not at all. Nobody is asked for a turn that was cancelled (T3)."""
    async with services.database.transaction("freeze") as tx:
        await runs.fence(tx, owned)
        if not await turns.gated(tx, owned, _command(judged)):
            judged = [_cancelled(call) if call.gated.result is None else call for call in judged]
        await items.freeze(tx, [call.gated for call in judged])
        for call in judged:
            if call.revision is not None and call.assessed is not None:
                await approvals.ask(
                    tx,
                    services.keys,
                    owned,
                    item_id=call.gated.item_id,
                    number=0,
                    tool=call.assessed.tool.name,
                    requester=requester,
                    revision=call.revision,
                    requirement=requirement(call.assessed.verdict, services.settings.approval_ttl),
                    rationale=rationale,
                )


def _command(judged: list[_Judged]) -> dict[str, Any] | None:
    """The request as the gate understood it: the first change it comes to, and who has to confirm what."""
    changes = [call for call in judged if call.assessed is not None and call.gated.mode == "mutating"]
    if not changes or changes[0].assessed is None:
        return None
    first = changes[0].assessed
    return {
        "kind": first.tool.name,
        "parameters": canonical.parse(first.raw)
        if len(first.raw) <= INLINE_BYTES
        else {"sha256": canonical.sha256(first.raw).hex()},
        "confirmations": [
            {"tool": call.assessed.tool.name, "rule": call.assessed.verdict.rule, "duty": call.assessed.verdict.duty}
            for call in changes
            if call.assessed is not None and call.revision is not None
        ],
    }


def as_call(item: Item) -> Call:
    """The call as the state shows it."""
    assert item.arguments is not None
    assert item.verdict is not None
    call: Call = {
        "item_id": str(item.item_id),
        "tool": item.tool,
        "verdict": item.verdict["kind"],
        "arguments_hash": canonical.sha256(item.arguments).hex(),
    }
    if len(item.arguments) <= INLINE_BYTES:
        call["arguments"] = canonical.parse(item.arguments)
    return call
