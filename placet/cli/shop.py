"""`placet shop …`: look into the demo's shop, and import a real shop's export.

`orders`, `refunds` and `ledger` only read; the ledger is the gateway's own count and shows what was paid twice. Names
come from customers: control and direction characters are made visible.
"""

import errno
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from placet.cli import output
from placet.cli.opening import open_record, run
from placet.cli.output import Json
from placet.record.errors import InvalidInput
from tools.money import show
from tools.shop import Shop, refunds
from tools.shop.amounts import amount
from tools.shop.export import Export
from tools.shop.importing import HANDLED, Report, import_export
from tools.shop.search_orders import SearchArguments, SearchOrders

app = typer.Typer(no_args_is_help=True, help="The demo's shop: its orders, refunds and payments.")

Batch = Annotated[str | None, typer.Option(help="A batch, e.g. NOV-17.")]
Day = Annotated[str | None, typer.Option(help="The day the orders were placed, e.g. 2010-12-20 (UTC).")]
Limit = Annotated[int, typer.Option(min=1, max=500, help="Rows to show; how many more there are is said.")]


@app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(help="A CSV file, plain or gzipped.")],
    currency: Annotated[str, typer.Option(help="Of all prices in the file (ISO 4217).")] = "GBP",
    encoding: Annotated[str, typer.Option(help="Of the file.")] = "utf-8",
    date_format: Annotated[
        str | None, typer.Option(help="strptime's, e.g. '%m/%d/%Y %H:%M', where dates are not ISO 8601.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Import a shop's export: invoice, code, description, quantity, date, unit price, customer, country.

    Says what became of every line; each cancelled invoice becomes a refund that is due. The same file again changes
    nothing.
    """

    async def work(shop: Shop) -> None:
        if not (len(currency) == 3 and currency.isascii() and currency.isalpha()):
            raise InvalidInput(f"Expected a currency like GBP (ISO 4217), got {currency!r}.", field="currency")
        if not file.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
        export = Export(file, encoding=encoding, date_format=date_format)
        console = output.console(stderr=True)
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
            output.show_json(report.model_dump(mode="json"))
        else:
            _print_report(report)

    _run(work)


@app.command()
def orders(
    batch: Batch = None,
    status: Annotated[str | None, typer.Option(help="paid, shipped, delivered, completed, failed, cancelled.")] = None,
    day: Day = None,
    customer: Annotated[str | None, typer.Option(help="A customer's id, or a part of the name.")] = None,
    refunds_due: Annotated[bool, typer.Option("--refunds-due", help="Only orders whose money has to go back.")] = False,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """Search orders, as the agent does with search_orders."""

    async def work(shop: Shop) -> None:
        args = _arguments(batch=batch, status=status, day=day, customer=customer, refunds_due=refunds_due, limit=limit)
        found: Any = await SearchOrders(shop).execute(args)
        if as_json:
            output.show_json(found)
            return
        table = output.table(
            "order", "batch", "status", "placed", "customer", "amount", "refund", right=["amount"], whole=["order"]
        )
        for row in found["rows"]:
            refund = row["refund"]
            table.add_row(
                *output.cells(
                    row["order_id"], row["batch"], row["status"], row["placed_at"], row["customer"], row["text"]
                ),
                *output.cells(f"{refund['text']} {refund['status'].replace('_', ' ')}" if refund else ""),
            )
        output.show_table(table, nothing="No orders.")
        money = " and ".join(total["text"] for total in found["totals"])
        more = f", {found['more']:,} of them not shown" if found["more"] else ""
        output.say(f"{found['count']:,} found{more}" + (f": {money}" if money else ""))
        _print_reasons((row["order_id"], row["why"]) for row in found["not_refundable"]["rows"])
        if found["not_refundable"]["more"]:
            output.say(f"Not refundable: {found['not_refundable']['more']:,} more.")

    _run(work)


@app.command("refunds")
def list_refunds(batch: Batch = None, day: Day = None, limit: Limit = 100, as_json: Json = False) -> None:
    """What is due, on its way, refunded and not refundable, and why not."""

    async def work(shop: Shop) -> None:
        _arguments(batch=batch, day=day)
        async with shop.database.read() as tx:
            totals = await refunds.totals(tx, shop.tenant, batch=batch, day=day)
            rows = await refunds.listing(tx, shop.tenant, batch=batch, day=day, limit=limit)
        more = sum(total.count for total in totals) - len(rows)
        if as_json:
            output.show_json(
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
        table = output.table(
            "refund", "order", "batch", "customer", "amount", "status", right=["amount"], whole=["refund", "order"]
        )
        for row in rows:
            state = "on its way" if row.due and row.operation_id else row.status.replace("_", " ")
            table.add_row(
                *output.cells(
                    row.refund_due_id, row.order_id, row.batch, row.customer, show(row.minor, row.currency), state
                )
            )
        output.show_table(table, nothing="No refunds.")
        for total in totals:
            status = total.status.replace("_", " ")
            output.say(f"{total.count:,} {status}: {show(total.minor, total.currency)}")
        _print_reasons((row.order_id, row.why_not) for row in rows if row.why_not)
        if more:
            output.say(f"{more:,} not shown.")

    _run(work)


@app.command()
def ledger(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Lines to show.")] = 100, as_json: Json = False
) -> None:
    """The gateway's own count: per refund how often it was paid. More than once is money paid twice."""

    async def work(shop: Shop) -> None:
        paid = await shop.gateway.ledger(limit=limit)
        twice = [line for line in paid if line.times > 1]
        if as_json:
            output.show_json(
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
        table = output.table("refund", "times", "amount", "last", right=["times", "amount"])
        for line in paid:
            last = f"{line.last_at:%Y-%m-%d %H:%M:%S %Z}"
            table.add_row(*output.cells(line.ref, str(line.times), show(line.minor, line.currency), last))
        output.show_table(table, nothing="The gateway has paid nothing.")
        if paid:
            output.say(f"Refunds paid: {len(paid):,}; more than once: {len(twice):,}.")

    _run(work)


def _run(work: Callable[[Shop], Awaitable[None]]) -> None:
    """Open the database and do it."""

    async def opened() -> None:
        async with open_record() as record:
            await work(Shop(record.database, record.tenant))

    run(opened())


def _arguments(**given: Any) -> SearchArguments:
    """Raises `InvalidInput`, which names the option."""
    try:
        return SearchArguments.model_validate(given)
    except ValidationError as invalid:
        first = invalid.errors()[0]
        option = ".".join(str(part) for part in first["loc"]).replace("_", "-")
        said = first["msg"].removeprefix("Value error, ")
        raise InvalidInput(f"--{option}: {said} ({first['input']!r}).", field=option) from None


def _print_report(report: Report) -> None:
    """Each kind of line and what was done with it, then what came of it."""
    if report.already_imported:
        output.say(f"{report.file} has been imported before; nothing was changed. What that import did:")
    table = output.table("lines", "number", "what was done with them", right=["number"])
    for kind, count in report.kinds.items():
        if count:
            table.add_row(*output.cells(kind.replace("_", " "), f"{count:,}", HANDLED[kind]))
    table.add_section()
    table.add_row(*output.cells("all lines", f"{report.lines:,}", "none is lost"))
    output.show_table(table)
    noted = ", ".join(f"{what.replace('_', ' ')} {count:,}" for what, count in report.notes.items() if count)
    output.say(f"Among them: {noted or 'nothing odd'}.")
    if report.non_goods:
        codes = ", ".join(f"{code} {count:,}" for code, count in report.non_goods.items())
        output.say(f"Codes that are no goods, {sum(report.non_goods.values()):,} lines: {codes}.")
    invoices = ", ".join(f"{what.replace('_', ' ')} {count:,}" for what, count in report.invoices.items() if count)
    if invoices:
        output.say(f"Odd invoices: {invoices}.")
    for line in report.broken:
        output.say(f"Line {line.line:,}: {line.problem}. It begins: {line.raw}")
    if report.kinds["broken"] > len(report.broken):
        output.say(f"… and {report.kinds['broken'] - len(report.broken):,} more broken lines.")
    if report.differing:
        output.say(f"Known invoices that come to another amount in this file: {', '.join(report.differing)}.")
    output.say(f"New orders: {report.orders:,}; new customers: {report.customers:,}.")
    output.say(f"Refunds that are due: {report.refunds_due:,}, {report.refunds_total['text']}.")
    _print_reasons((hopeless.invoice, hopeless.why) for hopeless in report.not_refundable_invoices)
    if report.not_refundable > len(report.not_refundable_invoices):
        output.say(f"Not refundable: {report.not_refundable - len(report.not_refundable_invoices):,} more.")


def _print_reasons(rows: Iterable[tuple[str, str]]) -> None:
    """Which cannot be refunded, one line per reason."""
    by_reason: dict[str, list[str]] = {}
    for order, why in rows:
        by_reason.setdefault(why, []).append(order)
    for why, those in by_reason.items():
        output.say(f"Not refundable, {why}: {', '.join(those)}.")


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
