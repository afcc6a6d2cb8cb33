"""Who works on a thread, in processes of their own: killed while renewing, stopped and continued, drained (O1–O4)."""

import asyncio
import os
import signal
from datetime import timedelta

import psycopg
import pytest

from placet.record import database as database_module
from placet.record import runs
from placet.record.database import AWAY, Database
from placet.record.embedded import APP, SUPERUSER, Server
from tests.crash.case import Case, Played, Player, begin
from tests.crash.judge import judge
from tests.crash.slots import Died, Nursery, Process, Slot
from tests.crash.stories import main_story
from tests.outside import World
from tests.steps import TENANT, outside_house

APPEND = "select append_audit(%(tenant)s, 'who', 'what', 'whom', '{}')"
AUTO = Case(main_story("pay", "automatic", differs=False))


async def finished(slot: Slot, played: Played, who: Process) -> None:
    """`who` goes on to the end, and everything is as it must be."""

    player = Player(slot, played.case, played, who, _never)
    await player.enter(who)
    await player.play()
    await judge(slot, played)
    assert played.problems == []
    assert played.happened == 1


async def until_it_dies(victim: Process, played: Played) -> None:
    """It works as far as its call, and waits there."""
    await victim.call(do="work", thread=str(played.thread_id))
    await victim.answer()


@pytest.mark.parametrize("point", ["renew:begin", "renew:commit", "renew:committed"])
async def test_o3_killed_while_it_renews_its_lease(slot: Slot, nursery: Nursery, point: str) -> None:
    """A worker dies with the renewal of its lease half done, in the middle of a call: another one finds out and goes on."""
    played = await begin(slot, AUTO)
    victim = await nursery.born("victim", slot.server.url(APP, slot.name), settings={"lease": 0.3})
    await victim.call(
        do="enter", folder=str(played.world.folder), arm={"call:before": "pause", point: "kill"}, note=False
    )
    with pytest.raises(Died):
        await until_it_dies(victim, played)
    await slot.advance(31)

    await finished(slot, played, await slot.rescuer())


@pytest.mark.parametrize("point", ["prune_streams:begin", "prune_streams:commit", "prune_streams:committed"])
async def test_o3_killed_while_it_removes_old_streams(slot: Slot, point: str) -> None:
    """A worker dies while it tidies up behind others: the turn that waits goes on in another one."""
    played = await begin(slot, AUTO)
    victim = await slot.victim()
    await victim.call(do="enter", folder=str(played.world.folder), arm={point: "kill"}, note=False)
    with pytest.raises(Died):
        await victim.call(do="prune")

    await finished(slot, played, await slot.rescuer())


@pytest.mark.parametrize(
    "point", ["dispatch:begin", "call:before", "call:after", "receipt:begin", "checkpoint:begin#5"]
)
async def test_o2_stopped_past_its_lease_it_writes_nothing(slot: Slot, point: str) -> None:
    """SIGSTOP, another worker finishes, SIGCONT: nothing changes; a call that is on the way has the same operation id."""
    played = await begin(slot, AUTO)
    victim, rescuer = await slot.victim(), await slot.rescuer()
    await victim.call(do="enter", folder=str(played.world.folder), arm={point: "pause"}, note=False)
    assert "paused" in await victim.call(do="work", thread=str(played.thread_id))
    os.kill(victim.pid, signal.SIGSTOP)
    victim.tell(do="go")  # it goes on the moment it can
    await slot.cut(victim, in_transaction_only=True)  # should it have been renewing its lease
    await slot.advance(31)
    await finished(slot, played, rescuer)

    before = await Player(slot, AUTO, played, victim, _never).everything()
    os.kill(victim.pid, signal.SIGCONT)
    assert (await victim.answer())["runs"] == 1
    assert await Player(slot, AUTO, played, victim, _never).everything() == before
    assert len(played.world.done("pay")) == 1
    assert len({line["key"] for line in played.world.arrivals("pay")}) == 1


async def test_o4_sigterm_drains_and_another_worker_takes_over(slot: Slot, nursery: Nursery) -> None:
    """SIGTERM in the middle of a call: the run reaches its end, nothing new is claimed, the next turn is another's."""
    first = await begin(slot, AUTO)
    worker = await nursery.born("worker", slot.server.url(APP, slot.name))
    await worker.call(do="enter", folder=str(first.world.folder), arm={"call:before": "pause"}, note=False)
    assert await worker.call(do="serve") == {"paused": "call:before"}
    os.kill(worker.pid, signal.SIGTERM)
    second = await begin(slot, AUTO)
    worker.tell(do="go")
    assert await worker.answer() == {}

    states = await slot.states(first.turn_id, second.turn_id)
    assert states == ["completed", "created"]
    await finished(slot, second, await slot.rescuer())


async def test_o3_a_transaction_that_hangs_keeps_nobody_out(
    database_url: str, database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker stops with locks on its thread and on the audit chain: the server ends it, and others go on."""
    monkeypatch.setattr(database_module, "LIVENESS", "-c idle_in_transaction_session_timeout=500ms")
    house = await outside_house(database, world, "Hello.")
    turn = await house.ask()

    async def stop_in_a_transaction() -> None:
        async with Database(database_url, size=2) as stopped, stopped.transaction() as tx:
            assert await runs.claim(tx, TENANT, owner="stopped", lease=timedelta(seconds=1)) is not None
            await tx.execute(APPEND, {"tenant": TENANT})
            async with database.transaction() as other:
                await other.execute(APPEND, {"tenant": TENANT})  # waits until the server has ended the first
            await tx.execute("select 1")

    with pytest.raises(AWAY):
        await stop_in_a_transaction()
    assert (await house.go_on(turn)).status == "completed"


async def test_e3_one_dead_connection_is_enough_to_look_at_the_others(
    database: Database, owner_url: str, server: Server
) -> None:
    """The server drops a pool's connections, all just used: one statement fails, none after it."""
    async with asyncio.TaskGroup() as group:
        barrier = asyncio.Barrier(5)
        for _ in range(5):
            group.create_task(_hold(database, barrier))
    with psycopg.connect(server.url(SUPERUSER, "postgres"), autocommit=True) as connection:
        cut = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s and usename = %s"
        assert (
            len(connection.execute(cut, [psycopg.conninfo.conninfo_to_dict(owner_url)["dbname"], APP]).fetchall()) == 5
        )
    with pytest.raises(psycopg.OperationalError):
        await _ask(database)
    for _ in range(5):
        await _ask(database)


async def _hold(database: Database, barrier: asyncio.Barrier) -> None:
    async with database.read() as tx:
        await tx.execute("select 1")
        await barrier.wait()


async def _ask(database: Database) -> None:
    async with database.read() as tx:
        await tx.execute("select 1")


async def test_o3_every_connection_has_a_time_limit_for_hanging(database: Database, world: World) -> None:
    """An idle transaction ends after 15 seconds; so does a checkpoint's pipeline, where the server can."""
    house = await outside_house(database, world, "Hello.")
    turn = await house.ask()
    async with database.read() as tx:
        assert await tx.fetch_value("show idle_in_transaction_session_timeout") == "15s"
    async with database.transaction() as tx:
        await tx.execute("select fence(%(thread)s, 0)", {"thread": turn.thread_id})
        assert await tx.fetch_value("select current_setting('transaction_timeout', true)") in ("15s", None)
    async with database.read() as tx:
        assert await tx.fetch_value("select current_setting('transaction_timeout', true)") in ("0", None)


async def _never() -> None:
    raise AssertionError
