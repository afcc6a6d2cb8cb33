"""`placet selftest`: the promises proved on anybody's database, without touching what is there; and it can fail."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from placet.record.database import Database
from placet.record.digests import Keys
from placet.selftest import selftest
from placet.selftest.promises import PROMISES
from tests.outside import World, world  # noqa: F401  # the fixture
from tests.scripted import calls
from tests.steps import DIGEST_KEY, outside_house, settings_for_tests

EVERYTHING = """
    select (select count(*) from turns where tenant_id = 'default') as turns,
           (select count(*) from events where tenant_id = 'default') as events,
           (select count(*) from effects where tenant_id = 'default') as effects,
           (select count(*) from approvals where tenant_id = 'default') as approvals,
           (select count(*) from audit where tenant_id = 'default') as audit,
           (select string_agg(thread_id::text || epoch || seq, ',') from threads where tenant_id = 'default') as threads
"""


@pytest.mark.timeout(180)
async def test_e2_every_promise_is_kept_and_nobody_else_is_touched(
    database: Database,
    world: World,  # noqa: F811
) -> None:
    """Beside a tenant that waits for people: all promises hold, and that tenant's rows are as they were."""
    house = await outside_house(database, world, calls(("pay", {"to": "bo", "minor": 700})), "Paid.")
    turn = await house.run()
    before = await house.rows(EVERYTHING)
    seen: list[Any] = []

    tenant, outcomes = await selftest(database, settings_for_tests(), Keys("k1", DIGEST_KEY.encode()), show=seen.append)

    assert [(outcome.promise, outcome.kept) for outcome in outcomes] == [(promise, True) for promise in PROMISES]
    assert seen == outcomes
    assert tenant.startswith("selftest-")
    assert await house.rows(EVERYTHING) == before
    left = "select 1 from runs where tenant_id = %(tenant)s and status <> 'ended'"
    assert await house.rows(left, tenant=tenant) == []
    await house.approve((await house.pending(turn))[0])
    assert (await house.go_on(turn)).status == "completed"


@pytest.mark.timeout(180)
async def test_o2_without_the_epoch_it_says_what_is_broken(
    database: Database, owner: Database, database_url: str, owner_url: str, tmp_path: Path
) -> None:
    """Somebody has made the fence believe everybody: the command says which promise is not kept, and ends with 1."""
    async with owner.transaction() as tx:
        await tx.execute(
            """
            create or replace function placet.fence(the_thread uuid, the_epoch bigint) returns void
                language sql as $$ select $$
            """
        )
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PLACET_", "OPENAI_"))},
        "PLACET_DATABASE_URL": database_url,
        "PLACET_OWNER_DATABASE_URL": owner_url,
        "PLACET_HOME": str(tmp_path),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "placet.cli",
        "selftest",
        "--json",
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, noise = await process.communicate()

    answer = json.loads(said)
    assert process.returncode == 1
    assert answer["kept"] is False
    assert b"psycopg" not in noise  # what is provoked is told in the table, not by the driver's log
    broken = {promise["promise"]: promise["seen"] for promise in answer["promises"] if not promise["kept"]}
    assert broken == {"A worker that lost its thread writes nothing": "a checkpoint was accepted"}
