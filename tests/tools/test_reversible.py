"""Tags and draft reports: written with their operation in one transaction, observed by its row, taken back by undo."""

import asyncio

import pytest
from psycopg import OperationalError
from pydantic import ValidationError

from placet.record import crashpoints
from placet.record.database import Database
from tests.tools.conftest import MakeDue
from tools.contract import NothingSent, Refused
from tools.shop import Shop, operations
from tools.shop.draft_refund_report import DraftRefundReport, ReportArguments
from tools.shop.search_orders import SearchArguments, SearchOrders
from tools.shop.tag_orders import TagArguments, TagOrders


@pytest.fixture
def tag_orders(shop: Shop) -> TagOrders:
    return TagOrders(shop)


@pytest.fixture
def draft(shop: Shop) -> DraftRefundReport:
    return DraftRefundReport(shop)


async def tags(shop: Shop) -> dict[str, list[str]]:
    """The tags of each order."""
    found = await SearchOrders(shop).execute(SearchArguments())
    return {row["order_id"]: row["tags"] for row in found["rows"]}  # type: ignore[union-attr,index,call-overload,misc]


async def count(shop: Shop, table: str) -> int:
    async with shop.database.read() as tx:
        return int(await tx.fetch_value(f"select count(*) from shop.{table}"))  # type: ignore[arg-type]


async def test_e7_tags_and_their_receipt_are_one(tag_orders: TagOrders, shop: Shop, make_due: MakeDue) -> None:
    """Known orders are tagged, the receipt has a line for each, and the operation is found by its id."""
    await make_due(100, 200)
    args = TagArguments(order_ids=["O-2", "O-nobody", "O-1"], tag="urgent")
    before = await tag_orders.observe(args, "op")

    receipt = await tag_orders.execute(args, "op")

    assert before.status == "absent"
    assert [(line.ref, line.status, line.reason) for line in receipt.lines] == [
        ("O-2", "done", None),
        ("O-nobody", "refused", "no order of this id is known"),
        ("O-1", "done", None),
    ]
    assert await tags(shop) == {"O-1": ["urgent"], "O-2": ["urgent"]}
    assert (await tag_orders.observe(args, "op")).receipt == receipt
    assert await tag_orders.facts(args) == tag_orders.Facts.model_validate(
        {"count": 0, "already_tagged": 2, "unknown": 1}
    )


async def test_e2_the_same_operation_at_once_happens_once(tag_orders: TagOrders, shop: Shop, make_due: MakeDue) -> None:
    """Five callers with one operation id: one operation, one answer for all."""
    await make_due(100)
    args = TagArguments(order_ids=["O-1"], tag="urgent")

    receipts = await asyncio.gather(*(tag_orders.execute(args, "op") for _ in range(5)))

    assert all(receipt == receipts[0] for receipt in receipts)
    assert await count(shop, "operations") == 1


async def test_e2_an_operation_id_is_for_one_call(tag_orders: TagOrders, shop: Shop, make_due: MakeDue) -> None:
    """Other arguments under a used operation id change nothing."""
    await make_due(100)
    await tag_orders.execute(TagArguments(order_ids=["O-1"], tag="urgent"), "op")

    with pytest.raises(Refused) as refused:
        await tag_orders.execute(TagArguments(order_ids=["O-1"], tag="other"), "op")

    assert refused.value.code == "key_reused"
    assert await tags(shop) == {"O-1": ["urgent"]}


async def test_e5_an_operation_that_is_being_worked_on_is_unknown(tag_orders: TagOrders, shop: Shop) -> None:
    """While its transaction is open an operation is not denied; when it has died it is absent."""
    args = TagArguments(order_ids=["O-1"], tag="urgent")
    async with shop.database.transaction() as tx:
        await operations.done_before(tx, shop.tenant, "op", "tag_orders", args)
        during = await tag_orders.observe(args, "op")

    assert during.status == "unknown"
    assert (await tag_orders.observe(args, "op")).status == "absent"


async def test_e9_undo_removes_its_own_tags_only(tag_orders: TagOrders, shop: Shop, make_due: MakeDue) -> None:
    """An order that had the tag before keeps it; undoing again is the same undo, by another it is refused."""
    await make_due(100, 200)
    await tag_orders.execute(TagArguments(order_ids=["O-1"], tag="urgent"), "earlier")
    args = TagArguments(order_ids=["O-1", "O-2"], tag="urgent")
    receipt = await tag_orders.execute(args, "op")

    undone = await tag_orders.undo(args, receipt, "undo")

    assert undone.summary == "Removed the tag 'urgent' from 1 order."
    assert await tags(shop) == {"O-1": ["urgent"], "O-2": []}
    assert await tag_orders.undo(args, receipt, "undo") == undone
    assert (await tag_orders.observe(args, "undo")).receipt == undone
    with pytest.raises(Refused) as refused:
        await tag_orders.undo(args, receipt, "another undo")
    assert refused.value.code == "already_undone"


