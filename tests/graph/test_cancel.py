"""Cancelling: from any status, from another process, for good (T3)."""

import asyncio
from typing import Any

import pytest

from graph import advance as advancing
from placet.record import runs
from placet.record.database import Database
from placet.record.decisions import AlreadyDecided
from placet.record.errors import NotAllowed
from placet.record.turns import TurnEnded
from tests.outside import World, happens_after, happens_then
from tests.scripted import Scripted, calls
from tests.steps import TENANT, House, outside_house

PAY = ("pay", {"to": "bo", "minor": 700})


async def ended(house: House, turn: Any) -> list[str]:
    """The turn is cancelled for good, nothing waits, every call has its result; their statuses."""
    turn = await house.turn(turn.turn_id)
    items = await house.items(turn)
    assert turn.status == "cancelled"
    assert await house.pending(turn) == []
    assert all(item.result is not None for item in items)
    assert await house.rows("select 1 from runs where status <> 'ended'") == []
    assert await house.rows("select 1 from threads where owner is not null") == []
    return [item.status for item in items]


async def test_t3_a_cancelled_pause_refuses_a_later_approval(database: Database, world: World) -> None:
    """Cancelled while it waits: the approval is closed, a late yes gets 409 with what happened, nothing runs."""
    house = await outside_house(database, world, calls(PAY, ("look", {"what": "x"})))
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.cancel(turn)
    with pytest.raises(AlreadyDecided) as late:
        await house.approve(asked)

    assert late.value.status == 409
    assert late.value.details["outcome"]["status"] == "cancelled"
    await house.elsewhere().go_on(turn)
    assert await ended(house, turn) == ["cancelled", "completed"]
    assert world.arrivals("pay") == []
    assert house.model.asked == 1
    told = await house.told(turn)
    assert told[-2:] == ["approval_closed", "turn_cancelled"]


async def test_t3_cancelled_between_decision_and_execution(database: Database, world: World) -> None:
    """Approved, then cancelled before any worker came: it is not executed, also not by the run that was due."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.approve(asked)
    await house.cancel(turn)
    await house.go_on(turn)

    assert await ended(house, turn) == ["cancelled"]
    assert (await house.approval(asked.approval_id)).status == "cancelled"
    assert world.arrivals() == []


async def test_t3_cancelled_at_the_last_moment_before_the_call_leaves(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks have passed, the effect row is about to be written: the cancellation that comes first wins."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.approve(asked)

    house.before_dispatch(monkeypatch, lambda: house.cancel(turn))
    await house.go_on(turn)
    monkeypatch.undo()
    await house.go_on(turn)

    assert await ended(house, turn) == ["cancelled"]
    assert await house.effects(turn) == []
    assert world.arrivals() == []


@pytest.mark.parametrize(
    "call", [PAY, ("label", {"name": "blue"}), ("look", {"what": "x"})], ids=["ask", "auto", "read"]
)
async def test_t3_cancelled_while_the_model_thinks(database: Database, world: World, call: Any) -> None:
    """The model's answer comes after the cancellation: it is recorded, nobody is asked, nothing runs."""

    def cancel_first(messages: Any) -> Any:
        return calls(call)

    house = await outside_house(database, world, model=Scripted(cancel_first))
    turn = await house.ask()
    thinking, may_answer = asyncio.Event(), asyncio.Event()
    model = house.model
    answers = model._agenerate

    async def slowly(*args: Any, **kwargs: Any) -> Any:
        thinking.set()
        await may_answer.wait()
        return await answers(*args, **kwargs)

    object.__setattr__(model, "_agenerate", slowly)
    work = asyncio.create_task(house.worker.run_until_idle())
    await thinking.wait()
    await house.cancel(turn)
    may_answer.set()
    await work
    await house.go_on(turn)

    assert await ended(house, turn) == ["cancelled"]
    assert world.arrivals() == []
    assert "approval_requested" not in await house.told(turn)
    assert model.asked == 1


async def test_t3_cancelled_while_executing_the_effect_is_reconciled(database: Database, world: World) -> None:
    """The call is out when the turn is cancelled: its receipt is stored, the model is not asked again."""
    started, gate = asyncio.Event(), asyncio.Event()
    world.next("pay", happens_after(gate, started))
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    work = asyncio.create_task(house.worker.run_until_idle())
    await started.wait()
    await house.cancel(turn)
    gate.set()
    await work

    assert await ended(house, turn) == ["completed"]
    [effect] = await house.effects(turn)
    assert effect.status == "committed"
    assert house.model.asked == 1


