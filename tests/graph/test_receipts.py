"""What a tool answered is written down, whatever it is and whatever goes wrong beside it (E3)."""

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from placet.record import crashpoints
from placet.record.database import Database
from tests.outside import World, happens_after, happens_then
from tests.scripted import calls
from tests.steps import outside_house
from tools.contract import Receipt


@pytest.mark.parametrize("depth", [37, 38, 39, 40])
async def test_e3_a_deep_receipt_is_stored(database: Database, world: World, depth: int) -> None:
    """As deep as the record can hold, and deeper: the effect is committed; what is too deep is told as text."""
    data: Any = 1
    for _ in range(depth):
        data = [data]
    world.next("label", happens_then(Receipt(external_id="x", summary="It is done.", data={"deep": data})))
    house = await outside_house(database, world, calls(("label", {"name": "blue"})), "Done.")
    turn = await house.run()
    assert turn.status == "completed"
    [effect] = await house.effects(turn)
    assert effect.status == "committed"
    assert len(world.arrivals()) == 1


async def test_e3_a_siblings_connection_breaks_while_a_letter_is_out(database: Database, world: World) -> None:
    """The run has to be taken up again, but not before the letter's answer is stored: nobody could look it up."""
    started, gate = asyncio.Event(), asyncio.Event()
    world.next("mail", happens_after(gate, started))
    letter, look = ("mail", {"to": ["a@house.example"]}), ("look", {"what": "x"})
    house = await outside_house(database, world, calls(letter, look), "Done.", lease=timedelta(seconds=0.5))
    turn = await house.ask()

    async def break_the_connection() -> None:
        await started.wait()
        raise psycopg.errors.AdminShutdown("terminating connection due to administrator command")

    crashpoints.arm("read_done:commit", break_the_connection)
    work = asyncio.create_task(house.worker.run_until_idle())
    await started.wait()
    await asyncio.sleep(1.0)  # a lease that is not renewed lapses meanwhile
    assert await house.elsewhere().worker.claim() is None
    gate.set()
    await work

    assert [effect.status for effect in await house.effects(turn)] == ["committed"]
    await house.rows("update threads set lease_until = clock() - interval '1 second' returning thread_id")
    assert (await house.elsewhere().go_on(turn)).status == "completed"
    assert [item.status for item in await house.items(turn)] == ["completed", "completed"]
