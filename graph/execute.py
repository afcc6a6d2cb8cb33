"""execute: the call leaves, once.

The effect row is committed before the call, the receipt the moment it answers (E1, E3); both and the call itself run in a
shielded task. A tool's failure is definite or it is not: whatever is not a clear no is unknown, and only reconcile moves
it from there (E4). A tool that changes rows of this database does so in the receipt's own transaction (E7). Reads have
no effect row.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import stamina
from langchain_core.runnables import RunnableConfig

from graph import protocol
from graph.asking import InvalidArguments, check_read_back
from graph.plain import clean
from graph.said import said
from graph.services import Services, owned_by
from graph.state import CallState, Step
from placet.record import approvals, canonical, effects, events, ids, items, runs
from placet.record.approvals import Approval
from placet.record.crashpoints import outside
from placet.record.database import AWAY
from placet.record.effects import Effect
from placet.record.errors import NotDispatchable, StaleEpoch
from placet.record.items import Item
from placet.record.runs import Owned
from tools.contract import Arguments, NothingSent, Receipt, Refused, TransactionalTool
from tools.registry import AnyTool

TOO_OLD = "It did not happen, and its idempotency key is too old to send it again; propose it anew."
FIRST_WAIT = 1.0  # seconds before an operation that never left is sent again, at most; then twice as long
pause = asyncio.sleep
MAX_DISPATCHES = 3  # of one operation that never left; then the call fails and says so


async def execute(services: Services, state: CallState, config: RunnableConfig) -> dict[str, Any]:
    """Send the call, or find out that it was sent before."""
    owned = owned_by(config)
    item_id = UUID(state["call"]["item_id"])
    async with services.database.read() as tx:
        item = await items.get(tx, owned.tenant_id, owned.turn_id, item_id)
        asked = await approvals.latest(tx, owned.tenant_id, item_id)
        effect = await effects.of_item(tx, owned.tenant_id, item_id)
    if item.result is not None:
        return {"next": "end"}
    is_first_look = asked is not None and state.get("checked") != owned.epoch
    if is_first_look and (effect is None or effect.status == "absent"):
        return {"next": "approval"}  # another run checked it, who knows when: the world may have moved since (A7)
    if item.mode == "safe_readonly":
        return {"next": await _read(services, owned, item, asked)}
    if effect is None or effect.status == "absent":
        return await _send(services, owned, item, asked, effect)
    return {"next": await _found(services, owned, item, effect)}


async def _send(
    services: Services, owned: Owned, item: Item, asked: Approval | None, effect: Effect | None
) -> dict[str, Any]:
    """Once, or again when it is confirmed that the same operation did not happen, while its key is recognised (E5)."""
    tool = services.registry[item.tool]
    if asked is not None:
        asked.verify(services.keys)
        raw = canonical.canonical(asked.content["arguments"])
    else:
        assert item.arguments is not None
        raw = item.arguments
    try:
        check_read_back(tool, raw)
    except InvalidArguments as changed:  # frozen under another version of the tool; nothing has been sent
        return await _unsent(services, owned, item, "tool_changed", str(changed))
    if effect is not None and tool.idempotency_window is not None:
        before = await _same_operation(services, owned, item, effect, raw)
        if before is not None and before.age >= tool.idempotency_window:
            return await _unsent(services, owned, item, "window_closed", TOO_OLD)
    try:
        async with services.database.transaction("dispatch") as tx:
            sent = await effects.dispatch(
                tx, services.keys, owned, item, effect_class=tool.effect_class, arguments=raw, approval=asked
            )
    except NotDispatchable as refused:
        return {"next": await _not_dispatched(services, owned, item, refused)}
    if not sent.ours:
        return {"next": await _found(services, owned, item, sent.effect)}
    await services.shielded(owned, _call(services, owned, item, asked, tool, sent.effect))
    async with services.database.read() as tx:
        after = await items.get(tx, owned.tenant_id, owned.turn_id, item.item_id)
        now = await effects.get(tx, owned.tenant_id, sent.effect.operation_id)
    if after.result is not None:
        return {"next": "end"}
    if now.status != "absent":
        return {"next": "reconcile"}
    await pause(backoff(now))
    return {"next": "approval"}


async def _same_operation(services: Services, owned: Owned, item: Item, newest: Effect, raw: bytes) -> Effect | None:
    """The operation of exactly these arguments, if it left before: after an edit the call's newest is another one."""
    operation_id = ids.operation_id(item.item_id, canonical.sha256(raw))
    if newest.operation_id == operation_id:
        return newest
    async with services.database.read() as tx:
        try:
            return await effects.get(tx, owned.tenant_id, operation_id)
        except effects.UnknownEffect:
            return None


