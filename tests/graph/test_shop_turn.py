"""The way of a call through the real shop: one decision over a batch, counted by its own books, paid once by its gateway."""

from typing import Any

from placet.record.database import Database
from tests.scripted import Scripted, calls
from tests.steps import TENANT, open_test_house, small_shop
from tools.shop import Shop
from tools.shop.gateway import Faults


def refund(ids: list[str], **more: Any) -> Any:
    return calls(("refund_payments", {"refund_due_ids": ids, **more}))


async def test_p4_a_batch_of_38_is_one_decision_and_each_is_paid_once(database: Database) -> None:
    """38 refunds in one call: one question with count and total from the books, one effect, a receipt line for each."""
    ids = await small_shop(database, *range(1000, 1038))
    house = await open_test_house(database, Scripted(refund(ids), "Refunded."))
    turn = await house.run()
    [asked] = await house.pending(turn)
    assert asked.content["facts"]["count"] == 38
    assert asked.content["facts"]["total"] == sum(range(1000, 1038))
    assert asked.preview["title"] == "Refund 38 payments: 387.03 EUR"
    assert len(asked.preview["sample"]) == 5
    await house.approve(asked)
    assert (await house.go_on(turn)).status == "completed"
    [effect] = await house.effects(turn)
    assert effect.receipt is not None
    assert len(effect.receipt["lines"]) == 38
    assert await Shop(database, TENANT).gateway.sent(ids) == dict.fromkeys(ids, 1)


async def test_p3_a_stated_total_that_is_too_small_never_lowers_the_verdict(database: Database) -> None:
    """The model says that it is 1.00; the books say 2,000.00: finance is asked, and sees the difference."""
    ids = await small_shop(database, 100_000, 100_000)
    house = await open_test_house(
        database, Scripted(refund(ids, stated_total={"minor": 100, "currency": "EUR"}), "Refunded.")
    )
    turn = await house.run()
    [asked] = await house.pending(turn)
    assert (asked.rule, asked.duty) == ("refund-large", "finance")
    assert asked.content["facts"]["total"] == 200_000
    assert any("1.00 EUR" in warning and "2,000.00 EUR" in warning for warning in asked.preview["warnings"])


async def test_p3_a_small_refund_with_a_wrong_total_is_not_automatic(database: Database) -> None:
    """10.00 goes by itself; with a total that disagrees, the same refund asks, and says why."""
    first, second = await small_shop(database, 1000, 1000)
    house = await open_test_house(
        database,
        Scripted(refund([first]), refund([second], stated_total={"minor": 1, "currency": "EUR"})),
    )
    turn = await house.run()
    automatic, flagged = await house.items(turn)
    assert automatic.status == "completed"
    assert flagged.status == "awaiting_approval"
    assert flagged.verdict is not None
    assert [flag["rule"] for flag in flagged.verdict["flags"]] == ["refund-total-differs"]


async def test_a7_three_more_become_due_and_only_what_was_approved_last_is_paid(database: Database) -> None:
    """38 due when it was asked, 41 when it was approved: asked again with the difference, then exactly the 38 are paid."""
    ids = await small_shop(database, *[1000] * 38)
    house = await open_test_house(database, Scripted(refund(ids), "Refunded."))
    turn = await house.run()
    [asked] = await house.pending(turn)
    more = await _three_more(database)
    await house.approve(asked)
    assert (await house.go_on(turn)).status == "awaiting_approval"
    [again] = await house.pending(turn)
    assert again.difference is not None
    assert again.difference["changed"] == {"due_in_batches": {"shown": 38, "now": 41}}
    assert again.content["arguments"] == asked.content["arguments"]
    await house.approve(again)
    assert (await house.go_on(turn)).status == "completed"
    sent = await Shop(database, TENANT).gateway.sent([*ids, *more])
    assert sent == dict.fromkeys(ids, 1) | dict.fromkeys(more, 0)


async def _three_more(database: Database) -> list[str]:
    more = await small_shop(database, 1, 2, 3, batch="C")
    async with database.transaction() as tx:
        await tx.execute("update shop.refunds_due set batch = 'B' where batch = 'C'")
    return more


async def test_e5_the_gateway_pays_and_the_connection_breaks(database: Database) -> None:
    """Its answer is lost: looked up under its key, every refund paid once, the books agree."""
    ids = await small_shop(database, 3000, 4000)
    shop = Shop(database, TENANT)
    await shop.gateway.misbehave(Faults(drops_the_answer=True))
    house = await open_test_house(database, Scripted(refund(ids), "Refunded."))
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    assert (await house.go_on(turn)).status == "completed"
    assert (await house.told(turn)).count("effect_unknown") == 1
    assert await shop.gateway.sent(ids) == dict.fromkeys(ids, 1)
    assert await house.rows("select distinct status from shop.refunds_due") == [{"status": "refunded"}]
