"""A shop's export, line by line: a CSV file, plain or gzipped, of which every line is either read or reported.

A line that cannot be read becomes a broken one, with its number and what was expected, and the rest goes on. A quote that
is not closed costs its own line only: the lines that it would have swallowed are read again. The file is streamed; no more than
`SPAN` lines are ever held.
"""

import codecs
import csv
import gzip
import hashlib
import io
import re
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Literal

SPAN = 50  # lines that one record may have, when a field in quotes has line breaks
LONGEST = 1 << 20  # bytes of a line
LONGEST_ID = 100  # characters of an invoice number, a code, a customer, a country
MOST = 10_000_000  # units of the currency in one line; more is taken for a mistake
GZIP = b"\x1f\x8b"
NOBODY = frozenset({"", "nan", "null", "none", "n/a"})  # how exports write that there is no customer

# The columns, and the names that exports give them; case, spaces and punctuation do not count, the first found is taken.
COLUMNS = {
    "invoice": ("invoiceno", "invoice", "invoicenumber", "invoiceid", "orderid", "ordernumber"),
    "code": ("stockcode", "code", "productcode", "itemcode", "sku", "productid"),
    "description": ("description", "productname", "itemname", "product", "item"),
    "quantity": ("quantity", "qty", "units"),
    "date": ("invoicedate", "date", "orderdate", "datetime", "timestamp"),
    "unit price": ("unitprice", "price", "priceperunit", "itemprice"),
    "customer": ("customerid", "customer", "customernumber", "customerno", "clientid"),
    "country": ("country", "customercountry", "shippingcountry"),
}

# Codes that are no goods, as this shop and others use them.
NON_GOODS = frozenset(
    {"POST", "DOT", "C2", "M", "D", "S", "B", "BANK CHARGES", "AMAZONFEE", "CRUK", "PADS", "ADJUST", "ADJUST2"}
)
VOUCHER = re.compile(r"GIFT_\d+_\d+")

QUANTITY = re.compile(r"([+-]?[0-9]{1,9})(\.0+)?")
PRICE = re.compile(r"[+-]?[0-9]{1,10}(\.[0-9]{1,6})?")
AS_NUMBER = re.compile(r"([0-9]+)\.0")  # a customer's number, after a spreadsheet has had it: 17850.0
UNDECODED = re.compile("[\ud800-\udfff]")  # a byte that is not text in the file's encoding
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")

Kind = Literal["sale", "cancellation", "negative_quantity", "zero_price", "adjustment", "blank", "broken"]


class ImportProblem(Exception):
    """The file cannot be imported; nothing was stored. Code: `import_problem`."""

    code = "import_problem"


class MissingColumn(ImportProblem):
    """The header lacks a column that is needed, or has it twice. Code: `missing_column`."""

    code = "missing_column"


class NotReadable(ImportProblem):
    """The file is empty, is not what its name says, or breaks off. Code: `not_readable`."""

    code = "not_readable"


class UnknownEncoding(ImportProblem, LookupError):
    """There is no such encoding, or it has no ASCII in it. Code: `unknown_encoding`."""

    code = "unknown_encoding"


class BrokenLine(ValueError):
    """What was expected of a line, and what came; it is reported and the import goes on. Code: `broken_line`."""

    code = "broken_line"


