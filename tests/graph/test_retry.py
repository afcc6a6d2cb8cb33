"""A failed turn is tried again by a person, from its next step: what has a result is not repeated (T2, E8)."""

import sys
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, ToolMessage

from graph import advance as advancing
from graph.models import ModelUnavailable
from placet.record import by_hand, crashpoints, people, runs, turns
from placet.record.database import Database
from placet.record.errors import Conflict, NotAllowed
from tests.outside import World, happens_then, raises
from tests.scripted import Said, calls
from tests.steps import TENANT, House, outside_house

LABEL = ("label", {"name": "blue"})
PAY = ("pay", {"to": "bo", "minor": 700})


async def retry(house: House, turn: Any, who: people.User | None = None) -> Any:
    async with house.database.transaction() as tx:
        return await turns.retry(tx, who or house.ana, turn.turn_id)


async def operator(house: House) -> people.User:
    async with house.database.transaction() as tx:
        await people.ensure(tx, TENANT, "otto", name="Otto", roles=["operator"], duties=[])
        return await people.get(tx, TENANT, "otto")


@pytest.mark.parametrize(
    ("error", "code"), [(ModelUnavailable("503"), "model_unavailable"), (RuntimeError("odd"), "internal_error")]
)
async def test_e8_the_model_failed_after_the_tool_ran(
    database: Database, world: World, error: Exception, code: str
) -> None:
    """Retried, the model is asked for the one answer that is missing; the tool is not called again."""
    house = await outside_house(database, world, calls(LABEL), error, "Labelled.")
    failed = await house.run()
    assert failed.error is not None
    assert (failed.status, failed.error["code"], failed.next_step) == ("failed", code, None)

    reopened = await retry(house, failed)
    assert (reopened.status, reopened.error, reopened.next_step) == ("created", None, "plan")
    ended = await house.elsewhere().go_on(failed)

    assert (ended.status, ended.output_text, ended.error) == ("completed", "Labelled.", None)
    assert house.model.asked == 3
    assert [result["ok"] for result in house.model.results()] == [True]
    assert len(world.arrivals()) == 1
    told = await house.told(failed)
    assert (told.count("turn_started"), told.count("turn_failed"), told.count("turn_completed")) == (1, 1, 1)
    assert told.index("turn_failed") < told.index("turn_resumed") < told.index("turn_completed")


async def test_t2_the_model_failed_before_it_ever_answered(database: Database, world: World) -> None:
    """The first answer is missing: retried twice, then it comes."""
    house = await outside_house(
        database, world, ModelUnavailable("503"), ModelUnavailable("503"), calls(LABEL), "Labelled."
    )
    turn = await house.run()
    for _ in range(2):
        assert turn.status == "failed"
        await retry(house, turn)
        turn = await house.go_on(turn)
    assert (turn.status, house.model.asked) == ("completed", 4)
    assert len(world.arrivals()) == 1


async def test_t2_an_approved_call_stays_done_when_the_turn_is_tried_again(database: Database, world: World) -> None:
    """Approved and paid, then the model fails: retried, nobody is asked again and nothing is paid again."""
    house = await outside_house(database, world, calls(PAY), ModelUnavailable("503"), "Paid.")
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    assert (await house.go_on(turn)).status == "failed"
    await retry(house, turn)
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1
    assert len(await house.rows("select 1 from approvals")) == 1


