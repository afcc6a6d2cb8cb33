"""`placet shop …`: look into the demo's shop, and import a real shop's export.

`orders`, `refunds` and `ledger` only read; the ledger is the gateway's own count and shows what was paid twice. With
`--json` the answer is one JSON document on stdout, errors too; without, it is for people. Names come from customers:
control and direction characters are made visible.
"""

import asyncio
import json
import unicodedata
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from placet.record.errors import PlacetError
from placet.record.start import open_database
from placet.settings import settings
from tools.money import show
from tools.shop import MIGRATIONS, Shop, refunds
from tools.shop.amounts import amount
from tools.shop.export import Export, ImportProblem
from tools.shop.importing import HANDLED, Report, import_export
from tools.shop.search_orders import SearchArguments, SearchOrders

app = typer.Typer(no_args_is_help=True, help="The demo's shop: its orders, refunds and payments.")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Batch = Annotated[str | None, typer.Option(help="A batch, e.g. NOV-17.")]
Day = Annotated[str | None, typer.Option(help="The day the orders were placed, e.g. 2010-12-20 (UTC).")]
Limit = Annotated[int, typer.Option(min=1, max=500, help="Rows to show; how many more there are is said.")]

BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="A CSV file, plain or gzipped.")],
    currency: Annotated[str, typer.Option(help="Of all prices in the file (ISO 4217).")] = "GBP",
    encoding: Annotated[str, typer.Option(help="Of the file.")] = "utf-8",
    date_format: Annotated[
        str | None, typer.Option(help="strptime's, e.g. '%m/%d/%Y %H:%M', where dates are not ISO 8601.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import a shop's export: invoice, code, description, quantity, date, unit price, customer, country.

    Says what became of every line; each cancelled invoice becomes a refund that is due. The same file again changes
    nothing.
    """

    async def work(shop: Shop) -> None:
        if not (len(currency) == 3 and currency.isascii() and currency.isalpha()):
            raise ImportProblem(f"Expected a currency like GBP (ISO 4217), got {currency!r}.")
        export = Export(file, encoding=encoding, date_format=date_format)
        console = Console(stderr=True)
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=as_json or not console.is_terminal,
        ) as bar:
            task = bar.add_task("Reading", total=None)
            report = await import_export(
                shop,
                export,
                currency=currency.upper(),
                progress=lambda done, of: bar.update(task, completed=done, total=of),
            )
        if as_json:
            _print_json(report.model_dump(mode="json"))
        else:
            _print_report(report)

    _run(work, as_json)


@app.command()
def orders(
    batch: Batch = None,
    status: Annotated[str | None, typer.Option(help="paid, shipped, delivered, completed, failed, cancelled.")] = None,
    day: Day = None,
    customer: Annotated[str | None, typer.Option(help="A customer's id, or a part of the name.")] = None,
    refunds_due: Annotated[bool, typer.Option("--refunds-due", help="Only orders whose money has to go back.")] = False,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Search orders, as the agent does with search_orders."""

    async def work(shop: Shop) -> None:
        named = {"batch": batch, "status": status, "day": day, "customer": customer}
        args = SearchArguments.model_validate(named | {"refunds_due": refunds_due, "limit": limit})
        found: Any = await SearchOrders(shop).execute(args)
        if as_json:
            _print_json(found)
            return
        table = _table("Order", "Batch", "Status", "Placed", "Customer", ">Amount", "Refund")
        for row in found["rows"]:
            refund = row["refund"]
            table.add_row(
                *_cells(row["order_id"], row["batch"], row["status"], row["placed_at"], row["customer"], row["text"]),
                *_cells(f"{refund['text']} {refund['status'].replace('_', ' ')}" if refund else ""),
            )
        _print(table if found["rows"] else "No orders.")
        money = " and ".join(total["text"] for total in found["totals"])
        more = f", {found['more']:,} of them not shown" if found["more"] else ""
        _print(f"{found['count']:,} found{more}" + (f": {money}" if money else ""))
        _print_reasons((row["order_id"], row["why"]) for row in found["not_refundable"]["rows"])
        if found["not_refundable"]["more"]:
            _print(f"Not refundable: {found['not_refundable']['more']:,} more.")

    _run(work, as_json)


@app.command("refunds")
def list_refunds(batch: Batch = None, day: Day = None, limit: Limit = 100, as_json: AsJson = False) -> None:
    """What is due, on its way, refunded and not refundable, and why not."""

    async def work(shop: Shop) -> None:
        SearchArguments.model_validate({"batch": batch, "day": day})
        async with shop.database.read() as tx:
            totals = await refunds.totals(tx, shop.tenant, batch=batch, day=day)
            rows = await refunds.listing(tx, shop.tenant, batch=batch, day=day, limit=limit)
        more = sum(total.count for total in totals) - len(rows)
        if as_json:
            _print_json(
                {
                    "totals": [
                        {"status": total.status, "count": total.count, **amount(total.minor, total.currency)}
                        for total in totals
                    ],
                    "rows": [_refund_as_json(row) for row in rows],
                    "more": more,
                }
            )
            return
        table = _table("Refund", "Order", "Batch", "Customer", ">Amount", "Status")
        for row in rows:
            state = "on its way" if row.due and row.operation_id else row.status.replace("_", " ")
            table.add_row(
                *_cells(row.refund_due_id, row.order_id, row.batch, row.customer, show(row.minor, row.currency), state)
            )
        _print(table if rows else "No refunds.")
        for total in totals:
            status = total.status.replace("_", " ")
            _print(f"{total.count:,} {status}: {show(total.minor, total.currency)}")
        _print_reasons((row.order_id, row.why_not) for row in rows if row.why_not)
        if more:
            _print(f"{more:,} not shown.")

    _run(work, as_json)


@app.command()
def ledger(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Lines to show.")] = 100, as_json: AsJson = False
) -> None:
    """The gateway's own count: per refund how often it was paid. More than once is money paid twice."""

    async def work(shop: Shop) -> None:
        paid = await shop.gateway.ledger(limit=limit)
        twice = [line for line in paid if line.times > 1]
        if as_json:
            _print_json(
                {
                    "paid": [
                        {
                            "refund_due_id": line.ref,
                            "times": line.times,
                            **amount(line.minor, line.currency),
                            "first_at": line.first_at.isoformat(),
                            "last_at": line.last_at.isoformat(),
                        }
                        for line in paid
                    ],
                    "paid_more_than_once": len(twice),
                }
            )
            return
        table = _table("Refund", ">Times", ">Amount", "Last")
        for line in paid:
            last = f"{line.last_at:%Y-%m-%d %H:%M:%S %Z}"
            table.add_row(*_cells(line.ref, str(line.times), show(line.minor, line.currency), last))
        _print(table if paid else "The gateway has paid nothing.")
        if paid:
            _print(f"Refunds paid: {len(paid):,}; more than once: {len(twice):,}.")

    _run(work, as_json)


def _run(work: Callable[[Shop], Awaitable[None]], as_json: bool) -> None:
    """Open the database and do it; what can go wrong is said in one sentence, and the exit code is 1."""

    async def opened() -> None:
        configured = settings()
        async with open_database(configured, migrations=[MIGRATIONS]) as database:
            await work(Shop(database, configured.tenant))

    try:
        asyncio.run(opened())
    except (ImportProblem, PlacetError) as problem:
        _fail(problem.code, str(problem), as_json)
    except ValidationError as invalid:
        first = invalid.errors()[0]
        field = ".".join(str(part) for part in first["loc"]).replace("_", "-")
        _fail("invalid", f"--{field}: {first['msg'].removeprefix('Value error, ')} ({first['input']!r}).", as_json)


def _fail(code: str, message: str, as_json: bool) -> None:
    if as_json:
        _print_json({"error": {"code": code, "message": message}})
    else:
        Console(stderr=True, soft_wrap=True).print(Text(message))
    raise typer.Exit(1)


def _print_report(report: Report) -> None:
    """Each kind of line and what was done with it, then what came of it."""
    if report.already_imported:
        _print(f"{report.file} has been imported before; nothing was changed. What that import did:")
    table = _table("Lines", ">Number", "What was done with them")
    for kind, count in report.kinds.items():
        if count:
            table.add_row(*_cells(kind.replace("_", " "), f"{count:,}", HANDLED[kind]))
    table.add_section()
    table.add_row(*_cells("all lines", f"{report.lines:,}", "none is lost"))
    _print(table)
    noted = ", ".join(f"{what.replace('_', ' ')} {count:,}" for what, count in report.notes.items() if count)
    _print(f"Among them: {noted or 'nothing odd'}.")
    if report.non_goods:
        codes = ", ".join(f"{code} {count:,}" for code, count in report.non_goods.items())
        _print(f"Codes that are no goods, {sum(report.non_goods.values()):,} lines: {codes}.")
    invoices = ", ".join(f"{what.replace('_', ' ')} {count:,}" for what, count in report.invoices.items() if count)
    if invoices:
        _print(f"Odd invoices: {invoices}.")
    for line in report.broken:
        _print(f"Line {line.line:,}: {line.problem}. It begins: {line.raw}")
    if report.kinds["broken"] > len(report.broken):
        _print(f"… and {report.kinds['broken'] - len(report.broken):,} more broken lines.")
    if report.differing:
        _print(f"Known invoices that come to another amount in this file: {', '.join(report.differing)}.")
    _print(f"New orders: {report.orders:,}; new customers: {report.customers:,}.")
    _print(f"Refunds that are due: {report.refunds_due:,}, {report.refunds_total['text']}.")
    _print_reasons((hopeless.invoice, hopeless.why) for hopeless in report.not_refundable_invoices)
    if report.not_refundable > len(report.not_refundable_invoices):
        _print(f"Not refundable: {report.not_refundable - len(report.not_refundable_invoices):,} more.")


def _print_reasons(rows: Iterable[tuple[str, str]]) -> None:
    """Which cannot be refunded, one line per reason."""
    by_reason: dict[str, list[str]] = {}
    for order, why in rows:
        by_reason.setdefault(why, []).append(order)
    for why, those in by_reason.items():
        _print(f"Not refundable, {why}: {', '.join(those)}.")


def _refund_as_json(row: refunds.Refund) -> dict[str, Any]:
    return {
        "refund_due_id": row.refund_due_id,
        "order_id": row.order_id,
        "batch": row.batch,
        "customer_id": row.customer_id,
        "customer": row.customer,
        **amount(row.minor, row.currency),
        "status": "on_its_way" if row.due and row.operation_id else row.status,
        "why_not": row.why_not,
        "operation_id": row.operation_id,
    }


def visible(text: str) -> str:
    """Control and direction characters as `[U+202E]`, so that no name can rearrange a line."""
    return "".join(
        f"[U+{ord(character):04X}]" if character in BIDI or unicodedata.category(character) == "Cc" else character
        for character in text
    )


def _table(*columns: str) -> Table:
    """A table; a column whose title begins with > is aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table


def _cells(*values: str | None) -> list[Text]:
    """Values as plain text: what a customer wrote is no markup."""
    return [Text(visible(value or "")) for value in values]


def _print(what: Table | str) -> None:
    Console(soft_wrap=isinstance(what, str)).print(Text(visible(what)) if isinstance(what, str) else what)


def _print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False))
