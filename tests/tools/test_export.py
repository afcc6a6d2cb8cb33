"""Reading an export: every line is read or reported, whatever it is made of."""

import gzip
import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.shop.export import (
    LONGEST,
    SPAN,
    Export,
    ImportProblem,
    Line,
    MissingColumn,
    NotReadable,
    fingerprint,
)

HEADER = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country\n"
GOOD = "536365,85123A,WHITE HANGING HEART,6,2010-12-01 08:26:00,2.55,17850.0,United Kingdom\n"


def read(path: Path, content: str | bytes, *, header: str = HEADER, **options: str) -> list[Line]:
    """Write `content` below `header` and read it."""
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(header.encode() + raw)
    return list(Export(path, **options).lines())  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "export.csv"


def test_a_line_is_read_exactly(file: Path) -> None:
    """Prices are decimals, a time without a zone is UTC, a customer's number loses what a spreadsheet did to it."""
    assert read(file, GOOD) == [
        Line(
            2,
            "sale",
            invoice="536365",
            code="85123A",
            description="WHITE HANGING HEART",
            quantity=6,
            unit_price=Decimal("2.55"),
            at=datetime(2010, 12, 1, 8, 26, tzinfo=UTC),
            customer="17850",
            country="United Kingdom",
        )
    ]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("C1,X,d,-6,2010-12-01,2.55,1,UK", "cancellation"),
        ("C1,X,d,6,2010-12-01,0,,UK", "cancellation"),
        ("1,X,d,-6,2010-12-01,2.55,1,UK", "negative_quantity"),
        ("1,X,d,6,2010-12-01,0.000,1,UK", "zero_price"),
        ("A1,B,d,1,2010-12-01,-11062.06,,UK", "adjustment"),
        ("1,X,d,6,2010-12-01,2.55,,UK", "sale"),
        (",,,,,,,", "blank"),
        ("", "blank"),
    ],
)
def test_each_line_is_of_one_kind(file: Path, line: str, kind: str) -> None:
    """The first kind that holds."""
    assert [one.kind for one in read(file, line + "\n")] == [kind]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1,X,d,six,2010-12-01,2.55,1,UK", "expected a whole quantity like 6 or -6, got six"),
        ("1,X,d,6.5,2010-12-01,2.55,1,UK", "expected a whole quantity like 6 or -6, got 6.5"),
        ("1,X,d,,2010-12-01,2.55,1,UK", "expected a whole quantity like 6 or -6, got nothing"),
        ("1,X,d,6,2010-12-01,NaN,1,UK", "expected a unit price like 2.55, got NaN"),
        ("1,X,d,6,2010-12-01,1e3,1,UK", "expected a unit price like 2.55, got 1e3"),
        ("1,X,d,6,2010-12-01,£2.55,1,UK", "expected a unit price like 2.55, got £2.55"),
        ('1,X,d,6,2010-12-01,"2,55",1,UK', "expected a unit price like 2.55, got 2,55"),
        ("1,X,d,6,01/12/2010 8:26,2.55,1,UK", "expected a date like 2010-12-20 14:05:00, got 01/12/2010 8:26"),
        (",X,d,6,2010-12-01,2.55,1,UK", "expected an invoice number, got none"),
        ("1,X,d,6,2010-12-01,2.55,1", "expected 8 fields, as in the header, got 7"),
        ("1,X,d, e,6,2010-12-01,2.55,1,UK", "expected 8 fields, as in the header, got 9"),
        ("1,X,d\0,6,2010-12-01,2.55,1,UK", "got a NUL character, which the database cannot store"),
        ("1,X,d,999999999,2010-12-01,999999,1,UK", "expected at most 10,000,000 in one line"),
        ('1,X,"d"d,6,2010-12-01,2.55,1,UK', "expected a line of CSV"),
        ("1" * 101 + ",X,d,6,2010-12-01,2.55,1,UK", "expected a invoice of at most 100 characters, got 101"),
    ],
)
def test_a_line_that_cannot_be_read_is_reported_and_the_rest_goes_on(file: Path, line: str, says: str) -> None:
    """With its number, what was expected and what came."""
    before, broken, after = read(file, GOOD + line + "\n" + GOOD)

    assert before.kind == after.kind == "sale"
    assert (broken.number, broken.kind) == (3, "broken")
    assert says in str(broken.problem)
    assert broken.raw is not None
    assert "\0" not in broken.raw


def test_bytes_that_are_no_text_break_their_line_only(file: Path) -> None:
    """A pound sign of another encoding is reported with its byte; naming the encoding reads it."""
    content = GOOD.encode() + GOOD.replace("HEART", "HEART £5").encode("cp1252") + GOOD.encode()

    assert [line.kind for line in read(file, content)] == ["sale", "broken", "sale"]
    assert "expected utf-8 in description, got byte 0xA3" in str(read(file, content)[1].problem)
    assert read(file, content, encoding="cp1252")[1].description == "WHITE HANGING HEART £5"


