"""The rules in force, compiled against the tools that there are (P7). Apart from the house, so that checking rules needs
neither a model nor a database."""

from placet.settings import Settings
from policies import RULES, Policy, ToolSchema, load_rules
from tools.registry import AnyTool, Registry


def read_policy(settings: Settings, registry: Registry) -> Policy:
    """The rules, compiled and checked against the tools; raises with file, line and suggestion (P7)."""
    schemas = [schema_of(tool) for tool in registry]
    return load_rules(settings.rules or RULES, schemas=schemas, timeout=settings.policy_timeout)


def schema_of(tool: AnyTool) -> ToolSchema:
    """What the policy compiler needs to know of a tool."""
    return ToolSchema(name=tool.name, tier=tool.tier.value, arguments=tool.Arguments, facts=tool.Facts)
