"""Threads: one conversation each, of one requester (A5). Who works on it stands in `runs.py`.

What a client sees of a thread's state of affairs is read from its turns and runs: `busy` while a run is due or runs,
`interrupted` while its turn waits for people, `error` after one that failed, else `idle`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, LiteralString
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from placet.record import audit, people
from placet.record.database import Transaction
from placet.record.errors import Conflict, InvalidInput, NotAllowed, NotFound

Status = Literal["idle", "busy", "interrupted", "error"]
MAX_METADATA = 256 * 1024  # bytes to which clients can make a thread's metadata grow, patch by patch
SortBy = Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"]


class NoSuchThread(NotFound):
    """There is no such thread, or it belongs to somebody else; for a client's eyes the answer is the same."""

    code = "unknown_thread"


class ThreadExists(Conflict):
    """The id is taken; `if_exists: do_nothing` takes the thread as it is."""

    code = "thread_exists"


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread as its rows say now."""

    thread_id: UUID
    tenant_id: str
    requester: str
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    status: Status
    turn_id: UUID | None
    turn_status: str | None
    error: dict[str, Any] | None


async def create(
    tx: Transaction, user: people.User, thread_id: UUID | None = None, *, metadata: Mapping[str, Any] | None = None
) -> UUID:
    """A thread of the user's; one that exists already is left as it is, whoever owns it."""
    thread_id = thread_id or uuid4()
    await insert(tx, user, thread_id, metadata=metadata or {})
    return thread_id


async def insert(tx: Transaction, user: people.User, thread_id: UUID, *, metadata: Mapping[str, Any]) -> bool:
    """Make the thread unless the id is taken; whether it was made."""
    return bool(
        await tx.execute(
            """
            insert into threads (thread_id, tenant_id, requester, locale, metadata)
            values (%(id)s, %(tenant)s, %(user)s, %(locale)s, %(metadata)s)
            on conflict do nothing
            """,
            {
                "id": thread_id,
                "tenant": user.tenant_id,
                "user": user.user_id,
                "locale": user.locale,
                "metadata": Jsonb(dict(metadata)),
            },
        )
    )


_THREAD = """
    select t.thread_id, t.tenant_id, t.requester, t.metadata, t.created_at,
           greatest(t.created_at, u.updated_at) as updated_at, s.status, u.turn_id, u.status as turn_status, u.error
      from threads t
      left join lateral (
          select turn_id, status, error, updated_at from turns
           where thread_id = t.thread_id
           order by status <> 'created' desc, ordinal desc
           limit 1) u on true
      cross join lateral (
          select case
              when exists (select 1 from runs r join turns c using (turn_id)
                            where r.thread_id = t.thread_id and r.status <> 'ended' and c.status <> 'paused'
                              and (c.status <> 'created'
                                   or u.status not in ('awaiting_approval', 'awaiting_reconciliation', 'paused')))
                   then 'busy'
              when u.status in ('awaiting_approval', 'awaiting_reconciliation', 'paused') then 'interrupted'
              when u.status in ('failed', 'exhausted') then 'error'
              else 'idle'
          end as status) s
     where t.tenant_id = %(tenant)s and t.removed_at is null
       and (%(viewer)s::text is null or t.requester = %(viewer)s)
"""


def viewer(user: people.User) -> str | None:
    """Whose threads somebody sees: who decides, operates or audits sees the tenant's, who only asks their own."""
    return None if any(user.is_a(role) for role in ("reviewer", "operator", "auditor")) else user.user_id


async def get(tx: Transaction, user: people.User, thread_id: UUID) -> Thread:
    """The thread, when the user may see it; raises `NoSuchThread`."""
    thread = await tx.fetch_one(
        Thread,
        _THREAD + "and t.thread_id = %(thread)s",
        {"tenant": user.tenant_id, "viewer": viewer(user), "thread": thread_id},
    )
    if thread is None:
        raise NoSuchThread(f"There is no thread {thread_id} that you may see.", thread_id=str(thread_id))
    return thread


