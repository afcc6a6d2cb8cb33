"""Waiting for people: who decides, once, about what they saw; and that nothing a client sends can break the waiting."""

import asyncio
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from langgraph.types import Command

from graph.advance import AmbiguousAnswer
from graph.deciding import decide
from placet.record import approvals, people
from placet.record.approvals import UnknownApproval
from placet.record.database import Database
from placet.record.decisions import AlreadyDecided, ApprovalExpired, InvalidDecision, NotTheSameRequest
from placet.record.errors import NotAllowed
from tests.conftest import Clock
from tests.outside import World, happens_after
from tests.scripted import calls
from tests.steps import outside_house, together

PAY = ("pay", {"to": "bo", "minor": 700})
LARGE = ("pay", {"to": "bo", "minor": 200_000})


async def test_a4_a_decision_that_was_answered_is_never_asked_again(database: Database, world: World) -> None:
    """The worker dies right after the decision; the next one goes on without asking."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    assert (await house.approve(asked)).first
    await house.die_at("start:committed", turn)
    ended = await house.elsewhere().go_on(turn)

    assert ended.status == "completed"
    assert (await house.told(turn)).count("approval_requested") == 1
    assert len(world.arrivals()) == 1


async def test_a4_a_decision_without_any_worker_is_acted_on_later(database: Database, world: World) -> None:
    """Decided while no worker runs; one that is started later continues."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.approve(asked)
    assert world.arrivals() == []
    assert (await house.elsewhere().go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1


async def test_a5_nobody_decides_without_the_duty_or_about_their_own_request(database: Database, world: World) -> None:
    """No duty, no reviewer, the requester themselves: 403 each, and it stays answerable."""
    house = await outside_house(database, world, calls(LARGE), "Paid.")
    turn = await house.ask(user=house.marta)
    await house.go_on(turn)
    [asked] = await house.pending(turn)
    for who in (house.lena, house.ana, house.marta):
        with pytest.raises(NotAllowed) as refused:
            await house.approve(asked, who)
        assert refused.value.status == 403
    assert await house.pending(turn) == [asked]
    await house.approve(asked, house.pedro)
    assert (await house.go_on(turn)).status == "completed"


async def test_a5_a_duty_that_was_taken_away_counts_at_once(database: Database, world: World) -> None:
    """Somebody who was a reviewer when they logged in is none now: refused."""
    house = await outside_house(database, world, calls(LARGE))
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.rows("update users set duties = '{support}' where user_id = 'marta' returning 1")
    with pytest.raises(NotAllowed):
        await house.approve(asked, house.marta)


async def test_a5_what_a_payload_claims_about_identity_counts_for_nothing(database: Database, world: World) -> None:
    """A decision that names its author is refused whole; a resume without authentication decides nothing."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    [asked] = await house.pending(turn)
    for claim in ({"user_id": "pedro"}, {"decided_by": "pedro"}, {"tenant_id": "other"}):
        with pytest.raises(InvalidDecision):
            await house.decide(asked, {"kind": "approve", **claim})
    await house.resume(turn, Command(resume={"kind": "approve", "user_id": "marta"}), acting=house.marta)
    await house.resume(turn, Command(resume={"kind": "approve"}))
    assert await house.pending(turn) == [asked]
    assert world.arrivals() == []


async def test_a5_an_approval_that_is_not_there_or_not_yours(database: Database, world: World) -> None:
    """An id that never existed and one of another tenant's are the same 404; nothing changes."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    [asked] = await house.pending(turn)
    async with database.transaction() as tx:
        await people.ensure(tx, "other", "marta", name="M", roles=["reviewer"], duties=["support", "finance"])
        stranger = await people.get(tx, "other", "marta")
    yes = {"kind": "approve", "payload_hash": asked.payload_hash.hex()}
    for approval_id, who in ((uuid4(), house.marta), (asked.approval_id, stranger)):
        with pytest.raises(UnknownApproval) as refused:
            await decide(house.services, approval_id, yes, who, channel="test")
        assert refused.value.status == 404
    assert await house.pending(turn) == [asked]


MALFORMED: list[Any] = [
    None,
    {},
    "",
    1,
    True,
    "false",
    "approve",
    [],
    [{"kind": "approve"}, {"kind": "approve"}],
    {"kind": "accept"},
    {"kind": "reject"},
    {"kind": "reject", "reason": " "},
    {"kind": "reject", "reason": "a\x00b"},
    {"kind": "reject", "reason": "a\ud800b"},
    {"kind": "reject", "reason": 3},
    {"kind": "reject", "reason": "x" * 5000},
    {"kind": "approve", "a\x00b": 1},
    {"kind": "approve", "a\ud800b": 1},
    {"kind": "approve", "arguments": {"to": "eve", "minor": 1}},
    {"kind": "approve_with_changes"},
    {"kind": "approve_with_changes", "arguments": []},
    {"kind": "approve_with_changes", "arguments": {"to": "bo"}},
    {"kind": "approve_with_changes", "arguments": {"to": "bo", "minor": "lots"}},
    {"kind": "approve_with_changes", "arguments": {"to": "bo", "minor": 2**70}},
    {"kind": "approve_with_changes", "arguments": {"to": "b\x00", "minor": 1}},
    {"kind": "approve_with_changes", "arguments": {"to": "bo", "minor": 1, "rate": float("nan")}},
    {"kind": "approve_with_changes", "arguments": {"to": "bo", "minor": 1, "tool": "mail"}},
    {"kind": "approve", "payload_hash": "00"},
    {"kind": "approve", "payload_hash": None},
    {"action": "approve"},
]


@pytest.mark.parametrize("door", ["decide", "resume"])
async def test_a6_a_malformed_decision_leaves_the_approval_answerable(
    database: Database, world: World, door: str
) -> None:
    """Whatever is sent, by either door: 422 where there is an answer, and then a good decision works."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    for raw in MALFORMED:
        if door == "decide":
            full = {"payload_hash": asked.payload_hash.hex(), **raw} if isinstance(raw, dict) else raw
            with pytest.raises(InvalidDecision) as refused:
                await house.decide_raw(asked, full)
            assert refused.value.status == 422
            str(refused.value).encode()
        elif raw is not None:  # LangGraph itself cannot bring None
            with suppress(InvalidDecision):  # what no store takes is refused before it gets there
                assert await house.resume(turn, Command(resume=raw), acting=house.marta) == "awaiting_approval", raw
        assert await house.pending(turn) == [asked], raw
    assert world.arrivals() == []
    if door == "decide":
        await house.approve(asked)
        assert (await house.go_on(turn)).status == "completed"
    else:
        assert await house.resume(turn, Command(resume={"kind": "approve"}), acting=house.marta) in (
            "completed",
            "awaiting_approval",
        )
        assert (await house.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1


@pytest.mark.parametrize(
    "value",
    [
        2**70,
        {"kind": "approve", "n": 2**70},
        float("nan"),
        {"kind": float("inf")},
        {1: 2},
        {"a": {"b": b"bytes"}},
        object(),
    ],
    ids=["big", "big-inside", "nan", "infinity", "number-as-key", "bytes", "object"],
)
async def test_a6_a_resume_that_no_store_takes_does_not_end_the_turn(
    database: Database, world: World, value: Any
) -> None:
    """A resume value that cannot even be stored is refused; the question is as answerable as before."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    with pytest.raises(InvalidDecision) as refused:
        await house.resume(turn, Command(resume=value), acting=house.marta)
    assert refused.value.status == 422
    assert (await house.turn(turn.turn_id)).status == "awaiting_approval"
    assert await house.pending(turn) == [asked]
    await house.approve(asked)
    assert (await house.go_on(turn)).status == "completed"


async def test_a6_an_answer_that_could_be_meant_for_two_questions_is_given_to_none(
    database: Database, world: World
) -> None:
    """Two questions are pending: an answer without an id, or with a wrong one, is 409 with both ids; with the right id it
    answers that one; and when nothing is pending it is 409 too."""
    house = await outside_house(
        database, world, calls(("pay", {"to": "a", "minor": 700}), ("pay", {"to": "b", "minor": 800})), "Paid."
    )
    turn = await house.run()
    waiting = await house.pending(turn)
    yes = {"kind": "approve"}
    for answer in (yes, {"0" * 32: yes}, {"0" * 32: yes, "f" * 32: yes}):
        with pytest.raises(AmbiguousAnswer) as refused:
            await house.resume(turn, Command(resume=answer), acting=house.marta)
        assert refused.value.status == 409
        assert await house.pending(turn) == waiting
    graph, config = await house.graph(turn)
    questions = {q.value["approval_id"]: q.id for q in (await graph.aget_state(config)).interrupts}
    assert sorted(questions.values()) == refused.value.details["pending"]
    second = waiting[1]
    await house.resume(turn, Command(resume={questions[str(second.approval_id)]: yes}), acting=house.marta)
    await house.go_on(turn)
    assert [line["args"]["to"] for line in world.arrivals()] == ["b"]
    await house.approve(waiting[0])
    assert (await house.go_on(turn)).status == "completed"
    with pytest.raises(AmbiguousAnswer):
        await house.resume(turn, Command(resume=yes), acting=house.marta)
    assert (await house.turn(turn.turn_id)).status == "completed"
    assert len(world.arrivals()) == 2


@pytest.mark.parametrize(
    "command",
    [Command(goto="__end__"), Command(goto="plan"), Command(update={"calls": []}), Command(resume=1, goto="gate")],
    ids=["goto-end", "goto-plan", "update", "resume-and-goto"],
)
async def test_a6_a_resume_that_goes_elsewhere_is_refused(
    database: Database, world: World, command: Command[Any]
) -> None:
    """A client's command may bring an answer, not move the turn: 422, and the question is as answerable as before."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    waiting = await house.pending(turn)
    with pytest.raises(InvalidDecision):
        await house.resume(turn, command, acting=house.marta)
    assert await house.pending(turn) == waiting
    assert (await house.turn(turn.turn_id)).status == "awaiting_approval"
    await house.approve(waiting[0])
    assert (await house.go_on(turn)).status == "completed"


async def test_a6_an_old_answer_never_lands_on_the_next_question(database: Database, world: World) -> None:
    """A is rejected, the agent proposes B; an old "approve A" arrives: 409, and B is still pending."""
    house = await outside_house(database, world, calls(PAY), calls(("pay", {"to": "cy", "minor": 800})), "Done.")
    turn = await house.run()
    [a] = await house.pending(turn)
    await house.reject(a)
    await house.go_on(turn)
    [b] = await house.pending(turn)
    with pytest.raises(AlreadyDecided) as refused:
        await house.approve(a)
    assert refused.value.status == 409
    old = {"kind": "approve", "payload_hash": a.payload_hash.hex()}
    with pytest.raises(NotTheSameRequest):
        await house.decide(b, old)
    await house.resume(turn, Command(resume=old), acting=house.marta)
    assert await house.pending(turn) == [b]
    assert world.arrivals() == []


async def test_a3_a_resume_value_is_a_decision_like_any_other(database: Database, world: World) -> None:
    """Whoever is authenticated approves by a resume: it is recorded with them and their channel, and executes."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.resume(turn, Command(resume={"kind": "approve"}), acting=house.marta)
    await house.go_on(turn)
    assert await house.rows("select user_id, kind, channel from decisions") == [
        {"user_id": "marta", "kind": "approve", "channel": "resume"}
    ]
    assert (await house.approval(asked.approval_id)).effect == "committed"
    assert len(world.arrivals()) == 1


async def test_a9_expired_stays_expired_and_both_late_deciders_are_told(
    database: Database, world: World, clock: Clock
) -> None:
    """One second too late: rejecting and approving are both refused, and the model hears that nobody decided."""
    house = await outside_house(database, world, calls(PAY), "Nobody decided.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    await clock.advance(24 * 3600 + 1)
    late = await together(house.reject(asked, who=house.marta), house.approve(asked, who=house.pedro))
    assert [type(outcome) for outcome in late] == [ApprovalExpired, ApprovalExpired]
    await house.worker.sweep()
    for who in (house.marta, house.pedro):
        with pytest.raises(AlreadyDecided, match="expired"):
            await house.approve(asked, who)
    ended = await house.go_on(turn)

    assert ended.status == "completed"
    [result] = house.model.results()
    assert result["expired"] is True
    assert "approval_denied" not in result
    assert world.arrivals() == []
    assert (await house.told(turn)).count("approval_closed") == 1


async def test_a9_several_sweepers_expire_it_once(database: Database, world: World, clock: Clock) -> None:
    """Four sweepers look at the same instant: one expires it, one event, one run."""
    house = await outside_house(database, world, calls(PAY), "Nobody decided.")
    turn = await house.run()
    await clock.advance(25 * 3600)
    await together(*(house.worker.sweep() for _ in range(4)))
    assert (await house.told(turn)).count("approval_closed") == 1
    assert len(await house.rows("select 1 from runs where status = 'due'")) == 1
    await house.go_on(turn)
    assert [item.status for item in await house.items(turn)] == ["expired"]


async def test_g5_a_sweeper_that_is_faster_than_the_node_does_not_lose_the_result(
    database: Database, world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node finds the approval overdue, a sweeper expires it a moment earlier: the call still gets its result."""
    house = await outside_house(database, world, calls(PAY, ("pay", {"to": "cy", "minor": 800})), "Nobody decided.")
    turn = await house.run()
    first, _ = await house.pending(turn)
    await house.reject(first)
    await clock.advance(25 * 3600)
    closing = approvals.close

    async def slow(*args: Any, **kwargs: Any) -> bool:
        monkeypatch.setattr(approvals, "close", closing)
        await house.rows(
            "update approvals set status = 'expired', closed_at = clock() where status = 'pending' returning approval_id"
        )
        return await closing(*args, **kwargs)

    monkeypatch.setattr(approvals, "close", slow)
    ended = await house.go_on(turn)
    assert ended.status == "completed"
    assert [item.status for item in await house.items(turn)] == ["rejected", "expired"]
    assert house.model.results()[1]["expired"] is True


async def test_a10_a_rejection_is_a_prompt(database: Database, world: World) -> None:
    """The model is told that a person refused, who and why, and what it must not do; nothing else reads like that."""
    house = await outside_house(database, world, calls(PAY), "I wanted to pay Bo.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.reject(asked, "Bo was paid in March")
    await house.go_on(turn)

    [result] = house.model.results()
    assert set(result) == {"ok", "approval_denied", "tool", "denied_by", "reason", "instruction"}
    assert (result["ok"], result["approval_denied"], result["tool"]) == (False, True, "pay")
    assert (result["denied_by"], result["reason"]) == ("marta", "Bo was paid in March")
    assert "smaller batches" in result["instruction"]
    assert "approval_denied" in house.model.shown[0][0].text  # the system prompt states the protocol
    assert world.arrivals() == []


async def test_a3_approved_while_it_executes_says_so(database: Database, world: World) -> None:
    """The effect takes its time; approving again is answered with "dispatched", to another person with 409."""
    started, gate = asyncio.Event(), asyncio.Event()
    world.next("pay", happens_after(gate, started))
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.approve(asked)
    work = asyncio.create_task(house.worker.run_until_idle())
    await started.wait()
    assert (await house.approve(asked)).effect == "dispatched"
    with pytest.raises(AlreadyDecided, match="being executed"):
        await house.approve(asked, house.pedro)
    gate.set()
    await work
    assert (await house.turn(turn.turn_id)).status == "completed"
    assert len(world.arrivals()) == 1


async def test_a1_the_models_words_stand_apart(database: Database, world: World) -> None:
    """Title, impact and sample are made by code; what the model said is kept beside them, as its own words."""
    words = "Urgent: approve this at once, it is only 1.00."
    answer = calls(PAY, text=words)
    house = await outside_house(database, world, answer)
    turn = await house.run()
    [asked] = await house.pending(turn)
    assert asked.rationale == words
    assert asked.preview["title"] == "Pay 700 to bo"
    assert asked.preview["impact"] == ["38 are open"]
    assert words not in str(asked.preview)
    assert words not in str(asked.content)
    assert asked.precondition == {"open": 38}
    assert (asked.rule, asked.reason) == ("pay", "Money that has gone out does not come back.")
