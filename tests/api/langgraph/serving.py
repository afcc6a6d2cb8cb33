"""A server process's app on a free port, with a worker beside it, in the test's own loop.

async with serving(house) as server: server.client("ana").threads.create()
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx
import uvicorn
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from placet.api.app import create_app
from placet.record import credentials, people
from placet.worker import Worker
from tests.steps import TENANT, House

SETTINGS = {"rate_limit": "100000/second", "poll": 0.2}


@dataclass
class Serving:
    """A running server and what its callers hold."""

    url: str
    keys: dict[str, str] = field(default_factory=dict)

    def client(self, user: str) -> LangGraphClient:
        """The official SDK, as that user."""
        return get_client(url=self.url, api_key=self.keys[user])

    async def key(self, house: House, user: str, *, tenant: str = TENANT) -> str:
        async with house.database.transaction() as tx:
            return (await credentials.issue(tx, tenant, user, by="test"))[0]

    def http(self, user: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers={"X-Api-Key": self.keys[user]}, timeout=30)


@asynccontextmanager
async def serving(house: House, *, worker: bool = True) -> AsyncIterator[Serving]:
    """Serve `house` to Ana, Marta, Pedro, Lena and Otto, an operator."""
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    app = create_app(house.services.settings, house.services)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    running = asyncio.create_task(server.serve(sockets=[found]))
    works = Worker(house.services)
    working = asyncio.create_task(works.run(signals=False)) if worker else None
    served = Serving(f"http://127.0.0.1:{found.getsockname()[1]}")
    async with house.database.transaction() as tx:
        await people.ensure(tx, TENANT, "otto", name="Otto", roles=["operator", "requester"], duties=[])
        for user in ("ana", "marta", "pedro", "lena", "otto"):
            served.keys[user], _ = await credentials.issue(tx, TENANT, user, by="test")
    while not server.started:  # noqa: ASYNC110  # uvicorn tells nobody
        await asyncio.sleep(0.01)
    try:
        yield served
    finally:
        app.state.timelines.stop()
        server.should_exit = True
        await running
        if working is not None:
            works.stop()
            with suppress(asyncio.CancelledError):
                await working
        found.close()
