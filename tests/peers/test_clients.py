"""The clients that LangGraph's people have, as they are published, against `python server.py` (L1, L2, L3)."""

import signal
from pathlib import Path
from typing import Any

import pytest
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command
from langgraph_sdk import get_client, get_sync_client

from placet.record.database import Database
from tests.peers import python_sdk
from tests.peers.javascript import install as javascript
from tests.peers.processes import server_process

pytestmark = pytest.mark.timeout(300)


async def effects(database: Database) -> list[str]:
    async with database.read() as tx:
        return [row["status"] for row in await tx.fetch_dicts("select status from effects")]


async def test_l1_the_python_sdk(database: Database, database_url: str, owner_url: str, tmp_path: Path) -> None:
    """Its whole drive, with a restart in the middle by which nothing is lost; one refund goes out."""
    async with server_process(database, database_url, owner_url, tmp_path) as server:
        ana, marta = (get_client(url=server.url, api_key=server.keys[who]) for who in ("ana", "marta"))
        await python_sdk.drive(ana, marta, server.restart)
        assert await effects(database) == ["committed"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_l3_a_waiting_client_outlives_its_server(
    database: Database, database_url: str, owner_url: str, tmp_path: Path, how: signal.Signals
) -> None:
    """The server goes while a client waits; the SDK comes back to the next one and gets the outcome."""
    async with server_process(database, database_url, owner_url, tmp_path) as server:
        ana = get_client(url=server.url, api_key=server.keys["ana"])
        with pytest.warns(UserWarning, match="reconnect"):
            outcome = await python_sdk.wait_through(ana, lambda: server.restart(how))
    assert outcome["messages"][-1]["type"] == "ai"


async def test_l1_the_javascript_sdk(database: Database, database_url: str, owner_url: str, tmp_path: Path) -> None:
    """Its whole drive on Node, and a join after a restart."""
    async with server_process(database, database_url, owner_url, tmp_path) as server:
        try:
            first = await javascript.drive(server.url, server.keys, phase="before")
        except javascript.NotThere as why:
            pytest.skip(f"The JavaScript SDK was NOT tried: {why}")
        await server.restart()
        assert (await javascript.drive(server.url, server.keys, phase="after", kept=first["kept"]))["ok"]
    assert await effects(database) == ["committed"]


async def test_l1_remote_graph(database: Database, database_url: str, owner_url: str, tmp_path: Path) -> None:
    """LangGraph's own remote graph: it pauses, is resumed by another person, and shows state and history."""
    async with server_process(database, database_url, owner_url, tmp_path) as server:

        def remote(who: str) -> RemoteGraph:
            key = server.keys[who]
            return RemoteGraph(
                "placet",
                client=get_client(url=server.url, api_key=key),
                sync_client=get_sync_client(url=server.url, api_key=key),
            )

        ana, marta = remote("ana"), remote("marta")
        thread = await get_client(url=server.url, api_key=server.keys["ana"]).threads.create()
        config: Any = {"configurable": {"thread_id": thread["thread_id"]}}
        paused = await ana.ainvoke(python_sdk.REFUND, config)
        assert paused["__interrupt__"]
        state = await marta.aget_state(config, subgraphs=True)
        assert state.next == ("call",)
        [asked] = state.interrupts
        parts = [part async for part in marta.astream(Command(resume={asked.id: {"kind": "approve"}}), config)]
        assert parts
        assert (await ana.aget_state(config)).next == ()
        assert len([step async for step in ana.aget_state_history(config, limit=50)]) > 3
        assert {node.name for node in (await ana.aget_graph(xray=True)).nodes.values()} >= {"plan", "gate"}
    assert await effects(database) == ["committed"]
