"""Turns: one user request each, from message to final answer (T1–T6)."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from placet.record import audit, canonical, effects, events, people, runs, threads
from placet.record.closing import close_calls
from placet.record.database import Transaction
from placet.record.errors import Conflict, InvalidInput, NotAllowed, NotFound
from placet.record.runs import Owned

Status = Literal[
    "created",
    "running",
    "awaiting_approval",
    "awaiting_reconciliation",
    "paused",
    "completed",
    "failed",
    "exhausted",
    "cancelled",
]
ENDED: frozenset[str] = frozenset({"completed", "failed", "exhausted", "cancelled"})
WAITING: frozenset[str] = frozenset({"awaiting_approval", "awaiting_reconciliation", "paused"})


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn as its row says."""

    turn_id: UUID
    tenant_id: str
    thread_id: UUID
    ordinal: int
    message: str
    command: dict[str, Any]
    status: Status
    next_step: str | None
    steps: int
    max_steps: int
    output_text: str | None
    error: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    requester: str


class UnknownTurn(NotFound):
    """There is no such turn, or its thread belongs to somebody else."""

    code = "unknown_turn"


class UnknownThread(NotFound):
    """There is no such thread, or it belongs to somebody else."""

    code = "unknown_thread"


class TurnEnded(Conflict):
    """The turn has ended; the details say how and when."""

    code = "turn_ended"


class TurnWaits(Conflict):
    """The thread's turn waits for people; the details name the approvals (T4)."""

    code = "turn_awaits_people"


async def create(
    tx: Transaction,
    user: people.User,
    message: str,
    *,
    max_steps: int,
    max_chars: int,
    thread_id: UUID | None = None,
    after: timedelta = timedelta(0),
) -> Turn:
    """Store a user's message as a turn and make its run due `after` that time, in one transaction.

    Without a thread a new one is made. Raises `InvalidInput` for an empty or oversized message, `UnknownThread` for
    somebody else's, `TurnWaits` while a turn of the thread waits for people.
    """
    _check_message(message, max_chars)
    if not user.is_a("requester"):
        raise NotAllowed(f"{user.user_id} is {', '.join(user.roles)}; asking for something needs the role requester.")
    if thread_id is None:
        thread_id = await threads.create(tx, user)
    else:
        await _open_thread(tx, user, thread_id)

    turn_id = uuid4()
    await tx.execute(
        """
        insert into turns (turn_id, tenant_id, thread_id, ordinal, message, command, max_steps)
        select %(turn)s, %(tenant)s, %(thread)s, count(*), %(message)s, %(command)s, %(max_steps)s
          from turns where thread_id = %(thread)s
        """,
        {
            "turn": turn_id,
            "tenant": user.tenant_id,
            "thread": thread_id,
            "message": message,
            "command": Jsonb({"kind": "message", "parameters": {"text": message[:2000]}, "confirmations": []}),
            "max_steps": max_steps,
        },
    )
    await runs.make_due(tx, user.tenant_id, thread_id, turn_id, because="message", after=after)
    return await get(tx, user.tenant_id, turn_id)


def _check_message(message: str, max_chars: int) -> None:
    if not message.strip():
        raise InvalidInput("The message is empty; say what should be done.", field="message")
    if len(message) > max_chars:
        raise InvalidInput(
            f"The message has {len(message):,} characters, {max_chars:,} are the limit; nothing was stored. "
            "Put long material where a tool can read it.",
            field="message",
        )
    if "\x00" in message or any(0xD800 <= ord(char) <= 0xDFFF for char in message):
        raise InvalidInput("The message holds a NUL character or half of a surrogate pair.", field="message")


async def _open_thread(tx: Transaction, user: people.User, thread_id: UUID) -> None:
    """Lock the thread and see that a new turn may be stored on it."""
    await _own_thread(tx, user, thread_id)
    waiting = await tx.fetch_dicts(
        """
        select u.turn_id, u.status, array_remove(array_agg(a.approval_id), null) as approvals
          from turns u
          left join approvals a on a.turn_id = u.turn_id and a.status = 'pending'
         where u.thread_id = %(thread)s and u.status in ('awaiting_approval', 'awaiting_reconciliation', 'paused')
         group by u.turn_id, u.status
        """,
        {"thread": thread_id},
    )
    if waiting:
        pending = [str(approval) for approval in waiting[0]["approvals"]]
        raise TurnWaits(
            f"The thread waits for people ({waiting[0]['status']}); decide or cancel first.",
            turn_id=str(waiting[0]["turn_id"]),
            approvals=pending,
        )


