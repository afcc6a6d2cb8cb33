"""Steps that many tests share: a house on a test's own database, people, a turn that runs to its pause, decisions.

house = await open_test_house(database, Scripted(…))              # the shop's tools and rules
house = await outside_house(database, world, calls(("pay", …)))   # tools and rules of the tests' own (tests/outside.py)
other = house.elsewhere()                                         # another process's view of the same rows
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from pydantic import SecretStr

from graph import Graph, protocol
from graph.advance import advance
from graph.deciding import decide, prepare_edit
from graph.services import Services
from placet import logs
from placet.house import furnish
from placet.record import approvals, crashpoints, effects, events, items, people, runs, turns
from placet.record.approvals import Approval
from placet.record.checkpointer import FencedSaver, config_of
from placet.record.database import Database
from placet.record.decisions import Decided
from placet.record.digests import Keys
from placet.record.effects import Effect
from placet.record.events import Event
from placet.record.items import Item
from placet.record.people import User
from placet.record.runs import Owned
from placet.record.turns import Turn
from placet.rules import read_policy
from placet.settings import Settings
from placet.worker import Worker
from tests.outside import RULES, World
from tests.scripted import Said, Script, Scripted
from tools.registry import AnyTool, Registry
from tools.shop import Shop
from tools.shop.gateway import Captured

logs.configure(level=logging.WARNING)  # short tracebacks, without local variables

T = TypeVar("T")
TENANT = "default"
DIGEST_KEY = "a key for tests, long enough to sign with"


def settings_for_tests(**more: Any) -> Settings:
    """Settings that read nothing from this machine."""
    return Settings(digest_key=SecretStr(DIGEST_KEY), **more)


@dataclass(frozen=True)
class House:
    """Placet on one test's database, with one worker that runs when told to."""

    services: Services
    worker: Worker
    ana: User  # asks
    marta: User  # decides: support, finance
    pedro: User  # decides: support, finance
    lena: User  # decides: support

    @property
    def database(self) -> Database:
        return self.services.database

    @property
    def model(self) -> Scripted:
        return cast("Scripted", self.services.model)

    def elsewhere(
        self,
        *,
        model: BaseChatModel | None = None,
        tools: Iterable[AnyTool] | None = None,
        rules: str | None = None,
        database: Database | None = None,
    ) -> "House":
        """The same rows, seen by another process: a new graph, a new worker; perhaps after a deploy."""
        services = self.services
        registry = Registry(tools) if tools is not None else services.registry
        policy = services.policy
        if tools is not None or rules is not None:
            settings = services.settings
            if rules is not None:
                settings = settings.model_copy(update={"rules": _write(rules, cast("Path", settings.rules).parent)})
            policy = read_policy(settings, registry)
        services = replace(
            services,
            model=model or services.model,
            registry=registry,
            policy=policy,
            database=database or services.database,
            _in_flight={},
        )
        return replace(self, services=services, worker=Worker(services))

    # What people and clients do

    async def ask(self, message: str = "Do it.", *, thread_id: UUID | None = None, user: User | None = None) -> Turn:
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

    async def run(self, message: str = "Do it.", *, thread_id: UUID | None = None) -> Turn:
        """Ask, and work until nothing is due."""
        turn = await self.ask(message, thread_id=thread_id)
        return await self.go_on(turn)

    async def go_on(self, turn: Turn) -> Turn:
        """Work until nothing is due; the turn as it then is."""
        await self.worker.run_until_idle()
        return await self.turn(turn.turn_id)

    async def decide(self, approval: Approval, raw: dict[str, Any], who: User | None = None) -> Decided:
        """Decide about what `approval` showed."""
        raw = {"payload_hash": approval.payload_hash.hex(), **raw}
        return await decide(self.services, approval.approval_id, raw, who or self.marta, channel="test")

    async def decide_raw(self, approval: Approval, raw: object, who: User | None = None) -> Decided:
        """Decide with whatever was sent, as it was sent."""
        return await decide(self.services, approval.approval_id, raw, who or self.marta, channel="test")

    async def approve(self, approval: Approval, who: User | None = None) -> Decided:
        return await self.decide(approval, {"kind": "approve"}, who)

    async def reject(self, approval: Approval, reason: str = "not this one", who: User | None = None) -> Decided:
        return await self.decide(approval, {"kind": "reject", "reason": reason}, who)

    async def edit(self, approval: Approval, arguments: dict[str, Any]) -> dict[str, Any]:
        """The decision that a reviewer sends who was shown the preview of `arguments`."""
        revision = await prepare_edit(self.services, approval, arguments)
        return {"kind": "approve_with_changes", "arguments": arguments, "payload_hash": revision.payload_hash.hex()}

    async def cancel(self, turn: Turn, who: User | None = None) -> Turn:
        async with self.database.transaction() as tx:
            return await turns.cancel(
                tx, who or self.ana, turn.turn_id, reason="changed my mind", result=protocol.cancelled("the call")
            )

    async def resume(self, turn: Turn, answer: Any, *, acting: User | None = None) -> str:
        """Bring a resume value, as a client does on an invocation of its own."""
        async with self.database.transaction() as tx:
            await runs.make_due(tx, TENANT, turn.thread_id, turn.turn_id, because="resume")
        owned = await self.worker.claim(turn.thread_id)
        assert owned is not None
        return await advance(
            self.services, self.worker.graph, owned, resume=answer, acting=acting.user_id if acting else None
        )

    async def die_at(self, point: str, turn: Turn) -> None:
        """A worker claims the turn, gets as far as the crash point, and is gone; its lease has lapsed."""
        owned = await self.worker.claim(turn.thread_id)
        assert owned is not None
        crashpoints.arm(point, "die")
        with pytest.raises(crashpoints.Died):
            await advance(self.services, self.worker.graph, owned)
        await self.services.settled(owned)
        await self.rows(
            "update threads set lease_until = clock() - interval '1 second' where owner is not null returning thread_id"
        )

    def before_dispatch(self, monkeypatch: pytest.MonkeyPatch, hook: Callable[[], Awaitable[Any]]) -> None:
        """Let something happen after the last check and before the effect row is written."""
        dispatch = effects.dispatch

        async def later(*args: Any, **more: Any) -> effects.Dispatched:
            await hook()
            return await dispatch(*args, **more)

        monkeypatch.setattr(effects, "dispatch", later)

    # What the rows say

    async def turn(self, turn_id: UUID) -> Turn:
        async with self.database.read() as tx:
            return await turns.get(tx, TENANT, turn_id)

    async def items(self, turn: Turn) -> list[Item]:
        async with self.database.read() as tx:
            return await items.of_turn(tx, turn.tenant_id, turn.turn_id)

    async def pending(self, turn: Turn | None = None) -> list[Approval]:
        """What waits, in the order of the calls."""
        async with self.database.read() as tx:
            waiting = await approvals.waiting(tx, TENANT, turn_id=turn.turn_id if turn else None)
            order = {
                item.item_id: n
                for t in {w.turn_id for w in waiting}
                for n, item in enumerate(await items.of_turn(tx, TENANT, t))
            }
        return sorted(waiting, key=lambda approval: order[approval.item_id])

    async def approval(self, approval_id: UUID) -> Approval:
        async with self.database.read() as tx:
            return await approvals.get(tx, TENANT, approval_id)

    async def effects(self, turn: Turn) -> list[Effect]:
        async with self.database.read() as tx:
            return await effects.recent(tx, TENANT, turn_id=turn.turn_id)

    async def events(self, turn: Turn) -> list[Event]:
        async with self.database.read() as tx:
            return await events.of_thread(tx, TENANT, turn.thread_id, turn_id=turn.turn_id)

    async def told(self, turn: Turn) -> list[str]:
        """The types of the turn's events, in order."""
        return [event.type for event in await self.events(turn)]

    async def rows(self, sql: str, **params: Any) -> list[dict[str, Any]]:
        async with self.database.read() as tx:
            return await tx.fetch_dicts(sql, params)  # type: ignore[arg-type]

    # What an operator with write access to the state does

    async def claimed(self, turn: Turn) -> Owned:
        """A claim on the thread as it is now, whoever has it."""
        [row] = await self.rows("select epoch from threads where thread_id = %(thread)s", thread=turn.thread_id)
        return Owned(uuid4(), TENANT, turn.thread_id, turn.turn_id, row["epoch"], 1, "operator")

    async def graph(self, turn: Turn) -> tuple[Graph, RunnableConfig]:
        """The graph with a saver that may write on the turn's thread, and its configuration."""
        owned = await self.claimed(turn)
        graph = self.worker.graph.copy(update={"checkpointer": FencedSaver(self.database, owned)})
        return graph, cast("RunnableConfig", config_of(owned))

    async def change_call(self, turn: Turn, change: dict[str, Any], *, place: int = 0) -> None:
        """Change what the state says of the call whose pipeline waits at `place`."""
        graph, config = await self.graph(turn)
        snapshot = await graph.aget_state(config, subgraphs=True)
        task = [task for task in snapshot.tasks if task.name == "call"][place]
        call = {**task.state.values["call"], **change}  # type: ignore[union-attr]
        await graph.aupdate_state(task.state.config, {"call": call})  # type: ignore[union-attr]


