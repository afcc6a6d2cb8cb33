"""Decide an approval.

The first valid decision wins, by one conditional update (A3); the decision and the run that acts on it are one
transaction (A4). Whoever asks, by whichever door, ends here: the command line, the notebook, the server's endpoints, the
node itself. Nothing in this module executes anything.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from placet.record import approvals, audit, canonical, events, people, runs
from placet.record.approvals import Approval, Revision
from placet.record.database import Transaction
from placet.record.digests import Keys
from placet.record.errors import Conflict, InvalidInput, NotAllowed

Kind = Literal["approve", "approve_with_changes", "reject"]


class Decision(BaseModel):
    """What a person decided about what they saw."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Kind
    payload_hash: str = Field(pattern=r"^[0-9a-f]{64}$")  # of what was shown, hex
    reason: str | None = Field(default=None, max_length=4000)
    arguments: dict[str, Any] | None = None  # with approve_with_changes

    @model_validator(mode="after")
    def _complete(self) -> "Decision":
        if self.kind == "reject" and not (self.reason or "").strip():
            raise ValueError("a rejection needs a reason: it is what the agent is told")
        canonical.check_plain(self.reason, "reason")
        if (self.kind == "approve_with_changes") != (self.arguments is not None):
            raise ValueError("arguments go with approve_with_changes, and with nothing else")
        return self


class InvalidDecision(InvalidInput):
    """The decision cannot be read; the approval is as answerable as before (A6)."""

    code = "invalid_decision"


class NotTheSameRequest(Conflict):
    """What was decided about is not what is pending now; the details carry the hash of that (A2, I5)."""

    code = "not_the_same_request"


class AlreadyDecided(Conflict):
    """Somebody else decided, or it was closed; the details carry the stored outcome (A3)."""

    code = "already_decided"


class ApprovalExpired(Conflict):
    """Nobody decided in time; a late decision changes nothing (A9)."""

    code = "approval_expired"


@dataclass(frozen=True, slots=True)
class Decided:
    """The outcome as it is stored. `first` says whether this call made it."""

    approval_id: UUID
    status: approvals.Status
    decision: str | None
    decided_by: str | None
    decided_at: datetime | None
    reason: str | None
    payload_hash: str
    effect: str | None  # dispatched, committed … once it was used
    first: bool

    def public(self) -> dict[str, Any]:
        """As every interface answers it."""
        return {
            "approval_id": str(self.approval_id),
            "status": self.status,
            "decision": self.decision,
            "decided_by": self.decided_by,
            "decided_at": self.decided_at.isoformat() if self.decided_at else None,
            "reason": self.reason,
            "payload_hash": self.payload_hash,
            "effect": self.effect,
        }


def read_decision(raw: object) -> Decision:
    """A decision from whatever somebody sent; raises `InvalidDecision`, which names what was expected and what came."""
    if not isinstance(raw, dict):
        raise InvalidDecision(
            'A decision is an object: {"kind": "approve" | "approve_with_changes" | "reject", "payload_hash": …, '
            f'"reason": …}}; got {type(raw).__name__}.'
        )
    try:
        return Decision.model_validate(raw)
    except canonical.NotPlain as error:
        raise InvalidDecision(f"The decision cannot be read: {error}.") from None
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(ascii(part)[1:-1] for part in map(str, problem['loc'])) or 'decision'}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        )
        raise InvalidDecision(f"The decision cannot be read: {problems[:2000]}.") from None


