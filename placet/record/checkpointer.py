"""The LangGraph checkpointer, fenced: a stale run's checkpoint writes are refused by the statement itself (O2).

One saver per run over the shared pool, since each holds a lock around its calls. Writes travel as one autocommit
pipeline whose first statement is `fence(thread, epoch)`: no extra round trip, one implicit transaction, all or nothing.
Set `LANGGRAPH_STRICT_MSGPACK` before langgraph is imported (V6): `placet/__init__.py` does.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.base import id as clock
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import AsyncCursor
from psycopg.rows import DictRow, dict_row

from placet.record.crashpoints import reach
from placet.record.database import Database
from placet.record.errors import StaleEpoch
from placet.record.events import STALE
from placet.record.runs import Owned

_LAST = "_last_v6_timestamp"  # where langgraph's uuid6 keeps the time that the next id has to be behind


class FencedSaver(AsyncPostgresSaver):
    """Checkpoints of one run."""

    def __init__(self, database: Database, owned: Owned | None) -> None:
        super().__init__(database.pool)
        self.database = database
        self.owned = owned  # None: read only

    @asynccontextmanager
    async def _cursor(self, *, pipeline: bool = False) -> AsyncIterator[AsyncCursor[DictRow]]:
        if not pipeline:  # the saver's reads
            async with super()._cursor(pipeline=False) as cursor:
                yield cursor
            return
        if self.owned is None:
            raise StaleEpoch("This checkpointer only reads; writing needs a claim on the thread.")
        await reach("checkpoint:begin")
        async with self.lock, self.database.connected() as connection:
            try:
                async with connection.pipeline(), connection.cursor(binary=True, row_factory=dict_row) as cursor:
                    await cursor.execute("select fence(%s, %s)", (self.owned.thread_id, self.owned.epoch))
                    yield cursor
                    await reach("checkpoint:commit")
                await reach("checkpoint:committed")
            except psycopg.Error as error:
                # psycopg takes what a broken-off pipeline was to prepare for prepared: this connection is not used again
                await connection.close()
                if error.sqlstate == STALE:
                    raise StaleEpoch(str(error.diag.message_primary)) from error
                raise

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint; whatever this process writes from now on is later than it.

        "Latest" is the largest id, and ids are wall-clock times: behind a worker whose clock was ahead, new checkpoints
        would be older than its last one, and never be read.
        """
        found = await super().aget_tuple(config)
        if found is not None:
            seen = UUID(found.checkpoint["id"])
            if seen.version == 6:
                vars(clock)[_LAST] = max(vars(clock)[_LAST] or 0, _time_of(seen))
        return found

    async def adelete_thread(self, thread_id: str) -> None:
        """Checkpoints are pruned by retention, never through a run's saver."""
        raise NotImplementedError("A run's checkpointer cannot delete a thread.")


def _time_of(identifier: UUID) -> int:
    """The 60-bit timestamp of a version 6 UUID (RFC 9562)."""
    return (identifier.int >> 80) << 12 | (identifier.int >> 64) & 0x0FFF


def config_of(owned: Owned, **configurable: Any) -> dict[str, Any]:
    """The LangGraph configuration of a run: which thread, under which epoch."""
    return {
        "configurable": {
            "thread_id": str(owned.thread_id),
            "run_id": str(owned.run_id),
            "tenant_id": owned.tenant_id,
            "turn_id": str(owned.turn_id),
            "epoch": owned.epoch,
            "attempt": owned.attempt,
            "because": owned.because,
            **configurable,
        },
        "recursion_limit": 1000,  # a safety net only; the budget that counts is the turn's (G6)
    }
