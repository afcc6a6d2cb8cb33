"""Threads as LangGraph's clients know them. Their state is read from checkpoints; a deletion is a tombstone (L1)."""

from typing import Annotated, Any
from uuid import UUID, uuid4

from fastapi import APIRouter, Query
from fastapi.responses import Response

from placet.api.auth import Anybody, Caller, Operator, Requester, RequesterOrOperator
from placet.api.errors import answers
from placet.api.langgraph.bodies import (
    History,
    StateAt,
    StateUpdate,
    ThreadCreate,
    ThreadFilter,
    ThreadPatch,
    ThreadSearch,
)
from placet.api.langgraph.opened import House, LangGraph, json
from placet.api.langgraph.state import checkpoint_id, task_interrupts, thread_state
from placet.api.langgraph.steering import StateInUse, change_state
from placet.emit import encode
from placet.record import threads
from placet.record.errors import InvalidInput
from placet.record.threads import Thread, ThreadExists

router = APIRouter(tags=["threads"])
SCANNED = 500  # threads whose state is looked into when a search names values
Select = Annotated[list[str] | None, Query(max_length=50)]
NEEDS_STATE = {"values", "interrupts"}


async def shown(house: LangGraph, thread: Thread, select: list[str] | None = None) -> dict[str, Any]:
    """The thread in LangGraph's form; its state is read only when it is wanted."""
    form: dict[str, Any] = {
        "thread_id": thread.thread_id,
        "created_at": thread.created_at,
        "updated_at": thread.updated_at,
        "state_updated_at": thread.updated_at,
        "metadata": {**thread.metadata, "owner": thread.requester},
        "status": thread.status,
        "config": {},
        "context": {},
        "error": thread.error if thread.status == "error" else None,
    }
    if select is None or NEEDS_STATE & set(select):
        snapshot = await house.reader.at(thread.thread_id)
        form["values"] = snapshot.values or {}
        form["interrupts"] = task_interrupts(snapshot) if thread.turn_status in WAITS else {}
    return form if select is None else {name: form[name] for name in select if name in form}


WAITS = ("running", "awaiting_approval", "awaiting_reconciliation", "paused")


@router.post("/threads", summary="Make a thread", responses=answers(400, 409, 413))
async def create(body: ThreadCreate, house: House, caller: Requester) -> Response:
    """A thread of the caller's; one that exists is a 409, or with `if_exists: do_nothing` taken as it is."""
    thread_id = body.thread_id or uuid4()
    async with house.services.database.transaction() as tx:
        made = await threads.insert(tx, caller.user, thread_id, metadata=body.metadata or {})
        if not made and body.if_exists != "do_nothing":
            raise ThreadExists(f"There is a thread {thread_id} already.", thread_id=str(thread_id))
        thread = await threads.get(tx, caller.user, thread_id)
    return json(await shown(house, thread))


@router.post("/threads/search", summary="Find threads", responses=answers(400, 413))
async def search(body: ThreadSearch, house: House, caller: Anybody) -> Response:
    """Threads that the caller may see, the newest first unless said otherwise."""
    if body.values:
        fitting = await _with_values(house, caller, body)
        page = fitting[body.offset : body.offset + body.limit]
    else:
        page = await _found(house, caller, body, limit=body.limit, offset=body.offset)
    return json([await shown(house, thread, body.select) for thread in page])


async def _found(house: LangGraph, caller: Caller, body: ThreadFilter, *, limit: int, offset: int = 0) -> list[Thread]:
    order = body if isinstance(body, ThreadSearch) else ThreadSearch()
    async with house.services.database.read() as tx:
        return await threads.search(
            tx,
            caller.user,
            status=body.status,
            metadata=body.metadata or {},
            ids=body.ids,
            sort_by=order.sort_by or "created_at",
            descending=order.sort_order != "asc",
            limit=limit,
            offset=offset,
        )


async def _with_values(house: LangGraph, caller: Caller, body: ThreadFilter) -> list[Thread]:
    found: list[Thread] = []
    for thread in await _found(house, caller, body, limit=SCANNED):
        snapshot = await house.reader.at(thread.thread_id)
        have = _jsonable(snapshot.values or {})
        if all(key in have and have[key] == value for key, value in (body.values or {}).items()):
            found.append(thread)
    return found


def _jsonable(values: dict[str, Any]) -> dict[str, Any]:
    import json as plain  # noqa: PLC0415  # `json` is the answer here

    found: dict[str, Any] = plain.loads(encode(values))
    return found


@router.post("/threads/count", summary="How many threads", responses=answers(400, 413))
async def count(body: ThreadFilter, house: House, caller: Anybody) -> int:
    """How many threads a search would find."""
    if body.values:
        return len(await _with_values(house, caller, body))
    async with house.services.database.read() as tx:
        return await threads.count(tx, caller.user, status=body.status, metadata=body.metadata or {}, ids=body.ids)


