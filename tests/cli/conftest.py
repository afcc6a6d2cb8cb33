"""The command line on a test's own database: in this process where that is enough, as a real process where it matters."""

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from filelock import FileLock
from psycopg import sql

from graph.rehearsal import Rehearsal
from placet import cli
from placet.record.approvals import Approval
from placet.record.database import Database
from placet.record.embedded import APP, Server
from placet.settings import settings
from tests.conftest import _create, _superuser
from tests.steps import House, open_test_house
from tools.shop import Shop
from tools.shop.seed import seed

T = TypeVar("T")
PLACET = Path(sys.executable).with_name("placet")
KEY = "a key for tests, long enough to sign with"  # as tests.steps has it
REQUEST = "Refund the failed orders of batch NOV-17"


@dataclass(frozen=True)
class Ran:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error of a command that was asked for JSON."""
        assert self.code != 0, self.out
        return self.json["error"]


@pytest.fixture
def environment(database_url: str, owner_url: str, tmp_path: Path) -> dict[str, str]:
    """What a process of this test's house has in its environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PLACET_", "OPENAI_"))}
    return {
        **kept,
        "PLACET_DATABASE_URL": database_url,
        "PLACET_OWNER_DATABASE_URL": owner_url,
        "PLACET_HOME": str(tmp_path / "home"),
        "PLACET_DIGEST_KEY": KEY,
        "PLACET_POLL": "0.2",
        "PYTHONIOENCODING": "utf-8",
    }


@pytest.fixture
def placet(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ran]]:
    """`placet(*arguments)`, in this process."""
    for name in [name for name in os.environ if name.startswith(("PLACET_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def call(*arguments: object, stdin: str = "", **more: str) -> Ran:
        with monkeypatch.context() as patch:
            for name, value in more.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode(errors="surrogateescape"))))
            settings.cache_clear()
            with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
                code = cli.call([str(argument) for argument in arguments])
        return Ran(code, out.getvalue(), err.getvalue())

    yield call
    settings.cache_clear()


@pytest.fixture
def process(environment: dict[str, str]) -> Callable[..., Ran]:
    """`process(*arguments)`: the installed `placet`, as a process of its own."""

    def call(*arguments: object, stdin: str = "", **more: str) -> Ran:
        done = subprocess.run(
            [PLACET, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            env={**environment, **more},
            timeout=200,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def worker(environment: dict[str, str], tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A running `placet worker`; ended by its id."""
    with (tmp_path / "worker.log").open("wb") as log:
        running = subprocess.Popen([PLACET, "worker"], env=environment, stdout=log, stderr=log, start_new_session=True)
    yield running
    running.terminate()
    try:
        running.wait(20)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


@pytest.fixture
def house(database_url: str) -> Callable[[Callable[[House], Awaitable[T]]], T]:
    """`house(work)`: do something as code would, on the same database, with the rehearsal planner."""

    def do(work: Callable[[House], Awaitable[T]]) -> T:
        async def opened() -> T:
            async with Database(database_url) as database:
                return await work(await open_test_house(database, Rehearsal()))

        return asyncio.run(opened())

    return do


@pytest.fixture(scope="session")
def paused_template(server: Server, template: str) -> str:
    """The name of a database with the demo's shop, in which ana's request waits for finance."""
    name = "template_paused"
    with FileLock(server.home / "paused.lock"), _superuser(server) as connection:
        if not connection.execute("select 1 from pg_database where datname = %s", [name]).fetchone():
            _create(connection, f"{name}_new", template)
            asyncio.run(_ask(server.url(APP, f"{name}_new")))
            connection.execute(
                sql.SQL("alter database {} rename to {}").format(sql.Identifier(f"{name}_new"), sql.Identifier(name))
            )
    return name


async def _ask(url: str) -> None:
    async with Database(url) as database:
        opened = await open_test_house(database, Rehearsal())
        await seed(Shop(database, "default"))
        await opened.run(REQUEST)


@pytest.fixture
def database_name(request: pytest.FixtureRequest, server: Server, template: str) -> Iterator[str]:
    """A database of this test's own; with `paused`, one in which a request waits."""
    start = request.getfixturevalue("paused_template") if "paused" in request.fixturenames else template
    name = f"test_{uuid4().hex[:12]}"
    with _superuser(server) as connection:
        _create(connection, name, start)
        yield name
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def paused(house: Callable[..., Any]) -> Approval:
    """The one approval of 38 refunds, which ana asked for and which waits for finance."""

    async def read(opened: House) -> Approval:
        [pending] = await opened.pending()
        return pending

    return house(read)  # type: ignore[no-any-return]
