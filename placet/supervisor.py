"""Several worker processes under one parent, which restarts what ends.

A worker owns nothing that its death could lose, so the parent needs no more than to start another. SIGTERM is passed on
and waited for: the children drain (O4).
"""

import asyncio
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

import structlog

log = structlog.get_logger()
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds before a process that ended at once is started again
LONG_ENOUGH = 60.0  # seconds of life after which the next end counts as the first


async def supervise(command: Sequence[str], processes: int, stopping: asyncio.Event | None = None) -> None:
    """Keep `processes` children of `command` alive until `stopping`; returns when all have ended.

    Without one, SIGTERM and SIGINT stop.
    """
    if stopping is None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
    async with asyncio.TaskGroup() as group:
        for place in range(processes):
            group.create_task(_keep_alive(command, place, stopping))


async def _keep_alive(command: Sequence[str], place: int, stopping: asyncio.Event) -> None:
    wait = FIRST_WAIT
    while not stopping.is_set():
        started = time.monotonic()
        child = await asyncio.create_subprocess_exec(*command)
        log.info("worker_started", place=place, pid=child.pid)
        stop, ended = asyncio.create_task(stopping.wait()), asyncio.create_task(child.wait())
        await asyncio.wait({stop, ended}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not ended.done():
            with suppress(ProcessLookupError):
                child.terminate()
            await ended
            return
        wait = FIRST_WAIT if time.monotonic() - started > LONG_ENOUGH else min(2 * wait, LONGEST_WAIT)
        log.warning("worker_ended", place=place, pid=child.pid, exit_code=child.returncode, again_in=wait)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await stopping.wait()
