"""Approvals: asking people to decide one call, and what became of it (A1, A2, A7, A9).

An approval shows a revision: the bytes that would run and the preview of what they do. Deciding stands in
`decisions.py`. Nothing here executes anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from psycopg.types.json import Jsonb

from placet.record import audit, canonical, events, ids, runs
from placet.record.database import Transaction
from placet.record.digests import Keys
from placet.record.errors import NotFound, Tampered
from placet.record.runs import Owned

Status = Literal["pending", "approved", "rejected", "expired", "stale", "superseded", "cancelled", "orphaned"]


@dataclass(frozen=True, slots=True)
class Revision:
    """What people are shown: the bytes that would run, their hash, and the preview of what they do."""

    payload: bytes  # RFC 8785 of {tool, schema_version, arguments, facts}
    preview: dict[str, Any]
    precondition: dict[str, Any]

    @property
    def payload_hash(self) -> bytes:
        """SHA-256 of the payload, 32 bytes (A2)."""
        return canonical.sha256(self.payload)


@dataclass(frozen=True, slots=True)
class Requirement:
    """Who must decide, until when, with how much friction; and which rule says so."""

    rule: str
    reason: str
    duty: str
    quorum: int
    ttl: timedelta
    confirm: str
    policy_version: str
    policy_error: str | None = None


@dataclass(frozen=True, slots=True)
class Approval:
    """An approval with the revision that is pending or was decided, and who decided."""

    approval_id: UUID
    tenant_id: str
    thread_id: UUID
    turn_id: UUID
    item_id: UUID
    ask: int
    status: Status
    revision: int
    payload_hash: bytes
    payload: bytes
    preview: dict[str, Any]
    precondition: dict[str, Any]
    tool: str
    requester: str
    duty: str
    quorum: int
    confirm: str
    rule: str
    reason: str
    policy_version: str
    policy_error: str | None
    rationale: str
    difference: dict[str, Any] | None
    asked_at: datetime
    expires_at: datetime
    decided_at: datetime | None
    closed_because: str | None
    key_id: str
    digest: bytes
    overdue: bool  # by the database's clock
    decided_by: str | None
    decision: str | None
    decision_reason: str | None
    edited: bool
    effect: str | None  # the status of the effect that used it up
    steered_by: list[str]  # who else wrote into the conversation that it comes from; they do not decide it (A5)

    @property
    def content(self) -> dict[str, Any]:
        """`{tool, schema_version, arguments, facts}` as it was shown."""
        content: dict[str, Any] = canonical.parse(self.payload)
        return content

    def verify(self, keys: Keys) -> None:
        """Raise `Tampered` unless the bytes have their hash, the row carries the digest of its own identity, and one that is
        approved has somebody who approved it (V6)."""
        if self.status == "approved" and self.decision not in ("approve", "approve_with_changes"):
            raise Tampered(f"Approval {self.approval_id} is marked as approved, and nobody approved it.")
        if canonical.sha256(self.payload) != self.payload_hash:
            raise Tampered(f"The stored bytes of approval {self.approval_id} do not have their hash.")
        keys.verify(
            self.key_id,
            self.digest,
            "approval",
            *identity(self.approval_id, self.tenant_id, self.thread_id, self.item_id, self.revision, self.payload_hash),
        )


def identity(
    approval_id: UUID, tenant: str, thread_id: UUID, item_id: UUID, revision: int, payload_hash: bytes
) -> tuple[UUID | str | int | bytes, ...]:
    """What the digest of an approval covers."""
    return (approval_id, tenant, thread_id, item_id, revision, payload_hash)


class UnknownApproval(NotFound):
    """There is no such approval, or it belongs to another tenant."""

    code = "unknown_approval"


async def ask(
    tx: Transaction,
    keys: Keys,
    owned: Owned,
    *,
    item_id: UUID,
    number: int,
    tool: str,
    requester: str,
    revision: Revision,
    requirement: Requirement,
    rationale: str,
    difference: Mapping[str, Any] | None = None,
) -> UUID:
    """Ask people, once: the n-th ask of a call that exists already is left as it is (a node may run again)."""
    approval_id = ids.approval_id(item_id, number)
    payload_hash = revision.payload_hash
    inserted = await tx.execute(
        """
        insert into approvals (approval_id, tenant_id, thread_id, turn_id, item_id, ask, payload_hash, tool, requester,
                               duty, quorum, confirm, rule, reason, policy_version, policy_error, rationale, difference,
                               asked_at, expires_at, key_id, digest)
        values (%(id)s, %(tenant)s, %(thread)s, %(turn)s, %(item)s, %(ask)s, %(hash)s, %(tool)s, %(requester)s,
                %(duty)s, %(quorum)s, %(confirm)s, %(rule)s, %(reason)s, %(version)s, %(error)s, %(rationale)s,
                %(difference)s, clock(), clock() + %(ttl)s, %(key)s, %(digest)s)
        on conflict (item_id, ask) do nothing
        """,
        {
            "id": approval_id,
            "tenant": owned.tenant_id,
            "thread": owned.thread_id,
            "turn": owned.turn_id,
            "item": item_id,
            "ask": number,
            "hash": payload_hash,
            "tool": tool,
            "requester": requester,
            "duty": requirement.duty,
            "quorum": requirement.quorum,
            "confirm": requirement.confirm,
            "rule": requirement.rule,
            "reason": requirement.reason,
            "version": requirement.policy_version,
            "error": requirement.policy_error,
            "rationale": rationale,
            "difference": Jsonb(difference) if difference is not None else None,
            "ttl": requirement.ttl,
            "key": keys.key_id,
            "digest": keys.sign(
                "approval", *identity(approval_id, owned.tenant_id, owned.thread_id, item_id, 0, payload_hash)
            ),
        },
    )
    if not inserted:
        return approval_id
    await store_revision(tx, approval_id, 0, revision, made_by="gate")
    await events.append(
        tx,
        owned.thread_id,
        "approval_requested",
        {
            "approval_id": str(approval_id),
            "ask": number,
            "tool": tool,
            "title": revision.preview["title"],
            "duty": requirement.duty,
            "rule": requirement.rule,
            "reason": requirement.reason,
            "difference": difference,
        },
        turn_id=owned.turn_id,
        item_id=item_id,
        epoch=owned.epoch,
    )
    await audit.append(
        tx,
        owned.tenant_id,
        actor="policy",
        action="asked",
        subject=f"approval:{approval_id}",
        body={
            "rule": requirement.rule,
            "policy_version": requirement.policy_version,
            "payload_hash": payload_hash.hex(),
            "preview": revision.preview,
        },
    )
    return approval_id


async def store_revision(tx: Transaction, approval_id: UUID, number: int, revision: Revision, *, made_by: str) -> None:
    """Keep what is shown; it is never changed."""
    await tx.execute(
        """
        insert into approval_revisions (approval_id, revision, payload, payload_hash, preview, precondition, made_by)
        values (%(id)s, %(revision)s, %(payload)s, %(hash)s, %(preview)s, %(precondition)s, %(made_by)s)
        """,
        {
            "id": approval_id,
            "revision": number,
            "payload": revision.payload,
            "hash": revision.payload_hash,
            "preview": Jsonb(revision.preview),
            "precondition": Jsonb(revision.precondition),
            "made_by": made_by,
        },
    )


_APPROVAL = """
    select a.approval_id, a.tenant_id, a.thread_id, a.turn_id, a.item_id, a.ask, a.status, a.revision, a.payload_hash,
           r.payload, r.preview, r.precondition, a.tool, a.requester, a.duty, a.quorum, a.confirm, a.rule, a.reason,
           a.policy_version, a.policy_error, a.rationale, a.difference, a.asked_at, a.expires_at, a.decided_at,
           a.closed_because, a.key_id, a.digest, a.expires_at <= clock() as overdue,
           d.user_id as decided_by, d.kind as decision, d.reason as decision_reason, r.made_by <> 'gate' as edited,
           e.status as effect, t.steered_by
      from approvals a
      join approval_revisions r using (approval_id, revision)
      join threads t on t.thread_id = a.thread_id
      left join lateral (select user_id, kind, reason from decisions v
                          where v.approval_id = a.approval_id and v.revision = a.revision and a.decided_at is not null
                          order by v.decided_at desc limit 1) d on true
      left join effects e on e.approval_id = a.approval_id
