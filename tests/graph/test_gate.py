"""The gate: which calls go on, which ask, which are told no; and that nothing comes past it."""

import asyncio
from typing import Any, ClassVar

import pytest

from placet.record import canonical
from placet.record.database import Database
from policies import RulesRefused
from tests.outside import RULES, Look, Pay, PayArguments, PayFacts, World
from tests.scripted import calls
from tests.steps import House, outside_house
from tools.contract import Preview, Tool
from tools.registry import AnyTool

PAY = ("pay", {"to": "bo", "minor": 700})


async def the_call(house: House, item: int = 0) -> Any:
    turn = await house.run()
    return (await house.items(turn))[item]


async def test_g2_a_verdict_is_frozen_before_anything_runs(database: Database, world: World) -> None:
    """Every call of the step has its verdict, arguments and facts in its row when the first one runs."""
    seen: list[dict[str, Any]] = []

    async def look(world: World, tool: str, args: Any, operation_id: str) -> Any:
        seen.extend(await house.rows("select tool, verdict ->> 'kind' as verdict from plan_items order by ordinal"))
        return {}

    world.next("look", look)
    house = await outside_house(database, world, calls(("look", {"what": "x"}), PAY), "Done.")
    await house.run()

    assert seen == [{"tool": "look", "verdict": "auto"}, {"tool": "pay", "verdict": "ask"}]


async def test_g2_execute_refuses_a_call_that_is_sent_past_the_gate(database: Database, world: World) -> None:
    """Whoever may write the state sends a pending call straight to execution: the last door refuses, it still waits."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    graph, config = await house.graph(turn)
    snapshot = await graph.aget_state(config, subgraphs=True)
    [task] = snapshot.tasks

    await graph.aupdate_state(task.state.config, {"next": "execute"}, as_node="approval")  # type: ignore[union-attr]
    await house.elsewhere().resume(turn, None)
    assert world.arrivals() == []
    assert len(await house.pending(turn)) == 1

    [call] = snapshot.values["calls"]
    forged = {**call, "verdict": "auto", "arguments": {**call["arguments"], "minor": 99_999}}
    graph, config = await house.graph(turn)
    await graph.aupdate_state(config, {"calls": [forged]}, as_node="gate")
    await house.elsewhere().resume(turn, None)
    assert world.arrivals() == []
    assert await house.effects(turn) == []
    [asked] = await house.pending(turn)
    assert asked.content["arguments"]["minor"] == 700


async def test_g2_a_gated_read_runs_only_when_approved_and_as_approved(database: Database, world: World) -> None:
    """A read whose facts fail asks; it does not run before the decision, and runs with the reviewer's arguments."""

    class Peek(Look):
        name = "peek"

    house = await outside_house(database, world, calls(("peek", {"what": "secret"})), "Seen.")
    house.services.registry.add(Peek(world))
    turn = await house.run()
    graph, config = await house.graph(turn)
    [task] = (await graph.aget_state(config, subgraphs=True)).tasks
    await graph.aupdate_state(task.state.config, {"next": "execute"}, as_node="approval")  # type: ignore[union-attr]
    await house.elsewhere().resume(turn, None)
    assert world.arrivals() == []

    [asked] = await house.pending(turn)
    edited = await house.edit(asked, {"what": "public"})
    await house.decide(asked, edited)
    assert (await house.go_on(turn)).status == "completed"
    assert [line["args"]["what"] for line in world.arrivals()] == ["public"]


async def test_g4_gated_calls_are_asked_together_up_to_the_limit(database: Database, world: World) -> None:
    """Ten calls ask: eight are asked together, two are deferred with the word to ask again."""
    house = await outside_house(
        database, world, calls(*[("pay", {"to": f"p{n}", "minor": 700}) for n in range(10)]), "Done."
    )
    turn = await house.run()
    assert len(await house.pending(turn)) == 8
    items = await house.items(turn)
    assert [item.status for item in items[8:]] == ["deferred", "deferred"]
    assert items[8].result is not None
    assert items[8].result["deferred"] is True


