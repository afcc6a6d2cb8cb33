"""Which crash points there are, read from the code itself, so that a new one cannot be forgotten."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ON_THE_WAY = [
    *sorted((ROOT / "graph").rglob("*.py")),
    ROOT / "placet/worker.py",
    ROOT / "placet/record/checkpointer.py",
]
SUFFIXES = {"transaction": ("begin", "commit", "committed"), "outside": ("before", "after"), "reach": ("",)}


@dataclass(frozen=True, slots=True)
class Place:
    """A call of `transaction`, `outside` or `reach`; its name is None when it has none, or one that is computed."""

    where: str  # file:line
    verb: str
    name: str | None

    @property
    def points(self) -> list[str]:
        """The points that it has."""
        if self.name is None:
            return []
        return [f"{self.name}:{suffix}" if suffix else self.name for suffix in SUFFIXES[self.verb]]


def places() -> list[Place]:
    """All of them on the way of a call: the graph, the worker, the checkpointer."""
    return [place for file in ON_THE_WAY for place in _places(file)]


def points() -> set[str]:
    """The points of all places."""
    return {point for place in places() for point in place.points}


def _places(file: Path) -> Iterator[Place]:
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(attr="transaction"):
                verb = "transaction"
            case ast.Name(id="outside" | "reach") | ast.Attribute(attr="outside" | "reach"):
                verb = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            case _:
                continue
        first = node.args[0] if node.args else None
        name = first.value if isinstance(first, ast.Constant) and first.value else None
        yield Place(f"{file.relative_to(ROOT)}:{node.lineno}", verb, name if isinstance(name, str) else None)