def backoff(effect: Effect) -> float:
    """Seconds to wait before an operation is sent again without anybody being asked, with jitter (E8)."""
    longest: float = FIRST_WAIT * 2 ** (effect.attempts - 1)
    return random.uniform(longest / 2, longest)  # noqa: S311  # nothing to guess here


async def _unsent(services: Services, owned: Owned, item: Item, code: str, message: str) -> dict[str, Any]:
    async with services.database.transaction("unsent") as tx:
        await runs.fence(tx, owned)
        await items.finish(tx, item.item_id, "failed", protocol.failed(code, message, retryable=False))
    return {"next": "end"}


async def send_rest(
    services: Services, owned: Owned, item: Item, asked: Approval | None, effect: Effect, *, evidence: str
) -> bool:
    """Send a batch to its end that was made in part: the same operation, whose keys let no line happen twice (E5).

    False when it may not leave any more, or too often did; then people must say.
    """
    tool = services.registry[effect.tool]
    if tool.idempotency_window is None or effect.age >= tool.idempotency_window or effect.attempts >= MAX_DISPATCHES:
        return False
    await pause(backoff(effect))
    try:
        async with services.database.transaction("dispatch_rest") as tx:
            again = await effects.dispatch_rest(tx, owned, effect, evidence=evidence)
    except NotDispatchable:
        return False
    await services.shielded(owned, _call(services, owned, item, asked, tool, again, begun=True))
    return True


async def _call(
    services: Services,
    owned: Owned,
    item: Item,
    asked: Approval | None,
    tool: AnyTool,
    effect: Effect,
    *,
    begun: bool = False,
) -> None:
    """Call and receipt: runs to its end whatever happens to the node. Of one that has `begun`, lines were seen."""
    try:
        arguments = tool.Arguments.model_validate_json(effect.arguments)
        if isinstance(tool, TransactionalTool):
            await _change(services, owned, item, asked, tool, effect, arguments)
            return
        async with outside("call"), asyncio.timeout(tool.timeout.total_seconds()):
            answer = await tool.execute(arguments, str(effect.operation_id))
    except StaleEpoch:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a tool raises that is not a clear no, it may have happened (E4)
        await _failed(services, owned, item, tool, effect, error, begun=begun)
        return
    receipt = as_receipt(answer, effect)
    async for attempt in _patiently():
        with attempt:
            async with services.database.transaction("receipt") as tx:
                if await effects.commit(tx, owned, effect, receipt, observed=False):
                    await items.finish(tx, item.item_id, "completed", executed(receipt, effect, asked))


def _patiently() -> AsyncIterator[stamina.Attempt]:
    """What the tool answered is in this process's hands alone: when the connection drops, it is written down over the next
    one (E3). Each write is conditional and fenced, so that a second one changes nothing."""
    return stamina.retry_context(on=AWAY, attempts=None, timeout=60.0, wait_initial=0.1, wait_max=1.0).__aiter__()


