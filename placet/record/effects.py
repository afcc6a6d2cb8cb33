"""Effects: nothing twice, nothing lost (E1–E5).

An effect row is inserted in a transaction of its own before the call leaves; its key makes every second dispatcher lose;
its receipt is committed the moment the tool answers. A row that was dispatched and has no answer is unknown, and only
observing moves it from there.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from placet.record import audit, canonical, events, ids, items, runs
from placet.record.approvals import Approval
from placet.record.database import Transaction
from placet.record.digests import Keys
from placet.record.errors import NotDispatchable, NotFound, StaleEpoch
from placet.record.runs import Owned

Status = Literal["dispatched", "committed", "refused", "absent", "unknown", "abandoned"]
NO_ASSENT = "PL002"  # the schema's SQLSTATE of the last door


@dataclass(frozen=True, slots=True)
class Effect:
    """One intended change of the outside world, as its row says."""

    operation_id: UUID
    tenant_id: str
    thread_id: UUID
    turn_id: UUID
    item_id: UUID
    tool: str
    effect_class: str
    arguments: bytes
    approval_id: UUID | None
    revision: int | None
    payload_hash: bytes | None
    undoes: UUID | None
    epoch: int
    attempts: int
    status: Status
    receipt: dict[str, Any] | None
    error: dict[str, Any] | None
    evidence: list[dict[str, Any]]
    first_dispatched_at: datetime
    dispatched_at: datetime
    settled_at: datetime | None
    key_id: str
    digest: bytes
    age: timedelta  # since the first dispatch, by the database's clock


class UnknownEffect(NotFound):
    """There is no such effect, or it belongs to another tenant."""

    code = "unknown_effect"


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The effect row of a call; `ours` when this dispatcher inserted it or sent it again, and therefore calls the tool."""

    effect: Effect
    ours: bool


async def dispatch(
    tx: Transaction,
    keys: Keys,
    owned: Owned,
    item: items.Item,
    *,
    effect_class: str,
    arguments: bytes,
    approval: Approval | None,
) -> Dispatched:
    """Write down that the call leaves now, in a transaction of its own (E1); who comes second finds the row (E2).

    An effect that is `absent` is dispatched again, by one conditional update. The schema's last door checks assent and
    epoch once more: raises `NotDispatchable` with why, or `StaleEpoch`.
    """
    arguments_hash = canonical.sha256(arguments)
    operation_id = ids.operation_id(item.item_id, arguments_hash)
    row = {
        "operation": operation_id,
        "tenant": owned.tenant_id,
        "thread": owned.thread_id,
        "turn": owned.turn_id,
        "item": item.item_id,
        "tool": item.tool,
        "class": effect_class,
        "arguments": arguments,
        "hash": arguments_hash,
        "approval": approval.approval_id if approval else None,
        "revision": approval.revision if approval else None,
        "payload_hash": approval.payload_hash if approval else None,
        "epoch": owned.epoch,
        "key": keys.key_id,
        "digest": keys.sign("effect", operation_id, owned.tenant_id, owned.thread_id, item.item_id, arguments_hash),
    }
    await runs.fence(tx, owned)
    try:
        inserted = await tx.execute(
            """
            insert into effects (operation_id, tenant_id, thread_id, turn_id, item_id, tool, effect_class, arguments,
                                 arguments_hash, approval_id, revision, payload_hash, epoch, key_id, digest,
                                 first_dispatched_at, dispatched_at)
            values (%(operation)s, %(tenant)s, %(thread)s, %(turn)s, %(item)s, %(tool)s, %(class)s, %(arguments)s,
                    %(hash)s, %(approval)s, %(revision)s, %(payload_hash)s, %(epoch)s, %(key)s, %(digest)s,
                    clock(), clock())
            on conflict do nothing
            """,
            row,
        )
        if not inserted:
            inserted = await tx.execute(
                """
                update effects
                   set status = 'dispatched', epoch = %(epoch)s, attempts = attempts + 1, dispatched_at = clock(),
                       settled_at = null, approval_id = %(approval)s, revision = %(revision)s, payload_hash = %(payload_hash)s
                 where operation_id = %(operation)s and status = 'absent'
                """,
                row,
            )
    except psycopg.Error as error:
        if error.sqlstate == NO_ASSENT:
            raise NotDispatchable(str(error.diag.message_detail)) from error
        raise
    effect = await of_item(tx, owned.tenant_id, item.item_id)
    if effect is None:
        raise NotDispatchable("not_approved")
    if inserted:
        await items.move(tx, item.item_id, "executing")
        await events.append(
            tx,
            owned.thread_id,
            "tool_started",
            {"tool": item.tool, "operation_id": str(operation_id), "attempt": effect.attempts},
            turn_id=owned.turn_id,
            item_id=item.item_id,
            epoch=owned.epoch,
        )
        await audit.append(
            tx,
            owned.tenant_id,
            actor=f"epoch:{owned.epoch}",
            action="dispatched",
            subject=f"effect:{operation_id}",
            body={"tool": item.tool, "arguments": canonical.parse(arguments), "approval": str(row["approval"] or "")},
        )
    return Dispatched(effect, ours=bool(inserted))


