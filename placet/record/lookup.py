"""What people at a command line need of the record: ids by their beginning, and the database's time."""

from datetime import datetime
from typing import Literal, LiteralString
from uuid import UUID

from placet.record.database import Transaction

Kind = Literal["approval", "effect", "thread", "turn"]

_BETWEEN: dict[Kind, LiteralString] = {
    "approval": "select approval_id from approvals where tenant_id = %(tenant)s and approval_id",
    "effect": "select operation_id from effects where tenant_id = %(tenant)s and operation_id",
    "thread": "select thread_id from threads where tenant_id = %(tenant)s and removed_at is null and thread_id",
    "turn": "select turn_id from turns where tenant_id = %(tenant)s and turn_id",
}


async def beginning_with(tx: Transaction, tenant: str, kind: Kind, digits: str, *, limit: int = 10) -> list[UUID]:
    """Ids of the tenant whose hex digits begin with `digits`, in order; a range of the primary key, no scan."""
    rows = await tx.fetch_dicts(
        _BETWEEN[kind] + " between %(first)s and %(last)s order by 1 limit %(limit)s",
        {
            "tenant": tenant,
            "first": UUID(digits.ljust(32, "0")),
            "last": UUID(digits.ljust(32, "f")),
            "limit": limit,
        },
    )
    return [found for row in rows for found in row.values()]


async def now(tx: Transaction) -> datetime:
    """The database's time, by which everything expires."""
    at: datetime = await tx.fetch_value("select clock()")
    return at
