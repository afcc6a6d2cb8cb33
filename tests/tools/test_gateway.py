"""The payment gateway: one key pays once, another key pays again, and it can be asked."""

import asyncio

import pytest

from placet.record.database import Database
from tools.contract import Refused
from tools.shop import Shop
from tools.shop.gateway import Captured, ConnectionLost, Faults, Gateway, Instruction

BATCH = [Instruction("R-1", "P-1", 1000, "EUR"), Instruction("R-2", "P-2", 2500, "EUR")]
REFS = ["R-1", "R-2"]


@pytest.fixture
async def gateway(shop: Shop) -> Gateway:
    await shop.gateway.register([Captured("P-1", 1000, "EUR"), Captured("P-2", 2500, "EUR")])
    return shop.gateway


async def test_e7_the_same_key_gets_the_same_answer_and_pays_once(gateway: Gateway) -> None:
    """A batch that is sent twice under one key is paid once, and both are told the same."""
    first = await gateway.refund(BATCH, idempotency_key="k")
    second = await gateway.refund(BATCH, idempotency_key="k")

    assert first == second
    assert await gateway.sent(REFS) == {"R-1": 1, "R-2": 1}
    assert [(line.ref, line.status, line.minor) for line in first.lines] == [
        ("R-1", "done", 1000),
        ("R-2", "done", 2500),
    ]
    assert first.summary == "Refunded 2 of 2 payments: 35.00 EUR."


async def test_e2_the_same_key_at_once_pays_once(gateway: Gateway) -> None:
    """Eight callers send the same batch under one key at the same instant: one payout, one answer for all."""
    receipts = await asyncio.gather(*(gateway.refund(BATCH, idempotency_key="k") for _ in range(8)))

    assert all(receipt == receipts[0] for receipt in receipts)
    assert await gateway.sent(REFS) == {"R-1": 1, "R-2": 1}


async def test_the_same_key_with_another_batch_is_refused(gateway: Gateway) -> None:
    """A key that was used for something else pays nothing and says so."""
    await gateway.refund(BATCH, idempotency_key="k")

    with pytest.raises(Refused) as refused:
        await gateway.refund(BATCH[:1], idempotency_key="k")

    assert refused.value.code == "key_reused"
    assert await gateway.sent(REFS) == {"R-1": 1, "R-2": 1}


async def test_another_key_pays_again_and_the_ledger_shows_it(gateway: Gateway) -> None:
    """The gateway does not know what was refunded before: the second key pays a second time, and its ledger says so."""
    await gateway.refund(BATCH, idempotency_key="k")
    await gateway.refund(BATCH[:1], idempotency_key="other")

    assert await gateway.sent([*REFS, "R-3"]) == {"R-1": 2, "R-2": 1, "R-3": 0}
    assert [(line.ref, line.times, line.minor) for line in await gateway.ledger()] == [
        ("R-1", 2, 2000),
        ("R-2", 1, 2500),
    ]


async def test_e5_a_key_is_forgotten_after_a_day_but_can_still_be_looked_up(gateway: Gateway, owner: Database) -> None:
    """After 24 hours the same key would pay again; what it did stays on record."""
    receipt = await gateway.refund(BATCH, idempotency_key="k")
    async with owner.transaction() as tx:
        await tx.execute("update gateway.batches set received_at = received_at - interval '24 hours 1 second'")

    assert (await gateway.look_up("k")).receipt == receipt
    again = await gateway.refund(BATCH, idempotency_key="k")
    assert again != receipt
    assert await gateway.sent(REFS) == {"R-1": 2, "R-2": 2}


async def test_e5_a_key_is_remembered_for_a_day(gateway: Gateway, owner: Database) -> None:
    """Just before 24 hours have passed the same key still gets the stored answer."""
    receipt = await gateway.refund(BATCH, idempotency_key="k")
    async with owner.transaction() as tx:
        await tx.execute("update gateway.batches set received_at = received_at - interval '23 hours 59 minutes'")

    assert await gateway.refund(BATCH, idempotency_key="k") == receipt
    assert await gateway.sent(REFS) == {"R-1": 1, "R-2": 1}


async def test_e3_a_receipt_says_what_became_of_each_line(gateway: Gateway) -> None:
    """Lines that cannot be paid are refused with the reason, the others are paid."""
    await gateway.register([Captured("P-3", 900, "EUR", status="authorised")])
    receipt = await gateway.refund(
        [
            BATCH[0],
            Instruction("unknown", "P-9", 100, "EUR"),
            Instruction("authorised", "P-3", 900, "EUR"),
            Instruction("currency", "P-2", 2500, "GBP"),
            Instruction("amount", "P-2", 2501, "EUR"),
        ],
        idempotency_key="k",
    )

    assert {line.ref: line.reason for line in receipt.lines} == {
        "R-1": None,
        "unknown": "unknown payment P-9",
        "authorised": "payment P-3 was authorised and never captured",
        "currency": "payment P-2 was made in EUR, not in GBP",
        "amount": "payment P-2 was of 25.00 EUR, less than asked",
    }
    assert receipt.summary == "Refunded 1 of 5 payments: 10.00 EUR; 4 refused."
    assert sum((await gateway.sent([line.ref for line in receipt.lines])).values()) == 1


