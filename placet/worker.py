"""The worker: claims a thread, runs its graph, recovers what others left (O1-O4).

It owns nothing but what its claims say. A NOTIFY wakes it at once, a poll finds what a lost notice did not say; a lease is
kept alive while a run goes on, and a run whose lease lapsed is taken up like one that is due. SIGTERM drains: what runs
reaches its boundary, nothing new is claimed.
"""

import asyncio
import os
import signal
import socket
import time
from contextlib import suppress
from uuid import UUID, uuid4

import psycopg
import structlog

from graph import Graph, build
from graph.advance import advance
from graph.services import Services
from placet.emit import emitter
from placet.record import approvals, runs, streams
from placet.record.database import AWAY, SEARCH_PATH
from placet.record.errors import StaleEpoch
from placet.record.runs import Owned

log = structlog.get_logger()
PRUNE = 60.0  # seconds between two looks for streams that nobody will go on with


class Worker:
    """One process's share of the work."""

    def __init__(self, services: Services, *, name: str | None = None) -> None:
        self.services = services
        self.graph: Graph = build(services)
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:6]}"
        self._knocked = asyncio.Event()
        self._stopping = asyncio.Event()
        self._pruned = time.monotonic()
        self._running: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Claim nothing more; `run` returns when what runs has reached its boundary (O4)."""
        self._stopping.set()
        self._knocked.set()

    async def run(self, *, signals: bool = True) -> None:
        """Work until stopped; by SIGTERM and SIGINT too, unless the process's signals are somebody else's."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT) if signals else ():
            with suppress(NotImplementedError, RuntimeError):  # not in the main thread
                loop.add_signal_handler(number, self.stop)
        listener = asyncio.create_task(self._listen())
        log.info("worker_ready", worker=self.name, concurrency=self.services.settings.concurrency)
        try:
            while not self._stopping.is_set():
                await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.services.settings.poll):
                        await self._knocked.wait()
                self._knocked.clear()
        finally:
            listener.cancel()
            if self._running:
                log.info("worker_draining", worker=self.name, runs=len(self._running))
                await asyncio.wait(self._running)
            with suppress(asyncio.CancelledError):
                await listener

    async def _look(self) -> None:
        """Sweep, then claim while there is something to claim and a place to run it."""
        try:
            await self.sweep()
            if time.monotonic() - self._pruned > PRUNE:
                self._pruned = time.monotonic()
                await self.prune()
            while len(self._running) < self.services.settings.concurrency and not self._stopping.is_set():
                owned = await self.claim()
                if owned is None:
                    return
                task = asyncio.create_task(self._drive(owned))
                self._running.add(task)
                task.add_done_callback(self._done)
        except AWAY as error:
            log.warning("database_away", worker=self.name, error=str(error).strip())
        except psycopg.Error:  # what runs goes on, and the next look may work
            log.exception("look_failed", worker=self.name)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._knocked.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("run_broke", worker=self.name, exc_info=error)

    async def sweep(self) -> None:
        """What nobody else would notice: overdue approvals (A9), turns that nobody works on (O3)."""
        async with self.services.database.transaction("expire_due") as tx:
            await approvals.expire_due(tx, self.services.settings.tenant)
        async with self.services.database.transaction("parked") as tx:
            await runs.make_parked_due(tx, self.services.settings.tenant)

    async def prune(self) -> None:
        """Remove streams that nobody will go on with."""
        async with self.services.database.transaction("prune_streams") as tx:
            await streams.prune(tx, older=self.services.settings.stream_retention)

    async def claim(self, thread_id: UUID | None = None) -> Owned | None:
        """The next run, if there is one."""
        async with self.services.database.transaction("claim") as tx:
            return await runs.claim(
                tx,
                self.services.settings.tenant,
                owner=self.name,
                lease=self.services.settings.lease,
                thread_id=thread_id,
            )

    async def run_until_idle(self, thread_id: UUID | None = None) -> int:
        """Run whatever is due now, one after the other; how many runs there were."""
        count = 0
        while (owned := await self.claim(thread_id)) is not None:
            await self._drive(owned)
            count += 1
        return count

    async def _drive(self, owned: Owned) -> None:
        """One run, with its lease kept alive; a lost lease ends it."""
        bound = log.bind(worker=self.name, thread_id=str(owned.thread_id), epoch=owned.epoch, attempt=owned.attempt)
        run = asyncio.create_task(self._advance(owned))
        keeper = asyncio.create_task(self._keep(owned, run))
        try:
            status = await run
            bound.info("run_ended", turn_id=str(owned.turn_id), status=status, because=owned.because)
        except StaleEpoch:
            bound.warning("run_lost", turn_id=str(owned.turn_id))
        except asyncio.CancelledError:
            if not run.cancelled():
                run.cancel()
                raise
            bound.warning("run_lost", turn_id=str(owned.turn_id))
        except AWAY as error:  # the lease lapses, then somebody takes the run up
            bound.warning("database_away", error=str(error).strip())
        finally:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper

    async def _advance(self, owned: Owned) -> str:
        sink = await emitter(self.services.database, owned)
        return await advance(self.services, self.graph, owned, sink=sink)

    async def _keep(self, owned: Owned, run: "asyncio.Task[str]") -> None:
        """Renew the lease; when another run owns the thread, stop this one."""
        while True:
            await asyncio.sleep(self.services.settings.lease.total_seconds() / 3)
            try:
                async with self.services.database.transaction("renew") as tx:
                    await runs.renew(tx, owned, lease=self.services.settings.lease)
            except StaleEpoch:
                run.cancel()
                return
            except AWAY as error:
                log.warning("lease_not_renewed", thread_id=str(owned.thread_id), error=str(error).strip())

    async def _listen(self) -> None:
        """Turn NOTIFY into a knock; a connection that is lost is opened again, the poll covers the gap."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self.services.database.dsn, autocommit=True, options=SEARCH_PATH
                ) as connection:
                    await connection.execute(f"listen {runs.CHANNEL}")
                    async for _ in connection.notifies():
                        self._knocked.set()
            except psycopg.Error as error:
                log.warning("listen_lost", worker=self.name, error=str(error).strip())
                await asyncio.sleep(self.services.settings.poll)
