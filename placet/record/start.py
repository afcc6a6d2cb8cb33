"""Open the database: find its address, wait for it, migrate it, and say in plain words where the data are.

`PLACET_DATABASE_URL` comes first, else the embedded Postgres is started. A database that is down is waited for, since
nothing is lost while it is: what was confirmed is in it, and what was not was never promised.
"""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import psycopg
import stamina
from filelock import FileLock
from pydantic import BaseModel, ConfigDict

from placet.record import embedded
from placet.record.database import Database
from placet.record.embedded import APP, write_private
from placet.record.migrate import migrate
from placet.record.problems import DatabaseRefused, DatabaseUnreachable, DataUnreadable
from placet.settings import Settings

WAIT = 60.0  # seconds for a database that is down


@asynccontextmanager
async def open_database(
    settings: Settings, *, migrations: Sequence[Path], wait: float = WAIT
) -> AsyncIterator[Database]:
    """An open, migrated database of the application's role.

    `migrations` are folders of SQL files beside the record's own; `wait` is how many seconds a database that is down is
    waited for. Raises a `DatabaseProblem`.
    """
    if settings.database_url is None:
        server = await asyncio.to_thread(embedded.start, settings.home)
        if server.started:
            say(f"Started the embedded Postgres; its data are in {server.data}. In production set PLACET_DATABASE_URL.")
        application = server.app_url
        await migrate(server.owner_url, migrations, application=APP)
    else:
        application, owner, role = await _given(settings, settings.database_url.get_secret_value(), wait)
        await migrate(owner, migrations, application=role)
        if role is None:
            say(
                "The role that runs also owns the tables, so it could change or delete audit rows; that would break the "
                "chain of their hashes, but nothing prevents it. Give PLACET_DATABASE_URL another role than "
                "PLACET_OWNER_DATABASE_URL."
            )
    async with Database(application, size=settings.pool_size) as database:
        yield database


async def _given(settings: Settings, application: str, wait: float) -> tuple[str, str, str | None]:
    """The two addresses of the settings, and the application's role if it is another than the owner's."""
    role = await _wait_for(application, wait)
    owner = settings.owner_database_url.get_secret_value() if settings.owner_database_url else application
    if role != (await _wait_for(owner, wait) if owner != application else role):
        return application, owner, role
    return application, owner, None


async def _wait_for(address: str, seconds: float) -> str:
    """The role's name, once the database answers."""
    attempts = stamina.retry_context(on=_is_down, attempts=None, timeout=seconds, wait_initial=0.2, wait_max=2.0)
    try:
        async for attempt in attempts:
            with attempt:
                return await _role(address, attempt.num, seconds)
    except psycopg.OperationalError as error:
        if _is_down(error):
            raise DatabaseUnreachable(
                f"The database did not answer within {seconds:.0f} seconds: {_first_line(error)}. "
                "Nothing is lost: start it and run this again. Its address is PLACET_DATABASE_URL."
            ) from error
        raise DatabaseRefused(f"{_first_line(error)}. Correct PLACET_DATABASE_URL, or the role it names.") from error
    except psycopg.ProgrammingError as error:
        raise DatabaseRefused(
            f"PLACET_DATABASE_URL is not an address of Postgres: {_first_line(error)}. "
            "It looks like postgresql://role:password@host:5432/database."
        ) from error
    raise AssertionError("stamina either returns or raises")


def _is_down(error: Exception) -> bool:
    """Whether waiting may help. A server that says FATAL is there: only if it is busy coming or going, or full, will it
    let us in later. (While connecting there is no SQLSTATE, only its words.)"""
    if not isinstance(error, psycopg.OperationalError):
        return False
    passing = ("starting up", "shutting down", "recovery", "not yet accepting", "too many", "slots are reserved", "57P")
    return "FATAL:" not in str(error) or any(words in str(error) for words in passing)


async def _role(address: str, attempt: int, seconds: float) -> str:
    try:
        async with await psycopg.AsyncConnection.connect(address, autocommit=True, connect_timeout=5) as connection:
            row = await (await connection.execute("select current_user")).fetchone()
            assert row is not None
            return str(row[0])
    except psycopg.OperationalError as error:
        if attempt == 1 and _is_down(error):
            say(f"The database does not answer ({_first_line(error)}); trying again for up to {seconds:.0f} seconds.")
        raise


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class Status(BaseModel):
    """Where the database is and how it is; sizes in bytes."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["embedded", "given"]  # given: by PLACET_DATABASE_URL
    running: bool
    home: str | None = None  # of the embedded one
    data: str | None = None
    server: str | None = None  # host or folder of the socket
    version: str | None = None
    size: int | None = None
    connections: int | None = None
    problem: str | None = None  # why it does not answer


async def status(settings: Settings) -> Status:
    """Look, and neither start nor wait."""
    if settings.database_url is None:
        server = await asyncio.to_thread(embedded.running, settings.home)
        if server is None:
            return Status(kind="embedded", running=False, home=str(settings.home))
        seen = await _look(Status(kind="embedded", running=True), server.owner_url)
        return seen.model_copy(update={"home": str(server.home), "data": str(server.data)})
    return await _look(Status(kind="given", running=True), settings.database_url.get_secret_value())


async def _look(status: Status, address: str) -> Status:
    try:
        async with await psycopg.AsyncConnection.connect(address, autocommit=True, connect_timeout=5) as connection:
            cursor = await connection.execute(
                """
                select split_part(current_setting('server_version'), ' ', 1),
                       pg_database_size(current_database()),
                       (select count(*) from pg_stat_activity where datname = current_database()) - 1
                """
            )
            row = await cursor.fetchone()
            assert row is not None
            version, size, connections = row
            host = connection.info.host
    except psycopg.Error as error:
        return status.model_copy(update={"running": False, "problem": _first_line(error)})
    return status.model_copy(update={"server": host, "version": version, "size": size, "connections": connections})


def say(sentence: str) -> None:
    """Tell the person at the terminal; results alone go to stdout."""
    print(sentence, file=sys.stderr, flush=True)


def load_digest_key(settings: Settings) -> tuple[str, bytes]:
    """The key's id and the key (at least 32 bytes) that authenticates rows that decide (V6).

    From the settings, else from `home/digest.key`, which is made once. Whoever loses it cannot prove old rows.
    """
    if settings.digest_key is not None:
        key = settings.digest_key.get_secret_value().encode()
        if len(key) < 32:
            raise DataUnreadable(f"PLACET_DIGEST_KEY has {len(key)} bytes and needs at least 32.")
        return settings.digest_key_id, key
    path = settings.home.expanduser() / "digest.key"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name("postgres.lock")):
            if not path.exists():
                write_private(path, secrets.token_hex(32).encode())
    return settings.digest_key_id, path.read_bytes()
