"""Taking back what was done: an effect of its own, once, with a receipt (E9)."""

import asyncio
import json
from typing import Any

import pytest

from graph.undoing import NotReversible, UndoUnanswered, undo
from placet.record import by_hand, crashpoints, people
from placet.record.database import Database
from placet.record.effects import Effect
from placet.record.errors import NotAllowed, Tampered
from placet.record.people import User
from tests.conftest import Clock
from tests.crash.world import TakenOff
from tests.outside import Look, Mail, Pay, World, happens_then, raises
from tests.scripted import calls
from tests.steps import TENANT, House, outside_house, together
from tools import contract
from tools.contract import Refused

LABEL = ("label", {"name": "blue"})
PAY = ("pay", {"to": "bo", "minor": 30})
OFF = "label taken off"


async def done(database: Database, world: World, *said: Any) -> tuple[House, Any, Effect]:
    """A turn that put a label on, with a tool that can take it off."""
    house = await outside_house(database, world, *(said or (calls(LABEL), "Labelled.")))
    house = house.elsewhere(tools=[Look(world), TakenOff(world), Pay(world), Mail(world)])
    turn = await house.run()
    [effect] = await house.effects(turn)
    return house, turn, effect


async def both(house: House, turn: Any) -> tuple[Effect, Effect]:
    """The effect and its undo."""
    effects = {effect.undoes is None: effect for effect in await house.effects(turn)}
    return effects[True], effects[False]


async def somebody(house: House, name: str, *roles: Any) -> User:
    async with house.database.transaction() as tx:
        await people.ensure(tx, TENANT, name, name=name.title(), roles=[*roles], duties=[])
        return await people.get(tx, TENANT, name)


async def test_e9_what_was_done_is_taken_back_with_a_receipt(database: Database, world: World) -> None:
    """An effect of its own under an id of its own; what it takes back stays as it happened, and both are told."""
    house, turn, effect = await done(database, world)
    taken = await undo(house.services, effect, house.ana)

    before, after = await both(house, turn)
    assert (before.status, after.status, after.undoes) == ("committed", "committed", before.operation_id)
    assert taken.operation_id == after.operation_id != before.operation_id
    assert after.receipt is not None
    assert after.receipt["external_id"] == f"{OFF}:{after.operation_id}"
    assert [line["tool"] for line in world.done()] == ["label", OFF]
    events = await house.events(turn)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.payload.get("undoes") for event in events][-2:] == [str(before.operation_id)] * 2
    [line] = await house.rows("select actor from audit where action = 'undoes'")
    assert line["actor"] == "ana"
    [line] = await house.rows(
        "select body from audit where subject = %(of)s and action = 'committed'", of=f"effect:{taken.operation_id}"
    )
    assert json.loads(line["body"])["undoes"] == str(before.operation_id)


async def test_e9_taken_back_once_however_often_it_is_commanded(database: Database, world: World) -> None:
    """The second time answers with the first one's receipt; so do ten at the same instant, by two people."""
    house, _, effect = await done(database, world)
    otto = await somebody(house, "otto", "operator")
    answers = await together(*(undo(house.services, effect, who) for who in (house.ana, otto) * 5))
    again = await undo(house.elsewhere().services, effect, otto)

    assert {answer.operation_id for answer in answers if isinstance(answer, Effect)} == {again.operation_id}
    assert all(isinstance(answer, Effect) for answer in answers)
    assert len(world.done(OFF)) == 1
    assert len({line["key"] for line in world.arrivals(OFF)}) == 1
    assert len(await house.rows("select 1 from effects where undoes is not null")) == 1
    assert len(await house.rows("select 1 from events where type = 'tool_completed'")) == 2


@pytest.mark.parametrize(
    "point",
    ["undo_dispatch:commit", "undo_dispatch:committed", "undo:before", "undo:after", "undo_receipt:commit"],
)
async def test_e9_killed_between_the_undo_and_its_receipt(database: Database, world: World, point: str) -> None:
    """Whoever commands it again sends the same operation id: it is taken off once, and the receipt is there."""
    house, turn, effect = await done(database, world)
    crashpoints.arm(point, "die")
    with pytest.raises(crashpoints.Died):
        await undo(house.services, effect, house.ana)
    taken = await undo(house.elsewhere().services, effect, house.ana)

    assert taken.status == "committed"
    assert len(world.done(OFF)) == 1
    assert {line["key"] for line in world.arrivals(OFF)} == {str(taken.operation_id)}
    assert (await both(house, turn))[1].receipt == taken.receipt