@dataclass(frozen=True, slots=True)
class Line:
    """One record of the file. `number` is the line where it begins; the header is line 1.

    A broken one has `problem` and the beginning of its text in `raw`; a blank one has nothing; every other has all the
    rest, of which `customer` may be None. `quantity * unit_price` is in units of the currency and exact.
    """

    number: int
    kind: Kind
    problem: str | None = None
    raw: str | None = None
    invoice: str | None = None
    code: str | None = None
    description: str | None = None
    quantity: int | None = None
    unit_price: Decimal | None = None
    at: datetime | None = None
    customer: str | None = None
    country: str | None = None

    @property
    def non_goods(self) -> str | None:
        """The code in capital letters, if it stands for no goods."""
        code = (self.code or "").upper()
        return code if code in NON_GOODS or VOUCHER.fullmatch(code) else None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a file is: the hash and the number of its uncompressed bytes."""

    sha256: bytes
    size: int


@dataclass(frozen=True, slots=True)
class _Physical:
    """A line as it stands in the file."""

    number: int
    text: str
    too_long: bool = False


def fingerprint(path: Path) -> Fingerprint:
    """Read the file through once. Raises `NotReadable`: not there, empty, not gzip although named so, cut off."""
    digest, size = hashlib.sha256(), 0
    with _open(path) as file:
        while chunk := file.read(1 << 18):
            digest.update(chunk)
            size += len(chunk)
    if size == 0:
        raise NotReadable(f"{path} is empty; expected a header and lines below it. Nothing was stored.")
    return Fingerprint(digest.digest(), size)


class Export:
    """An export to be read: `lines()` gives every record once; `position` is how many bytes have been read of it.

    `encoding` is any that has ASCII in it; `date_format` is strptime's, for dates that are not ISO 8601. A date without
    a zone is UTC. Raises `ImportProblem` for an encoding that is not known.
    """

    def __init__(self, path: Path, *, encoding: str = "utf-8", date_format: str | None = None) -> None:
        self.path = path
        self._encoding = _checked(encoding)
        self._date_format = date_format
        self.position = 0

    def lines(self) -> Iterator[Line]:
        """Every record behind the header. Raises `MissingColumn`, `NotReadable`."""
        with _open(self.path) as file:
            physical = self._physical(file)
            header = next(physical, None)
            if header is None:
                raise NotReadable(f"{self.path} is empty; expected a header and lines below it. Nothing was stored.")
            delimiter, names = _header(self.path, header.text)
            places = _places(self.path, names)
            window: deque[_Physical] = deque()
            while first := _filled(window, physical, 0):
                consumed = 1
                try:
                    fields, spans = _record(window, physical, delimiter)
                    line = self._line(first.number, fields, len(names), places)
                    consumed = spans
                except BrokenLine as problem:  # of a record of several lines only the first is given up
                    line = _broken(first, str(problem))
                for _ in range(consumed):
                    window.popleft()
                yield line

    def _physical(self, file: IO[bytes]) -> Iterator[_Physical]:
        number = 0
        while raw := file.readline(LONGEST):
            number += 1
            self.position += len(raw)
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            too_long = len(raw) == LONGEST and not raw.endswith(b"\n")
            rest = raw
            while too_long and rest and not rest.endswith(b"\n"):
                rest = file.readline(LONGEST)
                self.position += len(rest)
            yield _Physical(number, raw.decode(self._encoding, "surrogateescape"), too_long)

    def _line(self, number: int, fields: list[str], width: int, places: dict[str, int]) -> Line:
        """Raises `BrokenLine`."""
        if not any(field.strip() for field in fields):
            return Line(number, "blank")
        if len(fields) != width:
            raise BrokenLine(f"expected {width} fields, as in the header, got {len(fields)}")
        return self._read(number, {name: fields[place] for name, place in places.items()})

    def _read(self, number: int, field: dict[str, str]) -> Line:
        for name, text in field.items():
            self._check_text(name, text)
        invoice = _id("invoice", field["invoice"])
        if not invoice:
            raise BrokenLine("expected an invoice number, got none")
        if odd := CONTROL.search(invoice):
            raise BrokenLine(f"expected an invoice number, got one with the control character U+{ord(odd[0]):04X}")
        quantity, price = _quantity(field["quantity"]), _price(field["unit price"])
        if abs(quantity * price) > MOST:
            raise BrokenLine(f"expected at most {MOST:,} in one line, got {quantity:,} pieces at {price:,}")
        customer = _id("customer", field["customer"])
        if number_of := AS_NUMBER.fullmatch(customer):
            customer = number_of[1]
        return Line(
            number,
            _kind(invoice, quantity, price),
            invoice=invoice,
            code=_id("code", field["code"]),
            description=field["description"],
            quantity=quantity,
            unit_price=price,
            at=self._date(field["date"]),
            customer=None if customer.casefold() in NOBODY else customer,
            country=_id("country", field["country"]),
        )

    def _check_text(self, name: str, text: str) -> None:
        if undecoded := UNDECODED.search(text):
            raise BrokenLine(
                f"expected {self._encoding} in {name}, got byte 0x{ord(undecoded[0]) & 0xFF:02X}; "
                "name the file's encoding if it has another"
            )
        if "\0" in text:
            raise BrokenLine(f"expected text in {name}, got a NUL character, which the database cannot store")

    def _date(self, text: str) -> datetime:
        text = text.strip()
        try:
            at = datetime.strptime(text, self._date_format) if self._date_format else datetime.fromisoformat(text)  # noqa: DTZ007
            return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        except (ValueError, OverflowError):
            like = f"of the format {self._date_format}" if self._date_format else "like 2010-12-20 14:05:00"
            hint = "" if self._date_format else "; name the date format if the file has another"
            raise BrokenLine(f"expected a date {like}, got {_shown(text)}{hint}") from None


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """The uncompressed bytes. What the file begins with decides, not its name; a name that promises gzip must keep it."""
    try:
        if path.exists() and not path.is_file():
            raise NotReadable(f"{path} is not a regular file; expected a CSV file, plain or gzipped.")
        with path.open("rb") as file:
            begins = file.read(2)
            file.seek(0)
            if begins in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise NotReadable(f"{path} is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8.")
            if path.suffix == ".gz" and begins and begins != GZIP:
                raise NotReadable(f"{path} is named .gz and is no gzip file; rename it if it is a plain CSV.")
            if begins == GZIP:
                with gzip.open(file) as unpacked:
                    yield io.BufferedReader(unpacked)
            else:
                yield file
    except FileNotFoundError:
        raise NotReadable(f"There is no file {path}.") from None
    except PermissionError as error:
        raise NotReadable(f"{path} may not be read: {error.strerror}.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise NotReadable(f"{path} is a damaged gzip file ({error}); get it again. Nothing was stored.") from error


def _checked(encoding: str) -> str:
    try:
        if "a,b\n".encode(encoding) == b"a,b\n":
            return codecs.lookup(encoding).name
    except (LookupError, UnicodeError):
        pass
    raise UnknownEncoding(f"Expected an encoding that has ASCII in it, like utf-8 or cp1252, got {encoding!r}.")


def _header(path: Path, text: str) -> tuple[str, list[str]]:
    """The delimiter, which is the one that gives the most columns, and the columns' names."""
    best = (",", [""])
    for delimiter in ",;\t|":
        try:
            names = next(csv.reader([text], delimiter=delimiter, strict=True), [])
        except csv.Error:
            continue
        if len(names) > len(best[1]):
            best = (delimiter, names)
    if len(best[1]) == 1:
        raise MissingColumn(
            f"{path} begins with {_shown(text)}; expected a header with columns for {', '.join(COLUMNS)}."
        )
    return best


