"""The same graph served by LangGraph's own `langgraph dev`: the rules hold without our server (L2, O1).

What is given is admitted, claimed and advanced by the invocation itself. Differences are listed in docs/langgraph.md.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk import get_client, get_sync_client

from placet.record.database import Database
from tests.peers import python_sdk
from tests.peers.langgraph_cli import NotThere, install
from tests.peers.processes import ROOT, ServerProcess, furnished

pytestmark = pytest.mark.timeout(600)


@asynccontextmanager
async def dev_server(
    database: Database, database_url: str, owner_url: str, folder: Path
) -> AsyncIterator[ServerProcess]:
    """`langgraph dev` of this repository, from a copy: it writes beside its configuration."""
    try:
        program = await asyncio.to_thread(install)
    except NotThere as why:
        pytest.skip(f"langgraph dev was NOT tried: {why}")
    server = await furnished(database, database_url, owner_url, folder)
    home = folder / "dev"
    home.mkdir()
    shutil.copy(ROOT / "langgraph.json", home)
    shutil.copytree(ROOT / "deploy", home / "deploy")
    command = ["dev", "--no-browser", "--no-reload", "--port", str(server.port)]
    environment = {
        **server.environment(),
        "LANGGRAPH_NO_VERSION_CHECK": "true",
        "LANGSMITH_TRACING": "false",
        "PYTHONPATH": str(ROOT),
    }
    with (folder / "dev.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(program), *command, cwd=home, env=environment, stdout=log, stderr=log
        )
    try:
        async with asyncio.timeout(120), httpx.AsyncClient(base_url=server.url) as http:
            while True:
                assert process.returncode is None, (folder / "dev.log").read_text()[-3000:]
                try:
                    if (await http.get("/ok")).status_code == 200:
                        break
                except httpx.TransportError:
                    await asyncio.sleep(0.3)
        yield server
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 20)
            except TimeoutError:
                process.kill()
                await process.wait()


async def test_l2_langgraph_dev_keeps_the_rules(
    database: Database, database_url: str, owner_url: str, tmp_path: Path
) -> None:
    """The SDK's drive passes; one's own request is not approved by oneself, a second resume executes nothing."""

    async def no_restart() -> None:
        """Its memory is its own."""

    async with dev_server(database, database_url, owner_url, tmp_path) as server:
        ana, marta = (get_client(url=server.url, api_key=server.keys[who]) for who in ("ana", "marta"))
        with pytest.raises(httpx.HTTPStatusError) as nobody:
            await get_client(url=server.url, api_key="placet_nobody").threads.search()
        assert nobody.value.response.status_code == 401
        driven = await python_sdk.drive(ana, marta, no_restart, refuses_twice=False)
        again: Any = await marta.runs.wait(
            driven["one"], "placet", command={"resume": {"kind": "approve"}}, raise_error=False
        )
        assert again["__error__"]["error"] == "NothingPending"
        [one, *_] = (await marta.threads.get_state(driven["two"]))["interrupts"]
        own: Any = await ana.runs.wait(
            driven["two"], "placet", command={"resume": {one["id"]: {"kind": "approve"}}}, raise_error=False
        )
        assert own["__error__"]["error"] == "NotAllowed"

        remote = RemoteGraph(
            "placet",
            client=get_client(url=server.url, api_key=server.keys["ana"]),
            sync_client=get_sync_client(url=server.url, api_key=server.keys["ana"]),
        )
        state = await remote.aget_state({"configurable": {"thread_id": driven["two"]}})
        assert set(state.next) == {"call"}
    async with database.read() as tx:
        assert await tx.fetch_dicts("select status from effects") == [{"status": "committed"}]
        [decision] = await tx.fetch_dicts("select user_id, kind from decisions")
    assert decision == {"user_id": "marta", "kind": "approve"}
