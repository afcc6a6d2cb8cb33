"""The worker: it claims, goes on, recovers and drains (O1–O4)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from placet.record import by_hand, crashpoints, people, runs
from placet.record.database import Database
from placet.worker import Worker
from tests.conftest import Clock
from tests.outside import World, happens_after, happens_then
from tests.scripted import calls
from tests.steps import TENANT, House, outside_house, settings_for_tests

PAY = ("pay", {"to": "bo", "minor": 700})


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[Worker]:
    """A worker that runs by itself, stopped at the end."""
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(20):
            await task


async def until(house: House, turn: Any, status: str) -> None:
    """Wait for the turn's status; the worker is woken by a notice, so this takes as long as the work does."""
    async with asyncio.timeout(20):
        while (await house.turn(turn.turn_id)).status != status:  # noqa: ASYNC110  # a worker of its own moves it
            await asyncio.sleep(0.02)


async def test_o3_a_turn_that_is_stored_is_worked_on_at_once(database: Database, world: World) -> None:
    """A notice wakes the worker long before its poll: message, pause, decision and end within one poll."""
    house = await outside_house(database, world, calls(PAY), "Paid.", poll=60.0)
    async with working(house.worker):
        turn = await house.ask()
        await until(house, turn, "awaiting_approval")
        await house.approve((await house.pending(turn))[0])
        await until(house, turn, "completed")
    assert len(world.arrivals()) == 1


