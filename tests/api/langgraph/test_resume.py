"""Resuming over HTTP, with the official SDK: by whichever form, it is the same `decide` (L2, A6)."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import httpx
import pytest

from placet.record import people
from placet.record.database import Database
from tests.api.langgraph.serving import SETTINGS, Serving, serving
from tests.outside import World
from tests.scripted import calls
from tests.steps import TENANT, House, outside_house

PAY = ("pay", {"to": "bo", "minor": 700})
ASK = {"messages": [{"role": "user", "content": "Pay Bo 7."}]}
APPROVE = {"kind": "approve"}


async def paused(server: Serving) -> tuple[str, list[dict[str, Any]]]:
    """A thread of Ana's that waits for people, and its interrupts."""
    thread = await server.client("ana").threads.create()
    values = await server.client("ana").runs.wait(thread["thread_id"], "placet", input=ASK)
    return thread["thread_id"], values["__interrupt__"]


async def resume(server: Serving, thread: str, answer: Any, who: str = "marta") -> Any:
    return await server.client(who).runs.wait(thread, "placet", command={"resume": answer})


async def refused(server: Serving, thread: str, answer: Any, who: str = "marta") -> tuple[int, dict[str, Any]]:
    """Status and body of a resume that is not taken."""
    async with server.http(who) as http:
        body = {"assistant_id": "placet", "command": {"resume": answer}}
        sent = json.dumps(body)  # with escapes: half a surrogate pair too
        response = await http.post(
            f"/threads/{thread}/runs/wait", content=sent, headers={"Content-Type": "application/json"}
        )
    return response.status_code, response.json()


async def still_pending(house: House) -> None:
    [asked] = await house.pending()
    assert asked.status == "pending"


async def test_l1_a_run_waits_pauses_and_a_scalar_resume_executes_once(database: Database, world: World) -> None:
    """Create, wait until it is interrupted, resume as another person: the payment is made, once."""
    house = await outside_house(database, world, calls(PAY), "Paid.", **SETTINGS)
    async with serving(house) as server:
        ana = server.client("ana")
        thread = await ana.threads.create(metadata={"case": "one"})
        assert thread["status"] == "idle"
        values = await ana.runs.wait(thread["thread_id"], "placet", input=ASK)
        [asked] = values["__interrupt__"]
        found = await ana.threads.get(thread["thread_id"])
        assert found["status"] == "interrupted"
        assert [i["id"] for many in found["interrupts"].values() for i in many] == [asked["id"]]
        assert world.arrivals() == []

        done = await resume(server, thread["thread_id"], APPROVE)

        assert "__interrupt__" not in done
        assert done["messages"][-1]["content"] == "Paid."
        assert len(world.done("pay")) == 1
        status, problem = await refused(server, thread["thread_id"], APPROVE)
        assert (status, problem["code"], problem["status"]) == (409, "nothing_pending", "completed")
        assert len(world.done("pay")) == 1


ACCEPTED: dict[str, Any] = {
    "ours": APPROVE,
    "agent inbox": [{"type": "accept", "args": {"action": "pay", "args": {"to": "eve", "minor": "999999"}}}],
    "agent chat ui": {"decisions": [{"type": "approve"}]},
    "one call": {"type": "approve"},
}
REFUSED: dict[str, Any] = {
    "ours": {"kind": "reject", "reason": "not bo"},
    "agent inbox, answer": [{"type": "response", "args": "not bo"}],
    "agent inbox, ignored": [{"type": "ignore", "args": None}],
    "agent chat ui": {"decisions": [{"type": "reject", "message": "not bo"}]},
    "one call": {"type": "reject", "message": "not bo"},
}


