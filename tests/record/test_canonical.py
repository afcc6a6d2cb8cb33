"""Canonical JSON: the same value is the same bytes, and what cannot be written is named by its field (A2, P6)."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placet.record.canonical import LARGEST_INTEGER, NotPlain, canonical, check_plain, parse, restored

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-LARGEST_INTEGER, LARGEST_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
)


@given(PLAIN)
def test_a2_bytes_read_back_are_the_same_bytes(value: Any) -> None:
    """Whatever is written, read and written again is the same to the byte, and equal as a value."""
    written = canonical(value)
    read = parse(written)
    assert read == value
    assert canonical(read) == written


@given(PLAIN)
def test_a2_a_value_that_was_in_jsonb_is_the_same_bytes(value: Any) -> None:
    """jsonb writes floats like 1e16 as integers; restored, they are the same bytes again."""

    def as_jsonb(item: Any) -> Any:
        match item:
            case dict():
                return {key: as_jsonb(one) for key, one in item.items()}
            case list():
                return [as_jsonb(one) for one in item]
            case float() if item.is_integer():
                return int(item)
            case _:
                return item

    assert canonical(restored(json.loads(json.dumps(as_jsonb(value))))) == canonical(value)


@given(st.dictionaries(TEXT, st.integers(0, 9), max_size=6))
def test_a2_the_order_of_fields_counts_for_nothing(value: dict[str, int]) -> None:
    """However an object was built, it is the same bytes."""
    assert canonical(dict(reversed(value.items()))) == canonical(value)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"a": [1, {"b": math.nan}]}, "a[1].b"),
        ({"a": math.inf}, "a"),
        ({"a": LARGEST_INTEGER + 1}, "a"),
        ({"a": -LARGEST_INTEGER - 1}, "a"),
        ({"a": 2**70}, "a"),
        ({"a": "x\x00"}, "a"),
        ({"a": ["\ud800"]}, "a[0]"),
        ({"a": {"\ud800": 1}}, "a"),
        ({"a": {1: 2}}, "a"),
        ({"a": b"bytes"}, "a"),
        ({"a": {1, 2}}, "a"),
        ({"a": object()}, "a"),
        (math.nan, ""),
    ],
)
def test_p6_what_cannot_be_written_is_named_by_its_field(value: Any, field: str) -> None:
    """NaN, infinity, more than 53 bits, NUL, half a surrogate pair, or no JSON at all."""
    with pytest.raises(NotPlain) as refused:
        canonical(value)
    assert refused.value.details["field"] == field
    str(refused.value).encode()


def test_p6_a_value_that_is_nested_without_end_is_refused() -> None:
    """A list that holds itself, and one that is very deep."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotPlain):
        check_plain(endless)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (-0.0, b"0"),
        (1e16, b"10000000000000000"),
        (1e21, b"1e+21"),
        (0.1, b"0.1"),
        (True, b"true"),
        ("é", b'"\xc3\xa9"'),
    ],
)
def test_a2_numbers_and_texts_are_written_as_rfc_8785_says(value: Any, written: bytes) -> None:
    """Known answers."""
    assert canonical(value) == written