async def open_test_house(database: Database, model: BaseChatModel, **settings: Any) -> House:
    """A house of the shop with `model`, and four people."""
    return await with_people(furnish(settings_for_tests(**settings), database, model=model))


async def small_shop(database: Database, *minors: int, batch: str = "B", currency: str = "EUR") -> list[str]:
    """Orders of one batch that failed after their payment was taken; ids of the refunds that are due, in order."""
    shop = Shop(database, TENANT)
    rows = [
        {"n": f"{batch}-{n}", "minor": minor, "batch": batch, "currency": currency, "tenant": TENANT}
        for n, minor in enumerate(minors)
    ]
    await shop.gateway.register(Captured(f"pay-{row['n']}", row["minor"], currency) for row in rows)  # type: ignore[arg-type]
    async with database.transaction() as tx:
        await tx.execute(
            "insert into shop.customers (tenant_id, customer_id, name) values (%(t)s, 'c', 'Zoë') on conflict do nothing",
            {"t": TENANT},
        )
        await tx.execute_many(
            """
            with ordered as (
                insert into shop.orders (tenant_id, order_id, customer_id, batch, status, minor, currency, placed_at)
                values (%(tenant)s, %(n)s, 'c', %(batch)s, 'failed', %(minor)s, %(currency)s, now())
            ), paid as (
                insert into shop.payments (tenant_id, payment_id, order_id, minor, currency, captured_at)
                values (%(tenant)s, 'pay-' || %(n)s, %(n)s, %(minor)s, %(currency)s, now())
            )
            insert into shop.refunds_due (tenant_id, refund_due_id, order_id, payment_id, batch, minor, currency, reason, due_at)
            values (%(tenant)s, 'due-' || %(n)s, %(n)s, 'pay-' || %(n)s, %(batch)s, %(minor)s, %(currency)s, 'failed', now())
            """,
            rows,
        )
    return [f"due-{row['n']}" for row in rows]


