"""`/v1/approvals`: what waits for people, what an edit would do, and deciding (A3, A5, A6, L2).

A decision carries the hash of what its author saw; identity is the caller's, whatever the body says. Nothing is executed
here: the decision and the run that acts on it are stored together, and the answer comes then (A4, L3).
"""

import json
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Query

from graph import deciding
from placet.api import shapes
from placet.api.auth import Anybody, Caller, Reviewer
from placet.api.errors import answers
from placet.api.opened import Open, Tools, serving
from placet.api.shapes import ApprovalView, Cursor, Editing, EditShown, Limit, Outcome, Page, Word
from placet.record import approvals, pages
from placet.record.approvals import Approval, Status, UnknownApproval
from placet.record.database import Transaction
from placet.record.decisions import Decision, check_may_decide

router = APIRouter(prefix="/v1/approvals", tags=["approvals"])
CHANNEL = "api"
DECISIONS = {
    "approve": {"summary": "Approve exactly what was shown", "value": {"kind": "approve", "payload_hash": "9f2c…"}},
    "approve_with_changes": {
        "summary": "Approve an edit that was previewed",
        "value": {
            "kind": "approve_with_changes",
            "arguments": {"refund_due_ids": ["R-105009"]},
            "payload_hash": "the preview's",
        },
    },
    "reject": {
        "summary": "Reject; the agent is told why",
        "value": {"kind": "reject", "payload_hash": "9f2c…", "reason": "These were paid back by hand."},
    },
}


async def visible(tx: Transaction, caller: Caller, approval_id: UUID) -> Approval:
    """The approval, if the caller may see it; otherwise it is as if there were none."""
    asked = await approvals.get(tx, caller.tenant, approval_id)
    if not caller.sees(asked.requester):
        raise UnknownApproval(f"There is no approval {approval_id} here; `GET /v1/approvals` lists what waits.")
    return asked


@router.get("", responses=answers(), summary="What waits for people")
async def page(
    caller: Anybody,
    services: Open,
    status: Annotated[Status | None, Query(description="Pending when not given; `any=true` for all.")] = None,
    any_status: Annotated[bool, Query(alias="any", description="Of every status, the last asked first.")] = False,
    mine: Annotated[bool, Query(description="Only what the caller may decide.")] = False,
    tool: Annotated[Word | None, Query()] = None,
    turn_id: UUID | None = None,
    thread_id: UUID | None = None,
    requester: Annotated[Word | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ApprovalView]:
    """Pending ones by what expires first; others by what was asked last."""
    wanted = None if any_status else status or "pending"
    duties = caller.duties if caller.user.is_a("reviewer") else []
    async with services.database.read() as tx:
        found = await pages.approvals(
            tx,
            caller.tenant,
            limit=limit + 1,
            after=shapes.key_of(cursor),
            requester=caller.narrowed(requester),
            status=wanted,
            turn_id=turn_id,
            thread_id=thread_id,
            tool=tool,
            duties=duties if mine else None,
            not_of=caller.user_id if mine else None,
        )
    rows, behind = shapes.next_of(found, limit, "expires_at" if wanted == "pending" else "asked_at", "approval_id")
    return Page(rows=[shapes.approval(row, caller) for row in rows], next=behind)


@router.get("/{approval_id}", responses=answers(404), summary="One approval, as it is to be decided")
async def one(caller: Anybody, services: Open, approval_id: UUID) -> ApprovalView:
    """Exactly what would run, what it would do, which rule asks and why, and what became of it."""
    async with services.database.read() as tx:
        return shapes.approval(await visible(tx, caller, approval_id), caller)


@router.post("/{approval_id}/preview", responses=answers(400, 404, 409, 413), summary="What an edit would do")
async def preview(caller: Reviewer, services: Tools, approval_id: UUID, given: Editing) -> EditShown:
    """The edited call, validated, counted and judged; nothing is stored. Decide with its arguments and hash (A8).

    409 `edit_refused` when the edit needs a higher duty than this approval gives.
    """
    async with services.database.read() as tx:
        asked = await visible(tx, caller, approval_id)
    check_may_decide(caller.user, asked)
    revision = await deciding.prepare_edit(services, asked, given.arguments)
    content = json.loads(revision.payload)
    return EditShown(
        payload_hash=revision.payload_hash.hex(),
        arguments=content["arguments"],
        facts=content["facts"],
        preview=revision.preview,
        precondition=revision.precondition,
    )


@router.post("/{approval_id}/decision", responses=answers(400, 404, 409, 413), summary="Decide")
async def decide(
    caller: Reviewer,
    services: Open,
    approval_id: UUID,
    given: Annotated[Decision, Body(openapi_examples=DECISIONS)],
) -> Outcome:
    """Store a decision. The first valid one wins; the same again by the same person is answered 200 with what is stored.

    409 with the stored outcome when somebody else decided, it expired, or what is pending is not what was shown; 403
    without the duty, or for one's own request; 422 leaves it as answerable as before (A3, A5, A6).
    """
    if given.arguments is not None:
        serving(services, caller)
    return shapes.outcome(await deciding.decide(services, approval_id, given, caller.user, channel=CHANNEL))
