"""Steps that many tests share: a house on a test's own database, people, a turn that runs to its pause, decisions."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.language_models import BaseChatModel
from pydantic import SecretStr

from graph.deciding import decide
from graph.services import Services
from placet.house import furnish
from placet.record import approvals, effects, events, items, people, turns
from placet.record.approvals import Approval
from placet.record.database import Database
from placet.record.decisions import Decided
from placet.record.effects import Effect
from placet.record.events import Event
from placet.record.items import Item
from placet.record.people import User
from placet.record.turns import Turn
from placet.settings import Settings
from placet.worker import Worker

T = TypeVar("T")
TENANT = "default"


def settings_for_tests(**more: Any) -> Settings:
    """Settings that read nothing from this machine."""
    return Settings(digest_key=SecretStr("a key for tests, long enough to sign with"), **more)


@dataclass(frozen=True)
class House:
    """Placet on one test's database, with one worker that runs when told to."""

    services: Services
    worker: Worker
    ana: User  # asks
    marta: User  # decides: support, finance
    pedro: User  # decides: support, finance

    @property
    def database(self) -> Database:
        return self.services.database

    async def ask(self, message: str, *, thread_id: UUID | None = None, user: User | None = None) -> Turn:
        """Store a message as a turn; nobody has worked on it yet."""
        settings = self.services.settings
        async with self.database.transaction() as tx:
            return await turns.create(
                tx,
                user or self.ana,
                message,
                max_steps=settings.max_steps,
                max_chars=settings.max_message_chars,
                thread_id=thread_id,
            )

    async def run(self, message: str, *, thread_id: UUID | None = None) -> Turn:
        """Ask, and work until nothing is due."""
        turn = await self.ask(message, thread_id=thread_id)
        await self.worker.run_until_idle()
        return await self.turn(turn.turn_id)

    async def turn(self, turn_id: UUID) -> Turn:
        async with self.database.read() as tx:
            return await turns.get(tx, TENANT, turn_id)

    async def items(self, turn: Turn) -> list[Item]:
        async with self.database.read() as tx:
            return await items.of_turn(tx, turn.tenant_id, turn.turn_id)

    async def pending(self, turn: Turn | None = None) -> list[Approval]:
        async with self.database.read() as tx:
            return await approvals.waiting(tx, TENANT, turn_id=turn.turn_id if turn else None)

    async def approval(self, approval_id: UUID) -> Approval:
        async with self.database.read() as tx:
            return await approvals.get(tx, TENANT, approval_id)

    async def effects(self, turn: Turn) -> list[Effect]:
        async with self.database.read() as tx:
            return await effects.recent(tx, TENANT, turn_id=turn.turn_id)

    async def events(self, turn: Turn) -> list[Event]:
        async with self.database.read() as tx:
            return await events.of_thread(tx, TENANT, turn.thread_id, turn_id=turn.turn_id)

    async def decide(self, approval: Approval, raw: dict[str, Any], who: User | None = None) -> Decided:
        """Decide about what `approval` showed."""
        raw = {"payload_hash": approval.payload_hash.hex(), **raw}
        return await decide(self.services, approval.approval_id, raw, who or self.marta, channel="test")

    async def approve(self, approval: Approval, who: User | None = None) -> Decided:
        return await self.decide(approval, {"kind": "approve"}, who)

    async def reject(self, approval: Approval, reason: str = "not this one", who: User | None = None) -> Decided:
        return await self.decide(approval, {"kind": "reject", "reason": reason}, who)


async def open_test_house(database: Database, model: BaseChatModel, **settings: Any) -> House:
    """A house with `model`, and three people."""
    services = furnish(settings_for_tests(**settings), database, model=model)
    async with database.transaction() as tx:
        await people.ensure(tx, TENANT, "ana", name="Ana", roles=["requester"], duties=[])
        for name in ("marta", "pedro"):
            await people.ensure(
                tx, TENANT, name, name=name.title(), roles=["reviewer", "requester"], duties=["support", "finance"]
            )
        ana, marta, pedro = [await people.get(tx, TENANT, name) for name in ("ana", "marta", "pedro")]
    return House(services, Worker(services), ana, marta, pedro)


async def together(*work: Awaitable[T]) -> list[T | BaseException]:
    """Run at the same instant; exceptions are results."""
    return await asyncio.gather(*work, return_exceptions=True)
