"""Refunds through Stripe: the observable and idempotent kind, over the wire, one request per line."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import stripe
from pydantic import SecretStr, ValidationError

from placet.rules import schema_of
from policies import RULES, load_rules
from tests.peers.stripe_server import Fault, StripeServer
from tests.policies.shop import OTHERS, SHOP
from tests.steps import settings_for_tests
from tests.tools.stripe_account import CALL, NAME, once, peer
from tools import payments
from tools.contract import NothingSent, Refused
from tools.payments.over_stripe import Account
from tools.payments.refund_stripe_payments import HalfWay, RefundArguments, RefundStripePayments

__all__ = ["peer"]


@pytest.fixture
async def account(peer: StripeServer) -> AsyncIterator[Account]:
    opened = Account(SecretStr(peer.key), address=peer.address, answer=1.0, patience=timedelta(seconds=0.5))
    yield opened
    await opened.aclose()


@pytest.fixture
def tool(account: Account) -> RefundStripePayments:
    return RefundStripePayments(account, settle=0.0)


def batch(*minors: int, **more: Any) -> RefundArguments:
    """A line of each of these amounts, of pi_1, pi_2, …"""
    lines = [{"payment": f"pi_{number}", "minor": minor} for number, minor in enumerate(minors, start=1)]
    return RefundArguments.model_validate({"refunds": lines, **more})


# What may be said, and what is known


@pytest.mark.parametrize(
    "refunds",
    [
        [],
        [{"payment": "ch_1", "minor": 1}],
        [{"payment": "pi_1/../x", "minor": 1}],
        [{"payment": "pi_1", "minor": 0}],
        [{"payment": "pi_1", "minor": 1.5}],
        [{"payment": "pi_1"}],
        [{"payment": "pi_1", "minor": 1}, {"payment": "pi_1", "minor": 2}],
        [{"payment": f"pi_{n}", "minor": 1} for n in range(51)],
    ],
)
def test_p6_what_is_no_refund_is_an_error_to_the_model(refunds: list[Any]) -> None:
    """Other ids, no amount, a payment twice, too many: refused before Stripe is asked."""
    with pytest.raises(ValidationError):
        RefundArguments.model_validate({"refunds": refunds})


async def test_p3_facts_and_preview_come_from_stripe(tool: RefundStripePayments, peer: StripeServer) -> None:
    """What can be refunded, of how much, in which currency: asked of Stripe; a stated total is only compared."""
    peer.pay("pi_2", 500)
    peer.pay("pi_3", 9_000, status="requires_capture")
    peer.pay("pi_4", 9_000, disputed=True)
    del peer.payments["pi_5"]
    args = batch(1_000, 700, 1, 1, 1, stated_total={"minor": 1, "currency": "EUR"})

    facts = await tool.facts(args)
    preview = await tool.preview(args, facts)

    assert facts.model_dump() == {
        "count": 1,
        "total": 1_000,
        "largest": 1_000,
        "currency": "EUR",
        "not_refundable": 4,
        "stated_total_differs": True,
    }
    assert preview.title == "Refund 1 payment through Stripe: 10.00 EUR"
    assert preview.sample == [{"payment": "pi_1", "customer": "Zoë Müller", "amount": "10.00 EUR", "left": "20.00 EUR"}]
    [stated, refused] = preview.warnings
    assert "0.01 EUR" in stated
    for reason in ("only 5.00 EUR", "requires_capture", "disputes", "no payment of this id"):
        assert reason in refused


async def test_p3_two_currencies_are_not_one_sum(tool: RefundStripePayments, peer: StripeServer) -> None:
    """Each currency is told for itself, and no rule may take the sum for money."""
    peer.pay("pi_2", 2_000, "jpy")

    facts = await tool.facts(args := batch(1_000, 1_500))
    preview = await tool.preview(args, facts)

    assert facts.currency == "MIXED"
    assert preview.title == "Refund 2 payments through Stripe: 10.00 EUR and 1,500 JPY"


@pytest.mark.parametrize(
    ("minors", "kind", "rule", "duty"),
    [
        ((1_000,), "auto", f"{NAME}.auto", None),
        ((5_001,), "ask", "stripe-refund", "support"),
        ((10, 10), "ask", "stripe-refund", "support"),
        ((10, 999_999), "ask", "stripe-refund", "support"),
        ((100_001,), "ask", "stripe-refund-large", "finance"),
    ],
)
async def test_p1_only_one_small_refund_goes_without_asking(
    tool: RefundStripePayments, peer: StripeServer, minors: tuple[int, ...], kind: str, rule: str, duty: str | None
) -> None:
    """The limits of the shop's own gateway hold here too; what Stripe would refuse is flagged."""
    peer.pay("pi_1", 200_000)
    others = [schema for schema in OTHERS if schema.name != NAME]
    rules = load_rules(RULES, [*SHOP, schema_of(tool)], absent=others)

    verdict = await rules.decide(NAME, args := batch(*minors), await tool.facts(args))

    assert (verdict.kind, verdict.rule, verdict.duty, verdict.policy_error) == (kind, rule, duty, None)


