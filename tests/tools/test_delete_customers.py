"""Deleting customers: the transactional kind. Change and receipt are one transaction, so nothing is ever unknown."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from placet.record import crashpoints
from placet.record.database import Database
from tests.conftest import Clock
from tests.peers.worker import killed, proposes
from tests.steps import TENANT, open_test_house
from tools.contract import Refused
from tools.shop import Shop
from tools.shop.delete_customers import TOMBSTONE, DeleteArguments, DeleteCustomers


@dataclass(frozen=True)
class People:
    """The customers' table, counted by its owner: the witness."""

    owner: Database

    async def names(self) -> dict[str, str]:
        async with self.owner.read() as tx:
            rows = await tx.fetch_dicts("select customer_id, name from shop.customers order by customer_id")
        return {row["customer_id"]: row["name"] for row in rows}

    async def operations(self) -> int:
        async with self.owner.read() as tx:
            return int(await tx.fetch_value("select count(*) from shop.operations where tool = 'delete_customers'"))


@pytest.fixture
async def people(owner: Database) -> People:
    """Ada has no orders, Bo two, Cy one whose refund is due."""
    async with owner.transaction() as tx:
        for number, name in enumerate(("Ada", "Bo", "Cy"), start=1):
            await tx.execute(
                "insert into shop.customers (tenant_id, customer_id, name, country) values (%(t)s, %(id)s, %(name)s, 'Peru')",
                {"t": TENANT, "id": f"K-{number}", "name": name},
            )
    await order(owner, "O-1", "K-2")
    await order(owner, "O-2", "K-2")
    await order(owner, "O-3", "K-3")
    await refund_is_due(owner, "O-3")
    return People(owner)


async def order(database: Database, order_id: str, customer_id: str) -> None:
    async with database.transaction() as tx:
        await tx.execute(
            """
            insert into shop.orders (tenant_id, order_id, customer_id, batch, status, minor, currency, placed_at)
            values (%(t)s, %(order)s, %(customer)s, 'B-1', 'paid', 500, 'EUR', now())
            """,
            {"t": TENANT, "order": order_id, "customer": customer_id},
        )


async def refund_is_due(database: Database, order_id: str) -> None:
    async with database.transaction() as tx:
        await tx.execute(
            """
            with paid as (
                insert into shop.payments (tenant_id, payment_id, order_id, minor, currency, captured_at)
                values (%(t)s, %(payment)s, %(order)s, 500, 'EUR', now())
                returning payment_id
            )
            insert into shop.refunds_due
                   (tenant_id, refund_due_id, order_id, payment_id, batch, minor, currency, reason, due_at)
            select %(t)s, %(refund)s, %(order)s, payment_id, 'B-1', 500, 'EUR', 'It failed.', now() from paid
            """,
            {"t": TENANT, "order": order_id, "payment": f"P-{order_id}", "refund": f"R-{order_id}"},
        )


@pytest.fixture
def tool(database: Database) -> DeleteCustomers:
    return DeleteCustomers(Shop(database, TENANT))


ALL = {"customer_ids": ["K-1", "K-2", "K-3", "K-9"]}
WHOM = DeleteArguments.model_validate(ALL)
AFTER = {"K-2": TOMBSTONE, "K-3": "Cy"}


async def test_p3_facts_and_preview_come_from_the_rows(tool: DeleteCustomers, people: People) -> None:
    """What a rule and a reviewer see is counted: who goes, whose orders stay, who is refused and why."""
    facts = await tool.facts(WHOM)
    preview = await tool.preview(WHOM, facts)

    assert facts.model_dump() == {
        "count": 2,
        "with_orders": 1,
        "orders_kept": 2,
        "countries": ["Peru"],
        "with_open_refunds": 1,
        "not_found": 1,
    }
    assert preview.title == "Delete 2 customers for good"
    assert [row["customer_id"] for row in preview.sample] == ["K-2", "K-1"]
    assert "K-3 (1 refund to them still due; refund first)" in preview.warnings[0]
    assert not preview.reversible


