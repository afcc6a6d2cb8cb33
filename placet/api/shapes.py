"""The shapes of `/v1`: what comes in, with a limit on every field (L5), and what goes out.

Ids are UUIDs, times ISO 8601 in UTC, amounts integers in minor units, hashes 64 hex digits. Rows go out without tenant,
keys and digests.
"""

import base64
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from placet.api.auth import Caller
from placet.record import canonical
from placet.record.approvals import Approval
from placet.record.approvals import Status as ApprovalStatus
from placet.record.decisions import Decided, check_may_decide
from placet.record.effects import Effect
from placet.record.effects import Status as EffectStatus
from placet.record.errors import InvalidInput, NotAllowed
from placet.record.events import Event, EventType
from placet.record.items import Item
from placet.record.items import Status as ItemStatus
from placet.record.pages import Key
from placet.record.runs import Standing
from placet.record.turns import Status as TurnStatus
from placet.record.turns import Turn

T = TypeVar("T")
Json = dict[str, Any]


def _plain(value: T) -> T:
    try:
        canonical.check_plain(value)
    except canonical.NotPlain as error:
        raise ValueError(str(error)) from None  # so that the answer names the field it stands in
    return value


Plain = AfterValidator(_plain)  # no NUL, no half of a surrogate pair, no NaN, nothing deeper than 40
Arguments = Annotated[Json, Plain, Field(max_length=100, description="A tool's arguments, as its schema has them.")]
Word = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._@-]+$")]
Limit = Annotated[int, Field(ge=1, le=200, description="Rows of one page.")]
Cursor = Annotated[str | None, Field(max_length=200, description="`next` of the page before.")]


