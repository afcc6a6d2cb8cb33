"""Amounts inside arguments, facts and receipts, as people read them."""

from collections.abc import Mapping
from typing import Any

from tools.money import show


def is_money(value: Any) -> bool:
    """Whether a value is `{minor, currency}`, perhaps with its `text`, and can be shown as an amount."""
    if not isinstance(value, Mapping) or set(value) - {"text"} != {"minor", "currency"}:
        return False
    minor, currency = value["minor"], value["currency"]
    whole = isinstance(minor, int) and not isinstance(minor, bool)
    return whole and isinstance(currency, str) and len(currency) == 3 and currency.isascii() and currency.isupper()


def in_words(value: Mapping[str, Any]) -> str:
    """`{"minor": 412000, "currency": "EUR"}` as `4,120.00 EUR`."""
    return show(value["minor"], value["currency"])
