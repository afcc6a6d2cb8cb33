"""Money: an integer in minor units plus an ISO 4217 currency; never a float.

The amount of 4,120.00 EUR is `Money(minor=412000, currency="EUR")`. Adding two currencies is an error, not a sum.
"""

from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Minor = Annotated[int, Field(strict=True, ge=-(2**53) + 1, le=2**53 - 1)]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]

# ISO 4217: the currencies whose minor unit is not a hundredth. (ISK and UGX are left at two digits, in which payment
# services count them.)
DIGITS = {
    0: ("BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "PYG", "RWF", "UYI", "VND", "VUV", "XAF", "XOF", "XPF"),
    3: ("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"),
}
EXPONENT = {currency: digits for digits, currencies in DIGITS.items() for currency in currencies}


class Money(BaseModel):
    """An amount in minor units of one currency."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    minor: Minor
    currency: Currency

    def __str__(self) -> str:
        return show(self.minor, self.currency)

    def __add__(self, other: "Money") -> "Money":
        if other.currency != self.currency:
            raise ValueError(f"Cannot add {other.currency} to {self.currency}: sum each currency on its own.")
        return Money(minor=self.minor + other.minor, currency=self.currency)


def exponent(currency: str) -> int:
    """Digits behind the decimal point of a currency (ISO 4217): 2 for EUR, 0 for JPY."""
    return EXPONENT.get(currency, 2)


def show(minor: int, currency: str) -> str:
    """`412000, "EUR"` as `4,120.00 EUR`."""
    digits = exponent(currency)
    return f"{Decimal(minor).scaleb(-digits):,.{digits}f} {currency}"
