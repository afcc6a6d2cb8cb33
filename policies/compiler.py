"""From the rules file to a policy, with everything checked on the way (P7).

    [policy]                              # optional
    duties = ["support", "finance"]       # lowest first; a duty that is not listed is a fault
    duty   = "finance"                    # who is asked when no rule says whom; default: the last of the list

    [refund_payments]                     # one table per tool, and every known tool has one
    auto_if = "facts.total <= 5000"       # CEL, or "python:package.module.function"
    reason  = "A small refund."
    mode    = "mutating"                  # optional: states what the tool's tier implies, and is checked against it

    [[refund_payments.deny]]              # id, reason, and usually when
    [[refund_payments.flag]]              # id, when, reason: reviewers see the reason; the call is not automatic
    [[refund_payments.ask]]               # id, duty, reason; optional when, quorum, ttl ("8h"), confirm

Nothing is used unless all of it is right: the compiler collects every fault and raises them together.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as File
from types import MappingProxyType
from typing import Any, NamedTuple, cast, get_args

from policies.conditions import Condition, ConditionCompiler
from policies.errors import (
    AlwaysAutomatic,
    DuplicateId,
    MissingKey,
    NeverTrue,
    NoSuchTool,
    NotToml,
    NotYet,
    Place,
    PolicyError,
    ReadsNeverAsk,
    RulesRefused,
    ShadowedRule,
    ToolWithoutRule,
    UnknownDuty,
    UnknownKey,
    UnusableSchema,
    WrongValue,
    closest,
)
from policies.functions import FunctionRule
from policies.places import Path, Places, places
from policies.policy import SECONDS, Asking, Mode, Part, Policy, Rule, ToolRules
from policies.schemas import Tier, ToolSchema, names
from policies.verdicts import CONFIRM, Confirm
from policies.version import policy_version

RULES = File(__file__).with_name("rules.toml")
HEAD = "policy"  # the one table that is no tool
DEFAULT_DUTY = "support"  # where the file lists no duties
MAX_QUORUM = 20
MAX_TTL = 365 * 24 * 3600
MODES: dict[Tier, Mode] = {"read_only": "safe_readonly", "reversible": "mutating", "irreversible": "mutating"}


class Key(NamedTuple):
    """What a key of the file may hold."""

    kind: type
    expected: str
    required: bool = False


REASON = Key(str, "a sentence for people", required=True)
ID = Key(str, 'a name in small letters, such as "refund-large"', required=True)
WHEN = Key(str, 'a condition as text, such as "facts.total > 5000"')
RULE_LISTS: dict[Part, dict[str, Key]] = {
    "deny": {"id": ID, "when": WHEN, "reason": REASON},
    "flag": {"id": ID, "when": WHEN._replace(required=True), "reason": REASON},
    "ask": {
        "id": ID,
        "when": WHEN,
        "duty": Key(str, 'a duty, such as "support"', required=True),
        "quorum": Key(int, f"a whole number from 1 to {MAX_QUORUM}"),
        "ttl": Key(str, 'a time such as "30m", "8h" or "2d"'),
        "confirm": Key(str, " or ".join(f'"{confirm}"' for confirm in CONFIRM)),
        "reason": REASON,
    },
}
TOOL: dict[str, Key] = {
    "auto_if": Key(str, 'a condition as text, such as "facts.total <= 5000"', required=True),
    "reason": REASON,
    "mode": Key(str, 'a mode: "safe_readonly" or "mutating"'),
    **dict.fromkeys(map(str, RULE_LISTS), Key(list, "rules, each under a header in double brackets")),
}
POLICY = {"duties": Key(list, "a list of duties, lowest first"), "duty": Key(str, "a duty")}


def load_rules(
    file: File, schemas: Iterable[ToolSchema], *, absent: Iterable[ToolSchema] = (), timeout: float = 2.0
) -> Policy:
    """The policy in `file`; as `compile_rules`. Raises `OSError` when it cannot be read."""
    content = file.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = Place(str(file), content[: error.start].count(b"\n") + 1, 1)
        fault = NotToml(place, "The file is not text in UTF-8.", "Save it as UTF-8.")
        raise RulesRefused(str(file), [fault]) from error
    return compile_rules(text, source=str(file), schemas=schemas, absent=absent, timeout=timeout)


def compile_rules(
    text: str,
    *,
    source: str,
    schemas: Iterable[ToolSchema],
    absent: Iterable[ToolSchema] = (),
    timeout: float = 2.0,
) -> Policy:
    """Check `text`, which `source` names in messages, against the tools and make it a policy.

    `absent` are tools that could be there and are not configured: what the file says of them is checked as well, but it
    need not say anything. `timeout` is seconds for all rules of one call. Raises `RulesRefused` with every fault that was found.
    """
    unified = text.replace("\r\n", "\n")  # as tomllib does
    try:
        data = tomllib.loads(unified)
    except tomllib.TOMLDecodeError as error:
        raise RulesRefused(source, [_not_toml(str(error), unified, source)]) from error
    optional = {schema.name: schema for schema in absent}
    compiling = _Compiling(
        places(unified, source), optional | {schema.name: schema for schema in schemas}, frozenset(optional)
    )
    duties, default_duty = compiling.head(data)
    rules = compiling.tools(data)
    if compiling.faults:
        raise RulesRefused(source, compiling.faults)
    version = policy_version(text.encode(), _function_sources(rules.values()))
    return Policy(source, version, MappingProxyType(rules), duties, default_duty, timeout)


def _not_toml(message: str, text: str, source: str) -> NotToml:
    what, _, where = message.partition(" (at ")
    at = re.match(r"line (\d+), column (\d+)", where)
    line, column = (int(at[1]), int(at[2])) if at else (text.rstrip().count("\n") + 1, 1)
    return NotToml(Place(source, line, column), f"This is not TOML: {what}.", "See https://toml.io for its form.")


def _function_sources(rules: Iterable[ToolRules]) -> list[bytes]:
    every = (rule for tool in rules for rule in (tool.auto, *tool.deny, *tool.flags, *tool.asks))
    programs = (rule.condition.program for rule in every)
    return [source for program in programs if isinstance(program, FunctionRule) for source in program.sources]


def _is_text(value: str) -> bool:
    """Something is said, and without control characters, which a record could not keep."""
    return bool(value.strip()) and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", value)


@dataclass(slots=True)
class _Compiling:
    """One file on its way to a policy; collects the faults."""

    places: Places
    schemas: Mapping[str, ToolSchema]
    optional: frozenset[str] = frozenset()  # names of tools that need no rule
    faults: list[PolicyError] = field(default_factory=list)
    duties: tuple[str, ...] = ()
    misspelt: set[str | None] = field(default_factory=set)  # tools that an unknown table was probably meant to be
    ids: dict[str, Place] = field(default_factory=dict)

    def head(self, data: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
        """The list of duties, lowest first, and the duty that is asked by default."""
        table = data.get(HEAD, {})
        if not isinstance(table, dict):
            self._wrong_value((HEAD,), table, f"a table, [{HEAD}]")
            return (), DEFAULT_DUTY
        given = self._checked((HEAD,), table, POLICY)
        duties = given.get("duties", [])
        if not all(isinstance(duty, str) and _is_text(duty) for duty in duties) or len(set(map(str, duties))) != len(
            duties
        ):
            self._wrong_value((HEAD, "duties"), duties, "different names of duties, lowest first")
            duties = []
        self.duties = tuple(duties)
        default = given.get("duty", self.duties[-1] if self.duties else DEFAULT_DUTY)
        self._check_duty((HEAD, "duty"), default)
        return self.duties, default

    def tools(self, data: Mapping[str, Any]) -> dict[str, ToolRules]:
        """The rules of every tool; each known tool has them, and nothing else has."""
        rules: dict[str, ToolRules] = {}
        if HEAD in self.schemas:
            came = f"A tool is named {HEAD}, and [{HEAD}] is the file's head."
            self.faults.append(UnusableSchema(self.places.of(HEAD), came, "Rename the tool."))
        for name in data:
            if name != HEAD and name not in self.schemas:
                near = closest(name, self.schemas)
                self.misspelt.add(near)
                expected = f"Tools: {', '.join(sorted(self.schemas)) or 'none'}."
                self.faults.append(NoSuchTool(self.places.of(name), f"There is no tool {name}.", expected, near))
        for name, schema in self.schemas.items():
            table = data.get(name)
            if table is None and name not in self.misspelt | self.optional:
                self._without_rule(schema)
            elif isinstance(table, dict) and name != HEAD and (made := self._tool(schema, table)) is not None:
                rules[name] = made
            elif table is not None and not isinstance(table, dict):
                self._wrong_value((name,), table, f"a table, [{name}]")
        return rules

    def _without_rule(self, schema: ToolSchema) -> None:
        auto = "true" if schema.tier == "read_only" else "false"
        expected = f'Every known tool has one; add [{schema.name}] with auto_if = "{auto}" and a reason.'
        self.faults.append(ToolWithoutRule(self.places.end(), f"The tool {schema.name} has no rule.", expected))

    def _tool(self, schema: ToolSchema, table: Mapping[str, Any]) -> ToolRules | None:
        path = (schema.name,)
        known = names(schema)
        for name in known.clashes:
            expected = "Rename the field of the tool's model."
            self.faults.append(UnusableSchema(self.places.of(*path), f"{name} means two things.", expected))
        compiler = ConditionCompiler(schema, known, self.places)
        given = self._checked(path, table, TOOL)
        self._check_mode(schema, given)
        auto = self._rule(compiler, path, "auto_if", {**given, "id": f"{schema.name}.auto"}, given.get("auto_if"))
        lists = {part: self._rules(compiler, part, given.get(part, [])) for part in RULE_LISTS}
        if schema.tier == "read_only":
            self._check_read(schema, auto, lists)
        elif auto is not None:
            self._check_automatic(schema, auto, lists)
        for part, rules in lists.items():
            if part != "flag":
                self._check_shadows(rules)
        if auto is None:
            return None
        return ToolRules(
            schema, known, MODES[schema.tier], auto, tuple(lists["deny"]), tuple(lists["flag"]), tuple(lists["ask"])
        )

    def _rules(self, compiler: ConditionCompiler, part: Part, tables: list[Any]) -> list[Rule]:
        made: list[Rule] = []
        for index, table in enumerate(tables):
            path = (compiler.schema.name, part, index)
            if not isinstance(table, dict):
                self._wrong_value(path, table, f"rules under [[{compiler.schema.name}.{part}]]")
                continue
            given = self._checked(path, table, RULE_LISTS[part])
            is_clear = len(given) == len(table)  # else a missing `when` may be one that is misspelt
            rule = self._rule(compiler, path, part, given, given.get("when", "true" if is_clear else None))
            if rule is not None:
                made.append(rule)
        return made

    def _rule(
        self, compiler: ConditionCompiler, path: Path, part: Part, given: Mapping[str, Any], source: str | None
    ) -> Rule | None:
        condition = None
        if source is not None:
            where = (*path, "auto_if" if part == "auto_if" else "when")
            condition = self._condition(compiler, where, source, given, may_be_false=part == "auto_if")
        asking = self._asking(path, given) if part == "ask" else None
        if part != "auto_if" and "id" in given:
            self._check_id(path, given["id"])
        if condition is None or "id" not in given or "reason" not in given:
            return None
        return Rule(given["id"], part, condition, given["reason"], self.places.of(*path), asking)

    def _condition(
        self, compiler: ConditionCompiler, path: Path, source: str, given: Mapping[str, Any], *, may_be_false: bool
    ) -> Condition | None:
        condition, faults = compiler.compile(source, path)
        self.faults.extend(faults)
        if condition is not None and condition.constant is False and not may_be_false:
            expected = "Remove the rule, or say when it holds."
            came = f"The condition of {given.get('id', 'this rule')} is never true."
            self.faults.append(NeverTrue(self.places.of(*path), came, expected))
        return condition

    def _asking(self, path: Path, given: Mapping[str, Any]) -> Asking:
        duty = given.get("duty", DEFAULT_DUTY)
        if "duty" in given:
            self._check_duty((*path, "duty"), duty)
        quorum = given.get("quorum", 1)
        if not 1 <= quorum <= MAX_QUORUM:
            self._wrong_value((*path, "quorum"), quorum, RULE_LISTS["ask"]["quorum"].expected)
        confirm = given.get("confirm", CONFIRM[0])
        if confirm not in get_args(Confirm):
            near = closest(confirm, CONFIRM)
            self._wrong_value((*path, "confirm"), confirm, RULE_LISTS["ask"]["confirm"].expected, near)
        return Asking(duty, quorum, self._ttl(path, given.get("ttl")), cast("Confirm", confirm))

    def _ttl(self, path: Path, given: str | None) -> int | None:
        if given is None:
            return None
        form = re.fullmatch(r"([1-9]\d{0,7})([smhd])", given)
        seconds = int(form[1]) * SECONDS[form[2]] if form else 0
        if not 1 <= seconds <= MAX_TTL:
            self._wrong_value((*path, "ttl"), given, RULE_LISTS["ask"]["ttl"].expected + ", at most a year")
        return seconds

    def _checked(self, path: Path, table: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
        """The keys that are known and hold what they should; everything else is a fault."""
        good: dict[str, Any] = {}
        missing = {name for name, key in keys.items() if key.required and name not in table}
        for name, value in table.items():
            if name not in keys:
                near = closest(name, keys)
                missing.discard(str(near))
                came = f"The key {name} is unknown here."
                expected = f"Expected: {', '.join(keys)}."
                self.faults.append(UnknownKey(self.places.of(*path, name), came, expected, near))
            elif type(value) is not keys[name].kind or (isinstance(value, str) and not _is_text(value)):
                hint = f"[[{path[0]}.{name}]]" if name in RULE_LISTS else None
                self._wrong_value((*path, name), value, keys[name].expected, hint)
            else:
                good[name] = value
        for name in sorted(missing) if path[0] not in self.misspelt or len(path) > 1 else ():
            came = f"{self._title(path)} has no {name}."
            self.faults.append(MissingKey(self.places.of(*path), came, f"Expected {keys[name].expected}."))
        return good

    def _title(self, path: Path) -> str:
        return f"[[{path[0]}.{path[1]}]]" if len(path) == 3 else f"[{path[0]}]"

    def _wrong_value(self, path: Path, value: object, expected: str, suggestion: str | None = None) -> None:
        shown = "a table" if isinstance(value, dict) else json.dumps(value, ensure_ascii=False, default=str)
        came = f"{path[-1] if isinstance(path[-1], str) else self._title(path)} is {shown}."
        self.faults.append(WrongValue(self.places.of(*path), came, f"Expected {expected}.", suggestion))

    def _check_duty(self, path: Path, duty: str) -> None:
        if self.duties and duty not in self.duties:
            expected = f"The duties of this file are: {', '.join(self.duties)}."
            came = f"There is no duty {duty}."
            self.faults.append(UnknownDuty(self.places.of(*path), came, expected, closest(duty, self.duties)))

    def _check_id(self, path: Path, given: str) -> None:
        place = self.places.of(*path, "id")
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,63}", given):
            self._wrong_value((*path, "id"), given, ID.expected)
        elif given in self.ids:
            came = f'The id "{given}" is already taken in line {self.ids[given].line}.'
            self.faults.append(DuplicateId(place, came, "Every rule of the file has its own."))
        else:
            self.ids[given] = place

    def _check_mode(self, schema: ToolSchema, given: Mapping[str, Any]) -> None:
        mode = given.get("mode")
        if mode is None or mode == MODES[schema.tier]:
            return
        if mode == "confirm_once":
            came = "confirm_once: remembered approvals cannot be used in rules yet."
            self.faults.append(NotYet(self.places.of(schema.name, "mode"), came, f'Expected "{MODES[schema.tier]}".'))
        else:
            expected = f'"{MODES[schema.tier]}", since the tool is {schema.tier}'
            self._wrong_value((schema.name, "mode"), mode, expected, closest(mode, MODES.values()))

    def _check_read(self, schema: ToolSchema, auto: Rule | None, lists: Mapping[Part, list[Rule]]) -> None:
        asking = [*lists["flag"], *lists["ask"]]
        wrong = [auto.place] if auto is not None and auto.condition.constant is not True else []
        for place in [*wrong, *(rule.place for rule in asking)]:
            came = f"{schema.name} only reads, and valid reads never ask."
            expected = (
                'Expected auto_if = "true" and at most deny rules; a read that carries something out is irreversible.'
            )
            self.faults.append(ReadsNeverAsk(place, came, expected))

    def _check_automatic(self, schema: ToolSchema, auto: Rule, lists: Mapping[Part, list[Rule]]) -> None:
        if auto.condition.constant is not True:
            return
        place = self.places.of(schema.name, "auto_if")
        if schema.tier == "irreversible":
            came = f"{schema.name} is irreversible and would always run by itself."
            expected = 'Expected a condition under which it may, or "false".'
            self.faults.append(AlwaysAutomatic(place, came, expected))
        elif not lists["flag"]:
            for rule in lists["ask"]:
                came = f"{rule.id} never asks: auto_if in line {place.line} always holds."
                self.faults.append(ShadowedRule(rule.place, came, "Expected the limit in auto_if: automatic only if …"))

    def _check_shadows(self, rules: list[Rule]) -> None:
        always = next((rule for rule in rules if rule.condition.constant is True), None)
        if always is None:
            return
        for rule in rules[rules.index(always) + 1 :]:
            came = f"{rule.id} is never reached: {always.id} in line {always.place.line} always holds."
            self.faults.append(ShadowedRule(rule.place, came, "Expected the rule without a condition as the last one."))