@pytest.mark.parametrize("form", ACCEPTED)
async def test_l2_every_clients_yes_is_the_same_decision(database: Database, world: World, form: str) -> None:
    """Whatever a client echoes of the action, what was asked about is what runs."""
    house = await outside_house(database, world, calls(PAY), "Paid.", **SETTINGS)
    async with serving(house) as server:
        thread, [asked] = await paused(server)
        await resume(server, thread, {asked["id"]: ACCEPTED[form]})
    [paid] = world.done("pay")
    assert (paid["args"]["to"], paid["args"]["minor"]) == ("bo", 700)
    [decision] = await house.rows("select user_id, kind, channel from decisions")
    assert decision == {"user_id": "marta", "kind": "approve", "channel": "langgraph"}


@pytest.mark.parametrize("form", REFUSED)
async def test_l2_every_clients_no_is_the_same_decision(database: Database, world: World, form: str) -> None:
    """A refusal has a reason, the agent is told, nothing is paid."""
    house = await outside_house(database, world, calls(PAY), "Not paid.", **SETTINGS)
    async with serving(house) as server:
        thread, _ = await paused(server)
        await resume(server, thread, REFUSED[form])
    assert world.arrivals() == []
    [result] = house.model.results()
    assert result["approval_denied"] is True
    assert result["reason"]


