"""What the refund tool knows of a payment service: payments, refunds, and a no to one line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tools.money import show


@dataclass(frozen=True, slots=True)
class Payment:
    """A payment as the service has it now; `left` is what can still be given back, in minor units."""

    payment_id: str
    status: str
    minor: int
    left: int
    currency: str
    customer: str = ""
    disputed: bool = False

    def hindrance(self, minor: int) -> str | None:
        """Why so much cannot be given back, in a few words; None when it can."""
        if self.status != "succeeded":
            return f"the payment is {self.status}"
        if self.disputed:
            return "the customer disputes the payment"
        if minor > self.left:
            return f"only {show(self.left, self.currency)} of it are left"
        return None


@dataclass(frozen=True, slots=True)
class Refund:
    """A refund that was made, with the operation and the line of its batch (from 1) that it carries."""

    refund_id: str
    payment_id: str
    minor: int
    currency: str
    status: str
    failure: str | None
    operation_id: str | None
    line: str | None


class LineRefused(Exception):
    """The service said no to this line: it was not made, and will not be. `code` is the service's own."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class Account(Protocol):
    """The merchant's account at the service."""

    async def payment(self, payment_id: str) -> Payment | None:
        """The payment, or None when the service knows none of this id."""

    async def refund(self, payment_id: str, minor: int, *, operation_id: str, line: int) -> Refund:
        """Make one line of an operation, once: asked again it gives the same answer.

        Raises `LineRefused` for a no and `NothingSent` when it was certainly not made; anything else is unknown.
        """

    async def refunds(self, payment_id: str) -> Sequence[Refund]:
        """All refunds of a payment, whoever made them."""
