"""A worker in a process of its own, for tests that kill it: one tool, one call, until nothing is due."""

import asyncio
import json
import os
import signal
import sys
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from placet.record.database import Database
from tests.scripted import Said, Scripted, calls
from tests.steps import open_test_house


def proposes(tool: str, arguments: dict[str, Any]) -> Scripted:
    """A model that proposes one call, in whichever process it is asked, and then says it is done."""

    def say(messages: list[BaseMessage]) -> Said:
        return "Done." if isinstance(messages[-1], ToolMessage) else calls((tool, arguments))

    return Scripted(say)


async def killed(point: str, database_url: str, tool: str, arguments: dict[str, Any], **settings: Any) -> None:
    """Let a worker process run until it reaches `point`, where it is killed with SIGKILL."""
    job = {"database_url": database_url, "tool": tool, "arguments": arguments, "settings": settings}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        json.dumps(job),
        env={**os.environ, "PLACET_CRASH_AT": f"{point}=kill"},
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == -signal.SIGKILL, f"{point} was not reached: {errors.decode()[-2000:]}"


async def main(job: dict[str, Any]) -> None:
    async with Database(job["database_url"], size=4) as database:
        house = await open_test_house(database, proposes(job["tool"], job["arguments"]), **job["settings"])
        await house.worker.run_until_idle()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
