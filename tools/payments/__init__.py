"""Payments over the wire: refunds through Stripe, with its official client (`pip install 'placet[stripe]'`).

`tools(settings)` is empty where no key is configured. `KNOWN` are the tools' classes, whose rules are checked anyway.
"""

from placet.settings import Settings
from tools.payments.refund_stripe_payments import RefundStripePayments
from tools.registry import AnyTool

KNOWN = (RefundStripePayments,)

__all__ = ["KNOWN", "StripeMissing", "tools"]


class StripeMissing(ImportError):
    """A key for Stripe is configured, and its client is not installed. Code: `stripe_missing`."""

    code = "stripe_missing"


def tools(settings: Settings) -> list[AnyTool]:
    """`refund_stripe_payments`, when the settings have a key. Raises `StripeMissing`."""
    if settings.stripe_api_key is None:
        return []
    try:
        from tools.payments.over_stripe import Account  # noqa: PLC0415  an extra that need not be installed
    except ImportError as error:
        raise StripeMissing(
            f"PLACET_STRIPE_API_KEY is set, but {error.name} is missing: pip install 'placet[stripe]', or unset the key."
        ) from error
    return [RefundStripePayments(Account(settings.stripe_api_key, address=settings.stripe_address))]