"""


async def get(tx: Transaction, tenant: str, approval_id: UUID) -> Approval:
    """The approval; raises `UnknownApproval`, also for another tenant's."""
    approval = await tx.fetch_one(
        Approval,
        _APPROVAL + "where a.approval_id = %(id)s and a.tenant_id = %(tenant)s",
        {"id": approval_id, "tenant": tenant},
    )
    if approval is None:
        raise UnknownApproval(f"There is no approval {approval_id} here; `placet inbox` lists what waits.")
    return approval


async def latest(tx: Transaction, tenant: str, item_id: UUID) -> Approval | None:
    """The last ask for a call, whatever became of it."""
    return await tx.fetch_one(
        Approval,
        _APPROVAL + "where a.item_id = %(item)s and a.tenant_id = %(tenant)s order by a.ask desc limit 1",
        {"item": item_id, "tenant": tenant},
    )


async def waiting(tx: Transaction, tenant: str, *, limit: int = 100, turn_id: UUID | None = None) -> list[Approval]:
    """What waits for people, what expires first at the top."""
    return await tx.fetch_all(
        Approval,
        _APPROVAL
        + """
        where a.tenant_id = %(tenant)s and a.status = 'pending' and (%(turn)s::uuid is null or a.turn_id = %(turn)s)
        order by a.expires_at, a.approval_id
        limit %(limit)s
        """,
        {"tenant": tenant, "limit": limit, "turn": turn_id},
    )


