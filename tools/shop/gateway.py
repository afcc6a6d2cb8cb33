"""The payment gateway, as our code sees it: somebody else's system.

It takes a batch of refunds whole under one idempotency key and says what became of each line. The same key with the
same body is answered the same for 24 hours; with another body it is refused; under another key it pays again. Its
ledger counts for itself (`sent`), so a witness can see whether anything was paid twice.

It works in transactions of its own, never in one of ours: what it has paid stays paid whatever happens to us. A
request holds a lock on its key until it has committed or died; `look_up` asks for that lock first, so it says "absent"
only when no request under the key is still being worked on (E5).
"""

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Literal

import rfc8785
from psycopg.types.json import Jsonb

from placet.record.database import Database, Transaction
from tools.contract import Line, Observed, Receipt, Refused
from tools.money import show
from tools.shop.amounts import in_words, sums

KEY_LIFETIME = timedelta(hours=24)  # afterwards the gateway has forgotten a key and would pay again
CHUNK = 5_000  # rows of one statement when payments are registered


class ConnectionLost(ConnectionError):
    """The connection broke before the answer came; whether it has paid is not known. Code: `connection_lost`."""

    code = "connection_lost"


@dataclass(frozen=True, slots=True)
class Captured:
    """A payment that a customer has made; `authorised` ones were never captured and cannot be refunded."""

    payment_id: str
    minor: int
    currency: str
    status: Literal["captured", "authorised"] = "captured"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a batch: give back so much of this payment. `ref` is the merchant's own name for the line."""

    ref: str
    payment_id: str
    minor: int
    currency: str


@dataclass(frozen=True, slots=True)
class Faults:
    """How the gateway misbehaves. Stored in its own table, so that a test or a demonstration can set it for a worker in
    another process; without a row it behaves. Seconds are floats."""

    refuses: str | None = None  # answers no to every batch, with this reason
    takes_after: float = 0.0  # waits before it pays
    answers_after: float = 0.0  # pays, then waits before it answers
    drops_the_answer: bool = False  # pays, then the connection breaks
    silent: bool = False  # does not answer when asked about a key


@dataclass(frozen=True, slots=True)
class Paid:
    """What the ledger says of one line: `times` above 1 is money paid more than once."""

    ref: str
    times: int
    minor: int  # all of it together
    currency: str
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class _Known:
    """A batch that the gateway remembers."""

    body_sha256: bytes
    receipt: dict[str, object]
    received_at: datetime


