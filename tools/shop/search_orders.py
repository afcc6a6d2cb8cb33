"""Search orders, and what of their money has to go back. Read only; three queries, however many rows."""

from typing import Any, Literal, LiteralString

from pydantic import Field, JsonValue

from placet.record.database import Transaction
from tools import contract
from tools.contract import Tier, Tool
from tools.shop.amounts import amount
from tools.shop.shop import Shop
from tools.shop.words import Day, Ids, Text

Status = Literal["paid", "shipped", "delivered", "completed", "failed", "cancelled"]


class SearchArguments(contract.Arguments):
    """What to look for; everything that is named has to hold."""

    batch: Text | None = Field(default=None, description="A batch, e.g. NOV-17.")
    status: Status | None = None
    day: Day | None = Field(default=None, description="The day the order was placed, e.g. 2010-12-20 (UTC).")
    customer: Text | None = Field(default=None, description="A customer's id, or a part of the name.")
    order_ids: Ids | None = Field(default=None, description="Order or invoice numbers.")
    refunds_due: bool = Field(default=False, description="Only orders whose money has to go back and has not yet.")
    limit: int = Field(default=100, ge=1, le=500)


class SearchOrders(Tool[SearchArguments, contract.NoFacts]):
    """Find orders by batch, status, day, customer or number; with refunds_due=true those whose money has to go back.

    `count` and `totals` are over everything that was found, `more` says how many rows are not shown. With
    refunds_due=true they are about the refunds. `not_refundable` lists what cannot be refunded, and why.
    """

    name = "search_orders"
    Arguments = SearchArguments
    tier = Tier.read_only

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    async def execute(self, args: SearchArguments, operation_id: str = "") -> dict[str, JsonValue]:
        """`{count, totals: [{minor, currency, text}], rows: [{order_id, …, refund_due_id, refund}], more,
        not_refundable: {count, totals, rows: [{…, why}], more}}`."""
        where = {
            "tenant": self._shop.tenant,
            "batch": args.batch,
            "status": args.status,
            "day": args.day,
            "customer": args.customer,
            "ids": args.order_ids,
            "due": args.refunds_due,
            "limit": args.limit,
        }
        async with self._shop.database.read() as tx:
            found, hopeless = await _counts(tx, where)
            rows = await _rows(tx, where)
            why = await _not_refundable(tx, where) if hopeless else []
        count, not_refundable = (sum(total["count"] for total in totals) for totals in (found, hopeless))
        return {
            "count": count,
            "totals": [amount(total["minor"], total["currency"]) for total in found],
            "rows": [_row(row) for row in rows],
            "more": count - len(rows),
            "not_refundable": {
                "count": not_refundable,
                "totals": [amount(total["minor"], total["currency"]) for total in hopeless],
                "rows": [_hopeless(row) for row in why],
                "more": not_refundable - len(why),
            },
        }


# The orders that match, with their refund; the three queries below look at them in three ways (S608: all constants).
MATCHING: LiteralString = """
          from shop.orders o
          left join shop.refunds_due r using (tenant_id, order_id)
          left join shop.customers c using (tenant_id, customer_id)
         where o.tenant_id = %(tenant)s
           and (%(batch)s::text is null or o.batch = %(batch)s)
           and (%(status)s::text is null or o.status = %(status)s)
           and (%(day)s::date is null
                or (o.placed_at >= %(day)s::date::timestamp at time zone 'UTC'
                    and o.placed_at < (%(day)s::date + 1)::timestamp at time zone 'UTC'))
           and (%(customer)s::text is null
                or c.customer_id = %(customer)s
                or position(lower(%(customer)s) in lower(c.name)) > 0)
           and (%(ids)s::text[] is null or o.order_id = any(%(ids)s))
"""


async def _counts(tx: Transaction, where: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Count and sum per currency: of what was found, and of what cannot be refunded."""
    rows = await tx.fetch_dicts(
        """
        with matching as (
            select o.minor, o.currency, r.status as refund, r.minor as refund_minor, r.currency as refund_currency
        """  # noqa: S608
        + MATCHING
        + """
        )
        select 'found' as what, currency, count(*) as count, sum(minor)::bigint as minor
          from matching
         where not %(due)s
         group by currency
        union all
        select 'found', refund_currency, count(*), sum(refund_minor)::bigint
          from matching
         where %(due)s and refund = 'due'
         group by refund_currency
        union all
        select 'not_refundable', refund_currency, count(*), sum(refund_minor)::bigint
          from matching
         where refund = 'not_refundable'
         group by refund_currency
         order by what, currency
        """,
        where,
    )
    return [row for row in rows if row["what"] == "found"], [row for row in rows if row["what"] != "found"]


async def _rows(tx: Transaction, where: dict[str, Any]) -> list[dict[str, Any]]:
    """What was found, oldest first."""
    return await tx.fetch_dicts(
        """
        select o.order_id, o.batch, o.status, o.placed_at at time zone 'UTC' as placed_at, o.minor, o.currency,
               o.customer_id, c.name as customer, r.refund_due_id, r.status as refund_status,
               r.minor as refund_minor, r.currency as refund_currency, r.reason, r.operation_id,
               array(select tag
                       from shop.tags t
                      where t.tenant_id = o.tenant_id and t.order_id = o.order_id
                      order by tag) as tags
        """  # noqa: S608
        + MATCHING
        + """
           and (not %(due)s or r.status = 'due')
         order by o.placed_at, o.order_id
         limit %(limit)s
        """,
        where,
    )


async def _not_refundable(tx: Transaction, where: dict[str, Any]) -> list[dict[str, Any]]:
    """What cannot be refunded among the orders that match, oldest first."""
    return await tx.fetch_dicts(
        """
        select o.order_id, o.batch, o.customer_id, c.name as customer, r.refund_due_id, r.minor, r.currency, r.why_not
        """
        + MATCHING
        + """
           and r.status = 'not_refundable'
         order by o.placed_at, o.order_id
         limit %(limit)s
        """,
        where,
    )


def _row(row: dict[str, Any]) -> dict[str, JsonValue]:
    """An order for the model: amounts with their text, and its refund if it has one."""
    refund: dict[str, JsonValue] | None = None
    if row["refund_due_id"] is not None:
        on_its_way = row["refund_status"] == "due" and row["operation_id"] is not None
        refund = {
            "status": "on_its_way" if on_its_way else row["refund_status"],
            "reason": row["reason"],
            **amount(row["refund_minor"], row["refund_currency"]),
        }
    return {
        "order_id": row["order_id"],
        "batch": row["batch"],
        "status": row["status"],
        "placed_at": f"{row['placed_at']:%Y-%m-%d %H:%M} UTC",
        "customer_id": row["customer_id"],
        "customer": row["customer"],
        **amount(row["minor"], row["currency"]),
        "refund_due_id": row["refund_due_id"],
        "refund": refund,
        "tags": row["tags"],
    }


def _hopeless(row: dict[str, Any]) -> dict[str, JsonValue]:
    """A refund that cannot be made, and why."""
    return {
        "refund_due_id": row["refund_due_id"],
        "order_id": row["order_id"],
        "batch": row["batch"],
        "customer_id": row["customer_id"],
        "customer": row["customer"],
        **amount(row["minor"], row["currency"]),
        "why": row["why_not"],
    }