def test_a_date_format_is_named_never_guessed(file: Path) -> None:
    """3/4 may be March or April: the file is read as it is told."""
    line = "1,X,d,6,3/4/2010 8:26,2.55,1,UK\n"

    assert read(file, line)[0].kind == "broken"
    assert read(file, line, date_format="%m/%d/%Y %H:%M")[0].at == datetime(2010, 3, 4, 8, 26, tzinfo=UTC)
    assert read(file, line, date_format="%d/%m/%Y %H:%M")[0].at == datetime(2010, 4, 3, 8, 26, tzinfo=UTC)


def test_a_zone_is_kept(file: Path) -> None:
    """An hour that names its zone is another hour in UTC."""
    (line,) = read(file, GOOD.replace("08:26:00", "00:26:00+02:00"))

    assert line.at == datetime(2010, 11, 30, 22, 26, tzinfo=UTC)


def test_a_field_in_quotes_may_have_line_breaks(file: Path) -> None:
    """A record of three lines is one record, with the number of its first."""
    first, second = read(file, GOOD.replace("WHITE", '"WHITE\nVERY, ""WHITE""\n').replace("HEART", 'HEART"') + GOOD)

    assert (first.number, first.description) == (2, 'WHITE\nVERY, "WHITE"\n HANGING HEART')
    assert second.number == 5


@pytest.mark.parametrize("behind", [0, 3, SPAN + 20])
def test_a_quote_that_does_not_close_costs_its_own_line_only(file: Path, behind: int) -> None:
    """However many lines stand behind it, each of them is read."""
    lines = read(file, GOOD.replace("WHITE", '"WHITE') + GOOD * behind)

    assert [line.kind for line in lines] == ["broken"] + ["sale"] * behind
    assert "a quote opens and does not close" in str(lines[0].problem)


@pytest.mark.parametrize("closes", ['WHITE"', 'WHITE",'])
def test_two_stray_quotes_do_not_swallow_what_stands_between(file: Path, closes: str) -> None:
    """A record that closes far below and makes no sense gives up its first line, not the others."""
    lines = read(file, GOOD.replace("WHITE", '"WHITE') + GOOD * 3 + GOOD.replace("WHITE", closes) + GOOD)

    assert [line.kind for line in lines[:4]] == ["broken", "sale", "sale", "sale"]
    assert lines[5].kind == "sale"
    assert [line.number for line in lines] == [2, 3, 4, 5, 6, 7]


def test_a_line_without_end_is_cut(file: Path) -> None:
    """A line of megabytes is reported, not held."""
    lines = read(file, "x" * (3 * LONGEST) + "\n" + GOOD)

    assert [(line.number, line.kind) for line in lines] == [(2, "broken"), (3, "sale")]
    assert len(lines[0].raw or "") < 600


def test_the_last_line_needs_no_line_break(file: Path) -> None:
    """Neither does a file need Unix ones, nor go without a byte order mark."""
    assert len(read(file, GOOD.rstrip("\n"))) == 1
    dos = (HEADER + GOOD * 2).replace("\n", "\r\n")
    assert [line.kind for line in read(file, dos, header="\ufeff")] == ["sale", "sale"]


@pytest.mark.parametrize(
    "header",
    [
        "Invoice,StockCode,Description,Quantity,InvoiceDate,Price,Customer ID,Country\n",
        "invoice_number,sku,product name,QTY,Order Date,unit-price,customer,COUNTRY\n",
    ],
)
def test_columns_go_by_several_names(file: Path, header: str) -> None:
    """The names of the second UCI set, and plain ones; in any order, with others between."""
    assert read(file, GOOD, header=header)[0].quantity == 6
    turned = ",".join(["shelf", *reversed(header.strip().split(","))]) + "\n"
    line = ",".join(["x", *reversed(GOOD.strip().split(","))]) + "\n"
    assert read(file, line, header=turned)[0].customer == "17850"


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_the_header_tells_the_delimiter(file: Path, delimiter: str) -> None:
    """Semicolons, tabs and bars are found by themselves."""
    assert read(file, GOOD.replace(",", delimiter), header=HEADER.replace(",", delimiter))[0].quantity == 6


@pytest.mark.parametrize("missing", HEADER.strip().split(","))
def test_a_missing_column_is_named(file: Path, missing: str) -> None:
    """With the names that would do, and those that came."""
    header = HEADER.replace(missing, "Nonsense")

    with pytest.raises(MissingColumn, match=r"has no column for the .*expected one of .*Nonsense"):
        read(file, GOOD, header=header)