async def outside_house(
    database: Database,
    world: World,
    *said: Said | Script,
    rules: str = RULES,
    model: BaseChatModel | None = None,
    **settings: Any,
) -> House:
    """A house with the tests' own tools and rules; the model says `said`."""
    return await with_people(outside_services(database, world, model or Scripted(*said), rules=rules, **settings))


def outside_services(
    database: Database, world: World, model: BaseChatModel, *, rules: str = RULES, **more: Any
) -> Services:
    settings = settings_for_tests(rules=_write(rules, world.folder), **{"lease": timedelta(seconds=30), **more})
    registry = Registry(world.tools())
    return Services(
        settings=settings,
        database=database,
        keys=Keys(settings.digest_key_id, DIGEST_KEY.encode()),
        registry=registry,
        policy=read_policy(settings, registry),
        model=model,
    )


def _write(rules: str, folder: Path) -> Path:
    path = folder / f"rules-{uuid4().hex[:8]}.toml"
    path.write_text(rules)
    return path


async def with_people(services: Services) -> House:
    """A house with `services`: Ana asks, Marta and Pedro decide everything, Lena what support may."""
    reviewers = {"marta": ["support", "finance"], "pedro": ["support", "finance"], "lena": ["support"]}
    async with services.database.transaction() as tx:
        await people.ensure(tx, TENANT, "ana", name="Ana", roles=["requester"], duties=[])
        for name, duties in reviewers.items():
            await people.ensure(tx, TENANT, name, name=name.title(), roles=["reviewer", "requester"], duties=duties)
        users = {name: await people.get(tx, TENANT, name) for name in ("ana", *reviewers)}
    return House(services, Worker(services), **users)


async def together(*work: Awaitable[T]) -> list[T | BaseException]:
    """Run at the same instant; exceptions are results."""
    return await asyncio.gather(*work, return_exceptions=True)
