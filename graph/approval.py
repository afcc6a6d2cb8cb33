"""approval: wait for people, and check once more before anything executes.

The node reads the decision from the row; a resume value is only a knock, handed to `decide` when somebody sent one. Each
ask is a task of its own: asking again leaves by the edge `approval → approval`, so that an old click cannot land on a new
question. Nothing with an effect stands before `interrupt()`, and no bad answer raises (A6).
"""

from typing import Any, Literal
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.types import interrupt

from graph import protocol, recheck
from graph.deciding import decide_from_resume
from graph.gate import as_call
from graph.services import Services, owned_by
from graph.state import CallState
from placet.record import approvals, items, runs
from placet.record.approvals import Approval
from placet.record.errors import PlacetError, Tampered
from placet.record.items import Item
from placet.record.runs import Owned


async def approval(services: Services, state: CallState, config: RunnableConfig) -> dict[str, Any]:
    """Where the call goes from here: to execution, to its end, or back to ask again."""
    owned = owned_by(config)
    item_id = UUID(state["call"]["item_id"])
    async with services.database.read() as tx:
        item = await items.get(tx, owned.tenant_id, owned.turn_id, item_id)
        asked = await approvals.latest(tx, owned.tenant_id, item_id)
    if item.result is not None:
        return {"next": "end"}
    if asked is None:  # automatic; the last door looks at the frozen verdict again
        if item.verdict is None or item.verdict["kind"] != "auto":
            raise Tampered(f"The call {item_id} asks people and has no approval.")
        return {"next": "execute"}
    open_still = asked.status == "pending" or (asked.status == "approved" and asked.effect in (None, "absent"))
    if open_still and state["call"] != as_call(item):  # what is decided for good stays decided, whatever the state says
        await _ask_again(services, owned, item, asked, recheck.Again("the run's state says something else", {}))
        return {"next": "approval", "call": as_call(item)}

    match asked.status:
        case "pending" if not asked.overdue:
            answer = interrupt(question(asked, state.get("problem")))
            return {"next": "approval", "problem": await _answered(services, config, asked, answer)}
        case "pending":
            await _expire(services, owned, item, asked)
            return {"next": "approval"}  # a sweeper may have been faster: the next task reads what is there
        case "approved" if asked.effect not in (None, "absent"):  # it left already; execute finds out what became of it
            return {"next": "execute"}
        case "approved":
            return await _before_execution(services, owned, item, asked)
        case "orphaned" if owned.because == "migrate" and recheck.still_there(services, asked):
            await _ask_again(services, owned, item, asked, recheck.Again("it was migrated to what is there now", {}))
            return {"next": "approval"}
        case "orphaned":
            interrupt(orphan(asked))
            return {"next": "approval"}
        case _:
            await _finish(services, owned, item, asked)
            return {"next": "end"}


async def _answered(services: Services, config: RunnableConfig, asked: Approval, answer: object) -> str | None:
    """Hand an answer to `decide`; what is wrong with it is said beside the next question."""
    try:
        await decide_from_resume(services, config, asked.approval_id, answer)
    except PlacetError as error:
        return str(error)
    return None


async def _before_execution(services: Services, owned: Owned, item: Item, asked: Approval) -> dict[str, Any]:
    """Approved: still true, valid and allowed? (A7)"""
    found = await recheck.recheck(services, item, asked)
    match found:
        case recheck.Good():
            return {"next": "execute", "problem": None, "checked": owned.epoch}
        case recheck.Again():
            await _ask_again(services, owned, item, asked, found)
            return {"next": "approval", "problem": None}
        case recheck.Denied():
            async with services.database.transaction("deny") as tx:
                await runs.fence(tx, owned)
                if await approvals.close(
                    tx, owned, asked, "stale", because=f"the policy denies it now: {found.reason}"
                ):
                    result = protocol.denied_by_policy(item.tool, reason=found.reason, rule=found.rule)
                    await items.finish(tx, item.item_id, "denied", result)
            return {"next": "approval"}
        case recheck.Orphaned():
            async with services.database.transaction("orphan") as tx:
                await runs.fence(tx, owned)
                if await approvals.close(tx, owned, asked, "orphaned", because=found.reason):
                    await items.move(tx, item.item_id, "orphaned")
            return {"next": "approval"}


