"""What people do to effects by hand: say what became of an unknown one (E6), take a committed one back (E9).

Nobody here holds an epoch: the thread's row is locked instead, first as always, and every change is conditional.
"""

from typing import Any, Literal

import psycopg
from psycopg.types.json import Jsonb

from placet.record import audit, canonical, effects, events, ids, people, runs
from placet.record.database import Transaction
from placet.record.digests import Keys
from placet.record.effects import Effect
from placet.record.errors import Conflict, InvalidInput, NotAllowed


async def resolve(
    tx: Transaction,
    who: people.User,
    effect: Effect,
    *,
    to: Literal["committed", "absent", "abandoned"],
    reason: str,
    external_id: str | None = None,
) -> Effect:
    """A person says what became of an unknown effect (E6); recorded, and the turn goes on.

    `committed` needs the external id that they found, `absent` lets it be sent again, `abandoned` tells the model not to
    repeat it. Raises `NotAllowed`, `InvalidInput`, or `Conflict` when it is no longer unknown.
    """
    if not who.is_a("operator"):
        raise NotAllowed(
            f"Settling an unknown effect needs the role operator; {who.user_id} is {', '.join(who.roles)}."
        )
    if not reason.strip():
        raise InvalidInput("Say how you know: the reason is kept with the effect.", field="reason")
    canonical.check_plain({"reason": reason, "external_id": external_id})
    if (to == "committed") != bool((external_id or "").strip()):
        raise InvalidInput(
            "`committed` takes the external id that was found, and nothing else does.", field="external_id"
        )
    await runs.lock_thread(tx, effect.thread_id)
    said = f"{to}, says {who.user_id}: {reason}"
    receipt: dict[str, Any] = {
        "external_id": external_id,
        "summary": said,
        "lines": [],
        "data": {"marked_by": who.user_id},
    }
    moved = await tx.execute(
        """
        update effects
           set status = %(to)s, receipt = %(receipt)s, settled_at = clock(),
               evidence = evidence || jsonb_build_object('at', clock(), 'said', %(said)s::text, 'by', %(who)s::text)
         where operation_id = %(operation)s and status = 'unknown'
        """,
        {
            "operation": effect.operation_id,
            "to": to,
            "receipt": Jsonb(receipt) if to == "committed" else None,
            "said": said,
            "who": who.user_id,
        },
    )
    now = await effects.get(tx, who.tenant_id, effect.operation_id)
    if not moved:
        first = " A worker looks it up first: placet worker." if now.status == "dispatched" else ""
        raise Conflict(f"The effect is {now.status}; only an unknown one is settled by hand.{first}", status=now.status)
    await events.append(
        tx,
        effect.thread_id,
        "effect_reconciled",
        {
            "tool": effect.tool,
            "operation_id": str(effect.operation_id),
            "status": to,
            "by": who.user_id,
            "reason": reason,
        },
        turn_id=effect.turn_id,
        item_id=effect.item_id,
    )
    if effect.undoes is None:  # no turn waits for an undo
        await runs.make_due(
            tx, effect.tenant_id, effect.thread_id, effect.turn_id, because=f"resolved:{effect.operation_id}"
        )
    await audit.append(
        tx,
        who.tenant_id,
        actor=who.user_id,
        action=f"resolved as {to}",
        subject=f"effect:{effect.operation_id}",
        body={"reason": reason, "external_id": external_id or "", "evidence": effect.evidence},
    )
    return now


