"""A call that comes to its execution again: replayed, copied, or by a run that had lost its thread (E2, O2)."""

import asyncio
from typing import Any

import pytest

from placet.record.database import Database
from tests.graph.test_execute import LABEL, PAY, approved
from tests.outside import World
from tests.scripted import calls
from tests.steps import outside_house


async def test_e2_a_replay_from_before_the_execution_finds_the_effect(database: Database, world: World) -> None:
    """The turn has ended; it is replayed from each of its old checkpoints: no second effect, no other result."""
    house = await outside_house(database, world, calls(LABEL, PAY), "Done.")
    turn = await house.go_on(await approved(house))
    before = await house.items(turn)
    graph, config = await house.graph(turn)
    history = [snapshot async for snapshot in graph.aget_state_history(config)]
    assert len(history) >= 4
    for old in history:
        graph, config = await house.graph(turn)
        where = {**config["configurable"], "checkpoint_id": old.config["configurable"]["checkpoint_id"]}
        await graph.ainvoke(None, {**config, "configurable": where})

    assert len(world.arrivals("pay")) == 1
    assert len(world.arrivals("label")) == 1
    assert [(item.status, item.result) for item in await house.items(turn)] == [(i.status, i.result) for i in before]
    assert house.model.asked == 2


async def test_e2_a_replay_while_the_turn_still_runs_finds_the_effect(database: Database, world: World) -> None:
    """The first call has executed, the second waits; an operator resumes from the checkpoint before both."""
    house = await outside_house(
        database, world, calls(("pay", {"to": "a", "minor": 700}), ("pay", {"to": "b", "minor": 800})), "Done."
    )
    turn = await house.run()
    first, _ = await house.pending(turn)
    await house.approve(first)
    await house.go_on(turn)
    graph, config = await house.graph(turn)
    for old in [snapshot async for snapshot in graph.aget_state_history(config)]:
        await house.rows("update turns set status = 'running' returning turn_id")
        graph, config = await house.graph(turn)
        where = {**config["configurable"], "checkpoint_id": old.config["configurable"]["checkpoint_id"]}
        await graph.ainvoke(None, {**config, "configurable": where})
        await house.rows("update turns set status = 'awaiting_approval' returning turn_id")
    assert [line["args"]["to"] for line in world.arrivals()] == ["a"]
    assert len(await house.pending(turn)) == 1


async def test_e2_a_copied_thread_brings_no_approval_and_no_effect_along(database: Database, world: World) -> None:
    """All checkpoints of a thread with an approved call are copied to another thread: nothing is executed from there."""
    house = await outside_house(database, world, calls(PAY), "Hello.", "Done.")
    original = await approved(house)
    copy = await house.ask("Go on.")
    for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        columns = [
            row["column_name"]
            for row in await house.rows(
                "select column_name from information_schema.columns where table_schema = 'placet' and table_name = %(t)s",
                t=table,
            )
            if row["column_name"] != "thread_id"
        ]
        names = ", ".join(columns)
        await house.rows(
            f"""
            insert into {table} (thread_id, {names})
            select %(copy)s, {names} from {table} where thread_id = %(original)s returning thread_id
            """,
            copy=str(copy.thread_id),
            original=str(original.thread_id),
        )
    await house.worker.run_until_idle(copy.thread_id)
    assert world.arrivals() == []
    assert await house.pending(copy) == []
    assert (await house.turn(copy.turn_id)).output_text == "Hello."

    await house.worker.run_until_idle(original.thread_id)
    assert len(world.arrivals()) == 1


async def test_e2_a_zombie_that_comes_back_executes_and_writes_nothing(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker stands still before the effect row, its lease lapses, another one does the work; the first wakes up."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await approved(house)
    asleep, wake = asyncio.Event(), asyncio.Event()

    async def sleep_once() -> None:
        if not asleep.is_set():
            asleep.set()
            await wake.wait()

    house.before_dispatch(monkeypatch, sleep_once)
    zombie = asyncio.create_task(house.worker.run_until_idle())
    await asleep.wait()
    await house.rows("update threads set lease_until = clock() - interval '1 second' returning thread_id")
    other = house.elsewhere()
    assert (await other.go_on(turn)).status == "completed"
    events = await house.told(turn)
    wake.set()
    await zombie
    assert len(world.arrivals()) == 1
    assert await house.told(turn) == events
    assert (await house.turn(turn.turn_id)).status == "completed"


async def test_o2_a_zombies_receipt_is_refused_and_its_successor_observes(database: Database, world: World) -> None:
    """The zombie has paid and wakes up with the answer: its successor looked it up meanwhile; one effect, one receipt."""
    started, gate = asyncio.Event(), asyncio.Event()

    async def pays_then_sleeps(world: World, tool: str, args: Any, operation_id: str) -> Any:
        receipt = world.do(tool, args, operation_id)
        started.set()
        await gate.wait()
        return receipt

    world.next("pay", pays_then_sleeps)
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await approved(house)
    zombie = asyncio.create_task(house.worker.run_until_idle())
    await started.wait()
    await house.rows("update threads set lease_until = clock() - interval '1 second' returning thread_id")
    assert (await house.elsewhere().go_on(turn)).status == "completed"
    gate.set()
    await zombie

    assert len(world.arrivals()) == 1
    told = await house.told(turn)
    assert (told.count("effect_reconciled"), told.count("tool_completed")) == (1, 0)
    assert [effect.status for effect in await house.effects(turn)] == ["committed"]
