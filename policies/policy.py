"""The policy: which calls go without a person, which ask, which are denied.

Order (P6): a `deny` rule that holds ends it; then `auto_if`; then the `ask` rules in the order of the file, the first
that holds; then the built-in ask. Vetoes belong before `deny`, windows between `deny` and `auto_if`, grants between
windows and `auto_if`: each can only take away what a later step would allow, or stand in for a person's answer.

It fails closed. A condition that is not exactly true, or not exactly false, never makes a call easier: in `deny` and
`auto_if` it leads to asking, in a flag and in an `ask` rule it counts as met, and the verdict says why in
`policy_error`. So the rules that ask stand with the strictest first.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from policies.conditions import Call, Condition
from policies.errors import Place
from policies.schemas import CannotTell, Names, ToolSchema, Value, values
from policies.verdicts import Confirm, Flag, Verdict
from policies.version import SHOWN

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}  # units of a rule's time to live
MAX_PROBLEM = 500  # characters of what one rule has to say about its failure

Part = Literal["deny", "flag", "auto_if", "ask"]
Outcome = Literal["true", "false", "error"]
Mode = Literal["safe_readonly", "mutating"]


@dataclass(frozen=True, slots=True)
class Asking:
    """Who is asked: a duty, how many of its people, for how long (seconds), with which friction."""

    duty: str
    quorum: int = 1
    ttl: int | None = None
    confirm: Confirm = "click"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the file; `asking` only where it asks."""

    id: str
    part: Part
    condition: Condition
    reason: str
    place: Place
    asking: Asking | None = None


