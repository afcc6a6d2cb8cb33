"""Importing an export: the counts add up, a cancelled invoice becomes a refund, and twice is once."""

import asyncio
import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placet.record.database import Database
from tests.retail import RETAIL, a_real_export
from tools.shop import Shop
from tools.shop.export import Export, ImportProblem, MissingColumn, NotReadable
from tools.shop.importing import Report, import_export
from tools.shop.refund_payments import RefundArguments, RefundPayments
from tools.shop.search_orders import SearchArguments, SearchOrders

HEADER = "invoice,code,description,quantity,date,unit price,customer,country\n"


def line(
    invoice: str = "536365",
    *,
    quantity: object = 6,
    price: object = "2.55",
    customer: str = "17850",
    code: str = "85123A",
    date: str = "2010-12-01 08:26:00",
    description: str = "HEART",
) -> str:
    return f"{invoice},{code},{description},{quantity},{date},{price},{customer},United Kingdom\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "export.csv"


def write(file: Path, *lines: str) -> int:
    """A file with these lines below the header; returns its size in bytes."""
    return file.write_bytes((HEADER + "".join(lines)).encode())


async def put(shop: Shop, file: Path, *lines: str, **options: Any) -> Report:
    write(file, *lines)
    return await import_export(shop, Export(file), **options)


def pack(file: Path, content: str, *, lacks: int = 0) -> Path:
    """A gzip file, without so many bytes of its end."""
    packed = gzip.compress(content.encode())
    file.write_bytes(packed[: len(packed) - lacks])
    return file


async def search(shop: Shop, **named: Any) -> Any:
    return await SearchOrders(shop).execute(SearchArguments.model_validate({"limit": 500} | named))


async def stored(shop: Shop) -> dict[str, int]:
    """Rows of each table of the shop, and payments that the gateway knows."""
    async with shop.database.read() as tx:
        (counts,) = await tx.fetch_dicts(
            """
            select (select count(*) from shop.imports) as imports, (select count(*) from shop.import_lines) as lines,
                   (select count(*) from shop.customers) as customers, (select count(*) from shop.orders) as orders,
                   (select count(*) from shop.payments) as payments, (select count(*) from shop.refunds_due) as refunds,
                   (select count(*) from gateway.payments) as at_gateway
            """
        )
    return counts


async def test_every_kind_of_line_is_counted_once(shop: Shop, file: Path) -> None:
    """Kinds add up to the lines; what is odd about them is counted beside that."""
    report = await put(
        shop,
        file,
        line(),
        line(),
        line("536366", code="POST", customer=""),
        line("536367", price=0, description=""),
        line("536368", quantity=-3, price=0),
        line("A1", price="-10.00", code="B", customer=""),
        line("C536369", quantity=-1),
        line("C536369", quantity=-1, code="M"),
        "\n",
        line("536370", quantity="many"),
    )

    assert report.lines == 10
    assert sum(report.kinds.values()) == 10
    assert report.kinds == {
        "sale": 3,
        "cancellation": 2,
        "negative_quantity": 1,
        "zero_price": 1,
        "adjustment": 1,
        "known_invoice": 0,
        "blank": 1,
        "broken": 1,
    }
    assert report.notes == {
        "missing_customer": 2,
        "no_description": 1,
        "no_code": 0,
        "no_country": 0,
        "price_of_zero": 2,
        "quantity_of_zero": 0,
        "duplicate": 1,
    }
    assert report.non_goods == {"B": 1, "M": 1, "POST": 1}
    assert [(broken.line, broken.problem) for broken in report.broken] == [
        (11, "expected a whole quantity like 6 or -6, got many")
    ]
    assert (await stored(shop))["lines"] == 10
    assert report.orders == 6


