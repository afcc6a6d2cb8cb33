"""What a client does not get by asking differently: another's thread, an older checkpoint, an answer that is none."""

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from placet.api.langgraph import sending
from placet.api.langgraph.opened import open_face
from placet.record import client_runs, credentials, people
from placet.record.database import Database
from tests.api.langgraph.serving import SETTINGS, Serving, serving
from tests.api.langgraph.test_resume import APPROVE, ASK, PAY, still_pending
from tests.outside import World
from tests.scripted import calls
from tests.steps import TENANT, House, outside_house


async def posted(server: Serving, who: str, path: str, body: dict[str, Any], **params: str) -> httpx.Response:
    async with server.http(who) as http:
        return await http.post(path, json=body, params=params)


async def known(server: Serving, house: House, who: str, *roles: str, duties: tuple[str, ...] = ()) -> str:
    """Somebody more of the tenant, with a key."""
    async with house.database.transaction() as tx:
        await people.ensure(tx, TENANT, who, name=who.title(), roles=list(roles), duties=list(duties))
    server.keys[who] = await server.key(house, who)
    return who


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"type": "approve", "payload_hash": 5},
        {"type": "approve", "payload_hash": None},
        [{"type": "accept", "args": None, "payload_hash": ["00"]}],
        {"decisions": [{"type": "approve", "payload_hash": {}}]},
    ],
    ids=repr,
)
async def test_a6_null_and_a_hash_that_is_none_are_no_answers(database: Database, world: World, answer: Any) -> None:
    """422 in every client's form, never taken for an answer to what is pending now; then a good one counts."""
    house = await outside_house(database, world, calls(PAY), "Paid.", **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        path, body = f"/threads/{turn.thread_id}/runs", {"assistant_id": "placet", "command": {"resume": answer}}
        told = await posted(server, "marta", path, body)
        assert (told.status_code, told.json()["code"]) == (422, "invalid_decision")
        await still_pending(house)
        assert (await posted(server, "marta", path, {**body, "command": {"resume": APPROVE}})).status_code == 200
    assert (await house.go_on(turn)).status == "completed"


async def test_l4_a_checkpoint_tells_nothing_of_anothers_thread(database: Database, world: World) -> None:
    """A message that names a checkpoint is answered as for a thread that does not exist, without its latest one."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        who = await known(server, house, "ben", "requester")
        body = {"assistant_id": "placet", "input": ASK, "checkpoint_id": "00000000-0000-0000-0000-000000000000"}
        answer = await posted(server, who, f"/threads/{turn.thread_id}/runs", body)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_thread")
        answer = await posted(server, who, f"/threads/{turn.thread_id}/runs", {**body, "if_not_exists": "create"})
        nothing = await posted(server, who, f"/threads/{uuid4()}/runs", {**body, "if_not_exists": "create"})
        assert (answer.status_code, answer.json()) == (nothing.status_code, nothing.json())


@pytest.mark.parametrize("asked", [{}, {"command": {"goto": "plan"}}], ids=["wake", "goto"])
async def test_e2_nothing_is_run_from_an_older_checkpoint(
    database: Database, world: World, asked: dict[str, Any]
) -> None:
    """A run without a message that names an older checkpoint is told that the thread has moved on, not woken."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        newest, older, *_ = await server.client("otto").threads.get_history(str(turn.thread_id))
        body = {"assistant_id": "placet", **asked}
        old = {**body, "checkpoint_id": older["checkpoint"]["checkpoint_id"]}
        answer = await posted(server, "otto", f"/threads/{turn.thread_id}/runs", old)
        assert (answer.status_code, answer.json()["code"]) == (409, "stale_checkpoint")
        assert await house.rows("select 1 from runs where status = 'due'") == []
        new = {**body, "checkpoint": newest["checkpoint"]}
        assert (await posted(server, "otto", f"/threads/{turn.thread_id}/runs", new)).status_code == 200


async def test_l1_history_goes_on_behind_a_checkpoint_in_every_clients_form(database: Database, world: World) -> None:
    """An id, a checkpoint, or the configuration that the JavaScript SDK sends; an object that names none is 422."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        path = f"/threads/{turn.thread_id}/history"
        found = [state["checkpoint"] for state in (await posted(server, "ana", path, {"limit": 1000})).json()]
        first, rest = found[0], found[1:]
        for before in (first["checkpoint_id"], first, {"configurable": first}):
            answer = await posted(server, "ana", path, {"before": before})
            assert [state["checkpoint"] for state in answer.json()] == rest
        answer = await posted(server, "ana", path, {"before": {"configurable": {}}})
        assert (answer.status_code, answer.json()["field"]) == (422, "before")


@pytest.mark.parametrize(
    ("xray", "status"), [("true", 200), ("false", 200), ("2", 200), ("²", 422), ("-1", 422), ("x", 422)]
)
async def test_l5_the_graphs_picture_is_drawn_as_deep_as_a_number_says(
    database: Database, world: World, xray: str, status: int
) -> None:
    """What is neither yes, no nor a number is 422."""
    house = await outside_house(database, world, **SETTINGS)
    async with serving(house, worker=False) as server, server.http("ana") as http:
        answer = await http.get("/assistants/placet/graph", params={"xray": xray})
        assert answer.status_code == status, answer.text


async def test_a5_case_15_a_decision_that_is_refused_is_audited(database: Database, world: World) -> None:
    """Who tries to decide their own request, or an id that is not there, by either door, stands in the audit chain."""

    def resumed(answer: dict[str, Any]) -> dict[str, Any]:
        return {"assistant_id": "placet", "command": {"resume": answer}}

    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        [asked] = await house.pending()
        runs, nowhere = f"/threads/{turn.thread_id}/runs", uuid4()
        yes = {"kind": "approve", "payload_hash": asked.payload_hash.hex()}
        tries = [
            ("ana", runs, resumed(APPROVE), 403),
            ("marta", runs, resumed({**yes, "approval_id": str(nowhere)}), 404),
            ("marta", f"/v1/approvals/{nowhere}/decision", yes, 404),
        ]
        for who, path, body, status in tries:
            assert (await posted(server, who, path, body)).status_code == status
        await still_pending(house)
    told = await house.rows("select actor, subject from audit where action = 'refused' order by n")
    assert told == [
        {"actor": "ana", "subject": f"thread:{turn.thread_id}"},
        {"actor": "marta", "subject": f"thread:{turn.thread_id}"},
        {"actor": "marta", "subject": f"approval:{nowhere}"},
    ]


async def test_l1_cancelling_all_runs_cancels_what_one_asked_for(database: Database, world: World) -> None:
    """Runs of one's own turns, also one that somebody else resumed; another's turn that one decided about is left alone."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        body = {"assistant_id": "placet", "command": {"resume": APPROVE}}
        assert (await posted(server, "marta", f"/threads/{turn.thread_id}/runs", body)).status_code == 200
        assert (await posted(server, "marta", "/runs/cancel", {"status": "all"})).status_code == 204
        assert (await house.turn(turn.turn_id)).status == "awaiting_approval"
        assert (await posted(server, "ana", "/runs/cancel", {"status": "all"})).status_code == 204
        assert (await house.turn(turn.turn_id)).status == "cancelled"
    assert world.arrivals() == []


async def test_a5_who_writes_into_a_conversation_does_not_decide_what_is_asked_in_it(
    database: Database, world: World
) -> None:
    """An operator who is a reviewer too tells the agent to pay, and approves that: refused by either door; Marta may."""
    house = await outside_house(database, world, "Hello.", calls(PAY), "Paid.", **SETTINGS)
    async with serving(house, worker=False) as server:
        olga = await known(server, house, "olga", "operator", "reviewer", duties=("support", "finance"))
        turn = await house.run("Hello.")
        thread = f"/threads/{turn.thread_id}"
        said = {"values": {"messages": [{"role": "user", "content": "Pay Bo 7 as soon as I say go."}]}}
        assert (await posted(server, olga, f"{thread}/state", said)).status_code == 200
        turn = await house.run("Go.", thread_id=turn.thread_id)
        [asked] = await house.pending()
        body = {"assistant_id": "placet", "command": {"resume": APPROVE}}
        decision, yes = (
            f"/v1/approvals/{asked.approval_id}/decision",
            {**APPROVE, "payload_hash": asked.payload_hash.hex()},
        )
        for path, sent in ((f"{thread}/runs", body), (decision, yes)):
            assert (await posted(server, olga, path, sent)).json()["code"] == "not_allowed"
        async with server.http(olga) as http:
            assert (await http.get("/v1/approvals", params={"mine": True})).json()["rows"] == []
        await still_pending(house)
        with pytest.raises(psycopg.errors.CheckViolation, match="wrote into the conversation"):
            await house.rows(
                """
                insert into decisions (approval_id, revision, user_id, tenant_id, kind, payload_hash, channel)
                select approval_id, revision, 'olga', tenant_id, 'approve', payload_hash, 'api' from approvals
                returning 1
                """
            )
        assert (await posted(server, "marta", f"{thread}/runs", body)).status_code == 200
    assert (await house.go_on(turn)).status == "completed"


async def test_l4_looking_starts_nothing(database: Database, world: World) -> None:
    """A run without input does not start a turn before its time, whoever sends it, and an auditor cannot send one."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server:
        aldo = await known(server, house, "aldo", "auditor")
        thread = f"/threads/{uuid4()}/runs"
        later = {"assistant_id": "placet", "input": ASK, "after_seconds": 3600, "if_not_exists": "create"}
        assert (await posted(server, "ana", thread, later)).status_code == 200
        look = {"assistant_id": "placet", "input": None}
        assert (await posted(server, aldo, thread, look)).json()["code"] == "not_allowed"
        for who in ("marta", "otto", "ana"):
            assert (await posted(server, who, thread, look)).json()["status"] == "pending"
        await house.worker.run_until_idle()
        assert await house.rows("select 1 from turns where status <> 'created'") == []


async def test_l4_a_threads_owner_is_who_made_it(database: Database, world: World) -> None:
    """Metadata cannot name another one, and a search by owner finds what is shown as theirs."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server:
        made = (await posted(server, "ana", "/threads", {"metadata": {"owner": "pedro", "case": 1}})).json()
        assert made["metadata"] == {"owner": "ana", "case": 1}
        for owner, found in (("ana", 1), ("pedro", 0), (5, 0)):
            body = {"metadata": {"owner": owner, "case": 1}}
            assert len((await posted(server, "marta", "/threads/search", body)).json()) == found
            assert (await posted(server, "marta", "/threads/count", body)).json() == found


async def test_l1_our_own_fault_is_no_client_that_went_away(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that breaks because the database is away cancels nothing, also with `on_disconnect: cancel`."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server:

        async def away(*_: object) -> None:
            raise psycopg.OperationalError("gone")

        body = {"assistant_id": "placet", "input": ASK, "on_disconnect": "cancel"}
        with monkeypatch.context() as broken:
            broken.setattr("placet.record.streams.progress", away)
            with pytest.raises(httpx.RemoteProtocolError):
                await posted(server, "ana", "/runs/stream", body)
    [turn] = await house.rows("select status from turns")
    assert turn == {"status": "created"}


async def test_a3_an_answer_that_is_repeated_is_told_what_is_stored(database: Database, world: World) -> None:
    """By call the same again is 200 and another's 409, by an interrupt that is over 409: each with the outcome."""
    house = await outside_house(database, world, calls(PAY), "Paid.", **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        thread = f"/threads/{turn.thread_id}"
        [shown] = (await server.client("marta").threads.get_state(str(turn.thread_id)))["interrupts"]

        async def answer(who: str, kind: str, *, by_call: bool = True) -> httpx.Response:
            one = {"type": kind, "message": "no", "tool_call_id": shown["value"]["tool_call_id"]}
            body = {"assistant_id": "placet", "command": {"resume": one if by_call else {shown["id"]: one}}}
            return await posted(server, who, f"{thread}/runs", body)

        assert (await answer("marta", "approve")).status_code == 200
        await house.go_on(turn)
        assert (await answer("marta", "approve")).status_code == 200
        for late, code in (
            (await answer("marta", "reject"), "already_decided"),
            (await answer("pedro", "approve"), "already_decided"),
            (await answer("marta", "approve", by_call=False), "stale_interrupt"),
        ):
            assert (late.status_code, late.json()["code"]) == (409, code)
            assert late.json()["outcome"]["decided_by"] == "marta"
    await house.worker.run_until_idle()
    assert len(world.arrivals("pay")) == 1


async def test_l1_an_update_whose_goto_leads_nowhere_changes_nothing(database: Database, world: World) -> None:
    """Both or neither: a refused answer is never about half of it."""
    house = await outside_house(database, world, "Hello.", **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run("Hello.")
        note = {"messages": [{"role": "user", "content": "A note."}]}
        body = {"assistant_id": "placet", "command": {"update": note, "goto": "plan"}}
        assert (await posted(server, "otto", f"/threads/{turn.thread_id}/runs", body)).status_code == 409
        state = await server.client("ana").threads.get_state(str(turn.thread_id))
        assert "A note." not in [message["content"] for message in state["values"]["messages"]]


async def test_l1_who_waits_for_a_run_that_is_removed_from_sight_still_gets_its_outcome(
    database: Database, world: World
) -> None:
    """A run that ended can be removed before its waiter has read how it ended; the answer is whole all the same."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server:
        made = (await posted(server, "ana", "/runs", {"assistant_id": "placet", "input": ASK})).json()
        await house.worker.run_until_idle()
        async with house.database.transaction() as tx:
            run = await client_runs.get(tx, TENANT, UUID(made["thread_id"]), UUID(made["run_id"]))
            await client_runs.remove(tx, run)
        face = open_face(house.services, asyncio.Event())
        said = b"".join([part async for part in sending.outcome(face, sending.Viewer(run, [], still))])
        assert len(json.loads(said)["__interrupt__"]) == 1
        path = f"/threads/{made['thread_id']}/runs/{made['run_id']}/join"
        async with server.http("ana") as http:
            assert (await http.get(path)).status_code == 404


async def still() -> None:
    """It is theirs to see."""


@pytest.mark.parametrize(
    "old",
    [
        [{"type": "accept", "args": {"action": "pay", "args": {"to": "rosa", "minor": 100}}}],
        [{"type": "accept", "args": {"action": "mail", "args": {"to": "rosa", "minor": 700}}}],
    ],
    ids=["other arguments", "another tool"],
)
async def test_l2_an_old_message_about_another_call_decides_nothing(
    database: Database, world: World, old: list[Any]
) -> None:
    """A was rejected, B is proposed; a client's late "approve A" echoes A: 409, and B is still pending."""
    house = await outside_house(database, world, calls(PAY), calls(("pay", {"to": "rosa", "minor": 700})), **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        await house.reject((await house.pending())[0])
        await house.go_on(turn)
        [asked] = await house.pending()
        body = {"assistant_id": "placet", "command": {"resume": old}}
        told = await posted(server, "marta", f"/threads/{turn.thread_id}/runs", body)
        assert (told.status_code, told.json()["code"]) == (409, "not_the_same_request")
        assert told.json()["pending_hash"] == asked.payload_hash.hex()

        shown = {"action": "pay", "args": asked.content["arguments"]}
        accept = [{"type": "accept", "args": shown}]
        body = {"assistant_id": "placet", "command": {"resume": accept}}
        assert (await posted(server, "marta", f"/threads/{turn.thread_id}/runs", body)).status_code == 200


async def test_e2_an_older_checkpoint_in_the_configuration_is_one_too(database: Database, world: World) -> None:
    """`config.configurable.checkpoint_id`, as older clients say it: 409 like the field, nothing is run from it."""
    house = await outside_house(database, world, calls(PAY), "Paid.", **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        states = await server.client("ana").threads.get_history(str(turn.thread_id))
        older = {"configurable": {"checkpoint_id": states[-1]["checkpoint"]["checkpoint_id"]}}
        body = {"assistant_id": "placet", "command": {"resume": APPROVE}, "config": older}
        told = await posted(server, "marta", f"/threads/{turn.thread_id}/runs", body)
        assert (told.status_code, told.json()["code"]) == (409, "stale_checkpoint")


@pytest.mark.parametrize("how", ["join", "stream"])
async def test_l4_who_is_locked_out_while_a_run_is_followed_hears_no_more(
    database: Database, world: World, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is revoked while a client waits: it is told so instead of what the run came to."""
    monkeypatch.setattr(sending, "HEARTBEAT", 0.05)
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server, server.http("ana") as http:
        made = (await http.post("/runs", json={"assistant_id": "placet", "input": ASK})).json()
        path = f"/threads/{made['thread_id']}/runs/{made['run_id']}/{how}"
        async with http.stream("GET", path) as answer:
            async with database.transaction() as tx:
                for key in await credentials.of_tenant(tx, TENANT, user_id="ana"):
                    await credentials.revoke(tx, TENANT, key.key_id, by="test")
            said = "".join([text async for text in answer.aiter_text()])
    assert "not_authenticated" in said
    assert "pay" not in said


async def test_i5_what_was_approved_and_then_cancelled_was_not_cancelled_by_who_approved(
    database: Database, world: World
) -> None:
    """A late decision is told that it was cancelled, and not by Marta, who had approved."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server:
        turn = await house.run()
        [asked] = await house.pending()
        await house.approve(asked)
        await house.cancel(turn)
        late = {"kind": "reject", "reason": "no", "payload_hash": asked.payload_hash.hex()}
        told = await posted(server, "pedro", f"/v1/approvals/{asked.approval_id}/decision", late)
        assert (told.status_code, told.json()["message"]) == (409, "It was cancelled before.")
        assert told.json()["outcome"]["decided_by"] == "marta"


async def test_l5_metadata_do_not_grow_without_end(database: Database, world: World) -> None:
    """Patch by patch up to a limit; then 422 with the field, and the thread takes messages as before."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house, worker=False) as server, server.http("ana") as http:
        thread = f"/threads/{(await http.post('/threads', json={})).json()['thread_id']}"
        assert (await http.patch(thread, json={"metadata": {"a": "x" * 200_000}})).status_code == 200
        told = await http.patch(thread, json={"metadata": {"b": "x" * 200_000}})
        assert (told.status_code, told.json()["field"]) == (422, "metadata")
        assert (await http.patch(thread, json={"metadata": {"a": 1}})).json()["metadata"] == {"a": 1, "owner": "ana"}
        body = {"assistant_id": "placet", "input": ASK}
        assert (await http.post(f"{thread}/runs", json=body)).status_code == 200


async def test_l5_a_trailing_slash_is_another_place(database: Database, world: World) -> None:
    """404 in JSON, and no redirect that a client would send its key to, in clear behind a proxy."""
    house = await outside_house(database, world, **SETTINGS)
    async with serving(house, worker=False) as server, server.http("ana") as http:
        told = await http.post("/threads/", json={}, headers={"Host": "elsewhere.example"})
        assert (told.status_code, told.json()["code"]) == (404, "no_such_route")
