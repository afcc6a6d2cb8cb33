"""A server as people run it, `python server.py`, in a process of its own: started, stopped, started again.

async with server_process(url, folder) as server: server.url; await server.restart()
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from placet.record import credentials, people
from placet.record.database import Database
from tests.steps import DIGEST_KEY, TENANT
from tools.shop.seed import seed
from tools.shop.shop import Shop

ROOT = Path(__file__).parent.parent.parent
PEOPLE: dict[str, tuple[list[people.Role], list[str]]] = {
    "ana": (["requester"], []),
    "ida": (["requester"], []),
    "marta": (["reviewer"], ["support", "finance"]),
    "otto": (["operator", "requester"], []),
}


@dataclass
class ServerProcess:
    """One `python server.py` on a port that stays its own."""

    database_url: str
    owner_url: str
    folder: Path
    port: int
    keys: dict[str, str] = field(default_factory=dict)
    _process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def environment(self) -> dict[str, str]:
        """What the process gets; nothing of this machine's settings."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PLACET_", "OPENAI_"))},
            "PLACET_DATABASE_URL": self.database_url,
            "PLACET_OWNER_DATABASE_URL": self.owner_url,
            "PLACET_DIGEST_KEY": DIGEST_KEY,
            "PLACET_HOME": str(self.folder),
            "PLACET_PORT": str(self.port),
            "PLACET_RATE_LIMIT": "100000/second",
            "PLACET_LEASE": "PT3S",
        }

    async def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "server.py", cwd=ROOT, env=self.environment(), stdout=log, stderr=log
            )
        async with asyncio.timeout(60), httpx.AsyncClient(base_url=self.url) as http:
            while True:
                try:
                    await http.get("/ok")
                    return
                except httpx.TransportError:
                    assert self._process.returncode is None, (self.folder / "server.log").read_text()[-3000:]
                    await asyncio.sleep(0.1)

    async def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait until it has ended."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(with_signal)
            try:
                await asyncio.wait_for(process.wait(), 20)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def restart(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """Stop and start again on the same port."""
        await self.stop(with_signal)
        await self.start()


async def furnished(database: Database, database_url: str, owner_url: str, folder: Path) -> ServerProcess:
    """A server of the shop that is not started; its callers have keys."""
    async with database.transaction() as tx:
        keys = {}
        for user, (roles, duties) in PEOPLE.items():
            await people.ensure(tx, TENANT, user, name=user.title(), roles=list(roles), duties=duties)
            keys[user], _ = await credentials.issue(tx, TENANT, user, by="test")
    await seed(Shop(database, TENANT))
    return ServerProcess(database_url, owner_url, folder, _free_port(), keys)


@asynccontextmanager
async def server_process(
    database: Database, database_url: str, owner_url: str, folder: Path
) -> AsyncIterator[ServerProcess]:
    """A running server of the shop."""
    async with _running(await furnished(database, database_url, owner_url, folder)) as server:
        yield server


@asynccontextmanager
async def another(beside: ServerProcess) -> AsyncIterator[ServerProcess]:
    """A second server on the same database."""
    server = ServerProcess(beside.database_url, beside.owner_url, beside.folder, _free_port(), beside.keys)
    async with _running(server) as running:
        yield running


@asynccontextmanager
async def _running(server: ServerProcess) -> AsyncIterator[ServerProcess]:
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port