async def test_e7_change_and_receipt_are_one_transaction(
    tool: DeleteCustomers, database: Database, people: People
) -> None:
    """Rolled back, nothing has happened and the operation is absent; committed, both the change and its receipt are there."""

    async def and_roll_back() -> None:
        async with database.transaction() as tx:
            await tool.execute_in(tx, WHOM, "op")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await and_roll_back()
    before = (await people.names(), (await tool.observe(WHOM, "op")).status)

    async with database.transaction() as tx:
        receipt = await tool.execute_in(tx, WHOM, "op")
    seen = await tool.observe(WHOM, "op")

    assert before == ({"K-1": "Ada", "K-2": "Bo", "K-3": "Cy"}, "absent")
    assert await people.names() == AFTER
    assert [(line.ref, line.status) for line in receipt.lines] == [
        ("K-1", "done"),
        ("K-2", "done"),
        ("K-3", "refused"),
        ("K-9", "refused"),
    ]
    assert (seen.status, seen.receipt) == ("committed", receipt)


async def test_e7_the_tool_does_nothing_without_the_transaction_of_its_receipt(
    tool: DeleteCustomers, people: People
) -> None:
    """Called like other tools, it changes nothing and says what to call."""
    with pytest.raises(TypeError, match="execute_in"):
        await tool.execute(WHOM, "op")

    assert "K-1" in await people.names()


async def test_e2_the_same_operation_again_gets_the_stored_receipt(
    tool: DeleteCustomers, database: Database, people: People
) -> None:
    """A second transaction under the same id changes nothing; one under another id finds nobody left."""
    async with database.transaction() as tx:
        first = await tool.execute_in(tx, WHOM, "op")
    async with database.transaction() as tx:
        again = await tool.execute_in(tx, WHOM, "op")

    with pytest.raises(Refused, match="has been deleted already") as refused:
        async with database.transaction() as tx:
            await tool.execute_in(tx, WHOM, "another")

    assert again == first
    assert refused.value.code == "nothing_to_delete"
    assert await people.operations() == 1


async def test_e5_an_open_transaction_is_unknown_not_absent(
    tool: DeleteCustomers, database: Database, people: People
) -> None:
    """While somebody's transaction may still commit, nobody says that it did not happen."""
    async with database.transaction() as tx:
        await tool.execute_in(tx, WHOM, "op")
        during = await tool.observe(WHOM, "op")

    assert during.status == "unknown"


async def test_e7_a_refund_that_becomes_due_meanwhile_waits_for_the_deletion(
    tool: DeleteCustomers, database: Database, owner: Database, people: People
) -> None:
    """The orders are held: a refund for somebody who is being deleted comes before, or after, never unseen in between."""
    async with database.transaction() as tx:
        await tool.execute_in(tx, WHOM, "op")
        becomes_due = asyncio.create_task(refund_is_due(owner, "O-1"))
        done, _ = await asyncio.wait({becomes_due}, timeout=0.3)
    await becomes_due

    assert not done


async def test_p1_deleting_asks_and_what_was_approved_is_deleted(database: Database, people: People) -> None:
    """One customer is enough to ask; approved, rows, receipt and result are there, and each once."""
    house = await open_test_house(database, proposes("delete_customers", {"customer_ids": ["K-1"]}))

    turn = await house.run("Delete Ada")
    [asked] = await house.pending(turn)
    names = await people.names()
    await house.approve(asked)
    await house.worker.run_until_idle()

    assert "K-1" in names
    assert "K-1" not in await people.names()
    [effect] = await house.effects(turn)
    [item] = await house.items(turn)
    assert (effect.status, item.status, item.result and item.result["ok"]) == ("committed", "completed", True)
    assert (await house.turn(turn.turn_id)).status == "completed"


async def test_a7_a_new_order_asks_again(database: Database, owner: Database, people: People) -> None:
    """After the approval a customer orders once more: the same call is asked again, nobody is deleted."""
    house = await open_test_house(database, proposes("delete_customers", ALL))
    turn = await house.run("Delete them")
    [asked] = await house.pending(turn)
    await order(owner, "O-4", "K-1")

    await house.approve(asked)
    await house.worker.run_until_idle()

    [again] = await house.pending(turn)
    assert again.difference is not None
    assert again.difference["changed"] == {"orders_kept": {"shown": 2, "now": 3}}
    assert "K-1" in await people.names()