async def dispatch_rest(tx: Transaction, owned: Owned, effect: Effect, *, evidence: str) -> Effect:
    """Write down that the rest of an unknown effect leaves now, under the same operation id: some of its lines were seen
    (E5), so it can neither be called absent nor be left half done.

    It passes through `absent` inside this transaction, so that the last door looks at assent, turn and epoch again; nobody
    ever sees it absent. Raises `NotDispatchable`, or `StaleEpoch`.
    """
    await runs.fence(tx, owned)
    try:
        for step in (
            "update effects set status = 'absent' where operation_id = %(operation)s and status = 'unknown'",
            """
            update effects
               set status = 'dispatched', epoch = %(epoch)s, attempts = attempts + 1, dispatched_at = clock(),
                   settled_at = null
             where operation_id = %(operation)s and status = 'absent'
            """,
        ):
            if not await tx.execute(step, {"operation": effect.operation_id, "epoch": owned.epoch}):
                raise NotDispatchable("not_unknown")
    except psycopg.Error as error:
        if error.sqlstate == NO_ASSENT:
            raise NotDispatchable(str(error.diag.message_detail)) from error
        raise
    await items.move(tx, effect.item_id, "executing")
    again = await get(tx, owned.tenant_id, effect.operation_id)
    payload = {"tool": effect.tool, "operation_id": str(effect.operation_id)}
    steps: list[tuple[events.EventType, dict[str, Any]]] = [
        ("effect_reconciled", {**payload, "status": "partial", "evidence": evidence}),
        ("tool_started", {**payload, "attempt": again.attempts}),
    ]
    for kind, said in steps:
        await events.append(
            tx, owned.thread_id, kind, said, turn_id=owned.turn_id, item_id=effect.item_id, epoch=owned.epoch
        )
    await audit.append(
        tx,
        owned.tenant_id,
        actor=f"epoch:{owned.epoch}",
        action="dispatched the rest",
        subject=f"effect:{effect.operation_id}",
        body={"tool": effect.tool, "attempt": again.attempts, "evidence": evidence},
    )
    return again


_EFFECT = """
    select operation_id, tenant_id, thread_id, turn_id, item_id, tool, effect_class, arguments, approval_id, revision,
           payload_hash, undoes, epoch, attempts, status, receipt, error, evidence, first_dispatched_at, dispatched_at,
           settled_at, key_id, digest, clock() - first_dispatched_at as age
      from effects
"""


async def of_item(tx: Transaction, tenant: str, item_id: UUID) -> Effect | None:
    """The effect of a call that counts: the last that was dispatched."""
    return await tx.fetch_one(
        Effect,
        _EFFECT
        + "where item_id = %(item)s and tenant_id = %(tenant)s and undoes is null order by dispatched_at desc limit 1",
        {"item": item_id, "tenant": tenant},
    )


async def get(tx: Transaction, tenant: str, operation_id: UUID) -> Effect:
    """The effect; raises `UnknownEffect`."""
    effect = await tx.fetch_one(
        Effect,
        _EFFECT + "where operation_id = %(operation)s and tenant_id = %(tenant)s",
        {"operation": operation_id, "tenant": tenant},
    )
    if effect is None:
        raise UnknownEffect(f"There is no effect {operation_id} here; `placet effects list` shows them.")
    return effect


async def recent(
    tx: Transaction, tenant: str, *, status: str | None = None, turn_id: UUID | None = None, limit: int = 50
) -> list[Effect]:
    """Effects, the last dispatched first."""
    return await tx.fetch_all(
        Effect,
        _EFFECT
        + """
        where tenant_id = %(tenant)s and (%(status)s::text is null or status = %(status)s)
          and (%(turn)s::uuid is null or turn_id = %(turn)s)
        order by dispatched_at desc
        limit %(limit)s
        """,
        {"tenant": tenant, "status": status, "turn": turn_id, "limit": limit},
    )


def verify(keys: Keys, effect: Effect) -> None:
    """Raise `Tampered` unless the row carries the digest of its own identity (V6)."""
    keys.verify(
        effect.key_id,
        effect.digest,
        "effect",
        effect.operation_id,
        effect.tenant_id,
        effect.thread_id,
        effect.item_id,
        canonical.sha256(effect.arguments),
    )