async def _own_thread(tx: Transaction, user: people.User, thread_id: UUID) -> None:
    owner = await tx.fetch_value(
        """
        select requester from threads
         where thread_id = %(thread)s and tenant_id = %(tenant)s and removed_at is null
           for no key update
        """,
        {"thread": thread_id, "tenant": user.tenant_id},
    )
    if owner != user.user_id:
        raise UnknownThread(f"There is no thread {thread_id} of yours.")


_TURN = """
    select u.turn_id, u.tenant_id, u.thread_id, u.ordinal, u.message, u.command, u.status,
           next_step(u.turn_id, u.status), u.steps, u.max_steps, u.output_text, u.error,
           u.created_at, u.updated_at, u.ended_at, t.requester
      from turns u join threads t using (thread_id)
"""


async def get(tx: Transaction, tenant: str, turn_id: UUID) -> Turn:
    """The turn; raises `UnknownTurn`."""
    turn = await tx.fetch_one(
        Turn,
        _TURN + "where u.turn_id = %(turn)s and u.tenant_id = %(tenant)s",
        {"turn": turn_id, "tenant": tenant},
    )
    if turn is None:
        raise UnknownTurn(f"There is no turn {turn_id} here.")
    return turn


async def latest(tx: Transaction, tenant: str, thread_id: UUID) -> Turn:
    """The thread's turn that started last, or waits to; raises `UnknownThread`."""
    turn = await tx.fetch_one(
        Turn,
        _TURN
        + """
        where u.thread_id = %(thread)s and u.tenant_id = %(tenant)s
        order by u.status <> 'created' desc, u.ordinal desc
        limit 1
        """,
        {"thread": thread_id, "tenant": tenant},
    )
    if turn is None:
        raise UnknownThread(f"There is no thread {thread_id} with a turn here.")
    return turn


async def recent(tx: Transaction, tenant: str, *, status: str | None = None, limit: int = 50) -> list[Turn]:
    """Turns, the one that changed last first."""
    return await tx.fetch_all(
        Turn,
        _TURN
        + """
         where u.tenant_id = %(tenant)s and (%(status)s::text is null or u.status = %(status)s)
         order by u.updated_at desc
         limit %(limit)s
        """,
        {"tenant": tenant, "status": status, "limit": limit},
    )


async def start(tx: Transaction, owned: Owned) -> Status:
    """The claimed run has loaded its checkpoint: the turn runs (T6). Returns the status it now has.

    A turn that has ended stays as it is: its run only closes what is open.
    """
    await runs.fence(tx, owned)
    before = await tx.fetch_value(
        "select status from turns where turn_id = %(turn)s for no key update", {"turn": owned.turn_id}
    )
    if before in ENDED or before == "running":
        return before  # type: ignore[no-any-return]
    await tx.execute(
        "update turns set status = 'running', resume_at = null, updated_at = clock() where turn_id = %(turn)s",
        {"turn": owned.turn_id},
    )
    kind: events.EventType = "turn_started" if before == "created" and owned.because != "retry" else "turn_resumed"
    await events.append(tx, owned.thread_id, kind, {"because": owned.because}, turn_id=owned.turn_id, epoch=owned.epoch)
    return "running"


async def gated(tx: Transaction, owned: Owned, command: dict[str, Any] | None) -> bool:
    """Keep what the gate made of the request: kind, parameters, which confirmations it needs (T1).

    False when the turn no longer runs, so that nobody is asked for it (T3). The caller fenced.
    """
    return bool(
        await tx.execute(
            """
            update turns set command = coalesce(%(command)s, command), updated_at = clock()
             where turn_id = %(turn)s and status = 'running'
            """,
            {"command": Jsonb(command) if command else None, "turn": owned.turn_id},
        )
    )


