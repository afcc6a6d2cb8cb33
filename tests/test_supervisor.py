"""Several worker processes under one parent: what ends is started again, SIGTERM reaches all (O3, O4)."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

CHILD = """
import os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
def drain(*_):
    (folder / f"drained-{os.getpid()}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
(folder / f"alive-{os.getpid()}").touch()
while True:
    signal.pause()
"""
SUPERVISOR = """
import asyncio, sys
from placet import supervisor
supervisor.FIRST_WAIT = 0.01
asyncio.run(supervisor.supervise(sys.argv[2:], int(sys.argv[1])))
"""


@asynccontextmanager
async def supervising(processes: int, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A supervisor in a process of its own; killed with its children if the test did not end it."""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUPERVISOR, str(processes), *command, start_new_session=True
    )
    try:
        yield parent
    finally:
        if parent.returncode is None:
            os.killpg(parent.pid, signal.SIGKILL)
            await parent.wait()


async def until(truth: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not truth():  # noqa: ASYNC110  # other processes make it true
            await asyncio.sleep(0.02)


def pids(folder: Path, what: str) -> set[int]:
    return {int(file.name.partition("-")[2]) for file in folder.glob(f"{what}-*")}


async def test_o3_what_ends_is_started_again(tmp_path: Path) -> None:
    """Two children, one is killed: soon there is a third, and the other one was left alone."""
    async with supervising(2, sys.executable, "-c", CHILD, str(tmp_path)) as parent:
        await until(lambda: len(pids(tmp_path, "alive")) == 2)
        killed, left = sorted(pids(tmp_path, "alive"))
        os.kill(killed, signal.SIGKILL)
        await until(lambda: len(pids(tmp_path, "alive")) == 3)
        os.kill(left, 0)  # it is still there
        assert parent.returncode is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_o4_sigterm_is_passed_on_and_waited_for(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM, or Ctrl-C, to the parent: every child drains, none is started again, and the parent ends last."""
    async with supervising(3, sys.executable, "-c", CHILD, str(tmp_path)) as parent:
        await until(lambda: len(pids(tmp_path, "alive")) == 3)
        parent.send_signal(number)
        async with asyncio.timeout(60):
            assert await parent.wait() == 0
    assert pids(tmp_path, "drained") == pids(tmp_path, "alive")


async def test_o3_what_ends_at_once_is_started_slower_and_slower(tmp_path: Path) -> None:
    """A child that cannot start does not keep the machine busy: the wait doubles, and SIGTERM ends it."""
    command = f"echo x >> {tmp_path / 'starts'}; exit 1"
    async with supervising(1, "/bin/sh", "-c", command) as parent:
        await until(lambda: (tmp_path / "starts").exists() and (tmp_path / "starts").read_text().count("x") >= 4)
        parent.terminate()
        async with asyncio.timeout(60):
            assert await parent.wait() == 0
    assert (tmp_path / "starts").read_text().count("x") < 20


async def test_o3_placet_worker_processes_keeps_several(database_url: str, owner_url: str, tmp_path: Path) -> None:
    """`placet worker --processes 2`: two workers that say so; SIGTERM drains both, and the command ends with 0."""
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PLACET_", "OPENAI_"))},
        "PLACET_DATABASE_URL": database_url,
        "PLACET_OWNER_DATABASE_URL": owner_url,
        "PLACET_HOME": str(tmp_path),
    }
    arguments = ["-m", "placet.cli", "worker", "--processes", "2", "--json"]
    parent = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=env, start_new_session=True, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    try:
        ready = 0
        async with asyncio.timeout(100):
            while ready < 2:
                line = await parent.stdout.readline()
                assert line, "the command ended"
                ready += b"worker_ready" in line
            parent.terminate()
            await parent.stdout.read()
            assert await parent.wait() == 0
    finally:
        if parent.returncode is None:
            os.killpg(parent.pid, signal.SIGKILL)
            await parent.wait()
