"""Idempotency keys of requests: asked again under its key, a request is the turn that it became (L3).

Keys are a person's own, so that nobody learns of another's turn by guessing one.
"""

from typing import Any
from uuid import UUID

from placet.record.canonical import canonical, sha256
from placet.record.database import Transaction
from placet.record.errors import Conflict
from placet.record.people import User


class KeyReused(Conflict):
    """The key belongs to another request; the details name the turn that it became."""

    code = "idempotency_key_reused"


async def turn_of(tx: Transaction, user: User, key: str, asked: Any) -> UUID | None:
    """The turn that was made under this key, if any; until this transaction ends nobody else makes one.

    Raises `KeyReused` when something else was asked under it.
    """
    who = {"tenant": user.tenant_id, "user": user.user_id, "key": key}
    await tx.execute(
        "select pg_advisory_xact_lock(hashtextextended(%(tenant)s || chr(31) || %(user)s || chr(31) || %(key)s, 8))",
        who,
    )
    rows = await tx.fetch_dicts(
        "select hash, turn_id from request_keys where tenant_id = %(tenant)s and user_id = %(user)s and key = %(key)s",
        who,
    )
    if not rows:
        return None
    turn_id: UUID = rows[0]["turn_id"]
    if bytes(rows[0]["hash"]) != sha256(canonical(asked)):
        raise KeyReused(
            "Another request was sent under this idempotency key; nothing was stored. A new request needs a new key.",
            turn_id=str(turn_id),
        )
    return turn_id


async def keep(tx: Transaction, user: User, key: str, asked: Any, turn_id: UUID) -> None:
    """The request under this key is this turn."""
    await tx.execute(
        """
        insert into request_keys (tenant_id, user_id, key, hash, turn_id)
        values (%(tenant)s, %(user)s, %(key)s, %(hash)s, %(turn)s)
        """,
        {
            "tenant": user.tenant_id,
            "user": user.user_id,
            "key": key,
            "hash": sha256(canonical(asked)),
            "turn": turn_id,
        },
    )
