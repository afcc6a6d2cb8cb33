"""What became of a call that was sent and did not answer: looked up, never guessed (E4–E6)."""

from datetime import timedelta
from typing import Any

import pytest

from placet.record import runs
from placet.record.database import Database
from tests.conftest import Clock
from tests.outside import RULES, Label, Look, Mail, Pay, World, happens_then
from tests.scripted import calls
from tests.steps import TENANT, House, outside_house
from tools.contract import Observed

PAY = ("pay", {"to": "bo", "minor": 700})


async def approved(house: House) -> Any:
    turn = await house.run()
    for asked in await house.pending(turn):
        await house.approve(asked)
    return turn


async def look_again(house: House, turn: Any) -> Any:
    async with house.database.transaction() as tx:
        await runs.make_due(tx, TENANT, turn.thread_id, turn.turn_id, because="look again")
    return await house.go_on(turn)


@pytest.mark.parametrize("point", ["dispatch:committed", "call:after", "observe:after"])
async def test_e5_a_worker_dies_and_the_effect_is_looked_up(database: Database, world: World, point: str) -> None:
    """It dies with the row written, with the call made, or after having looked: one effect, found by the next worker."""
    if point == "observe:after":
        world.next("pay", happens_then(ConnectionError("reset")))
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await approved(house)
    await house.die_at(point, turn)
    assert (await house.elsewhere().go_on(turn)).status == "completed"

    assert len(world.done()) == 1
    assert len(world.arrivals()) == 1
    [effect] = await house.effects(turn)
    assert effect.status == "committed"
    assert effect.receipt is not None
    assert effect.receipt["external_id"] == f"pay:{effect.operation_id}"


async def test_a7_the_world_moved_while_no_worker_was_there(database: Database, world: World) -> None:
    """A worker dies after the last check and before the call leaves: the next one, hours later, checks again first."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await approved(house)
    await house.die_at("dispatch:begin", turn)
    world.facts["open"] = 41
    assert (await house.elsewhere().go_on(turn)).status == "awaiting_approval"
    assert world.arrivals() == []
    [again] = await house.pending(turn)
    assert again.difference is not None
    assert again.difference["changed"] == {"open": {"shown": 38, "now": 41}}


async def test_e5_confirmed_absent_is_checked_again_before_it_is_sent_again(database: Database, world: World) -> None:
    """It never arrived; meanwhile the world moved: not sent again before people have said so, then under the same key."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await approved(house)
    await house.die_at("dispatch:committed", turn)
    world.facts["open"] = 41
    assert (await house.elsewhere().go_on(turn)).status == "awaiting_approval"
    [effect] = await house.effects(turn)
    assert effect.status == "absent"
    assert world.arrivals() == []

    [again] = await house.pending(turn)
    assert again.ask == 1
    await house.approve(again)
    assert (await house.go_on(turn)).status == "completed"
    [sent] = await house.effects(turn)
    assert (sent.operation_id, sent.status, sent.attempts) == (effect.operation_id, "committed", 2)
    assert sent.approval_id == again.approval_id
    assert [line["key"] for line in world.arrivals()] == [str(effect.operation_id)]


async def test_e5_absent_past_the_window_has_failed(database: Database, world: World, clock: Clock) -> None:
    """It never arrived, and nobody looked for more than a day: the key may be forgotten, so it is not sent again."""
    house = await outside_house(database, world, calls(PAY), "Too late.", approval_ttl=timedelta(hours=40))
    turn = await approved(house)
    await house.die_at("dispatch:committed", turn)
    await clock.advance(25 * 3600)
    assert (await house.elsewhere().go_on(turn)).status == "completed"
    assert world.arrivals() == []
    [item] = await house.items(turn)
    assert item.result is not None
    assert (item.status, item.result["error"]["code"]) == ("failed", "window_closed")


async def test_e5_an_edit_back_is_the_operation_that_it_was(database: Database, world: World, clock: Clock) -> None:
    """700, edited to 750, edited back a day later: the key of the 700 is as old as its first dispatch, and not sent again."""
    house = await outside_house(database, world, calls(PAY), "Too late.", approval_ttl=timedelta(hours=40))
    turn = await approved(house)
    for minor, later in ((750, 25), (700, 0)):
        await house.die_at("dispatch:committed", turn)
        world.facts["open"] += 1  # so that the call is asked again, once it is known that nothing happened
        await house.go_on(turn)
        await clock.advance(later * 3600)
        [asked] = await house.pending(turn)
        edited = await house.edit(asked, {"to": "bo", "minor": minor})
        await house.decide(asked, edited)
    assert (await house.go_on(turn)).status == "completed"
    assert world.arrivals() == []
    [item] = await house.items(turn)
    assert item.result is not None
    assert item.result["error"]["code"] == "window_closed"


async def test_e5_a_tool_without_a_window_is_never_sent_again(database: Database, world: World) -> None:
    """Confirmed absent, but the tool recognises no key: failed and said so, rather than sent on a guess."""

    class Forgetful(Label):
        name = "label"
        idempotency_window = None

    house = await outside_house(database, world, calls(("label", {"name": "blue"})), "Not done.")
    house = house.elsewhere(tools=[Look(world), Forgetful(world), Pay(world), Mail(world)])
    turn = await house.ask()
    await house.die_at("dispatch:committed", turn)
    assert (await house.go_on(turn)).status == "completed"
    assert world.arrivals() == []
    assert [item.status for item in await house.items(turn)] == ["failed"]


