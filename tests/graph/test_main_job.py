"""The main job: from a message to a receipt, with a person in between, on the shop's own rows."""

from graph.rehearsal import Rehearsal
from placet.record.database import Database
from tests.retail import RETAIL, a_real_export
from tests.steps import TENANT, open_test_house
from tools.shop import Shop
from tools.shop.export import Export
from tools.shop.importing import import_export
from tools.shop.seed import seed


async def test_g2_a_batch_is_searched_asked_once_approved_and_paid_once(database: Database) -> None:
    """38 failed orders become one question to finance; approved, each is paid once and the model is told by whom."""
    shop = Shop(database, TENANT)
    await seed(shop)
    house = await open_test_house(database, Rehearsal())

    turn = await house.run("Refund the failed orders of batch NOV-17")
    [asked] = await house.pending(turn)
    assert turn.status == "awaiting_approval"
    assert (asked.preview["title"], asked.duty) == ("Refund 38 payments: 4,120.00 EUR", "finance")
    refs = asked.content["arguments"]["refund_due_ids"]
    assert set((await shop.gateway.sent(refs)).values()) == {0}

    await house.approve(asked)
    await house.worker.run_until_idle()

    assert list((await shop.gateway.sent(refs)).values()) == [1] * 38
    ended = await house.turn(turn.turn_id)
    assert ended.status == "completed"
    assert ended.output_text is not None
    assert "marta" in ended.output_text
    assert [event.seq for event in await house.events(turn)] == list(range(1, len(await house.events(turn)) + 1))


@a_real_export
async def test_p4_a_real_day_of_cancelled_invoices_is_one_decision(database: Database) -> None:
    """27 cancelled invoices of 2010-12-20 are one question over 2,047.38 GBP; the receipts add up to the penny."""
    shop = Shop(database, TENANT)
    await import_export(shop, Export(RETAIL))
    house = await open_test_house(database, Rehearsal())

    turn = await house.run("Refund the cancelled invoices of 2010-12-20")
    [asked] = await house.pending(turn)
    facts = asked.content["facts"]
    assert (facts["count"], facts["total"], facts["currency"]) == (27, 204_738, "GBP")
    assert len(asked.preview["sample"]) == 5

    await house.approve(asked)
    await house.worker.run_until_idle()

    [effect] = await house.effects(turn)
    assert effect.receipt is not None
    assert sum(line["minor"] for line in effect.receipt["lines"]) == 204_738
    sent = await shop.gateway.sent([line["ref"] for line in effect.receipt["lines"]])
    assert list(sent.values()) == [1] * 27