async def test_e8_a_call_that_broke_off_with_the_turn_is_proposed_anew(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn broke before its call ran: the call has the result that says so, and only a new proposal runs."""

    def say(messages: list[BaseMessage]) -> Said:
        done = [message for message in messages if isinstance(message, ToolMessage) and message.status == "success"]
        return "Labelled." if done else calls(LABEL)

    house = await outside_house(database, world, say)
    with monkeypatch.context() as broken:
        broken.setattr(sys.modules["graph.gate"], "assess", None)  # `graph.gate` is the node by now
        turn = await house.run()
    assert turn.status == "failed"
    assert [(item.status, item.result["error"]["code"]) for item in await house.items(turn) if item.result] == [
        ("failed", "turn_ended")
    ]
    await retry(house, turn)
    assert (await house.go_on(turn)).status == "completed"
    assert [item.status for item in await house.items(turn)] == ["failed", "completed"]
    assert len(world.arrivals()) == 1


async def test_t2_only_a_failed_turn_is_tried_again(database: Database, world: World) -> None:
    """Waiting, completed, cancelled: 409 with the status; a second retry of the same failure too."""
    house = await outside_house(database, world, calls(PAY), "Paid.", ModelUnavailable("503"), "Hello.")
    turn = await house.run()
    with pytest.raises(Conflict, match="awaiting_approval"):
        await retry(house, turn)
    await house.approve((await house.pending(turn))[0])
    await house.go_on(turn)
    with pytest.raises(Conflict, match="completed"):
        await retry(house, turn)
    failed = await house.run("Hello?", thread_id=turn.thread_id)
    await retry(house, failed)
    with pytest.raises(Conflict, match="created"):
        await retry(house, failed)
    assert (await house.go_on(failed)).status == "completed"
    assert len(await house.rows("select 1 from audit where action = 'retried'")) == 1


async def test_t2_who_may_try_again(database: Database, world: World) -> None:
    """The one who asked, and an operator; nobody else."""
    house = await outside_house(database, world, ModelUnavailable("503"), ModelUnavailable("503"), "Hello.")
    turn = await house.run()
    with pytest.raises(NotAllowed):
        await retry(house, turn, house.marta)
    await retry(house, turn)
    await house.go_on(turn)
    await retry(house, turn, await operator(house))
    assert (await house.go_on(turn)).status == "completed"


async def test_t4_a_retry_waits_for_the_turn_that_has_started(database: Database, world: World) -> None:
    """The thread went on with another turn, which waits for people: the retried one has its turn when that has ended."""
    house = await outside_house(database, world, ModelUnavailable("503"), calls(PAY), "Paid.", "Hello.")
    first = await house.run("Hello?")
    second = await house.run("Pay.", thread_id=first.thread_id)
    assert (first.status, second.status) == ("failed", "awaiting_approval")
    await retry(house, first)
    assert (await house.go_on(first)).status == "created"
    await house.approve((await house.pending(second))[0])
    assert (await house.go_on(second)).status == "completed"
    assert (await house.turn(first.turn_id)).output_text == "Hello."
    assert [str(message.content) for message in house.model.shown[-1] if message.type == "human"] == [
        "Hello?",
        "Pay.",
        "Hello?",
    ]
    assert house.model.shown[-1][-1].type == "human"


@pytest.mark.parametrize(
    "point", ["claim:committed", "start:commit", "start:committed", "model:after", "answer:commit"]
)
async def test_o3_killed_while_it_tries_again(database: Database, world: World, point: str) -> None:
    """The worker of the retry dies: the next one goes on with it, and still repeats nothing."""
    house = await outside_house(
        database, world, calls(LABEL), ModelUnavailable("503"), *["Labelled."] * (2 if point[0] in "ma" else 1)
    )
    turn = await house.run()
    await retry(house, turn)
    if point == "claim:committed":
        await house.worker.claim(turn.thread_id)
        await house.rows("update threads set lease_until = clock() - interval '1 second' returning thread_id")
    else:
        await house.die_at(point, turn)
    assert (await house.elsewhere().go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1


async def test_e6_a_letter_that_a_person_says_was_never_sent_is_sent_again(database: Database, world: World) -> None:
    """Nobody can ask the post; an operator found out that it never left: the same operation goes out again, once."""
    world.next("mail", raises(ConnectionError("reset")))
    house = await outside_house(database, world, calls(("mail", {"to": ["a@house.example"]})), "Sent.")
    turn = await house.run()
    assert turn.status == "awaiting_reconciliation"
    [effect] = await house.effects(turn)
    otto = await operator(house)
    async with house.database.transaction() as tx:
        await by_hand.resolve(tx, otto, effect, to="absent", reason="The post never saw it.")
    assert (await house.go_on(turn)).status == "completed"
    [sent] = await house.effects(turn)
    assert (sent.operation_id, sent.status, sent.attempts) == (effect.operation_id, "committed", 2)
    assert len(world.done("mail")) == 1


async def test_e6_a_person_says_it_was_never_sent_while_a_run_is_looking(database: Database, world: World) -> None:
    """The run that looks learns nothing, and comes after the operator: what the operator said stays the last word."""
    world.next("mail", raises(ConnectionError("reset")))
    house = await outside_house(database, world, calls(("mail", {"to": ["a@house.example"]})), "Sent.")
    turn = await house.run()
    [effect] = await house.effects(turn)
    otto = await operator(house)

    async def say_absent() -> None:
        async with house.database.transaction() as tx:
            await by_hand.resolve(tx, otto, effect, to="absent", reason="The post never saw it.")

    crashpoints.arm("observed:begin", say_absent)
    async with house.database.transaction() as tx:
        await runs.make_due(tx, TENANT, turn.thread_id, turn.turn_id, because="look again")
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.done("mail")) == 1


async def test_t2_a_turn_that_broke_off_with_a_call_open_is_tried_again(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It broke off with the payment out, and its closing run found the payment: retried, the model is told, once."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    await house.die_at("call:after", turn)
    owned = await house.worker.claim(turn.thread_id)
    assert owned is not None
    with monkeypatch.context() as broken:
        broken.setattr(advancing, "bring_up_to_date", None)
        assert await advancing.advance(house.services, house.worker.graph, owned) == "failed"
    assert (await house.go_on(turn)).status == "failed"
    assert [item.status for item in await house.items(turn)] == ["completed"]

    await retry(house, turn)
    assert (await house.go_on(turn)).output_text == "Paid."
    assert [result["ok"] for result in house.model.results()] == [True]
    assert len(world.arrivals()) == 1


async def test_t2_an_effect_is_settled_before_the_retry_is_claimed(database: Database, world: World) -> None:
    """A retry is due, then an operator settles something: the run that both made due is still a retry."""
    house = await outside_house(database, world, ModelUnavailable("503"), "Hello.")
    turn = await house.run()
    await retry(house, turn)
    async with house.database.transaction() as tx:
        await runs.make_due(tx, TENANT, turn.thread_id, turn.turn_id, because="resolved:something")
    assert (await house.go_on(turn)).output_text == "Hello."


async def test_e4_a_person_says_absent_while_a_run_finds_it(database: Database, world: World) -> None:
    """Both cannot be true: nothing is sent on the person's word, the call is unknown to the model, the evidence is kept."""
    world.silent = True
    world.next("pay", happens_then(ConnectionError("reset")))
    house = await outside_house(database, world, calls(PAY), "Nobody knows.")
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    await house.go_on(turn)
    [effect] = await house.effects(turn)
    otto = await operator(house)
    world.silent = False

    async def say_absent() -> None:
        async with house.database.transaction() as tx:
            await by_hand.resolve(tx, otto, effect, to="absent", reason="I saw nothing.")

    crashpoints.arm("observed:begin", say_absent)
    async with house.database.transaction() as tx:
        await runs.make_due(tx, TENANT, turn.thread_id, turn.turn_id, because="look again")
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.arrivals("pay")) == 1
    assert house.model.results()[0]["unknown"] is True
    [after] = await house.effects(turn)
    assert [line["said"] for line in after.evidence][-2:] == [
        "absent, says otto: I saw nothing.",
        "committed: it is in the book",
    ]
