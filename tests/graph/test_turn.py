"""A turn from its message to its end: what is recorded on the way, in which order, and what a crash or a client leaves."""

import json

import pytest
from langchain_core.messages import AIMessage, ToolMessage

from graph import models
from graph.state import INLINE_BYTES
from placet.record import turns
from placet.record.canonical import check_plain
from placet.record.database import Database
from placet.record.errors import StaleEpoch
from placet.record.turns import TurnWaits
from tests.conftest import Clock
from tests.outside import World, happens_then
from tests.scripted import Scripted, calls
from tests.steps import outside_house

PAY = ("pay", {"to": "bo", "minor": 700})


async def test_t1_a_turn_says_after_a_restart_what_it_is_and_where_it_stands(database: Database, world: World) -> None:
    """Message, command, status, next step, steps and output are read from the row, without asking the model."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run("Pay Bo seven.")

    waiting = await house.elsewhere(model=Scripted()).turn(turn.turn_id)
    assert (waiting.message, waiting.status, waiting.next_step, waiting.steps) == (
        "Pay Bo seven.",
        "awaiting_approval",
        "approval",
        1,
    )
    assert waiting.command["kind"] == "pay"
    assert [confirmation["duty"] for confirmation in waiting.command["confirmations"]] == ["support"]
    assert waiting.output_text is None

    [asked] = await house.pending(turn)
    await house.approve(asked)
    ended = await house.go_on(turn)
    assert (ended.status, ended.next_step, ended.steps, ended.output_text) == ("completed", None, 2, "Paid.")
    assert ended.ended_at is not None
    assert ended.updated_at > waiting.updated_at


async def test_t6_a_turn_runs_only_under_a_claim_that_still_holds(database: Database, world: World) -> None:
    """A claim alone starts nothing, and a lost one cannot: the turn runs when its owner has loaded the checkpoint."""
    house = await outside_house(database, world, "Hello.")
    turn = await house.ask()
    owned = await house.worker.claim()
    assert owned is not None
    assert (await house.turn(turn.turn_id)).status == "created"

    await house.rows("update threads set epoch = epoch + 1 returning epoch")
    async with database.transaction() as tx:
        with pytest.raises(StaleEpoch):
            await turns.start(tx, owned)
    assert (await house.turn(turn.turn_id)).status == "created"


async def test_g1_the_recorded_answer_counts_when_the_node_runs_again(database: Database, world: World) -> None:
    """Replayed from before the model was asked, the turn proposes what it proposed; the model is not asked."""
    house = await outside_house(database, world, calls(PAY), calls(("pay", {"to": "eve", "minor": 99_999})))
    turn = await house.run()
    graph, config = await house.graph(turn)
    first = [s async for s in graph.aget_state_history(config)][-1]

    await graph.ainvoke(
        None, {**config, **first.config, "configurable": {**config["configurable"], **first.config["configurable"]}}
    )

    assert house.model.asked == 1
    assert [item.proposed["to"] for item in await house.items(turn)] == ["bo"]
    assert len(await house.pending(turn)) == 1


async def test_g5_every_call_has_one_result_in_the_models_order(database: Database, world: World, clock: Clock) -> None:
    """Automatic, approved, rejected, expired, unknown and invalid calls of one step: one result each, each in its place."""
    house = await outside_house(
        database,
        world,
        calls(
            ("label", {"name": "blue"}),
            ("pay", {"to": "approved", "minor": 700}),
            ("pay", {"to": "rejected", "minor": 700}),
            ("pay", {"to": "expired", "minor": 700}),
            ("pai", {"to": "nobody", "minor": 700}),
            ("pay", {"to": "bo", "minor": "lots"}),
            ("look", {"what": "books"}),
        ),
        "Done.",
    )
    turn = await house.run()
    approved, rejected, _ = await house.pending(turn)
    await house.approve(approved)
    await house.reject(rejected, "not him")
    assert (await house.go_on(turn)).status == "awaiting_approval"
    await clock.advance(25 * 3600)
    await house.worker.sweep()
    ended = await house.go_on(turn)

    assert ended.status == "completed"
    statuses = [item.status for item in await house.items(turn)]
    assert statuses == ["completed", "completed", "rejected", "expired", "invalid", "invalid", "completed"]
    results = house.model.results()
    assert [result["ok"] for result in results] == [True, True, False, False, False, False, True]
    assert results[1]["approved_by"] == "marta"
    assert results[2] == results[2] | {"approval_denied": True, "denied_by": "marta", "reason": "not him"}
    assert results[3]["expired"] is True
    assert results[4]["error"]["code"] == "unknown_tool"
    assert results[5]["error"]["field"] == "minor"
    [answer] = [m for m in house.model.shown[-1] if isinstance(m, AIMessage)]
    shown = [m.tool_call_id for m in house.model.shown[-1] if isinstance(m, ToolMessage)]
    assert shown == [call["id"] for call in answer.tool_calls]
    assert [line["args"].get("to") for line in world.done("pay")] == ["approved"]


async def test_g6_a_resume_does_not_reset_the_step_budget(database: Database, world: World) -> None:
    """Two model turns are allowed; a pause between them changes nothing, and the end is called exhausted."""
    house = await outside_house(database, world, calls(PAY), calls(("look", {"what": "more"})), max_steps=2)
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    ended = await house.go_on(turn)

    assert (ended.status, ended.steps, ended.max_steps) == ("exhausted", 2, 2)
    assert house.model.asked == 2
    assert (await house.told(turn))[-1] == "turn_exhausted"
    assert all(item.result is not None for item in await house.items(turn))


async def test_g7_a_checkpoint_holds_plain_json_and_refers_to_what_is_big(database: Database, world: World) -> None:
    """State is plain JSON with its version; arguments beyond a few kilobytes stand there as their hash only."""
    many = [f"{n:05}@house.example" for n in range(2_000)]
    house = await outside_house(database, world, calls(PAY, ("mail", {"to": many})), "Done.")
    turn = await house.run()
    graph, config = await house.graph(turn)
    snapshot = await graph.aget_state(config, subgraphs=True)

    state = {key: value for key, value in snapshot.values.items() if key != "messages"}
    assert json.loads(json.dumps(state)) == state
    assert state["state_version"] == 1
    check_plain(state)
    small, big = state["calls"]
    assert small["arguments"]["minor"] == 700
    assert "arguments" not in big
    assert len(big["arguments_hash"]) == 64
    assert len(json.dumps(state)) < INLINE_BYTES
    for task in snapshot.tasks:
        check_plain(task.state.values)  # type: ignore[union-attr]


async def test_v1_each_event_once_with_three_questions_in_one_turn(database: Database, world: World) -> None:
    """Three calls ask; however often the turn wakes between the answers, each event is written once, without gaps."""
    house = await outside_house(
        database, world, calls(*[("pay", {"to": name, "minor": 700}) for name in ("a", "b", "c")]), "Done."
    )
    turn = await house.run()
    for asked in await house.pending(turn):
        await house.approve(asked)
        await house.go_on(turn)

    events = await house.events(turn)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    told = [event.type for event in events]
    assert {kind: told.count(kind) for kind in sorted(set(told))} == {
        "approval_decided": 3,
        "approval_requested": 3,
        "plan_updated": 2,
        "tool_completed": 3,
        "tool_started": 3,
        "turn_completed": 1,
        "turn_paused": 3,
        "turn_resumed": 3,
        "turn_started": 1,
    }
    for kind in ("approval_requested", "approval_decided", "tool_started", "tool_completed"):
        assert len({event.item_id for event in events if event.type == kind}) == 3


async def test_g3_an_automatic_call_before_a_gated_one_runs_once(database: Database, world: World) -> None:
    """The automatic call runs while its sibling waits, and not again when that one is approved."""
    house = await outside_house(database, world, calls(("label", {"name": "blue"}), PAY), "Done.")
    turn = await house.run()
    assert len(world.arrivals("label")) == 1
    await house.approve((await house.pending(turn))[0])
    await house.go_on(turn)

    assert len(world.arrivals("label")) == 1
    assert len(world.arrivals("pay")) == 1


async def test_g3_an_approved_call_executes_while_its_sibling_waits(database: Database, world: World) -> None:
    """Two calls ask, the first is approved: it runs, the second still waits, also for a worker that is started later."""
    house = await outside_house(
        database, world, calls(("pay", {"to": "first", "minor": 700}), ("pay", {"to": "second", "minor": 800})), "Done."
    )
    turn = await house.run()
    first, second = await house.pending(turn)
    await house.approve(first)
    waiting = await house.elsewhere().go_on(turn)

    assert waiting.status == "awaiting_approval"
    assert [line["args"]["to"] for line in world.done()] == ["first"]
    assert [asked.approval_id for asked in await house.pending(turn)] == [second.approval_id]
    await house.approve(second)
    assert (await house.elsewhere().go_on(turn)).status == "completed"
    assert [line["args"]["to"] for line in world.arrivals()] == ["first", "second"]


async def test_g3_identical_calls_are_answered_each_for_itself(database: Database, world: World) -> None:
    """Three identical calls, answered in reverse order across restarts: each answer hits its own call."""
    house = await outside_house(database, world, calls(PAY, PAY, PAY), "Done.")
    turn = await house.run()
    one, two, three = await house.pending(turn)
    for asked, yes in ((three, True), (two, False), (one, True)):
        await (house.approve(asked) if yes else house.reject(asked))
        turn = await house.elsewhere().go_on(turn)

    items = await house.items(turn)
    assert [item.status for item in items] == ["completed", "rejected", "completed"]
    operations = {effect.item_id: str(effect.operation_id) for effect in await house.effects(turn)}
    assert {line["key"] for line in world.arrivals()} == {operations[items[0].item_id], operations[items[2].item_id]}
    assert len(world.arrivals()) == 2


async def test_e2_an_approval_sent_again_after_the_end_does_nothing(database: Database, world: World) -> None:
    """Approve, run to the end, approve again, then say something unrelated: one effect in all."""
    house = await outside_house(database, world, calls(PAY), "Paid.", "You are welcome.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    first = await house.approve(asked)
    await house.go_on(turn)
    again = await house.approve(asked)
    await house.go_on(turn)
    later = await house.run("Thanks.", thread_id=turn.thread_id)

    assert (again.first, again.status, again.effect) == (False, "approved", "committed")
    assert again.decided_at == first.decided_at
    assert later.output_text == "You are welcome."
    assert len(world.arrivals()) == 1


async def test_e3_a_model_that_fails_after_the_tool_ran_does_not_run_it_again(database: Database, world: World) -> None:
    """The provider answers 500 when it is told the result: the turn fails and says so; the next one knows the result."""
    house = await outside_house(
        database, world, calls(PAY), models.ModelUnavailable("answered 500", status=500), "It was paid."
    )
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    failed = await house.go_on(turn)
    assert failed.status == "failed"
    assert failed.error == {"code": "model_unavailable", "message": "answered 500", "retryable": True}

    later = await house.run("Was it paid?", thread_id=turn.thread_id)
    assert later.output_text == "It was paid."
    assert house.model.results()[0]["ok"] is True
    assert len(world.arrivals()) == 1


async def test_t4_a_message_while_the_turn_waits_is_refused_with_what_is_pending(
    database: Database, world: World
) -> None:
    """A new message does not throw the question away: 409 names the approval, which can still be decided."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    with pytest.raises(TurnWaits) as refused:
        await house.ask("approve", thread_id=turn.thread_id)

    assert refused.value.status == 409
    assert refused.value.details == {"turn_id": str(turn.turn_id), "approvals": [str(asked.approval_id)]}
    assert world.arrivals() == []
    await house.approve(asked)
    assert (await house.go_on(turn)).status == "completed"


