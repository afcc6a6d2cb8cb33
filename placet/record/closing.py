"""Closing the calls of a turn that ends early: cancelled, superseded, or broken off (T3, T4, G5).

What was sent is left alone: a closing run finds out what became of it.
"""

from typing import Any, Literal
from uuid import UUID

from psycopg.types.json import Jsonb

from placet.record import events
from placet.record.database import Transaction


async def close_calls(
    tx: Transaction,
    thread_id: UUID,
    turn_id: UUID,
    status: Literal["cancelled", "superseded", "failed"],
    result: dict[str, Any],
    *,
    because: str,
) -> list[str]:
    """Calls that were not sent end with `result`, and what was asked about them is closed; ids of those approvals."""
    approvals = "superseded" if status == "superseded" else "cancelled"
    closed = await tx.fetch_dicts(
        """
        update approvals a set status = %(approvals)s, closed_at = clock(), closed_because = %(because)s
         where turn_id = %(turn)s
           and (status = 'pending'
                or status = 'approved'
                   and not exists (select 1 from effects e where e.approval_id = a.approval_id and e.status <> 'absent'))
        returning approval_id, item_id
        """,
        {"turn": turn_id, "because": because, "approvals": approvals},
    )
    await tx.execute(
        """
        update plan_items i
           set status = case when %(status)s = 'superseded' and i.status in ('executing', 'unknown') then 'cancelled'
                             else %(status)s end,
               result = %(result)s, finished_at = clock()
         where turn_id = %(turn)s and result is null
           and not exists (select 1 from effects e where e.item_id = i.item_id and e.status <> 'absent')
        """,
        {"turn": turn_id, "status": status, "result": Jsonb(result)},
    )
    for approval in closed:
        await events.append(
            tx,
            thread_id,
            "approval_closed",
            {"approval_id": str(approval["approval_id"]), "status": approvals, "because": because},
            turn_id=turn_id,
            item_id=approval["item_id"],
        )
    return [str(approval["approval_id"]) for approval in closed]