async def settle(
    tx: Transaction,
    owned: Owned,
    *,
    ending: Literal["completed", "failed", "exhausted"] | None,
    output_text: str | None = None,
    error: dict[str, Any] | None = None,
    leftover: dict[str, Any] | None = None,
) -> Status:
    """End the run: the turn waits, or has ended, and the thread is free, in one transaction.

    `ending` is what the graph reached; None when it paused. What it waits for is read from the rows: an effect that
    people must settle stands before an approval (section 3 of the promises). A turn that was cancelled stays cancelled;
    what its closing run could not look up becomes a task for people (E6).
    `leftover` is the result of calls that have none when the turn breaks off (G5): nobody is asked about them any more,
    and a closing run looks after what was sent.
    """
    await runs.fence(tx, owned)
    now = await tx.fetch_one(
        _Now,
        """
        select u.status,
               exists (select 1 from effects e where e.turn_id = u.turn_id and e.status = 'unknown'
                                                 and e.undoes is null) as unknown,
               exists (select 1 from effects e where e.turn_id = u.turn_id and e.status in ('dispatched', 'unknown')
                                                 and e.undoes is null) as open,
               exists (select 1 from approvals a where a.turn_id = u.turn_id and a.status = 'pending')
               or exists (select 1 from plan_items i where i.turn_id = u.turn_id and i.status = 'orphaned') as pending,
               exists (select 1 from runs r where r.turn_id = u.turn_id and r.status = 'due') as due
          from turns u where u.turn_id = %(turn)s for no key update
        """,
        {"turn": owned.turn_id},
    )
    if now is None:
        raise UnknownTurn(f"There is no turn {owned.turn_id}.")
    status: Status = now.status
    if now.status not in ENDED:
        waits = now.pending or now.unknown or now.due  # due: somebody decided while this run was ending
        if ending is None and not waits and owned.because == "parked":
            ending, error = "failed", _STUCK
        status = ending or ("awaiting_reconciliation" if now.unknown else "awaiting_approval")
        await tx.execute(
            """
            update turns
               set status = %(status)s, output_text = coalesce(%(output)s, output_text), error = %(error)s,
                   ended_at = case when %(ended)s then clock() end, updated_at = clock()
             where turn_id = %(turn)s
            """,
            {
                "turn": owned.turn_id,
                "status": status,
                "output": output_text,
                "error": Jsonb(error) if error else None,
                "ended": status in ENDED,
            },
        )
        if leftover is not None:
            await close_calls(tx, owned.thread_id, owned.turn_id, "failed", leftover, because="the turn broke off")
            if now.open:
                await runs.make_due(tx, owned.tenant_id, owned.thread_id, owned.turn_id, because="closing")
        await _tell(tx, owned, status, output_text, error)
        if ending is None and not waits:
            await runs.make_due(tx, owned.tenant_id, owned.thread_id, owned.turn_id, because="parked")
    elif now.open:
        await effects.lose_open(tx, owned)
    await runs.release(tx, owned, outcome=status)
    return status


async def refuse(tx: Transaction, owned: Owned, error: dict[str, Any]) -> Status:
    """This process cannot run the turn: it stays as it is, says why, and another process may try in a minute (G8)."""
    await runs.fence(tx, owned)
    await tx.execute(
        "update turns set error = %(error)s, updated_at = clock() where turn_id = %(turn)s",
        {"error": Jsonb(error), "turn": owned.turn_id},
    )
    turn = await get(tx, owned.tenant_id, owned.turn_id)
    await runs.make_due(
        tx, owned.tenant_id, owned.thread_id, owned.turn_id, because=owned.because, after=timedelta(minutes=1)
    )
    await runs.release(tx, owned, outcome="refused")
    return turn.status


async def retry(tx: Transaction, user: people.User, turn_id: UUID) -> Turn:
    """Reopen a failed turn at its next step (T2); a call that has a result is not repeated. Raises `Conflict`."""
    turn = await get(tx, user.tenant_id, turn_id)
    _check_may_steer(user, turn)
    await runs.lock_thread(tx, turn.thread_id)
    reopened = await tx.execute(
        """
        update turns set status = 'created', ended_at = null, error = null, updated_at = clock()
         where turn_id = %(turn)s and status = 'failed'
        """,
        {"turn": turn_id},
    )
    if not reopened:
        raise Conflict(f"The turn is {turn.status}; only a failed one is retried.", status=turn.status)
    await runs.make_due(tx, user.tenant_id, turn.thread_id, turn_id, because="retry")
    await audit.append(
        tx, user.tenant_id, actor=user.user_id, action="retried", subject=f"turn:{turn_id}", body={"error": turn.error}
    )
    return await get(tx, user.tenant_id, turn_id)


async def migrate(tx: Transaction, user: people.User, turn_id: UUID) -> Turn:
    """Bring a turn's orphaned calls to the graph and tools as they are now: what can be asked is asked again (G8)."""
    turn = await get(tx, user.tenant_id, turn_id)
    if not user.is_a("operator"):
        raise NotAllowed(f"Migrating a turn needs the role operator; {user.user_id} is {', '.join(user.roles)}.")
    await runs.lock_thread(tx, turn.thread_id)
    orphaned = await tx.fetch_value(
        "select count(*) from plan_items where turn_id = %(turn)s and status = 'orphaned'", {"turn": turn_id}
    )
    if not orphaned or turn.status in ENDED:
        raise Conflict(f"The turn is {turn.status} and has no orphaned call.", status=turn.status)
    await runs.make_due(tx, user.tenant_id, turn.thread_id, turn_id, because="migrate")
    await audit.append(
        tx, user.tenant_id, actor=user.user_id, action="migrated", subject=f"turn:{turn_id}", body={"calls": orphaned}
    )
    return turn