@pytest.mark.parametrize(
    ("content", "name", "error", "says"),
    [
        (b"", "a.csv", NotReadable, "is empty"),
        (b"", "a.csv.gz", NotReadable, "is empty"),
        (gzip.compress(b""), "a.csv.gz", NotReadable, "is empty"),
        (HEADER.encode(), "a.csv.gz", NotReadable, "is named .gz and is no gzip file"),
        (gzip.compress(HEADER.encode() * 99)[:-20], "a.csv.gz", NotReadable, "is a damaged gzip file"),
        (HEADER.encode("utf-16"), "a.csv", NotReadable, "is UTF-16; convert it first"),
        (b"# Readme\n", "a.csv", MissingColumn, "expected a header with columns for invoice, code"),
        (b"\n\n", "a.csv", MissingColumn, "expected a header"),
        (b"\x00\x01\x02\xff", "a.csv", MissingColumn, "expected a header"),
        (HEADER.replace("Country", "Invoice No").encode(), "a.csv", MissingColumn, "invoiceno twice"),
    ],
    ids=["empty", "empty-gz", "nothing-packed", "not-gzip", "cut-off", "utf-16", "text", "blank", "bytes", "twice"],
)
def test_a_file_that_is_no_export_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, name: str, error: type[ImportProblem], says: str
) -> None:
    """What came, what was expected, what to do."""
    path = tmp_path / name
    path.write_bytes(content)

    def look() -> None:
        fingerprint(path)
        list(Export(path).lines())

    with pytest.raises(error, match=says):
        look()


def test_a_file_that_is_not_there_or_no_file(tmp_path: Path) -> None:
    """A path that leads nowhere, or to a folder."""
    with pytest.raises(NotReadable, match="There is no file"):
        fingerprint(tmp_path / "nothing.csv")
    with pytest.raises(NotReadable, match="not a regular file"):
        fingerprint(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-16", "klingon", "base64"])
def test_an_encoding_that_cannot_be_is_refused(file: Path, encoding: str) -> None:
    """Unknown ones, and such in which a comma is no comma."""
    with pytest.raises(ImportProblem, match="Expected an encoding that has ASCII in it"):
        Export(file, encoding=encoding)


def test_a_header_alone_has_no_lines(file: Path) -> None:
    """That is no error; there is nothing to import."""
    assert read(file, "") == []


def test_the_same_bytes_have_the_same_fingerprint_packed_or_not(tmp_path: Path) -> None:
    """Gzip or plain, and whatever the name."""
    (tmp_path / "a.csv").write_bytes((HEADER + GOOD).encode())
    (tmp_path / "b.gz").write_bytes(gzip.compress((HEADER + GOOD).encode()))

    assert fingerprint(tmp_path / "a.csv") == fingerprint(tmp_path / "b.gz")


def test_codes_that_are_no_goods_are_known_in_any_case(file: Path) -> None:
    """Postage, fees and vouchers; a code that merely begins with a letter is goods."""
    codes = ["POST", "m", "BANK CHARGES", "gift_0001_40", "DCGS0076", "85123A", ""]

    lines = read(file, "".join(GOOD.replace("85123A", code) for code in codes))

    assert [line.non_goods for line in lines] == ["POST", "M", "BANK CHARGES", "GIFT_0001_40", None, None, None]


def test_memory_does_not_grow_with_the_file(file: Path) -> None:
    """Twenty thousand lines, never closed quotes among them, are read in well under a megabyte."""
    file.write_text(HEADER + (GOOD * 99 + GOOD.replace("WHITE", '"WHITE')) * 200)
    export = Export(file)
    tracemalloc.start()
    try:
        assert sum(1 for _ in export.lines()) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert export.position == file.stat().st_size


garbage = st.binary(max_size=60).map(lambda raw: raw.replace(b"\n", b"") + b"\n")
fields = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.one_of(st.just(GOOD.encode()), garbage), max_size=30))
def test_every_line_is_read_or_reported(file: Path, lines: list[bytes]) -> None:
    """Whatever stands between them, good lines are read, at their numbers; no line is lost and none is made up."""
    got = read(file, b"".join(lines))

    at = {line.number: line for line in got}
    for number, line in enumerate(lines, start=2):
        if line == GOOD.encode():
            assert at[number].kind == "sale"
    assert len(got) == len(at) <= len(lines)
    assert all(line.problem for line in got if line.kind == "broken")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(fields, fields, fields), min_size=1, max_size=20))
def test_text_comes_back_as_it_stood(file: Path, texts: list[tuple[str, str, str]]) -> None:
    """What a well-formed file says in quotes is what is read, line breaks and direction marks included."""
    rows = [
        ",".join(['"1"', quoted(code), quoted(description), "1", "2010-12-01", "1.5", quoted(customer), "UK"])
        for code, description, customer in texts
    ]

    got = read(file, "\n".join(rows) + "\n")

    assert len(got) == len(texts)
    for line, (code, description, customer) in zip(got, texts, strict=True):
        assert (line.code, line.description) == (code.strip(), description)
        assert line.customer in (customer.strip(), customer.strip().removesuffix(".0"), None)


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
