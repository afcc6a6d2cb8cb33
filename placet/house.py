"""The house, opened: settings → database → tools, policy, model → services.

Whoever runs or decides turns (worker, command line, notebook, server) enters here, so that all see the same tools under
the same rules. What cannot be right stops here, before anything is claimed: a rules file with a typo, a database of
another version, a model address without a model.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langchain_core.language_models import BaseChatModel

from graph.models import build_model
from graph.services import Services
from placet.record.database import Database
from placet.record.digests import Keys
from placet.record.start import load_digest_key, open_database
from placet.settings import Settings
from policies import RULES, Policy, ToolSchema, load_rules
from tools import mail, payments, shop
from tools.registry import AnyTool, Registry

MIGRATIONS = (shop.MIGRATIONS,)
CONFIGURED = (
    *mail.KNOWN,
    *payments.KNOWN,
)  # tools that are there when the settings say with what; their rules are checked always


@asynccontextmanager
async def open_house(settings: Settings, *, model: BaseChatModel | None = None) -> AsyncIterator[Services]:
    """Everything a turn needs, on an open database; `model` replaces the one that the settings name."""
    async with open_database(settings, migrations=MIGRATIONS) as database:
        yield furnish(settings, database, model=model)


def furnish(settings: Settings, database: Database, *, model: BaseChatModel | None = None) -> Services:
    """The services on an open database."""
    key_id, key = load_digest_key(settings)
    registry = Registry(
        [*shop.tools(shop.Shop(database, settings.tenant)), *mail.tools(settings), *payments.tools(settings)]
    )
    return Services(
        settings=settings,
        database=database,
        keys=Keys(key_id, key),
        registry=registry,
        policy=read_policy(settings, registry),
        model=model or build_model(settings),
    )


def read_policy(settings: Settings, registry: Registry) -> Policy:
    """The rules, compiled and checked against the tools; raises with file, line and suggestion (P7)."""
    schemas = [schema_of(tool) for tool in registry]
    absent = [schema_of(tool) for tool in CONFIGURED if tool.name not in registry]
    return load_rules(settings.rules or RULES, schemas=schemas, absent=absent, timeout=settings.policy_timeout)


def schema_of(tool: AnyTool | type[AnyTool]) -> ToolSchema:
    """What the policy compiler needs to know of a tool."""
    return ToolSchema(name=tool.name, tier=tool.tier.value, arguments=tool.Arguments, facts=tool.Facts)
