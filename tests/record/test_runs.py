"""Who works on a thread: one run at a time, under an epoch, with a lease that ends (O1–O3)."""

from datetime import timedelta
from typing import Any

import pytest

from placet.record import approvals, effects, events, items, runs, turns
from placet.record.database import Database
from placet.record.errors import StaleEpoch
from placet.record.runs import Owned
from tests.conftest import Clock
from tests.outside import World
from tests.scripted import calls
from tests.steps import TENANT, outside_house, together

LEASE = timedelta(seconds=15)


async def claim(database: Database, owner: str = "w", thread_id: Any = None) -> Owned | None:
    async with database.transaction() as tx:
        return await runs.claim(tx, TENANT, owner=owner, lease=LEASE, thread_id=thread_id)


async def test_o1_many_workers_at_once_claim_each_thread_once(database: Database, world: World) -> None:
    """Five threads are due and twenty workers look at the same instant: five claims, each of another thread."""
    house = await outside_house(database, world)
    for _ in range(5):
        await house.ask()
    claims = await together(*(claim(database, f"w{n}") for n in range(20)))
    got = [owned for owned in claims if isinstance(owned, Owned)]
    assert [error for error in claims if isinstance(error, BaseException)] == []
    more = [owned for _ in range(5) if (owned := await claim(database)) is not None]  # whom `skip locked` passed over
    assert len({owned.thread_id for owned in got + more}) == len(got + more) == 5


async def test_o1_a_claimed_thread_is_not_claimed_again(database: Database, world: World) -> None:
    """A second run of the thread becomes due while the first runs: it waits for the release, which knocks for it."""
    house = await outside_house(database, world)
    turn = await house.ask()
    first = await claim(database)
    assert first is not None
    async with database.transaction() as tx:
        await runs.make_due(tx, TENANT, turn.thread_id, turn.turn_id, because="again")
    assert await claim(database) is None
    async with database.transaction() as tx:
        await runs.release(tx, first, outcome="test")
    second = await claim(database)
    assert second is not None
    assert (second.because, second.epoch, second.attempt) == ("again", first.epoch + 1, 1)


async def test_o1_the_claim_that_was_due_longest_comes_first(database: Database, world: World, clock: Clock) -> None:
    """First come, first served, across threads."""
    house = await outside_house(database, world)
    asked = []
    for _ in range(3):
        asked.append(await house.ask())
        await clock.advance(1)
    claimed = [await claim(database) for _ in range(3)]
    assert [owned.turn_id for owned in claimed if owned] == [turn.turn_id for turn in asked]


async def test_o3_a_lapsed_lease_raises_the_epoch_and_the_first_owner_can_write_nothing(
    database: Database, world: World, clock: Clock
) -> None:
    """The first owner comes back: fence, renewal, release, start, settle, events, answers, effects are all refused."""
    house = await outside_house(database, world, calls(("label", {"name": "x"})))
    turn = await house.ask()
    first = await claim(database)
    assert first is not None
    async with database.transaction() as tx:
        await turns.start(tx, first)
        await items.record_answer(tx, first, 1, {"a": 1}, [items.Proposed("c", "label", {"name": "x"})], rationale="")
        [item] = await items.of_step(tx, TENANT, turn.turn_id, 1)
        raw = b'{"name":"x"}'
        verdict = {"kind": "auto"}
        await items.freeze(tx, [items.Gated(item.item_id, "proposed", arguments=raw, verdict=verdict)])
    await clock.advance(16)
    second = await claim(database)
    assert second is not None
    assert (second.run_id, second.attempt, second.epoch) == (first.run_id, 2, first.epoch + 1)

    keys = house.services.keys
    refusals = [
        lambda tx: runs.fence(tx, first),
        lambda tx: runs.renew(tx, first, lease=LEASE),
        lambda tx: runs.release(tx, first, outcome="x"),
        lambda tx: turns.start(tx, first),
        lambda tx: turns.settle(tx, first, ending="completed"),
        lambda tx: events.append(tx, first.thread_id, "turn_resumed", {}, epoch=first.epoch),
        lambda tx: items.record_answer(tx, first, 2, {}, [], rationale=""),
        lambda tx: effects.dispatch(tx, keys, first, item, effect_class="label.set", arguments=raw, approval=None),
    ]
    for refused in refusals:
        with pytest.raises(StaleEpoch):
            async with database.transaction() as tx:
                await refused(tx)
    async with database.transaction() as tx:
        sent = await effects.dispatch(tx, keys, second, item, effect_class="label.set", arguments=raw, approval=None)
    assert sent.ours
    for settle in (
        lambda tx: effects.commit(tx, first, sent.effect, {"external_id": "x"}, observed=False),
        lambda tx: effects.refuse(tx, first, sent.effect, code="no", message="no"),
        lambda tx: effects.lose(tx, first, sent.effect, code="lost", message="lost"),
        lambda tx: effects.confirm_absent(tx, first, sent.effect, evidence=""),
    ):
        with pytest.raises(StaleEpoch):
            async with database.transaction() as tx:
                await settle(tx)
    assert [effect.status for effect in await house.effects(turn)] == ["dispatched"]


async def test_o1_a_lease_that_is_renewed_does_not_lapse(database: Database, world: World, clock: Clock) -> None:
    """Renewed in time, the claim stands however long the run takes."""
    house = await outside_house(database, world)
    await house.ask()
    owned = await claim(database)
    assert owned is not None
    for _ in range(4):
        await clock.advance(10)
        async with database.transaction() as tx:
            await runs.renew(tx, owned, lease=LEASE)
        assert await claim(database) is None


async def test_a4_two_knocks_before_the_claim_are_one_run(database: Database, world: World) -> None:
    """Whatever makes the turn due again before anybody came adds nothing; afterwards it is a run of its own."""
    house = await outside_house(database, world)
    turn = await house.ask()
    for n in range(3):
        async with database.transaction() as tx:
            await runs.make_due(tx, TENANT, turn.thread_id, turn.turn_id, because=f"knock {n}")
    assert await house.rows("select because, status from runs") == [{"because": "message", "status": "due"}]


async def test_o1_another_tenants_run_is_never_claimed(database: Database, world: World) -> None:
    """A worker of one tenant looks past what is due for another."""
    house = await outside_house(database, world)
    await house.ask()
    async with database.transaction() as tx:
        assert await runs.claim(tx, "other", owner="w", lease=LEASE) is None
        assert await approvals.expire_due(tx, "other") == 0
        assert await runs.make_parked_due(tx, "other") == 0


async def test_o3_a_created_turn_whose_run_is_gone_is_found(database: Database, world: World) -> None:
    """A turn that was accepted and has no run is made due by the sweep."""
    house = await outside_house(database, world, "Hello.")
    turn = await house.ask()
    await house.rows("delete from runs returning run_id")
    await house.worker.sweep()
    assert (await house.go_on(turn)).status == "completed"
