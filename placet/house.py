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
from placet.rules import read_policy
from placet.settings import Settings
from placet.toolbox import registry_of
from tools import shop

MIGRATIONS = (shop.MIGRATIONS,)


@asynccontextmanager
async def open_house(settings: Settings, *, model: BaseChatModel | None = None) -> AsyncIterator[Services]:
    """Everything a turn needs, on an open database; `model` replaces the one that the settings name."""
    async with open_database(settings, migrations=MIGRATIONS, wait=settings.database_wait) as database:
        yield furnish(settings, database, model=model)


def furnish(settings: Settings, database: Database, *, model: BaseChatModel | None = None) -> Services:
    """The services on an open database."""
    key_id, key = load_digest_key(settings)
    registry = registry_of(settings, database)
    return Services(
        settings=settings,
        database=database,
        keys=Keys(key_id, key),
        registry=registry,
        policy=read_policy(settings, registry),
        model=model or build_model(settings),
    )
