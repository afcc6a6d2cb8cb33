"""What a run streams, on its way from the process that runs it to whichever process sends it (L1, V2).

Parts are written in batches under the run's epoch (O2) and told by NOTIFY; a poll finds what a lost notice did not say.
They are numbered so that a reader can go on behind any part, also on another server and after a restart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import UUID

from placet.record.database import Transaction
from placet.record.errors import StaleEpoch
from placet.record.runs import Owned

CHANNEL = "placet_stream"  # NOTIFY with a run's id: it has new parts, or has started or ended
ATTEMPT = 1_000_000  # numbers of an attempt begin here, times the attempt


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that a run streamed; `data` is JSON text."""

    n: int
    mode: str
    namespace: list[str]
    data: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the clients of a run want to see of it, together."""

    modes: list[str]
    subgraphs: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    run_id: UUID
    work: Literal["due", "running", "ended"]
    attempt: int
    last: int  # number of the last part; 0: none


async def wanted(tx: Transaction, owned: Owned) -> Wanted | None:
    """What is to be streamed of a claimed run; None when nobody asked for it. Nobody can join in after the claim."""
    return await tx.fetch_one(
        Wanted,
        """
        select coalesce(array_agg(distinct mode) filter (where mode is not null), '{}') as modes,
               coalesce(bool_or(c.subgraphs), false) as subgraphs
          from client_runs c
          left join unnest(c.modes) as mode on true
         where c.run_id = %(run)s
        having count(*) > 0
        """,
        {"run": owned.run_id},
    )


async def append(tx: Transaction, owned: Owned, parts: Sequence[Part]) -> None:
    """Write parts and tell followers: one statement, one round trip. Raises `StaleEpoch`."""
    told = await tx.execute(
        """
        with held as (
            select 1 from threads where thread_id = %(thread)s and epoch = %(epoch)s for share
        ), written as (
            insert into stream_parts (run_id, n, mode, namespace, data)
            select %(run)s, n, mode, coalesce(string_to_array(nullif(namespace, ''), '|'), '{}'), data
              from held, unnest(%(n)s::bigint[], %(mode)s::text[], %(namespace)s::text[], %(data)s::text[])
                           as part (n, mode, namespace, data)
            returning 1
        )
        select pg_notify(%(channel)s, %(run)s::text) from written limit 1
        """,
        {
            "thread": owned.thread_id,
            "epoch": owned.epoch,
            "run": owned.run_id,
            "n": [part.n for part in parts],
            "mode": [part.mode for part in parts],
            "namespace": ["|".join(part.namespace) for part in parts],
            "data": [part.data for part in parts],
            "channel": CHANNEL,
        },
    )
    if not told:
        raise StaleEpoch(f"Thread {owned.thread_id} belongs to another run; epoch {owned.epoch} is over.")


async def behind(tx: Transaction, run_id: UUID, n: int, *, limit: int = 500) -> list[Part]:
    """Parts behind number `n`, in order."""
    return await tx.fetch_all(
        Part,
        """
        select n, mode, namespace, data from stream_parts
         where run_id = %(run)s and n > %(n)s
         order by n
         limit %(limit)s
        """,
        {"run": run_id, "n": n, "limit": limit},
    )


async def outcome(tx: Transaction, run_id: UUID) -> str | None:
    """The state in which the run left its thread, as JSON text, if it was kept."""
    found: str | None = await tx.fetch_value(
        "select data from stream_parts where run_id = %(run)s and mode = 'outcome' order by n desc limit 1",
        {"run": run_id},
    )
    return found


async def progress(tx: Transaction, run_ids: Sequence[UUID]) -> list[Progress]:
    """How far runs are; one query for all that a process follows."""
    return await tx.fetch_all(
        Progress,
        """
        select r.run_id, r.status as work, r.attempt, coalesce(p.n, 0) as last
          from runs r
          left join lateral (select n from stream_parts where run_id = r.run_id order by n desc limit 1) p on true
         where r.run_id = any (%(runs)s)
        """,
        {"runs": list(run_ids)},
    )


async def prune(tx: Transaction, *, older: timedelta, limit: int = 5000) -> int:
    """Remove parts of runs that ended long ago; how many."""
    return await tx.execute(
        """
        delete from stream_parts
         where (run_id, n) in (select p.run_id, p.n from stream_parts p join runs r using (run_id)
                                where p.at < clock() - %(older)s and r.status = 'ended'
                                limit %(limit)s)
        """,
        {"older": older, "limit": limit},
    )
