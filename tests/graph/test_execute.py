"""Execution: one effect per call, whatever the tool answers and whoever sends it again (E1–E4)."""

import asyncio
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from graph.advance import advance
from placet.record import canonical, runs
from placet.record.database import Database
from placet.record.embedded import SUPERUSER, Server
from tests.conftest import Clock
from tests.outside import World, happens, happens_after, happens_then, raises
from tests.scripted import Scripted, calls
from tests.steps import TENANT, House, outside_house, together
from tools.contract import Line, NothingSent, Receipt, Refused

PAY = ("pay", {"to": "bo", "minor": 700})
LABEL = ("label", {"name": "blue"})


async def approved(house: House) -> Any:
    turn = await house.run()
    for asked in await house.pending(turn):
        await house.approve(asked)
    return turn


async def test_e1_the_effect_row_is_there_before_the_call_leaves(database: Database, world: World) -> None:
    """When the tool is called, its row is committed: operation, canonical arguments, hash, approval, epoch, dispatched."""
    seen: list[dict[str, Any]] = []

    async def look(world: World, tool: str, args: Any, operation_id: str) -> Any:
        seen.extend(await house.rows("select * from effects"))
        return world.do(tool, args, operation_id)

    world.next("pay", look)
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await approved(house)
    await house.go_on(turn)

    [row] = seen
    [line] = world.arrivals()
    [item] = await house.items(turn)
    assert str(row["operation_id"]) == line["key"]  # the operation id is the tool's idempotency key
    assert row["status"] == "dispatched"
    assert row["arguments"] == item.arguments
    assert row["arguments_hash"] == canonical.sha256(row["arguments"])
    assert row["approval_id"] is not None
    assert row["epoch"] == 2
    assert (await house.told(turn)).index("tool_started") < (await house.told(turn)).index("tool_completed")


class Hostile:
    """Its text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no text \x00 for you")


class Loop(BaseModel):
    """A model that holds itself."""

    inner: Any = None


def looped() -> Loop:
    loop = Loop()
    loop.inner = loop
    return loop


ANSWERS: dict[str, Any] = {
    "a lambda": lambda: None,
    "2**70": 2**70,
    "an object without text": Hostile(),
    "itself": looped(),
    "nothing": None,
    "a set": {1, 2},
    "bytes": b"\x00\xff",
    "half a surrogate": "\ud800",
    "a receipt with NUL": Receipt(external_id="a\x00b", summary="x"),
    "a receipt with 2**70": Receipt(external_id="x", summary="x", lines=[Line(ref="r", status="done", minor=2**70)]),
    "a receipt with NaN": Receipt(external_id="x", summary="x", data={"rate": float("nan")}),
    "a receipt with 1e16": Receipt(external_id="x", summary="x", data={"rate": 1e16}),
    "a constructed receipt": Receipt.model_construct(external_id=object(), summary=Hostile()),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_e3_an_answer_that_cannot_be_stored_never_makes_the_call_run_again(
    database: Database, world: World, answer: str
) -> None:
    """It happened, and answered something that no database or JSON holds: one effect, committed, with a receipt."""
    world.next("label", happens_then(ANSWERS[answer]))
    house = await outside_house(database, world, calls(LABEL), "Labelled.")
    turn = await house.run()

    assert turn.status == "completed"
    assert len(world.arrivals()) == 1
    [effect] = await house.effects(turn)
    assert effect.status == "committed"
    assert effect.receipt is not None
    assert effect.receipt["external_id"]
    assert house.model.results()[0]["ok"] is True


class TheirOwnError(Exception):
    """An exception class of the tool's own library."""

    code = object()


class NoWords(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "error",
    [TheirOwnError("after the fact"), TimeoutError(), ConnectionError("reset\x00"), NoWords(), KeyError("\ud800")],
    ids=["own-class", "timeout", "nul", "no-words", "surrogate"],
)
@pytest.mark.parametrize("call", [PAY, LABEL], ids=["approved", "automatic"])
async def test_e4_happened_and_raised_is_unknown_then_observed(
    database: Database, world: World, call: Any, error: Exception
) -> None:
    """The tool does it and then raises whatever it likes: no second attempt; unknown, looked up, committed."""
    world.next(call[0], happens_then(error))
    house = await outside_house(database, world, calls(call), "Done.")
    turn = await house.go_on(await approved(house))

    assert turn.status == "completed"
    assert len(world.arrivals()) == 1
    assert [effect.status for effect in await house.effects(turn)] == ["committed"]
    told = await house.told(turn)
    assert told.index("effect_unknown") < told.index("effect_reconciled")
    assert house.model.results()[0]["ok"] is True