def _check_may_steer(user: people.User, turn: Turn) -> None:
    if turn.requester != user.user_id and not user.is_a("operator"):
        raise NotAllowed(f"{user.user_id} may steer their own turns; another's needs the role operator.")


@dataclass(frozen=True, slots=True)
class _Now:
    status: Status
    unknown: bool
    open: bool
    pending: bool
    due: bool


_STUCK = {
    "code": "stuck",
    "message": "The turn paused twice with nothing to wait for. Look at its events; retry or cancel it.",
    "retryable": True,
}


async def _tell(
    tx: Transaction, owned: Owned, status: Status, output: str | None, error: dict[str, Any] | None
) -> None:
    kinds: dict[str, events.EventType] = {
        "completed": "turn_completed",
        "failed": "turn_failed",
        "exhausted": "turn_exhausted",
    }
    kind = kinds.get(status, "turn_paused")
    payload = {"status": status, "output_text": output, "error": error}
    await events.append(
        tx,
        owned.thread_id,
        kind,
        {key: value for key, value in payload.items() if value is not None},
        turn_id=owned.turn_id,
        epoch=owned.epoch,
    )


async def cancel(
    tx: Transaction, user: people.User, turn_id: UUID, *, reason: str | None, result: dict[str, Any]
) -> Turn:
    """Cancel a turn for good (T3): calls that were not dispatched get `result`, approvals close, a closing run is due.

    The requester may cancel their own turn, an operator any. Raises `TurnEnded` when it is over already, `InvalidInput` for
    a reason that cannot be stored.
    """
    canonical.check_plain(reason, "reason")
    turn = await get(tx, user.tenant_id, turn_id)
    _check_may_steer(user, turn)
    await runs.lock_thread(tx, turn.thread_id)
    changed = await tx.execute(
        """
        update turns set status = 'cancelled', ended_at = clock(), updated_at = clock()
         where turn_id = %(turn)s and status not in ('completed', 'failed', 'exhausted', 'cancelled')
        """,
        {"turn": turn_id},
    )
    if not changed:
        ended = await get(tx, user.tenant_id, turn_id)
        raise TurnEnded(f"The turn is {ended.status} since {ended.ended_at:%Y-%m-%d %H:%M} UTC.", status=ended.status)
    closed = await close_calls(tx, turn.thread_id, turn_id, "cancelled", result, because="the turn was cancelled")
    await events.append(tx, turn.thread_id, "turn_cancelled", {"by": user.user_id, "reason": reason}, turn_id=turn_id)
    await runs.make_due(tx, user.tenant_id, turn.thread_id, turn_id, because="cancel")
    await audit.append(
        tx,
        user.tenant_id,
        actor=user.user_id,
        action="cancelled",
        subject=f"turn:{turn_id}",
        body={"reason": reason, "approvals": closed},
    )
    return await get(tx, user.tenant_id, turn_id)


async def supersede(tx: Transaction, user: people.User, thread_id: UUID, *, result: dict[str, Any]) -> list[UUID]:
    """A newer message takes the place of what is unfinished on the user's own thread (T4); ids of the turns that end.

    Calls that were not dispatched get `result`, their approvals become superseded, a closing run looks after what was
    sent. The caller stores the newer message in the same transaction. Raises `UnknownThread`.
    """
    await _own_thread(tx, user, thread_id)
    ended = await tx.fetch_dicts(
        """
        update turns set status = 'cancelled', ended_at = clock(), updated_at = clock()
         where thread_id = %(thread)s and status not in ('completed', 'failed', 'exhausted', 'cancelled')
        returning turn_id
        """,
        {"thread": thread_id},
    )
    closed: list[str] = []
    for turn in ended:
        turn_id = turn["turn_id"]
        closed += await close_calls(
            tx, thread_id, turn_id, "superseded", result, because="a newer message replaced the request"
        )
        await events.append(
            tx, thread_id, "turn_cancelled", {"by": user.user_id, "reason": "superseded"}, turn_id=turn_id
        )
        await runs.make_due(tx, user.tenant_id, thread_id, turn_id, because="cancel")
    if ended:
        await audit.append(
            tx,
            user.tenant_id,
            actor=user.user_id,
            action="superseded",
            subject=f"thread:{thread_id}",
            body={"turns": [str(turn["turn_id"]) for turn in ended], "approvals": closed},
        )
    return [turn["turn_id"] for turn in ended]