async def test_e4_a_clear_no_is_refused_and_leaves_nothing(database: Database, people: People) -> None:
    """Nobody of the list can be deleted: a definite failure with the reasons, no operation, no change."""
    house = await open_test_house(database, proposes("delete_customers", {"customer_ids": ["K-3"]}))
    turn = await house.run("Delete Cy")
    [asked] = await house.pending(turn)

    await house.approve(asked)
    await house.worker.run_until_idle()

    [effect] = await house.effects(turn)
    [item] = await house.items(turn)
    assert item.result is not None
    assert (effect.status, item.result["error"]["code"]) == ("refused", "nothing_to_delete")
    assert await people.operations() == 0


@pytest.mark.parametrize("point", ["change:before", "change:after", "changed:commit", "changed:committed"])
async def test_e4_an_exception_on_the_way_leaves_all_or_nothing(database: Database, people: People, point: str) -> None:
    """Whatever breaks around the change: it is observed, done once in the end, and never unknown to people."""
    house = await open_test_house(database, proposes("delete_customers", ALL))
    turn = await house.run("Delete them")
    [asked] = await house.pending(turn)
    await house.approve(asked)

    crashpoints.arm(point, "raise")
    try:
        await house.worker.run_until_idle()
    finally:
        crashpoints.disarm()

    [effect] = await house.effects(turn)
    assert effect.status == "committed"
    assert effect.attempts == (1 if point == "changed:committed" else 2)
    assert await people.names() == AFTER
    assert await people.operations() == 1
    assert (await house.turn(turn.turn_id)).status == "completed"


@pytest.mark.parametrize(
    "point", ["dispatch:committed", "change:before", "change:after", "changed:commit", "changed:committed"]
)
async def test_e5_a_killed_worker_leaves_all_or_nothing(
    database: Database, database_url: str, people: People, clock: Clock, point: str
) -> None:
    """kill -9 anywhere between dispatch and receipt: before the commit nothing has happened, after it everything has; the
    next worker ends with each customer deleted once and one receipt."""
    house = await open_test_house(database, proposes("delete_customers", ALL))
    turn = await house.run("Delete them")
    [asked] = await house.pending(turn)
    await house.approve(asked)

    await killed(point, database_url, "delete_customers", ALL)
    between = (await people.names(), await people.operations())
    await clock.advance(60)
    await house.worker.run_until_idle()

    assert between == ((AFTER, 1) if point == "changed:committed" else ({"K-1": "Ada", "K-2": "Bo", "K-3": "Cy"}, 0))
    [effect] = await house.effects(turn)
    assert effect.status == "committed"
    assert await people.names() == AFTER
    assert await people.operations() == 1
    assert (await house.turn(turn.turn_id)).status == "completed"


async def test_o2_a_worker_that_lost_its_thread_takes_its_change_back(
    database: Database, people: People, clock: Clock
) -> None:
    """The lease lapses while the rows are being changed and another worker takes the run: the first one's transaction is
    rolled back whole, the change happens under the second."""
    house = await open_test_house(database, proposes("delete_customers", ALL))
    turn = await house.run("Delete them")
    [asked] = await house.pending(turn)
    await house.approve(asked)
    first = DeleteCustomers(Shop(database, TENANT))
    overtaken_by: list[Any] = []

    async def and_is_overtaken(*args: Any) -> Any:
        receipt = await first.execute_in(*args)
        await clock.advance(60)
        overtaken_by.append(await house.worker.claim())
        return receipt

    slow = house.services.registry["delete_customers"]
    slow.execute_in = and_is_overtaken  # type: ignore[attr-defined]
    await house.worker.run_until_idle()
    between = (await people.names(), await people.operations())
    del slow.execute_in  # type: ignore[attr-defined]
    await clock.advance(60)
    await house.worker.run_until_idle()

    assert overtaken_by[0] is not None
    assert between == ({"K-1": "Ada", "K-2": "Bo", "K-3": "Cy"}, 0)
    assert await people.names() == AFTER
    assert (await house.turn(turn.turn_id)).status == "completed"
