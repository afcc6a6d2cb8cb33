"""What the nodes work with: bound to them when the graph is built, never part of a checkpoint."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig

from placet.record.database import Database
from placet.record.digests import Keys
from placet.record.runs import Owned
from placet.settings import Settings
from policies import Policy
from tools.registry import Registry


@dataclass(frozen=True, slots=True)
class Services:
    """One process's database, tools, policy and model."""

    settings: Settings
    database: Database
    keys: Keys
    registry: Registry
    policy: Policy
    model: BaseChatModel
    _in_flight: dict[asyncio.Task[None], Owned] = field(default_factory=dict)

    async def shielded(self, owned: Owned, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` to its end even when the waiting node is cancelled: between a payment and its receipt an
        exception in a sibling, or a client that goes away, must not cut."""
        task = asyncio.create_task(work)
        self._in_flight[task] = owned
        task.add_done_callback(self._in_flight.pop)
        await asyncio.shield(task)

    async def settled(self, owned: Owned) -> None:
        """Wait for calls of the run that outlived their node."""
        left = [task for task, of in self._in_flight.items() if of == owned]
        if left:
            await asyncio.wait(left)


def owned_by(config: RunnableConfig) -> Owned:
    """The claim under which this run goes, from its configuration."""
    claim = config["configurable"]
    return Owned(
        run_id=UUID(claim["run_id"]),
        tenant_id=claim["tenant_id"],
        thread_id=UUID(claim["thread_id"]),
        turn_id=UUID(claim["turn_id"]),
        epoch=claim["epoch"],
        attempt=claim["attempt"],
        because=claim["because"],
    )
