"""The tools that there are: the shop's, what the settings configure, and your own (`PLACET_TOOLS`).

    PLACET_TOOLS=prices.tools:SetPrice,prices.mail:tools

Each names a tool's class, which is made without arguments, or a function of the settings that returns tools.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from placet.record.database import Database
from placet.settings import Settings
from tools import mail, payments, shop
from tools.contract import Tool
from tools.registry import AnyTool, Registry

EXPECTED = (
    "expected module:Class of a tool that is made without arguments, or module:function that takes the settings and "
    "returns tools"
)


class ToolsMisconfigured(ValueError):
    """What PLACET_TOOLS names is not there, or is no tool. Code: `tools_misconfigured`."""

    code = "tools_misconfigured"


def registry_of(settings: Settings, database: Database) -> Registry:
    """Every tool by its name; raises `ToolsMisconfigured`, or what a tool's own configuration raises."""
    own = [tool for target in settings.tools for tool in _named(target, settings)]
    there = [*shop.tools(shop.Shop(database, settings.tenant)), *mail.tools(settings), *payments.tools(settings)]
    taken = {tool.name for tool in there} & {tool.name for tool in own}
    if taken:
        raise ToolsMisconfigured(f"PLACET_TOOLS names {', '.join(sorted(taken))}, and there is a tool of that name.")
    return Registry([*there, *own])


def _named(target: str, settings: Settings) -> list[AnyTool]:
    module, _, name = target.partition(":")
    try:
        found: Any = getattr(import_module(module), name) if name else None
    except (ImportError, AttributeError) as error:
        raise ToolsMisconfigured(
            f"PLACET_TOOLS names {target!r}: {error}. Is it installed, or its folder on PYTHONPATH?"
        ) from error
    if isinstance(found, type) and issubclass(found, Tool):
        made: Any = [_made(target, found)]
    else:
        made = found(settings) if callable(found) else None
    tools = list(made) if isinstance(made, Iterable) else []
    if made is None or not all(isinstance(tool, Tool) for tool in tools):
        raise ToolsMisconfigured(f"PLACET_TOOLS names {target!r}; {EXPECTED}.")
    return tools


def _made(target: str, tool: type[AnyTool]) -> AnyTool:
    try:
        return tool()
    except TypeError as error:
        raise ToolsMisconfigured(
            f"PLACET_TOOLS names {target!r}, which needs arguments ({error}); {EXPECTED}."
        ) from None
