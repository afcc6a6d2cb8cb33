"""The shop that the tools work on: whose data, in which database, paid by which gateway."""

from placet.record.database import Database
from tools.shop.gateway import Gateway


class Shop:
    """One tenant's shop. Every statement of the tools filters by `tenant`."""

    def __init__(self, database: Database, tenant: str, gateway: Gateway | None = None) -> None:
        self.database = database
        self.tenant = tenant
        self.gateway = gateway or Gateway(database, tenant)