class Given(BaseModel):
    """What a client sends: nothing unknown in it, so that a typo is an error and not a silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NewTurn(Given):
    """A request in words."""

    message: Annotated[str, Plain] = Field(
        min_length=1, max_length=1_000_000, examples=["Refund the failed orders of NOV-17"]
    )
    thread_id: UUID | None = Field(default=None, description="Go on with this conversation; none: a new one.")
    supersede: bool = Field(default=False, description="End what waits on the thread, and do this instead (T4).")


class Cancelling(Given):
    """Why a turn ends."""

    reason: Annotated[str | None, Plain] = Field(default=None, max_length=4000)


class Editing(Given):
    """Arguments that a reviewer would rather see executed."""

    arguments: Arguments


class Settling(Given):
    """What a person found out about an unknown effect (E6)."""

    to: Literal["committed", "absent", "abandoned"]
    reason: Annotated[str, Plain] = Field(min_length=1, max_length=4000, description="How you know; kept.")
    external_id: Annotated[str | None, Plain] = Field(
        default=None, min_length=1, max_length=200, description="With committed: what the other system calls it."
    )


class Call(Given):
    """One call of a tool, to ask what the rules say of it."""

    tool: Word
    arguments: Arguments = Field(default_factory=dict)


class Page(BaseModel, Generic[T]):
    """Some rows, and where the next ones begin."""

    rows: list[T]
    next: str | None = Field(default=None, description="Pass it as `cursor`; null: this was the last page.")


class TurnView(BaseModel):
    """A turn: one request, from message to answer."""

    turn_id: UUID
    thread_id: UUID
    ordinal: int
    requester: str
    message: str
    command: Json
    status: TurnStatus
    next_step: str | None
    steps: int
    max_steps: int
    output_text: str | None
    error: Json | None
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None


class ItemView(BaseModel):
    """One tool call of a turn."""

    item_id: UUID
    step: int
    ordinal: int
    call_id: str
    tool: str
    proposed: Json
    arguments: Json | None
    mode: str | None
    facts: Json | None
    verdict: Json | None
    status: ItemStatus
    result: Json | None
    proposed_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class ApprovalView(BaseModel):
    """A request to people to decide one call: what would run, what it would do, who decides, what became of it."""

    approval_id: UUID
    thread_id: UUID
    turn_id: UUID
    item_id: UUID
    ask: int
    status: ApprovalStatus
    revision: int
    payload_hash: str = Field(description="Of what is shown here; a decision about it carries it.")
    tool: str
    arguments: Json = Field(description="Exactly what would run.")
    facts: Json
    preview: Json
    precondition: Json
    requester: str
    duty: str
    quorum: int
    confirm: str
    rule: str
    reason: str
    policy_version: str
    policy_error: str | None
    rationale: str = Field(description="The agent's own words; untrusted.")
    difference: Json | None = Field(description="What moved since it was asked before.")
    asked_at: datetime
    expires_at: datetime
    overdue: bool
    decided_at: datetime | None
    decided_by: str | None
    decision: str | None
    decision_reason: str | None
    edited: bool
    closed_because: str | None
    effect: str | None = Field(description="The status of the effect that used it up.")
    may_decide: bool = Field(description="Whether the caller may decide it.")
    may_not_because: str | None


class EffectView(BaseModel):
    """One intended change of the outside world, with its receipt."""

    operation_id: UUID
    thread_id: UUID
    turn_id: UUID
    item_id: UUID
    tool: str
    effect_class: str
    arguments: Json
    approval_id: UUID | None
    undoes: UUID | None
    attempts: int
    status: EffectStatus
    receipt: Json | None
    error: Json | None
    evidence: list[Json]
    first_dispatched_at: datetime
    dispatched_at: datetime
    settled_at: datetime | None


class RunView(BaseModel):
    """Who works on a turn, or that somebody should."""

    status: Literal["due", "running"]
    worker: str | None
    lapsed: bool = Field(description="The worker's lease is over: it is dead or cut off, and the next one takes it up.")
    since: datetime = Field(description="Due, or worked on, since; where the lease is over, heard of until.")
    behind: UUID | None = Field(description="The turn of the same thread that has to end before.")


class TurnWhole(BaseModel):
    """A turn with its calls, what was asked about them, what was sent, and who works on it."""

    turn: TurnView
    run: RunView | None
    items: list[ItemView]
    approvals: list[ApprovalView]
    effects: list[EffectView]


class EventView(BaseModel):
    """One line of a timeline."""

    thread_id: UUID
    seq: int
    turn_id: UUID | None
    item_id: UUID | None
    type: EventType
    payload: Json
    at: datetime


class Outcome(BaseModel):
    """What is stored about a decision."""

    approval_id: UUID
    status: ApprovalStatus
    decision: str | None
    decided_by: str | None
    decided_at: datetime | None
    reason: str | None
    payload_hash: str
    effect: str | None
    first: bool = Field(description="False: this same decision of yours was stored before.")


class EditShown(BaseModel):
    """What an edit would do. To approve exactly this, decide with its arguments and its hash (A8)."""

    payload_hash: str
    arguments: Json
    facts: Json
    preview: Json
    precondition: Json


class Explained(BaseModel):
    """What the rules say of one call now."""

    model_config = ConfigDict(extra="allow")

    tool: str
    arguments: Json
    facts: Json
    verdict: Json


class Rules(BaseModel):
    """The rules in force, as sentences, in the order in which they are applied."""

    version: str
    tools: dict[str, list[str]]


class Me(BaseModel):
    """The caller, as their row says now."""

    user_id: str
    name: str
    tenant: str
    roles: list[str]
    duties: list[str]
    via: str


def turn(row: Turn) -> TurnView:
    return TurnView.model_validate(row, from_attributes=True)


def run(row: Standing | None) -> RunView | None:
    return RunView.model_validate(row, from_attributes=True) if row is not None else None


def item(row: Item) -> ItemView:
    shown = {name: getattr(row, name) for name in ItemView.model_fields if name != "arguments"}
    return ItemView(**shown, arguments=canonical.parse(row.arguments) if row.arguments is not None else None)


def approval(row: Approval, caller: Caller) -> ApprovalView:
    content = row.content
    ours = {"payload_hash", "arguments", "facts", "may_decide", "may_not_because"}
    why_not: str | None = None
    if row.status != "pending":
        why_not = f"It is {row.status}."
    elif row.overdue:
        why_not = "It has expired."
    else:
        try:
            check_may_decide(caller.user, row)
        except NotAllowed as error:
            why_not = str(error)
    return ApprovalView(
        **{name: getattr(row, name) for name in ApprovalView.model_fields if name not in ours},
        payload_hash=row.payload_hash.hex(),
        arguments=content["arguments"],
        facts=content["facts"],
        may_decide=why_not is None,
        may_not_because=why_not,
    )


def effect(row: Effect) -> EffectView:
    shown = {name: getattr(row, name) for name in EffectView.model_fields if name != "arguments"}
    return EffectView(**shown, arguments=canonical.parse(row.arguments))


def event(row: Event) -> EventView:
    return EventView.model_validate(row, from_attributes=True)


def outcome(decided: Decided) -> Outcome:
    return Outcome.model_validate({**decided.public(), "first": decided.first})


def cursor_of(key: Key) -> str:
    """A key as clients hand it back; its form is ours to change."""
    return base64.urlsafe_b64encode(json.dumps([key.at.isoformat(), str(key.id)]).encode()).decode()


def key_of(cursor: str | None) -> Key | None:
    """The key of a cursor; raises `InvalidInput` for anything that is none of ours."""
    if cursor is None:
        return None
    try:
        at, id_ = json.loads(base64.b64decode(cursor, altchars=b"-_", validate=True))
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None:
            raise ValueError(at)
        return Key(moment, UUID(id_))
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise InvalidInput("The cursor is not one of ours; pass `next` of the page before.", field="cursor") from None


def next_of(rows: Sequence[Any], limit: int, time: str, id_: str) -> tuple[list[Any], str | None]:
    """The rows of a page of which one more was read than it holds, and the cursor of the next."""
    if len(rows) <= limit:
        return list(rows), None
    last = rows[limit - 1]
    return list(rows[:limit]), cursor_of(Key(getattr(last, time), getattr(last, id_)))
