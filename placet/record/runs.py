"""Who works on a thread: runs, claims, leases, epochs (O1–O3).

A run is due, is claimed by a worker under a new epoch, and is released. One running run per thread is a unique index;
a lease that lapses lets the next worker take the same run up under a higher epoch, after which the first can write
nothing. Whatever makes a run due does so in the transaction that caused it (A4), so that nothing is forgotten.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID, uuid4

import psycopg

from placet.record.database import Transaction
from placet.record.errors import StaleEpoch
from placet.record.events import STALE

CHANNEL = "placet_due"  # NOTIFY when a run becomes due; a poll finds what a lost notice did not say


@dataclass(frozen=True, slots=True)
class Owned:
    """A claim: this run owns the thread under this epoch until another one does."""

    run_id: UUID
    tenant_id: str
    thread_id: UUID
    turn_id: UUID
    epoch: int
    attempt: int
    because: str


async def make_due(
    tx: Transaction, tenant: str, thread_id: UUID, turn_id: UUID, *, because: str, after: timedelta = timedelta(0)
) -> None:
    """Make a run of the turn due, in the caller's transaction. Two knocks before the claim are one run, at the earlier
    time and for the first reason, unless a later one says that a person steers."""
    await tx.execute(
        """
        insert into runs (run_id, tenant_id, thread_id, turn_id, because, due_at)
        values (%(run)s, %(tenant)s, %(thread)s, %(turn)s, %(because)s, clock() + %(after)s)
        on conflict (turn_id) where status = 'due'
        do update set due_at = least(runs.due_at, excluded.due_at),
                      because = case when excluded.because similar to 'retry|migrate|resolved:%%'
                                      and runs.because not in ('retry', 'migrate')
                                     then excluded.because else runs.because end
        """,
        {
            "run": uuid4(),
            "tenant": tenant,
            "thread": thread_id,
            "turn": turn_id,
            "because": because,
            "after": after,
        },
    )
    await notify(tx, thread_id)


async def notify(tx: Transaction, thread_id: UUID) -> None:
    """Knock at the workers' door when this transaction commits."""
    await tx.execute("select pg_notify(%(channel)s, %(thread)s)", {"channel": CHANNEL, "thread": str(thread_id)})


async def claim(
    tx: Transaction, tenant: str, *, owner: str, lease: timedelta, thread_id: UUID | None = None
) -> Owned | None:
    """Claim the run that has been due longest, or one whose worker's lease lapsed; None when there is nothing.

    Raises the thread's epoch. A turn that was only created starts when no other of its thread has started (T4) and the
    closing run of a cancelled one is over, since a new turn's input would throw away what is still open there (T3); a
    paused one is left alone (T2). A run that was claimed keeps its place when its worker dies: until it is taken up, the
    thread is nobody else's. One statement; `skip locked` lets many workers look at once.
    """
    return await tx.fetch_one(
        Owned,
        """
        with candidate as (
            select r.run_id, r.thread_id
              from runs r
              join threads t using (thread_id)
              join turns u using (turn_id)
             where r.status <> 'ended'
               and r.tenant_id = %(tenant)s
               and (%(thread)s::uuid is null or r.thread_id = %(thread)s)
               and (   (r.status = 'due' and r.due_at <= clock() and t.owner is null)
                    or (r.status = 'running' and t.lease_until < clock()))
               and u.status <> 'paused'
               and (u.status <> 'created'
                    or r.status = 'running'
                    or not exists (select 1 from turns o
                                    where o.thread_id = r.thread_id
                                      and (   o.status in ('running', 'awaiting_approval', 'awaiting_reconciliation', 'paused')
                                           or o.status <> 'created'
                                              and exists (select 1 from runs c
                                                           where c.turn_id = o.turn_id and c.status <> 'ended'))))
             order by r.due_at, u.ordinal
             limit 1
               for no key update of t, r skip locked
        ), claimed as (
            update threads t
               set epoch = t.epoch + 1, owner = %(owner)s, lease_until = clock() + %(lease)s
              from candidate c
             where t.thread_id = c.thread_id
            returning t.thread_id, t.epoch
        )
        update runs r
           set status = 'running', epoch = c.epoch, attempt = r.attempt + 1, started_at = coalesce(r.started_at, clock())
          from candidate n join claimed c using (thread_id)
         where r.run_id = n.run_id
        returning r.run_id, r.tenant_id, r.thread_id, r.turn_id, r.epoch, r.attempt, r.because
        """,
        {"tenant": tenant, "owner": owner, "lease": lease, "thread": thread_id},
    )


async def renew(tx: Transaction, owned: Owned, *, lease: timedelta) -> None:
    """Keep the lease alive; raises `StaleEpoch` when another run owns the thread now."""
    renewed = await tx.execute(
        """
        update threads set lease_until = clock() + %(lease)s
         where thread_id = %(thread)s and epoch = %(epoch)s and owner is not null
        """,
        {"lease": lease, "thread": owned.thread_id, "epoch": owned.epoch},
    )
    if not renewed:
        raise StaleEpoch(f"The lease on thread {owned.thread_id} was lost; epoch {owned.epoch} is over.")


