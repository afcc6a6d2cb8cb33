"""Checkpoints of other state versions: migrated by a registered function, or refused by name, and left as they are (G8)."""

from typing import Any

import pytest

from graph import state, versions
from placet.record.checkpointer import FencedSaver
from placet.record.database import Database
from tests.conftest import Clock
from tests.outside import World
from tests.scripted import calls
from tests.steps import House, outside_house

PAY = ("pay", {"to": "bo", "minor": 700})


@pytest.fixture
def migrations(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """Migrations of the test's own."""
    known: dict[int, Any] = {}
    monkeypatch.setattr(versions, "MIGRATIONS", known)
    return known


async def paused(database: Database, world: World) -> tuple[House, Any]:
    """A turn of version 1 that waits for people."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    assert turn.status == "awaiting_approval"
    return house, turn


async def values(house: House, turn: Any) -> dict[str, Any]:
    """What the thread's latest checkpoint holds."""
    config = {"configurable": {"thread_id": str(turn.thread_id)}}
    found = await FencedSaver(house.database, None).aget_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


async def rows(house: House, turn: Any) -> list[dict[str, Any]]:
    """Everything about the turn but its error and the time of it."""
    return await house.rows(
        """
        select u.status, u.steps, i.status as item, i.result, a.approval_id, a.status as approval, a.revision,
               (select count(*) from events e where e.thread_id = u.thread_id) as events,
               (select count(*) from checkpoints c where c.thread_id = u.thread_id::text) as checkpoints
          from turns u join plan_items i using (turn_id) left join approvals a using (item_id)
         where u.turn_id = %(turn)s
        """,
        turn=turn.turn_id,
    )


async def test_g8_the_version_before_is_migrated(
    database: Database, world: World, migrations: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused under version 1, approved, continued by code of version 2: the checkpoint is brought up to date, nobody is
    asked again, and the call runs once."""
    house, turn = await paused(database, world)
    [asked] = await house.pending(turn)
    await house.approve(asked)

    monkeypatch.setattr(state, "STATE_VERSION", 2)
    versions.migration(1)(lambda old: {**old, "error": {"code": "seen", "message": f"was {old['state_version']}"}})
    ended = await house.elsewhere().go_on(turn)

    assert (ended.status, ended.output_text) == ("completed", "Paid.")
    assert (await values(house, turn))["state_version"] == 2
    assert len(await house.rows("select 1 from approvals")) == 1
    assert len(world.arrivals()) == 1
    assert house.model.asked == 2


async def test_g8_a_migrated_turn_that_nobody_has_decided_waits_on(
    database: Database, world: World, migrations: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Woken before anybody decided: the same question waits under the new version, and its answer counts."""
    house, turn = await paused(database, world)
    [asked] = await house.pending(turn)
    monkeypatch.setattr(state, "STATE_VERSION", 3)
    versions.migration(1)(dict)
    versions.migration(2)(dict)
    deployed = house.elsewhere()
    await deployed.resume(turn, None)

    assert (await values(house, turn))["state_version"] == 3
    assert [one.approval_id for one in await house.pending(turn)] == [asked.approval_id]
    await house.approve(asked)
    assert (await deployed.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1


@pytest.mark.parametrize("point", ["checkpoint:begin", "checkpoint:commit", "checkpoint:committed", "start:begin"])
async def test_g8_killed_while_it_migrates(
    database: Database, world: World, migrations: dict[int, Any], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """It dies with the migrated checkpoint written or not: the next worker finds one of both, and goes on."""
    house, turn = await paused(database, world)
    [asked] = await house.pending(turn)
    await house.approve(asked)
    monkeypatch.setattr(state, "STATE_VERSION", 2)
    versions.migration(1)(dict)
    await house.die_at(point, turn)
    assert (await house.elsewhere().go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1


async def test_g8_two_versions_back_without_a_way_is_refused_and_left(
    database: Database, world: World, migrations: dict[int, Any], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Code of version 3 knows the way from 2 only: both versions are named, the turn stays as it is, and the code that
    wrote it finishes it."""
    house, turn = await paused(database, world)
    [asked] = await house.pending(turn)
    await house.approve(asked)
    before = await rows(house, turn)

    with monkeypatch.context() as deployed:
        deployed.setattr(state, "STATE_VERSION", 3)
        versions.migration(2)(dict)
        refused = await house.elsewhere().go_on(turn)
    assert refused.status == "awaiting_approval"
    assert refused.error is not None
    assert refused.error["code"] == "state_version_mismatch"
    assert (refused.error["found"], refused.error["expected"]) == (1, 3)
    assert "version 1" in refused.error["message"]
    assert "has 3" in refused.error["message"]
    assert await rows(house, turn) == before
    assert world.arrivals() == []
    assert await house.worker.claim() is None  # it is tried again in a minute, not in circles

    await clock.advance(61)
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1


async def test_g8_a_newer_version_is_refused_and_left(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Written by version 2, met by code of version 1: both are named, nothing changes, and version 2 finishes it."""
    with monkeypatch.context() as newer:
        newer.setattr(state, "STATE_VERSION", 2)
        house, turn = await paused(database, world)
    [asked] = await house.pending(turn)
    await house.approve(asked)
    before = await rows(house, turn)

    refused = await house.go_on(turn)
    assert refused.error is not None
    assert (refused.error["found"], refused.error["expected"]) == (2, 1)
    assert "newer" in refused.error["message"]
    assert await rows(house, turn) == before

    monkeypatch.setattr(state, "STATE_VERSION", 2)
    await clock.advance(61)
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1


@pytest.mark.parametrize("point", ["refuse:begin", "refuse:commit", "refuse:committed"])
async def test_g8_killed_while_it_refuses(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch, clock: Clock, point: str
) -> None:
    """It dies as it refuses: the next one refuses, and the right version still finishes the turn."""
    house, turn = await paused(database, world)
    [asked] = await house.pending(turn)
    await house.approve(asked)
    with monkeypatch.context() as deployed:
        deployed.setattr(state, "STATE_VERSION", 2)
        await house.die_at(point, turn)
        refused = await house.elsewhere().go_on(turn)
        assert refused.error is not None
    await clock.advance(61)
    assert (await house.elsewhere().go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1
