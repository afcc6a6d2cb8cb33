"""A paying house behind a real socket."""

from collections.abc import AsyncIterator

import pytest

from placet.record.database import Database
from tests.api.serving import Served, serve
from tests.outside import World, world
from tests.scripted import calls
from tests.steps import outside_house

__all__ = ["world"]


@pytest.fixture
async def served(database: Database, world: World) -> AsyncIterator[Served]:
    """A model that pays Rosa 100 whenever it is asked, then reports; over HTTP."""
    house = await outside_house(database, world, pays)
    async with serve(house) as served:
        yield served


def pays(messages: list[object]) -> object:
    """Proposes one payment per user message, and is done once it has a result."""
    last = messages[-1]
    if getattr(last, "type", "") == "tool":
        return "It is done."
    return calls(("pay", {"to": "rosa", "minor": 100}))