async def _failed(
    services: Services, owned: Owned, item: Item, tool: AnyTool, effect: Effect, error: Exception, *, begun: bool
) -> None:
    """A clear no, nothing sent, or unknown. Where lines were seen before, no answer of this attempt speaks for them."""
    database = services.database
    async for attempt in _patiently():
        with attempt:
            match error:
                case Refused() if not begun:
                    code, message = clean(str(error.code)), clean(str(error))
                    async with database.transaction("refused") as tx:
                        if await effects.refuse(tx, owned, effect, code=code, message=message):
                            result = protocol.failed(code, message, retryable=False)
                            await items.finish(tx, item.item_id, "failed", result)
                case NothingSent() if not begun:
                    async with database.transaction("not_sent") as tx:
                        await effects.confirm_absent(tx, owned, effect, evidence=f"nothing was sent: {said(error)}")
                        if effect.attempts >= MAX_DISPATCHES:
                            result = protocol.failed("not_sent", f"Nothing was sent: {said(error)}", retryable=True)
                            await items.finish(tx, item.item_id, "failed", result)
                case _:
                    code, message = _lost(error, tool)
                    async with database.transaction("lost") as tx:
                        await effects.lose(tx, owned, effect, code=code, message=message)


async def _change(
    services: Services,
    owned: Owned,
    item: Item,
    asked: Approval | None,
    tool: TransactionalTool[Any, Any],
    effect: Effect,
    arguments: Arguments,
) -> None:
    """Change, receipt and result in one transaction. The tool's rows are locked before the thread's, so that the thread
    is held for the receipt only; the fence then takes everything back if another run owns the thread by now (O2).

    A worker that is stopped in the middle would hold the rows for ever: the server ends its transaction instead.
    """
    async with services.database.transaction("changed") as tx:
        await tx.execute(
            "select set_config('idle_in_transaction_session_timeout', %(milliseconds)s, true)",
            {"milliseconds": f"{tool.timeout.total_seconds() * 1000:.0f}"},
        )
        async with outside("change"), asyncio.timeout(tool.timeout.total_seconds()):
            answer = await tool.execute_in(tx, arguments, str(effect.operation_id))
        receipt = as_receipt(answer, effect)
        if not await effects.commit(tx, owned, effect, receipt, observed=False):
            raise StaleEpoch(f"Effect {effect.operation_id} was settled by somebody else; the change is taken back.")
        await items.finish(tx, item.item_id, "completed", executed(receipt, effect, asked))


def _lost(error: Exception, tool: AnyTool) -> tuple[str, str]:
    if isinstance(error, TimeoutError):
        return "timed_out", f"{tool.name} did not answer within {tool.timeout.total_seconds():g} seconds."
    return "no_answer", f"{tool.name} raised {said(error)}"


def as_receipt(answer: object, effect: Effect) -> dict[str, Any]:
    """The receipt as it is stored. What cannot be stored as it is never makes the call run again (E3)."""
    try:
        receipt = Receipt.model_validate(answer).model_dump(mode="json")
        canonical.check_plain({"receipt": receipt})  # as the audit chain holds it: one level deeper
    except Exception as problem:  # noqa: BLE001  # it happened; the receipt must be committed, readable or not
        return Receipt(
            external_id=str(effect.operation_id),
            summary="It was executed; the tool's answer could not be stored as it was.",
            data={"answer": _shown(answer), "problem": said(problem, 500)},
        ).model_dump(mode="json")
    return receipt


def _shown(answer: object) -> str:
    """Something of an answer that cannot be stored as it is, for people."""
    try:
        return ascii(answer)[:2000]
    except Exception:  # noqa: BLE001  # a foreign __repr__ may raise anything
        return f"<{type(answer).__name__}>"


def executed(receipt: dict[str, Any], effect: Effect, asked: Approval | None) -> dict[str, Any]:
    """What the model is told of a call that happened: with what really ran, when people approved it (G5, A8)."""
    if asked is None:
        return protocol.executed(receipt)
    return protocol.executed_gated(
        receipt,
        approved_by=asked.decided_by or "a reviewer",
        executed_input=canonical.parse(effect.arguments),
    )


