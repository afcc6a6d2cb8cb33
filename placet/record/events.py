"""The timeline of a thread: events, numbered without gaps (V1)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from placet.record.database import Transaction
from placet.record.errors import StaleEpoch

EventType = Literal[
    "turn_started",
    "plan_updated",
    "tool_started",
    "tool_progress",
    "tool_completed",
    "tool_failed",
    "approval_requested",
    "approval_decided",
    "approval_closed",
    "effect_unknown",
    "effect_reconciled",
    "turn_paused",
    "turn_resumed",
    "turn_completed",
    "turn_failed",
    "turn_exhausted",
    "turn_cancelled",
]
STALE = "PL001"  # the schema's SQLSTATE for a stale epoch


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the timeline."""

    thread_id: UUID
    seq: int
    turn_id: UUID | None
    item_id: UUID | None
    type: EventType
    payload: dict[str, Any]
    at: datetime


async def append(
    tx: Transaction,
    thread_id: UUID,
    kind: EventType,
    payload: dict[str, Any],
    *,
    turn_id: UUID | None = None,
    item_id: UUID | None = None,
    epoch: int | None = None,
) -> int:
    """Append an event and return its number.

    With an epoch it is also the fence of the transaction (O2): a stale one raises `StaleEpoch`. Deciders and sweepers
    hold no epoch; they have locked the thread's row.
    """
    try:
        seq = await tx.fetch_value(
            """
            select append_event(%(thread)s, %(epoch)s, %(type)s, %(turn)s, %(item)s, %(payload)s)
            """,
            {
                "thread": thread_id,
                "epoch": epoch,
                "type": kind,
                "turn": turn_id,
                "item": item_id,
                "payload": Jsonb(payload),
            },
        )
    except psycopg.Error as error:
        if error.sqlstate == STALE:
            raise StaleEpoch(str(error.diag.message_primary)) from error
        raise
    return int(seq)


async def of_thread(
    tx: Transaction, tenant: str, thread_id: UUID, *, after: int = 0, turn_id: UUID | None = None, limit: int = 1000
) -> list[Event]:
    """Events behind number `after`, oldest first; of one turn when given."""
    return await tx.fetch_all(
        Event,
        """
        select thread_id, seq, turn_id, item_id, type, payload, at
          from events
         where tenant_id = %(tenant)s and thread_id = %(thread)s and seq > %(after)s
           and (%(turn)s::uuid is null or turn_id = %(turn)s)
         order by seq
         limit %(limit)s
        """,
        {"tenant": tenant, "thread": thread_id, "after": after, "turn": turn_id, "limit": limit},
    )


async def newest(tx: Transaction, thread_ids: list[UUID]) -> dict[UUID, tuple[str, int]]:
    """Tenant, and number of the last event, of each of the threads."""
    rows = await tx.fetch_dicts(
        "select thread_id, tenant_id, seq from threads where thread_id = any(%(threads)s)", {"threads": thread_ids}
    )
    return {row["thread_id"]: (row["tenant_id"], row["seq"]) for row in rows}