def _places(path: Path, names: list[str]) -> dict[str, int]:
    """Where each column of ours stands. Raises `MissingColumn` with the names that were looked for."""
    plain = [re.sub(r"[\W_]+", "", name).casefold() for name in names]
    places = {}
    for column, aliases in COLUMNS.items():
        alias = next((alias for alias in aliases if alias in plain), None)
        if alias is None:
            raise MissingColumn(
                f"{path} has no column for the {column}; expected one of {', '.join(aliases)} "
                f"(case, spaces and punctuation do not count), got {', '.join(map(_shown, names))}."
            )
        if plain.count(alias) > 1:
            raise MissingColumn(f"{path} has the column {alias} twice; expected it once for the {column}.")
        places[column] = plain.index(alias)
    return places


def _filled(window: deque[_Physical], physical: Iterator[_Physical], place: int) -> _Physical | None:
    """The line at `place` of the window, read from the file if it is not there yet; None at the end."""
    if place < len(window):
        return window[place]
    line = next(physical, None)
    if line is not None:
        window.append(line)
    return line


def _record(window: deque[_Physical], physical: Iterator[_Physical], delimiter: str) -> tuple[list[str], int]:
    """The fields of the record that begins the window, and how many lines it has. Raises `BrokenLine`."""
    consumed = 0

    def texts() -> Iterator[str]:
        nonlocal consumed
        while consumed < SPAN and (line := _filled(window, physical, consumed)) and not line.too_long:
            consumed += 1
            yield line.text

    if window[0].too_long:
        raise BrokenLine(f"expected a line of at most {LONGEST:,} bytes, got a longer one")
    try:
        return next(csv.reader(texts(), delimiter=delimiter, strict=True)), consumed
    except csv.Error as error:
        if "unexpected end" in str(error):
            raise BrokenLine(f"a quote opens and does not close within {consumed} lines") from None
        raise BrokenLine(f"expected a line of CSV: {error}") from None


def _broken(first: _Physical, problem: str) -> Line:
    return Line(first.number, "broken", problem=problem, raw=_shown(first.text.rstrip("\r\n"), 500))


def _shown(text: str, limit: int = 60) -> str:
    """Text for a report: what cannot be stored or shown is escaped, what is long is cut."""
    cut = text[:limit]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return shown + ("…" if len(text) > limit else "")


def _id(name: str, text: str) -> str:
    text = text.strip()
    if len(text) > LONGEST_ID:
        raise BrokenLine(f"expected a {name} of at most {LONGEST_ID} characters, got {len(text):,}")
    return text


def _quantity(text: str) -> int:
    whole = QUANTITY.fullmatch(text.strip())
    if whole is None:
        raise BrokenLine(f"expected a whole quantity like 6 or -6, got {_shown(text) or 'nothing'}")
    return int(whole[1])


def _price(text: str) -> Decimal:
    if not PRICE.fullmatch(text.strip()):
        raise BrokenLine(f"expected a unit price like 2.55, got {_shown(text) or 'nothing'}")
    return Decimal(text.strip())


def _kind(invoice: str, quantity: int, price: Decimal) -> Kind:
    """Exactly one kind for each line that could be read; the first that holds."""
    if invoice[0] in "Cc":
        return "cancellation"
    if quantity < 0:
        return "negative_quantity"
    if price < 0:
        return "adjustment"
    return "sale" if price else "zero_price"
