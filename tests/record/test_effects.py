"""Effect rows: written before the call, used up once, settled once (E1–E5)."""

from typing import Any

import pytest

from placet.record import canonical, effects, ids, items, runs, turns
from placet.record.database import Database
from placet.record.effects import Dispatched
from placet.record.errors import NotDispatchable, Tampered
from placet.record.runs import Owned
from tests.outside import World
from tests.scripted import calls
from tests.steps import House, outside_house, together

PAY = ("pay", {"to": "bo", "minor": 700})


async def owned_and_approved(database: Database, world: World) -> tuple[House, Any, Owned, Any, Any]:
    """A running turn whose one call is approved; nothing was dispatched yet."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.approve(asked)
    owned = await house.worker.claim()
    assert owned is not None
    async with database.transaction() as tx:
        await turns.start(tx, owned)
    [item] = await house.items(turn)
    return house, turn, owned, item, await house.approval(asked.approval_id)


async def dispatch(house: House, owned: Owned, item: Any, asked: Any, raw: bytes | None = None) -> Dispatched:
    raw = raw or canonical.canonical(asked.content["arguments"])
    async with house.database.transaction() as tx:
        return await effects.dispatch(
            tx, house.services.keys, owned, item, effect_class="money.out", arguments=raw, approval=asked
        )


async def test_e2_eight_dispatchers_at_once_and_one_may_call(database: Database, world: World) -> None:
    """The same call is dispatched eight times at the same instant under one epoch: one is told that it is its own."""
    house, turn, owned, item, asked = await owned_and_approved(database, world)
    sent = await together(*(dispatch(house, owned, item, asked) for _ in range(8)))
    assert [error for error in sent if isinstance(error, BaseException)] == []
    assert sum(one.ours for one in sent if isinstance(one, Dispatched)) == 1
    assert len(await house.effects(turn)) == 1


async def test_e1_the_operation_is_that_of_call_and_arguments(database: Database, world: World) -> None:
    """A retry keeps the operation; changed arguments change it, and are refused by the last door."""
    house, _, owned, item, asked = await owned_and_approved(database, world)
    other = canonical.canonical({**asked.content["arguments"], "minor": 99_999})
    with pytest.raises(NotDispatchable) as refused:
        await dispatch(house, owned, item, asked, other)
    assert refused.value.why == "not_what_was_approved"
    sent = await dispatch(house, owned, item, asked)
    raw = canonical.canonical(asked.content["arguments"])
    assert sent.effect.operation_id == ids.operation_id(item.item_id, canonical.sha256(raw))
    assert ids.operation_id(item.item_id, canonical.sha256(other)) != sent.effect.operation_id


async def test_e1_refused_by_the_last_door_leaves_no_event(database: Database, world: World) -> None:
    """The event that the dispatch would have written is rolled back with it, and no number is lost."""
    house, turn, owned, item, asked = await owned_and_approved(database, world)
    before = await house.events(turn)
    other = canonical.canonical({**asked.content["arguments"], "minor": 99_999})
    with pytest.raises(NotDispatchable):
        await dispatch(house, owned, item, asked, other)
    assert await house.events(turn) == before
    assert (await house.items(turn))[0].status == "approved"


async def test_e3_the_first_receipt_stands(database: Database, world: World) -> None:
    """Committed once; a second receipt, a refusal or a loss that comes later changes nothing."""
    house, turn, owned, item, asked = await owned_and_approved(database, world)
    sent = await dispatch(house, owned, item, asked)
    async with database.transaction() as tx:
        assert await effects.commit(tx, owned, sent.effect, {"external_id": "1"}, observed=False)
    for late in (
        lambda tx: effects.commit(tx, owned, sent.effect, {"external_id": "2"}, observed=True),
        lambda tx: effects.refuse(tx, owned, sent.effect, code="no", message="no"),
        lambda tx: effects.lose(tx, owned, sent.effect, code="lost", message="lost"),
        lambda tx: effects.confirm_absent(tx, owned, sent.effect, evidence=""),
    ):
        async with database.transaction() as tx:
            assert await late(tx) is False
    [effect] = await house.effects(turn)
    assert (effect.status, effect.receipt) == ("committed", {"external_id": "1"})
    told = await house.told(turn)
    assert told.count("tool_completed") == 1
    assert not {"tool_failed", "effect_unknown", "effect_reconciled"} & set(told)


async def test_e4_a_lost_effect_is_open_and_its_call_has_no_result(database: Database, world: World) -> None:
    """Unknown is neither failure nor success: the call stays open, and only observing closes it."""
    house, turn, owned, item, asked = await owned_and_approved(database, world)
    sent = await dispatch(house, owned, item, asked)
    async with database.transaction() as tx:
        assert await effects.lose(tx, owned, sent.effect, code="timed_out", message="no answer")
    [row] = await house.items(turn)
    assert (row.status, row.result) == ("unknown", None)
    async with database.transaction() as tx:
        assert await effects.commit(tx, owned, sent.effect, {"external_id": "1"}, observed=True)
    assert (await house.told(turn))[-2:] == ["effect_unknown", "effect_reconciled"]


async def test_v6_an_effect_carries_the_digest_of_its_identity(database: Database, world: World) -> None:
    """Its row verifies; under another thread, call or arguments it does not."""
    from dataclasses import replace  # noqa: PLC0415
    from uuid import uuid4  # noqa: PLC0415

    house, _, owned, item, asked = await owned_and_approved(database, world)
    sent = await dispatch(house, owned, item, asked)
    effects.verify(house.services.keys, sent.effect)
    for change in ({"thread_id": uuid4()}, {"item_id": uuid4()}, {"arguments": b"{}"}, {"tenant_id": "other"}):
        with pytest.raises(Tampered):
            effects.verify(house.services.keys, replace(sent.effect, **change))


async def test_v3_dispatch_and_receipt_are_in_the_audit_chain(database: Database, world: World) -> None:
    """What left, and what came back, each as a row of the chain."""
    house, _, owned, item, asked = await owned_and_approved(database, world)
    sent = await dispatch(house, owned, item, asked)
    async with database.transaction() as tx:
        await effects.commit(tx, owned, sent.effect, {"external_id": "1"}, observed=False)
    rows = await house.rows(
        "select action from audit where subject = %(s)s order by n", s=f"effect:{sent.effect.operation_id}"
    )
    assert [row["action"] for row in rows] == ["dispatched", "committed"]


async def test_e2_another_epoch_may_send_what_is_absent(database: Database, world: World) -> None:
    """Confirmed absent under one run; the next run sends the same operation, as its own, once."""
    house, turn, owned, item, asked = await owned_and_approved(database, world)
    sent = await dispatch(house, owned, item, asked)
    async with database.transaction() as tx:
        await effects.confirm_absent(tx, owned, sent.effect, evidence="never seen")
        await items.move(tx, item.item_id, "unknown")
    await house.rows("update threads set lease_until = clock() - interval '1 second' returning epoch")
    later = await house.worker.claim()
    assert later is not None
    again = await together(*(dispatch(house, later, item, asked) for _ in range(4)))
    assert sum(one.ours for one in again if isinstance(one, Dispatched)) == 1
    [effect] = await house.effects(turn)
    assert (effect.operation_id, effect.attempts, effect.epoch) == (sent.effect.operation_id, 2, later.epoch)
    assert effect.first_dispatched_at == sent.effect.first_dispatched_at
    async with database.transaction() as tx:
        await runs.release(tx, later, outcome="test")
