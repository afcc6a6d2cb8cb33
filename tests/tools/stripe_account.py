"""What the tests of refunds through Stripe share: a loopback Stripe with five payments, calls, and its ledger's word."""

from collections.abc import AsyncIterator

import pytest

from tests.peers.stripe_server import StripeServer

NAME = "refund_stripe_payments"
FIVE = [f"pi_{number}" for number in range(1, 6)]
CALL = {"refunds": [{"payment": one, "minor": 1_000} for one in FIVE]}
ONE = {"refunds": [{"payment": "pi_1", "minor": 1_000}]}


@pytest.fixture
async def peer() -> AsyncIterator[StripeServer]:
    """Stripe, with five payments of 20.00 EUR."""
    async with StripeServer() as started:
        for one in FIVE:
            started.pay(one, 2_000)
        yield started


def once(peer: StripeServer, operation_id: str, *lines: int) -> bool:
    """Whether Stripe's own ledger has exactly these lines of the operation, each once."""
    return peer.times() == {(operation_id, str(line)): 1 for line in lines}
