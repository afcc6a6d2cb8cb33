"""Approving with changes: the reviewer's arguments pass every check again, and are what runs (A8)."""

from typing import Any

import pytest

from graph.deciding import EditRefused, prepare_edit
from placet.record import canonical
from placet.record.database import Database
from placet.record.decisions import AlreadyDecided, InvalidDecision, NotTheSameRequest
from tests.conftest import Clock
from tests.outside import RULES, Label, Look, Mail, World
from tests.scripted import calls
from tests.steps import House, outside_house, together

PAY = ("pay", {"to": "bo", "minor": 700})
MAIL = ("mail", {"to": ["a@house.example", "b@house.example"], "text": "hi"})


async def asked_about(house: House) -> tuple[Any, Any]:
    turn = await house.run()
    [asked] = await house.pending(turn)
    return turn, asked


async def test_a8_what_was_edited_runs_and_the_model_is_told(database: Database, world: World) -> None:
    """700 becomes 600: 600 leaves, as the next revision, and the model hears what really ran."""
    house = await outside_house(database, world, calls(PAY), "Paid 600.")
    turn, asked = await asked_about(house)
    decided = await house.decide(asked, await house.edit(asked, {"to": "bo", "minor": 600}))
    assert (decided.status, decided.decision, decided.first) == ("approved", "approve_with_changes", True)
    assert (await house.go_on(turn)).status == "completed"

    assert [line["args"]["minor"] for line in world.arrivals()] == [600]
    [result] = house.model.results()
    assert result["executed_input"] == {"to": "bo", "minor": 600, "rate": None, "note": None}
    assert result["approved_by"] == "marta"
    after = await house.approval(asked.approval_id)
    assert (after.revision, after.edited) == (1, True)
    revisions = await house.rows("select revision, payload, made_by from approval_revisions order by revision")
    assert [(row["revision"], row["made_by"]) for row in revisions] == [(0, "gate"), (1, "marta")]
    assert revisions[0]["payload"] == asked.payload  # never changed in place
    [effect] = await house.effects(turn)
    assert canonical.parse(effect.arguments)["minor"] == 600
    [item] = await house.items(turn)
    assert item.arguments is not None
    assert canonical.parse(item.arguments)["minor"] == 700  # what the model proposed stays readable


async def test_a8_the_same_edit_twice_is_one_outcome(database: Database, world: World) -> None:
    """A double click on "approve with changes" gets the stored outcome; one effect."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn, asked = await asked_about(house)
    edit = await house.edit(asked, {"to": "bo", "minor": 600})
    outcomes = await together(*(house.decide(asked, edit) for _ in range(4)))
    assert sorted(outcome.first for outcome in outcomes if not isinstance(outcome, BaseException)) == [
        False,
        False,
        False,
        True,
    ]
    with pytest.raises(AlreadyDecided):
        await house.approve(asked, house.pedro)
    await house.go_on(turn)
    assert len(world.arrivals()) == 1


@pytest.mark.parametrize(
    ("call", "edited", "why"),
    [
        (PAY, {"to": "bo", "minor": 200_000}, "finance"),
        (MAIL, {"to": ["a@house.example", "x@elsewhere.example"], "text": "hi"}, "finance"),
    ],
    ids=["a-higher-amount", "an-outside-recipient"],
)
async def test_a8_an_edit_that_needs_a_higher_duty_is_refused(
    database: Database, world: World, call: Any, edited: dict[str, Any], why: str
) -> None:
    """Even by somebody who has that duty: this approval does not give it, and stays as it is."""
    house = await outside_house(database, world, calls(call), "Done.")
    turn, asked = await asked_about(house)
    for who in (house.lena, house.marta):
        with pytest.raises(EditRefused, match=why) as refused:
            await house.decide(asked, {"kind": "approve_with_changes", "arguments": edited}, who)
        assert refused.value.status == 409
    assert await house.pending(turn) == [asked]
    await house.approve(asked, house.lena)
    await house.go_on(turn)
    assert len(world.done()) == 1


async def test_a8_an_edit_that_the_rules_forbid_is_refused(database: Database, world: World) -> None:
    """The rules deny what it would become."""
    rules = RULES.replace('"facts.frozen"', '"facts.frozen || facts.minor == 666"')
    house = await outside_house(database, world, calls(PAY), rules=rules)
    turn, asked = await asked_about(house)
    with pytest.raises(EditRefused):
        await house.decide(asked, {"kind": "approve_with_changes", "arguments": {"to": "bo", "minor": 666}})
    assert await house.pending(turn) == [asked]


@pytest.mark.parametrize(
    ("edited", "field"),
    [
        ({"to": "bo", "minor": "lots"}, "minor"),
        ({"to": "bo", "minor": "600"}, "minor"),
        ({"to": "bo", "minor": 600.5}, "minor"),
        ({"to": "bo", "minor": True}, "minor"),
        ({"to": "bo"}, "minor"),
        ({"to": "bo", "minor": 600, "tool": "label"}, "tool"),
        ({"name": "blue"}, "to"),
        ({}, "to"),
    ],
)
async def test_a8_an_edit_that_the_tool_does_not_take_is_refused_by_its_field(
    database: Database, world: World, edited: dict[str, Any], field: str
) -> None:
    """Text for a number, a missing or an unknown field, another tool's arguments: 422 with the field, and it still waits."""
    house = await outside_house(database, world, calls(PAY))
    turn, asked = await asked_about(house)
    with pytest.raises(InvalidDecision) as refused:
        await house.decide(asked, {"kind": "approve_with_changes", "arguments": edited})
    assert refused.value.details["field"] == field
    assert await house.pending(turn) == [asked]


