"""Runs as LangGraph's clients know them: create, wait, stream, join, cancel, on a thread and without one.

A request that starts or resumes work answers when it is durable (L3): at once, with what happens, or with the outcome.
`Content-Location` and `Location` say where to come back to; `Placet-Applied` where a rule won over a wish (L1).
"""

import json as plain
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from placet.api import auth
from placet.api.auth import Anybody, Caller
from placet.api.errors import answers
from placet.api.langgraph import sending
from placet.api.langgraph.admission import Asked, admit, new_thread_id
from placet.api.langgraph.assistants import ASSISTANT_ID, check_assistant
from placet.api.langgraph.bodies import MODES, BulkCancel, Mode, RunCreate
from placet.api.langgraph.opened import House, LangGraph, json
from placet.api.langgraph.sending import Refused, Viewer, read_last_event_id
from placet.api.langgraph.threads import seen
from placet.api.opened import Tools
from placet.record import client_runs
from placet.record.client_runs import ClientRun
from placet.record.errors import InvalidInput, PlacetError
from placet.record.threads import NoSuchThread
from placet.record.turns import TurnEnded

router = APIRouter(tags=["runs"])
VALUES: tuple[Mode, ...] = ("values",)
Action = Annotated[Literal["interrupt", "rollback"], Query()]
LastEvent = Annotated[str | None, Header(alias="Last-Event-ID", max_length=64)]
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


def shown(run: ClientRun) -> dict[str, Any]:
    """The run in LangGraph's form."""
    return {
        "run_id": run.client_run_id,
        "thread_id": run.thread_id,
        "assistant_id": ASSISTANT_ID,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "status": run.status,
        "metadata": run.metadata,
        "multitask_strategy": run.multitask_strategy,
        "kwargs": {"stream_mode": run.modes, "subgraphs": run.subgraphs, "durability": "sync"},
        "error": sending.error_of(run),
        "turn_id": run.turn_id,
        "turn_status": run.turn_status,
        "applied": run.applied,
    }


def headers(run: ClientRun, back: Literal["stream", "join"] | None) -> dict[str, str]:
    """Where the run is, where to come back to, and where a rule won."""
    here = f"/threads/{run.thread_id}/runs/{run.client_run_id}"
    told = {"Content-Location": here}
    if back is not None:
        told["Location"] = f"{here}/{back}"
    if run.applied:
        told["Placet-Applied"] = plain.dumps(run.applied)
    return told


Seeing = Callable[[ClientRun], Refused]


def _seeing(request: Request, house: House) -> Seeing:
    """Whether the request's credentials may still see a run, asked again while it is followed (L4)."""

    def of(run: ClientRun) -> Refused:
        async def refused() -> dict[str, Any] | None:
            try:
                caller = await auth.identify(request)
                await seen(house, caller, run.thread_id)
            except NoSuchThread as error:
                return None if caller.sees(run.asked_by) else error.as_json()
            except PlacetError as error:
                return error.as_json()
            return None

        return refused

    return of


Sees = Annotated[Seeing, Depends(_seeing)]


async def _admit(
    house: LangGraph, caller: Caller, thread_id: UUID | None, body: RunCreate, default: tuple[Mode, ...]
) -> ClientRun:
    check_assistant(body.assistant_id)
    create = thread_id is None or body.if_not_exists == "create"
    if thread_id is None and body.command is not None:
        raise InvalidInput("A run without a thread has nothing to resume.", field="command")
    asked = Asked(caller.user, thread_id or new_thread_id(), body, body.modes(default), create)
    if thread_id is None and body.on_completion == "delete":
        asked.applied["on_completion"] = "keep"
    return await admit(house.services, house.graph, asked)


def _viewer(seen_by: Seeing, caller: Caller, run: ClientRun, body: RunCreate, modes: Sequence[Mode] = ()) -> Viewer:
    return Viewer(run, modes, seen_by(run), cancels=caller.user if body.on_disconnect == "cancel" else None)


def _waiting(house: LangGraph, viewer: Viewer) -> StreamingResponse:
    return StreamingResponse(
        sending.outcome(house, viewer), media_type="application/json", headers=headers(viewer.run, "join")
    )