async def test_t4_a_second_message_waits_until_the_first_turn_has_ended(database: Database, world: World) -> None:
    """Two messages before any work: they run one after the other, and the second sees what became of the first."""
    house = await outside_house(database, world, calls(PAY), "Paid.", "Second.")
    first = await house.ask("One.")
    second = await house.ask("Two.", thread_id=first.thread_id)
    await house.worker.run_until_idle()
    assert (await house.turn(first.turn_id)).status == "awaiting_approval"
    assert (await house.turn(second.turn_id)).status == "created"

    await house.approve((await house.pending(first))[0])
    await house.worker.run_until_idle()
    assert (await house.turn(second.turn_id)).output_text == "Second."
    assert [m.text for m in house.model.shown[-1] if m.type == "human"] == ["One.", "Two."]


async def test_t5_one_query_says_what_is_next_and_where_it_is_stuck(
    database: Database, world: World, clock: Clock
) -> None:
    """Of a turn with a finished, a waiting and an unknown call, the rows say which is which, and for how long."""
    world.silent = True
    world.next("label", happens_then(ConnectionError("reset")))
    house = await outside_house(database, world, calls(("look", {"what": "x"}), ("label", {"name": "blue"}), PAY))
    turn = await house.run()
    await clock.advance(600)

    rows = await house.rows(
        """
        select i.tool, i.status, i.result is not null as finished,
               extract(epoch from clock() - coalesce(i.started_at, i.gated_at))::int / 60 as minutes
          from plan_items i where i.turn_id = %(turn)s order by i.step, i.ordinal
        """,
        turn=turn.turn_id,
    )
    assert [(row["tool"], row["status"], row["finished"], row["minutes"]) for row in rows] == [
        ("look", "completed", True, 10),
        ("label", "unknown", False, 10),
        ("pay", "awaiting_approval", False, 10),
    ]
    assert turn.status == "awaiting_reconciliation"


async def test_p8_a_verdict_is_stored_with_version_rule_and_facts(database: Database, world: World) -> None:
    """Each call's row says which rule of which policy decided, and on which facts."""
    house = await outside_house(database, world, calls(("look", {"what": "x"}), PAY))
    turn = await house.run()

    look, pay = await house.items(turn)
    assert look.verdict is not None
    assert pay.verdict is not None
    assert (look.verdict["kind"], look.verdict["rule"]) == ("auto", "look.auto")
    assert (pay.verdict["kind"], pay.verdict["rule"]) == ("ask", "pay")
    assert pay.verdict["policy_version"] == house.services.policy.version
    assert pay.facts == {"minor": 700, "open": 38, "frozen": False}
    [asked] = await house.pending(turn)
    assert (asked.rule, asked.policy_version) == ("pay", house.services.policy.version)
