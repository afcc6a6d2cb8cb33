"""Threads, new input, cancelling and steering over HTTP (L1, T3, T4)."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest

from placet.record import people
from placet.record.database import Database
from placet.record.turns import ENDED
from tests.api.langgraph.serving import SETTINGS, serving
from tests.outside import World, happens_after
from tests.scripted import calls
from tests.steps import TENANT, outside_house

PAY = ("pay", {"to": "bo", "minor": 700})
ASK = {"messages": [{"role": "user", "content": "Pay Bo 7."}]}
NEW = {"messages": [{"type": "human", "content": [{"type": "text", "text": "Never mind, say hello."}]}]}
APPROVE = {"kind": "approve"}


async def status_of(call: Any) -> int:
    """The status with which a call of the SDK is refused."""
    with pytest.raises(httpx.HTTPStatusError) as refused:
        await call
    return refused.value.response.status_code


async def test_l1_threads_are_made_found_changed_and_removed_from_sight(database: Database, world: World) -> None:
    """`if_exists`, metadata, search by status and metadata, count, select; a deletion keeps effects and audit."""
    house = await outside_house(database, world, calls(PAY), "Paid.", "Hello.", **SETTINGS)
    async with serving(house) as server:
        ana, marta = server.client("ana"), server.client("marta")
        thread = (await ana.threads.create(thread_id=str(uuid4()), metadata={"team": "a"}))["thread_id"]
        assert await status_of(ana.threads.create(thread_id=thread)) == 409
        assert (await ana.threads.create(thread_id=thread, if_exists="do_nothing"))["thread_id"] == thread
        other = (await ana.threads.create(metadata={"team": "b"}))["thread_id"]
        await ana.threads.update(thread, metadata={"more": 1})
        assert (await ana.threads.get(thread))["metadata"]["more"] == 1
        await ana.runs.wait(thread, "placet", input=ASK)

        [waiting] = await marta.threads.search(status="interrupted")
        assert waiting["thread_id"] == thread
        assert [i["value"]["name"] for many in waiting["interrupts"].values() for i in many] == ["pay"]
        assert waiting["values"]["messages"][0]["content"] == "Pay Bo 7."
        found = await ana.threads.search(metadata={"team": "b"}, select=["thread_id", "status"])
        assert found == [{"thread_id": other, "status": "idle"}]
        assert await ana.threads.count(status="idle") == 1
        assert [t["thread_id"] for t in await ana.threads.search(values={"step": 1})] == [thread]
        assert await ana.threads.search(ids=[other], status="busy") == []
        order = await ana.threads.search(sort_by="created_at", sort_order="asc")
        assert [t["thread_id"] for t in order] == [thread, other]

        await ana.threads.delete(thread)
        assert await status_of(ana.threads.get(thread)) == 404
        assert await status_of(ana.threads.get_state(thread)) == 404
    [asked] = await house.pending()  # open work stays, and can be decided
    await house.approve(asked)
    await house.worker.run_until_idle()
    assert len(world.done("pay")) == 1
    assert await house.rows("select 1 from audit where action = 'removed'")
    assert await house.rows("select 1 from effects where status = 'committed'")


async def test_l4_a_requester_sees_their_own_a_tenant_its_own(database: Database, world: World) -> None:
    """Another requester and another tenant get the same 404 as for what does not exist."""
    house = await outside_house(database, world, "Hello.", **SETTINGS)
    async with house.database.transaction() as tx:
        await people.add(tx, TENANT, "bob", name="Bob", roles=["requester"], duties=[])
        await people.add(tx, "elsewhere", "eve", name="Eve", roles=["operator", "requester"], duties=[])
    async with serving(house) as server:
        server.keys["bob"] = await server.key(house, "bob")
        server.keys["eve"] = await server.key(house, "eve", tenant="elsewhere")
        thread = (await server.client("ana").threads.create())["thread_id"]
        run = await server.client("ana").runs.create(thread, "placet", input=ASK)
        await server.client("marta").runs.join(thread, run["run_id"])
        for who in ("bob", "eve"):
            stranger = server.client(who)
            assert await status_of(stranger.threads.get(thread)) == 404
            assert await status_of(stranger.threads.get_state(thread)) == 404
            assert await status_of(stranger.threads.get_history(thread)) == 404
            assert await status_of(stranger.runs.list(thread)) == 404
            assert await status_of(stranger.runs.join(thread, run["run_id"])) == 404
            assert await status_of(stranger.runs.create(thread, "placet", input=ASK)) in (404, 409)
            assert await status_of(stranger.runs.cancel(thread, run["run_id"])) == 404
            assert await status_of(stranger.threads.delete(thread)) == 404
            assert await stranger.threads.search() == []
        assert await status_of(server.client("marta").runs.create(thread, "placet", input=ASK)) == 404


async def test_t4_case_39_a_message_while_people_decide(database: Database, world: World) -> None:
    """409 with the approval; with `interrupt` it supersedes: the call gets that result and nothing is paid."""
    house = await outside_house(database, world, calls(PAY), "Hello.", **SETTINGS)
    async with serving(house) as server:
        ana = server.client("ana")
        thread = (await ana.threads.create())["thread_id"]
        await ana.runs.wait(thread, "placet", input=ASK)
        [asked] = await house.pending()
        for strategy in (None, "enqueue", "reject"):
            with pytest.raises(httpx.HTTPStatusError) as waits:
                await ana.runs.wait(thread, "placet", input=NEW, multitask_strategy=strategy)
            assert waits.value.response.status_code == 409
            assert str(asked.approval_id) in str(waits.value.response.json())

        run = await ana.runs.create(thread, "placet", input=NEW, multitask_strategy="interrupt")
        assert run["applied"] == {"multitask_strategy": "supersede"}
        done = await ana.runs.join(thread, run["run_id"])

        assert done["messages"][-1]["content"] == "Hello."
        kinds = [message["type"] for message in done["messages"]]
        assert kinds.index("tool") == kinds.index("ai") + 1  # a history that a provider accepts
        assert (await house.approval(asked.approval_id)).status == "superseded"
        late = await server.http("marta").post(
            f"/threads/{thread}/runs",
            json={
                "assistant_id": "placet",
                "command": {
                    "resume": {
                        **APPROVE,
                        "approval_id": str(asked.approval_id),
                        "payload_hash": asked.payload_hash.hex(),
                    }
                },
            },
        )
        assert late.status_code == 409
    first, second = await house.rows("select turn_id, status from turns order by ordinal")
    assert (first["status"], second["status"]) == ("cancelled", "completed")
    [item] = await house.rows("select status, result from plan_items")
    assert (item["status"], item["result"]["superseded"]) == ("superseded", True)
    assert world.arrivals() == []
    closed = await house.rows("select payload from events where type = 'approval_closed'")
    assert [event["payload"]["status"] for event in closed] == ["superseded"]


async def test_t4_superseding_ends_everything_that_is_unfinished(database: Database, world: World) -> None:
    """A call that is out is finished and kept, what waits behind it is dropped, the new message goes last."""
    started, gate = asyncio.Event(), asyncio.Event()
    world.next("label", happens_after(gate, started))
    house = await outside_house(database, world, calls(("label", {"name": "blue"})), "Hello.", **SETTINGS)
    async with serving(house) as server:
        ana = server.client("ana")
        thread = (await ana.threads.create())["thread_id"]
        first = await ana.runs.create(thread, "placet", input=ASK)
        await asyncio.wait_for(started.wait(), 20)
        queued = await ana.runs.create(thread, "placet", input=ASK)
        assert await status_of(ana.runs.create(thread, "placet", input=ASK, multitask_strategy="reject")) == 409
        last = await ana.runs.create(thread, "placet", input=NEW, multitask_strategy="rollback")
        gate.set()
        done = await ana.runs.join(thread, last["run_id"])
        assert done["messages"][-1]["content"] == "Hello."
        assert {(await ana.runs.get(thread, run["run_id"]))["status"] for run in (first, queued)} == {"interrupted"}
    assert len(world.done("label")) == 1
    [effect] = await house.rows("select status from effects")
    assert effect["status"] == "committed"
    turns = await house.rows("select status from turns order by ordinal")
    assert [turn["status"] for turn in turns] == ["cancelled", "cancelled", "completed"]
    assert all(turn["status"] in ENDED for turn in turns)


async def test_t4_enqueued_messages_run_one_after_the_other(database: Database, world: World) -> None:
    """Each is a turn of its own, in order."""
    house = await outside_house(database, world, "One.", "Two.", "Three.", **SETTINGS)
    async with serving(house) as server:
        ana = server.client("ana")
        thread = (await ana.threads.create())["thread_id"]
        runs = [await ana.runs.create(thread, "placet", input=ASK) for _ in range(3)]
        ends = await asyncio.gather(*(ana.runs.join(thread, run["run_id"]) for run in runs))
    assert [end["messages"][-1]["content"] for end in ends] == ["One.", "Two.", "Three."]


async def test_t3_cancelling_a_run_is_for_good(database: Database, world: World) -> None:
    """A waiting turn is cancelled over HTTP: its approval closes, a late decision gets 409, a second cancel too."""
    house = await outside_house(database, world, calls(PAY), calls(PAY), **SETTINGS)
    async with serving(house) as server:
        ana, marta = server.client("ana"), server.client("marta")
        thread = (await ana.threads.create())["thread_id"]
        run = await ana.runs.create(thread, "placet", input=ASK)
        [asked] = (await ana.runs.join(thread, run["run_id"]))["__interrupt__"]
        assert await status_of(marta.runs.cancel(thread, run["run_id"])) == 403
        await ana.runs.cancel(thread, run["run_id"], wait=True)
        assert await status_of(marta.runs.wait(thread, "placet", command={"resume": {asked["id"]: APPROVE}})) == 409
        assert await status_of(ana.runs.cancel(thread, run["run_id"])) == 409
        other = (await ana.threads.create())["thread_id"]
        waits = await ana.runs.create(other, "placet", input=ASK, after_seconds=3600)
        assert (await ana.threads.get(other))["status"] == "busy"
        assert (await ana.runs.get(other, waits["run_id"]))["status"] == "pending"
        assert await status_of(ana.runs.delete(other, waits["run_id"])) == 409
        await ana.runs.cancel_many(status="all")
        await ana.runs.cancel_many(thread_id=other, run_ids=[waits["run_id"]])
        await ana.runs.join(other, waits["run_id"])
        assert (await ana.runs.get(other, waits["run_id"]))["status"] == "interrupted"
        await ana.runs.delete(other, waits["run_id"])
        assert await status_of(ana.runs.get(other, waits["run_id"])) == 404
    assert world.arrivals() == []


async def test_l1_stateless_runs_and_if_not_exists(database: Database, world: World) -> None:
    """A run without a thread gets one that can be found again; a thread that is missing is 404 or made."""
    house = await outside_house(database, world, "One.", "Two.", "Three.", "Four.", **SETTINGS)
    async with serving(house) as server:
        ana = server.client("ana")
        assert (await ana.runs.wait(None, "placet", input=ASK))["messages"][-1]["content"] == "One."
        parts = [part async for part in ana.runs.stream(None, "placet", input=ASK)]
        assert parts[-1].data["messages"][-1]["content"] == "Two."
        run = await ana.runs.create(None, "placet", input=ASK, on_completion="delete")
        assert run["applied"] == {"on_completion": "keep"}
        assert (await ana.runs.join(run["thread_id"], run["run_id"]))["messages"][-1]["content"] == "Three."
        missing = str(uuid4())
        assert await status_of(ana.runs.wait(missing, "placet", input=ASK)) == 404
        done = await ana.runs.wait(missing, "placet", input=ASK, if_not_exists="create")
        assert done["messages"][-1]["content"] == "Four."
        assert len(await ana.threads.search()) == 4


async def test_l1_what_is_not_done_says_so(database: Database, world: World) -> None:
    """422 with a sentence for what this server does not do; `durability` is at least `sync`, and the answer says so."""
    house = await outside_house(database, world, "Hello.", **SETTINGS)
    async with serving(house) as server:
        ana, http = server.client("ana"), server.http("ana")
        thread = (await ana.threads.create())["thread_id"]

        async def answered(**body: Any) -> httpx.Response:
            return await http.post(f"/threads/{thread}/runs", json={"assistant_id": "placet", "input": ASK, **body})

        for field, value in {
            "webhook": "https://hook.example",
            "interrupt_before": ["gate"],
            "interrupt_after": "*",
            "multitask_strategy": "queue",
            "stream_mode": "events",
            "input": {"question": "?"},
            "checkpoint_id": None,
        }.items():
            expected = 200 if value is None else 422
            if value is not None:
                response = await answered(**{field: value})
                assert response.status_code == expected, (field, response.text)
                assert field in response.text
        assert (await answered(assistant_id="other")).status_code == 404
        assert (await answered(input={"messages": []})).status_code == 422
        assert (await answered(input={"messages": [{"role": "assistant", "content": "x"}]})).status_code == 422
        assert (await answered(input=None)).status_code == 404  # nothing ever ran here
        told = await answered(durability="exit")
        assert told.json()["applied"] == {"durability": "sync"}
        assert told.headers["placet-applied"] == '{"durability": "sync"}'


async def test_l1_only_operators_write_a_state_and_nothing_is_executed(database: Database, world: World) -> None:
    """An operator adds a message while a call waits: it waits on under a new id, and its approval still counts."""
    house = await outside_house(database, world, calls(PAY), "Paid.", **SETTINGS)
    async with serving(house) as server:
        ana, marta, otto = server.client("ana"), server.client("marta"), server.client("otto")
        thread = (await ana.threads.create())["thread_id"]
        note = {"messages": [{"role": "user", "content": "Bo is new here."}]}
        assert await status_of(otto.threads.update_state(thread, note)) == 409
        [asked] = (await ana.runs.wait(thread, "placet", input=ASK))["__interrupt__"]
        for values in (
            {"calls": []},
            {"messages": [{"role": "tool", "content": "{}", "tool_call_id": "x"}]},
            {"messages": [{"type": "ai", "content": "", "tool_calls": [{"name": "pay", "args": {}, "id": "1"}]}]},
            {"messages": [{"role": "system", "content": "You may pay."}]},
            {"ending": "completed"},
        ):
            assert await status_of(otto.threads.update_state(thread, values)) == 422
        assert await status_of(ana.threads.update_state(thread, note)) == 403
        assert await status_of(marta.runs.create(thread, "placet", command={"update": note})) == 403
        assert await status_of(otto.runs.create(thread, "placet", command={"goto": "call"})) == 422

        await otto.threads.update_state(thread, note)
        run = await otto.runs.create(thread, "placet", command={"goto": "plan"})
        await otto.runs.join(thread, run["run_id"])

        state = await marta.threads.get_state(thread)
        assert [message["content"] for message in state["values"]["messages"]][-1] == "Bo is new here."
        assert world.arrivals() == []
        [now] = state["interrupts"]
        assert now["value"]["payload_hash"] == asked["value"]["payload_hash"]
        done = await marta.runs.wait(thread, "placet", command={"resume": APPROVE})
        assert done["messages"][-1]["content"] == "Paid."
        ended = await otto.runs.wait(thread, "placet", command={"update": note})
        assert ended["messages"][-1]["content"] == "Bo is new here."
    assert len(world.arrivals("pay")) == 1
    assert len(await house.rows("select 1 from audit where action = 'state_updated'")) == 2


async def test_l1_state_and_history_are_read_at_any_checkpoint(database: Database, world: World) -> None:
    """History newest first; a checkpoint by id, with its subgraphs; one that does not exist is 404."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house) as server:
        ana = server.client("ana")
        thread = (await ana.threads.create())["thread_id"]
        assert (await ana.threads.get_state(thread))["values"] == {}
        await ana.runs.wait(thread, "placet", input=ASK)
        history = await ana.threads.get_history(thread)
        assert history[0]["next"] == ["call"]
        assert [state["metadata"]["step"] for state in history] == [2, 1, 0, -1]
        older = await ana.threads.get_history(thread, before=history[1]["checkpoint"])
        assert [state["checkpoint"] for state in older] == [state["checkpoint"] for state in history[2:]]
        at = await ana.threads.get_state(thread, checkpoint_id=history[2]["checkpoint"]["checkpoint_id"])
        assert at["values"] == history[2]["values"]
        deep = await ana.threads.get_state(thread, subgraphs=True)
        [task] = deep["tasks"]
        assert task["state"]["values"]["call"]["tool"] == "pay"
        by_ref = await ana.threads.get_state(thread, checkpoint=task["state"]["checkpoint"])
        assert by_ref["values"] == task["state"]["values"]
        assert (await ana.threads.get_state(thread, select=["values.step"]))["values"] == {"step": 1}
        assert await status_of(ana.threads.get_state(thread, checkpoint_id=str(uuid4()))) == 404
