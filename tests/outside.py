"""The outside world of the tests: a bank, a post office, a shelf of labels and a library, and a witness that counts.

The witness is a file that every process appends to, so what it says does not depend on anything that is tested, and a
killed process cannot take it back. `arrivals` counts every request, `done` what really happened: the bank does one thing
per idempotency key, as payment systems do.

world = World(tmp_path)
world.next("pay", happens_then(ConnectionError("reset")))      # what the next call of a tool does
world.facts["open"] = 41                                       # the world moves
"""

import asyncio
import fcntl
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from tools import contract
from tools.contract import Observed, Preview, Receipt, Tier, Tool
from tools.registry import AnyTool

Act = Callable[["World", str, Any, str], Awaitable[Any]]  # world, tool, arguments, operation id

RULES = """
[policy]
duties = ["support", "finance"]
duty   = "support"

[look]
auto_if = "true"
reason  = "Looking changes nothing."

[label]
auto_if = "true"
reason  = "A label can be taken off again."

[pay]
auto_if = "facts.minor <= 50"
reason  = "A very small payment."

[[pay.deny]]
id     = "pay-frozen"
when   = "facts.frozen"
reason = "The account is frozen."

[[pay.ask]]
id     = "pay-large"
when   = "facts.minor > 100000"
duty   = "finance"
reason = "More than 1,000.00 leaves at once."

[[pay.ask]]
id     = "pay"
duty   = "support"
reason = "Money that has gone out does not come back."

[mail]
auto_if = "facts.count == 1 && facts.outside == 0"
reason  = "One letter inside the house."

[[mail.ask]]
id     = "mail-outside"
when   = "facts.outside > 0"
duty   = "finance"
reason = "It leaves the house."

[[mail.ask]]
id     = "mail"
duty   = "support"
reason = "Many people read it."
"""


class World:
    """What is out there. `folder` holds the witness; facts and acts are this process's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.book = folder / "witness.jsonl"
        self.book.touch()
        self.facts: dict[str, Any] = {"open": 38, "frozen": False}
        self.silent = False  # nobody answers when asked what became of a key
        self.looked = 0  # how often facts were computed
        self._acts: dict[str, list[Act]] = defaultdict(list)

    def next(self, tool: str, *acts: Act) -> None:
        """What the next calls of `tool` do, in order; then it behaves again."""
        self._acts[tool] += acts

    def tools(self) -> list[AnyTool]:
        """The tools that act on this world."""
        return [Look(self), Label(self), Pay(self), Mail(self)]

    async def act(self, tool: str, args: Any, operation_id: str) -> Any:
        with self._locked():
            self._write("arrived", tool, args, operation_id)
        act = self._acts[tool].pop(0) if self._acts[tool] else happens
        return await act(self, tool, args, operation_id)

    def do(self, tool: str, args: Any, operation_id: str) -> Receipt:
        """It happens now; under a key that is known, it happened before."""
        with self._locked():
            if operation_id not in self._keys():
                self._write("done", tool, args, operation_id)
        return self.receipt(tool, operation_id)

    def receipt(self, tool: str, operation_id: str) -> Receipt:
        return Receipt(external_id=f"{tool}:{operation_id}", summary=f"{tool} is done")

    def arrivals(self, tool: str | None = None) -> list[dict[str, Any]]:
        """Every request that arrived, in order."""
        return self._lines("arrived", tool)

    def done(self, tool: str | None = None) -> list[dict[str, Any]]:
        """What happened, in order; the arguments as they arrived."""
        return self._lines("done", tool)

    def look_up(self, tool: str, operation_id: str) -> Observed:
        if self.silent:
            return Observed(status="unknown", evidence="nobody answered")
        if operation_id in self._keys():
            return Observed(status="committed", receipt=self.receipt(tool, operation_id), evidence="it is in the book")
        return Observed(status="absent", evidence="the key was never seen")

    def _keys(self) -> set[str]:
        return {line["key"] for line in self.done()}

    def _lines(self, kind: str, tool: str | None) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.book.read_text().splitlines())
        return [line for line in lines if line["kind"] == kind and tool in (None, line["tool"])]

    def _write(self, kind: str, tool: str, args: Any, operation_id: str) -> None:
        line = {"kind": kind, "tool": tool, "key": operation_id, "args": args.model_dump(mode="json")}
        with self.book.open("a") as book:
            book.write(json.dumps(line) + "\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "witness.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world of the test's own."""
    return World(tmp_path)


