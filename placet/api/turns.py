"""`/v1/turns`: asking for something, seeing where it stands, ending it. Nothing here waits for a turn (L3)."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Response, status

from graph import protocol
from placet.api import shapes
from placet.api.auth import Anybody, Caller, Operator, Requester, RequesterOrOperator
from placet.api.errors import answers
from placet.api.opened import Open
from placet.api.shapes import Cancelling, Cursor, Limit, NewTurn, Page, TurnView, TurnWhole, Word
from placet.record import effects, items, pages, request_keys, runs, turns
from placet.record.database import Transaction
from placet.record.turns import Status, Turn, UnknownTurn
from placet.settings import Settings

router = APIRouter(prefix="/v1/turns", tags=["turns"])


IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="Yours, one per request; a repetition after a lost answer is then no second request.",
    ),
]


async def visible(tx: Transaction, caller: Caller, turn_id: UUID) -> Turn:
    """The turn, if the caller may see it; otherwise it is as if there were none."""
    turn = await turns.get(tx, caller.tenant, turn_id)
    if not caller.sees(turn.requester):
        raise UnknownTurn(f"There is no turn {turn_id} here.")
    return turn


@router.post(
    "",
    status_code=status.HTTP_202_ACCEPTED,
    responses=answers(400, 404, 409, 413),
    summary="Ask for something",
    response_description="It is stored, and will be done; nothing more is needed for that.",
)
async def create(
    caller: Requester, services: Open, given: NewTurn, response: Response, key: IdempotencyKey = None
) -> TurnView:
    """Store a request and make its run due, in one transaction. Follow it at `/v1/turns/{turn_id}/events`.

    Sent again with the same `Idempotency-Key`, it is the same turn, as it stands now; another request under that key is
    409. 409 also while the thread's turn waits for people, with what it waits for, unless `supersede` says that this
    takes its place; chat never decides an approval (T4).
    """
    settings, asked = services.settings, given.model_dump(mode="json")
    async with services.database.transaction("create_turn") as tx:
        known = await request_keys.turn_of(tx, caller.user, key, asked) if key is not None else None
        turn = await turns.get(tx, caller.tenant, known) if known else await _create(tx, caller, given, settings)
        if key is not None and known is None:
            await request_keys.keep(tx, caller.user, key, asked, turn.turn_id)
    response.headers["Location"] = f"/v1/turns/{turn.turn_id}"
    return shapes.turn(turn)


async def _create(tx: Transaction, caller: Caller, given: NewTurn, settings: Settings) -> Turn:
    if given.supersede and given.thread_id is not None:
        await turns.supersede(tx, caller.user, given.thread_id, result=_told(protocol.superseded("")))
    return await turns.create(
        tx,
        caller.user,
        given.message,
        max_steps=settings.max_steps,
        max_chars=settings.max_message_chars,
        thread_id=given.thread_id,
    )


@router.get("", responses=answers(), summary="What was asked for, the newest first")
async def page(
    caller: Anybody,
    services: Open,
    status: Annotated[Status | None, Query()] = None,
    thread_id: UUID | None = None,
    requester: Annotated[Word | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[TurnView]:
    """Turns that the caller sees: a requester their own, everybody else those of their tenant."""
    async with services.database.read() as tx:
        found = await pages.turns(
            tx,
            caller.tenant,
            limit=limit + 1,
            after=shapes.key_of(cursor),
            requester=caller.narrowed(requester),
            status=status,
            thread_id=thread_id,
        )
    rows, behind = shapes.next_of(found, limit, "created_at", "turn_id")
    return Page(rows=[shapes.turn(row) for row in rows], next=behind)


@router.get("/{turn_id}", responses=answers(404), summary="One turn, whole")
async def whole(caller: Anybody, services: Open, turn_id: UUID) -> TurnWhole:
    """What is next, what is finished, where it is stuck, and since when (T5)."""
    async with services.database.read() as tx:
        turn = await visible(tx, caller, turn_id)
        calls = await items.of_turn(tx, caller.tenant, turn_id)
        asked = await pages.approvals(tx, caller.tenant, turn_id=turn_id, limit=200)
        sent = await effects.recent(tx, caller.tenant, turn_id=turn_id, limit=200)
        run = await runs.standing(tx, turn_id)
    return TurnWhole(
        turn=shapes.turn(turn),
        run=shapes.run(run),
        items=[shapes.item(call) for call in calls],
        approvals=[shapes.approval(one, caller) for one in asked],
        effects=[shapes.effect(one) for one in sent],
    )


@router.post("/{turn_id}/cancel", responses=answers(400, 404, 409, 413), summary="Cancel a turn for good")
async def cancel(caller: RequesterOrOperator, services: Open, turn_id: UUID, given: Cancelling) -> TurnView:
    """What has not left the house will not; what has is still looked up. 409 when it has ended (T3)."""
    told = _told(protocol.cancelled("", by=caller.user_id))
    async with services.database.transaction("cancel") as tx:
        await visible(tx, caller, turn_id)
        return shapes.turn(await turns.cancel(tx, caller.user, turn_id, reason=given.reason, result=told))


@router.post(
    "/{turn_id}/retry",
    status_code=status.HTTP_202_ACCEPTED,
    responses=answers(404, 409),
    summary="Reopen a failed turn at its next step",
)
async def retry(caller: RequesterOrOperator, services: Open, turn_id: UUID) -> TurnView:
    """A call that has a result is not repeated (T2). 409 when the turn did not fail."""
    async with services.database.transaction("retry") as tx:
        await visible(tx, caller, turn_id)
        return shapes.turn(await turns.retry(tx, caller.user, turn_id))


@router.post(
    "/{turn_id}/migrate",
    status_code=status.HTTP_202_ACCEPTED,
    responses=answers(404, 409),
    summary="Bring orphaned calls to the tools as they are now",
)
async def migrate(caller: Operator, services: Open, turn_id: UUID) -> TurnView:
    """What can be asked is asked again (G8). 409 when the turn has no orphaned call."""
    async with services.database.transaction("migrate") as tx:
        return shapes.turn(await turns.migrate(tx, caller.user, turn_id))


def _told(result: protocol.Result) -> dict[str, Any]:
    """What the model is told of every call that ends with the turn, whichever tool it names."""
    return {key: said for key, said in result.items() if key != "tool"}
