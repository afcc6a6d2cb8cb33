"""Canonical JSON: the bytes that are approved are the bytes that run (A2).

RFC 8785 knows integers up to 2^53-1 (larger ids are strings) and no NaN; Postgres knows no NUL and no lone surrogates.
`check_plain` says so with the path of the field, before anything is stored.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import rfc8785

from placet.record.errors import InvalidInput

LARGEST_INTEGER = 2**53 - 1
MAX_DEPTH = 40


class NotPlain(InvalidInput):
    """A value that canonical JSON or Postgres cannot hold; `field` is its path."""

    code = "not_plain_json"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field or 'value'}: {problem}", field=field)


def canonical(value: Any) -> bytes:
    """The RFC 8785 bytes of a plain JSON value; raises `NotPlain` with the field that cannot be written."""
    check_plain(value)
    return rfc8785.dumps(value)


def sha256(data: bytes) -> bytes:
    """32 bytes."""
    return hashlib.sha256(data).digest()


def parse(data: bytes) -> Any:
    """The value that canonical bytes stand for, such that `canonical` gives the same bytes again.

    RFC 8785 writes 1e16 as 10000000000000000: what looks like an integer beyond 2^53-1 was a float.
    """
    return json.loads(data, parse_int=_integer_or_float)


def _integer_or_float(digits: str) -> int | float:
    number = int(digits)
    return number if abs(number) <= LARGEST_INTEGER else float(digits)


def restored(value: Any) -> Any:
    """A value as it was before jsonb, which also writes 1e16 as 10000000000000000."""
    match value:
        case Mapping():
            return {key: restored(item) for key, item in value.items()}
        case list() | tuple():
            return [restored(item) for item in value]
        case int() if abs(value) > LARGEST_INTEGER:
            return float(value)
        case _:
            return value


def check_plain(value: Any, path: str = "", depth: int = 0) -> None:
    """Raise `NotPlain` unless `value` is plain JSON that survives every store on the way."""
    if depth > MAX_DEPTH:
        raise NotPlain(path, f"nested deeper than {MAX_DEPTH} levels")
    match value:
        case None | bool():
            return
        case str():
            _check_text(value, path)
        case int():
            if abs(value) > LARGEST_INTEGER:
                raise NotPlain(path, f"integer beyond ±{LARGEST_INTEGER}; send it as a string")
        case float():
            if not math.isfinite(value):
                raise NotPlain(path, f"{value} is not a number that JSON has")
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise NotPlain(path, f"key {key!r} is not text")
                _check_text(key, path)
                check_plain(item, f"{path}.{key}" if path else key, depth + 1)
        case Sequence() if not isinstance(value, bytes | bytearray):
            for index, item in enumerate(value):
                check_plain(item, f"{path}[{index}]", depth + 1)
        case _:
            raise NotPlain(path, f"{type(value).__name__} is not JSON")


def _check_text(text: str, path: str) -> None:
    if "\x00" in text:
        raise NotPlain(path, "text with a NUL character")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise NotPlain(path, "text with half of a surrogate pair") from None
