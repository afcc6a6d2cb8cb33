"""Streams: what a run does, as it does it, from any part on, in any server process (L1, V2)."""

import asyncio
import json
from typing import Any

import pytest
from langgraph_sdk.schema import StreamPart
from pydantic import SecretStr

from graph.openai_compatible import connect
from placet.api.langgraph import sending
from placet.record import streams
from placet.record.database import Database
from tests.api.langgraph.serving import SETTINGS, Serving, serving
from tests.outside import World, happens_after
from tests.peers import openai_server
from tests.scripted import calls
from tests.steps import House, outside_house, settings_for_tests

PAY = ("pay", {"to": "bo", "minor": 700})
ASK = {"messages": [{"role": "user", "content": "Pay Bo 7."}]}


async def streamed(server: Serving, thread: str, who: str = "ana", **how: Any) -> list[StreamPart]:
    return [part async for part in server.client(who).runs.stream(thread, "placet", **how)]


async def until(house: House, sql: str) -> None:
    """The rows say so, within 20 s."""
    async with asyncio.timeout(20):
        while not await house.rows(sql):  # noqa: ASYNC110  # rows tell nobody
            await asyncio.sleep(0.05)


def seen(parts: list[StreamPart]) -> list[tuple[str, str | None]]:
    return [(part.event, part.id) for part in parts]


async def test_l1_a_stream_begins_with_metadata_and_tells_the_pause(database: Database, world: World) -> None:
    """Modes as asked, subgraphs by namespace, growing ids; the pause is told also without `updates`."""
    house = await outside_house(database, world, calls(("look", {"what": "x"}), PAY), "Paid.", **SETTINGS)
    async with serving(house) as server:
        thread = (await server.client("ana").threads.create())["thread_id"]
        every = ["values", "updates", "messages-tuple", "custom", "tasks", "checkpoints", "debug"]
        parts = await streamed(server, thread, input=ASK, stream_mode=every, stream_subgraphs=True)
        assert parts[0].event == "metadata"
        assert parts[0].data["attempt"] == 1
        numbers = [int(part.id) for part in parts if part.id]
        assert numbers == sorted(set(numbers))
        kinds = {part.event.split("|")[0] for part in parts}
        assert kinds == {"metadata", "values", "updates", "messages", "tasks", "checkpoints", "debug"}
        assert any(part.event.startswith("updates|call:") for part in parts)
        assert any("__interrupt__" in part.data for part in parts if part.event == "updates")

        parts = await streamed(server, thread, "marta", command={"resume": {"kind": "approve"}}, stream_mode="values")
        assert {part.event for part in parts} == {"metadata", "values"}
        assert parts[-1].data["messages"][-1]["content"] == "Paid."


async def test_l1_a_pause_is_told_to_who_asked_for_values_only(database: Database, world: World) -> None:
    """As LangGraph does: a `values` event with `__interrupt__`."""
    house = await outside_house(database, world, calls(PAY), **SETTINGS)
    async with serving(house) as server:
        thread = (await server.client("ana").threads.create())["thread_id"]
        parts = await streamed(server, thread, input=ASK, stream_mode="values")
    assert any(part.data.get("__interrupt__") for part in parts if part.event == "values")


async def test_l1_the_final_text_streams_token_by_token(database: Database, world: World) -> None:
    """From an OpenAI-compatible model: one message grows under the id that it keeps; calls in the stream are gated."""
    async with openai_server.serving() as provider:
        provider.will(
            openai_server.streamed("I ", "pay.", calls=[openai_server.call("pay", PAY[1])], finish_reason="tool_calls"),
            openai_server.streamed("Bo ", "has ", "his ", "money."),
        )
        model = connect(settings_for_tests(openai_api_key=SecretStr("sk-test-1234567890")), "m", "k" * 20, provider.url)
        house = await outside_house(database, world, model=model, **SETTINGS)
        async with serving(house) as server:
            thread = (await server.client("ana").threads.create())["thread_id"]
            first = await streamed(server, thread, input=ASK, stream_mode=["messages-tuple", "updates"])
            assert "".join(
                p.data[0]["content"] for p in first if p.event == "messages" and "Chunk" in p.data[0]["type"]
            )
            assert world.arrivals() == []
            parts = await streamed(
                server,
                thread,
                "marta",
                command={"resume": {"kind": "approve"}},
                stream_mode=["messages-tuple", "values"],
            )
            chunks = [
                part.data[0] for part in parts if part.event == "messages" and part.data[0]["type"] == "AIMessageChunk"
            ]
            assert [chunk["content"] for chunk in chunks if chunk["content"]] == ["Bo ", "has ", "his ", "money."]
            final = parts[-1].data["messages"][-1]
            assert final["content"] == "Bo has his money."
            assert {chunk["id"] for chunk in chunks} == {final["id"]}
            assert [request.body.get("stream") for request in provider.requests] == [True, True]
    [paid] = world.done("pay")
    assert paid["args"]["minor"] == 700