async def test_a_cancelled_invoice_becomes_a_refund_of_all_its_lines(shop: Shop, file: Path) -> None:
    """Goods, postage and what was entered by hand: the sum of all, positive, in the batch of its day, and payable."""
    report = await put(
        shop,
        file,
        line("C1", quantity=-6, date="2010-12-20 09:00:00"),
        line("C1", quantity=-1, price="3.95", code="POST", date="2010-12-20 09:00:00"),
        line("C1", quantity=-1, price="0.01", code="M", date="2010-12-20 09:00:00"),
        line("536365"),
    )
    found = await search(shop, day="2010-12-20", status="cancelled", refunds_due=True)
    (row,) = found["rows"]
    receipt = await RefundPayments(shop).execute(RefundArguments(refund_due_ids=[row["refund_due_id"]]), "op")

    assert report.refunds_due == 1
    assert report.refunds_total == {"minor": 1926, "currency": "GBP", "text": "19.26 GBP"}
    assert (row["order_id"], row["batch"], row["refund"]["minor"]) == ("C1", "2010-12-20", 1926)
    assert receipt.summary == "Refunded 1 of 1 payment: 19.26 GBP."


async def test_what_cannot_be_refunded_says_why(shop: Shop, file: Path) -> None:
    """Without a customer, with two, or of nothing: no money goes back, and the report says so."""
    report = await put(
        shop,
        file,
        line("C1", quantity=-1, customer=""),
        line("C2", quantity=-1),
        line("C2", quantity=-1, customer="12345"),
        line("C3", quantity=-1, price=0),
        line("C4", quantity=2),
        line("C5", quantity=-1, customer="NaN"),
    )
    found = await search(shop, status="cancelled", refunds_due=True)

    assert report.refunds_due == 0
    assert [(one.invoice, one.why) for one in report.not_refundable_invoices] == [
        ("C1", "it names no customer, so nobody knows whose money it is"),
        ("C2", "its lines name 2 customers"),
        ("C5", "it names no customer, so nobody knows whose money it is"),
    ]
    assert report.invoices == {"nothing_to_refund": 2, "several_customers": 1, "rounded": 0}
    assert found["count"] == 0
    assert [row["order_id"] for row in found["not_refundable"]["rows"]] == ["C1", "C2", "C5"]


async def test_a_fraction_of_a_penny_is_added_up_before_it_is_rounded(shop: Shop, file: Path) -> None:
    """Three pieces at 0.005 are 1.5 pence: rounded once, for the invoice, and reported."""
    report = await put(shop, file, *[line("C1", quantity=-1, price="0.005")] * 3)

    assert report.refunds_total["minor"] == 2
    assert report.invoices["rounded"] == 1


async def test_the_currency_decides_the_minor_unit(shop: Shop, file: Path) -> None:
    """A thousand yen are a thousand minor units."""
    report = await put(shop, file, line("C1", quantity=-1, price="1000"), currency="JPY")

    assert report.refunds_total == {"minor": 1000, "currency": "JPY", "text": "1,000 JPY"}


async def test_the_same_file_again_changes_nothing_and_says_so(shop: Shop, file: Path) -> None:
    """Also under another name and packed, also at the same instant."""
    lines = line() + line("C1", quantity=-1)
    write(file, lines)
    packed = pack(file.with_name("again.csv.gz"), HEADER + lines)

    reports = await asyncio.gather(*(import_export(shop, Export(path)) for path in (file, file, packed)))
    before = await stored(shop)
    again = await import_export(shop, Export(packed))

    assert sorted(report.already_imported for report in reports) == [False, True, True]
    assert again.already_imported
    assert again.model_copy(update={"already_imported": False}) == next(
        report for report in reports if not report.already_imported
    )
    assert next(iter(again.kinds)) == "sale"
    assert (
        await stored(shop)
        == before
        == {
            "imports": 1,
            "lines": 2,
            "customers": 1,
            "orders": 2,
            "payments": 1,
            "refunds": 1,
            "at_gateway": 1,
        }
    )


async def test_importing_again_completes_what_died_before_the_gateway_knew(
    shop: Shop, file: Path, owner: Database
) -> None:
    """The process dies between the commit and the gateway: the next import of the file tells the gateway."""
    await put(shop, file, line("C1", quantity=-1))
    async with owner.transaction() as tx:
        await tx.execute("delete from gateway.payments")

    await import_export(shop, Export(file))

    assert (await stored(shop))["at_gateway"] == 1


