"""Taking a committed change back: an effect of its own, with a receipt (E9).

A person commands it, outside any run; the row is committed before the tool is called. An undo that was sent and not
answered is unknown (E4). Commanded again, it is sent again under the same operation id, while the tool recognises that (E8);
later, or where a tool knows no keys, people must say what became of it (E6).
"""

import asyncio

from pydantic import ValidationError

from graph.execute import as_receipt
from graph.said import said
from graph.services import Services
from placet.record import by_hand, effects, people
from placet.record.crashpoints import outside
from placet.record.effects import Effect
from placet.record.errors import Conflict
from tools.contract import Arguments, Receipt, Refused, Tier
from tools.registry import AnyTool


class NotReversible(Conflict):
    """The tool's changes cannot be taken back."""

    code = "not_reversible"


class UndoUnanswered(Conflict):
    """The undo was sent and not answered; the message says whether commanding it again is safe, or people must look."""

    code = "undo_unanswered"


class UndoRefused(Conflict):
    """The system said no to the undo, or people gave it up: what was done stays done."""

    code = "undo_refused"


async def undo(services: Services, effect: Effect, who: people.User) -> Effect:
    """Take `effect` back; returns the undo: committed with its receipt, refused with an error, or given up by people.

    Raises `NotReversible`, `NotAllowed`, `Conflict` for an effect that is not committed, `UndoUnanswered`.
    """
    tool = services.registry[effect.tool]
    if tool.tier is not Tier.reversible or effect.undoes is not None or effect.receipt is None:
        raise NotReversible(f"What {effect.tool} did cannot be taken back ({tool.tier}, {effect.status}).")
    effects.verify(services.keys, effect)
    given = _given(tool, effect)
    async with services.database.transaction("undo_dispatch") as tx:
        begun = await by_hand.begin_undo(tx, services.keys, who, effect)
    if begun.effect.status in ("committed", "refused", "abandoned"):
        return begun.effect
    if not begun.ours and not _recognised(tool, begun.effect):
        await _lost(services, begun.effect, "It was sent before, and no answer was stored.")
        raise UndoUnanswered(_do(tool, begun.effect, f"It was sent at {begun.effect.dispatched_at:%Y-%m-%d %H:%M} UTC"))
    try:
        async with outside("undo"), asyncio.timeout(tool.timeout.total_seconds()):
            answer = await tool.undo(*given, str(begun.effect.operation_id))
    except Refused as no:
        async with services.database.transaction("undo_refused") as tx:
            return await by_hand.end_undo(tx, begun.effect, error={"code": no.code, "message": said(no)})
    except Exception as error:
        await _lost(services, begun.effect, said(error))
        raise UndoUnanswered(_do(tool, begun.effect, f"The undo was sent ({said(error, 300)})")) from error
    async with services.database.transaction("undo_receipt") as tx:
        return await by_hand.end_undo(tx, begun.effect, receipt=as_receipt(answer, begun.effect))


def _given(tool: AnyTool, effect: Effect) -> tuple[Arguments, Receipt]:
    """What the tool gets to take back; raises `NotReversible` when it no longer understands it. Nothing is sent yet."""
    try:
        return tool.Arguments.model_validate_json(effect.arguments), Receipt.model_validate(effect.receipt)
    except ValidationError as error:
        raise NotReversible(f"{effect.tool} takes something else than when it did this: {error}") from None


def _recognised(tool: AnyTool, undo: Effect) -> bool:
    """Whether the tool still knows the operation id that was sent before (E8)."""
    return tool.idempotency_window is not None and undo.age < tool.idempotency_window


async def _lost(services: Services, undo: Effect, message: str) -> None:
    async with services.database.transaction("undo_lost") as tx:
        await by_hand.lose_undo(tx, undo, code="no_answer", message=message)


def _do(tool: AnyTool, undo: Effect, what: str) -> str:
    """What happened, and what to do."""
    if _recognised(tool, undo):
        return f"{what} and not answered. Command it again: it goes out under the same id."
    return (
        f"{what} and not answered, and {tool.name} would not recognise it if it were sent again. Look whether it happened, "
        f"then settle it: placet effects resolve {undo.operation_id}"
    )