@pytest.mark.parametrize(
    ("happened", "silent", "item", "effect"),
    [
        (True, False, "completed", "committed"),
        (False, False, "cancelled", "absent"),
        (True, True, "failed", "unknown"),
    ],
    ids=["it-happened", "it-did-not", "nobody-knows"],
)
async def test_t3_a_closing_run_reconciles_what_was_dispatched(
    database: Database, world: World, happened: bool, silent: bool, item: str, effect: str
) -> None:
    """The worker died with the call out, then the turn was cancelled: the closing run looks, and sends nothing."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    await house.die_at("call:after" if happened else "dispatch:committed", turn)
    await house.cancel(turn)
    world.silent = silent
    await house.elsewhere().go_on(turn)

    assert await ended(house, turn) == [item]
    assert [e.status for e in await house.effects(turn)] == [effect]
    assert len(world.arrivals()) == (1 if happened else 0)
    assert house.model.asked == 1
    [row] = await house.items(turn)
    assert row.result is not None
    if silent:
        assert row.result["unknown"] is True


async def test_t3_cancelled_with_an_unknown_effect_that_waits_for_people(database: Database, world: World) -> None:
    """The effect stays a task for people; the call gets the one result "unknown, do not repeat"."""
    world.silent = True
    world.next("pay", happens_then(ConnectionError("reset")))
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    assert (await house.go_on(turn)).status == "awaiting_reconciliation"
    await house.cancel(turn)
    await house.go_on(turn)

    assert await ended(house, turn) == ["failed"]
    [item] = await house.items(turn)
    assert item.result is not None
    assert item.result["error"]["code"] == "unknown_do_not_repeat"
    assert [effect.status for effect in await house.effects(turn)] == ["unknown"]


async def test_t3_the_closing_run_comes_before_the_next_turn(database: Database, world: World) -> None:
    """A message was queued behind a turn whose effect is unknown. When that is cancelled, its closing run goes first, and
    the next turn's model is told "unknown", never "it did not happen"."""
    world.next("pay", happens_then(ConnectionError("reset")))
    world.silent = True
    house = await outside_house(database, world, calls(PAY), "Second.")
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    async with database.transaction() as tx:
        await tx.execute("update turns set status = 'running'")
        later = await _queue(house, tx, turn)
        await tx.execute(
            "update turns set status = 'awaiting_approval' where turn_id = %(turn)s", {"turn": turn.turn_id}
        )
    await house.go_on(turn)
    await house.cancel(turn)
    await house.worker.run_until_idle()

    assert (await house.turn(later.turn_id)).output_text == "Second."
    assert house.model.results()[0]["unknown"] is True
    assert await ended(house, turn) == ["failed"]


async def _queue(house: House, tx: Any, turn: Any) -> Any:
    from placet.record import turns  # noqa: PLC0415

    return await turns.create(tx, house.ana, "Two.", max_steps=12, max_chars=1000, thread_id=turn.thread_id)


async def test_t3_cancelled_before_anybody_claimed_it(database: Database, world: World) -> None:
    """A created turn is cancelled: the model is never asked, and the thread is free for the next message."""
    house = await outside_house(database, world, "Hello.")
    turn = await house.ask()
    await house.cancel(turn)
    await house.go_on(turn)
    assert await ended(house, turn) == []
    assert house.model.asked == 0
    assert (await house.run("Again.", thread_id=turn.thread_id)).output_text == "Hello."


async def test_t3_an_approval_whose_effect_is_absent_is_cancelled_too(database: Database, world: World) -> None:
    """Nothing was sent, and the turn is cancelled before it is sent again: call and approval both end as cancelled."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.approve(asked)
    await house.die_at("dispatch:committed", turn)
    await house.rows("update effects set status = 'absent' returning operation_id")
    await house.cancel(turn)
    await house.go_on(turn)

    assert await ended(house, turn) == ["cancelled"]
    assert (await house.approval(asked.approval_id)).status == "cancelled"
    assert world.arrivals() == []


async def test_t3_who_may_cancel_and_how_often(database: Database, world: World) -> None:
    """Somebody else without the role operator may not; a second time is told that it is over."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    with pytest.raises(NotAllowed):
        await house.cancel(turn, house.marta)
    assert (await house.turn(turn.turn_id)).status == "awaiting_approval"
    await house.cancel(turn)
    with pytest.raises(TurnEnded):
        await house.cancel(turn)


async def test_t3_a_cancelled_turn_never_runs_again(database: Database, world: World) -> None:
    """Whatever makes a run of it due finds it ended: no model, no call, no event."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    await house.cancel(turn)
    await house.go_on(turn)
    before = await house.told(turn)
    async with database.transaction() as tx:
        await runs.make_due(tx, TENANT, turn.thread_id, turn.turn_id, because="mistake")
    await house.go_on(turn)
    assert await house.told(turn) == before
    assert house.model.asked == 1
    assert world.arrivals() == []


async def test_e6_a_closing_run_that_breaks_leaves_a_task_for_people(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it could not look up is unknown, not dispatched for ever: an operator can say what became of it."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    await house.die_at("call:after", turn)
    await house.cancel(turn)
    monkeypatch.setattr(advancing, "bring_up_to_date", None)
    await house.go_on(turn)
    assert [effect.status for effect in await house.effects(turn)] == ["unknown"]
    assert "effect_unknown" in await house.told(turn)
