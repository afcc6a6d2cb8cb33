"""Lists, page by page: turns, approvals and effects of a tenant, by filters, from where the last page ended.

A page begins behind a key (time and id of the last row), never at an offset, so that what is added meanwhile neither
repeats nor hides a row. `requester` narrows to what one person asked for.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString
from uuid import UUID

from placet.record.approvals import _APPROVAL, Approval
from placet.record.database import Transaction
from placet.record.effects import _EFFECT, Effect
from placet.record.turns import _TURN, Turn


@dataclass(frozen=True, slots=True)
class Key:
    """Where a page ended."""

    at: datetime
    id: UUID


async def turns(
    tx: Transaction,
    tenant: str,
    *,
    limit: int,
    after: Key | None = None,
    requester: str | None = None,
    status: str | None = None,
    thread_id: UUID | None = None,
) -> list[Turn]:
    """Turns, the newest first."""
    return await tx.fetch_all(
        Turn,
        _TURN
        + """
         where u.tenant_id = %(tenant)s
           and (%(at)s::timestamptz is null or (u.created_at, u.turn_id) < (%(at)s, %(id)s))
           and (%(requester)s::text is null or t.requester = %(requester)s)
           and (%(status)s::text is null or u.status = %(status)s)
           and (%(thread)s::uuid is null or u.thread_id = %(thread)s)
         order by u.created_at desc, u.turn_id desc
         limit %(limit)s
        """,
        {
            "tenant": tenant,
            "limit": limit,
            "at": after.at if after else None,
            "id": after.id if after else None,
            "requester": requester,
            "status": status,
            "thread": thread_id,
        },
    )


async def approvals(
    tx: Transaction,
    tenant: str,
    *,
    limit: int,
    after: Key | None = None,
    requester: str | None = None,
    status: str | None = None,
    turn_id: UUID | None = None,
    thread_id: UUID | None = None,
    tool: str | None = None,
    duties: list[str] | None = None,
    not_of: str | None = None,
) -> list[Approval]:
    """Approvals: what is pending by what expires first, anything else by what was asked last.

    `duties` and `not_of` narrow to what a person with these duties, who did not ask for it, may decide.
    """
    order: LiteralString = (
        """
           and (%(at)s::timestamptz is null or (a.expires_at, a.approval_id) > (%(at)s, %(id)s))
         order by a.expires_at, a.approval_id
         limit %(limit)s
        """
        if status == "pending"
        else """
           and (%(at)s::timestamptz is null or (a.asked_at, a.approval_id) < (%(at)s, %(id)s))
         order by a.asked_at desc, a.approval_id desc
         limit %(limit)s
        """
    )
    return await tx.fetch_all(
        Approval,
        _APPROVAL
        + """
         where a.tenant_id = %(tenant)s
           and (%(status)s::text is null or a.status = %(status)s)
           and (%(requester)s::text is null or a.requester = %(requester)s)
           and (%(turn)s::uuid is null or a.turn_id = %(turn)s)
           and (%(thread)s::uuid is null or a.thread_id = %(thread)s)
           and (%(tool)s::text is null or a.tool = %(tool)s)
           and (%(duties)s::text[] is null or a.duty = any(%(duties)s))
           and (%(not_of)s::text is null or %(not_of)s <> all (t.steered_by || a.requester))
        """
        + order,
        {
            "tenant": tenant,
            "limit": limit,
            "at": after.at if after else None,
            "id": after.id if after else None,
            "requester": requester,
            "status": status,
            "turn": turn_id,
            "thread": thread_id,
            "tool": tool,
            "duties": duties,
            "not_of": not_of,
        },
    )


async def effects(
    tx: Transaction,
    tenant: str,
    *,
    limit: int,
    after: Key | None = None,
    requester: str | None = None,
    status: str | None = None,
    turn_id: UUID | None = None,
    tool: str | None = None,
) -> list[Effect]:
    """Effects, the one that left last first."""
    return await tx.fetch_all(
        Effect,
        _EFFECT  # noqa: S608  # two constants; every value is a parameter
        + """
         where tenant_id = %(tenant)s
           and (%(at)s::timestamptz is null or (first_dispatched_at, operation_id) < (%(at)s, %(id)s))
           and (%(requester)s::text is null
                or exists (select 1 from threads t where t.thread_id = effects.thread_id and t.requester = %(requester)s))
           and (%(status)s::text is null or status = %(status)s)
           and (%(turn)s::uuid is null or turn_id = %(turn)s)
           and (%(tool)s::text is null or tool = %(tool)s)
         order by first_dispatched_at desc, operation_id desc
         limit %(limit)s
        """,
        {
            "tenant": tenant,
            "limit": limit,
            "at": after.at if after else None,
            "id": after.id if after else None,
            "requester": requester,
            "status": status,
            "turn": turn_id,
            "tool": tool,
        },
    )


async def requester_of(tx: Transaction, tenant: str, thread_id: UUID) -> str | None:
    """Whose conversation it is; None when there is no such thread in the tenant."""
    requester: str | None = await tx.fetch_value(
        "select requester from threads where thread_id = %(thread)s and tenant_id = %(tenant)s and removed_at is null",
        {"thread": thread_id, "tenant": tenant},
    )
    return requester
