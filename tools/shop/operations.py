"""Changes inside our own database, once per operation id: the change and its receipt are one transaction (E7).

The same operation id with the same arguments gets the stored receipt. A request holds a lock on its id until it has
committed or died; `look_up` asks for that lock first, so "absent" means that nothing is still coming.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from psycopg import OperationalError
from psycopg.types.json import Jsonb
from pydantic import BaseModel

from placet.record.database import Database, Transaction
from tools.contract import NothingSent, Observed, Receipt, Refused
from tools.shop.shop import Shop


@dataclass(frozen=True, slots=True)
class Done:
    """An operation that has happened."""

    tool: str
    arguments: dict[str, Any]
    receipt: dict[str, Any]


async def once(
    shop: Shop,
    operation_id: str,
    tool: str,
    args: BaseModel,
    change: Callable[[Transaction], Awaitable[Receipt]],
    *,
    undoes: str | None = None,
) -> Receipt:
    """Make a change and write its receipt down in one transaction; made before: the stored receipt.

    Raises `Refused` as `done_before` and, with `undoes`, `check_can_be_undone` do; `NothingSent` when the database went
    away before the commit. When it goes away at the commit its own error is raised, since it may have happened (E4).
    """
    receipt: Receipt | None = None
    try:
        async with shop.database.transaction() as tx:
            receipt = await done_before(tx, shop.tenant, operation_id, tool, args)
            if receipt is None:
                if undoes is not None:
                    await check_can_be_undone(tx, shop.tenant, undoes)
                made = await change(tx)
                await record(tx, shop.tenant, operation_id, tool=tool, args=args, receipt=made, undoes=undoes)
                receipt = made
    except OperationalError as error:
        if receipt is not None:
            raise
        raise NothingSent(f"The shop's database did not answer: {error}") from error
    return receipt


async def done_before(tx: Transaction, tenant: str, operation_id: str, tool: str, args: BaseModel) -> Receipt | None:
    """Lock the operation id for this transaction, and return the receipt if it has happened already.

    Raises `Refused` (`key_reused`) when the id belongs to another tool or other arguments.
    """
    await tx.execute(
        "select pg_advisory_xact_lock(hashtextextended('operation ' || %(tenant)s || ' ' || %(operation)s, 0))",
        {"tenant": tenant, "operation": operation_id},
    )
    done = await _get(tx, tenant, operation_id)
    if done is None:
        return None
    if (done.tool, done.arguments) != (tool, args.model_dump(mode="json")):
        raise Refused(
            f"Operation {operation_id} has already been {done.tool} with other arguments; nothing was changed.",
            code="key_reused",
        )
    return Receipt.model_validate(done.receipt)


async def record(
    tx: Transaction,
    tenant: str,
    operation_id: str,
    *,
    tool: str,
    args: BaseModel,
    receipt: Receipt,
    undoes: str | None = None,
) -> None:
    """Write the operation down, in the transaction of its change."""
    await tx.execute(
        """
        insert into shop.operations (tenant_id, operation_id, tool, arguments, receipt, undoes)
        values (%(tenant)s, %(operation)s, %(tool)s, %(arguments)s, %(receipt)s, %(undoes)s)
        """,
        {
            "tenant": tenant,
            "operation": operation_id,
            "tool": tool,
            "arguments": Jsonb(args.model_dump(mode="json")),
            "receipt": Jsonb(receipt.model_dump(mode="json")),
            "undoes": undoes,
        },
    )


async def check_can_be_undone(tx: Transaction, tenant: str, operation_id: str) -> None:
    """Lock an operation in order to undo it. Raises `Refused` (`unknown_operation`, `already_undone` by which)."""
    found = await tx.fetch_value(
        """
        select operation_id
          from shop.operations
         where tenant_id = %(tenant)s and operation_id = %(operation)s
           for update
        """,
        {"tenant": tenant, "operation": operation_id},
    )
    if found is None:
        raise Refused(f"There is no operation {operation_id} to undo; nothing was changed.", code="unknown_operation")
    undone_by = await tx.fetch_value(
        "select operation_id from shop.operations where tenant_id = %(tenant)s and undoes = %(operation)s",
        {"tenant": tenant, "operation": operation_id},
    )
    if undone_by is not None:
        raise Refused(
            f"Operation {operation_id} has been undone already, by {undone_by}; nothing was changed.",
            code="already_undone",
        )


async def look_up(database: Database, tenant: str, operation_id: str) -> Observed:
    """Whether an operation has happened: `committed`, `absent`, or `unknown` while it is being worked on."""
    async with database.transaction() as tx:
        free = await tx.fetch_value(
            "select pg_try_advisory_xact_lock_shared("
            "hashtextextended('operation ' || %(tenant)s || ' ' || %(operation)s, 0))",
            {"tenant": tenant, "operation": operation_id},
        )
        if not free:
            return Observed(status="unknown", evidence=f"Operation {operation_id} is still being worked on.")
        done = await _get(tx, tenant, operation_id)
    if done is None:
        return Observed(status="absent", evidence=f"The shop has no row for operation {operation_id}.")
    return Observed(
        status="committed",
        receipt=Receipt.model_validate(done.receipt),
        evidence=f"The shop has the row of operation {operation_id}, written together with its change.",
    )


async def _get(tx: Transaction, tenant: str, operation_id: str) -> Done | None:
    return await tx.fetch_one(
        Done,
        """
        select tool, arguments, receipt
          from shop.operations
         where tenant_id = %(tenant)s and operation_id = %(operation)s
        """,
        {"tenant": tenant, "operation": operation_id},
    )
