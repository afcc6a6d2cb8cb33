"""Threads: one conversation each, of one requester (A5). Who works on it stands in `runs.py`."""

from uuid import UUID, uuid4

from placet.record import people
from placet.record.database import Transaction


async def create(tx: Transaction, user: people.User, thread_id: UUID | None = None) -> UUID:
    """A thread of the user's; one that exists already is left as it is, whoever owns it."""
    thread_id = thread_id or uuid4()
    await tx.execute(
        """
        insert into threads (thread_id, tenant_id, requester, locale)
        values (%(id)s, %(tenant)s, %(user)s, %(locale)s)
        on conflict do nothing
        """,
        {"id": thread_id, "tenant": user.tenant_id, "user": user.user_id, "locale": user.locale},
    )
    return thread_id


async def requester_of(tx: Transaction, tenant: str, thread_id: UUID) -> str | None:
    """Whose conversation it is; None when there is no such thread in the tenant."""
    requester: str | None = await tx.fetch_value(
        "select requester from threads where thread_id = %(thread)s and tenant_id = %(tenant)s and removed_at is null",
        {"thread": thread_id, "tenant": tenant},
    )
    return requester


async def moved(tx: Transaction, thread_ids: list[UUID]) -> dict[UUID, int]:
    """The number of the last event of each of the threads."""
    rows = await tx.fetch_dicts(
        "select thread_id, seq from threads where thread_id = any(%(threads)s)", {"threads": thread_ids}
    )
    return {row["thread_id"]: row["seq"] for row in rows}
