"""The promises, proved on the user's own database (`placet selftest`).

Everything happens in a tenant of its own, whose name says what it is: no other tenant's rows are read or written. The
outside world is a bank that keeps its book in a file, does one thing per key, and counts for itself; nothing that is
proved here writes there. What cannot be deleted afterwards, because the record never forgets a decision, stays under that
name, ended.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from uuid import uuid4

from placet.record.database import Database
from placet.record.digests import Keys
from placet.selftest.promises import PROMISES
from placet.selftest.stage import LEASE, Broken, open_stage
from placet.settings import Settings

__all__ = ["Broken", "Outcome", "selftest"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One promise, tried."""

    promise: str
    kept: bool
    seen: str
    seconds: float


async def selftest(
    database: Database, settings: Settings, keys: Keys, *, show: Callable[[Outcome], None] = lambda outcome: None
) -> tuple[str, list[Outcome]]:
    """Prove every promise on `database`; the tenant it was done in, and what came of each."""
    tenant = f"selftest-{uuid4().hex[:8]}"
    own = settings.model_copy(update={"tenant": tenant, "lease": LEASE, "rules": None})
    outcomes = []
    with TemporaryDirectory(prefix="placet-selftest-") as folder:
        async with open_stage(database, own, keys, Path(folder)) as stage:
            for promise, check in PROMISES.items():
                started = time.monotonic()
                try:
                    kept, seen = True, await check(stage)
                except Exception as error:  # noqa: BLE001  # whatever goes wrong is what the self-test is for
                    kept, seen = False, str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
                outcomes.append(Outcome(promise, kept, seen.strip(), time.monotonic() - started))
                show(outcomes[-1])
            async with database.transaction() as tx:
                for table in ("threads", "users"):
                    leave = f"update {table} set removed_at = clock() where tenant_id = %(tenant)s"  # noqa: S608
                    await tx.execute(cast("Any", leave), {"tenant": tenant})
    return tenant, outcomes