async def release(tx: Transaction, owned: Owned, *, outcome: str) -> None:
    """End the run and let the thread go. What became due meanwhile is knocked for in the same transaction (O1)."""
    freed = await tx.execute(
        """
        with freed as (
            update threads set owner = null, lease_until = null
             where thread_id = %(thread)s and epoch = %(epoch)s
            returning thread_id
        )
        update runs set status = 'ended', outcome = %(outcome)s, ended_at = clock()
          from freed
         where run_id = %(run)s
        """,
        {"thread": owned.thread_id, "epoch": owned.epoch, "run": owned.run_id, "outcome": outcome},
    )
    if not freed:
        raise StaleEpoch(f"Thread {owned.thread_id} belongs to another run; epoch {owned.epoch} is over.")
    await tx.execute(
        """
        select pg_notify(%(channel)s, %(text)s)
         where exists (select 1 from runs where thread_id = %(thread)s and status = 'due')
        """,
        {"channel": CHANNEL, "text": str(owned.thread_id), "thread": owned.thread_id},
    )


async def fence(tx: Transaction, owned: Owned) -> None:
    """Raise `StaleEpoch` unless the run still owns its thread; holds that true until the transaction ends (O2).

    Takes the lock that an event would take, so that a transaction which appends one later does not upgrade it.
    """
    held = await tx.execute(
        "select 1 from threads where thread_id = %(thread)s and epoch = %(epoch)s for no key update",
        {"thread": owned.thread_id, "epoch": owned.epoch},
    )
    if not held:
        raise StaleEpoch(f"Thread {owned.thread_id} belongs to another run; epoch {owned.epoch} is over.")


async def lock_thread(tx: Transaction, thread_id: UUID) -> None:
    """First in the lock order, for deciders and sweepers, who hold no epoch."""
    await tx.execute("select 1 from threads where thread_id = %(thread)s for no key update", {"thread": thread_id})


@dataclass(frozen=True, slots=True)
class Standing:
    """Who works on a turn, or that somebody should. `since` is when the run became due, was first claimed, or, where the
    worker's lease has lapsed, until when that worker was heard of."""

    status: Literal["due", "running"]
    worker: str | None
    lapsed: bool  # the worker is dead or cut off; the next one takes the run up
    since: datetime
    behind: UUID | None  # the turn of the same thread that has to end before


async def standing(tx: Transaction, turn_id: UUID) -> Standing | None:
    """How it stands with the turn's open run; None where there is nothing to do (T5)."""
    return await tx.fetch_one(
        Standing,
        """
        select r.status,
               case when r.status = 'running' then t.owner end as worker,
               r.status = 'running' and t.lease_until < clock() as lapsed,
               case when r.status = 'due' then r.due_at
                    when t.lease_until < clock() then t.lease_until
                    else r.started_at end as since,
               case when r.status = 'due' then
                   (select o.turn_id from turns o
                     where o.thread_id = r.thread_id and o.turn_id <> r.turn_id
                       and o.status in ('running', 'awaiting_approval', 'awaiting_reconciliation', 'paused')
                     limit 1) end as behind
          from runs r join threads t using (thread_id)
         where r.turn_id = %(turn)s and r.status <> 'ended'
         order by r.status = 'running' desc
         limit 1
        """,
        {"turn": turn_id},
    )


async def make_parked_due(tx: Transaction, tenant: str) -> int:
    """Find turns that nobody works on and that nobody has to be waited for, and make them due (O3); how many."""
    return await tx.execute(
        """
        with parked as (
            select u.turn_id, u.thread_id, u.tenant_id
              from turns u
              join threads t using (thread_id)
             where u.tenant_id = %(tenant)s
               and u.status in ('created', 'running', 'awaiting_approval')
               and t.owner is null
               and not exists (select 1 from runs r where r.turn_id = u.turn_id and r.status <> 'ended')
               and not exists (select 1 from approvals a where a.turn_id = u.turn_id and a.status = 'pending')
               and not exists (select 1 from plan_items i where i.turn_id = u.turn_id and i.status = 'orphaned')
               for no key update of t skip locked
        )
        insert into runs (run_id, tenant_id, thread_id, turn_id, because)
        select gen_random_uuid(), tenant_id, thread_id, turn_id, 'parked' from parked
        on conflict (turn_id) where status = 'due' do nothing
        """,
        {"tenant": tenant},
    )


def is_stale(error: BaseException) -> bool:
    """Whether an exception is the schema's "stale epoch", however deep it was wrapped."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, StaleEpoch) or (isinstance(seen, psycopg.Error) and seen.sqlstate == STALE):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
