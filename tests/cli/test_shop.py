"""`placet shop …`: what a person reads, what a program reads, and what either is told when something is wrong."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from placet.cli.shop import app, visible
from placet.settings import settings

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


@pytest.fixture(autouse=True)
def _this_database(monkeypatch: pytest.MonkeyPatch, database_url: str, owner_url: str) -> Iterator[None]:
    """The commands read their settings from the environment."""
    monkeypatch.setenv("PLACET_DATABASE_URL", database_url)
    monkeypatch.setenv("PLACET_OWNER_DATABASE_URL", owner_url)
    monkeypatch.setenv("COLUMNS", "200")
    settings.cache_clear()
    yield
    settings.cache_clear()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def as_json(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_import_says_what_became_of_every_line(file: Path) -> None:
    """Each kind with its number, the broken line with its own, and what came of it; the second time that nothing did."""
    first, second = run("import", file), run("import", file)

    assert first.exit_code == second.exit_code == 0
    assert "all lines          4  none is lost" in first.stdout
    assert "Line 5: expected a whole quantity like 6 or -6, got six. It begins: 536366,85123A,HEART" in first.stdout
    assert "Codes that are no goods, 2 lines: D 1, POST 1." in first.stdout
    assert "Refunds that are due: 1, 27.50 GBP." in first.stdout
    assert "Not refundable, it names no customer, so nobody knows whose money it is: C536380." in first.stdout
    assert "has been imported before; nothing was changed" not in first.stdout
    assert "has been imported before; nothing was changed" in second.stdout


def test_import_tells_programs_the_same(file: Path) -> None:
    """One JSON document whose kinds add up to its lines."""
    report = as_json("import", file)

    assert report["lines"] == sum(report["kinds"].values()) == 4
    assert report["refunds_total"] == {"minor": 2750, "currency": "GBP", "text": "27.50 GBP"}
    assert as_json("import", file)["already_imported"]


def test_orders_and_refunds_are_listed(file: Path) -> None:
    """A search, what is due and what is not refundable; a customer's name can neither colour nor turn a line round."""
    run("import", file)

    orders, refunds = run("orders", "--day", "2010-12-20"), run("refunds", "--day", "2010-12-20")

    assert "3 found: 43.80 GBP" in orders.stdout
    assert "Customer [red][U+202E]Ada" in orders.stdout
    assert "1 due: 27.50 GBP" in refunds.stdout
    assert "1 not refundable: 1.00 GBP" in refunds.stdout
    assert as_json("orders", "--refunds-due")["rows"][0]["customer_id"] == "[red]\u202eAda"
    assert [row["status"] for row in as_json("refunds", "--batch", "2010-12-20")["rows"]] == ["due", "not_refundable"]
    assert as_json("refunds", "--batch", "other") == {"totals": [], "rows": [], "more": 0}


def test_the_ledger_is_the_gateways_own_count() -> None:
    """Before anything was paid it is empty."""
    assert "The gateway has paid nothing." in run("ledger").stdout
    assert as_json("ledger") == {"paid": [], "paid_more_than_once": 0}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("import", "/nowhere.csv"), "not_readable", "There is no file /nowhere.csv."),
        (("import", "{file}", "--currency", "pounds"), "import_problem", "Expected a currency like GBP"),
        (("import", "{file}", "--encoding", "klingon"), "import_problem", "Expected an encoding"),
        (("orders", "--day", "2010-13-01"), "invalid", "--day: expected a day like 2010-12-20"),
        (("orders", "--status", "lost"), "invalid", "--status: Input should be 'paid'"),
        (("refunds", "--day", "yesterday"), "invalid", "--day: "),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(file: Path, arguments: tuple[str, ...], code: str, says: str) -> None:
    """On stderr for people, as JSON for programs, exit code 1, never a stack trace."""
    named = [argument.format(file=file) for argument in arguments]

    people, programs = run(*named), run(*named, "--json")

    assert people.exit_code == programs.exit_code == 1
    assert says in people.stderr
    assert people.stdout == ""
    error = json.loads(programs.stdout)["error"]
    assert error["code"] == code
    assert says in error["message"]


def test_control_and_direction_characters_are_made_visible() -> None:
    """Nothing that a customer wrote can move what stands beside it; letters of any script stay."""
    assert visible("a\u202eb\x1b[2Jc\u2066\n") == "a[U+202E]b[U+001B][2Jc[U+2066][U+000A]"
    assert visible("Ελένη फ़ातिमा 李 \u200d") == "Ελένη फ़ातिमा 李 \u200d"