async def begin_undo(tx: Transaction, keys: Keys, who: people.User, effect: Effect) -> effects.Dispatched:
    """Write down that a committed effect is taken back now (E9); a second person finds the row.

    No run does this: the thread's row is locked instead of an epoch being held. An undo that was dispatched before is
    found here again; one of which a person said that it did not happen is dispatched again, under the same operation id.
    """
    if not (who.is_a("operator") or await _asked_for(tx, effect, who)):
        raise NotAllowed(f"Undoing needs the role operator, or your own request; {who.user_id} has neither.")
    await runs.lock_thread(tx, effect.thread_id)
    operation_id = ids.undo_id(effect.operation_id)
    try:
        inserted = await tx.execute(
            """
            insert into effects (operation_id, tenant_id, thread_id, turn_id, item_id, tool, effect_class, arguments,
                                 arguments_hash, undoes, epoch, key_id, digest, first_dispatched_at, dispatched_at)
            select %(operation)s, tenant_id, thread_id, turn_id, item_id, tool, effect_class, arguments,
                   arguments_hash, operation_id, epoch, %(key)s, %(digest)s, clock(), clock()
              from effects where operation_id = %(undone)s
            on conflict do nothing
            """,
            {
                "operation": operation_id,
                "undone": effect.operation_id,
                "key": keys.key_id,
                "digest": keys.sign(
                    "effect",
                    operation_id,
                    effect.tenant_id,
                    effect.thread_id,
                    effect.item_id,
                    canonical.sha256(effect.arguments),
                ),
            },
        )
    except psycopg.Error as error:
        if error.sqlstate == effects.NO_ASSENT:
            raise Conflict(f"The effect is {effect.status}; only a committed one can be undone.") from error
        raise
    if not inserted:
        inserted = await tx.execute(
            """
            update effects set status = 'dispatched', attempts = attempts + 1, dispatched_at = clock(), settled_at = null
             where operation_id = %(operation)s and status = 'absent'
            """,
            {"operation": operation_id},
        )
    if inserted:
        await events.append(
            tx,
            effect.thread_id,
            "tool_started",
            {"tool": effect.tool, "operation_id": str(operation_id), "undoes": str(effect.operation_id)},
            turn_id=effect.turn_id,
            item_id=effect.item_id,
        )
        await audit.append(
            tx,
            who.tenant_id,
            actor=who.user_id,
            action="undoes",
            subject=f"effect:{operation_id}",
            body={"undoes": str(effect.operation_id)},
        )
    return effects.Dispatched(await effects.get(tx, who.tenant_id, operation_id), ours=bool(inserted))


async def _asked_for(tx: Transaction, effect: Effect, who: people.User) -> bool:
    return bool(
        await tx.fetch_value(
            "select 1 from threads where thread_id = %(thread)s and requester = %(user)s",
            {"thread": effect.thread_id, "user": who.user_id},
        )
    )


async def lose_undo(tx: Transaction, undo: Effect, *, code: str, message: str) -> None:
    """The undo was sent and has no answer: unknown, a task for people unless it is commanded again (E4, E6)."""
    await runs.lock_thread(tx, undo.thread_id)
    error = {"code": code, "message": message}
    lost = await tx.execute(
        """
        update effects set status = 'unknown', error = %(error)s
         where operation_id = %(operation)s and status = 'dispatched'
        """,
        {"operation": undo.operation_id, "error": Jsonb(error)},
    )
    if lost:
        await events.append(
            tx,
            undo.thread_id,
            "effect_unknown",
            {"tool": undo.tool, "operation_id": str(undo.operation_id), "undoes": str(undo.undoes), **error},
            turn_id=undo.turn_id,
            item_id=undo.item_id,
        )


async def end_undo(
    tx: Transaction, undo: Effect, *, receipt: dict[str, Any] | None = None, error: dict[str, Any] | None = None
) -> Effect:
    """The undo was answered: with a receipt, or refused with an error; what was settled before stays."""
    await runs.lock_thread(tx, undo.thread_id)
    status: effects.Status = "committed" if receipt is not None else "refused"
    moved = await tx.execute(
        """
        update effects set status = %(status)s, receipt = %(receipt)s, error = %(error)s, settled_at = clock()
         where operation_id = %(operation)s and status in ('dispatched', 'unknown')
        """,
        {
            "operation": undo.operation_id,
            "status": status,
            "receipt": Jsonb(receipt) if receipt is not None else None,
            "error": Jsonb(error) if error is not None else None,
        },
    )
    if moved:
        await events.append(
            tx,
            undo.thread_id,
            "tool_completed" if receipt is not None else "tool_failed",
            {"tool": undo.tool, "operation_id": str(undo.operation_id), "undoes": str(undo.undoes), **(error or {})},
            turn_id=undo.turn_id,
            item_id=undo.item_id,
        )
        await audit.append(
            tx,
            undo.tenant_id,
            actor=f"tool:{undo.tool}",
            action=status,
            subject=f"effect:{undo.operation_id}",
            body={"undoes": str(undo.undoes), "receipt": receipt, "error": error},
        )
    return await effects.get(tx, undo.tenant_id, undo.operation_id)