@pytest.mark.parametrize("sent", [happens_then(ConnectionError("reset")), raises(TimeoutError())])
async def test_e9_an_undo_without_an_answer_is_commanded_again(database: Database, world: World, sent: Any) -> None:
    """Sent and not answered: said so, never told as done or failed; again, it goes out under the same id."""
    house, turn, effect = await done(database, world)
    world.next(OFF, sent)
    with pytest.raises(UndoUnanswered, match="Command it again"):
        await undo(house.services, effect, house.ana)
    assert (await both(house, turn))[1].status == "unknown"
    assert (await house.turn(turn.turn_id)).status == "completed"  # no turn waits for it
    assert (await undo(house.services, effect, house.ana)).status == "committed"
    assert len(world.done(OFF)) == 1
    assert len({line["key"] for line in world.arrivals(OFF)}) == 1


async def test_e9_an_undo_that_is_refused_stays_refused(database: Database, world: World) -> None:
    """The system says no: kept with its reason, and the label is still on."""
    house, turn, effect = await done(database, world)
    world.next(OFF, raises(Refused("It is glued.", code="glued")))
    refused = await undo(house.services, effect, house.ana)
    assert refused.error is not None
    assert (refused.status, refused.error["code"], refused.receipt) == ("refused", "glued", None)
    assert (await undo(house.services, effect, house.ana)).status == "refused"
    assert len(world.arrivals(OFF)) == 1
    assert (await both(house, turn))[0].status == "committed"


async def test_e9_only_what_is_reversible_and_has_happened(database: Database, world: World) -> None:
    """Money does not come back; an undo is not undone; what is unknown is not taken back."""
    world.silent = True
    house, turn, paid = await done(database, world, calls(PAY), "Paid.", calls(LABEL), "Labelled.")
    with pytest.raises(NotReversible):
        await undo(house.services, paid, house.ana)

    world.next("label", happens_then(ConnectionError("reset")))
    unknown = await house.run("Label it.", thread_id=turn.thread_id)
    assert unknown.status == "awaiting_reconciliation"
    [effect] = await house.effects(unknown)
    with pytest.raises(NotReversible, match="unknown"):
        await undo(house.services, effect, house.ana)
    assert world.arrivals(OFF) == []


async def test_e9_an_undo_is_not_undone(database: Database, world: World) -> None:
    """Taken back is taken back; to have it again it is asked for again."""
    house, _, effect = await done(database, world)
    taken = await undo(house.services, effect, house.ana)
    with pytest.raises(NotReversible):
        await undo(house.services, taken, house.ana)


async def test_a5_who_may_take_back(database: Database, world: World) -> None:
    """The one who asked for it, and an operator."""
    house, _, effect = await done(database, world)
    stranger = await somebody(house, "nora", "requester")
    for nobody in (stranger, house.marta):
        with pytest.raises(NotAllowed):
            await undo(house.services, effect, nobody)
    assert world.arrivals(OFF) == []
    assert (await undo(house.services, effect, await somebody(house, "otto", "operator"))).status == "committed"


async def test_v6_a_changed_effect_is_not_taken_back(database: Database, owner: Database, world: World) -> None:
    """Somebody rewrites what was done: its undo is refused before anything is sent."""
    house, turn, _ = await done(database, world)
    async with owner.transaction() as tx:
        await tx.execute("alter table placet.effects disable trigger user")
        await tx.execute(
            """
            update placet.effects
               set arguments = convert_to('{"name":"red"}', 'UTF8'), arguments_hash = sha256(convert_to('{"name":"red"}', 'UTF8'))
            """
        )
    [effect] = await house.effects(turn)
    with pytest.raises(Tampered):
        await undo(house.services, effect, house.ana)
    assert world.arrivals(OFF) == []


