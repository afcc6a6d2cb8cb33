"""A turn's rows: its moves, its steps, and what it waits for (T1–T6)."""

import pytest

from placet.record import items, runs, turns
from placet.record.database import Database
from placet.record.errors import NotAllowed
from placet.record.turns import TurnWaits
from tests.outside import World
from tests.scripted import calls
from tests.steps import TENANT, outside_house, together

PAY = ("pay", {"to": "bo", "minor": 700})


async def test_t1_message_and_run_are_stored_together_or_not_at_all(database: Database, world: World) -> None:
    """A turn that was accepted has its run; one that was rolled back left nothing."""
    house = await outside_house(database, world)
    turn = await house.ask("Hello.")
    assert await house.rows("select turn_id, because from runs") == [{"turn_id": turn.turn_id, "because": "message"}]
    with pytest.raises(RuntimeError):  # noqa: PT012  # the transaction is what is rolled back
        async with database.transaction() as tx:
            await turns.create(tx, house.ana, "Again.", max_steps=3, max_chars=100)
            raise RuntimeError("the process died")
    assert len(await house.rows("select 1 from turns")) == 1
    assert len(await house.rows("select 1 from threads")) == 1


async def test_t4_ten_messages_at_once_are_ten_turns_in_an_order(database: Database, world: World) -> None:
    """Ten messages reach one thread at the same instant: each is stored once, with a place of its own."""
    house = await outside_house(database, world)
    first = await house.ask("0")
    got = await together(*(house.ask(str(n), thread_id=first.thread_id) for n in range(1, 11)))
    assert [error for error in got if isinstance(error, BaseException)] == []
    rows = await house.rows("select ordinal from turns order by ordinal")
    assert [row["ordinal"] for row in rows] == list(range(11))


async def test_t4_the_refusal_names_every_pending_approval(database: Database, world: World) -> None:
    """Two calls wait: the 409 of a new message names both."""
    house = await outside_house(database, world, calls(PAY, PAY))
    turn = await house.run()
    with pytest.raises(TurnWaits) as refused:
        await house.ask(thread_id=turn.thread_id)
    assert set(refused.value.details["approvals"]) == {str(asked.approval_id) for asked in await house.pending(turn)}


async def test_t6_start_is_the_first_thing_a_run_says(database: Database, world: World) -> None:
    """Started once: the event once, also when the same run starts again after a crash; resumed when it waited."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.ask()
    await house.die_at("start:committed", turn)
    await house.go_on(turn)
    await house.approve((await house.pending(turn))[0])
    await house.go_on(turn)
    told = await house.told(turn)
    assert (told.count("turn_started"), told.count("turn_resumed")) == (1, 1)
    assert told[0] == "turn_started"


async def test_g5_a_result_is_given_once_and_then_stands(database: Database, world: World) -> None:
    """A second result of the same call changes nothing and says so."""
    house = await outside_house(database, world, calls(("look", {"what": "x"})), "Done.")
    turn = await house.run()
    [item] = await house.items(turn)
    async with database.transaction() as tx:
        assert await items.finish(tx, item.item_id, "failed", {"ok": False}) is False
        await items.move(tx, item.item_id, "unknown")
    assert await house.items(turn) == [item]


async def test_g2_a_frozen_verdict_stays_frozen(database: Database, world: World) -> None:
    """The gate runs again with another opinion: the first one stands."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    [item] = await house.items(turn)
    async with database.transaction() as tx:
        await items.freeze(tx, [items.Gated(item.item_id, "proposed", arguments=b"{}", verdict={"kind": "auto"})])
    assert await house.items(turn) == [item]


async def test_t3_cancel_and_decide_at_the_same_instant(database: Database, world: World) -> None:
    """Twenty times both at once: whoever was first stands, and a cancelled turn executes nothing afterwards."""
    house = await outside_house(database, world, lambda messages: calls(PAY))
    for _ in range(20):
        turn = await house.run()
        [asked] = await house.pending(turn)
        await together(house.cancel(turn), house.approve(asked))
        await house.go_on(turn)
        assert (await house.turn(turn.turn_id)).status == "cancelled"
        assert (await house.approval(asked.approval_id)).status == "cancelled"
        assert [item.status for item in await house.items(turn)] == ["cancelled"]
    assert world.arrivals() == []


async def test_t3_an_operator_may_cancel_anybodys_turn(database: Database, world: World) -> None:
    """The role operator suffices; the role reviewer does not."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    with pytest.raises(NotAllowed):
        await house.cancel(turn, house.pedro)
    await house.rows("update users set roles = '{operator}', duties = '{}' where user_id = 'pedro' returning 1")
    async with database.read() as tx:
        from placet.record import people  # noqa: PLC0415

        operator = await people.get(tx, TENANT, "pedro")
    assert (await house.cancel(turn, operator)).status == "cancelled"


async def test_t1_a_turn_that_broke_off_leaves_nothing_open(database: Database, world: World) -> None:
    """A run fails for a reason that nobody foresaw: its calls have results, nobody is asked about them any more."""
    house = await outside_house(database, world, calls(PAY, PAY))
    turn = await house.run()
    [asked, _] = await house.pending(turn)
    async with database.transaction() as tx:
        await runs.make_due(tx, TENANT, turn.thread_id, turn.turn_id, because="test")
    owned = await house.worker.claim()
    assert owned is not None
    async with database.transaction() as tx:
        await turns.start(tx, owned)
        await turns.settle(tx, owned, ending="failed", error={"code": "x"}, leftover={"ok": False})
    assert (await house.turn(turn.turn_id)).status == "failed"
    assert await house.pending(turn) == []
    assert (await house.approval(asked.approval_id)).status == "cancelled"
    assert [item.status for item in await house.items(turn)] == ["failed", "failed"]
    assert (await house.told(turn))[-3:] == ["approval_closed", "approval_closed", "turn_failed"]
    assert await house.worker.claim() is None
