"""The official Python SDK's drive through a server: the same script for ours and for `langgraph dev`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from langgraph_sdk.client import LangGraphClient

REFUND = {"messages": [{"role": "user", "content": "Refund the failed orders of batch NOV-17"}]}
BALANCE = {"messages": [{"role": "user", "content": "What is the balance of batch NOV-17?"}]}
APPROVE = {"kind": "approve"}


async def refused(call: Awaitable[Any]) -> int:
    """The status of a call that is to be refused."""
    try:
        answer = await call
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    raise AssertionError(f"It was not refused: {str(answer)[:300]}")


async def drive(
    ana: LangGraphClient, marta: LangGraphClient, restart: Callable[[], Awaitable[None]], *, ours: bool = True
) -> dict[str, Any]:
    """Create, wait, resume by scalar and map, resume twice, stream with reconnect, join after a restart, cancel, search,
    history. Returns what a test looks at further. On a server that is not `ours` a refusal is a failed run, and the numbers of
    a stream are milliseconds."""
    [assistant] = await ana.assistants.search()
    assert assistant["graph_id"] == "placet"
    name = assistant["assistant_id"]

    # Wait until it is interrupted, resume by a scalar, resume again
    one = (await ana.threads.create(metadata={"peer": "python"}))["thread_id"]
    paused = await ana.runs.wait(one, name, input=REFUND)
    [asked] = paused["__interrupt__"]
    assert asked["value"]["action_request"]["action"] == "refund_payments"
    assert [thread["thread_id"] for thread in await marta.threads.search(status="interrupted")] == [one]
    done = await marta.runs.wait(one, name, command={"resume": APPROVE})
    assert "__interrupt__" not in done
    if ours:
        assert await refused(marta.runs.wait(one, name, command={"resume": APPROVE})) == 409
        assert await refused(marta.runs.wait(one, name, command={"resume": {asked["id"]: APPROVE}})) == 409
    assert (await ana.threads.get(one))["status"] == "idle"
    assert len(await ana.threads.get_history(one, limit=50)) > 3

    # A stream that is cut and gone on with; refuse by id map
    two = (await ana.threads.create())["thread_id"]
    stream = ana.runs.stream(
        two, name, input={"messages": [{"role": "user", "content": "Refund the failed orders of batch NOV-18"}]},
        stream_mode=["values", "updates"], stream_resumable=True,
    )  # fmt: skip
    before = [await anext(stream) for _ in range(3)]
    await stream.aclose()
    [run] = await ana.runs.list(two)
    rest = [part async for part in ana.runs.join_stream(two, run["run_id"], last_event_id=before[-1].id)]
    numbers = [part.id for part in [*before, *rest] if part.id]
    assert len(numbers) == len(set(numbers)) or not ours

    # Join after a restart
    three = (await ana.threads.create())["thread_id"]
    run = await ana.runs.create(three, name, input=BALANCE)
    first = await ana.runs.join(three, run["run_id"])
    await restart()
    assert (await ana.runs.join(three, run["run_id"]))["messages"] == first["messages"]
    assert (await ana.threads.get(one))["values"]["messages"] == done["messages"]

    # Cancel
    four = (await ana.threads.create())["thread_id"]
    run = await ana.runs.create(four, name, input=BALANCE, after_seconds=600)
    await ana.runs.cancel(four, run["run_id"], wait=True)
    assert (await ana.runs.get(four, run["run_id"]))["status"] == "interrupted"
    return {"one": one, "two": two, "done": done}


async def wait_through(ana: LangGraphClient, restart: Callable[[], Awaitable[None]]) -> Any:
    """A client waits while its server is stopped and started again; the SDK comes back by itself."""
    thread = (await ana.threads.create())["thread_id"]
    waiting = asyncio.create_task(ana.runs.wait(thread, "placet", input=BALANCE, after_seconds=8))
    await asyncio.sleep(2)
    await restart()
    return await waiting
