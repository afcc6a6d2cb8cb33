"""What can be wrong with a rules file.

Everything is found when the file is loaded, all of it at once, each fault with its line, what came, what was expected
and, where something similar exists, its name (P7). Codes are stable; sentences may change.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A spot in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class PolicyError(Exception):
    """One fault of a rules file: where it is, what came, what was expected, what may have been meant."""

    code: ClassVar[str] = "policy_error"

    def __init__(self, place: Place, came: str, expected: str, suggestion: str | None = None) -> None:
        super().__init__(place, came, expected, suggestion)
        self.place = place
        self.came = came
        self.expected = expected
        self.suggestion = suggestion

    def __str__(self) -> str:
        hint = f" Did you mean {self.suggestion}?" if self.suggestion else ""
        return f"{self.place}: {self.came} {self.expected}{hint}"

    def as_json(self) -> dict[str, str | int | None]:
        """For machines: code, file, line, column, came, expected, suggestion."""
        return {
            "code": self.code,
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "came": self.came,
            "expected": self.expected,
            "suggestion": self.suggestion,
        }


class NotToml(PolicyError):
    """The file is not UTF-8, or not TOML."""

    code = "not_toml"


class UnknownKey(PolicyError):
    """A key, or a kind of rule, that the file cannot have (`resaon`, `[[x.aks]]`)."""

    code = "unknown_key"


class MissingKey(PolicyError):
    """A rule lacks something that every rule of its kind has."""

    code = "missing_key"


class WrongValue(PolicyError):
    """A key holds a value of another type, or out of its range."""

    code = "wrong_value"


class NoSuchTool(PolicyError):
    """A rule for a tool that does not exist."""

    code = "no_such_tool"


class ToolWithoutRule(PolicyError):
    """A known tool about which the file says nothing."""

    code = "tool_without_rule"


class UnknownDuty(PolicyError):
    """A duty that is not in the file's list of duties."""

    code = "unknown_duty"


class DuplicateId(PolicyError):
    """Two rules share an id, so a verdict could not say which one spoke."""

    code = "duplicate_id"


class NotACondition(PolicyError):
    """The condition cannot be read as CEL."""

    code = "not_a_condition"


class UnknownName(PolicyError):
    """A condition names an argument, a fact or a function that does not exist."""

    code = "unknown_name"


class WrongType(PolicyError):
    """A condition compares what cannot be compared, or is not true or false."""

    code = "wrong_type"


class UnguardedOptional(PolicyError):
    """A condition uses a value that may be absent without asking whether it is there."""

    code = "unguarded_optional"


class NotYet(PolicyError):
    """Something that rules will be able to say, but cannot say yet."""

    code = "not_yet"


class ShadowedRule(PolicyError):
    """A rule that is never reached, because an earlier one always holds."""

    code = "shadowed_rule"


class NeverTrue(PolicyError):
    """A condition that is false whatever the call is."""

    code = "never_true"


class AlwaysAutomatic(PolicyError):
    """An irreversible tool that would run whatever its arguments are."""

    code = "always_automatic"


class ReadsNeverAsk(PolicyError):
    """A rule that makes a read-only tool ask (P1)."""

    code = "reads_never_ask"


class BadFunction(PolicyError):
    """A Python function that cannot be found, or whose signature does not fit the tool."""

    code = "bad_function"


class UnusableSchema(PolicyError):
    """A tool whose arguments or facts cannot be named in rules without ambiguity."""

    code = "unusable_schema"


class RulesRefused(Exception):
    """The rules file is not used; `errors` holds every fault that was found, in the order of the file."""

    code = "rules_refused"

    def __init__(self, source: str, errors: Iterable[PolicyError]) -> None:
        self.source = source
        self.errors = tuple(sorted(errors, key=lambda error: error.place))
        super().__init__(source, self.errors)

    def __str__(self) -> str:
        count = len(self.errors)
        head = f"{self.source} is not used: {count} {'fault' if count == 1 else 'faults'}."
        return "\n".join([head, *(f"  {error}" for error in self.errors)])


def closest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `name` was probably meant to be."""
    return next(iter(get_close_matches(name, sorted(names), n=1, cutoff=0.6)), None)