@dataclass(frozen=True, slots=True)
class ToolRules:
    """What the file says of one tool."""

    schema: ToolSchema
    names: Names
    mode: Mode
    auto: Rule
    deny: tuple[Rule, ...] = ()
    flags: tuple[Rule, ...] = ()
    asks: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """One rule that was looked at: what it said, and the values it saw."""

    rule: str
    part: Part
    condition: str
    outcome: Outcome
    place: Place
    looked_at: Mapping[str, Value]
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "part": self.part,
            "condition": self.condition,
            "outcome": self.outcome,
            "at": str(self.place),
            "looked_at": dict(self.looked_at),
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict with the rules that led to it, in the order in which they were looked at."""

    verdict: Verdict
    looks: tuple[Look, ...]

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict.as_json(), "looks": [look.as_json() for look in self.looks]}


@dataclass(slots=True)
class _Looking:
    """One call on its way through the rules."""

    call: Call
    looks: list[Look] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def at(self, rule: Rule) -> Outcome:
        outcome: Outcome = "error"
        problem = None
        try:
            outcome = "true" if await rule.condition.holds(self.call) else "false"
        except CannotTell as reason:
            problem = str(reason)
        except Exception as error:  # noqa: BLE001  # a fault of this package must not make a call easier either
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            problem = _storable(problem)
        if problem is not None and self.call.values is not None:
            self.errors.append(f"{rule.id} ({rule.place.file}:{rule.place.line}): {problem}")
        seen = rule.condition.looks_at(self.call)
        self.looks.append(Look(rule.id, rule.part, rule.condition.source, outcome, rule.place, seen, problem))
        return outcome

    @property
    def policy_error(self) -> str | None:
        return "; ".join(self.errors) or None


@dataclass(frozen=True, slots=True)
class Policy:
    """The compiled rules of one file; frozen, and safe to ask from several tasks at once."""

    source: str
    version: str  # 64 hex digits (P8)
    rules: Mapping[str, ToolRules]
    duties: Sequence[str]  # lowest first; empty where the file lists none
    default_duty: str  # who is asked when no rule says whom
    timeout: float  # seconds for all rules of one call

    @property
    def short_version(self) -> str:
        """The version as people see it: 16 digits."""
        return self.version[:SHOWN]

    async def decide(self, tool: str, arguments: BaseModel, facts: BaseModel | CannotTell) -> Verdict:
        """The verdict on one call with validated arguments and the tool's own facts. Never raises: what cannot be told
        asks (P6), also for a tool that this policy has no rule for, and where the facts are a `CannotTell` that says
        why there are none."""
        return (await self.explain(tool, arguments, facts)).verdict

    async def explain(self, tool: str, arguments: BaseModel, facts: BaseModel | CannotTell) -> Explanation:
        """`decide`, with the rules that were looked at."""
        rules = self.rules.get(tool)
        if rules is None:
            error = _storable(f"{tool} has no rule in {self.source}")
            reason = "Nobody has written a rule for this tool."
            return Explanation(self._ask_by_default("policy.no-rule", reason, error), ())
        looking = _Looking(self._call(rules, arguments, facts))
        if looking.call.values is None:
            looking.errors.append(looking.call.problem)
        verdict = await self._decide(rules, looking)
        return Explanation(verdict, tuple(looking.looks))

    def sentences(self) -> dict[str, list[str]]:
        """What the policy says, per tool, in the order in which it is applied; for `policy show` and for reviewers."""
        return {tool: _sentences(rules, self.default_duty) for tool, rules in sorted(self.rules.items())}

    def _call(self, rules: ToolRules, arguments: BaseModel, facts: BaseModel | CannotTell) -> Call:
        given: dict[str, Value] | None = None
        problem = ""
        try:
            if isinstance(facts, CannotTell):
                raise facts
            for name, value, expected in (
                ("arguments", arguments, rules.schema.arguments),
                ("facts", facts, rules.schema.facts),
            ):
                if not isinstance(value, expected):
                    raise CannotTell(f"the {name} are {type(value).__name__}, expected {expected.__qualname__}")
            given = values(rules.names, arguments, facts)
        except CannotTell as reason:
            problem = str(reason)
        except Exception as error:  # noqa: BLE001  # reading a tool's model runs its code; what it raises is no fact
            problem = f"arguments and facts cannot be read ({type(error).__name__}: {error})"
        return Call(arguments, facts, given, _storable(problem), time.monotonic() + self.timeout)

    async def _decide(self, rules: ToolRules, looking: _Looking) -> Verdict:
        for rule in rules.deny:
            if await looking.at(rule) == "true":
                return Verdict(
                    kind="deny",
                    rule=rule.id,
                    reason=rule.reason,
                    policy_version=self.version,
                    policy_error=looking.policy_error,
                )
        flags = tuple(
            [Flag(rule=rule.id, reason=rule.reason) for rule in rules.flags if await looking.at(rule) != "false"]
        )
        automatic = await looking.at(rules.auto) == "true"
        if automatic and not flags and looking.policy_error is None:
            return Verdict(kind="auto", rule=rules.auto.id, reason=rules.auto.reason, policy_version=self.version)
        for rule in rules.asks:
            if rule.asking is not None and await looking.at(rule) != "false":
                return self._ask(rule.id, rule.reason, rule.asking, looking.policy_error, flags)
        reason = "No rule makes this call automatic."
        return self._ask_by_default(f"{rules.schema.name}.ask", reason, looking.policy_error, flags)

    def _ask_by_default(self, rule: str, reason: str, error: str | None, flags: tuple[Flag, ...] = ()) -> Verdict:
        return self._ask(rule, reason, Asking(self.default_duty), error, flags)

    def _ask(self, rule: str, reason: str, asking: Asking, error: str | None, flags: tuple[Flag, ...]) -> Verdict:
        return Verdict(
            kind="ask",
            rule=rule,
            reason=reason,
            policy_version=self.version,
            duty=asking.duty,
            quorum=asking.quorum,
            ttl=asking.ttl,
            confirm=asking.confirm,
            policy_error=error,
            flags=flags,
        )


def _storable(text: str) -> str:
    """A problem as it may be stored: what a rule raises can hold anything, and any amount of it."""
    clean = text.encode("utf-8", "replace").decode().replace("\0", "?")
    return clean if len(clean) <= MAX_PROBLEM else f"{clean[:MAX_PROBLEM]}…"


def _sentences(rules: ToolRules, default_duty: str) -> list[str]:
    lines = [f"Denied {_when(rule)} ({rule.id}): {rule.reason}" for rule in rules.deny]
    lines += [f"Flagged, and never automatic, {_when(rule)} ({rule.id}): {rule.reason}" for rule in rules.flags]
    match rules.auto.condition.constant:
        case True:
            lines.append(f"Runs by itself: {rules.auto.reason}")
            return lines
        case False:
            lines.append(f"Never runs by itself: {rules.auto.reason}")
        case None:
            lines.append(f"Runs by itself only {_when(rules.auto)}: {rules.auto.reason}")
    for rule in rules.asks:
        if rule.asking is not None:
            when = "Otherwise" if rule.condition.constant else f"Otherwise, {_when(rule)},"
            lines.append(f"{when} {_who(rule.asking)} ({rule.id}): {rule.reason}")
    if not any(rule.condition.constant for rule in rules.asks):
        lines.append(f"Otherwise {_who(Asking(default_duty))}.")
    return lines


def _when(rule: Rule) -> str:
    return "always" if rule.condition.constant else f"if `{' '.join(rule.condition.source.split())}`"


def _who(asking: Asking) -> str:
    who = f"{asking.duty} decides" if asking.quorum == 1 else f"{asking.quorum} people of {asking.duty} decide"
    within = f" within {_span(asking.ttl)}" if asking.ttl is not None else ""
    return f"{who}{within}{', typing the total' if asking.confirm == 'type-total' else ''}"


def _span(seconds: int) -> str:
    """As the file writes it: 28800 as `8h`."""
    unit, size = next((unit, size) for unit, size in reversed(SECONDS.items()) if seconds % size == 0)
    return f"{seconds // size}{unit}"
