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
from placet.record.turns import ENDED
from tests.peers import python_sdk
from tests.peers.javascript import install as javascript
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


BATCH = "Refund the failed orders of batch NOV-18"


async def through_v1(server: ServerProcess) -> list[str]:
    """A turn asked and decided through `/v1`: the statuses that it went through."""
    seen = ["created"]
    async with httpx.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/v1/approvals")).status_code == 401
        ana, marta = ({"X-Api-Key": server.keys[who]} for who in ("ana", "marta"))
        asked = (await http.post("/v1/turns", json={"message": BATCH}, headers=ana)).json()
        turn = f"/v1/turns/{asked['turn_id']}"
        async with asyncio.timeout(60), http.stream("GET", f"{turn}/events", headers=ana) as events:
            async for _ in events.aiter_lines():
                if (now := (await http.get(turn, headers=ana)).json()["turn"]["status"]) != seen[-1]:
                    seen.append(now)
                if now in ENDED:
                    break
                found = await http.get("/v1/approvals", params={"turn_id": asked["turn_id"]}, headers=marta)
                for waits in found.json()["rows"]:
                    decision = {"kind": "approve", "payload_hash": waits["payload_hash"]}
                    decide = f"/v1/approvals/{waits['approval_id']}/decision"
                    assert (await http.post(decide, json=decision, headers=ana)).status_code == 403
                    assert (await http.post(decide, json=decision, headers=marta)).status_code == 200
    return seen


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
        driven = await python_sdk.drive(ana, marta, no_restart, ours=False)
        again: Any = await marta.runs.wait(
            driven["one"], "placet", command={"resume": {"kind": "approve"}}, raise_error=False
        )
        assert again["__error__"]["error"] == "NothingPending"
        [one, *_] = (await marta.threads.get_state(driven["two"]))["interrupts"]
        own: Any = await ana.runs.wait(
            driven["two"], "placet", command={"resume": {one["id"]: {"kind": "approve"}}}, raise_error=False
        )
        assert own["__error__"]["error"] == "NotAllowed"

        otto = get_client(url=server.url, api_key=server.keys["otto"])  # an operator sees all
        ida = get_client(url=server.url, api_key=server.keys["ida"])  # a requester sees nobody else's
        assert (await otto.threads.get(driven["one"]))["thread_id"] == driven["one"]
        assert await ida.threads.search() == []
        assert await python_sdk.refused(ida.threads.get_state(driven["one"])) == 404
        assert await python_sdk.refused(ida.threads.update(driven["one"], metadata={"placet_owner": "ida"})) == 404
        assert await python_sdk.refused(ida.runs.create(driven["one"], "placet", input=python_sdk.BALANCE)) == 404
        assert await python_sdk.refused(ida.store.search_items([])) == 403

        assert (await through_v1(server))[-1] == "completed"  # by the worker in that process

        remote = RemoteGraph(
            "placet",
            client=get_client(url=server.url, api_key=server.keys["ana"]),
            sync_client=get_sync_client(url=server.url, api_key=server.keys["ana"]),
        )
        state = await remote.aget_state({"configurable": {"thread_id": driven["two"]}})
        assert set(state.next) == {"call"}
    async with database.read() as tx:
        done = await tx.fetch_dicts("select status, count(*) as n from effects group by 1")
        decided = await tx.fetch_dicts("select distinct user_id, kind from decisions")
    assert done == [{"status": "committed", "n": 3}]  # NOV-17, and NOV-18 in its two currencies
    assert decided == [{"user_id": "marta", "kind": "approve"}]


async def test_l2_the_javascript_sdk_drives_langgraph_dev(
    database: Database, database_url: str, owner_url: str, tmp_path: Path
) -> None:
    """The same script on Node: one refund goes out, a refused one does not."""
    async with dev_server(database, database_url, owner_url, tmp_path) as server:
        try:
            assert (await javascript.drive(server.url, server.keys, ours=False))["ok"]
        except javascript.NotThere as why:
            pytest.skip(f"The JavaScript SDK was NOT tried: {why}")
    async with database.read() as tx:
        assert await tx.fetch_dicts("select status from effects") == [{"status": "committed"}]
