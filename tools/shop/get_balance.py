"""What the shop still holds of a batch's, a customer's or an order's money. Read only; one query."""

from pydantic import Field, JsonValue, model_validator

from tools import contract
from tools.contract import Tier, Tool
from tools.shop.amounts import amount
from tools.shop.shop import Shop
from tools.shop.words import Day, Id, Text


class BalanceArguments(contract.Arguments):
    """Whose money: at least one of them; with several, all have to hold."""

    batch: Text | None = None
    day: Day | None = Field(default=None, description="The day the orders were placed, e.g. 2010-12-20 (UTC).")
    customer_id: Id | None = None
    order_id: Id | None = None

    @model_validator(mode="after")
    def _something(self) -> "BalanceArguments":
        if (self.batch, self.day, self.customer_id, self.order_id) == (None, None, None, None):
            raise ValueError("expected a batch, a day, a customer_id or an order_id, got none; name one")
        return self


class GetBalance(Tool[BalanceArguments, contract.NoFacts]):
    """What was captured, refunded, and is left, per currency: of a batch, day, customer or order."""

    name = "get_balance"
    Arguments = BalanceArguments
    tier = Tier.read_only

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    async def execute(self, args: BalanceArguments, operation_id: str = "") -> dict[str, JsonValue]:
        """`{balances: [{currency, captured, refunded, refunds_due, balance, payments}]}`, amounts as
        `{minor, currency, text}`; balance is captured minus refunded. No money: an empty list."""
        async with self._shop.database.read() as tx:
            rows = await tx.fetch_dicts(
                """
                select p.currency,
                       count(*) as payments,
                       sum(p.minor)::bigint as captured,
                       coalesce(sum(r.minor) filter (where r.status = 'refunded'), 0)::bigint as refunded,
                       coalesce(sum(r.minor) filter (where r.status = 'due'), 0)::bigint as due
                  from shop.payments p
                  join shop.orders o using (tenant_id, order_id)
                  left join shop.refunds_due r using (tenant_id, payment_id)
                 where p.tenant_id = %(tenant)s
                   and (%(batch)s::text is null or o.batch = %(batch)s)
                   and (%(day)s::date is null
                        or (o.placed_at >= %(day)s::date::timestamp at time zone 'UTC'
                            and o.placed_at < (%(day)s::date + 1)::timestamp at time zone 'UTC'))
                   and (%(customer)s::text is null or o.customer_id = %(customer)s)
                   and (%(order)s::text is null or o.order_id = %(order)s)
                 group by p.currency
                 order by p.currency
                """,
                {
                    "tenant": self._shop.tenant,
                    "batch": args.batch,
                    "day": args.day,
                    "customer": args.customer_id,
                    "order": args.order_id,
                },
            )
        return {
            "balances": [
                {
                    "currency": row["currency"],
                    "payments": row["payments"],
                    "captured": amount(row["captured"], row["currency"]),
                    "refunded": amount(row["refunded"], row["currency"]),
                    "refunds_due": amount(row["due"], row["currency"]),
                    "balance": amount(row["captured"] - row["refunded"], row["currency"]),
                }
                for row in rows
            ]
        }