async def test_another_file_with_known_invoices_does_not_count_them_twice(shop: Shop, file: Path) -> None:
    """Overlapping months: known orders and refunds stay as they are, and those that differ are named."""
    await put(shop, file, line("536365"), line("C1", quantity=-1), line("C2", quantity=-1))

    report = await put(
        shop,
        file,
        line("536365", customer="somebody else"),
        line("C1", quantity=-1),
        line("C2", quantity=-5),
        line("C3", quantity=-2),
    )
    found = await search(shop, refunds_due=True)

    assert report.kinds["known_invoice"] == 3
    assert report.kinds["cancellation"] == 1
    assert sum(report.kinds.values()) == report.lines == 4
    assert report.differing == ["C2"]
    assert (report.customers, report.orders, report.refunds_due) == (0, 1, 1)
    assert {row["order_id"]: row["refund"]["minor"] for row in found["rows"]} == {"C1": 255, "C2": 255, "C3": 510}


async def test_a_file_that_cannot_be_imported_leaves_nothing(shop: Shop, file: Path, tmp_path: Path) -> None:
    """A missing column, a file that is cut off, amounts that add up to no amount."""
    bad = pack(tmp_path / "bad.csv.gz", HEADER.replace("quantity", "x") + line())
    cut = pack(tmp_path / "cut.csv.gz", HEADER + line() * 999, lacks=9)

    with pytest.raises(MissingColumn, match="quantity"):
        await import_export(shop, Export(bad))
    with pytest.raises(NotReadable, match="damaged"):
        await import_export(shop, Export(cut))
    with pytest.raises(ImportProblem, match="cannot be an amount"):
        await put(shop, file, *[line("1", quantity=1, price="9999999")] * 10_002)

    assert set((await stored(shop)).values()) == {0}


async def test_a_header_alone_imports_nothing(shop: Shop, file: Path) -> None:
    """No lines, no orders, and the report says that."""
    report = await put(shop, file)

    assert (report.lines, report.orders, report.refunds_due) == (0, 0, 0)


async def test_a_customer_is_stored_as_it_was_written(shop: Shop, file: Path) -> None:
    """U+202E in a customer's name stays where it is; a NUL cannot be stored, so its line is reported."""
    hostile = "Ada \u202e<b>[red]'; drop table shop.orders; --"

    report = await put(shop, file, line("C1", quantity=-1, customer=hostile), line("C2", customer="a\0b"))
    found = await search(shop, refunds_due=True)

    assert found["rows"][0]["customer_id"] == hostile
    assert found["rows"][0]["customer"] == f"Customer {hostile}"
    assert [(broken.line, broken.problem) for broken in report.broken] == [
        (3, "expected text in customer, got a NUL character, which the database cannot store")
    ]
    assert "a\\x00b" in report.broken[0].raw


async def test_two_shops_import_the_same_file_each_for_itself(shop: Shop, file: Path) -> None:
    """What one tenant has imported is unknown to another."""
    await put(shop, file, line("C1", quantity=-1))
    other = Shop(shop.database, "other")

    report = await import_export(other, Export(file))

    assert not report.already_imported
    assert report.refunds_due == 1
    assert (await search(shop))["count"] == (await search(other))["count"] == 1


async def test_progress_is_told_up_to_the_end(shop: Shop, file: Path) -> None:
    """In bytes, growing, ending with all."""
    told: list[tuple[int, int]] = []

    size = write(file, *[line()] * 5_000)
    await import_export(shop, Export(file), progress=lambda done, of: told.append((done, of)))

    assert [of for _, of in told] == [size] * 3
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (size, size)


