"""What a forked process does: it works, decides, cancels or undoes, as it is told on its socket, one line of JSON each.

It says `paused` when it comes to an armed point, and goes on at `go`. It ends with its socket, or by a kill.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from graph import protocol
from graph.deciding import decide, prepare_edit
from graph.services import Services
from graph.undoing import undo
from placet import logs
from placet.record import approvals, by_hand, crashpoints, effects, people, runs, turns
from placet.record.database import AWAY, Database
from placet.record.digests import Keys
from placet.record.errors import PlacetError
from placet.rules import schema_of
from placet.settings import Settings
from placet.worker import Worker
from policies import Policy, load_rules
from tests.crash.world import RULES, SharedWorld
from tests.scripted import Scripted
from tests.steps import DIGEST_KEY, TENANT, settings_for_tests
from tools.registry import Registry

LEASE = timedelta(seconds=30)
LEVEL = int(os.environ.get("PLACET_CRASH_LOG", logging.CRITICAL))  # 30 shows what a worker says of its troubles
logs.configure(level=LEVEL)
logging.getLogger("psycopg").setLevel(LEVEL)


@dataclass(frozen=True, slots=True)
class Spec:
    """What a child is told when it is made."""

    socket: str
    name: str
    database: str
    unfenced: bool = False  # the epoch is not looked at: shows that the witness can fail
    settings: dict[str, Any] | None = None


def compile_rules(folder: Path) -> Policy:
    """The policy of the matrix, once per process."""
    world = SharedWorld()
    world.enter(folder)
    path = folder / "rules.toml"
    path.write_text(RULES)
    return load_rules(path, schemas=[schema_of(tool) for tool in world.tools()], timeout=2.0)


def services_of(database: Database, world: SharedWorld, policy: Policy, settings: Settings) -> Services:
    """The house of the matrix: its world's tools and rules, and the model that the case's plan says."""
    return Services(
        settings=settings,
        database=database,
        keys=Keys(settings.digest_key_id, DIGEST_KEY.encode()),
        registry=Registry(world.tools()),
        policy=policy,
        model=Scripted(world.says),
    )


class Child:
    """One process."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.go = asyncio.Event()
        self.noted: list[str] | None = None

    async def live(self) -> None:
        """Do what is said until nobody says anything any more."""
        if self.spec.unfenced:
            runs.fence = _look_away  # type: ignore[assignment]
        reader, self.writer = await asyncio.open_unix_connection(self.spec.socket)
        self.say(name=self.spec.name, pid=os.getpid())
        async with Database(self.spec.database, size=6) as database:
            self.world = SharedWorld(database)
            settings = settings_for_tests(**{"lease": LEASE, "pool_size": 6, **(self.spec.settings or {})})
            self.services = services_of(database, self.world, POLICY, settings)
            self.worker = Worker(self.services, name=self.spec.name)
            lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            listening = asyncio.create_task(self.listen(reader, lines))
            working = asyncio.create_task(self.obey(lines))
            await asyncio.wait({listening, working}, return_when=asyncio.FIRST_COMPLETED)
            os._exit(0)

    async def listen(self, reader: asyncio.StreamReader, lines: "asyncio.Queue[dict[str, Any]]") -> None:
        while line := await reader.readline():
            told = json.loads(line)
            if told["do"] == "go":
                self.go.set()
            else:
                lines.put_nowait(told)

    async def obey(self, lines: "asyncio.Queue[dict[str, Any]]") -> None:
        verbs: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            verb.__name__: verb
            for verb in (self.enter, self.work, self.serve, self.prune, self.decide, *self.steering())
        }
        while True:
            told = await lines.get()
            await _until(told.pop("at", 0.0))
            try:
                answer = await verbs[told.pop("do")](**told)
            except PlacetError as error:
                answer = {"error": error.code, "message": str(error)}
            except AWAY as error:
                answer = {"error": "database_away", "message": str(error)}
            except Exception as error:  # noqa: BLE001  # the case shows it
                answer = {"error": "broken", "message": f"{type(error).__name__}: {error}"}
            self.say(**answer)

    def steering(self) -> list[Callable[..., Awaitable[dict[str, Any]]]]:
        return [self.cancel, self.retry, self.migrate, self.resolve, self.undo]

    def say(self, **words: Any) -> None:
        self.writer.write(json.dumps(words).encode() + b"\n")

    async def pause(self, point: str) -> None:
        self.go.clear()
        self.say(paused=point)
        await self.go.wait()

    # What it can be told

    async def enter(self, folder: str, arm: dict[str, str], *, note: bool) -> dict[str, Any]:
        """A new case."""
        self.world.enter(Path(folder))
        crashpoints.disarm()
        for point, action in arm.items():
            crashpoints.arm(point, partial(self.pause, point) if action == "pause" else action)
        self.noted = crashpoints.note() if note else None
        return {}

    async def work(self, thread: str, *, sweep: bool = True) -> dict[str, Any]:
        """Sweep, and run what is due on the thread; what a lost connection breaks off is looked at again."""
        for attempt in range(100):
            try:
                if sweep:
                    await self.worker.sweep()
                count = await self.worker.run_until_idle(UUID(thread))
            except AWAY:
                await asyncio.sleep(0.01 * (1 + attempt))
                continue
            return {"runs": count, "noted": self.noted}
        return {"error": "database_away"}

    async def serve(self) -> dict[str, Any]:
        """Be a worker until SIGTERM."""
        await self.worker.run()
        return {}

    async def prune(self) -> dict[str, Any]:
        """Remove old streams, as a worker does once a minute."""
        await self.worker.prune()
        return {}

    async def decide(self, approval: str, raw: dict[str, Any], who: str = "marta") -> dict[str, Any]:
        """As `placet approve` does: an edit is previewed, and its hash goes with the decision."""
        async with self.services.database.read() as tx:
            person = await people.get(tx, TENANT, who)
            asked = await approvals.get(tx, TENANT, UUID(approval))
        if "payload_hash" not in raw:
            shown = await prepare_edit(self.services, asked, raw["arguments"]) if "arguments" in raw else asked
            raw = {**raw, "payload_hash": shown.payload_hash.hex()}
        decided = await decide(self.services, asked.approval_id, raw, person, channel="test")
        return {**decided.public(), "first": decided.first, "noted": self.noted}

    async def retry(self, turn: str, who: str = "ana") -> dict[str, Any]:
        """As `placet turn retry` does."""
        async with self.services.database.transaction() as tx:
            person = await people.get(tx, TENANT, who)
            return {"status": (await turns.retry(tx, person, UUID(turn))).status}

    async def migrate(self, turn: str, who: str = "otto") -> dict[str, Any]:
        """An operator brings an orphaned call to what is there now."""
        async with self.services.database.transaction() as tx:
            person = await people.get(tx, TENANT, who)
            return {"status": (await turns.migrate(tx, person, UUID(turn))).status}

    async def cancel(self, turn: str, who: str = "ana") -> dict[str, Any]:
        """As `placet turn cancel` does."""
        async with self.services.database.transaction() as tx:
            person = await people.get(tx, TENANT, who)
            result = protocol.cancelled("the call", by=who)
            cancelled = await turns.cancel(tx, person, UUID(turn), reason=None, result=result)
        return {"status": cancelled.status}

    async def undo(self, operation: str, who: str = "ana") -> dict[str, Any]:
        """As `placet effects undo` does."""
        async with self.services.database.read() as tx:
            person = await people.get(tx, TENANT, who)
            effect = await effects.get(tx, TENANT, UUID(operation))
        done = await undo(self.services, effect, person)
        return {"status": done.status, "noted": self.noted}

    async def resolve(self, operation: str, to: Any, who: str = "otto") -> dict[str, Any]:
        """As `placet effects resolve` does."""
        async with self.services.database.transaction() as tx:
            person = await people.get(tx, TENANT, who)
            effect = await effects.get(tx, TENANT, UUID(operation))
            external = "seen" if to == "committed" else None
            await by_hand.resolve(tx, person, effect, to=to, reason="I looked.", external_id=external)
        return {}


async def _until(moment: float) -> None:
    """A barrier between processes: the machine's monotonic clock is the same for all."""
    if (left := moment - time.monotonic() - 0.005) > 0:
        await asyncio.sleep(left)
    while time.monotonic() < moment:
        pass


async def _look_away(*_: object) -> None:
    """Instead of `runs.fence`."""


def _policy() -> Policy:
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        return compile_rules(Path(folder))


POLICY = _policy()
