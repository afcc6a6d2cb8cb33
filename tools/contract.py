"""What a tool is.

A tool says what the model may pass (`Arguments`), what the policy may know (`facts`, from the real system, P3), what a
person will see (`preview`, A1), and how the change is made (`execute`), looked up (`observe`, E5) and taken back
(`undo`, E9). It never decides whether it runs: the policy and people do. It is called with the operation id, which is
its idempotency key (E1); whatever it raises that is not `Refused` or `NothingSent` counts as unknown (E4).
"""

from abc import ABC, abstractmethod
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from placet.record.database import Transaction


class Tier(StrEnum):
    """How much a call can cost (P1)."""

    read_only = "read_only"
    reversible = "reversible"
    irreversible = "irreversible"


class Arguments(BaseModel):
    """Base of what a model may say: unknown fields are errors, numbers are not guessed from text."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Facts(BaseModel):
    """Base of what the tool found out by itself (P3). Fields are bool, int, str or lists of these, so that rules can be
    type-checked against them (P7). Money is `<name>: int` in minor units beside `currency: str`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class NoFacts(Facts):
    """A tool whose verdict depends on its arguments alone."""


class Preview(BaseModel):
    """What a person sees before they decide (A1); counted, never guessed, written by code."""

    model_config = ConfigDict(frozen=True)

    title: str  # a sentence with verb, count and amount: "Refund 38 payments: 4,120.00 EUR"
    impact: list[str] = Field(default_factory=list)  # numbers, not adverbs
    sample: list[dict[str, JsonValue]] = Field(default_factory=list)  # at most five affected rows
    warnings: list[str] = Field(default_factory=list)  # a stated total that disagrees (P3), lines that cannot be done
    reversible: bool


class Line(BaseModel):
    """What became of one line of a batch."""

    model_config = ConfigDict(frozen=True)

    ref: str  # the caller's id of the line, e.g. a refund_due_id
    status: Literal["done", "refused"]
    external_id: str | None = None  # the outside system's id of it
    minor: int | None = None
    currency: str | None = None
    reason: str | None = None  # why it was refused


class Receipt(BaseModel):
    """The outside system's own answer: proof that the effect happened, line by line for a batch (E3)."""

    model_config = ConfigDict(frozen=True)

    external_id: str
    summary: str  # one sentence for people and for the model
    lines: list[Line] = Field(default_factory=list)
    data: dict[str, JsonValue] = Field(default_factory=dict)


class Observed(BaseModel):
    """What the outside system says of an operation id (E5).

    `absent` promises that nothing of it has happened and nothing is still coming. `partial` is for a batch that the
    outside system takes line by line: some lines have happened, and `execute` with the same operation id makes exactly
    the others, each under its own key. It is neither committed nor absent, and is sent to its end.
    """

    model_config = ConfigDict(frozen=True)

    status: Literal["committed", "absent", "partial", "unknown"]
    receipt: Receipt | None = None  # with `committed`
    evidence: str = ""  # what was asked and answered, for people


class Refused(Exception):
    """The outside system answered no: a definite failure, nothing happened (E4)."""

    def __init__(self, message: str, *, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code


class NothingSent(Exception):
    """The call failed before anything was sent, so sending again is safe (E8)."""


A = TypeVar("A", bound=Arguments)
F = TypeVar("F", bound=Facts)


class Tool(ABC, Generic[A, F]):
    """One capability of the agent; subclasses say so in their docstring, which is what the model reads.

    >>> class Ping(ReadTool[PingArguments]): ...
    """

    name: ClassVar[str]
    Arguments: ClassVar[type[Arguments]]
    Facts: ClassVar[type[Facts]] = NoFacts
    tier: ClassVar[Tier]
    effect_class: ClassVar[str] = ""  # "money.out", "orders.tag": what kind of change, whatever the tool (A11)
    preconditions: ClassVar[tuple[str, ...]] = ()  # names of facts; only they make an approval stale (A7)
    idempotency_window: ClassVar[timedelta | None] = None  # how long the same operation id is recognised (E5)
    secret_fields: ClassVar[frozenset[str]] = frozenset()  # arguments that hold references, not values (V4)
    timeout: ClassVar[timedelta] = timedelta(seconds=30)

    def resources(self, args: A) -> list[str]:
        """What the call touches, as `kind:id` ("batch:NOV-17"); windows and vetoes go by it."""
        return []

    async def facts(self, args: A) -> F:
        """What is true in the real system now; the only numbers that a rule sees besides the arguments."""
        return self.Facts()  # type: ignore[return-value]

    async def preview(self, args: A, facts: F) -> Preview:
        """What a person would want to see before it happens."""
        raise NotImplementedError(f"{self.name} asks people but has no preview; add `async def preview`.")

    @abstractmethod
    async def execute(self, args: A, operation_id: str) -> Any:
        """Do it. A `Receipt` for a change; any JSON value for a read."""

    async def observe(self, args: A, operation_id: str) -> Observed:
        """Ask the outside system what became of `operation_id`. Without an answer: `unknown`."""
        return Observed(status="unknown", evidence=f"{self.name} cannot be observed")

    async def undo(self, args: A, receipt: Receipt, operation_id: str) -> Receipt:
        """Take the change back, itself an effect under its own `operation_id` (E9)."""
        raise Refused(f"{self.name} cannot be undone.", code="not_reversible")

    @property
    def description(self) -> str:
        """The docstring, as the model reads it."""
        return (self.__doc__ or "").strip()

    @property
    def mode(self) -> Literal["safe_readonly", "mutating"]:
        """The plan item's mode (P1)."""
        return "safe_readonly" if self.tier is Tier.read_only else "mutating"


class TransactionalTool(Tool[A, F]):
    """A tool whose change is rows of the very database that holds its receipt (E7).

    It gets the transaction that stores the receipt: change, receipt and result become true together or not at all, and
    nothing at all when the run has lost its thread meanwhile (O2). So there is never anything to guess: `observe` reads
    the row that the same transaction wrote.
    """

    idempotency_window = timedelta.max  # the row of an operation stays

    @abstractmethod
    async def execute_in(self, tx: Transaction, args: A, operation_id: str) -> Receipt:
        """Make the change in `tx`, which the caller commits. Raises `Refused` when nothing of it can be done."""

    async def execute(self, args: A, operation_id: str) -> Any:
        """Not without the receipt's transaction: raises `TypeError`."""
        raise TypeError(f"{self.name} changes rows together with their receipt; call execute_in with the transaction.")
