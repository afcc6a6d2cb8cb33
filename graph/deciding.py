"""Deciding, by whichever door: the command line, the notebook, `/v1`, a resume value that a client sent.

All end in `placet.record.decisions.decide`; what stands here is what needs the tools and the policy: an edit is
validated, previewed and judged before it counts (A8).
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.runnables import RunnableConfig

from graph.asking import InvalidArguments, assess, draft, validate
from graph.services import Services
from placet.record import approvals, audit, decisions, people
from placet.record.approvals import Approval, Revision
from placet.record.database import Transaction
from placet.record.decisions import Decided, Decision, InvalidDecision, read_decision
from placet.record.errors import Conflict, NotAllowed, NotFound
from policies.verdicts import Verdict, stricter


class EditRefused(Conflict):
    """The edited call would need more than this approval gives; the approval stays as it is (A8)."""

    code = "edit_refused"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A decision that was read, with the revision that its edit would make; nothing is recorded yet."""

    approval_id: UUID
    decision: Decision
    edited: Revision | None


async def decide(services: Services, approval_id: UUID, raw: object, reviewer: people.User, *, channel: str) -> Decided:
    """Read, check and record a decision; see `placet.record.decisions.decide` for what it raises.

    Raises also `InvalidDecision` for one that cannot be read and `EditRefused` for an edit that goes too far.
    """
    async with refusals_kept(services, reviewer, f"approval:{approval_id}", channel=channel):
        prepared = await prepare(services, approval_id, raw, reviewer)
        async with services.database.transaction("decide") as tx:
            return await record(tx, services, prepared, reviewer, channel=channel)


@asynccontextmanager
async def refusals_kept(services: Services, who: people.User, subject: str, *, channel: str) -> AsyncIterator[None]:
    """Who tried to decide what they may not, or what is not there for them, stands in the audit chain of their tenant."""
    try:
        yield
    except (NotAllowed, NotFound) as error:
        async with services.database.transaction("decision_refused") as tx:
            body = {"channel": channel, "code": error.code, "message": str(error)}
            await audit.append(tx, who.tenant_id, actor=who.user_id, action="refused", subject=subject, body=body)
        raise


async def prepare(services: Services, approval_id: UUID, raw: object, reviewer: people.User) -> Prepared:
    """Read a decision and judge its edit: what needs the tools, outside of any transaction."""
    decision = raw if isinstance(raw, Decision) else read_decision(raw)
    edited: Revision | None = None
    if decision.arguments is not None:
        async with services.database.read() as tx:
            asked = await approvals.get(tx, reviewer.tenant_id, approval_id)
        decisions.check_may_decide(reviewer, asked)
        if asked.status == "pending":
            edited = await prepare_edit(services, asked, decision.arguments)
    return Prepared(approval_id, decision, edited)


async def record(
    tx: Transaction, services: Services, prepared: Prepared, reviewer: people.User, *, channel: str
) -> Decided:
    """Record a decision in the caller's transaction; several of one thread become true together, or none."""
    now = await people.get(tx, reviewer.tenant_id, reviewer.user_id)  # a duty that was taken away counts at once
    return await decisions.decide(
        tx, services.keys, prepared.approval_id, prepared.decision, now, channel=channel, edited=prepared.edited
    )


async def prepare_edit(services: Services, asked: Approval, arguments: Mapping[str, Any]) -> Revision:
    """The revision that a reviewer's new arguments would make: to be shown, then decided with its hash (A8).

    Raises `InvalidDecision` for arguments that the tool does not take, `EditRefused` when they need a higher duty, more
    people or more friction than this approval, are denied, or the tool is gone.
    """
    if asked.tool not in services.registry:
        raise EditRefused(f"The tool {asked.tool} no longer exists; reject it, or bring the tool back.")
    tool = services.registry[asked.tool]
    try:
        edited, raw = validate(tool, arguments)
    except InvalidArguments as error:
        raise InvalidDecision(f"{asked.tool} does not take this: {error}", field=error.details["field"]) from None
    assessed = await assess(services, tool, edited, raw)
    given = Verdict(
        kind="ask",
        rule=asked.rule,
        reason=asked.reason,
        policy_version=asked.policy_version,
        duty=asked.duty,
        quorum=asked.quorum,
        confirm=asked.confirm,  # type: ignore[arg-type]
        policy_error=asked.policy_error,
    )
    if (more := stricter(given, assessed.verdict, duties=services.policy.duties)) is not None:
        raise EditRefused(f"This edit needs more than this approval gives: {more.because}.", rule=assessed.verdict.rule)
    return await draft(assessed)


async def decide_from_resume(
    services: Services, config: RunnableConfig, approval_id: UUID, answer: object
) -> Decided | None:
    """Take a resume value for a decision on the one approval that the interrupt showed.

    Who decides is what authentication says (`langgraph_auth_user_id`), never the value. A value without a hash is about
    what the interrupt shows now. None, an empty answer of a wake-up, decides nothing.
    """
    if answer is None:
        return None
    user_id = config["configurable"].get("langgraph_auth_user_id")
    if not user_id:
        raise NotAllowed("This resume carries a decision, but nobody is authenticated; decide with `placet approve`.")
    async with services.database.read() as tx:
        reviewer = await people.get(tx, config["configurable"]["tenant_id"], str(user_id))
        asked = await approvals.get(tx, reviewer.tenant_id, approval_id)
    if isinstance(answer, dict) and "payload_hash" not in answer:
        answer = {**answer, "payload_hash": asked.payload_hash.hex()}
    return await decide(services, approval_id, answer, reviewer, channel="resume")
