"""The worker processes of the demo: real ones, started, killed and ended by their ids, also when the demo itself is stopped."""

import asyncio
import os
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from placet.record.errors import PlacetError

DRAIN = 5.0  # seconds for a worker to reach its boundary before it is killed
LAST_WORDS = 15  # lines of a worker's log


class WorkerFailed(PlacetError):
    """A worker process of the demo ended by itself, or did nothing; its last words are in the message."""

    code = "worker_failed"


@dataclass(slots=True)
class Worker:
    """One worker process."""

    process: Process
    log: Path
    started: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.returncode is not None

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.process.returncode == -9

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LAST_WORDS:])


@dataclass(frozen=True, slots=True)
class Mark:
    """What happened to a process, for the timeline."""

    at: datetime
    words: str


@dataclass(slots=True)
class Workers:
    """The worker processes of one demo, in the order of their start."""

    environment: dict[str, str]
    logs: Path
    all: list[Worker] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    async def start(self, **more: str) -> Worker:
        """Start `placet worker` as a process of its own; `more` is added to its environment."""
        path = self.logs / f"worker-{len(self.all) + 1}.log"
        with path.open("wb") as log:  # an empty file
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "placet.cli",
                "worker",
                env={**self.environment, **more},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the demo's; it ends its workers itself
            )
        worker = Worker(process, path)
        self.all.append(worker)
        self.mark(f"process {worker.pid} starts")
        return worker

    async def kill(self, worker: Worker) -> None:
        """SIGKILL: no handler runs, nothing is said goodbye to."""
        worker.process.kill()
        await worker.process.wait()
        self.mark(f"process {worker.pid} is killed (-9)")

    def mark(self, words: str) -> None:
        """Note something for the timeline."""
        self.marks.append(Mark(datetime.now(UTC), words))

    async def end(self) -> None:
        """End what still runs, by id: SIGTERM drains, and who does not drain in time is killed."""
        for worker in self.all:
            if worker.ended:
                continue
            self.mark(f"process {worker.pid} is ended")
            with suppress(ProcessLookupError):
                worker.process.terminate()
            try:
                async with asyncio.timeout(DRAIN):
                    await worker.process.wait()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    worker.process.kill()
                await worker.process.wait()


@asynccontextmanager
async def workers(environment: dict[str, str], logs: Path) -> AsyncIterator[Workers]:
    """The demo's workers; whatever happens, none outlives the block."""
    await asyncio.to_thread(logs.mkdir, parents=True, exist_ok=True)
    started = Workers({**os.environ, **environment}, logs)
    try:
        yield started
    finally:
        await asyncio.shield(started.end())
