"""Conditions: CEL that is compiled and type-checked against one tool, or a Python function.

Only an answer whose type is BOOL and whose value is True counts as true: CEL gives errors as values, and their content
is a non-empty text (P6). An evaluation cannot be interrupted, since the engine holds the interpreter's lock; so what it
is given is bounded (`MAX_TEXT`, `MAX_ITEMS`), the engine bounds its own iterations, and a late answer is none.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cel_expr_python import cel
from pydantic import BaseModel

from policies.errors import (
    BadFunction,
    NotACondition,
    NotYet,
    Place,
    PolicyError,
    UnguardedOptional,
    UnknownName,
    WrongType,
    closest,
)
from policies.functions import PREFIX, FunctionRule, Unfit, find
from policies.places import Path, Places
from policies.schemas import USABLE, CannotTell, Kind, Names, ToolSchema, Value

MAX_CONDITION = 4_000  # characters; more belongs into a function
MAX_TEXT = 20_000  # characters of one text that a condition looks at
MAX_ALL_TEXT = 1_000_000  # of all texts that a condition looks at
MAX_ITEMS = 10_000  # of one list that a condition looks at

TYPES: dict[Kind, object] = {
    "bool": cel.Type.BOOL,
    "int": cel.Type.INT,
    "string": cel.Type.STRING,
    "list<bool>": cel.Type.List(cel.Type.BOOL),
    "list<int>": cel.Type.List(cel.Type.INT),
    "list<string>": cel.Type.List(cel.Type.STRING),
}
FUNCTIONS = ("size", "all", "exists", "exists_one", "filter", "map", "startsWith", "endsWith", "contains", "matches")
OTHER_LANGUAGES = {r"\band\b": "&&", r"\bor\b": "||", r"\bnot\b": "!", r"(?<![<>=!])=(?!=)": "==", r"<>": "!="}

_FAULT = re.compile(r"^(?:INVALID_ARGUMENT: )?ERROR: <input>:(-?\d+):(-?\d+): (.*?)(?: \[\w+\])?$", re.MULTILINE)
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_OVERLOAD = re.compile(r"found no matching overload for '([^']*)' applied to '\((.*)\)'")
_LITERALS = re.compile(r"""//[^\n]*|'{3}.*?'{3}|"{3}.*?"{3}|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """What a condition is asked about, and until when (of `time.monotonic`) it may answer.

    `values` is None where arguments or facts could not be used, with the reason in `problem`.
    """

    arguments: BaseModel
    facts: BaseModel | CannotTell
    values: Mapping[str, Value] | None
    problem: str
    deadline: float

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of one tool, ready to be asked. `constant` says what it is when no call can change it."""

    source: str
    uses: tuple[str, ...]  # the names it looks at
    constant: bool | None
    program: cel.Expression | FunctionRule

    async def holds(self, call: Call) -> bool:
        """Whether it is true of a call. Raises `CannotTell` when it is neither true nor false, or late."""
        if self.constant is not None:
            return self.constant
        if call.values is None or isinstance(call.facts, CannotTell):
            raise CannotTell(call.problem)
        if isinstance(self.program, FunctionRule):
            answer = await self.program.answer(call.arguments, call.facts, call.seconds_left)
        else:
            answer = _evaluate(self.program, {name: call.values[name] for name in self.uses if name in call.values})
        if call.seconds_left <= 0:
            raise CannotTell("the answer came too late")
        return answer

    def looks_at(self, call: Call) -> dict[str, Value]:
        """The values that it was given; of an absent optional one only its `.present`."""
        return {name: call.values[name] for name in self.uses if name in call.values} if call.values else {}


def _evaluate(program: cel.Expression, data: dict[str, Value]) -> bool:
    _check_size(data)
    try:
        result = program.eval(data=data)
        if result.type() == cel.Type.BOOL:
            value = result.value()
            if value is True or value is False:
                return value
        problem = str(result.value())
    except Exception as error:  # noqa: BLE001  # whatever the engine raises is no answer
        problem = str(error)
    raise CannotTell(problem)


