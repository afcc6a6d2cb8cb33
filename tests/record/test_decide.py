"""Deciding an approval: once, by the right person, about what was shown (A2–A5)."""

import asyncio
from typing import Any

import pytest

from placet.record import approvals, decisions, people
from placet.record.approvals import Revision
from placet.record.canonical import canonical
from placet.record.database import Database
from placet.record.decisions import AlreadyDecided, Decided, NotTheSameRequest, read_decision
from placet.record.errors import Tampered
from tests.outside import World
from tests.scripted import Scripted, calls
from tests.steps import TENANT, outside_house, together

PAY = ("pay", {"to": "bo", "minor": 700})


def fifty(messages: list[Any]) -> Any:
    """Fifty payments, and the end when their results are there."""
    if messages[-1].type != "human":
        return "Done."
    return calls(*[("pay", {"to": f"p{n}", "minor": 700}) for n in range(50)])


async def at_once(*work: Any) -> list[Any]:
    """Started by one barrier, on connections of their own."""
    barrier = asyncio.Barrier(len(work))

    async def one(awaitable: Any) -> Any:
        await barrier.wait()
        return await awaitable

    return await together(*(one(awaitable) for awaitable in work))


async def test_a3_two_hundred_times_two_people_decide_at_the_same_instant(
    database: Database, database_url: str, world: World
) -> None:
    """200 approvals, each decided twice at once, by one person or by two: the same person gets the stored outcome twice,
    of two people the second gets 409 with it; and in the end each approved call was executed once, no other."""
    async with Database(database_url, size=4) as elsewhere:
        house = await outside_house(database, world, model=Scripted(fifty), max_gated_calls=50)
        other = house.elsewhere(database=elsewhere)
        approved = set()
        for _ in range(4):
            turn = await house.run()
            for place, asked in enumerate(await house.pending(turn)):
                same = place % 2 == 0
                rejects = place % 10 == 1
                first, second = await at_once(
                    house.approve(asked),
                    other.reject(asked, who=other.pedro)
                    if rejects and not same
                    else other.approve(asked, who=other.marta if same else other.pedro),
                )
                stored = await house.approval(asked.approval_id)
                winners = [one for one in (first, second) if isinstance(one, Decided) and one.first]
                assert len(winners) == 1
                if same:
                    assert isinstance(first, Decided)
                    assert isinstance(second, Decided)
                    assert first.public() == second.public()
                else:
                    [loser] = [one for one in (first, second) if not (isinstance(one, Decided) and one.first)]
                    assert isinstance(loser, AlreadyDecided)
                    assert loser.details["outcome"] == winners[0].public()
                assert winners[0].status == stored.status
                if stored.status == "approved":
                    approved.add(str(asked.item_id))
            await at_once(house.worker.run_until_idle(), other.worker.run_until_idle())
    rows = await house.rows("select item_id::text, operation_id::text, status from effects")
    assert {row["item_id"] for row in rows} == approved
    assert {row["status"] for row in rows} == {"committed"}
    keys = [line["key"] for line in world.arrivals()]
    assert sorted(keys) == sorted(row["operation_id"] for row in rows)
    assert len(approved) >= 150
    votes = await house.rows("select count(*) as n from decisions")
    assert votes[0]["n"] == 200


async def test_a3_ten_people_at_once_leave_one_decision(database: Database, world: World) -> None:
    """Ten reviewers with different opinions press at the same instant: one vote, one event, one run, one audit row."""
    house = await outside_house(database, world, calls(PAY), "Done.")
    async with database.transaction() as tx:
        for n in range(10):
            await people.ensure(tx, TENANT, f"r{n}", name=f"R{n}", roles=["reviewer"], duties=["support"])
        crowd = [await people.get(tx, TENANT, f"r{n}") for n in range(10)]
    turn = await house.run()
    [asked] = await house.pending(turn)
    outcomes = await at_once(
        *(house.approve(asked, who) if n % 2 else house.reject(asked, who=who) for n, who in enumerate(crowd))
    )
    assert sum(isinstance(outcome, Decided) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, AlreadyDecided) for outcome in outcomes) == 9
    for table, where in (
        ("decisions", "true"),
        ("events", "type = 'approval_decided'"),
        ("runs", "status = 'due'"),
        ("audit", "action in ('approve', 'reject')"),
    ):
        [row] = await house.rows(f"select count(*) as n from {table} where {where}")
        assert row["n"] == 1, table


