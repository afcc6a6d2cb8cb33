"""Between the decision and the execution: what moved, and what was moved by hand (A2, A7)."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from langgraph.types import Command, Send

from placet.record.database import Database
from placet.record.decisions import AlreadyDecided, InvalidDecision, NotTheSameRequest
from tests.conftest import Clock
from tests.outside import RULES, Label, Look, Mail, Pay, PayArguments, World, raises
from tests.scripted import calls
from tests.steps import House, outside_house
from tools.contract import NothingSent

PAY = ("pay", {"to": "bo", "minor": 700})


async def approved(house: House) -> tuple[Any, Any]:
    """A turn whose one call was approved and has not run yet; the approval."""
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.approve(asked)
    return turn, asked


async def test_a7_the_world_moved_and_the_same_call_is_asked_again(database: Database, world: World) -> None:
    """38 were open when it was approved, 41 are now: stale, asked again with the difference, then executed as it was."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn, first = await approved(house)
    world.facts["open"] = 41
    assert (await house.go_on(turn)).status == "awaiting_approval"

    [again] = await house.pending(turn)
    assert (await house.approval(first.approval_id)).status == "stale"
    assert (again.item_id, again.ask) == (first.item_id, 1)
    assert again.content["arguments"] == first.content["arguments"]
    assert again.difference == {
        "because": "what justified it has changed",
        "changed": {"open": {"shown": 38, "now": 41}},
    }
    assert world.arrivals() == []
    with pytest.raises(AlreadyDecided):
        await house.approve(first, house.pedro)
    with pytest.raises(NotTheSameRequest):
        await house.decide(again, {"kind": "approve", "payload_hash": first.payload_hash.hex()})

    await house.approve(again)
    assert (await house.go_on(turn)).status == "completed"
    assert [line["args"]["minor"] for line in world.arrivals()] == [700]
    [item] = await house.items(turn)
    assert item.result is not None
    assert item.result["executed_input"]["minor"] == 700


async def test_a7_facts_that_are_no_precondition_do_not_make_it_stale(database: Database, world: World) -> None:
    """Only the facts that a tool names as preconditions are compared."""
    house = await outside_house(
        database, world, calls(PAY), "Paid.", rules=RULES.replace("facts.frozen", "facts.open < 0")
    )
    turn, _ = await approved(house)
    world.facts["frozen"] = True
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1


async def test_a7_approved_in_time_and_executed_too_late_is_asked_again(
    database: Database, world: World, clock: Clock
) -> None:
    """The decision came in time, the worker after the expiry: not executed without asking again."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn, first = await approved(house)
    await clock.advance(24 * 3600 + 1)
    assert (await house.go_on(turn)).status == "awaiting_approval"
    assert world.arrivals() == []
    assert (await house.approval(first.approval_id)).status == "expired"
    [again] = await house.pending(turn)
    assert again.ask == 1
    await house.approve(again)
    assert (await house.go_on(turn)).status == "completed"


async def test_a7_expired_between_the_check_and_the_dispatch(
    database: Database, world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Good when it was checked, expired when the row is written: the last door refuses, it is asked again."""
    house = await outside_house(database, world, calls(PAY))
    turn, first = await approved(house)

    house.before_dispatch(monkeypatch, lambda: clock.advance(24 * 3600 + 1))
    assert (await house.go_on(turn)).status == "awaiting_approval"
    assert world.arrivals() == []
    assert await house.effects(turn) == []
    assert (await house.approval(first.approval_id)).status == "expired"
    assert [asked.ask for asked in await house.pending(turn)] == [1]


async def test_a7_approved_and_denied_by_now_is_not_executed_and_says_so(database: Database, world: World) -> None:
    """Meanwhile a rule forbids it: not executed, the model hears that the rules did, not a person."""
    house = await outside_house(database, world, calls(PAY), "It is forbidden.")
    turn, asked = await approved(house)
    world.facts["frozen"] = True
    assert (await house.go_on(turn)).status == "completed"
    assert world.arrivals() == []
    [result] = house.model.results()
    assert result["denied_by_policy"] is True
    assert result["reason"] == "The account is frozen."
    assert (await house.approval(asked.approval_id)).status == "stale"
    assert [item.status for item in await house.items(turn)] == ["denied"]


