"""`/v1/effects`: what was sent into the world, settling what nobody knows, and taking back what can be (E6, E9)."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from graph import undoing
from placet.api import shapes
from placet.api.auth import Anybody, Caller, Operator, RequesterOrOperator
from placet.api.errors import answers
from placet.api.opened import Open, Tools
from placet.api.shapes import Cursor, EffectView, Limit, Page, Settling, Word
from placet.record import by_hand, effects, pages
from placet.record.database import Transaction
from placet.record.effects import Effect, Status, UnknownEffect

router = APIRouter(prefix="/v1/effects", tags=["effects"])


async def visible(tx: Transaction, caller: Caller, operation_id: UUID) -> Effect:
    """The effect, if the caller may see it; otherwise it is as if there were none."""
    effect = await effects.get(tx, caller.tenant, operation_id)
    if not caller.sees(await pages.requester_of(tx, caller.tenant, effect.thread_id) or ""):
        raise UnknownEffect(f"There is no effect {operation_id} here; `GET /v1/effects` lists them.")
    return effect


@router.get("", responses=answers(), summary="What was sent, the last first")
async def page(
    caller: Anybody,
    services: Open,
    status: Annotated[Status | None, Query()] = None,
    turn_id: UUID | None = None,
    tool: Annotated[Word | None, Query()] = None,
    requester: Annotated[Word | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[EffectView]:
    """`status=unknown` lists what people must settle."""
    async with services.database.read() as tx:
        found = await pages.effects(
            tx,
            caller.tenant,
            limit=limit + 1,
            after=shapes.key_of(cursor),
            requester=caller.narrowed(requester),
            status=status,
            turn_id=turn_id,
            tool=tool,
        )
    rows, behind = shapes.next_of(found, limit, "first_dispatched_at", "operation_id")
    return Page(rows=[shapes.effect(row) for row in rows], next=behind)


@router.get("/{operation_id}", responses=answers(404), summary="One effect, with its receipt")
async def one(caller: Anybody, services: Open, operation_id: UUID) -> EffectView:
    """What left, when, by whose assent, and what came back."""
    async with services.database.read() as tx:
        return shapes.effect(await visible(tx, caller, operation_id))


@router.post("/{operation_id}/resolution", responses=answers(400, 404, 409, 413), summary="Settle an unknown effect")
async def resolve(caller: Operator, services: Open, operation_id: UUID, given: Settling) -> EffectView:
    """Say what became of it, and how you know; then the turn goes on. 409 when it is no longer unknown (E6)."""
    async with services.database.transaction("resolve") as tx:
        effect = await effects.get(tx, caller.tenant, operation_id)
        return shapes.effect(
            await by_hand.resolve(
                tx, caller.user, effect, to=given.to, reason=given.reason, external_id=given.external_id
            )
        )


@router.post("/{operation_id}/undo", responses=answers(404, 409), summary="Take a change back")
async def undo(caller: RequesterOrOperator, services: Tools, operation_id: UUID) -> EffectView:
    """The undo is an effect of its own, with a receipt; commanding it twice is one undo (E9)."""
    async with services.database.read() as tx:
        effect = await visible(tx, caller, operation_id)
    return shapes.effect(await undoing.undo(services, effect, caller.user))
