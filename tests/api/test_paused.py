"""A turn that waits costs nothing but its rows (L3)."""

import asyncio
import gc
import threading
import time
from dataclasses import dataclass
from typing import Any

import psutil

from placet.api.app import create_app
from placet.record.database import Database
from tests.api.serving import Served, listening
from tests.outside import World
from tests.steps import House

MANY = 10_000
TRIES = 3  # of the second: a machine that is busy with something else is not the server


@dataclass(frozen=True)
class Cost:
    megabytes: float
    threads: int
    tasks: int
    connections: int


async def test_l3_ten_thousand_paused_turns_cost_no_process_task_or_connection(
    served: Served, owner: Database, world: World
) -> None:
    """Memory, threads, tasks and connections of a server with its worker are as with none; one of them, decided after a
    restart, is executed within a second."""
    asked = [await served.paused(f"request {n}") for n in range(TRIES)]
    before = await _cost_of_serving(served.house.elsewhere(), None, world)
    await _copy_paused(owner, asked[0]["turn_id"], MANY)
    [waiting] = await served.house.rows("select count(*) as n from turns where status = 'awaiting_approval'")
    assert waiting["n"] == MANY + TRIES

    seconds: list[float] = []
    after = await _cost_of_serving(served.house.elsewhere(), (served, asked, seconds), world)

    assert after.threads <= before.threads
    assert after.tasks <= before.tasks
    assert after.connections <= before.connections
    assert after.megabytes - before.megabytes < 25
    assert min(seconds) < 1.0, seconds


async def _cost_of_serving(
    house: House, decide: tuple[Served, list[dict[str, Any]], list[float]] | None, world: World
) -> Cost:
    """What a fresh server and worker cost when they have looked around, and how long a decision takes them."""
    app = create_app(house.services.settings, house.services)
    async with listening(app):
        working = asyncio.create_task(house.worker.run(signals=False))
        try:
            async with asyncio.timeout(30):
                while not await _has_listened(house):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            gc.collect()
            stats = house.database.pool.get_stats()
            cost = Cost(
                psutil.Process().memory_info().rss / 2**20,
                threading.active_count(),
                len(asyncio.all_tasks()),
                stats["pool_size"],
            )
            if decide is not None:
                served, asked, seconds = decide
                for one in asked:
                    started = time.monotonic()
                    assert (await served.decide(one, {"kind": "approve"})).status_code == 200
                    done = len(seconds) + 1
                    while len(world.done("pay")) < done:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                    seconds.append(time.monotonic() - started)
            return cost
        finally:
            house.worker.stop()
            await working


async def _has_listened(house: House) -> bool:
    rows = await house.rows(
        "select 1 from pg_stat_activity where datname = current_database() and query ilike 'listen%%'"
    )
    return bool(rows)


async def _copy_paused(owner: Database, turn_id: str, copies: int) -> None:
    """Paused turns by the thousand, each on a thread of its own, copied from a real one."""
    async with owner.transaction() as tx:
        await tx.execute(
            """
            create temp table copies on commit drop as
            select gen_random_uuid() as thread, gen_random_uuid() as turn, gen_random_uuid() as item,
                   gen_random_uuid() as approval
              from generate_series(1, %(copies)s)
            """,
            {"copies": copies},
        )
        for statement in (
            """insert into threads (thread_id, tenant_id, requester, epoch, seq)
               select c.thread, t.tenant_id, t.requester, 1, 0
                 from copies c, turns u join threads t using (thread_id) where u.turn_id = %(turn)s""",
            """insert into turns (turn_id, tenant_id, thread_id, ordinal, message, status, steps, max_steps)
               select c.turn, u.tenant_id, c.thread, 0, u.message, u.status, u.steps, u.max_steps
                 from copies c, turns u where u.turn_id = %(turn)s""",
            """insert into plan_items (item_id, tenant_id, thread_id, turn_id, step, ordinal, call_id, tool, proposed, mode,
                                       schema_version, arguments, facts, verdict, status, gated_at)
               select c.item, i.tenant_id, c.thread, c.turn, i.step, i.ordinal, i.call_id, i.tool, i.proposed, i.mode,
                      i.schema_version, i.arguments, i.facts, i.verdict, i.status, i.gated_at
                 from copies c, plan_items i where i.turn_id = %(turn)s""",
            """insert into approval_revisions (approval_id, revision, payload, payload_hash, preview, precondition, made_by)
               select c.approval, 0, r.payload, r.payload_hash, r.preview, r.precondition, r.made_by
                 from copies c, approvals a join approval_revisions r using (approval_id) where a.turn_id = %(turn)s""",
            """insert into approvals (approval_id, tenant_id, thread_id, turn_id, item_id, ask, payload_hash, tool, requester,
                                      duty, rule, reason, policy_version, expires_at, key_id, digest)
               select c.approval, a.tenant_id, c.thread, c.turn, c.item, 0, a.payload_hash, a.tool, a.requester, a.duty,
                      a.rule, a.reason, a.policy_version, a.expires_at, a.key_id, a.digest
                 from copies c, approvals a where a.turn_id = %(turn)s""",
        ):
            await tx.execute(statement, {"turn": turn_id})
    async with owner.read() as tx:
        await tx.execute("analyze turns, approvals, plan_items, threads, runs")