async def test_l2_the_interrupt_carries_the_shapes_that_clients_render(database: Database, world: World) -> None:
    """Agent Inbox, Agent Chat UI and per-call clients find theirs; one action each, from the stored call."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house) as server:
        _, [asked] = await paused(server)
    value = asked["value"]
    arguments = {"to": "bo", "minor": 700, "rate": None, "note": None}
    assert value["action_request"] == {"action": "pay", "args": arguments}
    assert set(value["config"]) == {"allow_accept", "allow_edit", "allow_respond", "allow_ignore"}
    assert [(a["name"], a["args"]) for a in value["action_requests"]] == [("pay", arguments)]
    assert [r["action_name"] for r in value["review_configs"]] == ["pay"]
    assert (value["type"], value["name"], value["args"]) == ("tool_approval", "pay", arguments)
    assert value["description"].startswith("Pay 700 to bo\n38 are open")


@pytest.mark.parametrize(
    "answer",
    [
        "yes", True, 1, [], {}, {"kind": "approved"}, [{"type": "accept"}, {"type": "accept"}], {"decisions": []},
        {"type": "shell"}, {"kind": "reject"}, {"type": "reject"}, {"kind": "approve", "payload_hash": "00"},
        {"kind": "approve", "extra": 1}, {"kind": "approve", "reason": "\ud800"}, [[]], {"type": "edit", "args": "x"},
    ],
    ids=repr,
)  # fmt: skip
async def test_a6_what_cannot_be_read_leaves_the_approval_answerable(
    database: Database, world: World, answer: Any
) -> None:
    """422, nothing recorded, and the next good answer counts."""
    house = await outside_house(database, world, calls(PAY), "Paid.", **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        status, problem = await refused(server, str(turn.thread_id), answer)
        assert status == 422, problem
        await still_pending(house)
        async with server.http("marta") as http:
            body = {"assistant_id": "placet", "command": {"resume": APPROVE}}
            assert (await http.post(f"/threads/{turn.thread_id}/runs", json=body)).status_code == 200
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.done("pay")) == 1


async def test_l2_who_decides_is_who_is_authenticated(database: Database, world: World) -> None:
    """The requester, somebody without the duty, and a name in the payload: refused; the approval waits on."""
    house = await outside_house(database, world, calls(("pay", {"to": "bo", "minor": 200_000})), **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        thread = str(turn.thread_id)
        assert (await refused(server, thread, APPROVE, "ana"))[0] == 403
        assert (await refused(server, thread, APPROVE, "lena"))[0] == 403
        assert (await refused(server, thread, {**APPROVE, "decided_by": "marta"}, "lena"))[0] in (403, 422)
        await still_pending(house)
        async with house.database.transaction() as tx:
            await tx.execute("update users set duties = '{}' where user_id = 'marta'")
            await people.get(tx, TENANT, "marta")
        assert (await refused(server, thread, APPROVE, "marta"))[0] == 403
        await still_pending(house)


async def test_l2_two_wait_and_an_answer_without_an_id_is_ambiguous(database: Database, world: World) -> None:
    """409, both stay; by id one runs to its end while the other waits; a map that answers both decides both or none."""
    two = calls(PAY, ("pay", {"to": "cy", "minor": 900}))
    house = await outside_house(database, world, two, "Both paid.", **SETTINGS)
    async with serving(house) as server:
        thread, asked = await paused(server)
        status, problem = await refused(server, thread, APPROVE)
        assert (status, problem["code"], len(problem["approvals"])) == (409, "ambiguous_answer", 2)
        bo = next(one for one in asked if one["value"]["args"]["to"] == "bo")
        cy = next(one for one in asked if one["value"]["args"]["to"] == "cy")
        half = {bo["id"]: APPROVE, cy["id"]: {"kind": "approve", "payload_hash": "0" * 64}}
        assert (await refused(server, thread, half))[0] == 409
        assert len(await house.pending()) == 2

        values = await resume(server, thread, {bo["id"]: APPROVE})

        assert [one["value"]["args"]["to"] for one in values["__interrupt__"]] == ["cy"]
        assert [line["args"]["to"] for line in world.done("pay")] == ["bo"]
        status, problem = await refused(server, thread, {bo["id"]: APPROVE})
        assert (status, problem["code"], problem["pending"]) == (409, "stale_interrupt", [cy["id"]])
        done = await resume(server, thread, APPROVE)
        assert done["messages"][-1]["content"] == "Both paid."
    assert [line["args"]["to"] for line in world.done("pay")] == ["bo", "cy"]


async def test_l2_case_15_an_id_that_never_existed_or_is_of_another_thread(database: Database, world: World) -> None:
    """404 or 409; another thread's approval is not reached through this one; nothing changes."""
    house = await outside_house(database, world, calls(PAY), calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server:
        first = await house.run()
        [other] = await house.pending(first)
        second = await house.run()
        here = str(second.thread_id)
        assert (await refused(server, here, {"00" * 16: APPROVE}))[0] == 409
        assert (await refused(server, here, {**APPROVE, "approval_id": str(uuid4())}))[0] == 404
        assert (await refused(server, here, {**APPROVE, "approval_id": str(other.approval_id)}))[0] == 404
        state = await server.client("marta").threads.get_state(str(first.thread_id))
        assert (await refused(server, here, {state["interrupts"][0]["id"]: APPROVE}))[0] == 409
        assert (await refused(server, str(uuid4()), APPROVE))[0] == 404
        async with house.database.transaction() as tx:
            await people.add(tx, "elsewhere", "eve", name="Eve", roles=["reviewer"], duties=["support", "finance"])
        server.keys["eve"] = await server.key(house, "eve", tenant="elsewhere")
        assert (await refused(server, here, APPROVE, "eve"))[0] in (404, 409)
    assert len(await house.pending()) == 2
    assert await house.rows("select 1 from decisions") == []


async def test_l2_case_17_an_old_answer_does_not_land_on_the_new_question(database: Database, world: World) -> None:
    """A is rejected, the agent proposes B, an old message says "approve A": 409, B still pends."""
    look, again = calls(PAY), calls(("mail", {"to": ["x@out.example"], "text": "Sorry."}))
    house = await outside_house(database, world, look, again, **SETTINGS)
    async with serving(house) as server:
        thread, [a] = await paused(server)
        shown = {"approval_id": a["value"]["approval_id"], "payload_hash": a["value"]["payload_hash"]}
        values = await resume(server, thread, {a["id"]: {"kind": "reject", "reason": "no"}})
        [b] = values["__interrupt__"]
        assert (await refused(server, thread, {a["id"]: APPROVE}))[0] == 409
        assert (await refused(server, thread, {**APPROVE, **shown}))[0] == 409
        assert (await refused(server, thread, {**APPROVE, "payload_hash": a["value"]["payload_hash"]}))[0] == 409
        [pending] = await house.pending()
        assert str(pending.approval_id) == b["value"]["approval_id"]
    assert world.arrivals() == []


async def test_l2_the_same_answer_twice_is_answered_and_executes_once(database: Database, world: World) -> None:
    """Twenty copies of one answer at once, as clients do that retry: each gets 200 or 409, one payment is made."""
    house = await outside_house(database, world, calls(PAY), "Paid.", **SETTINGS)
    async with serving(house) as server:
        thread, [asked] = await paused(server)
        shown = {"approval_id": asked["value"]["approval_id"], "payload_hash": asked["value"]["payload_hash"]}
        body = {"assistant_id": "placet", "command": {"resume": {**APPROVE, **shown}}}
        async with server.http("marta") as http:
            answers = await asyncio.gather(*(http.post(f"/threads/{thread}/runs/wait", json=body) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.json()["messages"][-1]["content"] for answer in answers} == {"Paid."}
        assert (await refused(server, thread, {**APPROVE, **shown}, "pedro"))[0] == 409
    assert len(world.arrivals("pay")) == 1


async def test_l2_a_busy_thread_takes_a_decision(database: Database, world: World) -> None:
    """While a run works on one call, the decision on its sibling is taken, whatever the strategy says."""
    from tests.outside import happens_after  # noqa: PLC0415

    started, gate = asyncio.Event(), asyncio.Event()
    world.next("pay", happens_after(gate, started))
    two = calls(PAY, ("pay", {"to": "cy", "minor": 900}))
    house = await outside_house(database, world, two, "Both paid.", **SETTINGS)
    async with serving(house) as server:
        thread, [first, second] = await paused(server)
        marta = server.client("marta")
        running = asyncio.create_task(resume(server, thread, {first["id"]: APPROVE}))
        await asyncio.wait_for(started.wait(), 20)
        assert (await marta.threads.get(thread))["status"] == "busy"
        run = await marta.runs.create(
            thread, "placet", command={"resume": {second["id"]: APPROVE}}, multitask_strategy="reject"
        )
        gate.set()
        await running
        done = await marta.runs.join(thread, run["run_id"])
        assert done["messages"][-1]["content"] == "Both paid."
    assert len(world.done("pay")) == 2


async def test_a8_an_edit_counts_when_its_preview_was_seen(database: Database, world: World) -> None:
    """Without the hash of its preview an edit is shown, not taken; with it, the edited call runs."""
    house = await outside_house(database, world, calls(PAY), "Paid.", **SETTINGS)
    async with serving(house) as server:
        thread, [asked] = await paused(server)
        edit = {"type": "edit", "args": {"action": "mail", "args": {"to": "bo", "minor": 600}}}
        status, problem = await refused(server, thread, [edit])
        assert (status, problem["code"], problem["preview"]["title"]) == (409, "edit_not_seen", "Pay 600 to bo")
        await still_pending(house)
        await resume(server, thread, {asked["id"]: [{**edit, "payload_hash": problem["payload_hash"]}]})
    [paid] = world.done("pay")
    assert paid["args"]["minor"] == 600


async def test_l2_a_resume_on_a_stale_checkpoint_is_refused(database: Database, world: World) -> None:
    """A client that names an older checkpoint saw something else: 409."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        marta = server.client("marta")
        newest, older, *_ = await marta.threads.get_history(str(turn.thread_id))
        with pytest.raises(httpx.HTTPStatusError) as old:
            await marta.runs.create(
                str(turn.thread_id), "placet", command={"resume": APPROVE}, checkpoint=older["checkpoint"]
            )
        assert old.value.response.status_code == 409
        await still_pending(house)
        await marta.runs.create(
            str(turn.thread_id), "placet", command={"resume": APPROVE}, checkpoint=newest["checkpoint"]
        )
    assert await house.pending() == []
