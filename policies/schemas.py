"""What rules may know of a tool: its arguments and its facts, flattened into dotted, typed names.

CEL checks names and types only of what is declared leaf by leaf, so `stated_total: Money | None` of a tool's arguments
becomes `args.stated_total.present: bool`, `args.stated_total.minor: int` and `args.stated_total.currency: string`. What
may be absent gets no invented value: `.present` says whether it is there, a condition that uses the rest without
asking for `.present` is refused when it is compiled, and at run time the rest is simply not given.

A value is checked here before any rule sees it (P6): CEL takes True for an integer, and ends a text at a NUL, so that
"EUR\\0…" would equal "EUR". Whatever is missing or not exactly of its type is a reason to ask.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel

Tier = Literal["read_only", "reversible", "irreversible"]
Kind = Literal["bool", "int", "string", "list<bool>", "list<int>", "list<string>"]
Scalar = bool | int | str
Value = Scalar | list[Scalar]

KINDS: dict[type, Kind] = {bool: "bool", int: "int", str: "string"}
LISTS: dict[Kind, Kind] = {"bool": "list<bool>", "int": "list<int>", "string": "list<string>"}
INT64 = range(-(2**63), 2**63)
USABLE = "Rules know bool, int, str, lists of these and models of these"
_MISSING = object()


class CannotTell(Exception):
    """A rule cannot be answered for this call, and why; the call asks (P6)."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as the policy sees it; whoever owns the tools hands these over."""

    name: str
    tier: Tier
    arguments: type[BaseModel]
    facts: type[BaseModel]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One name that a condition can use."""

    name: str  # "args.stated_total.minor"
    kind: Kind
    root: Literal["args", "facts"]
    path: tuple[tuple[str, bool], ...]  # attribute, and whether it may be None
    guard: str | None = None  # the `.present` that must be true for this to have a value
    is_presence: bool = False


@dataclass(frozen=True, slots=True)
class Names:
    """All names of one tool, and for what cannot be named: why not."""

    leaves: Mapping[str, Leaf]
    unusable: Mapping[str, str]
    clashes: tuple[str, ...]  # names that would mean two things

    def fields_of(self, name: str) -> list[str]:
        """The names below `name`: for "args.stated_total" its `.minor`, `.currency`, `.present`."""
        return [leaf for leaf in self.leaves if leaf.startswith(f"{name}.")]


@dataclass(slots=True)
class _Flattening:
    leaves: dict[str, Leaf] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    clashes: list[str] = field(default_factory=list)

    def add(self, leaf: Leaf) -> None:
        if leaf.name in self.leaves:
            self.clashes.append(leaf.name)
        self.leaves[leaf.name] = leaf


def names(schema: ToolSchema) -> Names:
    """Flatten a tool's arguments (`args.…`) and facts (`facts.…`)."""
    found = _Flattening()
    _flatten(found, schema.arguments, "args", root="args")
    _flatten(found, schema.facts, "facts", root="facts")
    return Names(found.leaves, found.unusable, tuple(found.clashes))


def values(known: Names, arguments: BaseModel, facts: BaseModel) -> dict[str, Value]:
    """The values of all names, by name; those of absent optional fields are left out.

    Raises `CannotTell` when one is missing or not exactly of its type.
    """
    roots = {"args": arguments, "facts": facts}
    given: dict[str, Value] = {}
    for leaf in known.leaves.values():
        value = _value_at(leaf, roots[leaf.root])
        if leaf.is_presence:
            given[leaf.name] = value is not None
        elif value is not None:
            given[leaf.name] = _checked(leaf.name, leaf.kind, value)
    return given


def _flatten(
    found: _Flattening,
    model: type[BaseModel],
    prefix: str,
    *,
    root: Literal["args", "facts"],
    path: tuple[tuple[str, bool], ...] = (),
    guard: str | None = None,
    inside: tuple[type[BaseModel], ...] = (),
) -> None:
    for attribute, info in model.model_fields.items():
        name = f"{prefix}.{attribute}"
        kind, optional = _without_none(info.annotation)
        here = (*path, (attribute, optional))
        below = f"{name}.present" if optional else guard
        if _is_model(kind) and kind in (*inside, model):
            found.unusable[name] = f"{kind.__name__} contains itself"
        elif _is_model(kind):
            _flatten(found, kind, name, root=root, path=here, guard=below, inside=(*inside, model))
        elif (scalar := _kind_of(kind)) is not None:
            found.add(Leaf(name, scalar, root, here, below))
        else:
            found.unusable[name] = f"it is {_show(kind)}"
        if optional:
            found.add(Leaf(f"{name}.present", "bool", root, here, is_presence=True))


def _value_at(leaf: Leaf, node: object) -> object | None:
    """Walk to the leaf's value; None when something optional on the way is absent."""
    walked: str = leaf.root
    for attribute, optional in leaf.path:
        walked = f"{walked}.{attribute}"
        node = getattr(node, attribute, _MISSING)
        if node is _MISSING or (node is None and not optional):
            raise CannotTell(f"{walked} is missing")
        if node is None:
            return None
    return node


def _checked(name: str, kind: Kind, value: object) -> Value:
    if not kind.startswith("list"):
        return _scalar(name, kind, value)
    if not isinstance(value, list | tuple):
        raise CannotTell(f"{name} is {type(value).__name__}, expected {kind}")
    inner = kind.removeprefix("list<").removesuffix(">")
    return [_scalar(f"{name}[{index}]", inner, item) for index, item in enumerate(value)]


def _scalar(name: str, kind: str, value: object) -> Scalar:
    if isinstance(value, Enum):
        value = value.value
    if KINDS.get(type(value)) != kind:  # exact: True is no integer here
        raise CannotTell(f"{name} is {type(value).__name__}, expected {kind}")
    if isinstance(value, int) and value not in INT64:
        raise CannotTell(f"{name} does not fit into 64 bits")
    if isinstance(value, str) and not _is_clean(value):
        raise CannotTell(f"{name} holds a NUL or half a character")
    return value  # type: ignore[return-value]  # its type is one of KINDS


def _is_clean(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return "\0" not in text


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """`X | None` as (X, True); other annotations as (X, False). Wrappers that say nothing about the type go away."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif get_origin(annotation) in (Union, UnionType) and NoneType in get_args(annotation):
            rest = tuple(member for member in get_args(annotation) if member is not NoneType)
            return _without_none(Union[rest])[0], True  # noqa: UP007  # built from a tuple
        else:
            return annotation, False


def _kind_of(annotation: Any) -> Kind | None:
    if isinstance(annotation, type) and annotation in KINDS:
        return KINDS[annotation]
    if get_origin(annotation) is Literal:
        return _one_kind(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _one_kind(member.value for member in annotation)
    if get_origin(annotation) is list or (get_origin(annotation) is tuple and get_args(annotation)[1:] == (...,)):
        inner, optional = _without_none(get_args(annotation)[0])
        scalar = None if optional else _kind_of(inner)
        return LISTS.get(scalar) if scalar else None
    return None


def _one_kind(members: Any) -> Kind | None:
    kinds: Iterator[Kind | None] = (KINDS.get(type(member)) for member in members)
    distinct = set(kinds)
    return distinct.pop() if len(distinct) == 1 else None


def _is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _show(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
