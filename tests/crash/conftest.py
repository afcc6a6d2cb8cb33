import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.crash.slots import Nursery, open_nursery, open_zygote
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