async def close(
    tx: Transaction,
    owned: Owned,
    approval: Approval,
    status: Literal["expired", "stale", "superseded", "cancelled", "orphaned"],
    *,
    because: str,
) -> bool:
    """Close an approval that was not used up; False when it no longer stood as it was read."""
    closed = await tx.execute(
        """
        update approvals a set status = %(status)s, closed_at = clock(), closed_because = %(because)s
         where approval_id = %(id)s and status = %(was)s
           and not exists (select 1 from effects e where e.approval_id = a.approval_id and e.status <> 'absent')
        """,
        {"id": approval.approval_id, "status": status, "because": because, "was": approval.status},
    )
    if closed:
        await events.append(
            tx,
            owned.thread_id,
            "approval_closed",
            {"approval_id": str(approval.approval_id), "status": status, "because": because},
            turn_id=owned.turn_id,
            item_id=approval.item_id,
            epoch=owned.epoch,
        )
    return bool(closed)


async def orphan(tx: Transaction, owned: Owned, item_id: UUID, *, because: str) -> None:
    """Nothing leads to this call any more (G8): what was asked about it is closed. The caller fenced."""
    asked = await latest(tx, owned.tenant_id, item_id)
    if asked is not None and asked.status in ("pending", "approved"):
        await close(tx, owned, asked, "orphaned", because=because)


async def expire_due(tx: Transaction, tenant: str) -> int:
    """Expire what is overdue, each exactly once, and wake its run (A9); how many. Several sweepers may look at once."""
    due = await tx.fetch_dicts(
        """
        select a.approval_id, a.thread_id, a.turn_id, a.item_id
          from approvals a join threads t using (thread_id)
         where a.tenant_id = %(tenant)s and a.status = 'pending' and a.expires_at <= clock()
         order by a.expires_at
         limit 100
           for no key update of t skip locked
        """,
        {"tenant": tenant},
    )
    expired = 0
    for row in due:
        if await tx.execute(
            """
            update approvals set status = 'expired', closed_at = clock(), closed_because = 'nobody decided in time'
             where approval_id = %(approval_id)s and status = 'pending' and expires_at <= clock()
            """,
            row,
        ):
            expired += 1
            await events.append(
                tx,
                row["thread_id"],
                "approval_closed",
                {"approval_id": str(row["approval_id"]), "status": "expired", "because": "nobody decided in time"},
                turn_id=row["turn_id"],
                item_id=row["item_id"],
            )
            await runs.make_due(tx, tenant, row["thread_id"], row["turn_id"], because=f"expired:{row['approval_id']}")
    return expired
