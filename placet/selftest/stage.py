"""Where the self-test plays: a tenant of its own, a bank that counts for itself, and a model that says what it is told."""

import fcntl
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field

from graph.deciding import decide
from graph.services import Services
from placet.record import approvals, people, turns
from placet.record.approvals import Approval
from placet.record.database import Database
from placet.record.decisions import Decided
from placet.record.digests import Keys
from placet.record.errors import PlacetError
from placet.record.turns import Turn
from placet.rules import schema_of
from placet.settings import Settings
from placet.worker import Worker
from policies import compile_rules
from tools.contract import Arguments, Facts, Observed, Preview, Receipt, Tier, Tool
from tools.registry import Registry

LEASE = timedelta(seconds=2)
RULES = """
[policy]
duties = ["selftest"]
duty   = "selftest"

[selftest_pay]
auto_if = "facts.minor <= 50"
reason  = "A very small payment."

[[selftest_pay.ask]]
id     = "selftest-pay"
duty   = "selftest"
reason = "Money that has gone out does not come back."
"""


class Broken(Exception):
    """A promise that was not kept; says what was seen."""


class Bank:
    """The outside world: a book in a file, with one payment per key."""

    def __init__(self, folder: Path) -> None:
        self._book = folder / "book.jsonl"
        self._book.touch()

    def pay(self, key: str, to: str, minor: int) -> None:
        with self._book.open("a+") as book:
            fcntl.flock(book, fcntl.LOCK_EX)
            if not self.paid(key):
                book.write(json.dumps({"key": key, "to": to, "minor": minor}) + "\n")

    def paid(self, key: str) -> bool:
        return any(line["key"] == key for line in self._lines())

    def payments(self, to: str) -> list[int]:
        """What this payee got, one by one."""
        return [line["minor"] for line in self._lines() if line["to"] == to]

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._book.read_text().splitlines()]


class PayArguments(Arguments):
    """Who gets how much."""

    to: str = Field(min_length=1, max_length=100)
    minor: int = Field(ge=1, le=10**9)


class PayFacts(Facts):
    """The amount, as the bank would take it."""

    minor: int


class Pay(Tool[PayArguments, PayFacts]):
    """Pay somebody. Money that has gone out does not come back."""

    name = "selftest_pay"
    Arguments = PayArguments
    Facts = PayFacts
    tier = Tier.irreversible
    effect_class = "selftest.pay"
    idempotency_window = timedelta(hours=24)

    def __init__(self, bank: Bank) -> None:
        self._bank = bank

    async def facts(self, args: PayArguments) -> PayFacts:
        return PayFacts(minor=args.minor)

    async def preview(self, args: PayArguments, facts: PayFacts) -> Preview:
        return Preview(title=f"Pay {facts.minor} to {args.to}", reversible=False)

    async def execute(self, args: PayArguments, operation_id: str) -> Receipt:
        self._bank.pay(operation_id, args.to, args.minor)
        return Receipt(external_id=operation_id, summary="paid")

    async def observe(self, args: PayArguments, operation_id: str) -> Observed:
        if not self._bank.paid(operation_id):
            return Observed(status="absent", evidence="the key is not in the book")
        return Observed(status="committed", receipt=Receipt(external_id=operation_id, summary="paid"))


class Proposes(BaseChatModel):
    """A model that proposes the payment which the message holds, and then says it is done."""

    @property
    def _llm_type(self) -> str:
        return "selftest"

    def bind_tools(self, tools: Any, **more: Any) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=list(tools), **more)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **more: Any,
    ) -> ChatResult:
        return _said(messages)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **more: Any,
    ) -> ChatResult:
        return _said(messages)


def _said(messages: list[BaseMessage]) -> ChatResult:
    last = messages[-1]
    if isinstance(last, ToolMessage):
        message = AIMessage(content="Done.")
    else:
        call = {"type": "tool_call", "name": Pay.name, "args": json.loads(last.text), "id": "call"}
        message = AIMessage(content="", tool_calls=[call])
    return ChatResult(generations=[ChatGeneration(message=message)])


@dataclass(frozen=True)
class Stage:
    """The house of the self-test: its tenant, its people, its bank, and a worker that works when told to."""

    services: Services
    worker: Worker
    bank: Bank
    folder: Path
    ana: people.User  # asks
    marta: people.User  # decides
    pedro: people.User  # decides

    @property
    def database(self) -> Database:
        return self.services.database

    @property
    def tenant(self) -> str:
        return self.services.settings.tenant

    async def ask(self, minor: int) -> tuple[Turn, str]:
        """A turn that will pay so much to somebody whom nobody else pays; nobody has worked on it."""
        payee = uuid4().hex
        async with self.database.transaction() as tx:
            message = json.dumps({"to": payee, "minor": minor})
            turn = await turns.create(tx, self.ana, message, max_steps=4, max_chars=1000)
        return turn, payee

    async def paused(self) -> tuple[Turn, str, Approval]:
        """A turn that waits for people."""
        turn, payee = await self.ask(700)
        await self.go_on(turn)
        return turn, payee, await self.pending(turn)

    async def go_on(self, turn: Turn) -> Turn:
        await self.worker.run_until_idle(turn.thread_id)
        async with self.database.read() as tx:
            return await turns.get(tx, self.tenant, turn.turn_id)

    async def pending(self, turn: Turn) -> Approval:
        async with self.database.read() as tx:
            waiting = await approvals.waiting(tx, self.tenant, turn_id=turn.turn_id)
        if len(waiting) != 1:
            raise Broken(f"{len(waiting)} approvals are pending where one should be")
        return waiting[0]

    async def decide(self, asked: Approval, kind: str, who: people.User, **more: Any) -> Decided:
        raw = {"kind": kind, "payload_hash": asked.payload_hash.hex(), **more}
        return await decide(self.services, asked.approval_id, raw, who, channel="selftest")

    async def refused(self, what: str, attempt: Awaitable[object], *codes: str) -> None:
        """The attempt must be refused with one of these codes."""
        try:
            await attempt
        except PlacetError as error:
            if error.code not in codes:
                raise Broken(f"{what} was refused as {error.code}, not as {' or '.join(codes)}") from error
            return
        raise Broken(f"{what} was accepted")


@asynccontextmanager
async def open_stage(database: Database, settings: Settings, keys: Keys, folder: Path) -> AsyncIterator[Stage]:
    """The self-test's house on an open database; `settings.tenant` is its own."""
    bank = Bank(folder)
    registry = Registry([Pay(bank)])
    policy = compile_rules(RULES, source="selftest", schemas=[schema_of(tool) for tool in registry])
    services = Services(settings, database, keys, registry, policy, Proposes())
    async with database.transaction() as tx:
        await people.ensure(tx, settings.tenant, "ana", name="Ana", roles=["requester"], duties=[])
        for name in ("marta", "pedro"):
            await people.ensure(tx, settings.tenant, name, name=name.title(), roles=["reviewer"], duties=["selftest"])
        ana, marta, pedro = [await people.get(tx, settings.tenant, name) for name in ("ana", "marta", "pedro")]
    yield Stage(services, Worker(services, name=settings.tenant), bank, folder, ana, marta, pedro)