@router.get("/threads/{thread_id}", summary="A thread", responses=answers(404))
async def get(thread_id: UUID, house: House, caller: Anybody) -> Response:
    """With its latest state and what is asked on it."""
    return json(await shown(house, await seen(house, caller, thread_id)))


async def seen(house: LangGraph, caller: Caller, thread_id: UUID) -> Thread:
    """The thread, when the caller may see it; raises `NoSuchThread`."""
    async with house.services.database.read() as tx:
        return await threads.get(tx, caller.user, thread_id)


@router.patch("/threads/{thread_id}", summary="Add metadata", responses=answers(400, 404, 413))
async def patch(thread_id: UUID, body: ThreadPatch, house: House, caller: RequesterOrOperator) -> Response:
    """Merged into what is there."""
    async with house.services.database.transaction() as tx:
        thread = await threads.add_metadata(tx, caller.user, thread_id, body.metadata or {}, most=threads.MAX_METADATA)
    return json(await shown(house, thread))


@router.delete("/threads/{thread_id}", summary="Remove a thread from sight", status_code=204, responses=answers(404))
async def delete(thread_id: UUID, house: House, caller: RequesterOrOperator) -> None:
    """A tombstone: effects, audit and what waits for people stay, and an unfinished turn goes on."""
    async with house.services.database.transaction() as tx:
        await threads.remove(tx, caller.user, thread_id)


# State


@router.get("/threads/{thread_id}/state", summary="The latest state", responses=answers(404))
async def state(
    thread_id: UUID, house: House, caller: Anybody, subgraphs: bool = False, select: Select = None
) -> Response:
    """Values, what comes next, what is asked."""
    await seen(house, caller, thread_id)
    return json(thread_state(await house.reader.at(thread_id, subgraphs=subgraphs), select))


@router.get("/threads/{thread_id}/state/{checkpoint}", summary="The state at a checkpoint", responses=answers(404))
async def state_at(
    thread_id: UUID, checkpoint: UUID, house: House, caller: Anybody, subgraphs: bool = False, select: Select = None
) -> Response:
    """The state as it was then."""
    await seen(house, caller, thread_id)
    return json(thread_state(await house.reader.at(thread_id, str(checkpoint), subgraphs=subgraphs), select))


@router.post(
    "/threads/{thread_id}/state/checkpoint", summary="The state at a checkpoint", responses=answers(400, 404, 413)
)
async def state_of(thread_id: UUID, body: StateAt, house: House, caller: Anybody) -> Response:
    """The state at a checkpoint, also of a subgraph."""
    await seen(house, caller, thread_id)
    at = body.checkpoint
    snapshot = await house.reader.at(
        thread_id, at.checkpoint_id, at.checkpoint_ns or "", subgraphs=bool(body.subgraphs)
    )
    return json(thread_state(snapshot, body.select))


@router.post(
    "/threads/{thread_id}/state", summary="Add messages to the conversation", responses=answers(400, 404, 409, 413)
)
async def update(thread_id: UUID, body: StateUpdate, house: House, caller: Operator) -> Response:
    """For operators. It executes nothing, and is refused while a run goes on or when the state has moved."""
    await seen(house, caller, thread_id)
    named = body.checkpoint_id or (body.checkpoint.checkpoint_id if body.checkpoint else None)
    if named is not None:
        latest = checkpoint_id(await house.reader.at(thread_id))
        if named != latest:
            raise StateInUse("Only the latest state can be added to.", checkpoint_id=named, latest=latest)
    new = await change_state(house.services, house.graph, caller.user, thread_id, body.values)
    where = {"thread_id": str(thread_id), "checkpoint_ns": "", "checkpoint_id": new, "checkpoint_map": {}}
    return json({"checkpoint": where, "configurable": where, "checkpoint_id": new})


@router.get("/threads/{thread_id}/history", summary="The thread's checkpoints", responses=answers(404))
async def history_of(
    thread_id: UUID,
    house: House,
    caller: Anybody,
    limit: Annotated[int, Query(ge=1, le=1000)] = 10,
    before: Annotated[UUID | None, Query()] = None,
) -> Response:
    """Newest first."""
    body = History(limit=limit, before=str(before) if before else None)
    return await history(thread_id, body, house, caller)


@router.post("/threads/{thread_id}/history", summary="The thread's checkpoints", responses=answers(400, 404, 413))
async def history(thread_id: UUID, body: History, house: House, caller: Anybody) -> Response:
    """Newest first."""
    await seen(house, caller, thread_id)
    before = body.before if isinstance(body.before, str) or body.before is None else body.before.checkpoint_id
    if body.before is not None and not before:
        raise InvalidInput("It names no checkpoint: give its checkpoint_id.", field="before")
    namespace = (body.checkpoint.checkpoint_ns if body.checkpoint else None) or ""
    found = house.reader.history(
        thread_id, limit=body.limit, before=before, namespace=namespace, metadata=body.metadata
    )
    return json([thread_state(snapshot, body.select) async for snapshot in found])
