"""What the policy says of one call.

A verdict is frozen when the call is proposed and stored with it (P8). Before the call executes the policy is asked
again, only to be stricter (A7): `stricter` compares the two. A verdict that is `auto` never carries a policy error, and
one that asks always says whom (P6): the type itself refuses anything else.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["auto", "ask", "deny"]
Confirm = Literal["click", "type-total"]
CONFIRM: tuple[Confirm, ...] = ("click", "type-total")  # what a reviewer does to approve, weakest first (I4)


class Flag(BaseModel):
    """Something about the call that a reviewer should see; a flagged call is never automatic."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rule: str
    reason: str


class Verdict(BaseModel):
    """May the call run, and if people must say: who, how many, until when, with which friction."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Kind
    rule: str  # the id of the rule that decided
    reason: str  # in plain words, for people and for the model
    policy_version: str  # 64 hex digits (P8)
    duty: str | None = None  # who may decide; only when asking
    quorum: int = Field(default=0, ge=0)  # how many people; 0 when nobody is asked
    ttl: Annotated[int, Field(ge=1)] | None = None  # seconds until the approval expires; None: the setting's default
    confirm: Confirm | None = None  # the friction; only when asking
    policy_error: str | None = None  # why the policy could not tell; then it asks
    flags: tuple[Flag, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        asks = self.kind == "ask"
        if asks != (self.duty is not None) or asks != (self.quorum >= 1) or asks != (self.confirm is not None):
            raise ValueError("A verdict that asks names duty, quorum and confirm; any other names none of them.")
        if self.kind == "auto" and (self.policy_error is not None or self.flags):
            raise ValueError("A call is automatic only when the policy could tell and nothing about it is flagged.")
        return self

    def as_json(self) -> dict[str, Any]:
        """As plain JSON: text, whole numbers, lists, objects and null."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """From what `as_json` gave. Raises `pydantic.ValidationError` for anything else."""
        return cls.model_validate_json(json.dumps(data))


@dataclass(frozen=True, slots=True)
class Stricter:
    """The policy now demands more than when the call was frozen, and why, in plain words."""

    outcome: Literal["denied", "ask_again"]
    because: str


def stricter(frozen: Verdict, now: Verdict, *, duties: Sequence[str] = ()) -> Stricter | None:
    """Whether `now` stands in the way of a call that was frozen as `frozen` (A7); None when it may go on.

    `duties` is the policy's list, lowest first: a duty that ranks lower now is a loosened rule and changes nothing, one
    that ranks higher, or cannot be ranked, must be asked. What a person rejected is not this function's business: it
    stays rejected, whatever the policy says now.
    """
    if now.kind == "deny" or frozen.kind == "deny":
        return Stricter("denied", now.reason if now.kind == "deny" else frozen.reason)
    if now.kind == "auto":
        return None
    if frozen.kind == "auto":
        return Stricter("ask_again", now.policy_error or f"It was automatic and now asks {now.duty}: {now.reason}")
    more = [
        sentence
        for demands_more, sentence in (
            (_outranks(now.duty, frozen.duty, duties), f"{now.duty} must decide, not {frozen.duty}"),
            (now.quorum > frozen.quorum, f"{now.quorum} people must approve, not {frozen.quorum}"),
            (
                _strength(now.confirm) > _strength(frozen.confirm),
                f"approving takes {now.confirm}, not {frozen.confirm}",
            ),
            (
                bool(now.policy_error and not frozen.policy_error),
                f"the policy cannot tell any more: {now.policy_error}",
            ),
        )
        if demands_more
    ]
    return Stricter("ask_again", "; ".join(more)) if more else None


def _outranks(now: str | None, frozen: str | None, duties: Sequence[str]) -> bool:
    if now == frozen:
        return False
    if now in duties and frozen in duties:
        return duties.index(now) > duties.index(frozen)
    return True


def _strength(confirm: Confirm | None) -> int:
    return -1 if confirm is None else CONFIRM.index(confirm)