async def test_a7_denied_after_nothing_was_sent(database: Database, world: World) -> None:
    """The first attempt never left; before the second the rules forbid it: denied, like one that was never tried."""
    house = await outside_house(database, world, calls(PAY), "It is forbidden.")

    async def nothing(world: World, tool: str, args: Any, operation_id: str) -> Any:
        world.facts["frozen"] = True
        raise NothingSent("no line")

    world.next("pay", nothing)
    turn, _ = await approved(house)
    assert (await house.go_on(turn)).status == "completed"
    assert [item.status for item in await house.items(turn)] == ["denied"]
    assert len(world.arrivals()) == 1
    assert world.done() == []


async def test_a7_a_deny_by_changed_rules_counts_and_a_higher_duty_asks_again(database: Database, world: World) -> None:
    """After a deploy the rule wants finance: what support approved is asked again there; a looser rule changes nothing."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.approve(asked, house.lena)
    stricter = house.elsewhere(rules=RULES.replace("facts.minor > 100000", "facts.minor > 100"))
    assert (await stricter.go_on(turn)).status == "awaiting_approval"
    [again] = await house.pending(turn)
    assert (again.duty, again.rule) == ("finance", "pay-large")
    assert again.difference is not None
    assert "finance" in again.difference["because"]
    assert world.arrivals() == []

    await stricter.approve(again, house.marta)
    looser = house.elsewhere(rules=RULES.replace("facts.minor <= 50", "facts.minor <= 5000"))
    assert (await looser.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1


async def test_a7_a_rejection_wins_over_a_rule_that_was_loosened(database: Database, world: World) -> None:
    """Rejected; meanwhile the rule would let it pass by itself: never executed."""
    house = await outside_house(database, world, calls(PAY), "Refused.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.reject(asked)
    looser = house.elsewhere(rules=RULES.replace("facts.minor <= 50", "facts.minor <= 5000"))
    assert (await looser.go_on(turn)).status == "completed"
    assert world.arrivals() == []
    assert house.model.results()[0]["approval_denied"] is True


async def test_a7_facts_that_cannot_be_had_any_more_ask_again(database: Database, world: World) -> None:
    """The bank does not answer when it is checked: asked again, saying so, never executed on old facts."""
    house = await outside_house(database, world, calls(PAY))
    turn, _ = await approved(house)
    world.facts["raises"] = ConnectionError("no line to the bank")
    assert (await house.go_on(turn)).status == "awaiting_approval"
    [again] = await house.pending(turn)
    assert again.policy_error is not None
    assert "no line to the bank" in again.policy_error
    assert again.preview["warnings"]
    assert world.arrivals() == []


# State changed by hand, between what the person saw and what would run


FORGED = {
    "amount": lambda call: {"arguments": {**call["arguments"], "minor": 99_999}},
    "hash": lambda call: {"arguments_hash": "0" * 64},
    "verdict": lambda call: {"verdict": "auto"},
    "tool": lambda call: {"tool": "label"},
}


@pytest.mark.parametrize("decide", ["before", "after"])
@pytest.mark.parametrize("forged", FORGED)
async def test_a2_a_changed_state_is_never_executed(database: Database, world: World, forged: str, decide: str) -> None:
    """What the state says of a waiting call is changed, before or after the approval: the stored call is asked again."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [first] = await house.pending(turn)
    graph, config = await house.graph(turn)
    [task] = (await graph.aget_state(config, subgraphs=True)).tasks
    call = task.state.values["call"]  # type: ignore[union-attr]
    if decide == "before":
        await house.approve(first)
    await house.change_call(turn, FORGED[forged](call))
    if decide == "after":
        await house.approve(first)
    await house.elsewhere().go_on(turn)

    assert world.arrivals() == []
    assert (await house.approval(first.approval_id)).status == "stale"
    [again] = await house.pending(turn)
    assert again.content["arguments"]["minor"] == 700
    await house.approve(again)
    assert (await house.go_on(turn)).status == "completed"
    assert [line["args"]["minor"] for line in world.arrivals()] == [700]


