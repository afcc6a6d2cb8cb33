"""Runs as clients of the LangGraph endpoints know them: each points at the segment of a turn that does what was asked.

There is one way to execute, `runs.py`. A client's run only remembers who asked for which segment, and how they want to
follow it; its status is the segment's (L1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from placet.record import people
from placet.record.database import Transaction
from placet.record.errors import Conflict, NotFound

Kind = Literal["message", "resume", "wake", "update"]
Status = Literal["pending", "running", "success", "error", "interrupted"]
Strategy = Literal["enqueue", "reject", "interrupt", "rollback"]


class UnknownRun(NotFound):
    """There is no such run on this thread."""

    code = "unknown_run"


class RunGoesOn(Conflict):
    """The run has not ended; cancel it first."""

    code = "run_goes_on"


@dataclass(frozen=True, slots=True)
class ClientRun:
    """A client's run with the state of its segment."""

    client_run_id: UUID
    tenant_id: str
    thread_id: UUID
    turn_id: UUID
    run_id: UUID
    asked_by: str
    kind: Kind
    metadata: dict[str, Any]
    multitask_strategy: Strategy
    modes: list[str]
    subgraphs: bool
    applied: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    work: Literal["due", "running", "ended"]
    attempt: int
    outcome: str | None
    turn_status: str
    error: dict[str, Any] | None

    @property
    def ended(self) -> bool:
        """Whether its segment has ended; the turn may wait for people."""
        return self.work == "ended"

    @property
    def status(self) -> Status:
        """As LangGraph names it: a run that came to a pause is a success, one that was cancelled is interrupted."""
        match self.work, self.outcome:
            case "due", _:
                return "pending"
            case "running", _:
                return "running"
            case _, "failed" | "exhausted" | "refused":
                return "error"
            case _, "cancelled":
                return "interrupted"
            case _:
                return "success"


async def insert(
    tx: Transaction,
    user: people.User,
    thread_id: UUID,
    turn_id: UUID,
    *,
    kind: Kind,
    metadata: Mapping[str, Any],
    strategy: Strategy = "enqueue",
    modes: Sequence[str] = (),
    subgraphs: bool = False,
    applied: Mapping[str, Any] | None = None,
) -> ClientRun:
    """Remember a client's run, for the segment that is due now, else the one that runs or ended last.

    In the transaction that made the segment due, so that a run that was answered with 2xx is never without one.
    """
    run_id = uuid4()
    await tx.execute(
        """
        insert into client_runs (client_run_id, tenant_id, thread_id, turn_id, run_id, asked_by, kind, metadata,
                                 multitask_strategy, modes, subgraphs, applied)
        select %(id)s, %(tenant)s, %(thread)s, %(turn)s, r.run_id, %(user)s, %(kind)s, %(metadata)s,
               %(strategy)s, %(modes)s, %(subgraphs)s, %(applied)s
          from runs r
         where r.turn_id = %(turn)s
         order by case r.status when 'due' then 0 when 'running' then 1 else 2 end, r.ended_at desc
         limit 1
        """,
        {
            "id": run_id,
            "tenant": user.tenant_id,
            "thread": thread_id,
            "turn": turn_id,
            "user": user.user_id,
            "kind": kind,
            "metadata": Jsonb(dict(metadata)),
            "strategy": strategy,
            "modes": list(modes),
            "subgraphs": subgraphs,
            "applied": Jsonb(dict(applied or {})),
        },
    )
    return await get(tx, user.tenant_id, thread_id, run_id)


_RUN = """
    select c.client_run_id, c.tenant_id, c.thread_id, c.turn_id, c.run_id, c.asked_by, c.kind, c.metadata,
           c.multitask_strategy, c.modes, c.subgraphs, c.applied, c.created_at,
           greatest(c.created_at, r.started_at, r.ended_at) as updated_at,
           r.status as work, r.attempt, r.outcome, u.status as turn_status, u.error
      from client_runs c
      join runs r using (run_id)
      join turns u on u.turn_id = c.turn_id
      join threads t on t.thread_id = c.thread_id
     where c.tenant_id = %(tenant)s and (c.removed_at is null or %(removed)s)
"""
_STATUS = """
       and (%(status)s::text is null
            or %(status)s = case when r.status = 'due' then 'pending'
                                 when r.status = 'running' then 'running'
                                 when r.outcome in ('failed', 'exhausted', 'refused') then 'error'
                                 when r.outcome = 'cancelled' then 'interrupted'
                                 else 'success' end)
"""


async def get(
    tx: Transaction, tenant: str, thread_id: UUID | None, run_id: UUID, *, removed: bool = False
) -> ClientRun:
    """The run, with `removed` also one that is shown no more; raises `UnknownRun`. The caller has seen that the thread may
    be seen."""
    run = await tx.fetch_one(
        ClientRun,
        _RUN + "and c.client_run_id = %(run)s and (%(thread)s::uuid is null or c.thread_id = %(thread)s)",
        {"tenant": tenant, "run": run_id, "thread": thread_id, "removed": removed},
    )
    if run is None:
        raise UnknownRun(f"There is no run {run_id} on this thread.", run_id=str(run_id))
    return run


async def of_thread(
    tx: Transaction, tenant: str, thread_id: UUID, *, status: str | None = None, limit: int, offset: int = 0
) -> list[ClientRun]:
    """The thread's runs, the newest first."""
    return await tx.fetch_all(
        ClientRun,
        _RUN
        + "and c.thread_id = %(thread)s"
        + _STATUS
        + "order by c.created_at desc, c.client_run_id limit %(limit)s offset %(offset)s",
        {
            "tenant": tenant,
            "thread": thread_id,
            "status": status,
            "limit": limit,
            "offset": offset,
            "removed": False,
        },
    )


async def open_of_user(tx: Transaction, user: people.User, *, limit: int = 1000) -> list[ClientRun]:
    """Runs that the user may cancel and that have not ended: of turns they asked for, whoever resumed them; an operator's
    are everybody's."""
    return await tx.fetch_all(
        ClientRun,
        _RUN
        + """
        and r.status <> 'ended' and (%(everybody)s or t.requester = %(user)s)
        order by c.created_at limit %(limit)s
        """,
        {
            "tenant": user.tenant_id,
            "everybody": user.is_a("operator"),
            "user": user.user_id,
            "limit": limit,
            "removed": False,
        },
    )


async def remove(tx: Transaction, run: ClientRun) -> None:
    """A tombstone: the run is shown no more; what it did stays (L1). Raises `RunGoesOn`."""
    if not run.ended:
        raise RunGoesOn(f"The run is {run.status}; cancel it before it is removed.", status=run.status)
    await tx.execute(
        "update client_runs set removed_at = clock() where client_run_id = %(run)s", {"run": run.client_run_id}
    )