async def _found(services: Services, owned: Owned, item: Item, effect: Effect) -> Step:
    """The effect was dispatched before, by a run that did not live to tell or by another hand (E2)."""
    effects.verify(services.keys, effect)
    if effect.status == "dispatched":
        await interrupted(services, owned, effect)
        return "reconcile"
    if effect.status == "refused":
        error = effect.error or {"code": "refused", "message": "The system refused it."}
        async with services.database.transaction("was_refused") as tx:
            await runs.fence(tx, owned)
            await items.finish(
                tx, item.item_id, "failed", protocol.failed(error["code"], error["message"], retryable=False)
            )
        return "end"
    return "reconcile"


async def interrupted(services: Services, owned: Owned, effect: Effect) -> None:
    """The run that sent it did not live to hear the answer."""
    async with services.database.transaction("interrupted") as tx:
        message = "It was sent and the run ended before the answer."
        await effects.lose(tx, owned, effect, code="interrupted", message=message)


async def _not_dispatched(services: Services, owned: Owned, item: Item, refused: NotDispatchable) -> Step:
    """The last door said no: the turn was cancelled, or the approval is no longer good."""
    if refused.why in ("not_approved", "approval_expired", "call_ended"):
        return "approval"
    if refused.why != "turn_not_running":  # the rows contradict each other; going round would not help
        raise refused
    async with services.database.transaction("was_cancelled") as tx:
        await runs.fence(tx, owned)
        await items.finish(tx, item.item_id, "cancelled", protocol.cancelled(item.tool))
    return "end"


async def _read(services: Services, owned: Owned, item: Item, asked: Approval | None) -> Step:
    """A read changes nothing, so it is simply tried again when it fails (E8). One that asked needs its approval (G2),
    and reads what was approved."""
    tool = services.registry[item.tool]
    assert item.arguments is not None
    raw = item.arguments
    if asked is not None:
        if asked.status != "approved" or asked.overdue:
            return "approval"
        asked.verify(services.keys)
        raw = canonical.canonical(asked.content["arguments"])
    arguments = tool.Arguments.model_validate_json(raw)
    async with services.database.transaction("read_started") as tx:
        await events.append(
            tx,
            owned.thread_id,
            "tool_started",
            {"tool": item.tool},
            turn_id=owned.turn_id,
            item_id=item.item_id,
            epoch=owned.epoch,
        )
        await items.move(tx, item.item_id, "executing")
    status: items.Status = "completed"
    kind: events.EventType = "tool_completed"
    payload: dict[str, Any] = {"tool": item.tool}
    try:
        result = protocol.executed(await _read_with_retries(tool, arguments))
        canonical.check_plain(result)
    except StaleEpoch:
        raise
    except Exception as error:  # noqa: BLE001  # a read that fails is a result, not an end of the turn
        own = getattr(error, "code", None)
        code = clean(own) if isinstance(own, str) else "read_failed"
        message = f"{tool.name} failed: {said(error)}"
        status, kind = "failed", "tool_failed"
        payload |= {"code": code, "message": message, "retryable": True}
        result = protocol.failed(code, message, retryable=True)
    async with services.database.transaction("read_done") as tx:
        await events.append(
            tx, owned.thread_id, kind, payload, turn_id=owned.turn_id, item_id=item.item_id, epoch=owned.epoch
        )
        await items.finish(tx, item.item_id, status, result)
    return "end"


async def _read_with_retries(tool: AnyTool, arguments: Any) -> object:
    async for attempt in stamina.retry_context(
        on=lambda error: not isinstance(error, Refused), attempts=3, wait_initial=0.1, wait_max=1.0
    ):
        with attempt:
            async with outside("read"), asyncio.timeout(tool.timeout.total_seconds()):
                return await tool.execute(arguments, "")
    raise AssertionError("stamina either returns or raises")
