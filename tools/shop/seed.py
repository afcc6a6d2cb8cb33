"""Fill a shop, so that the demo has something to work on: always the same 2,000 customers and 10,000 paid orders of
November 2025 in 20 batches, in three currencies. In batch `NOV-17`, 38 orders failed after 4,120.00 EUR had been taken.

Everything comes from one `random.Random(SEED)` and integers, so two shops have the same rows to the byte. The gateway is
told of the payments first: a shop that has its rows has payments that can be refunded.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from psycopg import sql

from placet.record.database import Transaction
from tools.shop.gateway import Captured
from tools.shop.names import FAMILY_FIRST, NAMES, NO_SPACE
from tools.shop.shop import Shop

SEED = 17
CUSTOMERS = 2_000
ORDERS_PER_BATCH = 500
BATCHES = tuple(day for day in (date(2025, 11, 3) + timedelta(days=n) for n in range(26)) if day.weekday() < 5)
FAILED_BATCH = "NOV-17"
FAILED_COUNT = 38
FAILED_TOTAL = 412_000  # minor units of EUR
PRICES = (495, 890, 1290, 1990, 2450, 3475, 4999, 5995, 7900, 8950, 12900, 18900)  # minor units
FAILED = "The order failed after its payment had been taken."
RETURNED = "the customer's bank has taken the money back already"

CUSTOMER_COLUMNS = "tenant_id customer_id name country"
ORDER_COLUMNS = "tenant_id order_id customer_id batch status minor currency placed_at"
PAYMENT_COLUMNS = "tenant_id payment_id order_id minor currency captured_at"
REFUND_COLUMNS = "tenant_id refund_due_id order_id payment_id batch minor currency reason status why_not due_at"

Row = tuple[object, ...]
Progress = Callable[[str, int, int], None]  # what, how many are done, of how many


class NothingLeftToFail(LookupError):
    """The batch has no more paid orders that could fail. Code: `nothing_left_to_fail`."""

    code = "nothing_left_to_fail"


@dataclass(frozen=True, slots=True)
class Seeded:
    """What a seeding added; all 0 when the shop was filled before."""

    customers: int = 0
    orders: int = 0
    refunds_due: int = 0


@dataclass(slots=True)
class _Rows:
    """The rows of a whole shop, as they are copied in."""

    customers: list[Row]
    orders: list[Row]
    payments: list[Row]
    refunds: list[Row]
    captured: list[Captured]


async def seed(shop: Shop, progress: Progress | None = None) -> Seeded:
    """Fill the shop; one that was filled before stays as it is. `progress(what, done, of)` is told after each table."""
    async with shop.database.read() as tx:
        if await _is_filled(tx, shop.tenant):
            return Seeded()
    rows = _compose(shop.tenant)
    tell = progress or (lambda what, done, of: None)
    await shop.gateway.register(rows.captured)
    tell("payments at the gateway", 1, 5)
    async with shop.database.transaction() as tx:
        await tx.execute(
            "select pg_advisory_xact_lock(hashtextextended('seed ' || %(tenant)s, 0))", {"tenant": shop.tenant}
        )
        if await _is_filled(tx, shop.tenant):
            return Seeded()
        await _copy(tx, "customers", CUSTOMER_COLUMNS, rows.customers)
        tell("customers", 2, 5)
        await _copy(tx, "orders", ORDER_COLUMNS, rows.orders)
        tell("orders", 3, 5)
        await _copy(tx, "payments", PAYMENT_COLUMNS, rows.payments)
        tell("payments", 4, 5)
        await _copy(tx, "refunds_due", REFUND_COLUMNS, rows.refunds)
        tell("refunds that are due", 5, 5)
    return Seeded(len(rows.customers), len(rows.orders), len(rows.refunds))


async def fail_three_more(shop: Shop, batch: str = FAILED_BATCH) -> list[str]:
    """Three more paid orders of the batch fail; returns the ids of the refunds that are due now.

    Raises `NothingLeftToFail` when the batch has not three paid orders left; nothing changes then.
    """
    async with shop.database.transaction() as tx:
        rows = await tx.fetch_dicts(
            """
            with failing as (
                select order_id
                  from shop.orders
                 where tenant_id = %(tenant)s and batch = %(batch)s and status = 'paid'
                 order by order_id
                 limit 3
                   for update
            ), failed as (
                update shop.orders o
                   set status = 'failed'
                  from failing f
                 where o.tenant_id = %(tenant)s and o.order_id = f.order_id
                returning o.tenant_id, o.order_id, o.batch
            )
            insert into shop.refunds_due
                   (tenant_id, refund_due_id, order_id, payment_id, batch, minor, currency, reason, due_at)
            select tenant_id, 'R-' || substr(p.payment_id, 3), order_id, p.payment_id, f.batch, p.minor, p.currency,
                   %(reason)s, now()
              from failed f
              join shop.payments p using (tenant_id, order_id)
            returning refund_due_id
            """,
            {"tenant": shop.tenant, "batch": batch, "reason": FAILED},
        )
        if len(rows) < 3:
            raise NothingLeftToFail(f"Expected three paid orders in batch {batch}, found {len(rows)}; seed the shop.")
    return sorted(row["refund_due_id"] for row in rows)


async def _is_filled(tx: Transaction, tenant: str) -> bool:
    filled: bool = await tx.fetch_value(
        "select exists (select from shop.orders where tenant_id = %(tenant)s and order_id = 'O-100001')",
        {"tenant": tenant},
    )
    return filled


async def _copy(tx: Transaction, table: str, columns: str, rows: Iterable[Row]) -> None:
    """COPY rows into a table of the shop."""
    statement = sql.SQL("copy {} ({}) from stdin").format(
        sql.Identifier("shop", table), sql.SQL(", ").join(map(sql.Identifier, columns.split()))
    )
    async with tx.connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            await copy.write_row(row)


def _compose(tenant: str) -> _Rows:
    """Every row, in a fixed order."""
    rng = random.Random(SEED)  # noqa: S311  the same shop each time, no secret
    rows = _Rows([_customer(rng, tenant, number) for number in range(1, CUSTOMERS + 1)], [], [], [], [])
    number = 100_000
    for day in BATCHES:
        batch = f"{day:%b-%d}".upper()
        failing = _failing(rng, batch)
        times = sorted(rng.randrange(6 * 3600, 22 * 3600) for _ in range(ORDERS_PER_BATCH))
        for position, seconds in enumerate(times):
            number += 1
            placed = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=seconds)
            currency = "EUR" if batch == FAILED_BATCH else rng.choice(("EUR", "EUR", "EUR", "GBP", "GBP", "USD"))
            minor = failing.get(position) or _basket(rng)
            status = "failed" if position in failing else rng.choice(("paid", "shipped", "delivered", "delivered"))
            order, payment = f"O-{number}", f"P-{number}"
            customer = f"K-{rng.randrange(1, CUSTOMERS + 1):04}"
            rows.orders.append((tenant, order, customer, batch, status, minor, currency, placed))
            rows.payments.append((tenant, payment, order, minor, currency, placed + timedelta(seconds=90)))
            rows.captured.append(Captured(payment, minor, currency))
            if status == "failed":
                hopeless = batch != FAILED_BATCH and rng.randrange(6) == 0
                outcome = ("not_refundable", RETURNED) if hopeless else ("due", None)
                due_at = placed + timedelta(hours=2)
                rows.refunds.append(
                    (tenant, f"R-{number}", order, payment, batch, minor, currency, FAILED, *outcome, due_at)
                )
    return rows


def _customer(rng: random.Random, tenant: str, number: int) -> Row:
    """Half of the customers write Latin letters, the others any script."""
    script, given, family, countries = NAMES[0] if rng.randrange(2) else rng.choice(NAMES[1:])
    parts = (rng.choice(given), rng.choice(family))
    name = ("" if script in NO_SPACE else " ").join(reversed(parts) if script in FAMILY_FIRST else parts)
    return (tenant, f"K-{number:04}", name, rng.choice(countries))


def _basket(rng: random.Random) -> int:
    """What an order comes to, in minor units: one to four things."""
    return sum(rng.choice(PRICES) for _ in range(rng.randrange(1, 5)))


def _failing(rng: random.Random, batch: str) -> dict[int, int]:
    """Which orders of a batch failed, by position, and what they came to."""
    if batch != FAILED_BATCH:
        return {position: _basket(rng) for position in rng.sample(range(ORDERS_PER_BATCH), rng.randrange(8))}
    while True:  # until the last amount, which makes the sum exact, is as plausible as the others
        amounts = [_basket(rng) for _ in range(FAILED_COUNT - 1)]
        last = FAILED_TOTAL - sum(amounts)
        if PRICES[1] <= last <= 4 * PRICES[-1]:
            return dict(zip(rng.sample(range(ORDERS_PER_BATCH), FAILED_COUNT), [*amounts, last], strict=True))