async def test_e6_what_stays_unknown_stops_there(database: Database, world: World) -> None:
    """Nobody can say: the call has no result, the turn waits for people with the evidence, nothing goes out again."""
    world.silent = True
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await approved(house)
    await house.die_at("call:after", turn)
    waiting = await house.elsewhere().go_on(turn)

    assert waiting.status == "awaiting_reconciliation"
    [item] = await house.items(turn)
    assert (item.status, item.result) == ("unknown", None)
    [effect] = await house.effects(turn)
    assert effect.evidence[-1]["said"] == "unknown: nobody answered"
    graph, config = await house.graph(turn)
    [shown] = (await graph.aget_state(config)).interrupts
    assert shown.value["type"] == "reconciliation"
    assert shown.value["operation_id"] == str(effect.operation_id)
    await house.worker.sweep()
    assert await house.worker.claim() is None  # it does not run in circles

    assert (await look_again(house, turn)).status == "awaiting_reconciliation"
    world.silent = False
    assert (await look_again(house, turn)).status == "completed"
    assert len(world.arrivals()) == 1


async def test_e6_an_unobservable_tool_that_lost_its_answer_waits_for_people(database: Database, world: World) -> None:
    """A letter was handed over and the connection broke: nobody can ask, so nobody guesses."""
    world.next("mail", happens_then(ConnectionError("reset")))
    house = await outside_house(database, world, calls(("mail", {"to": ["a@house.example"]})))
    turn = await house.run()
    assert turn.status == "awaiting_reconciliation"
    [effect] = await house.effects(turn)
    assert effect.status == "unknown"
    assert "cannot be observed" in effect.evidence[-1]["said"]
    assert len(world.arrivals()) == 1


async def test_t1_an_unknown_effect_stands_before_a_pending_approval(database: Database, world: World) -> None:
    """One call is unknown, its sibling waits: the turn says the first; the sibling can be decided and executes."""
    world.silent = True
    world.next("label", happens_then(ConnectionError("reset")))
    house = await outside_house(database, world, calls(("label", {"name": "blue"}), PAY), "Done.")
    turn = await house.run()
    assert turn.status == "awaiting_reconciliation"
    [asked] = await house.pending(turn)
    await house.approve(asked)
    assert (await house.go_on(turn)).status == "awaiting_reconciliation"
    assert [item.status for item in await house.items(turn)] == ["unknown", "completed"]
    assert len(world.arrivals("pay")) == 1


@pytest.mark.parametrize(
    "seen",
    [
        Observed(status="unknown", evidence="words with \x00 and \ud800"),
        ConnectionError("the observer broke \x00"),
        KeyError("\ud800"),
        "committed",
        None,
        Observed(status="committed", receipt=None, evidence="no receipt"),
    ],
    ids=["odd-words", "raises", "odd-error", "text", "nothing", "without-receipt"],
)
async def test_e5_whatever_an_observer_says_is_evidence(
    database: Database, world: World, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An observer that raises, or answers nonsense, says nothing about the effect; one that says committed is believed."""

    async def observe(self: Pay, args: Any, operation_id: str) -> Any:
        if isinstance(seen, Exception):
            raise seen
        return seen

    monkeypatch.setattr(Pay, "observe", observe)
    world.next("pay", happens_then(ConnectionError("reset")))
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.go_on(await approved(house))
    [effect] = await house.effects(turn)
    if isinstance(seen, Observed) and seen.status == "committed":
        assert (turn.status, effect.status) == ("completed", "committed")
    else:
        assert (turn.status, effect.status) == ("awaiting_reconciliation", "unknown")
        assert effect.evidence
    assert len(world.arrivals()) == 1


async def test_e5_the_tool_is_gone_when_its_effect_is_looked_up(database: Database, world: World) -> None:
    """Deployed without the tool while its effect is open: unknown, with that as evidence, for people."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await approved(house)
    await house.die_at("call:after", turn)
    without = RULES[: RULES.index("[pay]")] + RULES[RULES.index("[mail]") :]
    deployed = house.elsewhere(tools=[Look(world), Label(world), Mail(world)], rules=without)
    waiting = await deployed.go_on(turn)
    assert waiting.status == "awaiting_reconciliation"
    [effect] = await house.effects(turn)
    assert effect.status == "unknown"
    assert "no tool" in effect.evidence[-1]["said"]
    assert (await look_again(deployed, turn)).status == "awaiting_reconciliation"
    assert (await look_again(house, turn)).status == "completed"  # the tool is back
    assert len(world.arrivals()) == 1


async def test_v6_an_effect_row_that_was_changed_is_not_believed(
    database: Database, owner: Database, world: World
) -> None:
    """Somebody rewrites what was sent; looking it up refuses the row, nothing is sent and nothing is told as done."""
    house = await outside_house(database, world, calls(PAY), "Hm.")
    turn = await approved(house)
    await house.die_at("call:after", turn)
    async with owner.transaction() as tx:
        await tx.execute("alter table placet.effects disable trigger user")
        await tx.execute(
            """
            with changed as (select convert_to(replace(convert_from(arguments, 'UTF8'), '700', '1'), 'UTF8') as arguments
                               from placet.effects)
            update placet.effects e set arguments = c.arguments, arguments_hash = sha256(c.arguments) from changed c
            """
        )
        await tx.execute("alter table placet.effects enable trigger user")
    await house.elsewhere().go_on(turn)
    [effect] = await house.effects(turn)
    assert effect.status == "unknown"
    assert (await house.items(turn))[0].result is None
    assert (await house.turn(turn.turn_id)).status == "awaiting_reconciliation"
    assert (await look_again(house, turn)).status == "awaiting_reconciliation"
    assert len(world.arrivals()) == 1
