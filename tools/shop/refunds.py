"""Refunds that are due: what they are, who sends them, what became of them.

A refund is sent by one operation. `claim` takes it in a transaction of its own before the gateway is called, so two
calls that name the same refund never both send it; `settle` records the gateway's answer and may run twice; `release`
gives back what the gateway confirmed that it never saw. Rows are locked in the order of their ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from placet.record.database import Transaction
from tools.contract import Line


@dataclass(frozen=True, slots=True)
class Refund:
    """One refund with its order's customer; `operation_id` on a due one means that the money is on its way."""

    refund_due_id: str
    order_id: str
    payment_id: str | None
    batch: str
    minor: int
    currency: str
    reason: str
    status: Literal["due", "refunded", "not_refundable"]
    why_not: str | None
    operation_id: str | None
    customer_id: str | None
    customer: str | None

    @property
    def due(self) -> bool:
        """True until it is refunded or cannot be; also while it is on its way."""
        return self.status == "due"

    @property
    def hindrance(self) -> str | None:
        """Why a new call may not send it, in a few words; None when it may."""
        if self.status == "not_refundable":
            return f"not refundable: {self.why_not}"
        if self.operation_id is None:
            return None
        verb = "already refunded" if self.status == "refunded" else "on its way"
        return f"{verb} under operation {self.operation_id}"


@dataclass(frozen=True, slots=True)
class Due:
    """What is due of a list of ids, counted by the database. `total` and `largest` are minor units; with several
    currencies they are sums over all of them, which no rule may take for money."""

    count: int
    total: int
    largest: int
    currencies: list[str]
    due_in_batches: int


async def named(tx: Transaction, tenant: str, ids: Sequence[str]) -> list[Refund]:
    """The refunds of these ids that exist, in the order of the list."""
    rows = await tx.fetch_all(
        Refund,
        """
        select r.refund_due_id, r.order_id, r.payment_id, r.batch, r.minor, r.currency, r.reason, r.status, r.why_not,
               r.operation_id, o.customer_id, c.name as customer
          from shop.refunds_due r
          join shop.orders o using (tenant_id, order_id)
          left join shop.customers c using (tenant_id, customer_id)
         where r.tenant_id = %(tenant)s and r.refund_due_id = any(%(ids)s)
        """,
        {"tenant": tenant, "ids": list(ids)},
    )
    found = {row.refund_due_id: row for row in rows}
    return [found[one] for one in ids if one in found]


async def count_due(tx: Transaction, tenant: str, ids: Sequence[str]) -> Due:
    """What is due of these ids, and how many refunds are due in all the batches that they touch."""
    due = await tx.fetch_one(
        Due,
        """
        with named as (
            select batch, status, minor, currency
              from shop.refunds_due
             where tenant_id = %(tenant)s and refund_due_id = any(%(ids)s)
        )
        select count(*) as count,
               coalesce(sum(minor), 0)::bigint as total,
               coalesce(max(minor), 0) as largest,
               coalesce(array_agg(distinct currency), '{}') as currencies,
               (select count(*)
                  from shop.refunds_due
                 where tenant_id = %(tenant)s
                   and status = 'due'
                   and batch in (select batch from named)) as due_in_batches
          from named
         where status = 'due'
        """,
        {"tenant": tenant, "ids": list(ids)},
    )
    assert due is not None  # an aggregate always has its row
    return due


async def claim(tx: Transaction, tenant: str, ids: Sequence[str], operation_id: str) -> list[Refund]:
    """Take what `operation_id` may send of these ids, and return all of them that exist, as they are now.

    An operation that has claimed before keeps what it took, no more: its batch stays the same when it is sent again.
    """
    await tx.execute(
        """
        with named as materialized (
            select refund_due_id, status, operation_id
              from shop.refunds_due
             where tenant_id = %(tenant)s and refund_due_id = any(%(ids)s)
             order by refund_due_id
               for update
        )
        update shop.refunds_due r
           set operation_id = %(operation)s
          from named n
         where r.tenant_id = %(tenant)s
           and r.refund_due_id = n.refund_due_id
           and n.status = 'due'
           and n.operation_id is null
           and not exists (select from named where operation_id = %(operation)s)
        """,
        {"tenant": tenant, "ids": list(ids), "operation": operation_id},
    )
    return await named(tx, tenant, ids)


