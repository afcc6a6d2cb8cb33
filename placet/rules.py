"""The rules in force, compiled against the tools that there are (P7). Apart from the house, so that checking rules needs
neither a model nor a database."""

from placet.settings import Settings
from policies import RULES, Policy, ToolSchema, load_rules
from tools import mail, payments
from tools.registry import AnyTool, Registry

# Tools that are there when the settings say with what; what the rules say of them is checked always.
CONFIGURED = (*mail.KNOWN, *payments.KNOWN)


def read_policy(settings: Settings, registry: Registry) -> Policy:
    """The rules, compiled and checked against the tools; raises with file, line and suggestion (P7)."""
    schemas = [schema_of(tool) for tool in registry]
    absent = [schema_of(tool) for tool in CONFIGURED if tool.name not in registry]
    return load_rules(settings.rules or RULES, schemas=schemas, absent=absent, timeout=settings.policy_timeout)


def schema_of(tool: AnyTool | type[AnyTool]) -> ToolSchema:
    """What the policy compiler needs to know of a tool."""
    return ToolSchema(name=tool.name, tier=tool.tier.value, arguments=tool.Arguments, facts=tool.Facts)