# What a call can do


async def happens(world: World, tool: str, args: Any, operation_id: str) -> Any:
    """It happens, and the answer says so."""
    return world.do(tool, args, operation_id)


def happens_then(answer: Any) -> Act:
    """It happens; the answer is `answer`, raised when it is an exception."""

    async def act(world: World, tool: str, args: Any, operation_id: str) -> Any:
        world.do(tool, args, operation_id)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return act


def raises(error: BaseException) -> Act:
    """Nothing happens."""

    async def act(world: World, tool: str, args: Any, operation_id: str) -> Any:
        raise error

    return act


def happens_after(gate: asyncio.Event, started: asyncio.Event | None = None) -> Act:
    """It happens when the test opens the gate; `started` says that the call is out."""

    async def act(world: World, tool: str, args: Any, operation_id: str) -> Any:
        if started is not None:
            started.set()
        await gate.wait()
        return world.do(tool, args, operation_id)

    return act


# The tools


class PayArguments(contract.Arguments):
    to: str = Field(min_length=1, max_length=100)
    minor: int = Field(ge=1, le=2**53 - 1)
    rate: float | None = None
    note: str | None = None


class PayFacts(contract.Facts):
    minor: int
    open: int  # what justifies it; when it moves, the call is asked again
    frozen: bool


class _Acting:
    """What the tools have in common: their world."""

    name: ClassVar[str]
    timeout = timedelta(seconds=5)

    def __init__(self, world: World) -> None:
        self.world = world

    async def execute(self, args: Any, operation_id: str) -> Any:
        return await self.world.act(self.name, args, operation_id)


class _Observable(_Acting):
    async def observe(self, args: Any, operation_id: str) -> Observed:
        return self.world.look_up(self.name, operation_id)


class Pay(_Observable, Tool[PayArguments, PayFacts]):
    """Send money. It does not come back."""

    name = "pay"
    Arguments = PayArguments
    Facts = PayFacts
    tier = Tier.irreversible
    effect_class = "money.out"
    preconditions = ("open",)
    idempotency_window = timedelta(hours=24)

    async def facts(self, args: PayArguments) -> PayFacts:
        self.world.looked += 1
        found = self.world.facts
        if isinstance(found.get("raises"), Exception):
            raise found["raises"]
        if "waits" in found:
            await found["waits"].wait()
        if "instead" in found:
            return found["instead"]  # type: ignore[no-any-return]
        return PayFacts(minor=args.minor, open=found["open"], frozen=found["frozen"])

    async def preview(self, args: PayArguments, facts: PayFacts) -> Preview:
        return Preview(title=f"Pay {facts.minor} to {args.to}", impact=[f"{facts.open} are open"], reversible=False)


class MailArguments(contract.Arguments):
    to: list[str] = Field(min_length=1, max_length=10_000)
    text: str = ""


class MailFacts(contract.Facts):
    count: int
    outside: int


class Mail(_Acting, Tool[MailArguments, MailFacts]):
    """Send a letter. Nobody can ask afterwards whether it left."""

    name = "mail"
    Arguments = MailArguments
    Facts = MailFacts
    tier = Tier.irreversible
    effect_class = "mail.out"

    async def facts(self, args: MailArguments) -> MailFacts:
        return MailFacts(count=len(args.to), outside=sum(not to.endswith("@house.example") for to in args.to))

    async def preview(self, args: MailArguments, facts: MailFacts) -> Preview:
        return Preview(title=f"Mail {facts.count} people", reversible=False)


class LabelArguments(contract.Arguments):
    name: str = Field(min_length=1, max_length=100)


class Label(_Observable, Tool[LabelArguments, contract.NoFacts]):
    """Put a label on the shelf."""

    name = "label"
    Arguments = LabelArguments
    tier = Tier.reversible
    effect_class = "label.set"
    idempotency_window = timedelta(hours=24)


class LookArguments(contract.Arguments):
    what: str = Field(max_length=100)


class Look(_Acting, Tool[LookArguments, contract.NoFacts]):
    """Look something up."""

    name = "look"
    Arguments = LookArguments
    tier = Tier.read_only

    async def execute(self, args: LookArguments, operation_id: str) -> Any:
        answer = await super().execute(args, operation_id)
        return {"found": args.what} if isinstance(answer, Receipt) else answer
