"""`placet shop …`: what a person reads, what a program reads, and what either is told when something is wrong."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import Ran

Placet = Callable[..., Ran]
HEADER = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country\n"
LINES = (
    "536365,85123A,HEART,6,2010-12-20 08:26:00,2.55,17850,United Kingdom\n"
    "C536379,D,Discount,-1,2010-12-20 09:41:00,27.50,[red]\u202eAda,United Kingdom\n"
    "C536380,POST,Postage,-1,2010-12-20 09:41:00,1.00,,United Kingdom\n"
    "536366,85123A,HEART,six,2010-12-20 08:26:00,2.55,17850,United Kingdom\n"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "export.csv"
    path.write_text(HEADER + LINES)
    return path


@pytest.fixture
def shop(placet: Placet) -> Placet:
    """`shop(*arguments)`: `placet shop …`."""
    return partial(placet, "shop")


def test_import_says_what_became_of_every_line(shop: Placet, file: Path) -> None:
    """Each kind with its number, the broken line with its own, and what came of it; the second time that nothing did."""
    first, second = shop("import", file), shop("import", file)

    assert first.code == second.code == 0
    assert "all lines          4  none is lost" in first.out
    assert "Line 5: expected a whole quantity like 6 or -6, got six. It begins: 536366,85123A,HEART" in first.out
    assert "Codes that are no goods, 2 lines: D 1, POST 1." in first.out
    assert "Refunds that are due: 1, 27.50 GBP." in first.out
    assert "Not refundable, it names no customer, so nobody knows whose money it is: C536380." in first.out
    assert "has been imported before; nothing was changed" not in first.out
    assert "has been imported before; nothing was changed" in second.out


def test_import_tells_programs_the_same(shop: Placet, file: Path) -> None:
    """One JSON document whose kinds add up to its lines."""
    report = shop("import", file, "--json").json

    assert report["lines"] == sum(report["kinds"].values()) == 4
    assert report["refunds_total"] == {"minor": 2750, "currency": "GBP", "text": "27.50 GBP"}
    assert shop("import", file, "--json").json["already_imported"]


def test_orders_and_refunds_are_listed(shop: Placet, file: Path) -> None:
    """A search, what is due and what is not refundable; a customer's name can neither colour nor turn a line round."""
    shop("import", file)

    orders, refunds = shop("orders", "--day", "2010-12-20"), shop("refunds", "--day", "2010-12-20")

    assert "3 found: 43.80 GBP" in orders.out
    assert "Customer [red]⟨U+202E⟩Ada" in orders.out
    assert "1 due: 27.50 GBP" in refunds.out
    assert "1 not refundable: 1.00 GBP" in refunds.out
    assert shop("orders", "--refunds-due", "--json").json["rows"][0]["customer_id"] == "[red]\u202eAda"
    assert [row["status"] for row in shop("refunds", "--batch", "2010-12-20", "--json").json["rows"]] == [
        "due",
        "not_refundable",
    ]
    assert shop("refunds", "--batch", "other", "--json").json == {"totals": [], "rows": [], "more": 0}


def test_the_ledger_is_the_gateways_own_count(shop: Placet) -> None:
    """Before anything was paid it is empty."""
    assert "The gateway has paid nothing." in shop("ledger").out
    assert shop("ledger", "--json").json == {"paid": [], "paid_more_than_once": 0}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("import", "/nowhere.csv"), "file_not_found", "There is no such file (/nowhere.csv)."),
        (("import", "{file}", "--currency", "pounds"), "invalid_input", "Expected a currency like GBP"),
        (("import", "{file}", "--encoding", "klingon"), "unknown_encoding", "Expected an encoding"),
        (("orders", "--day", "2010-13-01"), "invalid_input", "--day: expected a day like 2010-12-20"),
        (("orders", "--status", "lost"), "invalid_input", "--status: Input should be 'paid'"),
        (("refunds", "--day", "yesterday"), "invalid_input", "--day: "),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    shop: Placet, file: Path, arguments: tuple[str, ...], code: str, says: str
) -> None:
    """On stderr for people, as JSON for programs, never a stack trace."""
    named = [argument.format(file=file) for argument in arguments]

    people, programs = shop(*named), shop(*named, "--json")

    assert people.code == programs.code == 2
    assert says in people.err
    assert people.out == ""
    assert programs.error["code"] == code
    assert says in programs.error["message"]
