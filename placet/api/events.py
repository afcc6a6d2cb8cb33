"""Timelines as server-sent events, from any number, from any server process (V2).

Each event's `id` is its number in the thread; a client that comes back sends it as `Last-Event-ID` and misses nothing.
A comment every few seconds shows that the line is alive. While a stream goes on its credentials are looked at again
before anything is sent, so that who was locked out sees nothing more. The last event of a stream that ends by itself is
`end`, and says why.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse

from graph.services import Services
from placet.api import auth, shapes
from placet.api.auth import Anybody, Caller
from placet.api.errors import answers
from placet.api.following import Timelines
from placet.api.opened import Following, Open
from placet.api.turns import visible
from placet.record import events, pages, turns
from placet.record.errors import PlacetError
from placet.record.events import Event
from placet.record.turns import UnknownThread

router = APIRouter(prefix="/v1", tags=["events"])
SEND_TIMEOUT = 30.0  # seconds after which a client that takes nothing is let go
LARGEST = 2**63 - 1

After = Annotated[int, Query(ge=0, le=LARGEST, description="Only events behind this number.")]
LastId = Annotated[str | None, Header(alias="Last-Event-ID", description="Wins over `after`; -1: from the start.")]
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events: `id` is the number, `event` the type, `data` an event as JSON.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": 'id: 4\nevent: approval_requested\ndata: {"seq": 4, "type": "approval_requested", …}\n\n',
            }
        },
    }
}


@router.get(
    "/turns/{turn_id}/events",
    response_class=EventSourceResponse,
    responses={**STREAM, **answers(404)},
    summary="Follow a turn",
)
async def of_turn(
    request: Request,
    caller: Anybody,
    services: Open,
    timelines: Following,
    turn_id: UUID,
    after: After = 0,
    until: Annotated[
        Literal["now", "rest", "end"],
        Query(description="Stop when all there is was sent, when the turn waits or has ended, or when it has ended."),
    ] = "end",
    last_event_id: LastId = None,
) -> EventSourceResponse:
    """The turn's events as they come, until it has ended."""
    async with services.database.read() as tx:
        turn = await visible(tx, caller, turn_id)

    async def finished() -> str | None:
        async with services.database.read() as tx:
            status = (await turns.get(tx, caller.tenant, turn_id)).status
        rests = status in turns.ENDED or (until == "rest" and status in turns.WAITING)
        return status if rests or until == "now" else None

    return _stream(
        request,
        services,
        timelines,
        caller,
        turn.thread_id,
        turn.requester,
        _from(after, last_event_id),
        finished,
        turn_id,
    )


@router.get(
    "/threads/{thread_id}/events",
    response_class=EventSourceResponse,
    responses={**STREAM, **answers(404)},
    summary="Follow a thread",
)
async def of_thread(
    request: Request,
    caller: Anybody,
    services: Open,
    timelines: Following,
    thread_id: UUID,
    after: After = 0,
    until: Annotated[
        Literal["now", "never"], Query(description="Stop when all there is was sent, or when the client does.")
    ] = "never",
    last_event_id: LastId = None,
) -> EventSourceResponse:
    """The thread's events as they come, of all its turns."""
    async with services.database.read() as tx:
        requester = await pages.requester_of(tx, caller.tenant, thread_id)
    if requester is None or not caller.sees(requester):
        raise UnknownThread(f"There is no thread {thread_id} here.")

    async def finished() -> str | None:
        return "now" if until == "now" else None

    return _stream(
        request, services, timelines, caller, thread_id, requester, _from(after, last_event_id), finished, None
    )


def _from(after: int, last_event_id: str | None) -> int:
    """Where to begin; what is no number of ours says nothing."""
    given = (last_event_id or "").strip()
    if given == "-1":
        return 0
    return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else after


def _stream(
    request: Request,
    services: Services,
    timelines: Timelines,
    caller: Caller,
    thread_id: UUID,
    requester: str,
    after: int,
    finished: Callable[[], Awaitable[str | None]],
    turn_id: UUID | None,
) -> EventSourceResponse:
    async def lines() -> AsyncIterator[ServerSentEvent]:
        sent, moved = after, True  # what a turn waits for changes only with an event of the turn itself
        async for page in timelines.follow(caller.tenant, thread_id, after=after, turn_id=turn_id):
            if page:
                if (refused := await _refused(request, requester)) is not None:
                    yield ServerSentEvent(event="end", data=json.dumps(refused))
                    return
                for event in page:
                    yield _line(event)
                sent = page[-1].seq
                moved = moved or any(event.type.startswith("turn_") for event in page)
                continue
            if moved and (why := await finished()) is not None:
                async with services.database.read() as tx:  # what came between the last look and the end
                    rest = await events.of_thread(tx, caller.tenant, thread_id, after=sent, turn_id=turn_id)
                for event in rest:
                    yield _line(event)
                yield ServerSentEvent(event="end", data=json.dumps({"status": why}))
                return
            moved = False

    return EventSourceResponse(
        lines(),
        ping=services.settings.heartbeat,
        send_timeout=SEND_TIMEOUT,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _refused(request: Request, requester: str) -> dict[str, Any] | None:
    """What the caller is told when they may no longer see this."""
    try:
        now = await auth.identify(request)
    except PlacetError as error:
        return error.as_json()
    return None if now.sees(requester) else UnknownThread("It is no longer yours to see.").as_json()


def _line(event: Event) -> ServerSentEvent:
    return ServerSentEvent(id=str(event.seq), event=event.type, data=shapes.event(event).model_dump_json())
