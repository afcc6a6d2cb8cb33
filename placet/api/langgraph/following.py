"""Following runs: knock at every client that follows a run when it moved, whichever process runs it (L1, L3).

One task listens and one looks, for all that this process's clients follow, and only while somebody does. A client that
waits costs a set entry; what it is sent is read from the rows, so that no notice can be lost.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any
from uuid import UUID

import psycopg
import structlog

from placet.record import streams
from placet.record.database import AWAY, SEARCH_PATH, Database

log = structlog.get_logger()
LOOK = 1.0  # seconds between two looks for what a lost notice did not say


class Following:
    """The runs that this process's clients follow."""

    def __init__(self, database: Database, stopping: asyncio.Event) -> None:
        self._database = database
        self._followers: dict[UUID, set[asyncio.Event]] = defaultdict(set)
        self._seen: dict[UUID, streams.Progress] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._later: set[asyncio.Task[Any]] = set()
        self.stopping = stopping  # set: every follower ends, and comes back to another process

    async def __aenter__(self) -> "Following":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rest()
        if self._later:
            await asyncio.wait(self._later)

    @asynccontextmanager
    async def of(self, run_id: UUID) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever the run may have moved."""
        knock = asyncio.Event()
        self._followers[run_id].add(knock)
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._look())]
        try:
            yield knock
        finally:
            self._followers[run_id].discard(knock)
            if not self._followers[run_id]:
                del self._followers[run_id]
                self._seen.pop(run_id, None)
            if not self._followers:
                self._rest()

    def later(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that outlives its request: a client went away and had said what to do then."""
        task = asyncio.create_task(work)
        self._later.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._later.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("left_undone", error=str(error))

    def _rest(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def _knock(self, run_id: UUID) -> None:
        for follower in self._followers.get(run_id, ()):
            follower.set()

    async def _listen(self) -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._database.dsn, autocommit=True, options=SEARCH_PATH
                ) as connection:
                    await connection.execute(f"listen {streams.CHANNEL}")
                    for run_id in list(self._followers):  # what moved before we heard
                        self._knock(run_id)
                    async for notice in connection.notifies():
                        with suppress(ValueError):
                            self._knock(UUID(notice.payload))
            except psycopg.Error as error:
                log.warning("listen_lost", error=str(error).strip())
                await asyncio.sleep(LOOK)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            if self.stopping.is_set():
                for run_id in list(self._followers):
                    self._knock(run_id)
                continue
            try:
                async with self._database.read() as tx:
                    now = await streams.progress(tx, list(self._followers))
            except AWAY as error:
                log.warning("database_away", error=str(error).strip())
                continue
            for progress in now:
                if self._seen.get(progress.run_id) != progress:
                    self._seen[progress.run_id] = progress
                    self._knock(progress.run_id)
