"""Locks are taken in one order, everywhere: thread, approval, effect, audit. So nobody ever waits in a circle."""

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

from placet.record.database import Database
from placet.record.errors import PlacetError
from tests.outside import World
from tests.scripted import Scripted, calls
from tests.steps import outside_house, together

ROUNDS = 6
OVERDUE = """
    update approvals set expires_at = greatest(clock(), asked_at + interval '1 microsecond')
     where approval_id in (select approval_id from approvals where status = 'pending' order by random() limit 2)
    returning approval_id
"""


def three(messages: list[Any]) -> Any:
    if messages[-1].type != "human":
        return "Done."
    return calls(*[("pay", {"to": f"p{n}", "minor": 700}) for n in range(3)])


async def test_everybody_at_once_on_a_few_threads_never_deadlocks(
    database_url: str, owner: Database, world: World
) -> None:
    """Deciders, editors, cancels, workers and sweepers meet on three threads, in a random order, for some rounds: nobody
    is ever chosen as a deadlock's victim, and nothing that was not approved is executed."""
    chance = random.Random(17)
    async with Database(database_url, size=24) as database:
        house = await outside_house(database, world, model=Scripted(three), max_gated_calls=8)
        for _ in range(ROUNDS):
            turns = [await house.ask() for _ in range(3)]
            await house.worker.run_until_idle()
            work: list[Awaitable[Any]] = []
            for turn in turns:
                for asked in await house.pending(turn):
                    edit = await house.edit(asked, {"to": "edited", "minor": 600})
                    work += [
                        house.approve(asked),
                        house.reject(asked, who=house.pedro),
                        house.decide(asked, edit, house.lena),
                    ]
                work.append(house.cancel(turn))
            await house.rows(OVERDUE)
            one = house.elsewhere()
            work += [one.worker.sweep(), house.worker.sweep()]
            work += [one.worker.run_until_idle(), house.elsewhere().worker.run_until_idle()]
            chance.shuffle(work)
            errors = [done for done in await together(*work) if isinstance(done, BaseException)]
            unexpected = [error for error in errors if not isinstance(error, PlacetError)]
            assert unexpected == [], unexpected
            await house.worker.run_until_idle()
            await house.rows("update threads set lease_until = clock() where owner is not null returning 1")
            await house.worker.run_until_idle()
        rows = await house.rows(
            """
            select e.operation_id from effects e
             where not exists (select 1 from decisions d where d.approval_id = e.approval_id and d.kind <> 'reject')
            """
        )
        assert rows == []
        assert {row["status"] for row in await house.rows("select status from turns")} <= {"completed", "cancelled"}
        assert await house.pending() == []
    async with owner.read() as tx:  # what a worker swallows as "the database is away" counts too
        await tx.execute("select pg_stat_clear_snapshot()")
        await asyncio.sleep(0)
        deadlocks = await tx.fetch_value("select deadlocks from pg_stat_database where datname = current_database()")
    assert deadlocks == 0
