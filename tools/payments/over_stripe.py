"""Stripe, through its official client.

- A line's key is `<operation id>:<line>`. Stripe gives the same answer to the same key for at least 24 hours, and refuses
  the key with another body, so sending again is safe. It does not always help: a 500 is kept too. An answer that says
  nothing is therefore looked up at once, and a line that is there counts.
- The client's own retries are off: whether something is sent again is decided where it is recorded (E8). Only a 429,
  which Stripe gives before it begins, is waited for here, under the same key.
- Looking up goes by the list of a payment's refunds and their metadata. The list is up to date; Stripe's search is up to a
  minute behind, and does not know refunds.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import httpx
import stamina
import stripe
from pydantic import SecretStr

from tools.contract import NothingSent
from tools.payments.account import LineRefused, Payment, Refund

ANSWER = 20.0  # seconds for one answer
CONNECT = 5.0  # seconds for one connection
PATIENCE = timedelta(seconds=10)  # how long a limited rate is waited out
NEVER_LEFT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
SAID_NO = (stripe.CardError, stripe.InvalidRequestError, stripe.AuthenticationError, stripe.PermissionError)


class Account:
    """One Stripe account. `address` is another than Stripe's own, for a test server; times are seconds."""

    def __init__(
        self,
        key: SecretStr,
        *,
        address: str | None = None,
        answer: float = ANSWER,
        patience: timedelta = PATIENCE,
    ) -> None:
        self._http = stripe.HTTPXClient(timeout=httpx.Timeout(answer, connect=min(CONNECT, answer)))
        self._patience = patience
        self._v1 = stripe.StripeClient(
            key.get_secret_value(),
            http_client=self._http,
            base_addresses={"api": address} if address else {},
            max_network_retries=0,
        ).v1

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.close_async()  # type: ignore[no-untyped-call]  # so it is in their code

    async def payment(self, payment_id: str) -> Payment | None:
        """As `account.Account.payment`, with the charge that it led to."""
        try:
            found = await self._v1.payment_intents.retrieve_async(payment_id, {"expand": ["latest_charge"]})
        except stripe.InvalidRequestError as error:
            if error.http_status == 404:
                return None
            raise
        charge: Any = found.latest_charge
        has_charge = charge is not None and not isinstance(charge, str)
        return Payment(
            payment_id=found.id,
            status=str(found.status),
            minor=found.amount_received or 0,
            left=(charge.amount_captured - charge.amount_refunded) if has_charge else 0,
            currency=found.currency.upper(),
            customer=_customer(charge) if has_charge else "",
            disputed=has_charge and bool(charge.disputed),
        )

    async def refund(self, payment_id: str, minor: int, *, operation_id: str, line: int) -> Refund:
        """As `account.Account.refund`."""
        attempts = stamina.retry_context(
            on=stripe.RateLimitError,
            attempts=None,
            timeout=self._patience,
            wait_initial=0.2,
            wait_jitter=0.2,
            wait_max=4.0,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    made = await self._v1.refunds.create_async(
                        {
                            "payment_intent": payment_id,
                            "amount": minor,
                            "metadata": {"operation_id": operation_id, "line": str(line)},
                        },
                        {"idempotency_key": f"{operation_id}:{line}"},
                    )
                    return _refund(made)
        except SAID_NO as no:
            raise LineRefused(no.user_message or str(no), code=_code(no)) from no
        except stripe.RateLimitError as limited:
            raise NothingSent(f"Stripe limits the rate: {limited.user_message}") from limited
        except stripe.APIError:  # a 5xx, a conflict, or what cannot be read
            for one in await self.refunds(payment_id):
                if (one.operation_id, one.line) == (operation_id, str(line)):
                    return one
            raise
        except stripe.APIConnectionError as lost:
            if isinstance(lost.__cause__, NEVER_LEFT):
                raise NothingSent(f"Stripe was not reached: {lost.__cause__!r}") from lost
            raise
        raise AssertionError("stamina either returns or raises")

    async def refunds(self, payment_id: str) -> Sequence[Refund]:
        """As `account.Account.refunds`, page by page."""
        try:
            page = await self._v1.refunds.list_async({"payment_intent": payment_id, "limit": 100})
            return [_refund(one) async for one in page.auto_paging_iter()]
        except stripe.InvalidRequestError as error:
            if error.http_status == 404:
                return []
            raise


def _refund(made: stripe.Refund) -> Refund:
    payment: Any = made.payment_intent
    metadata = made.metadata.to_dict() if made.metadata else {}
    return Refund(
        refund_id=made.id,
        payment_id=payment if isinstance(payment, str) else getattr(payment, "id", ""),
        minor=made.amount,
        currency=made.currency.upper(),
        status=made.status or "",
        failure=getattr(made, "failure_reason", None),
        operation_id=metadata.get("operation_id"),
        line=metadata.get("line"),
    )


def _customer(charge: Any) -> str:
    """Whoever paid, as they called themselves."""
    billing = getattr(charge, "billing_details", None)
    return getattr(billing, "name", None) or getattr(billing, "email", None) or ""


def _code(no: stripe.StripeError) -> str:
    said = no.code or getattr(no.error, "code", None)
    return said or {401: "authentication_failed", 403: "not_permitted"}.get(no.http_status or 0, "refused")
