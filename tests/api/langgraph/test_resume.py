"""Resuming over HTTP, with the official SDK: by whichever form, it is the same `decide` (L2, A6)."""

from typing import Any

import httpx
import pytest

from placet.record.database import Database
from tests.api.langgraph.serving import SETTINGS, serving
from tests.outside import World
from tests.scripted import calls
from tests.steps import outside_house

PAY = ("pay", {"to": "bo", "minor": 700})
ASK = {"messages": [{"role": "user", "content": "Pay Bo 7."}]}


async def test_l1_a_run_waits_pauses_and_a_scalar_resume_executes_once(database: Database, world: World) -> None:
    """Create, wait until it is interrupted, resume as another person: the payment is made, once."""
    house = await outside_house(database, world, calls(PAY), "Paid.", **SETTINGS)
    async with serving(house) as server:
        ana, marta = server.client("ana"), server.client("marta")
        thread = await ana.threads.create(metadata={"case": "one"})
        assert thread["status"] == "idle"
        paused = await ana.runs.wait(thread["thread_id"], "placet", input=ASK)
        [asked] = paused["__interrupt__"]
        assert asked["value"]["action_request"] == {"action": "pay", "args": PAY[1] | {"rate": None, "note": None}}
        found = await ana.threads.get(thread["thread_id"])
        assert found["status"] == "interrupted"
        assert [i["id"] for many in found["interrupts"].values() for i in many] == [asked["id"]]
        assert world.arrivals() == []

        done = await marta.runs.wait(thread["thread_id"], "placet", command={"resume": {"kind": "approve"}})

        assert "__interrupt__" not in done
        assert done["messages"][-1]["content"] == "Paid."
        assert len(world.done("pay")) == 1
        with pytest.raises(httpx.HTTPStatusError) as again:
            await marta.runs.wait(thread["thread_id"], "placet", command={"resume": {"kind": "approve"}})
        assert again.value.response.status_code == 409
        assert len(world.done("pay")) == 1
