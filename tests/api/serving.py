"""A real server on loopback, in this process, over a test's own database; and people with keys to it.

async with serve(house) as served:
    answer = await served.to("ana").post("/v1/turns", json={"message": "Do it."})
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import uvicorn
from fastapi import FastAPI

from placet.api.app import create_app
from placet.record import credentials, people
from placet.record.approvals import Approval
from placet.settings import Settings
from tests.steps import TENANT, House

OTHER = "other"
MORE = {"olga": ["operator"], "aldo": ["auditor"], "ben": ["requester"]}


@dataclass
class Served:
    """A server that listens, and a client for each person."""

    house: House
    app: FastAPI
    url: str
    keys: dict[str, str]
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _clients: dict[str, httpx.AsyncClient] = field(default_factory=dict)

    def to(self, who: str | None, **headers: str) -> httpx.AsyncClient:
        """A client of a person's, or of nobody's."""
        name = f"{who}{sorted(headers.items())}"
        if name not in self._clients:
            if who is not None:
                headers = {"X-Api-Key": self.keys[who], **headers}
            client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=20)
            self._clients[name] = client
            self._stack.push_async_callback(client.aclose)
        return self._clients[name]

    async def ask(self, message: str = "Do it.", who: str = "ana", **more: Any) -> UUID:
        """Ask over HTTP; the id of the turn."""
        answer = await self.to(who).post("/v1/turns", json={"message": message, **more})
        assert answer.status_code == 202, answer.text
        return UUID(answer.json()["turn_id"])

    async def paused(self, message: str = "Do it.") -> dict[str, Any]:
        """Ask, and work until people must say; the one approval, as Marta sees it."""
        turn_id = await self.ask(message)
        await self.house.worker.run_until_idle()
        found = (await self.to("marta").get("/v1/approvals", params={"turn_id": str(turn_id)})).json()["rows"]
        assert len(found) == 1, found
        return dict(found[0])

    async def decide(self, asked: dict[str, Any], raw: dict[str, Any], who: str = "marta") -> httpx.Response:
        """Decide about what `asked` shows."""
        body = {"payload_hash": asked["payload_hash"], **raw}
        return await self.to(who).post(f"/v1/approvals/{asked['approval_id']}/decision", json=body)

    async def row(self, asked: dict[str, Any]) -> Approval:
        return await self.house.approval(UUID(asked["approval_id"]))


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[str]:
    """The app behind a real socket; its address."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, access_log=False, timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done(), serving.exception()
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def serve(house: House, settings: Settings | None = None) -> AsyncIterator[Served]:
    """The house behind a real socket, with keys for Ana, Marta, Pedro, Lena, an operator, an auditor, and a stranger."""
    async with house.database.transaction() as tx:
        for name, roles in MORE.items():
            await people.ensure(tx, TENANT, name, name=name.title(), roles=roles, duties=[])
        await people.ensure(tx, OTHER, "zoe", name="Zoe", roles=list(people.ROLES), duties=["support", "finance"])
        keys = {}
        for name in ("ana", "marta", "pedro", "lena", *MORE):
            keys[name], _ = await credentials.issue(tx, TENANT, name, by="test")
        keys["zoe"], _ = await credentials.issue(tx, OTHER, "zoe", lifetime=timedelta(days=1), by="test")
    given = settings or house.services.settings
    app = create_app(given, house.services)
    async with listening(app) as url:
        served = Served(house, app, url, keys)
        async with served._stack:
            yield served
