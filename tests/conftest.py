"""A real Postgres for every test that touches data: one embedded server for the whole run, one migrated template, and a
database of its own for each test.

The controller makes the folder and removes it; whichever worker needs the server first starts it. The controller holds a
lock in that folder as long as it lives, so the next run knows what a killed one left behind and stops that.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from filelock import FileLock, Timeout
from psycopg import sql

from placet.record import embedded
from placet.record.database import Database
from placet.record.embedded import APP, OWNER, SUPERUSER, Server
from placet.record.migrate import migrate

SHOP = Path(__file__).parent.parent / "tools" / "shop" / "migrations"
PREFIX = "placet-tests-"
HOME = pytest.StashKey[Path]()
ALIVE = pytest.StashKey[FileLock]()


def pytest_configure(config: pytest.Config) -> None:
    if (
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    ):  # started in the background: what tests start must hear Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        config.stash[HOME] = Path(config.workerinput["placet_home"])
        return
    _remove_what_killed_runs_left()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `pytest_unconfigure` runs
    fresh = Path(tempfile.mkdtemp(prefix="placet-new-"))
    fresh.chmod(0o711)  # as root, Postgres runs as somebody else
    config.stash[ALIVE] = FileLock(fresh / "alive.lock")
    config.stash[ALIVE].acquire()
    config.stash[HOME] = fresh.rename(
        fresh.with_name(fresh.name.replace("placet-new-", PREFIX))
    )  # found only when locked


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as there are cores: the tests wait for processes and sockets as much as they compute."""
    return max(1, (os.cpu_count() or 1) * 3 // 2)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    node.workerinput["placet_home"] = str(node.config.stash[HOME])  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    if ALIVE in config.stash:
        _remove(config.stash[HOME])
        config.stash[ALIVE].release()


def _remove(home: Path) -> None:
    embedded.stop(home)
    shutil.rmtree((home / "postgres").resolve(), ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)


def _remove_what_killed_runs_left() -> None:
    for home in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            with FileLock(home / "alive.lock", timeout=0):
                _remove(home)
        except (Timeout, OSError):  # its run is alive, or it is somebody else's
            continue


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Server:
    """The run's Postgres, without fsync."""
    return embedded.start(pytestconfig.stash[HOME], fsync=False)


@pytest.fixture(scope="session")
def template(server: Server) -> str:
    """The name of a migrated database that nobody is connected to."""
    import asyncio  # noqa: PLC0415

    name = "template_placet"
    with FileLock(server.home / "template.lock"), _superuser(server) as connection:
        if not connection.execute("select 1 from pg_database where datname = %s", [name]).fetchone():
            fresh = f"{name}_new"
            connection.execute(sql.SQL("drop database if exists {}").format(sql.Identifier(fresh)))
            _create(connection, fresh)
            folders = [SHOP] if SHOP.is_dir() else []
            asyncio.run(migrate(server.url(OWNER, fresh), folders, application=APP))
            connection.execute(
                sql.SQL("alter database {} rename to {}").format(sql.Identifier(fresh), sql.Identifier(name))
            )
    return name


@pytest.fixture
def database_name(server: Server, template: str) -> Iterator[str]:
    """A database of this test's own, dropped afterwards with whoever is still connected."""
    name = f"test_{uuid4().hex[:12]}"
    with _superuser(server) as connection:
        _create(connection, name, template)
        yield name
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def database_url(server: Server, database_name: str) -> str:
    """The address for the application's role, for processes that a test starts."""
    return server.url(APP, database_name)


@pytest.fixture
def owner_url(server: Server, database_name: str) -> str:
    """The address for the role that owns the tables."""
    return server.url(OWNER, database_name)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """This test's database, as the application sees it."""
    async with Database(database_url) as opened:
        yield opened


@pytest.fixture
async def owner(owner_url: str) -> AsyncIterator[Database]:
    """This test's database with the owner's rights: for faults that the application could not make."""
    async with Database(owner_url, size=2) as opened:
        yield opened


@dataclass(frozen=True)
class Clock:
    """The database's clock, which tests move instead of sleeping."""

    owner: Database

    async def advance(self, seconds: float) -> None:
        """From now on `placet.clock()` is that much later, for every process."""
        async with self.owner.transaction() as tx:
            await tx.execute(
                "update placet.clock_offset set shift = shift + make_interval(secs => %(seconds)s)",
                {"seconds": seconds},
            )


@pytest.fixture
def clock(owner: Database) -> Clock:
    return Clock(owner)


def _superuser(server: Server) -> "psycopg.Connection[tuple[object, ...]]":
    return psycopg.connect(server.url(SUPERUSER, "postgres"), autocommit=True)


def _create(connection: "psycopg.Connection[tuple[object, ...]]", name: str, template: str = "template1") -> None:
    connection.execute(
        sql.SQL("create database {} owner {} template {}").format(
            sql.Identifier(name), sql.Identifier(OWNER), sql.Identifier(template)
        )
    )