_FILTER = """
       and (%(status)s::text is null or s.status = %(status)s)
       and t.metadata @> %(metadata)s
       and (%(owner)s::jsonb is null or to_jsonb(t.requester) = %(owner)s)
       and (%(ids)s::uuid[] is null or t.thread_id = any (%(ids)s))
"""
_ORDER: dict[SortBy, LiteralString] = {
    "thread_id": "t.thread_id",
    "status": "s.status",
    "created_at": "t.created_at",
    "updated_at": "greatest(t.created_at, u.updated_at)",
    "state_updated_at": "greatest(t.created_at, u.updated_at)",
}


async def search(
    tx: Transaction,
    user: people.User,
    *,
    status: Status | None,
    metadata: Mapping[str, Any],
    ids: Sequence[UUID] | None,
    sort_by: SortBy = "created_at",
    descending: bool = True,
    limit: int,
    offset: int,
) -> list[Thread]:
    """Threads that the user may see and that fit."""
    direction: LiteralString = "desc" if descending else "asc"
    return await tx.fetch_all(
        Thread,
        _THREAD
        + _FILTER
        + "order by "
        + _ORDER[sort_by]
        + " "
        + direction
        + ", t.thread_id limit %(limit)s offset %(offset)s",
        {**_filter(user, status, metadata, ids), "limit": limit, "offset": offset},
    )


async def count(
    tx: Transaction,
    user: people.User,
    *,
    status: Status | None,
    metadata: Mapping[str, Any],
    ids: Sequence[UUID] | None,
) -> int:
    """How many threads `search` would find."""
    found: int = await tx.fetch_value(
        "select count(*) from (" + _THREAD + _FILTER + ") found",  # noqa: S608  # constants
        _filter(user, status, metadata, ids),
    )
    return found


def _filter(
    user: people.User, status: Status | None, metadata: Mapping[str, Any], ids: Sequence[UUID] | None
) -> dict[str, Any]:
    said = dict(metadata)
    owner = Jsonb(said.pop("owner")) if "owner" in said else None  # the row's, not the client's word
    return {
        "owner": owner,
        "tenant": user.tenant_id,
        "viewer": viewer(user),
        "status": status,
        "metadata": Jsonb(said),
        "ids": list(ids) if ids is not None else None,
    }


async def add_metadata(
    tx: Transaction, user: people.User, thread_id: UUID, metadata: Mapping[str, Any], *, most: int | None = None
) -> Thread:
    """Merge metadata into the owner's thread. Raises `InvalidInput` when that would make more than `most` bytes (L5)."""
    await _check_owner(tx, user, thread_id, "changed")
    added = await tx.execute(
        """
        update threads set metadata = metadata || %(metadata)s
         where thread_id = %(thread)s
           and (%(most)s::int is null or octet_length((metadata || %(metadata)s)::text) <= %(most)s)
        """,
        {"metadata": Jsonb(dict(metadata)), "thread": thread_id, "most": most},
    )
    if not added:
        raise InvalidInput(f"A thread's metadata have at most {most:,} bytes in all.", field="metadata")
    return await get(tx, user, thread_id)


async def steer(tx: Transaction, user: people.User, thread_id: UUID) -> None:
    """Remember that the user wrote into the conversation: what is asked in it is theirs too, and not theirs to decide (A5)."""
    await tx.execute(
        """
        update threads set steered_by = steered_by || %(user)s::text
         where thread_id = %(thread)s and %(user)s <> all (steered_by)
        """,
        {"user": user.user_id, "thread": thread_id},
    )


async def remove(tx: Transaction, user: people.User, thread_id: UUID) -> None:
    """A tombstone: the thread is shown no more. Effects, audit and what still waits for people stay (L1, V3)."""
    await _check_owner(tx, user, thread_id, "removed")
    await tx.execute("update threads set removed_at = clock() where thread_id = %(thread)s", {"thread": thread_id})
    await audit.append(tx, user.tenant_id, actor=user.user_id, action="removed", subject=f"thread:{thread_id}", body={})


async def _check_owner(tx: Transaction, user: people.User, thread_id: UUID, what: str) -> None:
    thread = await get(tx, user, thread_id)
    if thread.requester != user.user_id and not user.is_a("operator"):
        raise NotAllowed(f"The thread is {thread.requester}'s; it is {what} by them or by an operator.")