invoices = st.sampled_from(["1", "2", "A3", "C4", "C5", "c6"])
good = st.builds(
    line,
    invoices,
    quantity=st.integers(-1_000, 1_000),
    price=st.decimals(-100, 100, places=3).map(lambda price: f"{price:f}"),
    customer=st.sampled_from(["", "17850", "17850.0", "Ада", "nan"]),
    code=st.sampled_from(["85123A", "POST", "m", ""]),
    description=st.sampled_from(["", "HEART"]),
)
bad = st.sampled_from(["\n", '1,"\n', "a,b\n", "1,X,d,NaN,2010-12-01,1,,\n", "\0\n", ",,,,,,,\n"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(good, bad), max_size=25))
async def test_no_line_is_lost_and_every_penny_is_accounted_for(
    database: Database, tmp_path: Path, lines: list[str]
) -> None:
    """Whatever a file is made of: kinds add up to its lines, all are stored, and what is due plus what is not refundable
    is what the cancelled invoices come to."""
    shop = Shop(database, uuid4().hex)
    file = tmp_path / "export.csv"

    report = await put(shop, file, *lines)

    async with database.read() as tx:
        rows = await tx.fetch_dicts(
            "select kind, invoice, quantity, unit_price from shop.import_lines where tenant_id = %(tenant)s",
            {"tenant": shop.tenant},
        )
        refunds = await tx.fetch_dicts(
            "select order_id, minor from shop.refunds_due where tenant_id = %(tenant)s", {"tenant": shop.tenant}
        )
    assert report.lines == sum(report.kinds.values()) == len(rows) == len(lines)
    assert report.kinds["broken"] == len(report.broken)
    comes_to: dict[str, Decimal] = {}
    for row in rows:
        if row["kind"] == "cancellation":
            amount = -row["quantity"] * row["unit_price"] * 100
            comes_to[row["invoice"]] = comes_to.get(row["invoice"], Decimal(0)) + amount
    rounded = {invoice: int(amount.to_integral_value("ROUND_HALF_UP")) for invoice, amount in comes_to.items()}
    assert {row["order_id"]: row["minor"] for row in refunds} == {
        invoice: minor for invoice, minor in rounded.items() if minor > 0
    }
    assert report.refunds_due + report.not_refundable == len(refunds)


@a_real_export
async def test_a_real_months_lines_are_all_accounted_for(shop: Shop) -> None:
    """42,481 untidy lines of a real shop: each kind counted, none lost, the refunds of two days to the penny."""
    report = await import_export(shop, Export(RETAIL))
    day = await search(shop, day="2010-12-20", status="cancelled", refunds_due=True)
    hopeless = await search(shop, day="2010-12-07", status="cancelled", refunds_due=True)

    assert report.lines == (await stored(shop))["lines"] == 42_481
    assert {kind: count for kind, count in report.kinds.items() if count} == {
        "sale": 41_480,
        "cancellation": 728,
        "negative_quantity": 70,
        "zero_price": 203,
    }
    assert report.notes["missing_customer"] == 15_631
    assert report.notes["price_of_zero"] == 273
    assert report.notes["duplicate"] == 500
    assert {
        "POST": 69,
        "DOT": 54,
        "M": 40,
        "D": 8,
        "AMAZONFEE": 7,
        "BANK CHARGES": 3,
    }.items() <= report.non_goods.items()
    assert report.refunds_due + report.not_refundable == 326
    assert day["count"] == 27
    assert day["totals"] == [{"minor": 204_738, "currency": "GBP", "text": "2,047.38 GBP"}]
    assert hopeless["count"] == 8
    assert [row["order_id"] for row in hopeless["not_refundable"]["rows"]] == [
        f"C537{n}" for n in (572, 581, 600, 610, 613, 630, 644, 647, 651, 652)
    ]
    assert {row["why"] for row in hopeless["not_refundable"]["rows"]} == {
        "it names no customer, so nobody knows whose money it is"
    }


@a_real_export
async def test_a_real_days_cancelled_invoices_are_refunded_once(shop: Shop) -> None:
    """The 27 of 2010-12-20 as one batch: the receipt adds up to the penny, and importing again pays nothing anew."""
    await import_export(shop, Export(RETAIL))
    day = await search(shop, day="2010-12-20", status="cancelled", refunds_due=True)
    ids = [row["refund_due_id"] for row in day["rows"]]
    tool, args = RefundPayments(shop), RefundArguments(refund_due_ids=[row["refund_due_id"] for row in day["rows"]])

    facts = await tool.facts(args)
    preview = await tool.preview(args, facts)
    receipt = await tool.execute(args, "op")
    again = await import_export(shop, Export(RETAIL))

    assert (facts.count, facts.total, facts.currency, facts.due_in_batches) == (27, 204_738, "GBP", 27)
    assert preview.title == "Refund 27 payments: 2,047.38 GBP"
    assert len(preview.sample) == 5
    assert sum(line.minor or 0 for line in receipt.lines if line.status == "done") == 204_738
    assert again.already_imported
    assert await shop.gateway.sent(ids) == dict.fromkeys(ids, 1)
    assert (await search(shop, day="2010-12-20", refunds_due=True))["count"] == 0
