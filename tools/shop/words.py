"""What a model may say to the shop's tools: ids, days, free text. What the database could not keep is an error here."""

from datetime import date
from typing import Annotated

from pydantic import AfterValidator, Field


def _keepable(text: str) -> str:
    """NUL cannot be stored; other control characters have no business in an argument."""
    for character in text:
        if ord(character) < 32 or 127 <= ord(character) < 160:
            raise ValueError(f"expected text without control characters, got U+{ord(character):04X}; leave it out")
    return text


def _distinct(ids: list[str]) -> list[str]:
    twice = sorted({one for one in ids if ids.count(one) > 1}) if len(set(ids)) < len(ids) else []
    if twice:
        raise ValueError(f"expected each id once, got some twice: {', '.join(twice[:5])}; name each id once")
    return ids


def _calendar_day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise ValueError(f"expected a day like 2010-12-20: {error}") from None


Text = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_keepable)]
Id = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_keepable)]
Ids = Annotated[
    list[Id], Field(min_length=1, max_length=500, json_schema_extra={"uniqueItems": True}), AfterValidator(_distinct)
]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$"), AfterValidator(_calendar_day)]
