"""The connection pool and transactions; every statement of the project runs through here.

A transaction is short: it locks in the order thread, approval, effect, audit, and holds no lock while anything outside
is called. Autocommit is on, so that whatever is not in a `transaction()` is visible at once.
"""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, LiteralString, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import class_row, dict_row, scalar_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from placet.record.crashpoints import reach

T = TypeVar("T")
Params = Mapping[str, Any]
# What says that the database is away, or has let this connection go: nothing is wrong with the work, it is taken up again.
AWAY = (
    psycopg.OperationalError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
    PoolTimeout,
)
IDLE = 5.0  # seconds after which a pooled connection is checked
SEARCH_PATH = "-c search_path=placet,public"  # ours and the checkpointer's tables; a tool's own schema is qualified
# A process that is stopped in the middle of a transaction, or whose machine is gone, would keep its locks: the thread could
# not be taken up (O3), and nobody of the tenant could append to the audit chain. After this time the server ends it.
LIVENESS = (
    "-c idle_in_transaction_session_timeout=15s"
    " -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
)


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction; what runs in it becomes true together."""

    connection: AsyncConnection[Any]

    async def execute(self, sql: LiteralString, params: Params | None = None) -> int:
        """Run a statement; returns the number of rows it changed."""
        return (await self.connection.execute(sql, params)).rowcount

    async def execute_many(self, sql: LiteralString, params: list[Params]) -> None:
        """Run one statement for many rows, in one pipeline."""
        async with self.connection.cursor() as cursor:
            await cursor.executemany(sql, params)

    async def fetch_one(self, row: type[T], sql: LiteralString, params: Params | None = None) -> T | None:
        """The first row as `row(**columns)`, or None."""
        async with self.connection.cursor(row_factory=class_row(row)) as cursor:
            await cursor.execute(sql, params)
            return await cursor.fetchone()

    async def fetch_all(self, row: type[T], sql: LiteralString, params: Params | None = None) -> list[T]:
        """All rows, each as `row(**columns)`."""
        async with self.connection.cursor(row_factory=class_row(row)) as cursor:
            await cursor.execute(sql, params)
            return await cursor.fetchall()

    async def fetch_dicts(self, sql: LiteralString, params: Params | None = None) -> list[dict[str, Any]]:
        """All rows as dictionaries, where a type of their own would say nothing more."""
        async with self.connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(sql, params)
            return await cursor.fetchall()

    async def fetch_value(self, sql: LiteralString, params: Params | None = None) -> Any:
        """The first column of the first row, or None."""
        async with self.connection.cursor(row_factory=scalar_row) as cursor:
            await cursor.execute(sql, params)
            return await cursor.fetchone()


class Database:
    """A pool of connections of one role to one database."""

    def __init__(self, dsn: str, *, size: int = 10) -> None:
        self.dsn = dsn
        self._idle_since: WeakKeyDictionary[AsyncConnection[Any], float] = WeakKeyDictionary()
        self._broke = 0.0  # when a connection was last found dead
        self.pool: AsyncConnectionPool[AsyncConnection[dict[str, Any]]] = AsyncConnectionPool(
            dsn,
            min_size=1,
            max_size=size,
            open=False,
            check=self._check,
            kwargs={"autocommit": True, "row_factory": dict_row, "options": f"{SEARCH_PATH} {LIVENESS}"},
        )

    async def _check(self, connection: AsyncConnection[Any]) -> None:
        """A connection that was idle for long, or since before another one broke, may be dead: it is replaced before it is
        handed out. One that was used a moment ago is not asked, since that would cost a round trip each time."""
        idle_since = self._idle_since.get(connection, 0.0)
        if time.monotonic() - idle_since > IDLE or idle_since <= self._broke:
            await AsyncConnectionPool.check_connection(connection)

    async def __aenter__(self) -> "Database":
        await self.pool.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.pool.close()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[AsyncConnection[dict[str, Any]]]:
        """A connection of the pool. (A pool's `reset` would also note its return, but in a task of the pool's own: what
        is given back last would then stay open when the pool closes.)"""
        async with self.pool.connection() as connection:
            try:
                yield connection
            finally:
                self._idle_since[connection] = time.monotonic()
                if connection.broken:
                    self._broke = time.monotonic()

    @asynccontextmanager
    async def transaction(self, name: str = "") -> AsyncIterator[Transaction]:
        """`async with database.transaction("ask") as tx:` commits at the end, rolls back on an exception.

        Those on the way of a call are named: a test can stop the process before them, and before and after their commit.
        """
        await reach(f"{name}:begin")
        async with self.connected() as connection:
            async with connection.transaction():
                yield Transaction(connection)
                await reach(f"{name}:commit")
            await reach(f"{name}:committed")

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        """Statements that each see what is committed when they run; nothing is held between them."""
        async with self.connected() as connection:
            yield Transaction(connection)
