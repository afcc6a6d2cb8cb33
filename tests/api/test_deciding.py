"""Deciding over HTTP: once, by the right person, about what was shown (A3, A5, A6, L2)."""

import asyncio

import pytest

from placet.record import credentials
from tests.api.serving import Served
from tests.outside import World
from tests.steps import TENANT


async def test_l3_a_decision_over_http_is_stored_and_a_worker_executes_it(served: Served, world: World) -> None:
    """The request answers when the decision is durable; nothing has been executed then, and exactly one payment is after."""
    asked = await served.paused()

    answer = await served.decide(asked, {"kind": "approve"})

    assert answer.status_code == 200
    assert answer.json()["status"] == "approved"
    assert answer.json()["first"] is True
    assert world.arrivals("pay") == []
    await served.house.worker.run_until_idle()
    assert len(world.done("pay")) == 1
    whole = (await served.to("ana").get(f"/v1/turns/{asked['turn_id']}")).json()
    assert whole["turn"]["status"] == "completed"
    assert whole["turn"]["output_text"] == "It is done."
    assert whole["effects"][0]["receipt"]["summary"] == "pay is done"
    assert whole["approvals"][0]["decided_by"] == "marta"


async def test_a3_the_same_again_gets_the_stored_outcome_and_another_a_conflict_with_it(served: Served) -> None:
    """A double click is 200 with what is stored; another person's decision is 409 and says what was decided, by whom."""
    asked = await served.paused()
    await served.decide(asked, {"kind": "approve"})

    again = await served.decide(asked, {"kind": "approve"})
    other = await served.decide(asked, {"kind": "reject", "reason": "no"}, "pedro")

    assert (again.status_code, again.json()["first"]) == (200, False)
    assert other.status_code == 409
    assert other.json()["code"] == "already_decided"
    assert other.json()["outcome"]["decided_by"] == "marta"
    assert other.json()["outcome"]["status"] == "approved"


async def test_a3_of_many_decisions_at_once_exactly_one_wins(served: Served, world: World) -> None:
    """Twenty clicks of two people arrive together: one decision stands, everybody is told that one, one payment leaves."""
    asked = await served.paused()

    answers = await asyncio.gather(
        *(
            served.decide(asked, {"kind": "approve"}, "marta")
            if n % 2
            else served.decide(asked, {"kind": "reject", "reason": "no"}, "pedro")
            for n in range(20)
        )
    )

    row = await served.row(asked)
    winner = "marta" if row.status == "approved" else "pedro"
    for n, answer in enumerate(answers):
        mine = "marta" if n % 2 else "pedro"
        assert answer.status_code == (200 if mine == winner else 409)
    assert sum(answer.json().get("first", False) for answer in answers) == 1
    await served.house.worker.run_until_idle()
    assert len(world.done("pay")) == (row.status == "approved")


async def test_a5_nobody_decides_their_own_request_under_any_key(served: Served) -> None:
    """A reviewer who asked for the call is refused, with their first key and with another one of theirs."""
    turn_id = await served.ask(who="marta")
    await served.house.worker.run_until_idle()
    [asked] = (await served.to("marta").get("/v1/approvals", params={"turn_id": str(turn_id)})).json()["rows"]
    async with served.house.database.transaction() as tx:
        second, _ = await credentials.issue(tx, TENANT, "marta", label="phone", by="test")

    first = await served.decide(asked, {"kind": "approve"}, "marta")
    served.keys["marta again"] = second
    other = await served.decide(asked, {"kind": "approve"}, "marta again")

    assert asked["may_decide"] is False
    assert first.status_code == other.status_code == 403
    assert other.json()["code"] == "not_allowed"
    assert (await served.row(asked)).status == "pending"


async def test_a5_a_duty_or_role_taken_away_between_view_and_click_counts_at_once(served: Served) -> None:
    """What the person may do is read when they click, not when they looked."""
    asked = await served.paused()
    assert asked["may_decide"] is True
    async with served.house.database.transaction() as tx:
        await tx.execute("update users set duties = '{finance}' where user_id = 'marta'")

    without_duty = await served.decide(asked, {"kind": "approve"})
    async with served.house.database.transaction() as tx:
        await tx.execute("update users set roles = '{requester}', duties = '{}' where user_id = 'marta'")
    without_role = await served.decide(asked, {"kind": "approve"})

    assert without_duty.status_code == without_role.status_code == 403
    assert (await served.row(asked)).status == "pending"


