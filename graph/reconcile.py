"""reconcile: what became of a call that was sent and did not answer (E5, E6).

The tool is asked about its operation id. Committed: the receipt is stored and the turn goes on. Confirmed absent: the
checks before execution again, then the same operation goes out again, within the tool's idempotency window. Made in part:
the same operation is sent to its end, within that window; the checks before execution were made for all of it, and what
has happened would make them fail. No evidence: it stops here, people see what is known, and nothing is guessed.
"""

import asyncio
from typing import Any
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.types import interrupt

from graph import protocol
from graph.execute import MAX_DISPATCHES, TOO_OLD, as_receipt, executed, interrupted, send_rest
from graph.plain import clean, shortened
from graph.said import said
from graph.services import Services, owned_by
from graph.state import CallState
from placet.record import approvals, effects, items, runs, turns
from placet.record.approvals import Approval
from placet.record.crashpoints import outside
from placet.record.effects import Effect
from placet.record.items import Item
from placet.record.runs import Owned
from tools.contract import Observed


async def reconcile(services: Services, state: CallState, config: RunnableConfig) -> dict[str, Any]:
    """Settle an unknown effect by looking, or wait for people."""
    owned = owned_by(config)
    item_id = UUID(state["call"]["item_id"])
    async with services.database.read() as tx:
        item = await items.get(tx, owned.tenant_id, owned.turn_id, item_id)
        asked = await approvals.latest(tx, owned.tenant_id, item_id)
        effect = await effects.of_item(tx, owned.tenant_id, item_id)
        turn = await turns.get(tx, owned.tenant_id, owned.turn_id)
    if item.result is not None or effect is None:
        return {"next": "end" if item.result is not None else "approval"}

    if effect.status == "dispatched":  # a run that sent the rest ended before the answer
        await interrupted(services, owned, effect)
    if effect.status in ("dispatched", "unknown"):
        seen = await _observe(services, effect)
        await _store(services, owned, effect, seen)
        async with services.database.read() as tx:
            effect = await effects.get(tx, owned.tenant_id, effect.operation_id)
        if (seen.status, effect.status) == ("committed", "absent"):  # a person said otherwise in the same moment (E4)
            await _finish(services, owned, item, "failed", _do_not_repeat(effect))
            return {"next": "end"}
        part_of_it = effect.status == "unknown" and seen.status == "partial" and turn.status not in turns.ENDED
        if part_of_it and await send_rest(services, owned, item, asked, effect, evidence=_evidence(seen)):
            return {"next": "reconcile"}
    match effect.status:
        case "committed":
            await _finish(services, owned, item, "completed", executed(effect.receipt or {}, effect, asked))
            return {"next": "end"}
        case "absent":
            return await _absent(services, owned, item, effect, closing=turn.status in turns.ENDED)
        case "abandoned":
            await _finish(services, owned, item, "failed", _do_not_repeat(effect))
            return {"next": "end"}
    if turn.status in turns.ENDED:  # a closing run: the call gets its result, the task for people stays (T3)
        await _finish(services, owned, item, "failed", _do_not_repeat(effect))
        return {"next": "end"}
    interrupt(question(effect, asked))
    return {"next": "reconcile"}


async def _observe(services: Services, effect: Effect) -> Observed:
    """Ask the outside system, a few times while it does not know."""
    effects.verify(services.keys, effect)
    seen = Observed(status="unknown")
    for wait in (0.0, 0.2, 1.0):
        await asyncio.sleep(wait)
        try:
            tool = services.registry[effect.tool]
            arguments = tool.Arguments.model_validate_json(effect.arguments)
            async with outside("observe"), asyncio.timeout(tool.timeout.total_seconds()):
                seen = Observed.model_validate(await tool.observe(arguments, str(effect.operation_id)))
        except Exception as error:  # noqa: BLE001  # an observer that fails says nothing about the effect
            seen = Observed(status="unknown", evidence=f"looking failed: {said(error)}")
        if seen.status != "unknown":
            break
    return seen


async def _store(services: Services, owned: Owned, effect: Effect, seen: Observed) -> None:
    evidence = _evidence(seen)
    async with services.database.transaction("observed") as tx:
        await runs.fence(tx, owned)
        found = seen.status == "committed"
        await effects.add_evidence(tx, owned, effect, said=f"{seen.status}: {evidence}", found=found)
        if found:
            await effects.commit(tx, owned, effect, as_receipt(seen.receipt, effect), observed=True)
        elif seen.status == "absent":
            await effects.confirm_absent(tx, owned, effect, evidence=evidence)


def _evidence(seen: Observed) -> str:
    return shortened(clean(seen.evidence), 2000)


async def _absent(services: Services, owned: Owned, item: Item, effect: Effect, *, closing: bool) -> dict[str, Any]:
    """It did not happen: the same operation may go again, while its key is still recognised (E5). A tool that knows no keys
    is sent again only where a person has said that it did not happen (E6)."""
    window = services.registry[effect.tool].idempotency_window if effect.tool in services.registry else None
    if closing:
        await _finish(services, owned, item, "cancelled", protocol.cancelled(item.tool))
        return {"next": "end"}
    if effect.attempts >= MAX_DISPATCHES:
        message = f"It was sent {effect.attempts} times and did not happen; see what {item.tool} answers."
        await _finish(services, owned, item, "failed", protocol.failed("not_done", message, retryable=True))
        return {"next": "end"}
    if effect.age < window if window is not None else _said_by_a_person(effect):
        return {"next": "approval"}
    await _finish(services, owned, item, "failed", protocol.failed("window_closed", TOO_OLD, retryable=False))
    return {"next": "end"}


async def _finish(services: Services, owned: Owned, item: Item, status: items.Status, result: dict[str, Any]) -> None:
    async with services.database.transaction("reconciled") as tx:
        await runs.fence(tx, owned)
        await items.finish(tx, item.item_id, status, result)


def _do_not_repeat(effect: Effect) -> dict[str, Any]:
    return protocol.unknown_do_not_repeat(
        effect.tool, operation_id=str(effect.operation_id), evidence=_last_said(effect)
    )


def _said_by_a_person(effect: Effect) -> bool:
    return bool(effect.evidence) and "by" in effect.evidence[-1]


def _last_said(effect: Effect) -> str:
    return str(effect.evidence[-1]["said"]) if effect.evidence else ""


def question(effect: Effect, asked: Approval | None) -> dict[str, Any]:
    """The interrupt's value: the evidence, for the people who must say what happened (E6)."""
    return {
        "type": "reconciliation",
        "operation_id": str(effect.operation_id),
        "tool": effect.tool,
        "sent_at": effect.dispatched_at.isoformat(),
        "approval_id": str(asked.approval_id) if asked else None,
        "error": effect.error,
        "last_seen": _last_said(effect),
    }