async def test_l1_a_growing_message_can_be_gone_on_with(database: Database, world: World) -> None:
    """`messages`: each event holds the message so far, also for one who comes back in the middle."""
    async with openai_server.serving() as provider:
        provider.will(openai_server.streamed("One ", "two ", "three."))
        model = connect(settings_for_tests(), "m", "k" * 20, provider.url)
        house = await outside_house(database, world, model=model, **SETTINGS)
        async with serving(house) as server:
            ana = server.client("ana")
            thread = (await ana.threads.create())["thread_id"]
            parts = await streamed(server, thread, input=ASK, stream_mode="messages")
            grown = [part for part in parts if part.event == "messages/partial"]
            assert [part.data[0]["content"] for part in grown if part.data[0]["content"]][-1] == "One two three."
            [run] = await ana.runs.list(thread)
            rest = [part async for part in ana.runs.join_stream(thread, run["run_id"], last_event_id=str(grown[1].id))]
    again = [part.data[0]["content"] for part in rest if part.event == "messages/partial"]
    assert again == [part.data[0]["content"] for part in grown[2:]]


async def test_l1_a_stream_goes_on_behind_any_part_on_another_server(database: Database, world: World) -> None:
    """Cut in the middle of a run; the rest comes from another process, nothing lost, nothing twice."""
    started, gate = asyncio.Event(), asyncio.Event()
    world.next("look", happens_after(gate, started))
    house = await outside_house(database, world, calls(("look", {"what": "x"})), "Found.", **SETTINGS)
    how: dict[str, Any] = {"stream_mode": ["values", "updates", "tasks"], "stream_subgraphs": True}
    async with serving(house) as one, serving(house.elsewhere(), worker=False) as two:
        thread = (await one.client("ana").threads.create())["thread_id"]
        stream = one.client("ana").runs.stream(thread, "placet", input=ASK, **how)
        before = [await anext(stream) for _ in range(4)]
        await asyncio.wait_for(started.wait(), 20)
        await stream.aclose()  # the client is gone; the run goes on (case 40)
        [run] = await two.client("ana").runs.list(thread)
        assert run["status"] == "running"
        follower = two.client("ana").runs.join_stream(thread, run["run_id"], last_event_id=before[-1].id)
        rest = [await anext(follower)]
        gate.set()
        rest += [part async for part in follower]
        whole = [part async for part in two.client("ana").runs.join_stream(thread, run["run_id"], last_event_id="-1")]
    assert seen(before + rest) == seen(whole)
    assert whole[-1].data["messages"][-1]["content"] == "Found." if whole[-1].event == "values" else True
    assert any(part.event == "values" and part.data["ending"] == "completed" for part in rest)


async def test_l1_case_40_a_client_that_goes_away_does_not_stop_the_run(database: Database, world: World) -> None:
    """`on_disconnect` continues unless the client said `cancel`; then the turn is cancelled."""
    gates = [asyncio.Event(), asyncio.Event()]
    starts = [asyncio.Event(), asyncio.Event()]
    world.next("look", *(happens_after(gate, start) for gate, start in zip(gates, starts, strict=True)))
    look = calls(("look", {"what": "x"}))
    house = await outside_house(database, world, look, "Found.", look, "Found.", **SETTINGS)
    async with serving(house) as server:
        ana = server.client("ana")
        for gate, start, said, ends in zip(
            gates, starts, ("continue", "cancel"), ("completed", "cancelled"), strict=True
        ):
            thread = (await ana.threads.create())["thread_id"]
            stream = ana.runs.stream(thread, "placet", input=ASK, on_disconnect=said)
            await anext(stream)
            await asyncio.wait_for(start.wait(), 20)
            await stream.aclose()
            if said == "cancel":
                await until(house, "select 1 from turns where status = 'cancelled'")
            gate.set()
            [run] = await ana.runs.list(thread)
            await ana.runs.join(thread, run["run_id"])
            [turn] = await house.rows("select status from turns where thread_id = %(thread)s", thread=thread)
            assert turn["status"] == ends


