"""Timelines over server-sent events (V2)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from httpx_sse import ServerSentEvent, aconnect_sse

from placet.api.app import create_app
from placet.api.limits import Limiter
from placet.record import credentials
from placet.record.database import Database
from tests.api.serving import Served, listening
from tests.outside import World, happens_after
from tests.steps import TENANT


@asynccontextmanager
async def following(
    client: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None, **params: Any
) -> AsyncIterator[AsyncIterator[ServerSentEvent]]:
    async with aconnect_sse(client, "GET", path, params=params, headers=headers or {}) as source:
        yield (event async for event in source.aiter_sse() if event.data)  # httpx-sse takes heartbeats for events


async def collect(
    client: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None, **params: Any
) -> list[Any]:
    """All events until the stream ends by itself."""
    async with following(client, path, headers, **params) as events:
        return [event async for event in events]


def numbers(events: list[ServerSentEvent]) -> list[int]:
    return [int(event.id) for event in events if event.event != "end"]


async def test_v2_a_turn_is_followed_live_to_its_end(served: Served) -> None:
    """Who follows before anything happened sees each event once, in order, without gaps, and the end that says how."""
    turn_id = await served.ask()
    following = asyncio.create_task(collect(served.to("ana"), f"/v1/turns/{turn_id}/events"))
    await served.house.worker.run_until_idle()
    [asked] = (await served.to("marta").get("/v1/approvals")).json()["rows"]
    await served.decide(asked, {"kind": "approve"})
    await served.house.worker.run_until_idle()

    events = await following

    assert numbers(events) == list(range(1, len(events)))
    assert [event.event for event in events][:3] == ["turn_started", "plan_updated", "approval_requested"]
    assert events[-2].event == "turn_completed"
    assert json.loads(events[-1].data) == {"status": "completed"}
    assert {json.loads(event.data)["seq"] for event in events[:-1]} == set(numbers(events))


async def test_v2_from_any_number_and_last_event_id_wins(served: Served) -> None:
    """A client that comes back names the last number it saw and gets what stands behind it, no more, no less."""
    asked = await served.paused()
    path = f"/v1/turns/{asked['turn_id']}/events"
    client = served.to("ana")
    everything = numbers(await collect(client, path, until="now"))

    assert numbers(await collect(client, path, until="now", after=2)) == everything[2:]
    assert numbers(await collect(client, path, {"Last-Event-ID": "3"}, until="now", after=1)) == everything[3:]
    assert numbers(await collect(client, path, {"Last-Event-ID": "-1"}, until="now", after=3)) == everything
    assert numbers(await collect(client, path, {"Last-Event-ID": "nonsense"}, until="now", after=3)) == everything[3:]
    assert numbers(await collect(client, path, until="rest")) == everything


async def test_v2_from_another_server_process(served: Served) -> None:
    """A second server over the same database continues where the first stopped, and sees what happens after."""
    asked = await served.paused()
    path = f"/v1/turns/{asked['turn_id']}/events"
    seen = numbers(await collect(served.to("ana"), path, until="now"))
    elsewhere = create_app(served.house.services.settings, served.house.elsewhere().services)

    async with listening(elsewhere) as url, httpx.AsyncClient(base_url=url, headers=served.to("ana").headers) as client:
        rest = asyncio.create_task(collect(client, path, {"Last-Event-ID": str(seen[-1])}))
        await served.decide(asked, {"kind": "approve"})
        await served.house.worker.run_until_idle()
        events = await rest

    assert numbers(events) == list(range(seen[-1] + 1, seen[-1] + len(events)))
    assert events[-2].event == "turn_completed"


async def test_v2_a_thread_is_followed_over_its_turns(served: Served) -> None:
    """One stream for the conversation; it goes on when a turn has ended."""
    asked = await served.paused()
    await served.to("ana").post(f"/v1/turns/{asked['turn_id']}/cancel", json={})
    await served.house.worker.run_until_idle()

    async with following(served.to("ana"), f"/v1/threads/{asked['thread_id']}/events") as events:
        second = await served.ask(thread_id=asked["thread_id"])
        await served.house.worker.run_until_idle()
        turns = set()
        async for event in events:
            turns.add(json.loads(event.data)["turn_id"])
            if event.event == "approval_requested" and json.loads(event.data)["turn_id"] == str(second):
                break

    assert turns == {asked["turn_id"], str(second)}


async def test_l3_a_client_that_goes_away_in_the_middle_stops_nothing(served: Served, world: World) -> None:
    """The payment is out when its follower disconnects: it is finished, with its receipt, and the turn completes."""
    asked = await served.paused()
    out, go_on = asyncio.Event(), asyncio.Event()
    world.next("pay", happens_after(go_on, out))
    async with following(served.to("ana"), f"/v1/turns/{asked['turn_id']}/events") as events:
        await anext(events)
        await served.decide(asked, {"kind": "approve"})
        working = asyncio.create_task(served.house.worker.run_until_idle())
        await out.wait()
    go_on.set()
    await working

    whole = (await served.to("ana").get(f"/v1/turns/{asked['turn_id']}")).json()
    assert whole["turn"]["status"] == "completed"
    assert [effect["status"] for effect in whole["effects"]] == ["committed"]
    assert len(world.done("pay")) == 1


async def test_v2_a_heartbeat_shows_that_the_line_is_alive(served: Served) -> None:
    """A comment now and then, while nothing happens."""
    asked = await served.paused()
    object.__setattr__(served.house.services.settings, "heartbeat", 0.05)
    async with served.to("ana").stream("GET", f"/v1/turns/{asked['turn_id']}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        beats = 0
        async for line in answer.aiter_lines():
            beats += line.startswith(": ping")
            if beats == 3:
                break


async def test_v2_whoever_is_locked_out_sees_nothing_more(served: Served) -> None:
    """A key is revoked while its stream is open: the next event is not sent, the stream ends and says why."""
    asked = await served.paused()
    async with served.house.database.transaction() as tx:
        served.keys["phone"], key = await credentials.issue(tx, TENANT, "ana", by="test")
    path = f"/v1/turns/{asked['turn_id']}/events"
    async with following(served.to("phone"), path) as events:
        async for event in events:
            if event.event == "turn_paused":
                break
        async with served.house.database.transaction() as tx:
            await credentials.revoke(tx, TENANT, key.key_id, by="test")
        await served.decide(asked, {"kind": "approve"})
        rest = [event async for event in events]

    assert [event.event for event in rest] == ["end"]
    assert json.loads(rest[0].data)["code"] == "not_authenticated"


async def test_v2_many_who_wait_hold_no_connection_to_the_database(served: Served) -> None:
    """A hundred streams wait: nothing of the pool is in use but for the one look, and each of them gets what happens."""
    served.app.state.limiter = Limiter("1000/second")
    asked = await served.paused()
    path = f"/v1/turns/{asked['turn_id']}/events"
    database = served.house.database
    async with httpx.AsyncClient(
        base_url=served.url, headers=served.to("ana").headers, timeout=60, limits=httpx.Limits(max_connections=200)
    ) as client:
        caught_up = [asyncio.Event() for _ in range(100)]
        waiting = [asyncio.create_task(_until_it_ends(client, path, one)) for one in caught_up]
        await asyncio.gather(*(one.wait() for one in caught_up))

        async with asyncio.timeout(30):
            while _in_use(database) > 1:  # noqa: ASYNC110  # until the last one's own look is over
                await asyncio.sleep(0.02)
        await served.decide(asked, {"kind": "approve"})
        await served.house.worker.run_until_idle()
        everybody = await asyncio.gather(*waiting)

    assert len(everybody) == 100
    assert {tuple(seen) for seen in everybody} == {tuple(range(1, len(everybody[0]) + 1))}


def _in_use(database: Database) -> int:
    stats = database.pool.get_stats()
    return stats["pool_size"] - stats["pool_available"] + stats.get("requests_waiting", 0)


async def _until_it_ends(client: httpx.AsyncClient, path: str, caught_up: asyncio.Event) -> list[int]:
    seen = []
    async with following(client, path) as events:
        async for event in events:
            if event.event == "end":
                break
            seen.append(int(event.id))
            if event.event == "turn_paused":
                caught_up.set()
    return seen
