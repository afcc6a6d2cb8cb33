"""What has happened so far, read from the messages: this turn's calls with their results, and what people refused.

Results are the protocol's (`graph.protocol`), and inside them what the shop's tools return. What cannot be read is a
result like any other, and is reported as such.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pydantic import BaseModel, ValidationError


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is or was proposed."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """A call of this turn with its result."""

    call: Call
    result: dict[str, Any]
    step: int  # which of the turn's answers proposed it, from 0

    def is_(self, mark: str) -> bool:
        """Whether the result carries this mark: `deferred`, `expired`, `approval_denied` …"""
        return self.result.get(mark) is True

    @property
    def ok(self) -> bool:
        """It happened."""
        return self.is_("ok")

    @property
    def may_be_repeated(self) -> bool:
        """It did not happen, and the same call may work later."""
        error = self.result.get("error")
        return not self.ok and isinstance(error, dict) and error.get("retryable") is True


@dataclass(frozen=True, slots=True)
class Refusal:
    """A person's refusal, anywhere in the conversation."""

    tool: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class History:
    """The user's last message, the calls since then, and the refusals before it."""

    request: str
    done: tuple[Done, ...]
    refused_before: tuple[Refusal, ...]

    def latest(self, call: Call) -> Done | None:
        """The newest result of exactly this call in this turn."""
        return next((done for done in reversed(self.done) if done.call == call), None)

    def times(self, call: Call) -> int:
        """How often exactly this call was proposed in this turn."""
        return sum(done.call == call for done in self.done)


def read(messages: Sequence[BaseMessage]) -> History:
    """The history in these messages; the turn begins at the last message of the user."""
    starts = [place for place, message in enumerate(messages) if isinstance(message, HumanMessage)]
    start = starts[-1] if starts else 0
    results = {message.tool_call_id: _result(message) for message in messages if isinstance(message, ToolMessage)}
    answers = [message for message in messages[start:] if isinstance(message, AIMessage)]
    done = tuple(
        Done(Call(call["name"], call["args"]), results[call["id"]], step)
        for step, answer in enumerate(answers)
        for call in answer.tool_calls
        if call["id"] in results
    )
    refusals = [_result(message) for message in messages[:start] if isinstance(message, ToolMessage)]
    return History(
        request=messages[start].text if starts else "",
        done=done,
        refused_before=tuple(refusal(result) for result in refusals if result.get("approval_denied") is True),
    )


def refusal(result: dict[str, Any]) -> Refusal:
    """Who refused what and why, from a rejection."""
    return Refusal(*(str(result.get(key, "?")) for key in ("tool", "denied_by", "reason")))


def _result(message: ToolMessage) -> dict[str, Any]:
    try:
        result = json.loads(message.text)
    except ValueError:
        result = None
    if isinstance(result, dict):
        return result
    return {"ok": False, "error": {"code": "unreadable", "message": "The result is no JSON object."}}


class Amount(BaseModel):
    """An amount as the shop's tools tell it: `{minor, currency, text}`."""

    minor: int
    currency: str
    text: str


class RefundOfOrder(BaseModel):
    """`due`, `on_its_way`, `refunded` or `not_refundable`, and how much."""

    status: str
    minor: int
    currency: str


class OrderRow(Amount):
    """An order that was found, with its refund if it has one."""

    order_id: str
    status: str = ""
    customer_id: str | None = None
    customer: str | None = None
    refund_due_id: str | None = None
    refund: RefundOfOrder | None = None


class HopelessRow(Amount):
    """An order whose money cannot be sent back, and why."""

    order_id: str
    why: str | None = None


class Hopeless(BaseModel):
    """What cannot be refunded among what was found."""

    count: int = 0
    rows: list[HopelessRow] = []


class Found(BaseModel):
    """The data of `search_orders`."""

    count: int
    totals: list[Amount]
    rows: list[OrderRow]
    more: int = 0
    not_refundable: Hopeless = Hopeless()


class Balance(BaseModel):
    """One currency of `get_balance`."""

    currency: str
    payments: int
    captured: Amount
    refunded: Amount
    refunds_due: Amount
    balance: Amount


class Balances(BaseModel):
    """The data of `get_balance`."""

    balances: list[Balance]


class ReceiptLine(BaseModel):
    """What became of one line of a batch."""

    ref: str
    status: str
    minor: int | None = None
    currency: str | None = None
    reason: str | None = None


class ReceiptData(BaseModel):
    """The data of a change: the tool's receipt."""

    external_id: str = ""
    summary: str = ""
    lines: list[ReceiptLine] = []


M = TypeVar("M", bound=BaseModel)


def data_of(done: Done, kind: type[M]) -> M | None:
    """The data of a result as `kind`, or None when it has another shape."""
    try:
        return kind.model_validate(done.result.get("data"))
    except ValidationError:
        return None