async def test_a5_what_a_body_says_about_identity_is_refused(served: Served) -> None:
    """A decision that names somebody is an error, not a way to be somebody."""
    asked = await served.paused()

    answer = await served.decide(asked, {"kind": "approve", "user_id": "pedro", "reviewer": "pedro"})

    assert answer.status_code == 422
    assert (await served.row(asked)).status == "pending"


MALFORMED = [
    b"",
    b"null",
    b"[]",
    b'"approve"',
    b"{",
    b'{"kind": "approve"}',
    b'{"kind": "yes", "payload_hash": "%(hash)s"}',
    b'{"kind": "approve", "payload_hash": "not a hash"}',
    b'{"kind": "approve", "payload_hash": 12}',
    b'{"kind": "reject", "payload_hash": "%(hash)s"}',
    b'{"kind": "reject", "payload_hash": "%(hash)s", "reason": "   "}',
    b'{"kind": "reject", "payload_hash": "%(hash)s", "reason": "a\\u0000b"}',
    b'{"kind": "reject", "payload_hash": "%(hash)s", "reason": "\\ud800"}',
    b'{"kind": "approve", "payload_hash": "%(hash)s", "arguments": {"to": "me"}}',
    b'{"kind": "approve_with_changes", "payload_hash": "%(hash)s"}',
    b'{"kind": "approve_with_changes", "payload_hash": "%(hash)s", "arguments": {"minor": NaN}}',
    b'{"kind": "approve_with_changes", "payload_hash": "%(hash)s", "arguments": {"minor": 1e999}}',
    b'{"kind": "approve_with_changes", "payload_hash": "%(hash)s", "arguments": ' + b'{"a":' * 500 + b"1" + b"}" * 501,
    b"[" * 100_000,
    b"\xff\xfe",
]


async def test_a6_a_malformed_decision_is_refused_and_the_approval_stays_answerable(
    served: Served, world: World
) -> None:
    """Whatever is sent gets a 4xx with a code; afterwards the right decision is still taken."""
    asked = await served.paused()
    path = f"/v1/approvals/{asked['approval_id']}/decision"

    for raw in MALFORMED:
        body = raw.replace(b"%(hash)s", asked["payload_hash"].encode())
        answer = await served.to("marta").post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), (raw[:80], answer.text)
        assert answer.json()["code"], answer.text
        assert answer.json()["message"], answer.text

    assert (await served.decide(asked, {"kind": "approve"})).status_code == 200
    await served.house.worker.run_until_idle()
    assert len(world.done("pay")) == 1


async def test_a8_an_edit_is_previewed_then_decided_with_the_preview_s_hash(served: Served, world: World) -> None:
    """What runs is the edited call that the reviewer was shown; with the old hash it is refused."""
    asked = await served.paused()
    path = f"/v1/approvals/{asked['approval_id']}"
    arguments = {"to": "rosa", "minor": 75}
    shown = (await served.to("marta").post(f"{path}/preview", json={"arguments": arguments})).json()

    old = await served.decide(asked, {"kind": "approve_with_changes", "arguments": arguments})
    right = await served.decide(
        asked,
        {"kind": "approve_with_changes", "arguments": shown["arguments"], "payload_hash": shown["payload_hash"]},
    )

    assert shown["preview"]["title"] == "Pay 75 to rosa"
    assert (old.status_code, old.json()["code"]) == (409, "not_the_same_request")
    assert right.status_code == 200
    await served.house.worker.run_until_idle()
    assert [line["args"]["minor"] for line in world.done("pay")] == [75]


async def test_a8_an_edit_that_needs_a_higher_duty_is_refused_and_it_stays_pending(served: Served) -> None:
    """The preview says so before anything counts."""
    asked = await served.paused()

    answer = await served.to("marta").post(
        f"/v1/approvals/{asked['approval_id']}/preview", json={"arguments": {"to": "rosa", "minor": 200_000}}
    )

    assert (answer.status_code, answer.json()["code"]) == (409, "edit_refused")
    assert (await served.row(asked)).status == "pending"


@pytest.mark.parametrize("arguments", [{}, {"to": ""}, {"to": "rosa", "minor": "100 EUR"}, {"to": "rosa", "more": 1}])
async def test_a8_an_edit_that_the_tool_does_not_take_names_the_field(
    served: Served, arguments: dict[str, object]
) -> None:
    """422, with the field."""
    asked = await served.paused()

    answer = await served.to("marta").post(
        f"/v1/approvals/{asked['approval_id']}/preview", json={"arguments": arguments}
    )

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_decision")
    assert answer.json()["field"]