async def decide(
    tx: Transaction,
    keys: Keys,
    approval_id: UUID,
    decision: Decision,
    reviewer: people.User,
    *,
    channel: str,
    edited: Revision | None = None,
) -> Decided:
    """Record `decision` and make the run due that acts on it.

    Returns the stored outcome; the same decision by the same reviewer is answered with the same outcome (a double click
    is no error). `edited` is the revision that `graph.edits.prepare` made of the decision's arguments.

    Raises `NotAllowed` when the reviewer lacks the duty or asked for the call themselves (A5), `NotTheSameRequest` when
    the hash is not that of what is pending now (A2, I5), `ApprovalExpired`, or `AlreadyDecided` with the outcome.
    """
    approval = await _get_for_decision(tx, reviewer.tenant_id, approval_id)
    check_may_decide(reviewer, approval)
    payload_hash = bytes.fromhex(decision.payload_hash)

    if approval.status != "pending":
        if approval.decided_by == reviewer.user_id and _is_the_same(approval, decision):
            return outcome(approval, first=False)
        raise _too_late(approval)
    if approval.overdue:
        raise ApprovalExpired(
            f"It expired at {approval.expires_at:%Y-%m-%d %H:%M} UTC, before this decision; nothing was executed.",
            outcome=outcome(approval, first=False).public(),
        )
    revision = approval.revision
    if edited is not None:
        if edited.payload_hash != payload_hash:
            raise _not_the_same(approval, "The edit that was previewed is not the one that would run now")
        revision += 1
        await _adopt(tx, keys, approval, revision, edited, reviewer)
    elif payload_hash != approval.payload_hash:
        raise _not_the_same(approval, "What you decided about is not what is pending now")
    approval.verify(keys)

    if not await _insert_vote(tx, approval, revision, payload_hash, decision, reviewer, channel):
        return await _voted_before(tx, approval, decision, reviewer)
    await _settle(tx, approval_id, revision)
    decided = outcome(await approvals.get(tx, reviewer.tenant_id, approval_id), first=True)
    await _tell(tx, approval, decided, decision, reviewer, channel, revision)
    return decided


async def _get_for_decision(tx: Transaction, tenant: str, approval_id: UUID) -> Approval:
    """Lock thread, then approval, and read it as it is now."""
    thread_id = (await approvals.get(tx, tenant, approval_id)).thread_id
    await runs.lock_thread(tx, thread_id)
    await tx.execute("select 1 from approvals where approval_id = %(id)s for no key update", {"id": approval_id})
    return await approvals.get(tx, tenant, approval_id)


def check_may_decide(reviewer: people.User, approval: Approval) -> None:
    """Raise `NotAllowed` unless the reviewer has the duty and had no part in asking for the call (A5)."""
    if reviewer.user_id == approval.requester:
        raise NotAllowed("It is your own request; somebody else has to decide it.", duty=approval.duty)
    if reviewer.user_id in approval.steered_by:
        raise NotAllowed(
            "You wrote into the conversation that it comes from; somebody else has to decide it.", duty=approval.duty
        )
    if not reviewer.is_a("reviewer"):
        raise NotAllowed(f"{reviewer.user_id} is no reviewer.", duty=approval.duty)
    if approval.duty not in reviewer.duties:
        raise NotAllowed(
            f"This needs the duty {approval.duty!r}; {reviewer.user_id} has {', '.join(reviewer.duties) or 'none'}.",
            duty=approval.duty,
        )


def _is_the_same(approval: Approval, decision: Decision) -> bool:
    return approval.decision == decision.kind and approval.payload_hash.hex() == decision.payload_hash


def _too_late(approval: Approval) -> AlreadyDecided:
    decided = approval.status in ("approved", "rejected")  # what was closed later was not closed by who had decided it
    by = f" by {approval.decided_by}" if decided and approval.decided_by else ""
    effect = {
        "dispatched": "It is being executed.",
        "committed": "It was executed.",
        "unknown": "It was sent; what became of it is being looked up.",
    }.get(approval.effect or "", "")
    return AlreadyDecided(
        f"It was {approval.status}{by} before. {effect}".strip(), outcome=outcome(approval, first=False).public()
    )


def _not_the_same(approval: Approval, what: str) -> NotTheSameRequest:
    return NotTheSameRequest(
        f"{what}: look at it again, then decide. Nothing was recorded.", pending_hash=approval.payload_hash.hex()
    )


async def _adopt(
    tx: Transaction, keys: Keys, approval: Approval, number: int, edited: Revision, reviewer: people.User
) -> None:
    """An edit is the next revision; earlier votes were about another one (A3, A8)."""
    await approvals.store_revision(tx, approval.approval_id, number, edited, made_by=reviewer.user_id)
    await tx.execute(
        """
        update approvals set revision = %(revision)s, payload_hash = %(hash)s, key_id = %(key)s, digest = %(digest)s
         where approval_id = %(id)s and status = 'pending'
        """,
        {
            "id": approval.approval_id,
            "revision": number,
            "hash": edited.payload_hash,
            "key": keys.key_id,
            "digest": keys.sign(
                "approval",
                *approvals.identity(
                    approval.approval_id,
                    approval.tenant_id,
                    approval.thread_id,
                    approval.item_id,
                    number,
                    edited.payload_hash,
                ),
            ),
        },
    )


