"""The demo's shop: always the same, plausible, and with exactly the refunds that the demo is about."""

import asyncio
import unicodedata
from collections import Counter
from typing import Any

import pytest

from tools.shop import Shop
from tools.shop.refund_payments import RefundArguments, RefundPayments
from tools.shop.search_orders import SearchArguments, SearchOrders
from tools.shop.seed import NothingLeftToFail, Seeded, fail_three_more, seed

TABLES = ("customers", "orders", "payments", "refunds_due")


async def digests(shop: Shop) -> dict[str, str]:
    """A hash of all rows of each table, without the tenant."""
    async with shop.database.read() as tx:
        return {
            table: await tx.fetch_value(
                f"""
                select md5(string_agg((to_jsonb(t) - 'tenant_id')::text, ',' order by (to_jsonb(t) - 'tenant_id')::text))
                  from shop.{table} t
                 where tenant_id = %(tenant)s
                """,  # type: ignore[arg-type]
                {"tenant": shop.tenant},
            )
            for table in TABLES
        }


async def due(shop: Shop, **named: Any) -> Any:
    return await SearchOrders(shop).execute(SearchArguments.model_validate({"refunds_due": True, "limit": 500} | named))


async def test_the_shop_is_what_the_demo_says(shop: Shop) -> None:
    """2,000 customers with names in many scripts, 10,000 orders and payments in three currencies, several batches; in
    NOV-17 38 failed after 4,120.00 EUR, in uneven amounts, and each of them can be refunded."""
    told: list[tuple[str, int, int]] = []
    seeded = await seed(shop, progress=lambda what, done, of: told.append((what, done, of)))
    async with shop.database.read() as tx:
        counts = await tx.fetch_dicts(
            """
            select (select count(*) from shop.customers) as customers, (select count(*) from shop.orders) as orders,
                   (select count(*) from shop.payments) as payments,
                   (select count(*) from gateway.payments) as at_gateway,
                   (select count(distinct batch) from shop.orders) as batches,
                   (select array_agg(distinct currency order by currency) from shop.orders) as currencies
            """
        )
        names = [row["name"] for row in await tx.fetch_dicts("select name from shop.customers")]
    found = await due(shop, batch="NOV-17", status="failed")
    amounts = [row["refund"]["minor"] for row in found["rows"]]
    ids = [row["refund_due_id"] for row in found["rows"]]

    assert counts == [
        {
            "customers": 2_000,
            "orders": 10_000,
            "payments": 10_000,
            "at_gateway": 10_000,
            "batches": 20,
            "currencies": ["EUR", "GBP", "USD"],
        }
    ]
    assert (seeded.customers, seeded.orders) == (2_000, 10_000)
    assert [done for _, done, _ in told] == [1, 2, 3, 4, 5]
    assert found["count"] == 38
    assert found["totals"] == [{"minor": 412_000, "currency": "EUR", "text": "4,120.00 EUR"}]
    assert len(set(amounts)) > 20
    assert all(400 < amount < 80_000 for amount in amounts)
    scripts = Counter(unicodedata.name(name[0]).split()[0] for name in names)
    assert {"LATIN", "CYRILLIC", "GREEK", "ARABIC", "HEBREW", "CJK", "HANGUL", "DEVANAGARI"} <= set(scripts)
    receipt = await RefundPayments(shop).execute(RefundArguments(refund_due_ids=ids), "op")
    assert receipt.summary == "Refunded 38 of 38 payments: 4,120.00 EUR."


async def test_two_shops_have_the_same_rows(shop: Shop) -> None:
    """The same bytes each time, whoever's shop it is."""
    other = Shop(shop.database, "other")
    await seed(shop)
    await seed(other)

    assert await digests(shop) == await digests(other)


async def test_seeding_twice_changes_nothing(shop: Shop) -> None:
    """Also at the same instant, and after something has happened in the shop."""
    first, second = await asyncio.gather(seed(shop), seed(shop))
    await fail_three_more(shop)
    before = await digests(shop)

    third = await seed(shop)

    assert sorted([first.orders, second.orders, third.orders]) == [0, 0, 10_000]
    assert third == Seeded()
    assert await digests(shop) == before


async def test_a7_three_more_orders_fail(shop: Shop) -> None:
    """38 are due, then 41, then 44; all of one currency, and the gateway can pay them."""
    await seed(shop)

    more = await fail_three_more(shop, "NOV-17")
    found = await due(shop, batch="NOV-17")

    assert len(more) == 3
    assert found["count"] == 41
    assert {total["currency"] for total in found["totals"]} == {"EUR"}
    assert set(more) <= {row["refund_due_id"] for row in found["rows"]}
    receipt = await RefundPayments(shop).execute(RefundArguments(refund_due_ids=more), "op")
    assert receipt.summary.startswith("Refunded 3 of 3 payments")
    await fail_three_more(shop, "NOV-17")
    assert (await due(shop, batch="NOV-17"))["count"] == 41


async def test_a_batch_without_paid_orders_has_nothing_to_fail(shop: Shop) -> None:
    """The error says what was expected, and nothing has changed."""
    with pytest.raises(NothingLeftToFail, match="seed the shop"):
        await fail_three_more(shop, "NOV-17")