async def test_l1_join_after_a_restart(database: Database, world: World) -> None:
    """Every process is replaced; whoever comes back gets the outcome, and its stream from the start."""
    house = await outside_house(database, world, calls(PAY), "Paid.", **SETTINGS)
    async with serving(house) as server:
        ana = server.client("ana")
        thread = (await ana.threads.create())["thread_id"]
        run = await ana.runs.create(thread, "placet", input=ASK)
        before = await ana.runs.join(thread, run["run_id"])
    async with serving(house.elsewhere()) as server:
        ana = server.client("ana")
        assert (await ana.runs.join(thread, run["run_id"])) == before
        parts = [part async for part in ana.runs.join_stream(thread, run["run_id"])]
        assert parts[0].event == "metadata"
        assert any(part.data.get("__interrupt__") for part in parts if part.event == "values")
        done = await server.client("marta").runs.wait(thread, "placet", command={"resume": {"kind": "approve"}})
        assert done["messages"][-1]["content"] == "Paid."
        assert (await ana.runs.join(thread, run["run_id"])) == before  # its own outcome, not the thread's of now


async def test_l1_the_outcome_of_a_pruned_run_is_the_threads_state(database: Database, world: World) -> None:
    """Parts are kept for a while; then a join says how the thread stands."""
    house = await outside_house(database, world, "Hello.", **SETTINGS)
    async with serving(house) as server:
        ana = server.client("ana")
        thread = (await ana.threads.create())["thread_id"]
        run = await ana.runs.create(thread, "placet", input=ASK)
        done = await ana.runs.join(thread, run["run_id"])
        async with house.database.transaction() as tx:
            from datetime import timedelta  # noqa: PLC0415

            assert await streams.prune(tx, older=timedelta(days=1)) == 0
            assert await streams.prune(tx, older=timedelta(0)) > 0
        assert await ana.runs.join(thread, run["run_id"]) == done


async def test_l1_a_failed_run_says_so(database: Database, world: World) -> None:
    """A wait gets 200 with `__error__`, a stream an `error` event, the thread is `error`."""
    house = await outside_house(database, world, RuntimeError("the model broke"), RuntimeError("again"), **SETTINGS)
    async with serving(house) as server:
        ana = server.client("ana")
        thread = (await ana.threads.create())["thread_id"]
        async with server.http("ana") as http:
            answer = await http.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "placet", "input": ASK})
        assert answer.status_code == 200
        assert answer.json()["__error__"]["message"]
        assert (await ana.threads.get(thread))["status"] == "error"
        parts = await streamed(server, thread, input=ASK)
        assert parts[-1].event == "error"
        assert {run["status"] for run in await ana.runs.list(thread)} == {"error"}


async def test_l1_a_heartbeat_while_nothing_happens(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream gets comments, a wait newlines, so that no proxy takes them for dead."""
    monkeypatch.setattr(sending, "HEARTBEAT", 0.05)
    house = await outside_house(database, world, "Hello.", **SETTINGS)
    async with serving(house, worker=False) as server, server.http("ana") as http:
        thread = (await server.client("ana").threads.create())["thread_id"]
        body = {"assistant_id": "placet", "input": ASK}
        async with http.stream("POST", f"/threads/{thread}/runs/stream", json=body) as stream:
            lines = stream.aiter_lines()
            while await anext(lines) != ": heartbeat":
                pass
        [run] = (await http.get(f"/threads/{thread}/runs")).json()
        async with http.stream("GET", f"/threads/{thread}/runs/{run['run_id']}/join") as waiting:
            answer = waiting.aiter_bytes()
            assert await anext(answer) == b"\n"
            await house.worker.run_until_idle()
            rest = b"".join([chunk async for chunk in answer])
        assert json.loads(rest)["messages"][-1]["content"] == "Hello."
        assert waiting.headers["content-location"] == f"/threads/{thread}/runs/{run['run_id']}"


async def test_o2_a_stale_run_streams_nothing(database: Database, world: World) -> None:
    """A run that lost its thread can add nothing to what its successor streams."""
    from placet.emit import emitter  # noqa: PLC0415
    from placet.record.errors import StaleEpoch  # noqa: PLC0415

    house = await outside_house(database, world, "Hello.", **SETTINGS)
    async with serving(house, worker=False) as server:
        thread = (await server.client("ana").threads.create())["thread_id"]
        await server.client("ana").runs.create(thread, "placet", input=ASK)
        owned = await house.worker.claim()
        assert owned is not None
        sink = await emitter(database, owned)
        assert sink is not None
        await house.rows("update threads set lease_until = clock() - interval '1 second' returning thread_id")
        assert await house.worker.run_until_idle() == 1
        await sink.put((), "values", {"late": True})
        with pytest.raises(StaleEpoch):
            await sink._flush()
    assert await house.rows("select 1 from stream_parts where data like '%%late%%'") == []
    [part] = await house.rows("select data from stream_parts where mode = 'metadata'")
    assert json.loads(part["data"]) == {"attempt": 2}