async def test_e4_a_time_out_whose_effect_comes_later_is_never_told_as_failed(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool gives up after 0.1 s, its thread does it later: unknown until observed, then committed; once."""
    from datetime import timedelta  # noqa: PLC0415

    from tests.outside import Pay  # noqa: PLC0415

    gate = asyncio.Event()
    background: list[asyncio.Task[Any]] = []

    async def late(world: World, tool: str, args: Any, operation_id: str) -> Any:
        background.append(asyncio.create_task(happens_after(gate)(world, tool, args, operation_id)))
        await asyncio.Event().wait()

    monkeypatch.setattr(Pay, "timeout", timedelta(seconds=0.1))
    world.next("pay", late)
    world.silent = True
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await approved(house)
    waiting = await house.go_on(turn)
    assert waiting.status == "awaiting_reconciliation"
    [item] = await house.items(turn)
    assert (item.status, item.result) == ("unknown", None)
    [effect] = await house.effects(turn)
    assert effect.error is not None
    assert (effect.status, effect.error["code"]) == ("unknown", "timed_out")

    gate.set()
    await background[0]
    world.silent = False
    async with database.transaction() as tx:
        await runs.make_due(tx, TENANT, turn.thread_id, turn.turn_id, because="look again")
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1
    assert len(world.done()) == 1


async def test_e4_a_clear_no_is_a_definite_failure(database: Database, world: World) -> None:
    """The system refuses, with words that hold anything: failed, said so, not tried again, nothing to look up."""
    world.next("pay", raises(Refused("no such account \x00", code="no_account\ud800")))
    house = await outside_house(database, world, calls(PAY), "Refused.")
    turn = await house.go_on(await approved(house))
    assert turn.status == "completed"
    assert [effect.status for effect in await house.effects(turn)] == ["refused"]
    [result] = house.model.results()
    assert result["ok"] is False
    assert result["error"]["code"].startswith("no_account")
    assert len(world.arrivals()) == 1
    assert world.done() == []


async def test_e8_a_read_that_fails_is_tried_again_and_then_told(database: Database, world: World) -> None:
    """Reads change nothing: tried three times; what remains is a result, with a code that can be stored."""
    world.next("look", raises(TheirOwnError("a\x00")), happens)
    world.next("look", *[raises(TheirOwnError("b\x00\ud800"))] * 3)
    house = await outside_house(database, world, calls(("look", {"what": "x"})), calls(("look", {"what": "y"})), "Hm.")
    turn = await house.run()
    assert turn.status == "completed"
    first, second = await house.items(turn)
    assert (first.status, second.status) == ("completed", "failed")
    assert second.result is not None
    assert second.result["error"]["code"] == "read_failed"
    assert len(world.arrivals("look")) == 5
    assert await house.effects(turn) == []


async def test_e3_the_connection_is_killed_while_the_effect_runs(
    database: Database, server: Server, database_name: str, world: World
) -> None:
    """Every connection of the application is terminated during the call: it reconnects, one effect, the receipt is stored."""

    killed: list[Any] = []

    async def cut(world: World, tool: str, args: Any, operation_id: str) -> Any:
        receipt = world.do(tool, args, operation_id)
        async with await psycopg.AsyncConnection.connect(server.url(SUPERUSER, database_name)) as connection:
            cursor = await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and usename = 'placet_app'",
                [database_name],
            )
            killed.extend(await cursor.fetchall())
        return receipt

    world.next("pay", cut)
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await approved(house)
    await house.go_on(turn)
    assert killed
    await house.rows(
        "update threads set lease_until = clock() - interval '1 second' where owner is not null returning 1"
    )
    assert (await house.elsewhere().go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1
    assert [effect.status for effect in await house.effects(turn)] == ["committed"]


async def test_e3_a_cancelled_run_does_not_cut_between_payment_and_receipt(database: Database, world: World) -> None:
    """Whoever drives the run goes away while the call is out: call and receipt still run to their end, under the claim."""
    started, gate = asyncio.Event(), asyncio.Event()
    world.next("pay", happens_after(gate, started))
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await approved(house)
    owned = await house.worker.claim()
    assert owned is not None
    run = asyncio.create_task(advance(house.services, house.worker.graph, owned))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    gate.set()
    await asyncio.wait(list(house.services._in_flight))
    [effect] = await house.effects(turn)
    assert effect.status == "committed"
    assert [item.status for item in await house.items(turn)] == ["completed"]
    await house.rows("update threads set lease_until = clock() - interval '1 second' returning thread_id")
    assert (await house.elsewhere().go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1
    assert "effect_unknown" not in await house.told(turn)


async def test_e2_several_workers_race_for_the_same_approved_call(database: Database, world: World) -> None:
    """Four workers look at the same instant: one owns the thread, one effect."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await approved(house)
    workers = [house.elsewhere() for _ in range(4)]
    done = await together(*(worker.worker.run_until_idle() for worker in workers))
    assert [error for error in done if isinstance(error, BaseException)] == []
    assert (await house.turn(turn.turn_id)).status == "completed"
    assert len(world.arrivals()) == 1


async def test_g3_a_call_that_breaks_does_not_cut_its_sibling(
    database: Database, owner: Database, world: World
) -> None:
    """One call's approval was tampered with; its sibling, already out, is not cut between payment and receipt."""
    started, gate = asyncio.Event(), asyncio.Event()

    async def slow(world: World, tool: str, args: Any, operation_id: str) -> Any:
        receipt = world.do(tool, args, operation_id)
        started.set()
        await gate.wait()
        return receipt

    world.next("pay", slow)
    house = await outside_house(
        database, world, calls(("pay", {"to": "a", "minor": 700}), ("pay", {"to": "b", "minor": 800})), "Done."
    )
    turn = await house.run()
    first, second = await house.pending(turn)
    await house.approve(first)
    await house.approve(second)
    async with owner.transaction() as tx:
        await tx.execute(
            "update placet.approvals set key_id = 'k0' where approval_id = %(id)s", {"id": second.approval_id}
        )
    work = asyncio.create_task(house.worker.run_until_idle())
    await started.wait()
    gate.set()
    await work

    assert [line["args"]["to"] for line in world.arrivals()] == ["a"]
    assert [item.status for item in await house.items(turn)] == ["completed", "failed"]
    assert [result["ok"] for result in house.model.results()] == [True, False]
    assert (await house.turn(turn.turn_id)).status == "completed"
    assert await house.pending(turn) == []


async def test_e1_a_call_with_ten_thousand_recipients_runs_with_the_approved_bytes(
    database: Database, world: World
) -> None:
    """10,000 recipients: asked once, and the very bytes that were approved arrive outside."""
    to = [f"{n:05}.ümläut@house.example" for n in range(10_000)]
    house = await outside_house(database, world, calls(("mail", {"to": to, "text": "hi"})), "Sent.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.approve(asked)
    await house.go_on(turn)
    [effect] = await house.effects(turn)
    assert effect.arguments == canonical.canonical(asked.content["arguments"])
    [line] = world.arrivals()
    assert line["args"] == asked.content["arguments"]
    assert line["args"]["to"] == to


NUMBERS = {
    "-0.0": (-0.0, b'"rate":0'),
    "1e16": (1e16, b'"rate":10000000000000000'),
    "1e21": (1e21, b'"rate":1e+21'),
    "1e-7": (1e-7, b'"rate":1e-7'),
    "5e-324": (5e-324, b'"rate":5e-324'),
    "1.7976931348623157e308": (1.7976931348623157e308, b'"rate":1.7976931348623157e+308'),
    "0.1": (0.1, b'"rate":0.1'),
    "3.0": (3.0, b'"rate":3'),
    "9007199254740993.0": (9007199254740993.0, b'"rate":9007199254740992'),
}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("minor", [700, 1], ids=["approved", "automatic"])
async def test_a2_odd_numbers_are_the_same_bytes_when_they_run(
    database: Database, world: World, number: str, minor: int
) -> None:
    """Numbers at the edge of what JSON holds: what arrives outside is what was approved, to the byte."""
    value, written = NUMBERS[number]
    house = await outside_house(database, world, calls(("pay", {"to": "bo", "minor": minor, "rate": value})), "Paid.")
    turn = await house.run()
    for asked in await house.pending(turn):
        assert written in asked.payload
        await house.approve(asked)
    ended = await house.go_on(turn)

    assert ended.status == "completed"
    [effect] = await house.effects(turn)
    assert written in effect.arguments
    [line] = world.arrivals()
    assert line["args"]["rate"] == value
    assert canonical.canonical(line["args"]) == effect.arguments


@pytest.mark.parametrize("nothing_first", [True, False])
async def test_e5_the_same_operation_is_sent_again_when_nothing_left(
    database: Database, world: World, nothing_first: bool, clock: Clock
) -> None:
    """Nothing was sent the first time: the second attempt goes out under the same operation, and happens once."""
    if nothing_first:
        world.next("label", raises(NothingSent("no line")))
    house = await outside_house(database, world, calls(LABEL), "Done.")
    turn = await house.run()
    assert turn.status == "completed"
    assert len({line["key"] for line in world.arrivals()}) == 1
    assert len(world.done()) == 1
    [effect] = await house.effects(turn)
    assert (effect.status, effect.attempts) == ("committed", 2 if nothing_first else 1)


async def test_g1_the_models_call_ids_count_for_nothing(database: Database, world: World) -> None:
    """A provider reuses its call ids in every step: each call is still its own, with its own operation."""
    house = await outside_house(database, world, model=Scripted(calls(LABEL), calls(LABEL), calls(LABEL), "Done."))
    turn = await house.run()
    assert turn.status == "completed"
    assert len({line["key"] for line in world.arrivals()}) == 3
