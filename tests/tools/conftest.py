"""A shop with nothing in it, and a way to make refunds that are due."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from placet.record.database import Database, Transaction
from tools.shop import Shop
from tools.shop.gateway import Captured

MakeDue = Callable[..., Awaitable[list[str]]]


@pytest.fixture
def shop(database: Database) -> Shop:
    """One tenant's shop, empty."""
    return Shop(database, "acme")


@pytest.fixture
def make_due(shop: Shop) -> MakeDue:
    """`await make_due(1000, 2500, batch="B-1")`: orders that failed after these amounts had been taken; returns the ids of
    the refunds that are due. Order, payment and refund share a number: O-1, P-1, R-1."""
    made = 0

    async def make(
        *minors: int,
        batch: str = "B-1",
        currency: str = "EUR",
        customer: str = "Ada",
        of: Shop | None = None,
        at_gateway: bool = True,
    ) -> list[str]:
        nonlocal made
        where = of or shop
        ids = []
        async with where.database.transaction() as tx:
            for minor in minors:
                made += 1
                await _one(tx, where.tenant, str(made), batch, minor, currency, customer)
                ids.append(f"R-{made}")
        if at_gateway:
            numbers = [one.removeprefix("R-") for one in ids]
            pairs = zip(numbers, minors, strict=True)
            await where.gateway.register([Captured(f"P-{number}", minor, currency) for number, minor in pairs])
        return ids

    return make


async def _one(tx: Transaction, tenant: str, number: str, batch: str, minor: int, currency: str, customer: str) -> None:
    values = {
        "tenant": tenant,
        "customer": f"K-{customer}",
        "name": customer,
        "order": f"O-{number}",
        "payment": f"P-{number}",
        "refund": f"R-{number}",
        "batch": batch,
        "minor": minor,
        "currency": currency,
    }
    await tx.execute(
        """
        insert into shop.customers (tenant_id, customer_id, name) values (%(tenant)s, %(customer)s, %(name)s)
        on conflict do nothing
        """,
        values,
    )
    await tx.execute(
        """
        insert into shop.orders (tenant_id, order_id, customer_id, batch, status, minor, currency, placed_at)
        values (%(tenant)s, %(order)s, %(customer)s, %(batch)s, 'failed', %(minor)s, %(currency)s, '2025-11-17 12:00Z')
        """,
        values,
    )
    await tx.execute(
        """
        insert into shop.payments (tenant_id, payment_id, order_id, minor, currency, captured_at)
        values (%(tenant)s, %(payment)s, %(order)s, %(minor)s, %(currency)s, '2025-11-17 12:01Z')
        """,
        values,
    )
    await tx.execute(
        """
        insert into shop.refunds_due
               (tenant_id, refund_due_id, order_id, payment_id, batch, minor, currency, reason, due_at)
        values (%(tenant)s, %(refund)s, %(order)s, %(payment)s, %(batch)s, %(minor)s, %(currency)s, 'It failed.', now())
        """,
        values,
    )


@dataclass(frozen=True, slots=True)
class CountingTransaction(Transaction):
    """Writes down every statement that it runs."""

    statements: list[str] = field(default_factory=list)

    async def execute(self, sql: Any, params: Any = None) -> int:
        self.statements.append(sql)
        return await Transaction.execute(self, sql, params)

    async def fetch_one(self, row: Any, sql: Any, params: Any = None) -> Any:
        self.statements.append(sql)
        return await Transaction.fetch_one(self, row, sql, params)

    async def fetch_all(self, row: Any, sql: Any, params: Any = None) -> Any:
        self.statements.append(sql)
        return await Transaction.fetch_all(self, row, sql, params)

    async def fetch_dicts(self, sql: Any, params: Any = None) -> Any:
        self.statements.append(sql)
        return await Transaction.fetch_dicts(self, sql, params)

    async def fetch_value(self, sql: Any, params: Any = None) -> Any:
        self.statements.append(sql)
        return await Transaction.fetch_value(self, sql, params)


class CountingDatabase(Database):
    """A database that writes down its statements."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.statements: list[str] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with super().transaction() as tx:
            yield CountingTransaction(tx.connection, self.statements)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        async with super().read() as tx:
            yield CountingTransaction(tx.connection, self.statements)


@pytest.fixture
async def counting(database_url: str) -> AsyncIterator[CountingDatabase]:
    """The same database, counted."""
    async with CountingDatabase(database_url) as opened:
        yield opened