async def test_a3_the_stored_outcome_is_the_same_for_ever(database: Database, world: World) -> None:
    """Asked again by the same person, also after the effect: the same decision, time and reason."""
    house = await outside_house(database, world, calls(PAY), "Refused.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    first = await house.reject(asked, "too much")
    again = await house.reject(asked, "too much")
    assert (first.first, again.first) == (True, False)
    assert first.public() == again.public()
    with pytest.raises(AlreadyDecided) as other:
        await house.approve(asked)
    assert other.value.details["outcome"] == first.public()


async def test_a4_decision_and_wake_up_are_one_transaction(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the run cannot be made due, nothing of the decision stays: no vote, no event, still pending."""
    from placet.record import runs  # noqa: PLC0415

    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    before = await house.told(turn)

    async def broken(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("the database went away")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "make_due", broken)
        with pytest.raises(ConnectionError):
            await house.approve(asked)
    assert await house.pending(turn) == [asked]
    assert await house.rows("select 1 from decisions") == []
    assert await house.told(turn) == before
    assert (await house.approve(asked)).first


async def test_a2_a_decision_carries_the_hash_of_what_was_shown(database: Database, world: World) -> None:
    """Another hash than that of what is pending: 409 with the pending one, nothing recorded."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    [asked] = await house.pending(turn)
    with pytest.raises(NotTheSameRequest) as refused:
        await house.decide(asked, {"kind": "approve", "payload_hash": "0" * 64})
    assert refused.value.details["pending_hash"] == asked.payload_hash.hex()
    assert await house.rows("select 1 from decisions") == []


async def test_v6_what_was_tampered_with_cannot_be_decided(database: Database, owner: Database, world: World) -> None:
    """The row does not carry the digest of its identity: deciding it is refused, nothing is recorded."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    [asked] = await house.pending(turn)
    async with owner.transaction() as tx:
        await tx.execute("update placet.approvals set digest = sha256('other')")
    with pytest.raises(Tampered):
        await house.approve(asked)
    assert await house.rows("select 1 from decisions") == []


async def test_v3_the_audit_holds_what_the_person_saw(database: Database, world: World) -> None:
    """Who, when, by which channel, the payload with its hash and the preview: from the audit row alone."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    await house.approve(asked)
    [row] = await house.rows("select actor, action, subject, body from audit where action = 'approve'")
    assert (row["actor"], row["subject"]) == ("marta", f"approval:{asked.approval_id}")
    import json  # noqa: PLC0415

    body = json.loads(row["body"])
    assert body["payload"] == asked.content
    assert body["payload_hash"] == asked.payload_hash.hex()
    assert body["preview"]["title"] == "Pay 700 to bo"
    assert body["channel"] == "test"


async def test_a3_a_quorum_needs_different_people(database: Database, world: World) -> None:
    """Two people must approve: one alone leaves it pending, the same one twice too, the second completes it."""
    from tests.outside import RULES  # noqa: PLC0415

    rules = RULES.replace('id     = "pay"\nduty   = "support"', 'id     = "pay"\nduty   = "support"\nquorum = 2')
    house = await outside_house(database, world, calls(PAY), "Paid.", rules=rules)
    turn = await house.run()
    [asked] = await house.pending(turn)
    assert asked.quorum == 2
    assert (await house.approve(asked)).status == "pending"
    again = await house.approve(asked)
    assert (again.status, again.first) == ("pending", False)
    assert (await house.go_on(turn)).status == "awaiting_approval"
    assert world.arrivals() == []
    with pytest.raises(AlreadyDecided):
        await house.reject(asked)  # the same person, another opinion
    assert (await house.approve(asked, house.pedro)).status == "approved"
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1


async def test_a8_an_adopted_edit_is_signed_anew(database: Database, world: World) -> None:
    """The new revision is under the digest of the row, so that it cannot be swapped for another."""
    house = await outside_house(database, world, calls(PAY))
    turn = await house.run()
    [asked] = await house.pending(turn)
    payload = canonical({**asked.content, "arguments": {**asked.content["arguments"], "minor": 600}})
    edited = Revision(payload, asked.preview, asked.precondition)
    decision = read_decision(
        {
            "kind": "approve_with_changes",
            "payload_hash": edited.payload_hash.hex(),
            "arguments": {"to": "bo", "minor": 600},
        }
    )
    async with database.transaction() as tx:
        decided = await decisions.decide(
            tx, house.services.keys, asked.approval_id, decision, house.marta, channel="test", edited=edited
        )
    assert decided.status == "approved"
    async with database.read() as tx:
        after = await approvals.get(tx, TENANT, asked.approval_id)
    after.verify(house.services.keys)
    assert after.digest != asked.digest