def _streaming(house: LangGraph, viewer: Viewer) -> StreamingResponse:
    told = {**headers(viewer.run, "stream"), "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(sending.events(house, viewer), media_type="text/event-stream", headers=told)


@router.post(
    "/threads/{thread_id}/runs", summary="Start or resume, answer at once", responses=answers(400, 404, 409, 413)
)
async def create(thread_id: UUID, body: RunCreate, house: House, tools: Tools, caller: Anybody) -> Response:
    """The run, stored and due."""
    run = await _admit(house, caller, thread_id, body, VALUES)
    return json(shown(run), headers=headers(run, None))


@router.post("/threads/{thread_id}/runs/wait", summary="Start or resume, wait", responses=answers(400, 404, 409, 413))
async def wait(thread_id: UUID, body: RunCreate, house: House, tools: Tools, caller: Anybody, sees: Sees) -> Response:
    """The state when the run has come to a pause or an end, with `__interrupt__` or `__error__`."""
    run = await _admit(house, caller, thread_id, body, ())
    return _waiting(house, _viewer(sees, caller, run, body))


@router.post(
    "/threads/{thread_id}/runs/stream",
    summary="Start or resume, stream",
    responses={**answers(400, 404, 409, 413), **EVENTS},
)
async def stream(thread_id: UUID, body: RunCreate, house: House, tools: Tools, caller: Anybody, sees: Sees) -> Response:
    """What the run does, as it does it."""
    run = await _admit(house, caller, thread_id, body, VALUES)
    return _streaming(house, _viewer(sees, caller, run, body, body.modes(VALUES)))


@router.post("/runs", summary="Start on a thread of its own, answer at once", responses=answers(400, 404, 409, 413))
async def create_alone(body: RunCreate, house: House, tools: Tools, caller: Anybody) -> Response:
    """The thread stays: what the run did and asks must be found again."""
    run = await _admit(house, caller, None, body, VALUES)
    return json(shown(run), headers=headers(run, None))


@router.post("/runs/wait", summary="Start on a thread of its own, wait", responses=answers(400, 404, 409, 413))
async def wait_alone(body: RunCreate, house: House, tools: Tools, caller: Anybody, sees: Sees) -> Response:
    """The state when the run has come to a pause or an end."""
    run = await _admit(house, caller, None, body, ())
    return _waiting(house, _viewer(sees, caller, run, body))


@router.post(
    "/runs/stream", summary="Start on a thread of its own, stream", responses={**answers(400, 404, 409, 413), **EVENTS}
)
async def stream_alone(body: RunCreate, house: House, tools: Tools, caller: Anybody, sees: Sees) -> Response:
    """What the run does, as it does it."""
    run = await _admit(house, caller, None, body, VALUES)
    return _streaming(house, _viewer(sees, caller, run, body, body.modes(VALUES)))


@router.post("/runs/cancel", summary="Cancel many runs", status_code=204, responses=answers(400, 404, 413))
async def cancel_many(body: BulkCancel, house: House, caller: Anybody, action: Action = "interrupt") -> None:
    """Those of a thread that are named, or all of the caller's with a status. What has ended is left as it is."""
    for run in await _to_cancel(house, caller, body):
        try:
            await sending.cancel(house, caller.user, run, f"cancelled by a client ({action})")
        except TurnEnded:
            continue


async def _to_cancel(house: LangGraph, caller: Caller, body: BulkCancel) -> list[ClientRun]:
    async with house.services.database.read() as tx:
        if body.thread_id is None:
            if body.status is None or body.run_ids:
                raise InvalidInput("Name a thread and its runs, or a status.", field="status")
            found = await client_runs.open_of_user(tx, caller.user)
            return [run for run in found if body.status in ("all", run.status)]
    await seen(house, caller, body.thread_id)
    async with house.services.database.read() as tx:
        if body.run_ids:
            return [await client_runs.get(tx, caller.tenant, body.thread_id, run_id) for run_id in body.run_ids]
        found = await client_runs.of_thread(tx, caller.tenant, body.thread_id, limit=1000)
    return [run for run in found if not run.ended and body.status in (None, "all", run.status)]


# One run


async def _run(house: LangGraph, caller: Caller, thread_id: UUID, run_id: UUID) -> ClientRun:
    await seen(house, caller, thread_id)
    async with house.services.database.read() as tx:
        return await client_runs.get(tx, caller.tenant, thread_id, run_id)


@router.get("/threads/{thread_id}/runs", summary="The thread's runs", responses=answers(404))
async def of_thread(
    thread_id: UUID,
    house: House,
    caller: Anybody,
    limit: Annotated[int, Query(ge=1, le=1000)] = 10,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    status: Annotated[
        Literal["pending", "running", "success", "error", "interrupted", "timeout"] | None, Query()
    ] = None,
    select: Annotated[list[str] | None, Query(max_length=50)] = None,
) -> Response:
    """The newest first."""
    await seen(house, caller, thread_id)
    async with house.services.database.read() as tx:
        found = await client_runs.of_thread(tx, caller.tenant, thread_id, status=status, limit=limit, offset=offset)
    forms = [shown(run) for run in found]
    return json([{k: v for k, v in form.items() if select is None or k in select} for form in forms])


@router.get("/threads/{thread_id}/runs/{run_id}", summary="A run", responses=answers(404))
async def get(thread_id: UUID, run_id: UUID, house: House, caller: Anybody) -> Response:
    """The run as it stands."""
    return json(shown(await _run(house, caller, thread_id, run_id)))


@router.delete(
    "/threads/{thread_id}/runs/{run_id}",
    summary="Remove a run from sight",
    status_code=204,
    responses=answers(404, 409),
)
async def delete(thread_id: UUID, run_id: UUID, house: House, caller: Anybody) -> None:
    """A tombstone of a run that has ended; what it did stays."""
    run = await _run(house, caller, thread_id, run_id)
    _check_own(caller, run)
    async with house.services.database.transaction() as tx:
        await client_runs.remove(tx, run)


def _check_own(caller: Caller, run: ClientRun) -> None:
    if run.asked_by != caller.user_id and not caller.user.is_a("operator"):
        raise client_runs.UnknownRun(f"There is no run {run.client_run_id} of yours.")


@router.get("/threads/{thread_id}/runs/{run_id}/join", summary="Wait for a run", responses=answers(404))
async def join(
    thread_id: UUID, run_id: UUID, house: House, caller: Anybody, sees: Sees, cancel_on_disconnect: bool = False
) -> Response:
    """The outcome, now or when it is there; also after a restart, on any server."""
    run = await _run(house, caller, thread_id, run_id)
    return _waiting(house, Viewer(run, [], sees(run), cancels=caller.user if cancel_on_disconnect else None))


@router.get("/threads/{thread_id}/runs/{run_id}/stream", summary="Follow a run", responses={**answers(404), **EVENTS})
async def join_stream(
    thread_id: UUID,
    run_id: UUID,
    house: House,
    caller: Anybody,
    sees: Sees,
    last_event_id: LastEvent = None,
    stream_mode: Annotated[list[str] | None, Query(max_length=20)] = None,
    cancel_on_disconnect: bool = False,
) -> Response:
    """From behind `Last-Event-ID`, or from the start; a subset of the modes that the run was started with."""
    run = await _run(house, caller, thread_id, run_id)
    wanted = [mode for given in stream_mode or [] for mode in given.split(",") if mode]
    if unknown := sorted(set(wanted) - set(MODES)):
        raise InvalidInput(f"Modes are {', '.join(MODES)}; got {', '.join(unknown)[:200]}.", field="stream_mode")
    viewer = Viewer(
        run,
        wanted or run.modes or list(VALUES),
        sees(run),
        after=read_last_event_id(last_event_id),
        cancels=caller.user if cancel_on_disconnect else None,
    )
    return _streaming(house, viewer)


@router.post("/threads/{thread_id}/runs/{run_id}/cancel", summary="Cancel a run", responses=answers(404, 409))
async def cancel(
    thread_id: UUID,
    run_id: UUID,
    house: House,
    caller: Anybody,
    sees: Sees,
    wait: bool = False,
    action: Action = "interrupt",
) -> Response:
    """The run's turn is cancelled for good; what was executed stays, also with `rollback`. 409 when it has ended."""
    run = await _run(house, caller, thread_id, run_id)
    try:
        await sending.cancel(house, caller.user, run, f"cancelled by a client ({action})")
    except TurnEnded as ended:
        raise _ended(ended, run) from None
    if wait:
        return _waiting(house, Viewer(run, [], sees(run)))
    return json({}, 202)


def _ended(error: TurnEnded, run: ClientRun) -> PlacetError:
    return TurnEnded(str(error), **error.details, run_id=str(run.client_run_id))
