import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest

from placet.record.embedded import Server
from tests.crash.slots import Nursery, Slot, open_nursery, open_slot, open_zygote
from tests.outside import world  # noqa: F401  the fixture


@pytest.fixture(scope="session")
def zygote() -> Iterator["subprocess.Popen[bytes]"]:
    """One for the whole run: it takes seconds to import what its children have."""
    with open_zygote() as process:
        yield process


@pytest.fixture
async def nursery(zygote: "subprocess.Popen[bytes]") -> AsyncIterator[Nursery]:
    async with open_nursery(zygote) as opened:
        yield opened


@pytest.fixture
async def slot(server: Server, template: str, nursery: Nursery) -> AsyncIterator[Slot]:
    """A database, and processes on it."""
    async with open_slot(server, template, nursery) as opened:
        yield opened
