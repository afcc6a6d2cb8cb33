"""Amounts as the tools tell them: minor units and currency for the machine, a text for people; one sum per currency."""

from collections.abc import Iterable

from pydantic import JsonValue

from tools.money import show

MIXED = "MIXED"  # stands for "more than one currency", where a rule wants one
NONE = "NONE"  # stands for "no amount at all"


def amount(minor: int, currency: str) -> dict[str, JsonValue]:
    """`412000, "EUR"` as `{"minor": 412000, "currency": "EUR", "text": "4,120.00 EUR"}`."""
    return {"minor": minor, "currency": currency, "text": show(minor, currency)}


def sums(amounts: Iterable[tuple[int, str]]) -> dict[str, int]:
    """Minor units per currency, sorted by currency; two currencies are never added."""
    total: dict[str, int] = {}
    for minor, currency in amounts:
        total[currency] = total.get(currency, 0) + minor
    return dict(sorted(total.items()))


def in_words(totals: dict[str, int]) -> str:
    """`{"EUR": 412000, "GBP": 900}` as `4,120.00 EUR and 9.00 GBP`; nothing for nothing."""
    return " and ".join(show(minor, currency) for currency, minor in totals.items())


def listed(totals: dict[str, int]) -> list[JsonValue]:
    """Totals as a list of `amount`s."""
    return [amount(minor, currency) for currency, minor in totals.items()]