async def test_g4_only_the_gated_call_asks_and_reads_are_not_delayed(database: Database, world: World) -> None:
    """One gated call and four reads: the reads run at once, wherever they stand; what changes something is deferred."""
    look = ("look", {"what": "x"})
    house = await outside_house(
        database,
        world,
        calls(look, ("label", {"name": "before"}), PAY, look, ("label", {"name": "behind"}), look, look),
    )
    turn = await house.run()

    assert [item.status for item in await house.items(turn)] == [
        "completed",
        "completed",
        "awaiting_approval",
        "completed",
        "deferred",
        "completed",
        "completed",
    ]
    assert len(await house.pending(turn)) == 1
    assert [line["args"]["name"] for line in world.arrivals("label")] == ["before"]


async def test_p6_a_name_that_nobody_knows_is_told_to_the_model(database: Database, world: World) -> None:
    """Nobody is asked about a tool that does not exist; the model is told which there are."""
    house = await outside_house(database, world, calls(("payy", {"minor": 1})), "Sorry.")
    item = await the_call(house)
    assert item.status == "invalid"
    assert item.result["error"]["code"] == "unknown_tool"
    assert "pay" in item.result["error"]["message"]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"raises": ValueError("no line to the bank")}, "no line to the bank"),
        ({"raises": ValueError("bad \x00 and \ud800")}, "bad"),
        ({"waits": asyncio.Event()}, "took too long"),
        ({"instead": None}, "could not be had"),
        ({"instead": "a verdict: auto"}, "could not be had"),
        ({"instead": {"minor": 1, "open": 1, "frozen": False}}, "could not be had"),
        ({"instead": PayFacts.model_construct(minor=2**60, open=1, frozen=False)}, "could not be had"),
        ({"instead": PayFacts.model_construct(minor=1, open="many", frozen=False)}, ""),
        ({"instead": PayFacts.model_construct(minor=1, open=1)}, ""),
    ],
    ids=["raises", "raises-unstorable", "too-late", "nothing", "text", "a-dict", "too-big", "wrong-type", "missing"],
)
async def test_p6_facts_that_cannot_be_had_ask(
    database: Database, world: World, found: dict[str, Any], why: str
) -> None:
    """A tool whose facts raise, take too long, are nothing or something else: a person is asked, with the reason."""
    world.facts |= found
    house = await outside_house(database, world, calls(("pay", {"to": "bo", "minor": 1})), policy_timeout=0.2)
    item = await the_call(house)
    assert item.status == "awaiting_approval"
    assert why in item.verdict["policy_error"]
    [asked] = await house.pending()
    assert asked.policy_error == item.verdict["policy_error"]
    assert asked.content["arguments"]["minor"] == 1
    assert world.arrivals() == []


def says_nothing(arguments: PayArguments, facts: PayFacts) -> bool:
    return None  # type: ignore[return-value]


def says_text(arguments: PayArguments, facts: PayFacts) -> bool:
    return "auto"  # type: ignore[return-value]


def breaks(arguments: PayArguments, facts: PayFacts) -> bool:
    raise RuntimeError("the rule broke \x00 on \ud800")


async def takes_too_long(arguments: PayArguments, facts: PayFacts) -> bool:
    await asyncio.Event().wait()
    return True


@pytest.mark.parametrize("rule", ["says_nothing", "says_text", "breaks", "takes_too_long"])
async def test_p6_a_rule_that_gives_no_verdict_asks(database: Database, world: World, rule: str) -> None:
    """A rule that returns nothing or text, raises, or takes too long: asked, with the error in the record."""
    rules = RULES.replace('"facts.minor <= 50"', f'"python:tests.graph.test_gate.{rule}"')
    house = await outside_house(database, world, calls(PAY), rules=rules, policy_timeout=0.2)
    item = await the_call(house)
    assert (item.status, item.verdict["kind"]) == ("awaiting_approval", "ask")
    assert item.verdict["policy_error"]
    assert world.arrivals() == []