def test_p7_the_tool_is_there_when_a_key_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key there is no such tool; with a key and without Stripe's client, the start says what to install."""
    keyed = settings_for_tests(stripe_api_key="sk_test_1")
    monkeypatch.setitem(__import__("sys").modules, "tools.payments.over_stripe", None)

    assert payments.tools(settings_for_tests()) == []
    with pytest.raises(payments.StripeMissing, match="placet\\[stripe\\]"):
        payments.tools(keyed)
    assert "sk_test_1" not in repr(keyed)


# What is sent


async def test_e1_each_line_goes_once_under_its_own_key(tool: RefundStripePayments, peer: StripeServer) -> None:
    """The operation id is in every key and in the metadata; sending the operation again makes nothing new and gets the
    same receipt."""
    first = await tool.execute(batch(1_000, 500), "op-1")
    again = await tool.execute(batch(1_000, 500), "op-1")

    keys = [headers["idempotency-key"] for method, _, headers in peer.seen if method == "POST"]
    assert keys == ["op-1:1", "op-1:2"] * 2
    assert once(peer, "op-1", 1, 2)
    assert again == first
    assert [(line.ref, line.status, line.minor, line.currency) for line in first.lines] == [
        ("pi_1", "done", 1_000, "EUR"),
        ("pi_2", "done", 500, "EUR"),
    ]
    assert (first.external_id, first.summary) == ("op-1", "Refunded 2 payments, 15.00 EUR; 0 refused.")


async def test_e3_a_refused_line_does_not_stop_the_others(tool: RefundStripePayments, peer: StripeServer) -> None:
    """Already refunded, unknown, too much, failed at the bank: refused lines with Stripe's own reasons."""
    await tool.execute(RefundArguments.model_validate({"refunds": [{"payment": "pi_1", "minor": 2_000}]}), "before")
    peer.pay("pi_4", 2_000, refund_status="failed")
    del peer.payments["pi_5"]

    receipt = await tool.execute(batch(100, 100, 2_001, 100, 100), "op-1")

    assert [line.status for line in receipt.lines] == ["refused", "done", "refused", "refused", "refused"]
    reasons = [line.reason or "" for line in receipt.lines]
    assert reasons[0].startswith("charge_already_refunded")
    assert "greater than" in reasons[2]
    assert "expired_or_canceled_card" in reasons[3]
    assert reasons[4].startswith("resource_missing")
    assert receipt.data["totals"] == [{"minor": 100, "currency": "EUR"}]


@pytest.mark.parametrize("fault", ["401", None])
async def test_e4_a_no_to_every_line_is_definite(
    tool: RefundStripePayments, peer: StripeServer, fault: Fault | None
) -> None:
    """A revoked key, or payments that nobody can refund: refused, with Stripe's own code, and nothing has happened."""
    peer.faults = [fault]
    if fault is None:
        peer.payments["pi_1"]["status"] = "canceled"

    with pytest.raises(Refused) as no:
        await tool.execute(batch(100), "op-1")

    assert no.value.code == ("authentication_failed" if fault else "payment_intent_unexpected_state")
    assert not peer.refunds


@pytest.mark.parametrize(
    ("fault", "made", "seen"),
    [
        ("cut_before", 0, "absent"),
        ("cut_after", 1, "committed"),
        ("500_before", 0, "absent"),
        ("hang_after", 1, "committed"),
        ("409", 0, "absent"),
    ],
)
async def test_e4_no_clear_answer_is_unknown_until_looked_up(
    tool: RefundStripePayments, peer: StripeServer, fault: Fault, made: int, seen: str
) -> None:
    """A broken connection, a 500, a time-out, a conflict: neither refused nor "nothing sent"; the look-up knows."""
    peer.faults = [fault]

    with pytest.raises(stripe.StripeError):
        await tool.execute(batch(100), "op-1")
    observed = await tool.observe(batch(100), "op-1")

    assert len(peer.refunds) == made
    assert observed.status == seen
    assert len([1 for method, *_ in peer.seen if method == "POST"]) == 1  # the client never tries again by itself


