"""A worker process that dies between a payment and its receipt; `python -m placet.selftest.killed` is the process."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from placet.record import crashpoints
from placet.record.database import Database
from placet.record.digests import Keys
from placet.record.turns import Turn
from placet.selftest.stage import LEASE, Stage, open_stage
from placet.settings import Settings


async def killed(stage: Stage, turn: Turn) -> int:
    """A worker process on this turn, killed after the payment; its exit code. What it needs goes by its standard input."""
    keys = stage.services.keys
    job = {
        "database": stage.database.dsn,
        "tenant": stage.tenant,
        "folder": str(stage.folder),
        "thread": str(turn.thread_id),
        "key": [keys.key_id, keys.key.hex()],
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "placet.selftest.killed", stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    await process.communicate(json.dumps(job).encode())
    return process.returncode or 0


async def _be_killed(job: dict[str, Any]) -> None:
    """The other side of `killed`."""
    key_id, key = job["key"]
    settings = Settings(tenant=job["tenant"], lease=LEASE)
    async with (
        Database(job["database"], size=4) as database,
        open_stage(database, settings, Keys(key_id, bytes.fromhex(key)), Path(job["folder"])) as stage,
    ):
        crashpoints.arm("call:after", "kill")
        await stage.worker.run_until_idle(UUID(job["thread"]))


if __name__ == "__main__":
    asyncio.run(_be_killed(json.load(sys.stdin)))
