"""Following timelines live, from any number, in any server process (V2).

Events are rows; whoever follows a thread holds a number and reads what stands behind it. One task per process asks the
database which of the followed threads have moved, and wakes their followers; so a thousand clients that wait cost one
query, no connection of their own, and no notice can be lost.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from placet.record import events
from placet.record.database import Database
from placet.record.events import Event

log = structlog.get_logger()
LOOK = 0.1  # seconds between two looks at what is followed
PAGE = 200  # events read at once


class Timelines:
    """What this process's clients follow."""

    def __init__(self) -> None:
        self._database: Database | None = None
        self._followers: dict[UUID, set[asyncio.Event]] = defaultdict(set)
        self._seen: dict[UUID, int] = {}
        self._somebody = asyncio.Event()
        self.stopping = asyncio.Event()

    @asynccontextmanager
    async def open(self, database: Database) -> AsyncIterator[None]:
        """Watch for as long as this lasts."""
        self._database = database
        watching = asyncio.create_task(self._watch(database))
        try:
            yield
        finally:
            self.stop()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def stop(self) -> None:
        """Let every follower end; they come back to another process with the number they have."""
        self.stopping.set()
        for followers in self._followers.values():
            for follower in followers:
                follower.set()

    async def follow(
        self, tenant: str, thread_id: UUID, *, after: int = 0, turn_id: UUID | None = None
    ) -> AsyncIterator[list[Event]]:
        """Events behind number `after`, oldest first, as they come, until the process stops.

        An empty list says: that is all there is now. Close the iterator to stop following.
        """
        knock = asyncio.Event()
        self._followers[thread_id].add(knock)
        self._somebody.set()
        try:
            while not self.stopping.is_set():
                knock.clear()
                while page := await self._read(tenant, thread_id, after, turn_id):
                    after = page[-1].seq
                    yield page
                    if len(page) < PAGE:
                        break
                yield []
                await knock.wait()
        finally:
            self._followers[thread_id].discard(knock)
            if not self._followers[thread_id]:
                del self._followers[thread_id]
                self._seen.pop(thread_id, None)

    async def _read(self, tenant: str, thread_id: UUID, after: int, turn_id: UUID | None) -> list[Event]:
        assert self._database is not None
        async with self._database.read() as tx:
            return await events.of_thread(tx, tenant, thread_id, after=after, turn_id=turn_id, limit=PAGE)

    async def _watch(self, database: Database) -> None:
        """Look which followed threads have moved; nothing is asked while nobody follows."""
        while True:
            await self._somebody.wait()
            if not self._followers:
                self._somebody.clear()
                continue
            try:
                async with database.read() as tx:
                    now = await events.newest(tx, list(self._followers))
            except (psycopg.OperationalError, PoolTimeout) as error:
                log.warning("database_away", error=str(error).strip())
                await asyncio.sleep(1.0)
                continue
            for thread_id, seq in now.items():
                if self._seen.get(thread_id) != seq:
                    self._seen[thread_id] = seq
                    for follower in self._followers.get(thread_id, ()):
                        follower.set()
            await asyncio.sleep(LOOK)
