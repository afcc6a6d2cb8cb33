"""Searching orders and asking for balances: what is found, what is not shown, what cannot be refunded."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.tools.conftest import CountingDatabase, MakeDue
from tools.shop import Shop
from tools.shop.gateway import Faults
from tools.shop.get_balance import BalanceArguments, GetBalance
from tools.shop.refund_payments import RefundArguments, RefundPayments
from tools.shop.search_orders import SearchArguments, SearchOrders

HOSTILE = "Ada \u202eRUE 00.001\u202c <b>[red]"  # a direction override, markup of two kinds


async def search(shop: Shop, **named: Any) -> Any:
    return await SearchOrders(shop).execute(SearchArguments.model_validate(named))


async def test_p3_search_counts_everything_and_says_how_much_is_not_shown(shop: Shop, make_due: MakeDue) -> None:
    """A limit shortens the rows, not the count and the totals."""
    await make_due(1000, 2000, 3000)
    await make_due(500, currency="GBP")

    found = await search(shop, limit=3)

    assert found["count"] == 4
    assert found["totals"] == [
        {"minor": 6000, "currency": "EUR", "text": "60.00 EUR"},
        {"minor": 500, "currency": "GBP", "text": "5.00 GBP"},
    ]
    assert len(found["rows"]) == 3
    assert found["more"] == 1


async def test_search_by_each_criterion(shop: Shop, make_due: MakeDue) -> None:
    """Batch, status, day, customer by id and by a part of the name, numbers; all that is named has to hold."""
    await make_due(1000, batch="A", customer="Ólafur Þór")
    await make_due(2000, batch="B", customer="Елена")

    async def ids(**named: Any) -> list[str]:
        return [row["order_id"] for row in (await search(shop, **named))["rows"]]

    assert await ids(batch="A") == ["O-1"]
    assert await ids(status="failed") == ["O-1", "O-2"]
    assert await ids(status="paid") == []
    assert await ids(day="2025-11-17") == ["O-1", "O-2"]
    assert await ids(day="2025-11-18") == []
    assert await ids(customer="K-Елена") == ["O-2"]
    assert await ids(customer="ólaf") == ["O-1"]
    assert await ids(customer="%") == []
    assert await ids(order_ids=["O-2", "O-nobody"]) == ["O-2"]
    assert await ids(batch="A", customer="Елена") == []


async def test_search_for_refunds_that_are_due(shop: Shop, make_due: MakeDue) -> None:
    """Refunded ones are gone, what is on its way is marked, what cannot be refunded stands apart with the reason."""
    ids = await make_due(1000, 2000, 3000, 4000)
    tool = RefundPayments(shop)
    await tool.execute(RefundArguments(refund_due_ids=ids[:1]), "one")
    await shop.gateway.misbehave(Faults(drops_the_answer=True))
    with pytest.raises(ConnectionError):
        await tool.execute(RefundArguments(refund_due_ids=ids[1:2]), "two")
    async with shop.database.transaction() as tx:
        await tx.execute(
            "update shop.refunds_due set status = 'not_refundable', why_not = 'disputed' where refund_due_id = %(id)s",
            {"id": ids[3]},
        )

    found = await search(shop, refunds_due=True)

    assert [(row["refund_due_id"], row["refund"]["status"]) for row in found["rows"]] == [
        (ids[1], "on_its_way"),
        (ids[2], "due"),
    ]
    assert found["totals"] == [{"minor": 5000, "currency": "EUR", "text": "50.00 EUR"}]
    assert found["not_refundable"]["count"] == 1
    assert found["not_refundable"]["totals"] == [{"minor": 4000, "currency": "EUR", "text": "40.00 EUR"}]
    (hopeless,) = found["not_refundable"]["rows"]
    assert (hopeless["refund_due_id"], hopeless["why"], hopeless["text"]) == (ids[3], "disputed", "40.00 EUR")


async def test_a_name_comes_back_as_it_was_written(shop: Shop, make_due: MakeDue) -> None:
    """U+202E and markup survive storage unchanged; showing them safely is for whoever shows them."""
    (one,) = await make_due(1000, customer=HOSTILE)

    found = await search(shop)
    args = RefundArguments(refund_due_ids=[one])
    tool = RefundPayments(shop)
    preview = await tool.preview(args, await tool.facts(args))

    assert found["rows"][0]["customer"] == HOSTILE
    assert preview.sample[0]["customer"] == HOSTILE


async def test_another_tenant_finds_nothing(shop: Shop, make_due: MakeDue) -> None:
    """Orders, refunds and balances of one shop are nothing to another."""
    await make_due(1000)
    other = Shop(shop.database, "other")

    assert (await search(other))["count"] == 0
    assert await GetBalance(other).execute(BalanceArguments(batch="B-1")) == {"balances": []}


async def test_a_search_takes_three_queries_at_most(counting: CountingDatabase, make_due: MakeDue) -> None:
    """However many rows there are."""
    await make_due(*[100] * 300)

    found = await search(Shop(counting, "acme"), refunds_due=True, limit=500)

    assert len(found["rows"]) == 300
    assert len(counting.statements) <= 3


async def test_a_balance_is_captured_minus_refunded(shop: Shop, make_due: MakeDue) -> None:
    """Per currency; what is due has not gone yet; by batch, customer, order and day."""
    ids = await make_due(1000, 2500)
    await make_due(900, currency="GBP", customer="Boris")
    await RefundPayments(shop).execute(RefundArguments(refund_due_ids=ids[:1]), "op")

    async def balance(**named: str) -> list[tuple[str, str, str, str]]:
        told: Any = await GetBalance(shop).execute(BalanceArguments.model_validate(named))
        return [
            (one["captured"]["text"], one["refunded"]["text"], one["refunds_due"]["text"], one["balance"]["text"])
            for one in told["balances"]
        ]

    euros = ("35.00 EUR", "10.00 EUR", "25.00 EUR", "25.00 EUR")
    pounds = ("9.00 GBP", "0.00 GBP", "9.00 GBP", "9.00 GBP")
    assert await balance(batch="B-1") == [euros, pounds]
    assert await balance(day="2025-11-17") == [euros, pounds]
    assert await balance(customer_id="K-Boris") == [pounds]
    assert await balance(order_id="O-1") == [("10.00 EUR", "10.00 EUR", "0.00 EUR", "0.00 EUR")]
    assert await balance(order_id="O-nobody") == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"day": "2025-02-30"}, "day is out of range"),
        ({"day": "17.11.2025"}, "pattern"),
        ({"day": 20251117}, "valid string"),
        ({"status": "lost"}, "'failed'"),
        ({"limit": 501}, "less than or equal to 500"),
        ({"limit": 0}, "greater than or equal to 1"),
        ({"limit": "20"}, "valid integer"),
        ({"customer": ""}, "at least 1"),
        ({"customer": "a\0"}, "control characters"),
        ({"refunds_due": "yes"}, "valid boolean"),
    ],
)
def test_p6_a_search_that_does_not_validate_names_the_fault(arguments: dict[str, object], says: str) -> None:
    """Arguments outside the schema never reach the shop."""
    with pytest.raises(ValidationError, match=says):
        SearchArguments.model_validate(arguments)


def test_p6_a_balance_is_of_something() -> None:
    """Without any criterion the error says what to name."""
    with pytest.raises(ValidationError, match="name one"):
        BalanceArguments()
