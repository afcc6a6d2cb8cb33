"""The tools that an agent has, by name."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from tools.contract import Tool

AnyTool = Tool[Any, Any]


class UnknownTool(LookupError):
    """There is no tool of that name; the message names the ones there are. Code: `unknown_tool`."""

    code = "unknown_tool"


class Registry:
    """Tools by name. `known` tools stood in the code when the rules were checked; one that is added later has no rule
    and therefore always asks (P6)."""

    def __init__(self, tools: Iterable[AnyTool]) -> None:
        self._tools: dict[str, AnyTool] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: AnyTool) -> None:
        """Add a tool, also while running."""
        if tool.name in self._tools:
            raise ValueError(f"Two tools are named {tool.name!r}; give one of them another name.")
        self._tools[tool.name] = tool

    def __getitem__(self, name: str) -> AnyTool:
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownTool(f"There is no tool {name!r}. Tools: {', '.join(sorted(self._tools))}.") from None

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[AnyTool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)


def schema_version(tool: AnyTool) -> str:
    """First 16 hex digits of the hash of what a model may pass; a call approved under another one is orphaned (G8)."""
    schema = json.dumps(tool.Arguments.model_json_schema(), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(f"{tool.name}:{schema}".encode()).hexdigest()[:16]
