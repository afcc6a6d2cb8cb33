"""The fenced checkpointer: a run that lost its thread writes no checkpoint, and a planted one runs no code (O2, V6)."""

import os
import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from placet.record.checkpointer import FencedSaver, config_of
from placet.record.database import Database
from placet.record.errors import StaleEpoch
from placet.record.runs import Owned
from tests.outside import World
from tests.scripted import calls
from tests.steps import outside_house


def where(owned: Owned) -> RunnableConfig:
    config = config_of(owned)
    config["configurable"]["checkpoint_ns"] = ""
    return cast("RunnableConfig", config)


async def count(database: Database) -> int:
    async with database.read() as tx:
        return int(
            await tx.fetch_value(
                """
                select (select count(*) from checkpoints) + (select count(*) from checkpoint_writes)
                     + (select count(*) from checkpoint_blobs)
                """
            )
        )


async def test_o2_a_stale_run_writes_no_checkpoint_and_no_write(database: Database, world: World) -> None:
    """Both kinds of write are refused under an epoch that is over, and nothing of them stays."""
    house = await outside_house(database, world)
    await house.ask()
    owned = await house.worker.claim()
    assert owned is not None
    saver = FencedSaver(database, owned)
    config = await saver.aput(where(owned), empty_checkpoint(), {}, {})
    await house.rows("update threads set epoch = epoch + 1 returning epoch")
    before = await count(database)
    with pytest.raises(StaleEpoch):
        await saver.aput(where(owned), {**empty_checkpoint(), "channel_values": {"a": ["x"]}}, {}, {"a": "1"})
    with pytest.raises(StaleEpoch):
        await saver.aput_writes(config, [("a", 1)], "task")
    assert await count(database) == before
    assert (await saver.aget_tuple(config)) is not None  # reading is free


async def test_o2_a_refused_write_breaks_no_later_one(database: Database, database_url: str, world: World) -> None:
    """What a refusal interrupts on a connection is not missed by who gets that connection next."""
    house = await outside_house(database, world)
    await house.ask()
    owned = await house.worker.claim()
    assert owned is not None
    async with Database(database_url, size=1) as pooled:
        saver, stale = FencedSaver(pooled, owned), FencedSaver(pooled, replace(owned, epoch=owned.epoch - 1))
        for some in range(13):  # psycopg prepares a statement when it comes the sixth time
            if some % 2:
                with pytest.raises(StaleEpoch):
                    await stale.aput(where(owned), empty_checkpoint(), {}, {})
            else:
                await saver.aput(where(owned), empty_checkpoint(), {}, {})


async def test_o2_without_a_claim_it_only_reads(database: Database, world: World) -> None:
    """A saver that nobody claimed for refuses to write."""
    house = await outside_house(database, world, calls(("look", {"what": "x"})), "Done.")
    turn = await house.run()
    owned = await house.claimed(turn)
    saver = FencedSaver(database, None)
    found = await saver.aget_tuple(where(owned))
    assert found is not None
    assert found.checkpoint["channel_values"]["turn_id"] == str(turn.turn_id)
    with pytest.raises(StaleEpoch):
        await saver.aput(where(owned), empty_checkpoint(), {}, {})
    with pytest.raises(NotImplementedError):
        await saver.adelete_thread(str(turn.thread_id))


class Planted:
    """What an attacker would store: loading it runs a command."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.witness}",)


@pytest.mark.parametrize("kind", ["pickle", "msgpack"])
async def test_v6_a_planted_checkpoint_runs_no_code(
    database: Database, world: World, tmp_path: Path, kind: str
) -> None:
    """A blob with a pickle, or with a msgpack reference to a function: loading it executes nothing."""
    import ormsgpack  # noqa: PLC0415

    witness = tmp_path / "executed"
    house = await outside_house(database, world, calls(("pay", {"to": "bo", "minor": 700})))
    turn = await house.run()
    inner = ormsgpack.packb(("os", "system", f"touch {witness}"))
    blob = pickle.dumps(Planted(witness)) if kind == "pickle" else ormsgpack.packb(ormsgpack.Ext(0, inner))
    for table in ("checkpoint_blobs", "checkpoint_writes"):
        await house.rows(
            f"update {table} set type = %(kind)s, blob = %(blob)s where type <> 'empty' returning channel",
            kind=kind,
            blob=blob,
        )
    saver = FencedSaver(database, None)
    with suppress(Exception):  # refusing is as good as reading it as plain data
        await saver.aget_tuple(where(await house.claimed(turn)))
    assert not witness.exists()


async def test_o2_a_claim_that_is_under_way_is_waited_for(database: Database, world: World) -> None:
    """A checkpoint write meets a claim that is about to commit: it waits, and is then refused, never both accepted."""
    import asyncio  # noqa: PLC0415

    house = await outside_house(database, world)
    await house.ask()
    owned = await house.worker.claim()
    assert owned is not None
    saver = FencedSaver(database, owned)
    async with database.transaction() as tx:
        await tx.execute("update threads set epoch = epoch + 1")
        write = asyncio.create_task(saver.aput(where(owned), empty_checkpoint(), {}, {}))
        done, _ = await asyncio.wait([write], timeout=0.3)
        assert not done
    with pytest.raises(StaleEpoch):
        await write
