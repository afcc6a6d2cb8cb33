"""Import a real shop's export: every line is stored and accounted for; a cancelled invoice becomes a refund that is due.

An invoice becomes an order, in the batch of its day (`2010-12-20`). One whose number begins with C cancels: its lines,
whatever their codes, add up to what has to go back. Without a customer nobody knows whose money it is: not refundable.

The file has no payments. So that a refund can run the whole way, the money of a cancelled invoice is assumed to have been
captured in full: it gets a payment marked `assumed`, and the gateway is told of it after the import has been committed.
(If the process dies in between, importing the file again tells the gateway, and changes nothing else.)

Lines are streamed into the database by COPY; adding up, finding duplicates and counting happen there, so memory does not
grow with the file.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

from psycopg import errors
from psycopg.types.json import Jsonb
from pydantic import BaseModel, ConfigDict, JsonValue

from placet.record.database import Transaction
from tools.money import exponent
from tools.shop.amounts import amount
from tools.shop.export import Export, Fingerprint, ImportProblem, Line, fingerprint
from tools.shop.gateway import CHUNK, Captured
from tools.shop.shop import Shop

LISTED = 100  # lines and invoices that a report names; the counts are always of all
TOLD_EVERY = 2_000  # lines between two calls of `progress`

Progress = Callable[[int, int], None]  # bytes read, of how many

# What was done with each kind of line; a line is of exactly one kind.
HANDLED = {
    "sale": "stored as part of its order",
    "cancellation": "stored; the lines of an invoice add up to what has to go back",
    "negative_quantity": "outside a cancellation: stored as part of its order",
    "zero_price": "stored as part of its order, worth nothing",
    "adjustment": "a price below zero: stored as part of its order",
    "known_invoice": "stored with this import; the order was there before and stays as it was",
    "blank": "nothing stands in it",
    "broken": "could not be read: stored with its number and the reason, part of no order",
}


class Broken(BaseModel):
    """A line that could not be read."""

    line: int
    problem: str
    raw: str


class Hopeless(BaseModel):
    """A cancelled invoice whose money cannot go back."""

    invoice: str
    day: str
    why: str


class Report(BaseModel):
    """What became of every line: `kinds` add up to `lines`. `notes` and `non_goods` count lines again, by what is odd
    about them. Lists name the first 100, the counts are of all."""

    model_config = ConfigDict(frozen=True)

    file: str
    currency: str
    already_imported: bool = False
    lines: int
    kinds: dict[str, int]
    notes: dict[str, int]
    non_goods: dict[str, int]
    broken: list[Broken]
    customers: int  # new ones
    orders: int  # new ones, cancelled invoices among them
    invoices: dict[str, int]  # what is odd about invoices
    differing: list[str]  # invoices that were known with another amount
    refunds_due: int
    refunds_total: dict[str, JsonValue]  # minor, currency, text
    not_refundable: int
    not_refundable_invoices: list[Hopeless]


async def import_export(
    shop: Shop, export: Export, *, currency: str = "GBP", progress: Progress | None = None
) -> Report:
    """Import a file whole or not at all. The same bytes a second time change nothing and get the stored report, with
    `already_imported`.

    Raises `ImportProblem`: a column is missing, the file cannot be read, an invoice comes to what cannot be an amount.
    """
    seen = await asyncio.to_thread(fingerprint, export.path)
    tell = progress or (lambda done, of: None)
    try:
        async with shop.database.transaction() as tx:
            import_id, report = await _import(tx, shop.tenant, export, seen, currency, tell)
    except errors.CheckViolation as error:
        raise ImportProblem(
            f"An invoice of {export.path} comes to what cannot be an amount ({error.diag.message_primary}); "
            "correct the file. Nothing was stored."
        ) from error
    await _tell_the_gateway(shop, import_id)
    return report


async def _import(
    tx: Transaction, tenant: str, export: Export, seen: Fingerprint, currency: str, tell: Progress
) -> tuple[UUID, Report]:
    """All of it in one transaction; one import of a tenant at a time."""
    which: dict[str, Any] = {"tenant": tenant, "import": uuid4()}
    await tx.execute("select pg_advisory_xact_lock(hashtextextended('import ' || %(tenant)s, 0))", which)
    before = await tx.fetch_dicts(
        "select import_id, report from shop.imports where tenant_id = %(tenant)s and sha256 = %(sha256)s",
        which | {"sha256": seen.sha256},
    )
    if before:
        report = Report.model_validate(before[0]["report"])
        kinds = {kind: report.kinds[kind] for kind in HANDLED}  # jsonb keeps no order
        return before[0]["import_id"], report.model_copy(update={"already_imported": True, "kinds": kinds})
    await tx.execute(
        """
        insert into shop.imports (tenant_id, import_id, file_name, sha256, currency)
        values (%(tenant)s, %(import)s, %(file)s, %(sha256)s, %(currency)s)
        """,
        which | {"file": export.path.name, "sha256": seen.sha256, "currency": currency},
    )
    lines, non_goods = await _copy_lines(tx, which, export, seen.size, tell)
    await _mark_known(tx, which)
    customers = await _add_customers(tx, which)
    orders = await _add_orders(tx, which | {"currency": currency, "unit": 10 ** exponent(currency)})
    await _add_refunds(tx, which)
    report = Report(
        file=export.path.name,
        currency=currency,
        lines=lines,
        kinds=await _kinds(tx, which),
        notes=await _notes(tx, which),
        non_goods=dict(sorted(non_goods.items(), key=lambda item: (-item[1], item[0]))),
        broken=await _broken(tx, which),
        customers=customers,
        orders=orders,
        invoices=await _odd_invoices(tx, which | {"unit": 10 ** exponent(currency)}),
        differing=await _differing(tx, which | {"unit": 10 ** exponent(currency)}),
        **await _refunds(tx, which, currency),
    )
    if sum(report.kinds.values()) != lines:
        raise ImportProblem(f"{lines:,} lines were read and {sum(report.kinds.values()):,} stored; nothing was kept.")
    await tx.execute(
        "update shop.imports set report = %(report)s where tenant_id = %(tenant)s and import_id = %(import)s",
        which | {"report": Jsonb(report.model_dump(mode="json"))},
    )
    return which["import"], report


async def _copy_lines(
    tx: Transaction, which: dict[str, Any], export: Export, size: int, tell: Progress
) -> tuple[int, Counter[str]]:
    """Stream every line into the database; returns how many, and how many of each code that is no goods."""
    lines, non_goods = 0, Counter[str]()
    async with (
        tx.connection.cursor() as cursor,
        cursor.copy(
            """
            copy shop.import_lines
                 (tenant_id, import_id, line, kind, problem, raw, invoice, code, description, quantity, unit_price, at,
                  customer, country)
            from stdin
            """
        ) as copy,
    ):
        for line in export.lines():
            await copy.write_row((which["tenant"], which["import"], *_row(line)))
            lines += 1
            if code := line.non_goods:
                non_goods[code] += 1
            if lines % TOLD_EVERY == 0:
                tell(export.position, size)
    tell(size, size)
    return lines, non_goods


def _row(line: Line) -> tuple[object, ...]:
    return (
        line.number,
        line.kind,
        line.problem,
        line.raw,
        line.invoice,
        line.code,
        line.description,
        line.quantity,
        line.unit_price,
        line.at,
        line.customer,
        line.country,
    )


async def _mark_known(tx: Transaction, which: dict[str, Any]) -> None:
    """Lines of invoices that are orders already: they must not be counted twice."""
    await tx.execute(
        """
        update shop.import_lines l
           set kind = 'known_invoice'
          from shop.orders o
         where l.tenant_id = %(tenant)s and l.import_id = %(import)s
           and o.tenant_id = l.tenant_id and o.order_id = l.invoice
        """,
        which,
    )


async def _add_customers(tx: Transaction, which: dict[str, Any]) -> int:
    """An export has numbers, no names."""
    return await tx.execute(
        """
        insert into shop.customers (tenant_id, customer_id, name, country)
        select %(tenant)s, customer, 'Customer ' || customer, min(country)
          from shop.import_lines
         where tenant_id = %(tenant)s and import_id = %(import)s and customer is not null and kind <> 'known_invoice'
         group by customer
        on conflict (tenant_id, customer_id) do nothing
        """,
        which,
    )


async def _add_orders(tx: Transaction, which: dict[str, Any]) -> int:
    """One order per invoice. The lines of a cancelled one are negative; its order holds what had been paid."""
    return await tx.execute(
        """
        insert into shop.orders (tenant_id, order_id, customer_id, batch, status, minor, currency, placed_at, import_id)
        select %(tenant)s,
               invoice,
               case when count(distinct customer) = 1 then min(customer) end,
               to_char(min(at) at time zone 'UTC', 'YYYY-MM-DD'),
               case when bool_or(kind = 'cancellation') then 'cancelled' else 'completed' end,
               round(sum(quantity * unit_price) * %(unit)s)::bigint
                   * case when bool_or(kind = 'cancellation') then -1 else 1 end,
               %(currency)s,
               min(at),
               %(import)s
          from shop.import_lines
         where tenant_id = %(tenant)s and import_id = %(import)s and kind not in ('broken', 'blank', 'known_invoice')
         group by invoice
        """,
        which,
    )


async def _add_refunds(tx: Transaction, which: dict[str, Any]) -> None:
    """For each cancelled invoice that comes to something: a refund, and the payment that it is assumed to give back."""
    await tx.execute(
        """
        insert into shop.payments (tenant_id, payment_id, order_id, minor, currency, captured_at, assumed)
        select tenant_id, 'P-' || order_id, order_id, minor, currency, placed_at, true
          from shop.orders
         where tenant_id = %(tenant)s and import_id = %(import)s
           and status = 'cancelled' and minor > 0 and customer_id is not null
        """,
        which,
    )
    await tx.execute(
        """
        insert into shop.refunds_due
               (tenant_id, refund_due_id, order_id, payment_id, batch, minor, currency, reason, status, why_not, due_at)
        select o.tenant_id, 'R-' || o.order_id, o.order_id, p.payment_id, o.batch, o.minor, o.currency,
               'The invoice was cancelled.',
               case when p.payment_id is null then 'not_refundable' else 'due' end,
               case when p.payment_id is not null then null
                    when c.customers > 1 then 'its lines name ' || c.customers || ' customers'
                    else 'it names no customer, so nobody knows whose money it is'
               end,
               o.placed_at
          from shop.orders o
          left join shop.payments p using (tenant_id, order_id)
         cross join lateral (
               select count(distinct l.customer) as customers
                 from shop.import_lines l
                where l.tenant_id = o.tenant_id and l.import_id = o.import_id and l.invoice = o.order_id
         ) c
         where o.tenant_id = %(tenant)s and o.import_id = %(import)s and o.status = 'cancelled' and o.minor > 0
        """,
        which,
    )


async def _kinds(tx: Transaction, which: dict[str, Any]) -> dict[str, int]:
    """How many lines of each kind are stored."""
    rows = await tx.fetch_dicts(
        """
        select kind, count(*) as lines
          from shop.import_lines
         where tenant_id = %(tenant)s and import_id = %(import)s
         group by kind
        """,
        which,
    )
    return dict.fromkeys(HANDLED, 0) | {row["kind"]: row["lines"] for row in rows}


async def _notes(tx: Transaction, which: dict[str, Any]) -> dict[str, int]:
    """What is odd about lines that were read. A duplicate is each line that says all that an earlier one says; it is
    kept, since the same thing can be sold twice on one invoice."""
    (row,) = await tx.fetch_dicts(
        """
        with same as (
            select count(*) as lines, customer, description, quantity, unit_price, code, country
              from shop.import_lines
             where tenant_id = %(tenant)s and import_id = %(import)s and kind not in ('broken', 'blank')
             group by invoice, code, description, quantity, unit_price, at, customer, country
        )
        select coalesce(sum(lines) filter (where customer is null), 0)::bigint as missing_customer,
               coalesce(sum(lines) filter (where description = ''), 0)::bigint as no_description,
               coalesce(sum(lines) filter (where code = ''), 0)::bigint as no_code,
               coalesce(sum(lines) filter (where country = ''), 0)::bigint as no_country,
               coalesce(sum(lines) filter (where unit_price = 0), 0)::bigint as price_of_zero,
               coalesce(sum(lines) filter (where quantity = 0), 0)::bigint as quantity_of_zero,
               coalesce(sum(lines - 1), 0)::bigint as duplicate
          from same
        """,
        which,
    )
    return row


async def _broken(tx: Transaction, which: dict[str, Any]) -> list[Broken]:
    return await tx.fetch_all(
        Broken,
        """
        select line, problem, raw
          from shop.import_lines
         where tenant_id = %(tenant)s and import_id = %(import)s and kind = 'broken'
         order by line
         limit %(limit)s
        """,
        which | {"limit": LISTED},
    )


async def _odd_invoices(tx: Transaction, which: dict[str, Any]) -> dict[str, int]:
    """Cancelled ones that come to nothing or less, and so have no refund; ones with several customers; ones whose sum is
    no whole number of minor units and was rounded."""
    (row,) = await tx.fetch_dicts(
        """
        with invoices as (
            select sum(quantity * unit_price) * %(unit)s as minor,
                   count(distinct customer) as customers,
                   bool_or(kind = 'cancellation') as cancelled
              from shop.import_lines
             where tenant_id = %(tenant)s and import_id = %(import)s
               and kind not in ('broken', 'blank', 'known_invoice')
             group by invoice
        )
        select count(*) filter (where cancelled and round(minor) >= 0) as nothing_to_refund,
               count(*) filter (where customers > 1) as several_customers,
               count(*) filter (where minor <> round(minor)) as rounded
          from invoices
        """,
        which,
    )
    return row


async def _differing(tx: Transaction, which: dict[str, Any]) -> list[str]:
    """Invoices that were known and come to another amount in this file: people have to look."""
    rows = await tx.fetch_dicts(
        """
        select o.order_id
          from shop.import_lines l
          join shop.orders o on o.tenant_id = l.tenant_id and o.order_id = l.invoice
         where l.tenant_id = %(tenant)s and l.import_id = %(import)s and l.kind = 'known_invoice'
         group by o.order_id, o.minor, o.status
        having round(sum(l.quantity * l.unit_price) * %(unit)s)
               <> o.minor * case when o.status = 'cancelled' then -1 else 1 end
         order by o.order_id
         limit %(limit)s
        """,
        which | {"limit": LISTED},
    )
    return [row["order_id"] for row in rows]


async def _refunds(tx: Transaction, which: dict[str, Any], currency: str) -> dict[str, Any]:
    """What is due now, and what is not refundable and why."""
    (row,) = await tx.fetch_dicts(
        """
        select count(*) filter (where r.status = 'due') as due,
               coalesce(sum(r.minor) filter (where r.status = 'due'), 0)::bigint as minor,
               count(*) filter (where r.status = 'not_refundable') as hopeless
          from shop.refunds_due r
          join shop.orders o using (tenant_id, order_id)
         where r.tenant_id = %(tenant)s and o.import_id = %(import)s
        """,
        which,
    )
    hopeless = await tx.fetch_all(
        Hopeless,
        """
        select o.order_id as invoice, o.batch as day, r.why_not as why
          from shop.refunds_due r
          join shop.orders o using (tenant_id, order_id)
         where r.tenant_id = %(tenant)s and o.import_id = %(import)s and r.status = 'not_refundable'
         order by o.order_id
         limit %(limit)s
        """,
        which | {"limit": LISTED},
    )
    return {
        "refunds_due": row["due"],
        "refunds_total": amount(row["minor"], currency),
        "not_refundable": row["hopeless"],
        "not_refundable_invoices": hopeless,
    }


async def _tell_the_gateway(shop: Shop, import_id: UUID) -> None:
    """Register the assumed payments of an import at the gateway, which keeps those that it knows."""
    last = ""
    while True:
        async with shop.database.read() as tx:
            page = await tx.fetch_all(
                Captured,
                """
                select p.payment_id, p.minor, p.currency
                  from shop.payments p
                  join shop.orders o using (tenant_id, order_id)
                 where p.tenant_id = %(tenant)s and o.import_id = %(import)s and p.assumed and p.payment_id > %(last)s
                 order by p.payment_id
                 limit %(limit)s
                """,
                {"tenant": shop.tenant, "import": import_id, "last": last, "limit": CHUNK},
            )
        if not page:
            return
        await shop.gateway.register(page)
        last = page[-1].payment_id