def _check_size(data: Mapping[str, Value]) -> None:
    total = 0
    for name, value in data.items():
        items = value if isinstance(value, list) else [value]
        if len(items) > MAX_ITEMS:
            raise CannotTell(f"{name} has {len(items)} items, more than the {MAX_ITEMS} that a rule looks at")
        lengths = [len(item) for item in items if isinstance(item, str)]
        if max(lengths, default=0) > MAX_TEXT:
            raise CannotTell(f"{name} has {max(lengths)} characters, more than the {MAX_TEXT} that a rule looks at")
        total += sum(lengths)
    if total > MAX_ALL_TEXT:
        raise CannotTell(f"{total} characters are more than the {MAX_ALL_TEXT} that a rule looks at")


@dataclass(frozen=True, slots=True)
class ConditionCompiler:
    """Compiles the conditions of one tool of one file."""

    schema: ToolSchema
    known: Names
    places: Places

    def compile(self, source: str, path: Path) -> tuple[Condition | None, list[PolicyError]]:
        """The condition written at `path` of the file, or every fault that was found in it."""
        if source.startswith(PREFIX):
            try:
                function = find(source.removeprefix(PREFIX).strip(), self.schema)
            except Unfit as unfit:
                place = self.places.inside(path, source, 1, 1)
                return None, [BadFunction(place, unfit.came, unfit.expected, unfit.suggestion)]
            return Condition(source, (), None, function), []
        try:
            program = self._program(source, tuple(self.known.leaves))
        except Exception as error:  # noqa: BLE001  # the engine has no error class of its own
            return None, self._translate(source, path, str(error))
        uses = tuple(name for name in self.known.leaves if self._needs(source, name))
        faults = self._check(source, path, program, uses)
        return (None, faults) if faults else (Condition(source, uses, _constant(program), program), [])

    def _program(self, source: str, declared: tuple[str, ...]) -> cel.Expression:
        env = cel.NewEnv(variables={name: TYPES[self.known.leaves[name].kind] for name in declared})
        return env.compile(source)

    def _needs(self, source: str, name: str) -> bool:
        """Whether the condition looks at a name: without it, it does not compile. The checker itself says so."""
        if name.rpartition(".")[2] not in source:
            return False
        try:
            self._program(source, tuple(other for other in self.known.leaves if other != name))
        except Exception:  # noqa: BLE001  # the engine has no error class of its own
            return True
        return False

    def _check(self, source: str, path: Path, program: cel.Expression, uses: tuple[str, ...]) -> list[PolicyError]:
        """What the engine accepts and a rule must not be."""
        faults: list[PolicyError] = []
        here = self.places.inside(path, source, 1, 1)
        if len(source) > MAX_CONDITION:
            expected = f"At most {MAX_CONDITION}; what is longer belongs into a Python function."
            faults.append(NotACondition(here, f"The condition has {len(source)} characters.", expected))
        if program.return_type() != cel.Type.BOOL:
            came = f"The condition is {program.return_type().name().lower()}."
            faults.append(WrongType(here, came, "A condition that is true or false was expected."))
        code = _LITERALS.sub(lambda literal: " " * len(literal.group()), source)
        if macro := re.search(r"\bhas\s*\(", code):
            expected = "Facts are always there; whether an optional argument is there says its `.present`."
            place = self._at(source, path, macro.start())
            faults.append(NotACondition(place, "has() gives a field's value here, not whether it is there.", expected))
        for name in uses:
            guard = self.known.leaves[name].guard
            if guard is not None and guard not in uses:
                place = self._at(source, path, max(source.find(name), 0))
                expected = "Ask whether it is there first."
                suggestion = f"{guard} && {name} …"
                faults.append(UnguardedOptional(place, f"{name} may be absent.", expected, suggestion))
        return faults

    def _at(self, source: str, path: Path, index: int) -> Place:
        before = source[:index]
        return self.places.inside(path, source, before.count("\n") + 1, index - before.rfind("\n"))

    def _translate(self, source: str, path: Path, message: str) -> list[PolicyError]:
        """The engine's faults, in this project's words and at their place in the file."""
        found = [(int(line), int(column), text) for line, column, text in _FAULT.findall(message)]
        if not found:
            expected = "A condition that CEL can read was expected."
            return [NotACondition(self.places.of(*path), f"The condition cannot be read: {message}.", expected)]
        if any(text.startswith("Syntax error") for _, _, text in found):
            line, column, text = found[0]  # those behind it are its consequences
            code = _LITERALS.sub(lambda literal: " " * len(literal.group()), source)
            meant = next((cel_form for form, cel_form in OTHER_LANGUAGES.items() if re.search(form, code)), None)
            came = f"The condition cannot be read: {text.removeprefix('Syntax error: ').partition(' expecting {')[0]}."
            place = self.places.inside(path, source, line, column)
            return [NotACondition(place, came, "A condition in CEL was expected.", meant and f"`{meant}`")]
        return [self._fault(source, path, *fault) for fault in found]

    def _fault(self, source: str, path: Path, line: int, column: int, text: str) -> PolicyError:
        place = self.places.inside(path, source, line, column)
        if undeclared := _UNDECLARED.search(text):
            name = undeclared.group(1)
            start = column - len(name.rpartition(".")[0])  # the engine points at the last dot
            if "." in name and source.split("\n")[line - 1][max(start - 1, 0) :].startswith(name):
                place = self.places.inside(path, source, line, start)
            return self._unknown(place, name)
        if overload := _OVERLOAD.search(text):
            operator, types = overload.groups()
            shown = operator.strip("_@").replace("_", " ")
            expected = "Values of types that fit each other were expected."
            if "double" in types:
                expected = "Whole numbers were expected; amounts are in minor units: 5000 is 50.00."
            return WrongType(place, f"`{shown}` does not go with ({types}).", expected)
        if "operand of a select operation" in text:
            return WrongType(place, f"{text[:1].upper()}{text[1:]}.", "A name without a further field was expected.")
        return NotACondition(place, f"The condition cannot be used: {text}.", "A condition in CEL was expected.")

    def _unknown(self, place: Place, name: str) -> PolicyError:
        if name.partition(".")[0] == "window":
            came = f"{name}: limits over a window (this turn, today, …) cannot be used in rules yet."
            return NotYet(place, came, "A condition on args.… and facts.… was expected.")
        if why := self.known.unusable.get(name):
            expected = f"{USABLE}; for anything else add a fact, or write a Python function."
            return UnknownName(place, f"{name} cannot be used in a condition: {why}.", expected)
        if fields := self.known.fields_of(name):
            return UnknownName(place, f"{name} is not a value.", f"Expected one of its fields: {', '.join(fields)}.")
        leaves = list(self.known.leaves)
        if "." not in name:
            near = next((leaf for leaf in leaves if leaf.endswith(f".{name}")), closest(name, [*FUNCTIONS, *leaves]))
            return UnknownName(place, f'"{name}" is unknown.', "Expected an argument, a fact or a CEL function.", near)
        root, _, tail = name.partition(".")
        near = next((leaf for leaf in leaves if leaf.partition(".")[2] == tail), closest(name, leaves))
        of_root = [leaf for leaf in leaves if leaf.startswith(f"{root}.")] or leaves
        return UnknownName(
            place, f"{self.schema.name} has no {name}.", f"It has: {', '.join(of_root) or 'nothing'}.", near
        )


def _constant(program: cel.Expression) -> bool | None:
    """What the condition is without knowing anything of a call: true for `true` and for `… || true`."""
    try:
        return _evaluate(program, {})
    except CannotTell:
        return None
