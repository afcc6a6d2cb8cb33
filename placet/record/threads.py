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