async def test_a2_a_changed_state_does_not_reopen_a_rejection(database: Database, world: World) -> None:
    """Rejected, then the state is changed: it stays rejected, nobody is asked again."""
    house = await outside_house(database, world, calls(PAY), "Refused.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.reject(asked)
    await house.change_call(turn, {"verdict": "auto"})
    assert (await house.go_on(turn)).status == "completed"
    assert world.arrivals() == []
    assert [item.status for item in await house.items(turn)] == ["rejected"]


async def test_a2_a_command_that_updates_the_state_executes_nothing_else(database: Database, world: World) -> None:
    """A command with an update and a jump straight to the call, with 99,999 instead of 700: never executed."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn, first = await approved(house)
    graph, config = await house.graph(turn)
    [call] = (await graph.aget_state(config)).values["calls"]
    forged = {**call, "arguments": {**call["arguments"], "minor": 99_999}, "verdict": "auto"}
    jump = Send("call", {"call": forged, "next": "execute", "problem": None})
    command = Command(update={"calls": [forged]}, goto=jump)
    with pytest.raises(InvalidDecision):  # no client's resume does that; who may write the state still can
        await house.resume(turn, command, acting=house.marta)
    graph, config = await house.graph(turn)
    await house.rows("update turns set status = 'running' where status <> 'completed' returning turn_id")
    with suppress(Exception):
        await graph.ainvoke(command, config)
    await house.go_on(turn)

    assert all(line["args"]["minor"] == 700 for line in world.arrivals())
    assert len(world.done()) <= 1
    assert (await house.approval(first.approval_id)).status in ("stale", "approved")


async def test_a2_a_call_of_another_turn_is_not_reached_through_the_state(database: Database, world: World) -> None:
    """The state of one thread is made to name another thread's approved call: that one's approval is worth nothing
    here, and its own thread still executes it once."""
    house = await outside_house(
        database, world, calls(PAY), calls(("pay", {"to": "eve", "minor": 800})), "Mine.", "Done.", "Done."
    )
    mine = await house.run()
    [asked] = await house.pending(mine)
    theirs = await house.run()
    [other] = [a for a in await house.pending(theirs) if a.turn_id == theirs.turn_id]
    graph, config = await house.graph(mine)
    [call] = (await graph.aget_state(config)).values["calls"]
    await house.approve(asked)
    await house.change_call(theirs, call)
    await house.approve(other)

    async with database.transaction() as tx:  # the thief's run comes first
        await tx.execute(
            "update runs set due_at = due_at + interval '1 hour' where turn_id = %(t)s", {"t": mine.turn_id}
        )
    await house.worker.run_until_idle(theirs.thread_id)
    assert world.arrivals() == []
    assert list(await house.effects(theirs)) == []
    await house.rows("update runs set due_at = due_at - interval '2 hours' where status = 'due' returning run_id")
    await house.worker.run_until_idle(mine.thread_id)
    assert [line["args"]["to"] for line in world.arrivals()] == ["bo"]


# Rows changed by the owner of the tables


TAMPERED = {
    "payload": """
        alter table approval_revisions disable trigger user;
        alter table approvals disable trigger user;
        alter table decisions drop constraint decisions_approval_id_revision_payload_hash_fkey;
        with changed as (
            select approval_id, convert_to(replace(convert_from(payload, 'UTF8'), '700', '99999'), 'UTF8') as payload
              from approval_revisions)
        update approval_revisions r set payload = c.payload, payload_hash = sha256(c.payload)
          from changed c where r.approval_id = c.approval_id;
        update approvals a set payload_hash = r.payload_hash from approval_revisions r where r.approval_id = a.approval_id;
    """,
    "digest": """
        update approvals set digest = sha256('anything');
    """,
    "key": "update approvals set key_id = 'k0'",
    "votes": """
        alter table decisions disable trigger user;
        delete from decisions;
    """,
}


@pytest.mark.parametrize("tampered", TAMPERED)
async def test_v6_a_row_that_was_changed_is_never_executed(
    database: Database, owner: Database, world: World, tampered: str
) -> None:
    """The owner of the tables rewrites what was approved, consistently, but has no key: nothing is executed."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn, _ = await approved(house)
    async with owner.transaction() as tx:
        for statement in TAMPERED[tampered].split(";"):
            if statement.strip():
                await tx.execute(statement)  # type: ignore[arg-type]
    await house.elsewhere().go_on(turn)
    assert world.arrivals() == []
    assert await house.effects(turn) == []
    [item] = await house.items(turn)
    assert item.status == "failed"
    assert item.result is not None
    assert item.result["error"]["code"] == "tampered_row"
    assert house.model.results() == [item.result]


async def test_v6_an_approval_without_a_decision_is_none(database: Database, world: World) -> None:
    """Somebody with write access sets the status to approved: without anybody's vote it executes nothing."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    await house.rows("update approvals set status = 'approved', decided_at = clock() returning approval_id")
    await house.rows("update plan_items set status = 'approved' returning item_id")
    await house.worker.sweep()
    await house.elsewhere().go_on(turn)
    assert world.arrivals() == []
    assert await house.effects(turn) == []


# After a deploy


async def test_g8_a_tool_that_is_gone_makes_the_call_an_orphan(database: Database, world: World) -> None:
    """Approved, then deployed without the tool: not actionable, waits for people, never reported as success."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn, asked = await approved(house)
    without = RULES[: RULES.index("[pay]")] + RULES[RULES.index("[mail]") :]
    deployed = house.elsewhere(tools=[Look(world), Label(world), Mail(world)], rules=without)
    waiting = await deployed.go_on(turn)

    assert waiting.status == "awaiting_approval"
    assert [item.status for item in await house.items(turn)] == ["orphaned"]
    closed = await house.approval(asked.approval_id)
    assert closed.status == "orphaned"
    assert closed.closed_because == "The tool pay no longer exists."
    assert world.arrivals() == []
    await deployed.worker.sweep()
    assert await deployed.worker.claim() is None  # it does not run in circles
    await house.cancel(turn)
    await deployed.go_on(turn)
    assert [item.status for item in await house.items(turn)] == ["cancelled"]


async def test_g8_a_tool_that_takes_something_else_now_makes_the_call_an_orphan(
    database: Database, world: World
) -> None:
    """The tool's schema changed while the call waited: the old approval is not applied to the new tool."""

    class Narrower(PayArguments):
        reference: str

    class NewPay(Pay):
        Arguments = Narrower

    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn, asked = await approved(house)
    deployed = house.elsewhere(tools=[Look(world), Label(world), Mail(world), NewPay(world)])
    assert (await deployed.go_on(turn)).status == "awaiting_approval"
    assert (await house.approval(asked.approval_id)).status == "orphaned"
    assert world.arrivals() == []


@pytest.mark.parametrize("renamed", ["call", "approval"])
async def test_g8_a_renamed_node_is_never_reported_as_success(
    database: Database, world: World, renamed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that waits has another name after a deploy: the turn waits as an orphan, nothing runs in circles."""
    import graph as wiring  # noqa: PLC0415
    from placet.worker import Worker  # noqa: PLC0415

    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn, _ = await approved(house)
    original = wiring.StateGraph

    class Renaming(original):  # type: ignore[misc, valid-type, type-arg]
        def add_node(self, name: str, *args: Any, **kwargs: Any) -> Any:
            return super().add_node(_new(name), *args, **kwargs)

        def add_edge(self, start: str, end: str) -> Any:
            return super().add_edge(_new(start), _new(end))

        def add_conditional_edges(self, source: str, path: Any, path_map: Any = None) -> Any:
            if isinstance(path_map, dict):
                path_map = {key: _new(value) for key, value in path_map.items()}
            if isinstance(path_map, list):
                path_map = [_new(value) for value in path_map]
            return super().add_conditional_edges(_new(source), path, path_map)

    def _new(name: str) -> str:
        return f"new_{name}" if name == renamed else name

    monkeypatch.setattr(wiring, "StateGraph", Renaming)
    if renamed == "call":
        monkeypatch.setattr(wiring, "Send", lambda name, state: Send(_new(name), state))
    deployed = house.elsewhere()
    monkeypatch.undo()
    assert isinstance(deployed.worker, Worker)
    after = await deployed.go_on(turn)

    assert after.status != "completed"
    assert world.arrivals() == []
    assert [item.status for item in await house.items(turn)] == ["orphaned"]
    await deployed.worker.sweep()
    assert await deployed.worker.claim() is None


@pytest.mark.parametrize("version", [0, 2])
async def test_g8_a_checkpoint_of_another_version_is_refused_by_name(
    database: Database, world: World, version: int
) -> None:
    """A paused turn whose state is older or newer than the code: an error that names both versions, once, and nothing runs."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn, _ = await approved(house)
    graph, config = await house.graph(turn)
    await graph.aupdate_state(config, {"state_version": version}, as_node="plan")
    failed = await house.elsewhere().go_on(turn)

    assert failed.error is not None
    assert failed.error["code"] == "state_version_mismatch"
    assert f"version {version}" in failed.error["message"]
    assert "has 1" in failed.error["message"]
    assert world.arrivals() == []
    assert await house.worker.claim() is None
    assert await house.rows("select 1 from threads where owner is not null") == []


async def test_g8_a_new_turn_on_a_thread_of_another_version_waits_and_says_why(
    database: Database, world: World
) -> None:
    """The thread's last checkpoint is newer than the code: the new turn is left for a process that knows that version."""
    house = await outside_house(database, world, "Hello.")
    turn = await house.run()
    graph, config = await house.graph(turn)
    await graph.aupdate_state(config, {"state_version": 2}, as_node="plan")
    left = await house.run("Again.", thread_id=turn.thread_id)
    assert left.status == "created"
    assert left.error is not None
    assert left.error["code"] == "state_version_mismatch"
    assert await house.rows("select 1 from threads where owner is not null") == []


async def test_e5_what_never_left_is_sent_again_only_within_the_window(
    database: Database, world: World, clock: Clock
) -> None:
    """Nothing was sent, the call is asked again, and decided a day later: its key is too old to send it once more."""
    house = await outside_house(database, world, calls(PAY), "Too late.", approval_ttl=timedelta(hours=40))

    async def nothing(world: World, tool: str, args: Any, operation_id: str) -> Any:
        world.facts["open"] = 41
        raise NothingSent("no line")

    world.next("pay", nothing)
    turn, _ = await approved(house)
    assert (await house.go_on(turn)).status == "awaiting_approval"
    await clock.advance(25 * 3600)
    [again] = await house.pending(turn)
    await house.approve(again)
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1
    [item] = await house.items(turn)
    assert item.status == "failed"
    assert item.result is not None
    assert item.result["error"]["code"] == "window_closed"


async def test_e8_what_never_left_is_tried_three_times_under_one_key(database: Database, world: World) -> None:
    """The call fails before anything is sent: the same operation is tried again, three times at most, then it failed."""
    house = await outside_house(database, world, calls(PAY), "Not sent.")
    world.next("pay", *[raises(NothingSent("no line \x00"))] * 5)
    turn, _ = await approved(house)
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 3
    assert len({line["key"] for line in world.arrivals()}) == 1
    [item] = await house.items(turn)
    assert item.result is not None
    assert item.result["error"]["code"] == "not_sent"
    assert world.done() == []