@pytest.mark.parametrize("fault", ["500_after", "garbage_after"])
async def test_e5_an_answer_that_says_nothing_is_looked_up_at_once(
    tool: RefundStripePayments, peer: StripeServer, fault: Fault
) -> None:
    """Stripe keeps a 500 under the key for a day, so asking again would not help: the refund is found, the batch goes on."""
    peer.faults = [fault]

    receipt = await tool.execute(batch(100, 100), "op-1")

    assert once(peer, "op-1", 1, 2)
    assert [line.status for line in receipt.lines] == ["done", "done"]
    assert await tool.execute(batch(100, 100), "op-1") == receipt


async def test_e8_a_limited_rate_is_waited_for_under_the_same_key(
    tool: RefundStripePayments, peer: StripeServer
) -> None:
    """429 and lock_timeout come before anything has begun: tried again, once made."""
    peer.faults = ["429", "lock_timeout"]

    await tool.execute(batch(100), "op-1")

    assert once(peer, "op-1", 1)


async def test_e8_nothing_sent_is_said_only_when_no_line_was_made(
    tool: RefundStripePayments, peer: StripeServer
) -> None:
    """The rate stays limited: before the first line nothing was sent; after it the operation is half way, and unknown."""
    peer.faults = ["429"] * 50
    with pytest.raises(NothingSent):
        await tool.execute(batch(100, 100), "op-1")
    peer.faults = [None, *["429"] * 50]
    with pytest.raises(HalfWay):
        await tool.execute(batch(100, 100), "op-2")

    assert once(peer, "op-2", 1)


async def test_e8_a_server_that_is_not_there_got_nothing(tool: RefundStripePayments, peer: StripeServer) -> None:
    """Connection refused: certain. The same while half of the batch is made: not."""
    peer.die()
    with pytest.raises(NothingSent):
        await tool.execute(batch(100, 100), "op-1")

    await peer.revive()
    peer.faults = [None, "die_after"]
    with pytest.raises(stripe.APIConnectionError):
        await tool.execute(batch(100, 100, 100), "op-2")
    with pytest.raises(stripe.APIConnectionError):
        await tool.observe(batch(100, 100, 100), "op-2")  # nobody answers: no evidence

    await peer.revive()
    assert (await tool.observe(batch(100, 100, 100), "op-2")).status == "partial"
    assert once(peer, "op-2", 1, 2)


async def test_e4_a_key_that_was_used_for_something_else_is_no_answer(
    tool: RefundStripePayments, peer: StripeServer
) -> None:
    """The same operation with another amount is told apart by Stripe, pays nothing, and is not taken for a refusal."""
    await tool.execute(batch(100), "op-1")

    with pytest.raises(stripe.IdempotencyError):
        await tool.execute(batch(200), "op-1")

    assert peer.refunded("pi_1") == 100


async def test_e5_what_was_made_is_found_page_by_page_and_only_ours(account: Account, peer: StripeServer) -> None:
    """A payment with many refunds of others: ours is found behind them, theirs is not taken for it."""
    tool = RefundStripePayments(account, settle=0.0)
    receipt = await tool.execute(batch(100), "op-1")
    for number in range(5):
        await tool.execute(batch(10), f"other-{number}")
    peer.page = 2

    ours = await tool.observe(batch(100), "op-1")
    nobodys = await tool.observe(batch(100), "op-2")

    assert (ours.status, ours.receipt) == ("committed", receipt)
    assert nobodys.status == "absent"


async def test_e5_absent_takes_two_looks(account: Account, peer: StripeServer) -> None:
    """A request that is still on its way when the first look finds nothing is there at the second."""
    peer.faults = ["hang_before"]
    tool = RefundStripePayments(account, settle=0.3)
    with pytest.raises(stripe.APIConnectionError):
        await tool.execute(batch(100), "op-1")

    looking = asyncio.create_task(tool.observe(batch(100), "op-1"))
    await peer.listed.wait()
    peer.go_on.set()

    assert (await looking).status == "committed"


async def test_e5_three_of_five_is_partial_and_the_rest_is_made_under_the_same_operation(
    tool: RefundStripePayments, peer: StripeServer
) -> None:
    """The server dies after the third: neither committed nor absent; sent again, exactly the others are made, and the
    receipt is whole."""
    peer.faults = [None, None, "die_after"]
    args = RefundArguments.model_validate(CALL)
    with pytest.raises(stripe.StripeError):
        await tool.execute(args, "op-1")
    await peer.revive()
    seen = await tool.observe(args, "op-1")

    receipt = await tool.execute(args, "op-1")

    assert (seen.status, seen.receipt) == ("partial", None)
    assert "3 of 5" in seen.evidence
    assert "pi_4, pi_5" in seen.evidence
    assert once(peer, "op-1", 1, 2, 3, 4, 5)
    assert [line.status for line in receipt.lines] == ["done"] * 5
    assert (await tool.observe(args, "op-1")).receipt == receipt