async def test_e4_an_answer_that_is_lost_leaves_the_money_paid(gateway: Gateway) -> None:
    """The connection breaks after the gateway has paid: the caller knows nothing, the look-up knows all."""
    await gateway.misbehave(Faults(drops_the_answer=True))

    with pytest.raises(ConnectionLost):
        await gateway.refund(BATCH, idempotency_key="k")

    seen = await gateway.look_up("k")
    assert seen.status == "committed"
    assert seen.receipt is not None
    assert [line.status for line in seen.receipt.lines] == ["done", "done"]
    assert await gateway.sent(REFS) == {"R-1": 1, "R-2": 1}


async def test_e4_a_batch_that_is_refused_pays_nothing(gateway: Gateway) -> None:
    """The gateway says no to the whole batch: nothing is paid, the key is free, and later it may say yes."""
    await gateway.misbehave(Faults(refuses="payouts are suspended"))
    with pytest.raises(Refused, match="payouts are suspended"):
        await gateway.refund(BATCH, idempotency_key="k")
    assert (await gateway.look_up("k")).status == "absent"

    await gateway.misbehave(Faults())
    await gateway.refund(BATCH, idempotency_key="k")

    assert await gateway.sent(REFS) == {"R-1": 1, "R-2": 1}


async def test_e5_a_gateway_that_does_not_answer_is_no_evidence(gateway: Gateway) -> None:
    """Asked while it is silent, the gateway is not taken to have denied it."""
    await gateway.misbehave(Faults(silent=True))

    assert (await gateway.look_up("k")).status == "unknown"


async def test_e5_a_key_that_is_being_worked_on_is_unknown_never_absent(gateway: Gateway, shop: Shop) -> None:
    """While a slow request is under way the look-up does not say "absent"; afterwards it says what happened."""
    working, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_: float) -> None:
        working.set()
        await go_on.wait()

    await gateway.misbehave(Faults(takes_after=5))
    slow = asyncio.create_task(Gateway(shop.database, shop.tenant, sleep=wait).refund(BATCH, idempotency_key="k"))
    await working.wait()
    during = await gateway.look_up("k")
    go_on.set()
    receipt = await slow

    assert during.status == "unknown"
    assert (await gateway.look_up("k")).receipt == receipt


async def test_e5_a_request_that_dies_before_it_pays_is_absent(gateway: Gateway, shop: Shop) -> None:
    """A caller that is cancelled before the gateway has paid leaves nothing behind, and the key is free."""
    working = asyncio.Event()

    async def for_ever(_: float) -> None:
        working.set()
        await asyncio.Event().wait()

    await gateway.misbehave(Faults(takes_after=5))
    slow = asyncio.create_task(Gateway(shop.database, shop.tenant, sleep=for_ever).refund(BATCH, idempotency_key="k"))
    await working.wait()
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow

    assert (await gateway.look_up("k")).status == "absent"
    assert await gateway.sent(REFS) == {"R-1": 0, "R-2": 0}


async def test_what_it_has_paid_stays_paid_when_our_transaction_is_rolled_back(gateway: Gateway, shop: Shop) -> None:
    """The gateway is outside: no rollback of ours takes money back."""

    async def die() -> None:
        async with shop.database.transaction():
            await gateway.refund(BATCH, idempotency_key="k")
            raise RuntimeError("the process dies here")

    with pytest.raises(RuntimeError):
        await die()

    assert await gateway.sent(REFS) == {"R-1": 1, "R-2": 1}


async def test_two_merchants_do_not_share_keys_payments_or_ledger(gateway: Gateway, database: Database) -> None:
    """Another tenant's payment is unknown, its key is another key, its ledger empty."""
    other = Gateway(database, "other")
    await gateway.refund(BATCH, idempotency_key="k")

    assert (await other.look_up("k")).status == "absent"
    receipt = await other.refund(BATCH, idempotency_key="k")
    assert [line.reason for line in receipt.lines] == ["unknown payment P-1", "unknown payment P-2"]
    assert await other.ledger() == []


async def test_registering_a_payment_twice_keeps_the_first(gateway: Gateway) -> None:
    """What the gateway knows of a payment does not change when it is told again."""
    assert await gateway.register([Captured("P-1", 999_999, "USD"), Captured("P-4", 100, "EUR")]) == 1

    receipt = await gateway.refund([Instruction("R-1", "P-1", 1000, "EUR")], idempotency_key="k")
    assert receipt.lines[0].status == "done"
