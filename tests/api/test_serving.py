"""The process as people start it: `python server.py`, `placet serve` (L4, O4)."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from placet.record import credentials, people
from placet.record.database import Database
from tests.steps import DIGEST_KEY, TENANT

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def environment(database_url: str, owner_url: str, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PLACET_", "OPENAI_"))}
    return {
        **kept,
        "PLACET_DATABASE_URL": database_url,
        "PLACET_OWNER_DATABASE_URL": owner_url,
        "PLACET_DIGEST_KEY": DIGEST_KEY,
        "PLACET_HOME": str(tmp_path),
    }


@asynccontextmanager
async def started(
    environment: dict[str, str], *arguments: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[str]]]:
    """A server process, and what it has said so far on standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "server.py", *arguments, cwd=ROOT, env=environment, stderr=asyncio.subprocess.PIPE
    )
    said: list[str] = []

    async def read() -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            said.append(line.decode())

    reading = asyncio.create_task(read())
    try:
        yield process, said
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def url_of(process: asyncio.subprocess.Process, said: list[str]) -> str:
    """The address, once it says that it listens there."""
    async with asyncio.timeout(60):
        while not (found := re.search(r"Listening on (http://\S+?),", "".join(said))):
            assert process.returncode is None, said
            await asyncio.sleep(0.05)
    return found[1]


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def lives(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


async def a_key(database: Database) -> str:
    async with database.transaction() as tx:
        await people.ensure(tx, TENANT, "ana", name="Ana", roles=["requester"], duties=[])
        text, _ = await credentials.issue(tx, TENANT, "ana", by="test")
    return text


async def test_l4_it_listens_on_this_machine_and_says_what_is_open(
    environment: dict[str, str], database: Database
) -> None:
    """Without configuration: loopback, and everything that knows somebody needs a key. A turn is worked on; SIGTERM ends it
    with exit code 0 although somebody still follows a thread."""
    async with started(environment, "--port", "0") as (process, said):
        url = await url_of(process, said)
        assert url.startswith("http://127.0.0.1:")
        assert "Open without a key: /ok, /info" in "".join(said)
        assert "Nobody has a key yet" in "".join(said)

        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            assert (await client.get("/ok")).json() == {"ok": True}
            assert (await client.get("/v1/turns")).status_code == 401
            client.headers["X-Api-Key"] = await a_key(database)
            turn = (await client.post("/v1/turns", json={"message": "Hello"})).json()
            async with client.stream("GET", f"/v1/turns/{turn['turn_id']}/events") as events:
                told = "".join([text async for text in events.aiter_text()])
            assert "event: turn_completed" in told

            async with client.stream("GET", f"/v1/threads/{turn['thread_id']}/events") as events:
                lines = events.aiter_lines()
                await anext(lines)
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(20):
                    assert await process.wait() == 0
    assert "Traceback" not in "".join(said)


async def test_o4_workers_in_processes_of_their_own_end_with_the_server(
    environment: dict[str, str], database: Database
) -> None:
    """`--workers 2`: two processes work on what is asked, and SIGTERM to the server drains them with it."""
    async with started(environment, "--port", "0", "--workers", "2") as (process, said):
        url = await url_of(process, said)
        assert "2 worker processes" in "".join(said)
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            client.headers["X-Api-Key"] = await a_key(database)
            turn = (await client.post("/v1/turns", json={"message": "Hello"})).json()
            async with client.stream("GET", f"/v1/turns/{turn['turn_id']}/events") as events:
                told = "".join([text async for text in events.aiter_text()])
            assert "event: turn_completed" in told
        children = children_of(process.pid)
        assert len(children) >= 2
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    assert not any(map(lives, children))


@pytest.mark.parametrize(
    ("more", "why"),
    [({}, "Nobody has a key"), ({"PLACET_DEV_USER": "ana"}, "PLACET_DEV_USER")],
)
async def test_l4_it_refuses_to_listen_elsewhere_without_authentication(
    environment: dict[str, str], more: dict[str, str], why: str
) -> None:
    """Exit code 2 and a sentence that says what to do."""
    async with started({**environment, **more}, "--host", "0.0.0.0", "--port", "0") as (process, said):
        async with asyncio.timeout(60):
            assert await process.wait() == 2
        await asyncio.sleep(0)
    assert why in "".join(said)
    assert "Listening" not in "".join(said)


async def test_l4_it_listens_elsewhere_once_somebody_has_a_key(environment: dict[str, str], database: Database) -> None:
    """And a port that is taken is a sentence, not a traceback."""
    await a_key(database)
    async with started(environment, "--host", "0.0.0.0", "--port", "0", "--workers", "0") as (process, said):
        url = await url_of(process, said)
        port = url.rsplit(":", 1)[1]
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{port}/ok")).status_code == 200
        async with started(environment, "--host", "0.0.0.0", "--port", port) as (second, complaint):
            async with asyncio.timeout(60):
                assert await second.wait() == 2
    assert "Is another server there?" in "".join(complaint)