async def test_o3_a_lost_notice_is_found_by_the_poll(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No notice ever arrives; the poll finds the due run."""

    async def deaf(self: Worker) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Worker, "_listen", deaf)
    house = await outside_house(database, world, "Hello.", poll=0.05)
    async with working(house.worker):
        turn = await house.ask()
        await until(house, turn, "completed")


async def test_o3_a_dead_workers_run_is_taken_up_when_its_lease_lapses(
    database: Database, world: World, clock: Clock
) -> None:
    """The claim of a worker that is gone stands until its lease lapses; then another one does the run, as a new attempt."""
    house = await outside_house(database, world, "Hello.", lease=timedelta(seconds=15))
    turn = await house.ask()
    dead = await house.worker.claim()
    assert dead is not None
    other = house.elsewhere()
    assert await other.worker.run_until_idle() == 0
    await clock.advance(14)
    assert await other.worker.run_until_idle() == 0
    await clock.advance(2)
    taken = await other.worker.claim()
    assert taken is not None
    assert (taken.run_id, taken.attempt, taken.epoch) == (dead.run_id, 2, dead.epoch + 1)
    await other.worker._drive(taken)
    assert (await house.turn(turn.turn_id)).status == "completed"


async def test_o1_a_lease_is_kept_alive_while_the_run_goes_on(database: Database, world: World, clock: Clock) -> None:
    """The call takes many leases; the claim is renewed, and nobody else takes the thread."""
    started, gate = asyncio.Event(), asyncio.Event()
    world.next("label", happens_after(gate, started))
    house = await outside_house(database, world, calls(("label", {"name": "x"})), "Done.", lease=timedelta(seconds=0.3))
    turn = await house.ask()
    work = asyncio.create_task(house.worker.run_until_idle())
    await started.wait()
    other = house.elsewhere()
    before = await lease(house)
    async with asyncio.timeout(20):
        while await lease(house) <= before + timedelta(seconds=0.5):
            await asyncio.sleep(0.02)
            assert await other.worker.claim() is None
    gate.set()
    await work
    assert (await house.turn(turn.turn_id)).status == "completed"
    assert (await house.rows("select attempt from runs"))[0]["attempt"] == 1


async def lease(house: House) -> Any:
    [row] = await house.rows("select lease_until from threads")
    return row["lease_until"]


async def test_o2_a_worker_that_lost_its_lease_stops(database: Database, world: World) -> None:
    """Another run owns the thread: the keeper notices and ends this one, which writes nothing more."""
    started, gate = asyncio.Event(), asyncio.Event()
    world.next("look", happens_after(gate, started))
    house = await outside_house(database, world, calls(("look", {"what": "x"})), "Done.", lease=timedelta(seconds=0.3))
    turn = await house.ask()
    work = asyncio.create_task(house.worker.run_until_idle())
    await started.wait()
    await house.rows("update threads set epoch = epoch + 1, lease_until = clock() + interval '1 hour' returning epoch")
    before = await house.told(turn)
    async with asyncio.timeout(20):
        await work
    assert await house.told(turn) == before
    assert (await house.items(turn))[0].result is None


async def test_o3_a_parked_turn_is_found_and_continued(database: Database, world: World) -> None:
    """Its run is gone without a trace, by whatever fault: the sweep makes a new one due, once."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    await house.rows("delete from runs where status = 'due' returning run_id")
    assert await house.worker.run_until_idle() == 0
    await asyncio.gather(*(house.elsewhere().worker.sweep() for _ in range(3)))
    assert len(await house.rows("select 1 from runs where status = 'due'")) == 1
    assert (await house.go_on(turn)).status == "completed"
    await house.worker.sweep()
    assert await house.worker.run_until_idle() == 0


async def test_o3_a_turn_that_waits_for_people_is_left_alone(database: Database, world: World) -> None:
    """The sweep makes nothing due for a turn whose approval is pending."""
    house = await outside_house(database, world, calls(PAY))
    await house.run()
    for _ in range(3):
        await house.worker.sweep()
    assert await house.worker.run_until_idle() == 0


async def test_o4_a_stopped_worker_finishes_what_runs_and_claims_nothing_more(database: Database, world: World) -> None:
    """SIGTERM during a call: the run reaches its end, the next turn stays for another worker."""
    started, gate = asyncio.Event(), asyncio.Event()
    world.next("label", happens_after(gate, started))
    house = await outside_house(database, world, calls(("label", {"name": "x"})), "Done.", "Second.")
    first = await house.ask()
    task = asyncio.create_task(house.worker.run())
    await started.wait()
    house.worker.stop()
    second = await house.ask()
    gate.set()
    async with asyncio.timeout(20):
        await task
    assert (await house.turn(first.turn_id)).status == "completed"
    assert (await house.turn(second.turn_id)).status == "created"
    assert (await house.elsewhere().go_on(second)).status == "completed"


async def test_o3_a_worker_outlives_an_error_of_the_database(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its look for work fails, even in a way that nobody foresaw: it says so and looks again."""
    import psycopg  # noqa: PLC0415

    house = await outside_house(database, world, "Hello.", poll=0.05)
    sweep, failures = house.worker.sweep, [psycopg.OperationalError("gone"), psycopg.errors.UniqueViolation("odd")]

    async def failing() -> None:
        if failures:
            raise failures.pop()
        await sweep()

    monkeypatch.setattr(house.worker, "sweep", failing)
    async with working(house.worker):
        turn = await house.ask()
        await until(house, turn, "completed")
    assert failures == []


async def test_o1_two_threads_run_beside_each_other(database: Database, world: World) -> None:
    """One worker runs several threads at once: a slow call of one does not hold up the other's."""
    started, gate = asyncio.Event(), asyncio.Event()
    world.next("label", happens_after(gate, started))
    house = await outside_house(
        database,
        world,
        lambda messages: (
            "Done." if len(messages) > 2 or messages[-1].text == "quick" else calls(("label", {"name": "x"}))
        ),
    )
    async with working(house.worker):
        slow = await house.ask("slow")
        await started.wait()
        quick = await house.ask("quick")
        await until(house, quick, "completed")
        assert (await house.turn(slow.turn_id)).status == "running"
        gate.set()
        await until(house, slow, "completed")


async def test_o3_a_worker_dies_with_a_new_turn_while_the_last_one_gets_a_run(database: Database, world: World) -> None:
    """The first turn's unknown effect is settled by hand while the second's worker is dead: neither waits for the other."""
    world.silent = True
    world.next("pay", happens_then(ConnectionError("reset")))
    house = await outside_house(database, world, calls(PAY), "Hello.")
    first = await house.run()
    await house.approve((await house.pending(first))[0])
    await house.go_on(first)
    await house.cancel(first)
    await house.go_on(first)
    second = await house.ask("Hello?", thread_id=first.thread_id)
    assert await house.worker.claim() is not None  # and is gone

    [effect] = await house.effects(first)
    async with house.database.transaction() as tx:
        await people.ensure(tx, TENANT, "otto", name="Otto", roles=["operator"], duties=[])
        otto = await people.get(tx, TENANT, "otto")
        await by_hand.resolve(tx, otto, effect, to="absent", reason="The bank never saw it.")
    await house.rows("update threads set lease_until = clock() - interval '1 second' returning thread_id")
    assert (await house.elsewhere().go_on(second)).output_text == "Hello."
    assert await house.rows("select 1 from runs where status <> 'ended'") == []


async def test_a4_a_decision_arrives_as_a_recovered_run_ends(database: Database, world: World) -> None:
    """The run that a sweep made due has paused, and somebody decides before it lets go: the decision is acted on."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)

    async def approve() -> None:
        await house.approve(asked)

    crashpoints.arm("settle:begin", approve)
    async with house.database.transaction() as tx:
        await runs.make_due(tx, TENANT, turn.thread_id, turn.turn_id, because="parked")
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1


def test_o3_by_default_a_dead_workers_run_is_taken_up_within_15_seconds() -> None:
    """It may have renewed its lease as it died, and the others may just have looked: a lease and a poll."""
    settings = settings_for_tests()
    assert settings.lease.total_seconds() + settings.poll <= 15


async def test_o1_a_lost_connection_does_not_end_the_keeping_of_a_lease(database: Database, world: World) -> None:
    """One renewal fails, the next one keeps the thread."""
    house = await outside_house(database, world, "Hello.", lease=timedelta(seconds=0.6))
    await house.ask()
    owned = await house.worker.claim()
    assert owned is not None

    async def lost() -> None:
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    crashpoints.arm("renew:begin", lost)
    run: asyncio.Task[str] = asyncio.create_task(asyncio.sleep(60, "completed"))
    keeper = asyncio.create_task(house.worker._keep(owned, run))
    await asyncio.sleep(1.0)
    assert await house.elsewhere().worker.claim() is None
    assert not run.done()
    run.cancel()
    keeper.cancel()
