"""Races, between processes that start at the same instant: one decision, one owner, one effect, whoever is faster."""

import asyncio
import os
import random
import time
from typing import Any

import psycopg
import pytest

from placet.record import crashpoints
from placet.record.database import Database
from tests.crash.case import Case, Played, Player, begin
from tests.crash.judge import judge
from tests.crash.slots import Process, Slot
from tests.crash.stories import Story, main_story
from tests.crash.world import KINDS
from tests.outside import World, happens_after
from tests.scripted import calls
from tests.steps import outside_house

ASKED = main_story("pay", "approved", differs=False)
EIGHT = Story("eight", [[("pay", {"to": f"p{n}", "minor": 700}) for n in range(8)]], effects=frozenset({8}))
ROUNDS = int(os.environ.get("PLACET_RACES", "5"))  # `make crash` runs 25, which is 200 decisions
SOON = 0.1  # seconds until a barrier opens: long enough for everybody to have heard of it


async def _never() -> None:
    raise AssertionError


async def entered(played: Played, *processes: Process) -> None:
    folder = str(played.world.folder)
    await asyncio.gather(*(one.call(do="enter", folder=folder, arm={}, note=False) for one in processes))


async def at_once(*told: tuple[Process, dict[str, Any]], apart: float = 0.0) -> list[dict[str, Any]]:
    """Every process does its part at the same instant, or within `apart` seconds."""
    start = time.monotonic() + SOON
    return await asyncio.gather(*(one.call(**what, at=start + random.uniform(0, apart)) for one, what in told))


async def pending(slot: Slot, played: Played) -> list[str]:
    return [asked.approval_id for asked in (await player(slot, played).look()).pending]


def player(slot: Slot, played: Played) -> Player:
    return Player(slot, played.case, played, slot._rescuer or slot._victim, _never)  # type: ignore[arg-type]


async def finished(slot: Slot, played: Played) -> None:
    await slot.rescuer()
    await player(slot, played).play()
    await judge(slot, played)
    assert played.problems == []


@pytest.mark.timeout(300)
async def test_a3_eight_processes_decide_and_resume_at_once(slot: Slot) -> None:
    """Four people in eight processes press at the same instant and run the thread at once: one decision each time, one
    payment, and everybody who came second learns of the first."""
    crowd = await slot.more(8)
    decided = 0
    for _ in range(ROUNDS):
        played = await begin(slot, Case(EIGHT))
        await entered(played, *crowd, await slot.rescuer())
        work = {"do": "work", "thread": str(played.thread_id)}
        await crowd[0].call(**work)
        for approval in await pending(slot, played):
            answers = await at_once(
                *(
                    (one, {"do": "decide", "approval": approval, "raw": {"kind": "approve"}, "who": who})
                    for one, who in zip(crowd, ("marta", "pedro") * 4, strict=True)
                )
            )
            first = [answer for answer in answers if answer.get("first")]
            again = [answer for answer in answers if answer.get("first") is False]
            late = [answer for answer in answers if answer.get("error") == "already_decided"]
            assert (len(first), len(again), len(late)) == (1, 3, 4)
            assert {answer["decided_by"] for answer in again} == {first[0]["decided_by"]}
            decided += 1
        assert all("error" not in answer for answer in await at_once(*((one, dict(work)) for one in crowd)))
        await finished(slot, played)
        assert len(played.world.arrivals("pay")) == 8
    assert decided == 8 * ROUNDS


@pytest.mark.timeout(300)
async def test_t3_cancel_against_approve(slot: Slot) -> None:
    """One cancels while another approves and a third works: paid once and told so, or not paid at all."""
    one, other, worker = await slot.more(3)
    seen = set()
    for _ in range(ROUNDS):
        played = await begin(slot, Case(Story("cancel", ASKED.first, effects=frozenset({0, 1}), ends=ENDS)))
        await entered(played, one, other, worker, await slot.rescuer())
        await worker.call(do="work", thread=str(played.thread_id))
        [approval] = await pending(slot, played)
        cancelled, approved, _ = await at_once(
            (one, {"do": "cancel", "turn": str(played.turn_id)}),
            (other, {"do": "decide", "approval": approval, "raw": {"kind": "approve"}}),
            (worker, {"do": "work", "thread": str(played.thread_id)}),
            apart=0.02,
        )
        assert cancelled["status"] == "cancelled"
        assert approved.get("status") == "approved" or approved["error"] == "already_decided"
        await finished(slot, played)
        seen.add(approved.get("status") or approved["error"])
    assert ROUNDS < 25 or seen == {"approved", "already_decided"}