async def _ask_again(services: Services, owned: Owned, item: Item, asked: Approval, again: recheck.Again) -> None:
    """The same call is asked again with the difference; its arguments are never changed by the runtime (A7)."""
    fresh = await recheck.fresh(services, item, asked)
    async with services.database.transaction("ask_again") as tx:
        await runs.fence(tx, owned)
        if asked.status in ("pending", "approved"):
            closed: Literal["expired", "stale"] = "expired" if again.expired else "stale"
            if not await approvals.close(tx, owned, asked, closed, because=again.because):
                return  # somebody was faster: the next task reads what is there
        await items.move(tx, item.item_id, "awaiting_approval")
        await approvals.ask(
            tx,
            services.keys,
            owned,
            item_id=item.item_id,
            number=asked.ask + 1,
            tool=item.tool,
            requester=asked.requester,
            revision=fresh.revision,
            requirement=fresh.requirement,
            rationale=asked.rationale,
            difference={"because": again.because, "changed": again.changed},
        )


async def _expire(services: Services, owned: Owned, item: Item, asked: Approval) -> None:
    async with services.database.transaction("expire") as tx:
        await runs.fence(tx, owned)
        if await approvals.close(tx, owned, asked, "expired", because="nobody decided in time"):
            result = protocol.expired(item.tool, expires_at=asked.expires_at.isoformat(timespec="seconds"))
            await items.finish(tx, item.item_id, "expired", result)


async def _finish(services: Services, owned: Owned, item: Item, asked: Approval) -> None:
    """The one result of a call that people or time have ended (A10)."""
    match asked.status:
        case "rejected":
            status: items.Status = "rejected"
            result = protocol.rejected(
                item.tool, denied_by=asked.decided_by or "a reviewer", reason=asked.decision_reason or ""
            )
        case "expired":
            status = "expired"
            result = protocol.expired(item.tool, expires_at=asked.expires_at.isoformat(timespec="seconds"))
        case "superseded":
            status, result = "superseded", protocol.superseded(item.tool)
        case _:
            status, result = "cancelled", protocol.cancelled(item.tool)
    async with services.database.transaction("not_approved") as tx:
        await runs.fence(tx, owned)
        await items.finish(tx, item.item_id, status, result)


def question(asked: Approval, problem: str | None) -> dict[str, Any]:
    """The interrupt's value: what a client shows to people. Deciding needs the hash that stands here (A2)."""
    content = asked.content
    return {
        **for_clients(asked),
        "approval_id": str(asked.approval_id),
        "ask": asked.ask,
        "payload_hash": asked.payload_hash.hex(),
        "tool": asked.tool,
        "arguments": content["arguments"],
        "preview": asked.preview,
        "precondition": asked.precondition,
        "difference": asked.difference,
        "rule": asked.rule,
        "reason": asked.reason,
        "duty": asked.duty,
        "requester": asked.requester,
        "expires_at": asked.expires_at.isoformat(),
        "rationale": asked.rationale,
        "problem": problem,
    }


def for_clients(asked: Approval) -> dict[str, Any]:
    """The same question in the shapes that Agent Inbox, Agent Chat UI and per-call clients render; one action each.

    What they echo of the action is never executed: only the kind of the decision and the hash count. They cannot show
    the preview of an edit, so none of them is told that it may edit (A8).
    """
    arguments = asked.content["arguments"]
    described = _described(asked)
    return {
        "type": "tool_approval",
        "tool_call_id": str(asked.item_id),
        "name": asked.tool,
        "args": arguments,
        "description": described,
        "action_request": {"action": asked.tool, "args": arguments},
        "config": {"allow_accept": True, "allow_edit": False, "allow_respond": True, "allow_ignore": True},
        "action_requests": [{"name": asked.tool, "args": arguments, "description": described}],
        "review_configs": [{"action_name": asked.tool, "allowed_decisions": ["approve", "reject"]}],
    }


def _described(asked: Approval) -> str:
    """Plain sentences made by code; the agent's own words stay out (A1)."""
    preview = asked.preview
    lines = [
        preview["title"],
        *preview.get("impact", []),
        *preview.get("warnings", []),
        f"Asked because: {asked.reason} ({asked.rule}; needs {asked.duty}"
        + (f", {asked.quorum} people)." if asked.quorum > 1 else ")."),
        f"Requested by {asked.requester}; expires {asked.expires_at:%Y-%m-%d %H:%M} UTC.",
    ]
    return "\n".join(lines)


def orphan(asked: Approval) -> dict[str, Any]:
    """The interrupt's value of a call that no longer exists as it was asked (G8)."""
    return {
        "type": "orphaned",
        "approval_id": str(asked.approval_id),
        "tool": asked.tool,
        "because": asked.closed_because,
        "do": "Cancel the turn, or bring the tool back as it was.",
    }
