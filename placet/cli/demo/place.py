"""Where the demo happens: a folder and a database of its own, and a new tenant each time. So it can be run again and
again, and nothing of it gets into a real record. Where PLACET_DATABASE_URL is set it is used, under the demo's tenant."""

import asyncio
import fcntl
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from placet.cli.opening import Record, open_record
from placet.record import embedded
from placet.settings import Settings
from policies import RULES

LEASE = timedelta(seconds=2)  # a dead worker's run is taken up soon, so that nobody waits for it
REHEARSAL = "rehearsal"  # the fixed planner: the demo shows the runtime, not a model


def settings_of_the_demo(base: Settings) -> Settings:
    """The settings under which the demo and its workers run."""
    home = base.home if base.database_url else base.home / "demo"
    return Settings(
        home=home, tenant=f"demo-{secrets.token_hex(3)}", lease=LEASE, poll=0.5, model=REHEARSAL, rules=None, user=None
    )


def environment_of(settings: Settings) -> dict[str, str]:
    """The same settings for a worker process; what is not named here it inherits."""
    return {
        "PLACET_HOME": str(settings.home.expanduser().absolute()),
        "PLACET_TENANT": settings.tenant,
        "PLACET_LEASE": f"PT{settings.lease.total_seconds():g}S",
        "PLACET_POLL": str(settings.poll),
        "PLACET_MODEL": REHEARSAL,
        "PLACET_RULES": str(RULES),
        "PLACET_CRASH_AT": "",
    }


@asynccontextmanager
async def open_place(settings: Settings) -> AsyncIterator[Record]:
    """The demo's database, open. An embedded one is stopped afterwards, unless another demo still uses it."""
    if settings.database_url is not None:
        async with open_record(settings) as record:
            yield record
        return
    home = settings.home.expanduser()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            async with open_record(settings) as record:
                yield record
        finally:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another demo runs here
                pass
            else:
                await asyncio.to_thread(embedded.stop, home)