async def test_e9_what_never_happened_cannot_be_undone(tag_orders: TagOrders, shop: Shop, make_due: MakeDue) -> None:
    """A receipt of another tenant's operation, or of none, is refused."""
    await make_due(100)
    args = TagArguments(order_ids=["O-1"], tag="urgent")
    receipt = await tag_orders.execute(args, "op")

    with pytest.raises(Refused) as refused:
        await TagOrders(Shop(shop.database, "other")).undo(args, receipt, "undo")

    assert refused.value.code == "unknown_operation"
    assert await tags(shop) == {"O-1": ["urgent"]}


async def test_a1_the_preview_of_tags_counts_what_would_change(tag_orders: TagOrders, make_due: MakeDue) -> None:
    """Orders that have the tag, and ids that nobody knows, are not counted as changes."""
    await make_due(100, 200)
    await tag_orders.execute(TagArguments(order_ids=["O-1"], tag="urgent"), "earlier")
    args = TagArguments(order_ids=["O-1", "O-2", "O-nobody"], tag="urgent")

    preview = await tag_orders.preview(args, await tag_orders.facts(args))

    assert preview.title == "Tag 1 order: urgent"
    assert preview.sample == [{"order_id": "O-2", "tag": "urgent"}]
    assert preview.warnings == ["No orders of this shop, 1 of 3 ids."]
    assert preview.reversible


async def test_e9_a_report_is_drafted_and_deleted(draft: DraftRefundReport, shop: Shop, make_due: MakeDue) -> None:
    """The draft counts per kind and currency; it happens once per operation; undo deletes it."""
    await make_due(1000, 2500, batch="NOV-17")
    await make_due(900, currency="GBP", batch="NOV-17")
    await make_due(5, batch="other")
    args = ReportArguments(batch="NOV-17")

    receipt = await draft.execute(args, "op")

    assert receipt.summary == (
        "Drafted 'Refunds of batch NOV-17'. 3 due (35.00 EUR and 9.00 GBP), 0 refunded, 0 not refundable."
    )
    assert await draft.execute(args, "op") == receipt
    assert (await draft.observe(args, "op")).receipt == receipt
    assert await count(shop, "reports") == 1
    undone = await draft.undo(args, receipt, "undo")
    assert await count(shop, "reports") == 0
    assert await draft.undo(args, receipt, "undo") == undone


async def test_a1_the_preview_of_a_report_says_what_it_would_say(draft: DraftRefundReport, make_due: MakeDue) -> None:
    """By day as well; nothing is written."""
    await make_due(1000)
    args = ReportArguments(day="2025-11-17")

    preview = await draft.preview(args, await draft.facts(args))

    assert preview.title == "Draft a report: Refunds of orders of 2025-11-17"
    assert preview.impact[1] == "1 due (10.00 EUR), 0 refunded, 0 not refundable"
    assert draft.resources(args) == ["day:2025-11-17"]


async def test_e8_without_the_database_nothing_has_been_written(database_url: str) -> None:
    """Both say that nothing happened, so both may be sent again."""
    closed = Shop(Database(database_url), "acme")

    with pytest.raises(NothingSent):
        await TagOrders(closed).execute(TagArguments(order_ids=["O-1"], tag="urgent"), "op")
    with pytest.raises(NothingSent):
        await DraftRefundReport(closed).execute(ReportArguments(), "op")


def test_p6_a_report_is_about_one_thing() -> None:
    """A batch and a day together are an error that says what to do."""
    with pytest.raises(ValidationError, match="name one of them"):
        ReportArguments(batch="NOV-17", day="2025-11-17")


async def test_e4_a_commit_without_an_answer_is_not_called_unsent(
    tag_orders: TagOrders, shop: Shop, make_due: MakeDue
) -> None:
    """The connection dies as the change is committed: it may have happened, so nobody says that it did not."""
    await make_due(100)
    args = TagArguments(order_ids=["O-1"], tag="urgent")

    async def lost() -> None:
        raise OperationalError("server closed the connection unexpectedly")

    for call in (tag_orders.execute(args, "op"), DraftRefundReport(shop).execute(ReportArguments(), "draft")):
        crashpoints.arm(":committed", lost)
        with pytest.raises(OperationalError):
            await call
    assert (await tag_orders.observe(args, "op")).status == "committed"
    crashpoints.arm(":committed", lost)
    with pytest.raises(OperationalError):  # again, and it finds that it had happened
        await tag_orders.execute(args, "op")