ENDS = frozenset({"completed", "cancelled"})


@pytest.mark.timeout(300)
async def test_t3_cancel_against_dispatch(slot: Slot) -> None:
    """One cancels while the call leaves: it left and is reconciled, or it never leaves; never both, never neither."""
    one, worker = await slot.more(2)
    paid = []
    for round_ in range(2 * ROUNDS):
        played = await begin(slot, Case(Story("cancel", ASKED.first, effects=frozenset({0, 1}), ends=ENDS)))
        await entered(played, one, worker, await slot.rescuer())
        work = {"do": "work", "thread": str(played.thread_id)}
        await worker.call(**work)
        [approval] = await pending(slot, played)
        await worker.call(do="decide", approval=approval, raw={"kind": "approve"})
        start = time.monotonic() + SOON
        await asyncio.gather(
            worker.call(**work, at=start), one.call(do="cancel", turn=str(played.turn_id), at=start + round_ / 1000)
        )
        await finished(slot, played)
        paid.append(played.happened)
        [item] = await player(slot, played).rows(
            "select status, result -> 'ok' as ok from placet.plan_items where turn_id = %(turn)s"
        )
        assert item == (
            {"status": "completed", "ok": True} if played.happened else {"status": "cancelled", "ok": False}
        )
    assert ROUNDS < 25 or set(paid) == {0, 1}


@pytest.mark.timeout(300)
async def test_o1_two_workers_on_one_thread(slot: Slot) -> None:
    """Whoever claims first has it; the other finds nothing to do, or what is due next. Nothing happens twice."""
    workers = await slot.more(2)
    for _ in range(ROUNDS):
        played = await begin(slot, Case(ASKED))
        await entered(played, *workers, await slot.rescuer())
        work = {"do": "work", "thread": str(played.thread_id)}
        assert sorted(answer["runs"] for answer in await at_once(*((one, dict(work)) for one in workers))) == [0, 1]
        await finished(slot, played)
        assert len(played.world.arrivals("pay")) == 1


@pytest.mark.timeout(300)
async def test_g3_siblings_decided_while_the_first_executes(slot: Slot) -> None:
    """Two questions of one step, two people, and a worker all at once: each answer hits its own call, each call runs once."""
    one, other, worker = await slot.more(3)
    both = Story("both", [[("pay", KINDS["pay"].ask), ("mail", KINDS["mail"].ask)]], effects=frozenset({0, 1, 2}))
    for _ in range(ROUNDS):
        played = await begin(slot, Case(both))
        await entered(played, one, other, worker, await slot.rescuer())
        await worker.call(do="work", thread=str(played.thread_id))
        pay, mail = await pending(slot, played)
        await at_once(
            (one, {"do": "decide", "approval": pay, "raw": {"kind": "approve"}}),
            (other, {"do": "decide", "approval": mail, "raw": {"kind": "reject", "reason": "no"}, "who": "pedro"}),
            (worker, {"do": "work", "thread": str(played.thread_id)}),
            apart=0.03,
        )
        await finished(slot, played)
        assert (len(played.world.arrivals("pay")), len(played.world.arrivals("mail"))) == (1, 0)


async def test_e3_a_sibling_that_breaks_does_not_cut_a_call_from_its_receipt(database: Database, world: World) -> None:
    """The database is away for one call while the other has paid and waits for the answer: the thread is kept until its
    receipt is written, and the next run has nothing to look up."""
    started, gate, broken = asyncio.Event(), asyncio.Event(), asyncio.Event()
    world.next("label", happens_after(gate, started))
    house = await outside_house(database, world, calls(("label", {"name": "new"}), ("look", {"what": "x"})), "Done.")
    turn = await house.ask()

    async def break_when_the_call_is_out() -> None:
        await started.wait()
        broken.set()
        raise psycopg.OperationalError("away")

    crashpoints.arm("read_started:begin", break_when_the_call_is_out)
    owned = await house.worker.claim(turn.thread_id)
    assert owned is not None
    driving = asyncio.create_task(house.worker._drive(owned))
    await broken.wait()
    assert (await house.effects(turn))[0].status == "dispatched"
    gate.set()
    await driving
    assert (await house.effects(turn))[0].status == "committed"

    await house.rows("update threads set lease_until = clock() - interval '1 second' returning thread_id")
    ended = await house.go_on(turn)
    assert ended.status == "completed"
    assert len(world.arrivals("label")) == 1
    assert "effect_unknown" not in await house.told(turn)
