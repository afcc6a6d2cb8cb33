"""Named places around every commit and every call to the outside, where a test can let a process die, wait or fail.

A named transaction has three: `<name>:begin` before it takes a connection (what the code has read may be outdated from
here), `<name>:commit` just before its commit, `<name>:committed` just after; a call to the outside has `<name>:before`
and `<name>:after`. They come with `Database.transaction(name)` and `outside(name)`, so that a new commit or call cannot
forget its own.

Nothing is armed unless `PLACET_CRASH_AT` names points, as `point=action[,point=action …]`; `point#3` is the third time
that the process comes there from now on, `point` the first. Actions are `kill` (SIGKILL to this very process), `raise`,
`wait/<file>` (until the file exists) and, in tests, `die` (as `kill`, within a process that lives on) or a coroutine
function. A point fires once.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

Action = str | Callable[[], Awaitable[None]]


class Crashed(RuntimeError):
    """An armed point raised: an ordinary exception at the worst place."""


class Died(BaseException):
    """An armed point ended this run as a kill would, within a process that lives on; nobody handles it."""


_armed: dict[str, tuple[int, Action]] = {}  # by point: how many times until it fires, and what happens then
_noted: list[str] | None = None


def arm(point: str, action: Action) -> None:
    """Arm a point of this process."""
    name, _, nth = point.partition("#")
    _armed[name] = (int(nth or 1), action)


def disarm() -> None:
    """Arm nothing any more."""
    _armed.clear()


def note() -> list[str]:
    """From now on every point that this process reaches is appended to the list that is returned."""
    global _noted  # noqa: PLW0603  # one list per process, as the armed points
    _noted = []
    return _noted


async def reach(point: str) -> None:
    """This place is reached; nothing happens unless it is armed."""
    if _noted is not None:
        _noted.append(point)
    if point not in _armed:
        return
    times, action = _armed.pop(point)
    if times > 1:
        _armed[point] = (times - 1, action)
    else:
        await _fire(point, action)


async def _fire(point: str, action: Action) -> None:
    if not isinstance(action, str):
        await action()
    elif action == "kill":
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


for _pair in os.environ.get("PLACET_CRASH_AT", "").split(","):
    if "=" in _pair:
        arm(*_pair.rsplit("=", 1))
