"""What people and models send that cannot be used: a clear error, and nothing lost, stored or stuck (P6, A6)."""

from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage

from placet.record import people, turns
from placet.record.database import Database
from placet.record.errors import InvalidInput, NotAllowed
from placet.record.people import UnknownUser
from placet.record.turns import UnknownThread, UnknownTurn
from tests.outside import World
from tests.scripted import Scripted, calls
from tests.steps import TENANT, outside_house


def raw(arguments: str, name: str = "pay") -> AIMessage:
    """A provider's call with its arguments as text, as it came."""
    return AIMessage("", additional_kwargs={"raw_tool_calls": [{"function": {"name": name, "arguments": arguments}}]})


UNUSABLE: dict[str, tuple[Any, str]] = {
    "NaN": (raw('{"to": "bo", "minor": 1, "rate": NaN}'), "rate"),
    "infinity": (raw('{"to": "bo", "minor": 1, "rate": -Infinity}'), "rate"),
    "NaN-as-a-number": (calls(("pay", {"to": "bo", "minor": 1, "rate": float("nan")})), "rate"),
    "over-53-bits": (calls(("pay", {"to": "bo", "minor": 2**53})), "minor"),
    "over-64-bits": (calls(("pay", {"to": "bo", "minor": 2**70})), "minor"),
    "a-very-long-number": (raw('{"to": "bo", "minor": ' + "9" * 5000 + "}"), "minor"),
    "NUL": (calls(("pay", {"to": "b\x00o", "minor": 1})), "to"),
    "NUL-in-a-name": (calls(("pay", {"to": "bo", "minor": 1, "no\x00te": "x"})), "te"),
    "half-a-surrogate": (calls(("pay", {"to": "bo", "minor": 1, "note": "x\ud800"})), "note"),
    "5-MB": (calls(("pay", {"to": "bo", "minor": 1, "note": "x" * 5_000_000})), "note"),
    "deep": (raw('{"to": "bo", "minor": 1, "note": ' + "[" * 100 + "]" * 100 + "}"), "note"),
    "very-deep": (raw('{"to": ' + "[" * 100_000 + "]" * 100_000 + "}"), "arguments"),
    "no-JSON": (raw('{"to": "bo", "minor": 1'), "arguments"),
    "a-list": (raw('["bo", 1]'), "arguments"),
    "twice": (raw('{"to": "bo", "minor": 1, "minor": 99999}'), "minor"),
    "text-for-a-number": (calls(("pay", {"to": "bo", "minor": "1"})), "minor"),
    "a-fraction": (calls(("pay", {"to": "bo", "minor": 1.5})), "minor"),
    "true-for-a-number": (calls(("pay", {"to": "bo", "minor": True})), "minor"),
    "negative": (calls(("pay", {"to": "bo", "minor": -1})), "minor"),
    "nothing": (calls(("pay", {})), "to"),
    "unknown-field": (calls(("pay", {"to": "bo", "minor": 1, "approved_by": "marta"})), "approved_by"),
    "too-many": (calls(("mail", {"to": ["a@house.example"] * 10_001})), "to"),
}


@pytest.mark.parametrize("what", UNUSABLE)
async def test_p6_arguments_that_cannot_be_used_are_told_by_their_field(
    database: Database, world: World, what: str
) -> None:
    """An error to the model that names the field: nobody is asked, nothing runs, the turn and its thread go on."""
    said, field = UNUSABLE[what]
    house = await outside_house(database, world, said, calls(("label", {"name": "ok"})), "Done.", "Still here.")
    turn = await house.run()

    assert turn.status == "completed"
    first, second = await house.items(turn)
    assert (first.status, second.status) == ("invalid", "completed")
    assert first.result is not None
    assert field in f"{first.result['error']['field']} {first.result['error']['message']}"
    assert world.arrivals("pay") == world.arrivals("mail") == []
    assert await house.pending() == []
    assert (await house.run("More.", thread_id=turn.thread_id)).output_text == "Still here."


@pytest.mark.parametrize(
    "said",
    [
        AIMessage("a \x00 b \ud800"),
        AIMessage(""),
        AIMessage([{"type": "image", "url": "x"}]),
        AIMessage("x" * 5_000_000),
    ],
    ids=["unstorable", "empty", "an-image", "5-MB"],
)
async def test_g1_an_odd_answer_ends_the_turn_like_any_other(database: Database, world: World, said: AIMessage) -> None:
    """Whatever the model's text holds, the turn ends with a text that can be stored, and the thread goes on."""
    house = await outside_house(database, world, said, "Still here.")
    turn = await house.run()
    assert turn.status == "completed"
    assert turn.output_text
    assert len(turn.output_text) < 1_100_000
    assert (await house.run("More.", thread_id=turn.thread_id)).output_text == "Still here."