async def _insert_vote(
    tx: Transaction,
    approval: Approval,
    revision: int,
    payload_hash: bytes,
    decision: Decision,
    reviewer: people.User,
    channel: str,
) -> bool:
    """One vote per person and revision; False when this person voted before."""
    inserted = await tx.execute(
        """
        insert into decisions (approval_id, revision, user_id, tenant_id, kind, payload_hash, reason, channel)
        values (%(approval)s, %(revision)s, %(user)s, %(tenant)s, %(kind)s, %(hash)s, %(reason)s, %(channel)s)
        on conflict on constraint a3_one_vote_per_person_and_revision do nothing
        """,
        {
            "approval": approval.approval_id,
            "revision": revision,
            "user": reviewer.user_id,
            "tenant": reviewer.tenant_id,
            "kind": decision.kind,
            "hash": payload_hash,
            "reason": decision.reason,
            "channel": channel,
        },
    )
    return bool(inserted)


async def _voted_before(tx: Transaction, approval: Approval, decision: Decision, reviewer: people.User) -> Decided:
    """Still pending, since others must decide too: the same vote again is no error, another one is."""
    kind = await tx.fetch_value(
        "select kind from decisions where approval_id = %(id)s and revision = %(revision)s and user_id = %(user)s",
        {"id": approval.approval_id, "revision": approval.revision, "user": reviewer.user_id},
    )
    if kind == decision.kind:
        return outcome(approval, first=False)
    raise AlreadyDecided(
        f"You voted {kind} before; others have to decide now.", outcome=outcome(approval, first=False).public()
    )


async def _settle(tx: Transaction, approval_id: UUID, revision: int) -> None:
    """Count the votes; the one that completes the quorum, or the first rejection, settles it."""
    await tx.execute(
        """
        with votes as (
            select count(*) filter (where kind <> 'reject') as yes,
                   count(*) filter (where kind = 'reject')  as no
              from decisions
             where approval_id = %(id)s and revision = %(revision)s
        ), settled as (
            update approvals
               set status = case when no > 0 then 'rejected' else 'approved' end, decided_at = clock()
              from votes
             where approval_id = %(id)s
               and status = 'pending'
               and expires_at > clock()
               and (no > 0 or yes >= quorum)
            returning item_id, status
        )
        update plan_items set status = 'approved'
          from settled
         where plan_items.item_id = settled.item_id and settled.status = 'approved'
        """,
        {"id": approval_id, "revision": revision},
    )


async def _tell(
    tx: Transaction,
    approval: Approval,
    decided: Decided,
    decision: Decision,
    reviewer: people.User,
    channel: str,
    revision: int,
) -> None:
    """The timeline, the run that acts on it, the audit chain: all in the decision's own transaction (A4)."""
    await events.append(
        tx,
        approval.thread_id,
        "approval_decided",
        {**decided.public(), "by": reviewer.user_id, "kind": decision.kind, "channel": channel, "revision": revision},
        turn_id=approval.turn_id,
        item_id=approval.item_id,
    )
    if decided.status != "pending":
        await runs.make_due(
            tx, approval.tenant_id, approval.thread_id, approval.turn_id, because=f"decision:{approval.approval_id}"
        )
    shown = await approvals.get(tx, approval.tenant_id, approval.approval_id)
    await audit.append(
        tx,
        approval.tenant_id,
        actor=reviewer.user_id,
        action=decision.kind,
        subject=f"approval:{approval.approval_id}",
        body={
            "channel": channel,
            "revision": revision,
            "payload_hash": decided.payload_hash,
            "payload": canonical.parse(shown.payload),
            "preview": shown.preview,
            "reason": decision.reason,
            "status": decided.status,
        },
    )


def outcome(approval: Approval, *, first: bool) -> Decided:
    """What is stored about an approval, as an answer."""
    return Decided(
        approval_id=approval.approval_id,
        status=approval.status,
        decision=approval.decision,
        decided_by=approval.decided_by,
        decided_at=approval.decided_at,
        reason=approval.decision_reason,
        payload_hash=approval.payload_hash.hex(),
        effect=approval.effect,
        first=first,
    )