async def settle(tx: Transaction, tenant: str, operation_id: str, lines: Sequence[Line]) -> int:
    """Record what the gateway said of each line of `operation_id`; returns how many rows changed (0 the second time).

    A line that the gateway refused is not refundable from then on, with the gateway's reason.
    """
    return await tx.execute(
        """
        with answered as (
            select * from unnest(%(refs)s::text[], %(externals)s::text[], %(reasons)s::text[])
                       as a (ref, external_id, reason)
        ), locked as materialized (
            select refund_due_id
              from shop.refunds_due
             where tenant_id = %(tenant)s and refund_due_id = any(%(refs)s) and operation_id = %(operation)s
               and status = 'due'
             order by refund_due_id
               for update
        )
        update shop.refunds_due r
           set status = case when a.external_id is null then 'not_refundable' else 'refunded' end,
               why_not = case when a.external_id is null then 'the gateway refused: ' || a.reason end,
               external_id = a.external_id,
               refunded_at = case when a.external_id is not null then now() end
          from answered a
          join locked l on l.refund_due_id = a.ref
         where r.tenant_id = %(tenant)s and r.refund_due_id = a.ref
        """,
        {
            "tenant": tenant,
            "operation": operation_id,
            "refs": [line.ref for line in lines],
            "externals": [line.external_id for line in lines],
            "reasons": [line.reason for line in lines],
        },
    )


async def release(tx: Transaction, tenant: str, operation_id: str) -> int:
    """Nothing was sent under `operation_id`: what it had claimed is anybody's again. Returns how many that were."""
    return await tx.execute(
        """
        with locked as materialized (
            select refund_due_id
              from shop.refunds_due
             where tenant_id = %(tenant)s and operation_id = %(operation)s and status = 'due'
             order by refund_due_id
               for update
        )
        update shop.refunds_due r
           set operation_id = null
          from locked l
         where r.tenant_id = %(tenant)s and r.refund_due_id = l.refund_due_id
        """,
        {"tenant": tenant, "operation": operation_id},
    )


@dataclass(frozen=True, slots=True)
class Totals:
    """Count and sum of the refunds of one status and currency; `on_its_way` is what of the due has been claimed."""

    status: Literal["due", "on_its_way", "refunded", "not_refundable"]
    currency: str
    count: int
    minor: int


async def totals(tx: Transaction, tenant: str, *, batch: str | None, day: str | None) -> list[Totals]:
    """What is due, on its way, refunded and not refundable: of a batch, of a day (UTC), or of all."""
    return await tx.fetch_all(
        Totals,
        """
        select case when r.status = 'due' and r.operation_id is not null then 'on_its_way' else r.status end as status,
               r.currency, count(*) as count, sum(r.minor)::bigint as minor
          from shop.refunds_due r
          join shop.orders o using (tenant_id, order_id)
         where r.tenant_id = %(tenant)s
           and (%(batch)s::text is null or r.batch = %(batch)s)
           and (%(day)s::date is null or (o.placed_at at time zone 'UTC')::date = %(day)s::date)
         group by 1, 2
         order by 1, 2
        """,
        {"tenant": tenant, "batch": batch, "day": day},
    )


async def listing(tx: Transaction, tenant: str, *, batch: str | None, day: str | None, limit: int) -> list[Refund]:
    """The refunds of a batch, of a day, or of all; by batch and id."""
    return await tx.fetch_all(
        Refund,
        """
        select r.refund_due_id, r.order_id, r.payment_id, r.batch, r.minor, r.currency, r.reason, r.status, r.why_not,
               r.operation_id, o.customer_id, c.name as customer
          from shop.refunds_due r
          join shop.orders o using (tenant_id, order_id)
          left join shop.customers c using (tenant_id, customer_id)
         where r.tenant_id = %(tenant)s
           and (%(batch)s::text is null or r.batch = %(batch)s)
           and (%(day)s::date is null or (o.placed_at at time zone 'UTC')::date = %(day)s::date)
         order by r.batch, r.refund_due_id
         limit %(limit)s
        """,
        {"tenant": tenant, "batch": batch, "day": day, "limit": limit},
    )
