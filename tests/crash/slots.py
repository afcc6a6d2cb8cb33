"""Where cases run: a database of its own, a worker process that suffers the fault, and another that takes over.

Processes come from the zygote and connect to a socket of ours. A case has its slot, and therefore the database's clock,
for itself.
"""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg import sql

from placet.record import binaries, embedded, people
from placet.record.database import Database
from placet.record.embedded import APP, OWNER, SUPERUSER, Server
from placet.record.migrate import migrate
from tests.crash.world import STAMPS, SharedWorld
from tests.steps import TENANT

CODE = Path(__file__).parents[2]


class Died(Exception):
    """The process is gone."""


@dataclass
class Process:
    """A child, as we talk to it."""

    name: str
    pid: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def call(self, **told: Any) -> dict[str, Any]:
        """Tell it something; its answer, which may be that it is `paused`. Raises `Died`."""
        self.tell(**told)
        return await self.answer()

    def tell(self, **told: Any) -> None:
        self.writer.write(json.dumps(told).encode() + b"\n")

    async def answer(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(60):
                line = await self.reader.readline()
        except ConnectionError:
            line = b""
        if not line:
            raise Died(self.name)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """It ends by itself when its socket is closed."""
        self.writer.close()


@dataclass
class Nursery:
    """The zygote, and the socket at which its children report."""

    socket: Path
    zygote: "subprocess.Popen[bytes]"
    expected: dict[str, "asyncio.Future[Process]"] = field(default_factory=dict)

    async def born(self, kind: str, database: str, **more: Any) -> Process:
        """A new child, connected; its connections to the database carry its name."""
        name = f"{kind}-{uuid4().hex[:8]}"
        self.expected[name] = asyncio.get_running_loop().create_future()
        spec = {
            "socket": str(self.socket),
            "name": name,
            "database": f"{database}&application_name={name}",
            **more,
        }
        assert self.zygote.stdin is not None
        self.zygote.stdin.write(json.dumps(spec).encode() + b"\n")
        self.zygote.stdin.flush()
        async with asyncio.timeout(60):
            return await self.expected[name]

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = json.loads(await reader.readline())
        self.expected.pop(said["name"]).set_result(Process(said["name"], said["pid"], reader, writer))


@contextmanager
def open_zygote() -> Iterator["subprocess.Popen[bytes]"]:
    """Start the zygote; it and its children end with us."""
    with subprocess.Popen([sys.executable, "-m", "tests.crash.zygote"], cwd=CODE, stdin=subprocess.PIPE) as zygote:
        yield zygote


@asynccontextmanager
async def open_nursery(zygote: "subprocess.Popen[bytes]") -> AsyncIterator[Nursery]:
    """A socket for the zygote's next children."""
    with TemporaryDirectory(prefix="placet-crash-") as folder:
        nursery = Nursery(Path(folder) / "nursery", zygote)
        server = await asyncio.start_unix_server(nursery.meet, nursery.socket, limit=2**20)
        try:
            yield nursery
        finally:
            server.close()


@dataclass
class Slot:
    """One database, its people, and up to two processes."""

    server: Server
    nursery: Nursery
    folder: Path
    name: str
    owner: Database  # ours: the clock, the rows, the stamps
    unfenced: bool = False
    _victim: Process | None = None
    _rescuer: Process | None = None
    _clerk: Process | None = None
    _others: list[Process] = field(default_factory=list)

    async def victim(self) -> Process:
        """The worker that the fault hits: the last one when it lives, else a new one."""
        if self._victim is None:
            self._victim = await self._born("victim")
        return self._victim

    async def rescuer(self) -> Process:
        """The worker that takes over."""
        if self._rescuer is None:
            self._rescuer = await self._born("rescuer")
        return self._rescuer

    async def more(self, count: int) -> list[Process]:
        """So many others; they end with the slot."""
        others = await asyncio.gather(*(self._born("other") for _ in range(count)))
        self._others += others
        return others

    async def clerk(self) -> Process:
        """Somebody else's process, from which they cancel."""
        if self._clerk is None:
            self._clerk = await self._born("clerk")
        return self._clerk

    def bury(self, process: Process) -> None:
        """It died, or shall."""
        process.close()
        for role in ("_victim", "_rescuer", "_clerk"):
            if getattr(self, role) is process:
                setattr(self, role, None)

    def bury_all(self) -> None:
        """The next case starts from scratch."""
        for process in (self._victim, self._rescuer, self._clerk, *self._others):
            if process is not None:
                self.bury(process)

    async def _born(self, kind: str) -> Process:
        return await self.nursery.born(kind, self.server.url(APP, self.name), unfenced=self.unfenced)

    async def advance(self, seconds: float) -> None:
        """The database's clock goes on."""
        async with self.owner.transaction() as tx:
            await tx.execute(
                "update placet.clock_offset set shift = shift + make_interval(secs => %(seconds)s)",
                {"seconds": seconds},
            )

    async def states(self, *turns: UUID) -> list[str]:
        """The status of each turn."""
        async with self.owner.read() as tx:
            rows = await tx.fetch_dicts("select turn_id, status from placet.turns", {})
        status = {row["turn_id"]: row["status"] for row in rows}
        return [status[turn] for turn in turns]

    async def cut(self, process: Process, *, in_transaction_only: bool = False) -> int:
        """The server ends the process's connections; how many."""
        async with await psycopg.AsyncConnection.connect(
            self.server.url(SUPERUSER, "postgres"), autocommit=True
        ) as connection:
            cursor = await connection.execute(
                """
                select pg_terminate_backend(pid, 5000) from pg_stat_activity
                 where application_name = %s and (xact_start is not null or not %s)
                """,
                [process.name, in_transaction_only],
            )
            return len(await cursor.fetchall())

    def world(self) -> SharedWorld:
        """The world of a new case."""
        folder = self.folder / uuid4().hex[:10]
        folder.mkdir()
        world = SharedWorld()
        world.enter(folder)
        return world


@asynccontextmanager
async def open_slot(server: Server, template: str, nursery: Nursery, *, unfenced: bool = False) -> AsyncIterator[Slot]:
    """A slot with a fresh database; gone afterwards."""
    name = f"crash_{uuid4().hex[:12]}"
    await asyncio.to_thread(_create, server, name, template)
    try:
        with TemporaryDirectory(prefix="placet-case-") as folder:
            async with Database(server.url(OWNER, name), size=3) as owner:
                async with owner.transaction() as tx:
                    await tx.execute(STAMPS)
                    await _people(tx)
                slot = Slot(server, nursery, Path(folder), name, owner, unfenced)
                yield slot
                slot.bury_all()
    finally:
        await asyncio.to_thread(_drop, server, name)


async def _people(tx: Any) -> None:
    await people.ensure(tx, TENANT, "ana", name="Ana", roles=["requester"], duties=[])
    await people.ensure(tx, TENANT, "otto", name="Otto", roles=["operator"], duties=[])
    for name in ("marta", "pedro"):
        await people.ensure(tx, TENANT, name, name=name.title(), roles=["reviewer"], duties=["support", "finance"])


def _create(server: Server, name: str, template: str) -> None:
    with psycopg.connect(server.url(SUPERUSER, "postgres"), autocommit=True) as connection:
        statement = sql.SQL("create database {} owner {} template {}")
        connection.execute(statement.format(*map(sql.Identifier, (name, OWNER, template))))


def _drop(server: Server, name: str) -> None:
    with psycopg.connect(server.url(SUPERUSER, "postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


async def make_template(server: Server, name: str = "template_crash") -> str:
    """A migrated database that nobody is connected to, on a server of one's own."""
    await asyncio.to_thread(_create, server, name, "template1")
    await migrate(server.url(OWNER, name), [], application=APP)
    return name


@contextmanager
def server_of_ones_own() -> Iterator[Server]:
    """A Postgres that may be restarted without asking anybody."""
    with TemporaryDirectory(prefix="placet-crash-") as folder:
        home = Path(folder)
        home.chmod(0o711)  # as root, Postgres runs as somebody else
        try:
            yield embedded.start(home, fsync=False)
        finally:
            embedded.stop(home)
            shutil.rmtree((home / "postgres").resolve(), ignore_errors=True)


def restart(server: Server) -> None:
    """Postgres falls over (immediate mode: nothing is written down any more) and comes back."""
    account = binaries.account_for(server.data)
    tools = binaries.find(server.root, account)
    said = binaries.run(
        [tools.folder / "pg_ctl", "stop", "-m", "immediate", "-w", "-t", "30"],
        account=account,
        cwd=server.root,
        data=server.data,
    )
    assert said.returncode == 0, said.stdout
    embedded.start(server.home, fsync=False)
