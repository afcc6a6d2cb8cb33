"""Draft a report on refunds: a row of our own, written with its operation in one transaction; undoing deletes it."""

from datetime import timedelta
from typing import Any

from psycopg.types.json import Jsonb
from pydantic import Field, JsonValue, model_validator

from placet.record.database import Transaction
from tools import contract
from tools.contract import Observed, Preview, Receipt, Tier, Tool
from tools.shop import operations
from tools.shop.amounts import amount
from tools.shop.shop import Shop
from tools.shop.words import Day, Text

KINDS = ("due", "refunded", "not_refundable")


class ReportArguments(contract.Arguments):
    """What the report is about: a batch or a day, or all refunds when neither is named."""

    batch: Text | None = None
    day: Day | None = Field(default=None, description="The day the orders were placed, e.g. 2010-12-20 (UTC).")
    title: Text | None = None

    @model_validator(mode="after")
    def _one_of(self) -> "ReportArguments":
        if self.batch is not None and self.day is not None:
            raise ValueError("expected a batch or a day, got both; name one of them")
        return self


class DraftRefundReport(Tool[ReportArguments, contract.NoFacts]):
    """Write a draft report on refunds: how many are due, refunded and not refundable, and what they come to.

    Only the shop sees the draft. It can be undone, which deletes it.
    """

    name = "draft_refund_report"
    Arguments = ReportArguments
    tier = Tier.reversible
    effect_class = "reports.draft"
    idempotency_window = timedelta.max  # the row of an operation stays

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    def resources(self, args: ReportArguments) -> list[str]:
        """The batch or the day."""
        if args.batch is not None:
            return [f"batch:{args.batch}"]
        return [f"day:{args.day}"] if args.day is not None else []

    async def preview(self, args: ReportArguments, facts: contract.NoFacts) -> Preview:
        """What the draft would say."""
        async with self._shop.database.read() as tx:
            body = await _body(tx, self._shop.tenant, args)
        return Preview(
            title=f"Draft a report: {_title(args)}",
            impact=["1 draft is written; nobody outside the shop sees it", _in_one_sentence(body)],
            reversible=True,
        )

    async def execute(self, args: ReportArguments, operation_id: str) -> Receipt:
        """Count, and write the draft; again under the same operation id: the stored receipt."""

        async def change(tx: Transaction) -> Receipt:
            body = await _body(tx, self._shop.tenant, args)
            report_id = f"report-{operation_id}"
            await tx.execute(
                """
                insert into shop.reports (tenant_id, report_id, operation_id, title, body)
                values (%(tenant)s, %(report)s, %(operation)s, %(title)s, %(body)s)
                """,
                {
                    "tenant": self._shop.tenant,
                    "report": report_id,
                    "operation": operation_id,
                    "title": _title(args),
                    "body": Jsonb(body),
                },
            )
            return Receipt(
                external_id=operation_id,
                summary=f"Drafted {_title(args)!r}. {_in_one_sentence(body)}.",
                data={"report_id": report_id, "report": body},
            )

        return await operations.once(self._shop, operation_id, self.name, args, change)

    async def observe(self, args: ReportArguments, operation_id: str) -> Observed:
        """The operation's own row says it."""
        return await operations.look_up(self._shop.database, self._shop.tenant, operation_id)

    async def undo(self, args: ReportArguments, receipt: Receipt, operation_id: str) -> Receipt:
        """Delete the draft that the operation of `receipt` wrote. Raises `Refused` when that has been done."""

        async def change(tx: Transaction) -> Receipt:
            removed = await tx.execute(
                "delete from shop.reports where tenant_id = %(tenant)s and operation_id = %(operation)s",
                {"tenant": self._shop.tenant, "operation": receipt.external_id},
            )
            return Receipt(
                external_id=operation_id,
                summary=f"Deleted the draft {_title(args)!r}." if removed else "The draft was gone already.",
                data={"removed": removed},
            )

        return await operations.once(
            self._shop, operation_id, f"undo {self.name}", args, change, undoes=receipt.external_id
        )


async def _body(tx: Transaction, tenant: str, args: ReportArguments) -> dict[str, JsonValue]:
    """Per kind of refund the count and a total per currency, and why some cannot be refunded."""
    rows = await tx.fetch_dicts(
        """
        select r.status, r.currency, count(*) as count, sum(r.minor)::bigint as minor
          from shop.refunds_due r
          join shop.orders o using (tenant_id, order_id)
         where r.tenant_id = %(tenant)s
           and (%(batch)s::text is null or r.batch = %(batch)s)
           and (%(day)s::date is null or (o.placed_at at time zone 'UTC')::date = %(day)s::date)
         group by r.status, r.currency
         order by r.status, r.currency
        """,
        {"tenant": tenant, "batch": args.batch, "day": args.day},
    )
    return {kind: _kind([row for row in rows if row["status"] == kind]) for kind in KINDS}


def _kind(rows: list[dict[str, Any]]) -> dict[str, JsonValue]:
    return {
        "count": sum(row["count"] for row in rows),
        "totals": [amount(row["minor"], row["currency"]) for row in rows],
    }


def _in_one_sentence(body: dict[str, Any]) -> str:
    """`38 due (4,120.00 EUR), 0 refunded, 2 not refundable (31.00 EUR)`."""
    parts = []
    for kind in KINDS:
        money = " and ".join(total["text"] for total in body[kind]["totals"])
        parts.append(f"{body[kind]['count']:,} {kind.replace('_', ' ')}" + (f" ({money})" if money else ""))
    return ", ".join(parts)


def _title(args: ReportArguments) -> str:
    about = f"batch {args.batch}" if args.batch else f"orders of {args.day}" if args.day else "all batches"
    return args.title or f"Refunds of {about}"