async def commit(tx: Transaction, owned: Owned, effect: Effect, receipt: dict[str, Any], *, observed: bool) -> bool:
    """Store the receipt (E3), under the run's epoch (O2); False when it was settled before."""
    settled = await _settle(
        tx,
        owned,
        effect,
        "committed",
        kind="effect_reconciled" if observed else "tool_completed",
        payload={"receipt": receipt, "observed": observed},
        receipt=receipt,
    )
    if settled:
        await audit.append(
            tx,
            owned.tenant_id,
            actor=f"epoch:{owned.epoch}",
            action="observed" if observed else "committed",
            subject=f"effect:{effect.operation_id}",
            body={"receipt": receipt},
        )
    return settled


async def refuse(tx: Transaction, owned: Owned, effect: Effect, *, code: str, message: str) -> bool:
    """The system answered no: a definite failure, nothing happened (E4)."""
    error = {"code": code, "message": message, "retryable": False}
    return await _settle(tx, owned, effect, "refused", kind="tool_failed", payload=error, error=error)


async def lose(tx: Transaction, owned: Owned, effect: Effect, *, code: str, message: str) -> bool:
    """Sent, and no answer: unknown until observed, never a failure (E4)."""
    error = {"code": code, "message": message}
    lost = await _settle(tx, owned, effect, "unknown", kind="effect_unknown", payload=error, error=error)
    if lost:
        await items.move(tx, effect.item_id, "unknown")
    return lost


async def lose_open(tx: Transaction, owned: Owned) -> None:
    """A turn has ended and no run of it goes on: what is still dispatched is unknown, so that people see it (E6)."""
    for effect in await tx.fetch_all(
        Effect,
        _EFFECT + "where turn_id = %(turn)s and status = 'dispatched' and undoes is null",
        {"turn": owned.turn_id},
    ):
        await lose(tx, owned, effect, code="interrupted", message="Its turn ended before its answer.")


async def confirm_absent(tx: Transaction, owned: Owned, effect: Effect, *, evidence: str) -> bool:
    """The system confirms that it did not happen (E5): it may be sent again, under the same operation id."""
    return await _settle(
        tx, owned, effect, "absent", kind="effect_reconciled", payload={"status": "absent", "evidence": evidence}
    )


async def add_evidence(tx: Transaction, owned: Owned, effect: Effect, *, said: str, found: bool = False) -> None:
    """Keep what observing said, and when, for the people who must decide (E6). The caller fenced.

    Once it is settled, what settled it stays the last word, since somebody may have been faster than this look; unless
    the look found it (`found`), which must not be lost.
    """
    await tx.execute(
        """
        update effects
           set evidence = evidence || jsonb_build_object('at', clock(), 'said', %(said)s::text, 'epoch', %(epoch)s::bigint)
         where operation_id = %(operation)s and (status in ('dispatched', 'unknown') or %(found)s)
        """,
        {"found": found, "said": said, "operation": effect.operation_id, "epoch": owned.epoch},
    )


async def _settle(
    tx: Transaction,
    owned: Owned,
    effect: Effect,
    status: Status,
    *,
    kind: events.EventType,
    payload: dict[str, Any],
    receipt: dict[str, Any] | None = None,
    error: dict[str, Any] | None = None,
) -> bool:
    """Move the effect on from where it is open, and say so; False, and not a word, when it was settled before.

    One statement, that locks the thread first (lock order) and is the fence (O2).
    """
    [row] = await tx.fetch_dicts(
        """
        with held as materialized (
            select 1 from threads where thread_id = %(thread)s and epoch = %(epoch)s for no key update
        ), moved as (
            update effects
               set status = %(status)s, receipt = %(receipt)s, error = coalesce(%(error)s, error),
                   settled_at = case when %(status)s <> 'unknown' then clock() end
              from held
             where operation_id = %(operation)s and status in ('dispatched', 'unknown') and status <> %(status)s
            returning operation_id
        )
        select exists (select from held) as held,
               (select append_event(%(thread)s, %(epoch)s, %(type)s, %(turn)s, %(item)s, %(event)s) from moved) as seq
        """,
        {
            "thread": owned.thread_id,
            "epoch": owned.epoch,
            "operation": effect.operation_id,
            "status": status,
            "receipt": Jsonb(receipt) if receipt is not None else None,
            "error": Jsonb(error) if error is not None else None,
            "type": kind,
            "turn": owned.turn_id,
            "item": effect.item_id,
            "event": Jsonb({"tool": effect.tool, "operation_id": str(effect.operation_id), **payload}),
        },
    )
    if not row["held"]:
        raise StaleEpoch(f"Thread {owned.thread_id} belongs to another run; epoch {owned.epoch} is over.")
    return row["seq"] is not None
