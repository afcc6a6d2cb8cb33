"""Named places around every commit and every call to the outside, where a test can let a process die, wait or fail.

A named transaction has two, `<name>:commit` just before and `<name>:committed` just after; a call to the outside has
`<name>:before` and `<name>:after`. They come with `Database.transaction(name)` and `outside(name)`, so that a new commit
or call cannot forget its own. Nothing is armed unless `PLACET_CRASH_AT` names points, as `point=action[,point=action …]`
with the actions `kill` (SIGKILL to this very process), `raise`, `die` (the same within one process, for tests) and
`wait/<file>` (until the file exists). A point fires
once per process.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Crashed(RuntimeError):
    """An armed point raised: an ordinary exception at the worst place."""


class Died(BaseException):
    """An armed point ended this run as a kill would, within a process that lives on; nobody handles it."""


_armed: dict[str, str] = dict(
    pair.rsplit("=", 1) for pair in os.environ.get("PLACET_CRASH_AT", "").split(",") if "=" in pair
)


def arm(point: str, action: str) -> None:
    """Arm a point of this process."""
    _armed[point] = action


def disarm() -> None:
    """Arm nothing any more."""
    _armed.clear()


async def reach(point: str) -> None:
    """This place is reached; nothing happens unless it is armed."""
    if not _armed or (action := _armed.pop(point, None)) is None:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "raise":
        raise Crashed(f"armed at {point}")
    elif action == "die":
        raise Died(f"armed at {point}")
    elif action.startswith("wait/"):
        await asyncio.to_thread(_wait_for, Path(action.removeprefix("wait")))
    else:
        raise ValueError(f"PLACET_CRASH_AT knows kill, raise, die and wait/<file>; got {action!r} for {point}.")


@asynccontextmanager
async def outside(name: str) -> AsyncIterator[None]:
    """Around a call that leaves the process: what is inside may have happened when the process dies in it."""
    await reach(f"{name}:before")
    yield
    await reach(f"{name}:after")


def _wait_for(file: Path) -> None:
    """Another process, the test, creates the file."""
    while not file.exists():
        time.sleep(0.02)
