"""What runs is what was approved, also through a tool's own reading of it (A2)."""

import sys
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, Field

from placet.record.database import Database
from tests.outside import Label, LabelArguments, Look, Mail, Pay, PayArguments, World, raises
from tests.scripted import calls
from tests.steps import House, outside_house
from tools.contract import NothingSent

PAY = ("pay", {"to": "bo", "minor": 700})


def other_pay(reads: Any) -> type[Pay]:
    """A `pay` whose schema reads the amount in its own way."""

    class OtherArguments(PayArguments):
        minor: reads  # type: ignore[valid-type]

    class OtherPay(Pay):
        """Send money. It does not come back."""

        Arguments = OtherArguments

    return OtherPay


def with_tool(house: House, world: World, pay: type[Pay]) -> House:
    return house.elsewhere(tools=[Look(world), Label(world), pay(world), Mail(world)])


IN_CENTS = Annotated[int, Field(ge=1, le=2**53 - 1), AfterValidator(lambda amount: amount * 100)]
BY_ANOTHER_NAME = Annotated[int, Field(alias="amount")]


@pytest.mark.parametrize(
    ("minor", "name"), [(IN_CENTS, "minor"), (BY_ANOTHER_NAME, "amount")], ids=["another-value", "another-name"]
)
async def test_a2_a_schema_that_does_not_read_back_what_it_made(
    database: Database, world: World, minor: Any, name: str
) -> None:
    """It would show 70,000 and send 7,000,000, or not understand itself: an error, nobody is asked, nothing runs."""
    house = with_tool(
        await outside_house(database, world, calls(("pay", {"to": "bo", name: 700})), "No."), world, other_pay(minor)
    )
    turn = await house.run()
    [item] = await house.items(turn)
    assert (turn.status, item.status) == ("completed", "invalid")
    assert world.arrivals() == []


async def test_a2_a_deploy_that_reads_an_approved_amount_otherwise(database: Database, world: World) -> None:
    """Approved as 700; the tool now rounds amounts up to thousands, under the same schema: orphaned, not sent."""

    def up(amount: int) -> int:
        return -(-amount // 1000) * 1000

    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    rounding = Annotated[int, Field(ge=1, le=2**53 - 1), AfterValidator(up)]
    deployed = with_tool(house, world, other_pay(rounding))
    deployed.services.registry["pay"].Arguments.__name__ = "PayArguments"  # its JSON schema is the same
    await deployed.go_on(turn)
    assert world.arrivals() == []
    assert [item.status for item in await house.items(turn)] == ["orphaned"]


async def test_e4_an_automatic_call_that_its_tool_no_longer_reads_has_failed(database: Database, world: World) -> None:
    """Frozen, then the tool was deployed with a field more: nothing was sent, so it is no unknown that people must settle."""

    class More(LabelArguments):
        colour: str

    class NewLabel(Label):
        """Put a label on the shelf."""

        Arguments = More

    house = await outside_house(database, world, calls(("label", {"name": "blue"})), "Not labelled.")
    turn = await house.ask()
    await house.die_at("dispatch:begin", turn)
    deployed = house.elsewhere(tools=[Look(world), NewLabel(world), Pay(world), Mail(world)])
    assert (await deployed.go_on(turn)).status == "completed"
    [item] = await house.items(turn)
    assert item.result is not None
    assert (item.status, item.result["error"]["code"]) == ("failed", "tool_changed")
    assert await house.effects(turn) == []


async def test_e8_what_never_left_is_sent_again_after_a_while(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further attempt waits longer than the one before, with jitter, and the third is the last."""
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(sys.modules["graph.execute"], "pause", wait)  # `graph.execute` is the node by now
    world.next("label", *[raises(NothingSent("later"))] * 3)
    house = await outside_house(database, world, calls(("label", {"name": "blue"})), "No.", lease=timedelta(minutes=1))
    turn = await house.run()
    assert [item.status for item in await house.items(turn)] == ["failed"]
    first, second = waited
    assert 0.5 <= first <= 1.0 <= second <= 2.0