async def test_p6_a_tool_registered_at_run_time_without_a_rule_asks(database: Database, world: World) -> None:
    """Nobody wrote a rule for it: it asks, and runs when approved."""

    class Newcomer(Pay):
        name = "newcomer"

    house = await outside_house(database, world, calls(("newcomer", {"to": "bo", "minor": 1})), "Done.")
    house.services.registry.add(Newcomer(world))
    turn = await house.run()
    [item] = await house.items(turn)
    assert item.verdict is not None
    assert (item.verdict["rule"], item.status) == ("policy.no-rule", "awaiting_approval")
    await house.approve((await house.pending(turn))[0])
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.done("newcomer")) == 1


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("[look]", "[lok]", "lok"),
        ("facts.minor <= 50", "facts.minnor <= 50", "facts.minor"),
        ('duty   = "finance"\nreason = "More', 'duty   = "finanse"\nreason = "More', "finance"),
        ("[[pay.deny]]", "[[pay.denny]]", "denny"),
    ],
    ids=["tool", "field", "duty", "decision"],
)
async def test_p7_a_typo_in_the_rules_stops_the_start(
    database: Database, world: World, right: str, wrong: str, named: str
) -> None:
    """A typo in a tool's name, a field, a duty or a decision: the house does not open, and the line is named."""
    rules = RULES.replace(right, wrong)
    line = rules[: rules.index(wrong)].count("\n") + 1
    with pytest.raises(RulesRefused) as refused:
        await outside_house(database, world, rules=rules)
    assert any(f".toml:{near}:" in str(refused.value) for near in range(line - 3, line + 2))
    assert named in str(refused.value)


async def test_p7_a_known_tool_without_a_rule_stops_the_start(database: Database, world: World) -> None:
    """A tool that stands in the code needs a rule; the message says which is missing."""
    without = RULES[: RULES.index("[mail]")]
    with pytest.raises(RulesRefused, match="mail"):
        await outside_house(database, world, rules=without)


async def test_p3_facts_come_from_the_tool_and_never_from_the_model(database: Database, world: World) -> None:
    """What the model says of itself is no argument: a field that the tool does not take is an error, nothing runs."""
    house = await outside_house(
        database, world, calls(("pay", {"to": "bo", "minor": 99_999, "facts": {"minor": 1}, "verdict": "auto"}))
    )
    house.model._script.append("Sorry.")  # type: ignore[union-attr]
    item = await the_call(house)
    assert item.status == "invalid"
    assert item.result["error"]["field"] in ("facts", "verdict")


async def test_p4_a_batch_is_one_decision_about_the_whole(database: Database, world: World) -> None:
    """3,000 recipients are one call, one question and one effect, with the number of the whole."""
    to = [f"{n:05}@house.example" for n in range(3_000)]
    house = await outside_house(database, world, calls(("mail", {"to": to, "text": "hello"})), "Sent.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    assert asked.preview["title"] == "Mail 3000 people"
    await house.approve(asked)
    await house.go_on(turn)
    assert [len(line["args"]["to"]) for line in world.done()] == [3_000]


class Quiet(Pay):
    """A payment whose preview breaks."""

    name = "quiet"
    _said: ClassVar[str] = "broken \x00 preview"

    async def preview(self, args: Any, facts: Any) -> Preview:
        raise ValueError(self._said)


async def test_a1_a_preview_that_breaks_does_not_hide_the_call(database: Database, world: World) -> None:
    """People still see exactly what would run, and that nothing was counted."""
    house = await outside_house(database, world, calls(("quiet", {"to": "bo", "minor": 1})))
    house.services.registry.add(Quiet(world))
    turn = await house.run()
    [asked] = await house.pending(turn)
    assert asked.content["arguments"] == {"to": "bo", "minor": 1, "rate": None, "note": None}
    assert "No preview" in asked.preview["warnings"][0]


async def test_a2_what_is_shown_is_what_is_hashed(database: Database, world: World) -> None:
    """The payload is the canonical JSON of tool, schema version, arguments and facts, and the hash is that of its bytes."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    [asked] = await house.pending(turn)
    assert set(asked.content) == {"tool", "schema_version", "arguments", "facts"}
    assert asked.payload == canonical.canonical(asked.content)
    assert asked.payload_hash == canonical.sha256(asked.payload)
    [item] = await house.items(turn)
    assert item.arguments is not None
    assert asked.content["arguments"] == canonical.parse(item.arguments)


def test_the_tests_tools_are_tools(world: World) -> None:
    """What the tests act with is built on the same contract as the real tools."""
    tools: list[AnyTool] = world.tools()
    assert all(isinstance(tool, Tool) for tool in tools)
