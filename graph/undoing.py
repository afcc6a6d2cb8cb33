"""Taking a committed change back: an effect of its own, with a receipt (E9).

A person commands it, outside any run; the row is committed before the tool is called, and an undo that was sent and not
answered is sent again under the same operation id, which the tool recognises.
"""

import asyncio

from graph.execute import as_receipt
from graph.said import said
from graph.services import Services
from placet.record import by_hand, effects, people
from placet.record.crashpoints import outside
from placet.record.effects import Effect
from placet.record.errors import Conflict
from tools.contract import Receipt, Refused, Tier


class NotReversible(Conflict):
    """The tool's changes cannot be taken back."""

    code = "not_reversible"


class UndoUnanswered(Conflict):
    """The undo was sent and not answered; commanding it again is safe, since it goes out under the same id."""

    code = "undo_unanswered"


async def undo(services: Services, effect: Effect, who: people.User) -> Effect:
    """Take `effect` back; returns the undo, committed with its receipt or refused with an error.

    Raises `NotReversible`, `NotAllowed`, `Conflict` for an effect that is not committed, `UndoUnanswered`.
    """
    tool = services.registry[effect.tool]
    if tool.tier is not Tier.reversible or effect.undoes is not None or effect.receipt is None:
        raise NotReversible(f"What {effect.tool} did cannot be taken back ({tool.tier}, {effect.status}).")
    effects.verify(services.keys, effect)
    async with services.database.transaction("undo_dispatch") as tx:
        begun = await by_hand.begin_undo(tx, services.keys, who, effect)
    if begun.effect.status in ("committed", "refused"):
        return begun.effect
    arguments = tool.Arguments.model_validate_json(effect.arguments)
    try:
        async with outside("undo"), asyncio.timeout(tool.timeout.total_seconds()):
            answer = await tool.undo(arguments, Receipt.model_validate(effect.receipt), str(begun.effect.operation_id))
    except Refused as no:
        async with services.database.transaction("undo_refused") as tx:
            return await by_hand.end_undo(tx, begun.effect, error={"code": no.code, "message": said(no)})
    except Exception as error:
        raise UndoUnanswered(f"The undo was sent and not answered ({said(error, 300)}). Command it again.") from error
    async with services.database.transaction("undo_receipt") as tx:
        return await by_hand.end_undo(tx, begun.effect, receipt=as_receipt(answer, begun.effect))