class Gateway:
    """The gateway, with the account of one merchant (`tenant`). `sleep` is how it waits when a fault says so."""

    def __init__(
        self, database: Database, tenant: str, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self._database = database
        self._tenant = tenant
        self._sleep = sleep

    async def refund(self, batch: Sequence[Instruction], *, idempotency_key: str) -> Receipt:
        """Pay every line of `batch` that can be paid; the receipt has a `Line` for each, in order.

        The same key with the same batch gets the stored receipt and pays nothing. Raises `Refused` when the gateway
        says no to the whole batch (`gateway_refused`) or knows the key with another body (`key_reused`), and
        `ConnectionLost` when the answer did not arrive.
        """
        body = hashlib.sha256(rfc8785.dumps([asdict(line) for line in batch])).digest()
        async with self._database.transaction() as tx:
            await self._lock(tx, idempotency_key)
            faults = await self._faults(tx)
            known = await self._newest(tx, idempotency_key, within=KEY_LIFETIME)
            if known and known.body_sha256 != body:
                raise Refused(
                    f"The gateway knows the key {idempotency_key} with another batch; nothing was sent. "
                    "Look up what that key did before sending anything else.",
                    code="key_reused",
                )
            if known:
                receipt = Receipt.model_validate(known.receipt)
            elif faults.refuses is not None:
                raise Refused(f"The gateway refused the batch: {faults.refuses}", code="gateway_refused")
            else:
                await self._wait(faults.takes_after)
                receipt = await self._pay(tx, batch, body, idempotency_key)
        await self._wait(faults.answers_after)
        if faults.drops_the_answer:
            raise ConnectionLost("The connection to the gateway broke before its answer came; look up the key.")
        return receipt

    async def look_up(self, idempotency_key: str) -> Observed:
        """What became of a key, however old: `committed` with the receipt, `absent`, or `unknown` while a request under
        it is being worked on or the gateway does not answer."""
        async with self._database.transaction() as tx:
            if (await self._faults(tx)).silent:
                return Observed(status="unknown", evidence=f"The gateway did not answer about key {idempotency_key}.")
            if not await self._is_free(tx, idempotency_key):
                return Observed(status="unknown", evidence=f"The gateway is still working on key {idempotency_key}.")
            known = await self._newest(tx, idempotency_key)
        if known is None:
            return Observed(status="absent", evidence=f"The gateway has never seen key {idempotency_key}.")
        receipt = Receipt.model_validate(known.receipt)
        return Observed(
            status="committed",
            receipt=receipt,
            evidence=f"The gateway took key {idempotency_key} at {known.received_at:%Y-%m-%d %H:%M:%S} UTC "
            f"as batch {receipt.external_id}.",
        )

    async def sent(self, refs: Sequence[str]) -> dict[str, int]:
        """How often the gateway has paid each of `refs`, by its own ledger; 0 for one that it never paid."""
        async with self._database.read() as tx:
            rows = await tx.fetch_dicts(
                """
                select ref, count(*) as times
                  from gateway.payouts
                 where tenant_id = %(tenant)s and ref = any(%(refs)s)
                 group by ref
                """,
                {"tenant": self._tenant, "refs": list(refs)},
            )
        return dict.fromkeys(refs, 0) | {row["ref"]: row["times"] for row in rows}

    async def ledger(self, *, limit: int = 1_000) -> list[Paid]:
        """What was paid, per line of the merchant; what was paid most often, then last, comes first."""
        async with self._database.read() as tx:
            return await tx.fetch_all(
                Paid,
                """
                select ref, count(*) as times, sum(minor)::bigint as minor, currency,
                       min(sent_at) as first_at, max(sent_at) as last_at
                  from gateway.payouts
                 where tenant_id = %(tenant)s
                 group by ref, currency
                 order by times desc, last_at desc, ref
                 limit %(limit)s
                """,
                {"tenant": self._tenant, "limit": limit},
            )

    async def register(self, payments: Iterable[Captured]) -> int:
        """Customers have paid: let the gateway know these payments. Returns how many were new; known ones stay."""
        new, chunk = 0, list[Captured]()
        for payment in payments:
            chunk.append(payment)
            if len(chunk) == CHUNK:
                new += await self._register(chunk)
                chunk = []
        return new + (await self._register(chunk) if chunk else 0)

    async def misbehave(self, faults: Faults) -> None:
        """From now on behave like this, in every process; `Faults()` is good behaviour."""
        async with self._database.transaction() as tx:
            await tx.execute(
                """
                insert into gateway.faults as f
                       (tenant_id, refuses, takes_after, answers_after, drops_the_answer, silent)
                values (%(tenant)s, %(refuses)s, %(takes_after)s, %(answers_after)s, %(drops_the_answer)s, %(silent)s)
                on conflict (tenant_id) do update
                   set refuses = excluded.refuses, takes_after = excluded.takes_after,
                       answers_after = excluded.answers_after, drops_the_answer = excluded.drops_the_answer,
                       silent = excluded.silent
                """,
                {"tenant": self._tenant} | asdict(faults),
            )

    async def _pay(self, tx: Transaction, batch: Sequence[Instruction], body: bytes, key: str) -> Receipt:
        """Write batch and ledger; the caller holds the lock on the key."""
        payments = {
            payment.payment_id: payment
            for payment in await tx.fetch_all(
                Captured,
                """
                select payment_id, minor, currency, status
                  from gateway.payments
                 where tenant_id = %(tenant)s and payment_id = any(%(ids)s)
                """,
                {"tenant": self._tenant, "ids": [line.payment_id for line in batch]},
            )
        }
        lines = [_line(instruction, payments.get(instruction.payment_id)) for instruction in batch]
        paid = [(line, instruction) for line, instruction in zip(lines, batch, strict=True) if line.status == "done"]
        receipt = Receipt(external_id=f"batch_{secrets.token_hex(8)}", summary=summary(lines), lines=lines)
        await tx.execute(
            """
            insert into gateway.batches (tenant_id, batch_id, idempotency_key, body_sha256, receipt, received_at)
            values (%(tenant)s, %(batch)s, %(key)s, %(body)s, %(receipt)s, clock_timestamp())
            """,
            {
                "tenant": self._tenant,
                "batch": receipt.external_id,
                "key": key,
                "body": body,
                "receipt": Jsonb(receipt.model_dump(mode="json")),
            },
        )
        await tx.execute(
            """
            insert into gateway.payouts (tenant_id, payout_id, batch_id, ref, payment_id, minor, currency)
            select %(tenant)s, payout_id, %(batch)s, ref, payment_id, minor, currency
              from unnest(%(payouts)s::text[], %(refs)s::text[], %(payments)s::text[], %(minors)s::bigint[],
                          %(currencies)s::text[]) as paid (payout_id, ref, payment_id, minor, currency)
            """,
            {
                "tenant": self._tenant,
                "batch": receipt.external_id,
                "payouts": [line.external_id for line, _ in paid],
                "refs": [instruction.ref for _, instruction in paid],
                "payments": [instruction.payment_id for _, instruction in paid],
                "minors": [instruction.minor for _, instruction in paid],
                "currencies": [instruction.currency for _, instruction in paid],
            },
        )
        return receipt

    async def _register(self, payments: list[Captured]) -> int:
        async with self._database.transaction() as tx:
            return await tx.execute(
                """
                insert into gateway.payments (tenant_id, payment_id, minor, currency, status)
                select %(tenant)s, payment_id, minor, currency, status
                  from unnest(%(ids)s::text[], %(minors)s::bigint[], %(currencies)s::text[], %(statuses)s::text[])
                       as made (payment_id, minor, currency, status)
                on conflict (tenant_id, payment_id) do nothing
                """,
                {
                    "tenant": self._tenant,
                    "ids": [payment.payment_id for payment in payments],
                    "minors": [payment.minor for payment in payments],
                    "currencies": [payment.currency for payment in payments],
                    "statuses": [payment.status for payment in payments],
                },
            )

    async def _lock(self, tx: Transaction, key: str) -> None:
        """One request at a time under a key; the lock ends with the transaction, also when its process is killed."""
        await tx.execute(
            "select pg_advisory_xact_lock(hashtextextended('gateway ' || %(tenant)s || ' ' || %(key)s, 0))",
            {"tenant": self._tenant, "key": key},
        )

    async def _is_free(self, tx: Transaction, key: str) -> bool:
        free: bool = await tx.fetch_value(
            "select pg_try_advisory_xact_lock_shared(hashtextextended('gateway ' || %(tenant)s || ' ' || %(key)s, 0))",
            {"tenant": self._tenant, "key": key},
        )
        return free

    async def _newest(self, tx: Transaction, key: str, *, within: timedelta | None = None) -> _Known | None:
        """The newest batch under a key; with `within`, only one that is not older."""
        return await tx.fetch_one(
            _Known,
            """
            select body_sha256, receipt, received_at at time zone 'UTC' as received_at
              from gateway.batches
             where tenant_id = %(tenant)s
               and idempotency_key = %(key)s
               and (%(within)s::interval is null or received_at > clock_timestamp() - %(within)s::interval)
             order by received_at desc
             limit 1
            """,
            {"tenant": self._tenant, "key": key, "within": within},
        )

    async def _faults(self, tx: Transaction) -> Faults:
        faults = await tx.fetch_one(
            Faults,
            """
            select refuses, takes_after, answers_after, drops_the_answer, silent
              from gateway.faults
             where tenant_id = %(tenant)s
            """,
            {"tenant": self._tenant},
        )
        return faults or Faults()

    async def _wait(self, seconds: float) -> None:
        if seconds:
            await self._sleep(seconds)


def summary(lines: Sequence[Line]) -> str:
    """`Refunded 37 of 38 payments: 4,000.00 EUR; 1 refused.`"""
    done = [line for line in lines if line.status == "done"]
    money = in_words(sums((line.minor or 0, line.currency or "") for line in done))
    refused = len(lines) - len(done)
    noun = "payment" if len(lines) == 1 else "payments"
    return (
        f"Refunded {len(done)} of {len(lines)} {noun}"
        + (f": {money}" if money else "")
        + (f"; {refused} refused." if refused else ".")
    )


def _line(instruction: Instruction, payment: Captured | None) -> Line:
    """What the gateway does with one line. It does not ask whether the payment was refunded before."""
    reason = None
    if payment is None:
        reason = f"unknown payment {instruction.payment_id}"
    elif payment.status != "captured":
        reason = f"payment {payment.payment_id} was authorised and never captured"
    elif payment.currency != instruction.currency:
        reason = f"payment {payment.payment_id} was made in {payment.currency}, not in {instruction.currency}"
    elif instruction.minor > payment.minor:
        reason = f"payment {payment.payment_id} was of {show(payment.minor, payment.currency)}, less than asked"
    return Line(
        ref=instruction.ref,
        status="refused" if reason else "done",
        external_id=None if reason else f"po_{secrets.token_hex(8)}",
        minor=instruction.minor,
        currency=instruction.currency,
        reason=reason,
    )
