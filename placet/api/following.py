"""Following timelines live, from any number, in any server process (V2).

Events are rows; whoever follows a thread holds a number and reads what stands behind it. One task per process asks the
database which of the followed threads have moved, reads what is new once, and wakes their followers. So a thousand
clients that wait cost one query and no connection of their own, and no notice can be lost.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from placet.record import events
from placet.record.database import AWAY, Database
from placet.record.events import Event

log = structlog.get_logger()
LOOK = 0.1  # seconds between two looks at what is followed
PAGE = 200  # events read at once; of one thread, as many are kept for those who follow it


@dataclass(slots=True)
class _Followed:
    """One thread's followers, and what happened since somebody began to look: every event behind `floor`."""

    followers: set[asyncio.Event] = field(default_factory=set)
    tenant: str | None = None  # None until the first look
    floor: int = 0
    recent: list[Event] = field(default_factory=list)

    @property
    def seq(self) -> int:
        return self.recent[-1].seq if self.recent else self.floor


class Timelines:
    """What this process's clients follow."""

    def __init__(self) -> None:
        self._database: Database | None = None
        self._followed: dict[UUID, _Followed] = defaultdict(_Followed)
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
        for followed in self._followed.values():
            _wake(followed)

    @property
    def followers(self) -> int:
        """How many follow something in this process."""
        return sum(len(followed.followers) for followed in self._followed.values())

    async def follow(
        self, tenant: str, thread_id: UUID, *, after: int = 0, turn_id: UUID | None = None
    ) -> AsyncIterator[list[Event]]:
        """Events behind number `after`, oldest first, as they come, until the process stops.

        An empty list says: that is all there is now. Close the iterator to stop following.
        """
        knock = asyncio.Event()
        self._followed[thread_id].followers.add(knock)
        self._somebody.set()
        try:
            while not self.stopping.is_set():
                knock.clear()
                while page := await self._behind(tenant, thread_id, after, turn_id):
                    after = page[-1].seq
                    yield page
                yield []
                await knock.wait()
        finally:
            self._followed[thread_id].followers.discard(knock)
            if not self._followed[thread_id].followers:
                del self._followed[thread_id]

    async def _behind(self, tenant: str, thread_id: UUID, after: int, turn_id: UUID | None) -> list[Event]:
        """A page of events behind `after`: from what the last look brought, or, further back, from the database."""
        followed = self._followed[thread_id]
        if followed.tenant == tenant and after >= followed.floor:
            return [e for e in followed.recent if e.seq > after and turn_id in (None, e.turn_id)]
        assert self._database is not None
        async with self._database.read() as tx:
            return await events.of_thread(tx, tenant, thread_id, after=after, turn_id=turn_id, limit=PAGE)

    async def _watch(self, database: Database) -> None:
        """Look which followed threads have moved; nothing is asked while nobody follows."""
        while True:
            await self._somebody.wait()
            if not self._followed:
                self._somebody.clear()
                continue
            try:
                await self._look(database)
            except AWAY as error:
                log.warning("database_away", error=str(error).strip())
                await asyncio.sleep(1.0)
            await asyncio.sleep(LOOK)

    async def _look(self, database: Database) -> None:
        async with database.read() as tx:
            for thread_id, (tenant, seq) in (await events.newest(tx, list(self._followed))).items():
                followed = self._followed.get(thread_id)
                if followed is None or (followed.tenant is not None and followed.seq >= seq):
                    continue
                if followed.tenant is None:
                    followed.tenant, followed.floor = tenant, seq
                else:
                    followed.recent += await events.of_thread(tx, tenant, thread_id, after=followed.seq, limit=PAGE)
                    if len(followed.recent) > PAGE:
                        followed.floor = followed.recent[-PAGE - 1].seq
                        del followed.recent[:-PAGE]
                _wake(followed)


def _wake(followed: _Followed) -> None:
    for follower in followed.followers:
        follower.set()
