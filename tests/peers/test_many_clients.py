"""Two hundred clients on two servers of one database, half waiting, half streaming: none is lost (L3)."""

import asyncio
from pathlib import Path

import psutil
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from placet.record.database import Database
from tests.peers.processes import ServerProcess, another, server_process
from tests.peers.python_sdk import BALANCE

pytestmark = pytest.mark.timeout(400)
CLIENTS = 200


async def test_l3_two_hundred_clients_on_two_servers_none_lost(
    database: Database, database_url: str, owner_url: str, tmp_path: Path
) -> None:
    """Each gets its own answer, whichever process ran its turn; memory stays within bounds."""

    async def waits(client: LangGraphClient) -> str:
        outcome = await client.runs.wait(None, "placet", input=BALANCE)
        return str(outcome["messages"][-1]["content"])

    async def streams(client: LangGraphClient) -> str:
        parts = [part async for part in client.runs.stream(None, "placet", input=BALANCE, stream_mode="values")]
        numbers = [int(part.id) for part in parts if part.id]
        assert numbers == sorted(set(numbers))
        return str(parts[-1].data["messages"][-1]["content"])

    async with (
        server_process(database, database_url, owner_url, tmp_path) as one,
        another(one) as two,
    ):
        servers: list[ServerProcess] = [one, two]
        clients = [get_client(url=servers[n % 2].url, api_key=one.keys["ana"]) for n in range(8)]
        expected = await waits(clients[0])
        before = [memory(server) for server in servers]
        answers = await asyncio.gather(
            *((waits if n % 4 < 2 else streams)(clients[n % len(clients)]) for n in range(CLIENTS))
        )
        after = [memory(server) for server in servers]
    assert answers == [expected] * CLIENTS
    async with database.read() as tx:
        assert await tx.fetch_value("select count(*) from turns where status = 'completed'") == CLIENTS + 1
        assert await tx.fetch_value("select count(*) from runs where status <> 'ended'") == 0
    assert all(late - early < 150 * 2**20 for early, late in zip(before, after, strict=True)), (before, after)


def memory(server: ServerProcess) -> int:
    """Resident bytes of the server's process."""
    return int(psutil.Process(server.pid).memory_info().rss)
