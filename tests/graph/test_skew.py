"""Clocks that disagree: "latest" is the largest checkpoint id, and ids are wall-clock times (E2, G8)."""

from types import SimpleNamespace
from typing import Any

import pytest
from langgraph.checkpoint.base import id as ids

from placet.record.database import Database
from tests.outside import World
from tests.scripted import calls
from tests.steps import House, outside_house

PAY = ("pay", {"to": "bo", "minor": 700})
SECOND = 1_000_000_000  # nanoseconds


def on_a_machine(monkeypatch: pytest.MonkeyPatch, *, ahead: float) -> None:
    """From here on this process is one on a machine whose clock is so many seconds ahead."""
    real = ids.time.time_ns if not isinstance(ids.time, SimpleNamespace) else ids.time.real
    clock = SimpleNamespace(time_ns=lambda: real() + int(ahead * SECOND), real=real)
    monkeypatch.setattr(ids, "time", clock)
    monkeypatch.setattr(ids, "_last_v6_timestamp", None)  # another process has not seen the first one's ids


async def checkpoints(house: House, turn: Any) -> list[str]:
    """Ids of the thread's own checkpoints, in the order in which they were written."""
    rows = await house.rows(
        """
        select checkpoint_id from checkpoints
         where thread_id = %(thread)s and checkpoint_ns = '' order by (metadata ->> 'step')::int
        """,
        thread=str(turn.thread_id),
    )
    return [row["checkpoint_id"] for row in rows]


@pytest.mark.parametrize("ahead", [30.0, 86_400.0])
async def test_e2_a_worker_whose_clock_was_ahead_is_followed(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """It pauses the turn and dies; the next worker's clock is right, and what it writes is later all the same: nobody is
    asked again, the call runs once, and the last checkpoint is the last one written."""
    on_a_machine(monkeypatch, ahead=ahead)
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    before = await checkpoints(house, turn)
    [asked] = await house.pending(turn)
    await house.approve(asked)

    on_a_machine(monkeypatch, ahead=0)
    ended = await house.elsewhere().go_on(turn)

    assert (ended.status, ended.output_text) == ("completed", "Paid.")
    after = await checkpoints(house, turn)
    assert after[: len(before)] == before
    assert len(after) > len(before)
    assert after == sorted(after)
    assert len(await house.rows("select 1 from approvals")) == 1
    assert len(world.arrivals()) == 1