async def test_g5_a_hundred_calls_at_once(database: Database, world: World) -> None:
    """More calls than anybody should make: each has a result, in order, and the next request is one a provider takes."""
    many = calls(*[("look", {"what": str(n)}) for n in range(40)], *[("pay", {"to": "b", "minor": 700})] * 2)
    house = await outside_house(database, world, many, "Done.")
    turn = await house.run()
    for asked in await house.pending(turn):
        await house.reject(asked)
    assert (await house.go_on(turn)).status == "completed"
    results = house.model.results()
    assert [result["ok"] for result in results] == [True] * 40 + [False] * 2
    assert [result["data"]["found"] for result in results[:40]] == [str(n) for n in range(40)]


@pytest.mark.parametrize(
    "message",
    ["", "   \n", "x" * 100_001, "a\x00b", "a\ud800b"],
    ids=["empty", "blank", "1-MB", "NUL", "half-a-surrogate"],
)
async def test_t1_a_message_that_cannot_be_used_is_refused_whole(
    database: Database, world: World, message: str
) -> None:
    """Empty, too long or unstorable: 422 with the field, and nothing is stored."""
    house = await outside_house(database, world)
    with pytest.raises(InvalidInput) as refused:
        await house.ask(message)
    assert (refused.value.status, refused.value.details["field"]) == (422, "message")
    assert await house.rows("select 1 from turns union all select 1 from threads union all select 1 from runs") == []


async def test_t1_a_long_message_within_the_limit_is_kept_whole(database: Database, world: World) -> None:
    """100,000 characters in several scripts arrive at the model as they were."""
    message = ("Zoë 小明 فاطمة 🙂 " * 10_000)[:100_000]
    house = await outside_house(database, world, "Read.")
    turn = await house.run(message)
    assert turn.message == message
    assert house.model.shown[0][-1].text == message


async def test_a5_a_thread_of_somebody_else_is_not_there(database: Database, world: World) -> None:
    """Another user's thread, and one that never existed: the same 404; only those who may ask do."""
    house = await outside_house(database, world, "Hello.")
    turn = await house.run()
    for thread_id, user in ((turn.thread_id, house.marta), (uuid4(), house.ana)):
        with pytest.raises(UnknownThread) as refused:
            await house.ask(thread_id=thread_id, user=user)
        assert refused.value.status == 404
    async with database.transaction() as tx:
        await people.ensure(tx, TENANT, "audrey", name="Audrey", roles=["auditor"], duties=[])
        audrey = await people.get(tx, TENANT, "audrey")
        for name in ("a\x00b", "a\ud800b"):
            with pytest.raises(InvalidInput):
                await people.add(tx, TENANT, "odd", name=name, roles=["requester"], duties=[])
    with pytest.raises(NotAllowed):
        await house.ask(user=audrey)


async def test_a5_unknown_people_and_other_tenants(database: Database, world: World) -> None:
    """A name that nobody has says how to add it; another tenant sees no turn of this one."""
    house = await outside_house(database, world, "Hello.")
    turn = await house.run()
    async with database.read() as tx:
        with pytest.raises(UnknownUser, match="placet users add"):
            await people.get(tx, TENANT, "nobody")
        with pytest.raises(UnknownTurn):
            await turns.get(tx, "other", turn.turn_id)


@pytest.mark.parametrize("reason", ["a\x00b", "a\ud800b"])
async def test_t3_a_reason_that_cannot_be_stored_does_not_hinder_cancelling(
    database: Database, world: World, reason: str
) -> None:
    """Cancelling with an odd reason is refused as input, or done; it never ends in the database's own error."""
    house = await outside_house(database, world, calls(("pay", {"to": "bo", "minor": 700})))
    turn = await house.run()
    async with database.transaction() as tx:
        with pytest.raises(InvalidInput):
            await turns.cancel(tx, house.ana, turn.turn_id, reason=reason, result={"ok": False})
    assert (await house.turn(turn.turn_id)).status == "awaiting_approval"


async def test_p6_two_calls_under_one_id_and_calls_without_one(database: Database, world: World) -> None:
    """A provider gives two calls the same id, and one none: each has its own result."""
    answer = calls(("look", {"what": "a"}), ("look", {"what": "b"}), ("look", {"what": "c"}))
    for call, id_ in zip(answer.tool_calls, ("same", "same", None), strict=True):
        call["id"] = id_
    house = await outside_house(database, world, model=Scripted(answer, "Done."))
    turn = await house.run()
    assert turn.status == "completed"
    assert [result["data"]["found"] for result in house.model.results()] == ["a", "b", "c"]