async def test_e9_taken_back_while_the_turn_still_waits(database: Database, world: World) -> None:
    """The automatic call is undone while its sibling waits for people: that one is decided and runs as if nothing was."""
    house, turn, effect = await done(database, world, calls(LABEL, ("pay", {"to": "bo", "minor": 700})), "Paid.")
    assert turn.status == "awaiting_approval"
    assert (await undo(house.services, effect, house.ana)).status == "committed"
    await house.approve((await house.pending(turn))[0])
    ended = await house.go_on(turn)
    assert ended.status == "completed"
    assert [line["tool"] for line in world.done()] == ["label", OFF, "pay"]


async def test_e9_taken_back_once_by_two_processes(database: Database, world: World) -> None:
    """Another process commands it while the first waits for the answer: one label comes off."""
    house, _, effect = await done(database, world)
    started, gate = asyncio.Event(), asyncio.Event()

    async def slowly(world: World, tool: str, args: Any, operation_id: str) -> Any:
        started.set()
        await gate.wait()
        return world.do(tool, args, operation_id)

    world.next(OFF, slowly)
    first = asyncio.create_task(undo(house.services, effect, house.ana))
    await started.wait()
    second = await undo(house.elsewhere().services, effect, house.ana)
    gate.set()
    assert (await first).receipt == second.receipt
    assert len(world.done(OFF)) == 1


class Forgetful(TakenOff):
    """Put a label on the shelf."""

    idempotency_window = None


class Renamed(TakenOff):
    """Put a label on the shelf."""

    class Arguments(contract.Arguments):  # type: ignore[assignment]
        text: str


@pytest.mark.parametrize("late", [True, False], ids=["past-its-window", "no-window-at-all"])
async def test_e8_an_undo_that_would_not_be_recognised_is_not_sent_again(
    database: Database, world: World, clock: Clock, late: bool
) -> None:
    """Sent, and no answer: where the tool would take it for another one, people say what became of it, once and for all."""
    house, turn, effect = await done(database, world)
    if late:
        world.next(OFF, happens_then(ConnectionError("reset")))
        with pytest.raises(UndoUnanswered):
            await undo(house.services, effect, house.ana)
        await clock.advance(25 * 3600)
    else:
        house = house.elsewhere(tools=[Look(world), Forgetful(world), Pay(world), Mail(world)])
        world.next(OFF, happens_then(ConnectionError("reset")))
        with pytest.raises(UndoUnanswered, match="placet effects resolve"):
            await undo(house.services, effect, house.ana)
    with pytest.raises(UndoUnanswered, match="placet effects resolve"):
        await undo(house.services, effect, house.ana)
    assert len(world.arrivals(OFF)) == 1

    otto, unknown = await somebody(house, "otto", "operator"), (await both(house, turn))[1]
    async with database.transaction() as tx:
        await by_hand.resolve(tx, otto, unknown, to="committed", reason="It is off.", external_id="seen")
    assert (await undo(house.services, effect, house.ana)).status == "committed"
    assert len(world.arrivals(OFF)) == 1
    assert await house.rows("select 1 from runs where status <> 'ended'") == []


async def test_e6_an_undo_that_never_happened_is_sent_again(database: Database, world: World) -> None:
    """An operator found out that it did not happen: commanded again, the same operation goes out, and happens."""
    house, turn, effect = await done(database, world)
    house = house.elsewhere(tools=[Look(world), Forgetful(world), Pay(world), Mail(world)])
    world.next(OFF, raises(ConnectionError("reset")))
    with pytest.raises(UndoUnanswered):
        await undo(house.services, effect, house.ana)
    unknown = (await both(house, turn))[1]
    async with database.transaction() as tx:
        otto = await people.get(tx, TENANT, (await somebody(house, "otto", "operator")).user_id)
        await by_hand.resolve(tx, otto, unknown, to="absent", reason="It is still on.")
    taken = await undo(house.services, effect, house.ana)
    assert (taken.status, taken.attempts, taken.operation_id) == ("committed", 2, unknown.operation_id)
    assert len(world.done(OFF)) == 1


async def test_e9_a_tool_that_no_longer_understands_what_it_did(database: Database, world: World) -> None:
    """It takes other arguments since a deploy: refused before anything is written down or sent."""
    house, _, effect = await done(database, world)
    house.services.registry._tools["label"] = Renamed(world)
    with pytest.raises(NotReversible, match="takes something else"):
        await undo(house.services, effect, house.ana)
    assert len(await house.rows("select 1 from effects where undoes is not null")) == 0