async def test_a8_the_tool_cannot_be_switched(database: Database, world: World) -> None:
    """A decision that names a tool is no decision."""
    house = await outside_house(database, world, calls(PAY))
    turn, asked = await asked_about(house)
    edit = await house.edit(asked, {"to": "bo", "minor": 600})
    with pytest.raises(InvalidDecision):
        await house.decide(asked, {**edit, "tool": "mail"})
    assert await house.pending(turn) == [asked]


async def test_a8_an_edit_needs_the_hash_of_its_own_preview(database: Database, world: World) -> None:
    """With the hash of what the gate showed, or of another edit, nobody has seen what would run: refused."""
    house = await outside_house(database, world, calls(PAY))
    turn, asked = await asked_about(house)
    other = await prepare_edit(house.services, asked, {"to": "bo", "minor": 500})
    for seen in (asked.payload_hash, other.payload_hash):
        with pytest.raises(NotTheSameRequest):
            await house.decide(
                asked,
                {"kind": "approve_with_changes", "arguments": {"to": "bo", "minor": 600}, "payload_hash": seen.hex()},
            )
    assert await house.pending(turn) == [asked]
    assert await house.rows("select 1 from decisions") == []


async def test_a8_the_world_moved_between_preview_and_decision(database: Database, world: World) -> None:
    """The edit was previewed with 38 open, now there are 41: what would be recorded is not what was seen, refused."""
    house = await outside_house(database, world, calls(PAY))
    turn, asked = await asked_about(house)
    edit = await house.edit(asked, {"to": "bo", "minor": 600})
    world.facts["open"] = 41
    with pytest.raises(NotTheSameRequest):
        await house.decide(asked, edit)
    assert await house.pending(turn) == [asked]


async def test_a8_an_edited_call_that_went_stale_is_asked_again_as_edited(database: Database, world: World) -> None:
    """The reviewer's arguments are the stored ones from then on; asked again, they are shown, not the model's."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn, asked = await asked_about(house)
    await house.decide(asked, await house.edit(asked, {"to": "bo", "minor": 600}))
    world.facts["open"] = 41
    await house.go_on(turn)
    [again] = await house.pending(turn)
    assert again.content["arguments"]["minor"] == 600
    await house.approve(again)
    await house.go_on(turn)
    assert [line["args"]["minor"] for line in world.arrivals()] == [600]


async def test_a8_an_edit_of_a_tool_that_is_gone_is_refused(database: Database, world: World) -> None:
    """Deployed without the tool: the edit is refused with an error for people, the approval stays as it is."""
    house = await outside_house(database, world, calls(PAY))
    turn, asked = await asked_about(house)
    without = RULES[: RULES.index("[pay]")] + RULES[RULES.index("[mail]") :]
    deployed = house.elsewhere(tools=[Look(world), Label(world), Mail(world)], rules=without)
    with pytest.raises(EditRefused, match="pay"):
        await deployed.decide(asked, {"kind": "approve_with_changes", "arguments": {"to": "bo", "minor": 600}})
    assert await house.pending(turn) == [asked]


async def test_a9_an_edit_that_comes_too_late_changes_nothing(database: Database, world: World, clock: Clock) -> None:
    """Expired: no revision, no vote."""
    from placet.record.decisions import ApprovalExpired  # noqa: PLC0415

    house = await outside_house(database, world, calls(PAY))
    _, asked = await asked_about(house)
    edit = await house.edit(asked, {"to": "bo", "minor": 600})
    await clock.advance(25 * 3600)
    with pytest.raises(ApprovalExpired):
        await house.decide(asked, edit)
    assert len(await house.rows("select 1 from approval_revisions")) == 1
    assert await house.rows("select 1 from decisions") == []
