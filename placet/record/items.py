"""Plan items: the calls that a turn's model proposed, each with one verdict and, in the end, one result (G1, G2, G5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from psycopg.types.json import Jsonb

from placet.record import events, ids
from placet.record.database import Transaction
from placet.record.errors import Tampered
from placet.record.runs import Owned

Status = Literal[
    "proposed",
    "invalid",
    "denied",
    "deferred",
    "awaiting_approval",
    "approved",
    "executing",
    "completed",
    "failed",
    "rejected",
    "expired",
    "superseded",
    "cancelled",
    "orphaned",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class Item:
    """One tool call of a turn, as its row says."""

    item_id: UUID
    thread_id: UUID
    turn_id: UUID
    step: int
    ordinal: int
    call_id: str
    tool: str
    proposed: dict[str, Any]
    mode: str | None
    schema_version: str | None
    arguments: bytes | None
    facts: dict[str, Any] | None
    verdict: dict[str, Any] | None
    status: Status
    result: dict[str, Any] | None
    proposed_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Proposed:
    """A call as the model's answer has it."""

    call_id: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gated:
    """What the gate says of one call: ended with a result, or frozen with a verdict."""

    item_id: UUID
    status: Status
    mode: str | None = None
    schema_version: str | None = None
    arguments: bytes | None = None
    facts: dict[str, Any] | None = None
    verdict: dict[str, Any] | None = None
    result: dict[str, Any] | None = None


async def recorded_answer(tx: Transaction, tenant: str, turn_id: UUID, step: int) -> dict[str, Any] | None:
    """The model's answer of this step when there is one: then it counts, and the model is not asked again (G1)."""
    answer: dict[str, Any] | None = await tx.fetch_value(
        """
        select answer from model_answers
         where turn_id = %(turn)s and step = %(step)s and tenant_id = %(tenant)s
        """,
        {"turn": turn_id, "step": step, "tenant": tenant},
    )
    return answer


async def record_answer(
    tx: Transaction, owned: Owned, step: int, answer: dict[str, Any], calls: Sequence[Proposed], *, rationale: str
) -> None:
    """Store the model's answer and its calls as plan items, before anything acts on them (G1)."""
    await events.append(
        tx,
        owned.thread_id,
        "plan_updated",
        {
            "step": step,
            "text": rationale,
            "calls": [{"tool": call.tool, "arguments": call.arguments} for call in calls],
        },
        turn_id=owned.turn_id,
        epoch=owned.epoch,
    )
    await tx.execute(
        """
        insert into model_answers (turn_id, step, tenant_id, answer)
        values (%(turn)s, %(step)s, %(tenant)s, %(answer)s)
        """,
        {"turn": owned.turn_id, "step": step, "tenant": owned.tenant_id, "answer": Jsonb(answer)},
    )
    await tx.execute(
        """
        update turns set steps = greatest(steps, %(step)s), updated_at = clock()
         where turn_id = %(turn)s
        """,
        {"turn": owned.turn_id, "step": step},
    )
    if calls:
        await tx.execute_many(
            """
            insert into plan_items (item_id, tenant_id, thread_id, turn_id, step, ordinal, call_id, tool, proposed)
            values (%(item)s, %(tenant)s, %(thread)s, %(turn)s, %(step)s, %(ordinal)s, %(call)s, %(tool)s, %(proposed)s)
            """,
            [
                {
                    "item": ids.item_id(owned.thread_id, owned.turn_id, step, ordinal),
                    "tenant": owned.tenant_id,
                    "thread": owned.thread_id,
                    "turn": owned.turn_id,
                    "step": step,
                    "ordinal": ordinal,
                    "call": call.call_id,
                    "tool": call.tool,
                    "proposed": Jsonb(call.arguments),
                }
                for ordinal, call in enumerate(calls)
            ],
        )


_ITEM = """
    select item_id, thread_id, turn_id, step, ordinal, call_id, tool, proposed, mode, schema_version, arguments, facts,
           verdict, status, result, proposed_at, started_at, finished_at
      from plan_items
"""


async def of_step(tx: Transaction, tenant: str, turn_id: UUID, step: int) -> list[Item]:
    """The calls of one model answer, in the model's order."""
    return await tx.fetch_all(
        Item,
        _ITEM + "where tenant_id = %(tenant)s and turn_id = %(turn)s and step = %(step)s order by ordinal",
        {"tenant": tenant, "turn": turn_id, "step": step},
    )


async def of_turn(tx: Transaction, tenant: str, turn_id: UUID) -> list[Item]:
    """All calls of a turn, in the model's order."""
    return await tx.fetch_all(
        Item,
        _ITEM + "where tenant_id = %(tenant)s and turn_id = %(turn)s order by step, ordinal",
        {"tenant": tenant, "turn": turn_id},
    )


async def get(tx: Transaction, tenant: str, turn_id: UUID, item_id: UUID) -> Item:
    """A call of the turn; raises `Tampered` when the state names another one's."""
    item = await tx.fetch_one(
        Item,
        _ITEM + "where tenant_id = %(tenant)s and turn_id = %(turn)s and item_id = %(item)s",
        {"tenant": tenant, "turn": turn_id, "item": item_id},
    )
    if item is None:
        raise Tampered(f"The state names the call {item_id}, which is none of turn {turn_id}.")
    return item


async def freeze(tx: Transaction, gated: Sequence[Gated]) -> None:
    """Freeze what the gate decided (G2); a call that was frozen before keeps its verdict."""
    await tx.execute_many(
        """
        update plan_items
           set status = %(status)s, mode = %(mode)s, schema_version = %(schema)s, arguments = %(arguments)s,
               facts = %(facts)s, verdict = %(verdict)s, result = %(result)s, gated_at = clock(),
               finished_at = case when %(ended)s then clock() end
         where item_id = %(item)s and gated_at is null and status = 'proposed'
        """,
        [
            {
                "item": call.item_id,
                "status": call.status,
                "mode": call.mode,
                "schema": call.schema_version,
                "arguments": call.arguments,
                "facts": Jsonb(call.facts) if call.facts is not None else None,
                "verdict": Jsonb(call.verdict) if call.verdict is not None else None,
                "result": Jsonb(call.result) if call.result is not None else None,
                "ended": call.result is not None,
            }
            for call in gated
        ],
    )


async def move(tx: Transaction, item_id: UUID, status: Status) -> None:
    """An open call goes on: approved, executing, unknown, awaiting approval again."""
    await tx.execute(
        """
        update plan_items
           set status = %(status)s,
               started_at = case when %(status)s = 'executing' then coalesce(started_at, clock()) else started_at end
         where item_id = %(item)s and result is null
        """,
        {"item": item_id, "status": status},
    )


async def finish(tx: Transaction, item_id: UUID, status: Status, result: dict[str, Any]) -> bool:
    """Give the call its one result (G5); False when it has one already, which then stands."""
    return bool(
        await tx.execute(
            """
            update plan_items set status = %(status)s, result = %(result)s, finished_at = clock()
             where item_id = %(item)s and result is null
            """,
            {"item": item_id, "status": status, "result": Jsonb(result)},
        )
    )
