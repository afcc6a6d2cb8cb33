"""Delete customers: transactional (E7). Rows, the operation's own row and the receipt are one transaction, so a crash
leaves all of it or nothing, and `observe` has only to read the operation's row.

Who has no orders is removed. Whose orders the books must keep becomes a tombstone: the id stays, name and country go.
Who has a refund that is due is refused, since that money could not be explained to anybody afterwards. Two places keep
what they have: the names in the preview's sample stay with the approval, as what people saw when they decided; the lines
of an imported file stay as they came, with number and country.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field, JsonValue

from placet.record.database import Transaction
from tools import contract
from tools.contract import Line, Observed, Preview, Receipt, Refused, Tier, TransactionalTool
from tools.shop import operations
from tools.shop.shop import Shop
from tools.shop.words import Ids

TOMBSTONE = "deleted customer"  # the schema knows it too


class DeleteArguments(contract.Arguments):
    """Which customers."""

    customer_ids: Ids = Field(description="Ids of customers, each once; at most 500.")


class DeleteFacts(contract.Facts):
    """What the shop knows of these customers now."""

    count: int  # of the ids, how many would be deleted
    with_orders: int  # of these, who would stay as a tombstone
    orders_kept: int  # orders that stay, without a name
    countries: list[str]  # of those who would be deleted
    with_open_refunds: int  # refused: money is due to them
    not_found: int  # refused: unknown, or deleted before


@dataclass(frozen=True, slots=True)
class Customer:
    """One customer, with what stands in the way."""

    customer_id: str
    name: str
    country: str
    deleted: bool
    orders: int
    open_refunds: int

    @property
    def hindrance(self) -> str | None:
        """Why they are not deleted, in a few words; None when they can be."""
        if self.deleted:
            return "has been deleted already"
        if self.open_refunds:
            return f"{_counted(self.open_refunds, 'refund')} to them still due; refund first"
        return None


class DeleteCustomers(TransactionalTool[DeleteArguments, DeleteFacts]):
    """Delete customers for good: their name and country are removed. It cannot be undone.

    Orders and payments stay in the books, without a name. Customers to whom a refund is still due are refused; the answer
    says for each id what became of it.
    """

    name = "delete_customers"
    Arguments = DeleteArguments
    Facts = DeleteFacts
    tier = Tier.irreversible
    effect_class = "customers.delete"
    preconditions: ClassVar[tuple[str, ...]] = ("count", "orders_kept")  # other people than were shown: ask again (A7)

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    def resources(self, args: DeleteArguments) -> list[str]:
        """Each customer."""
        return [f"customer:{one}" for one in args.customer_ids]

    async def facts(self, args: DeleteArguments) -> DeleteFacts:
        """Counted from the customers, their orders and refunds, in one query."""
        async with self._shop.database.read() as tx:
            known = await _named(tx, self._shop.tenant, args.customer_ids)
        going = _going(known)
        return DeleteFacts(
            count=len(going),
            with_orders=sum(one.orders > 0 for one in going),
            orders_kept=sum(one.orders for one in going),
            countries=sorted({one.country or "unknown" for one in going}),
            with_open_refunds=sum(one.open_refunds > 0 and not one.deleted for one in known),
            not_found=len(args.customer_ids) - len(known) + sum(one.deleted for one in known),
        )

    async def preview(self, args: DeleteArguments, facts: DeleteFacts) -> Preview:
        """Title and counts from `facts`; the five with the most orders as the sample."""
        async with self._shop.database.read() as tx:
            known = await _named(tx, self._shop.tenant, args.customer_ids)
        largest = sorted(_going(known), key=lambda one: (-one.orders, one.customer_id))[:5]
        return Preview(
            title=f"Delete {_counted(facts.count, 'customer')} for good",
            impact=[
                f"{_counted(facts.count - facts.with_orders, 'customer')} removed; "
                f"{_counted(facts.with_orders, 'customer')} kept without name and country, because of their orders",
                f"{_counted(facts.orders_kept, 'order')} stay in the books without a name",
                f"Countries: {', '.join(facts.countries) or 'none'}",
            ],
            sample=[_row(one) for one in largest],
            warnings=_warnings(args, known),
            reversible=False,
        )

    async def execute_in(self, tx: Transaction, args: DeleteArguments, operation_id: str) -> Receipt:
        """Delete whom nothing stands in the way of; a refused line for each other. Again under the same operation id: the
        stored receipt. Raises `Refused` (`nothing_to_delete`) when nobody can be deleted."""
        tenant = self._shop.tenant
        if done := await operations.done_before(tx, tenant, operation_id, self.name, args):
            return done
        await _lock(tx, tenant, args.customer_ids)
        known = {one.customer_id: one for one in await _named(tx, tenant, args.customer_ids)}
        lines = [_line(one, known.get(one)) for one in args.customer_ids]
        going = _going(list(known.values()))
        if not going:
            raise Refused(f"Nobody can be deleted: {_some(lines)}.", code="nothing_to_delete")
        kept = [one.customer_id for one in going if one.orders]
        removed = [one.customer_id for one in going if not one.orders]
        await _bury(tx, tenant, kept, operation_id)
        await _remove(tx, tenant, removed)
        receipt = Receipt(
            external_id=operation_id,
            summary=f"Deleted {_counted(len(going), 'customer')}; {len(lines) - len(going):,} refused.",
            lines=lines,
            data={"removed": len(removed), "kept_without_name": len(kept)},
        )
        await operations.record(tx, tenant, operation_id, tool=self.name, args=args, receipt=receipt)
        return receipt

    async def observe(self, args: DeleteArguments, operation_id: str) -> Observed:
        """The operation's own row says it; `unknown` while its transaction is open somewhere."""
        return await operations.look_up(self._shop.database, self._shop.tenant, operation_id)


async def _named(tx: Transaction, tenant: str, ids: Sequence[str]) -> list[Customer]:
    """The customers of these ids that exist, in the order of the list."""
    rows = await tx.fetch_all(
        Customer,
        """
        select c.customer_id, c.name, c.country, c.deleted_at is not null as deleted,
               count(o.order_id) as orders,
               count(r.refund_due_id) filter (where r.status = 'due') as open_refunds
          from shop.customers c
          left join shop.orders o on o.tenant_id = c.tenant_id and o.customer_id = c.customer_id
          left join shop.refunds_due r on r.tenant_id = o.tenant_id and r.order_id = o.order_id
         where c.tenant_id = %(tenant)s and c.customer_id = any(%(ids)s)
         group by c.tenant_id, c.customer_id
        """,
        {"tenant": tenant, "ids": list(ids)},
    )
    found = {row.customer_id: row for row in rows}
    return [found[one] for one in ids if one in found]


async def _lock(tx: Transaction, tenant: str, ids: Sequence[str]) -> None:
    """Hold customers, then their orders, each by id: until this is over nobody gets a new order, nor a refund that is due."""
    values = {"tenant": tenant, "ids": list(ids)}
    await tx.execute(
        """
        select from shop.customers
         where tenant_id = %(tenant)s and customer_id = any(%(ids)s)
         order by customer_id
           for update
        """,
        values,
    )
    await tx.execute(
        """
        select from shop.orders
         where tenant_id = %(tenant)s and customer_id = any(%(ids)s)
         order by order_id
           for update
        """,
        values,
    )


async def _bury(tx: Transaction, tenant: str, ids: Sequence[str], operation_id: str) -> None:
    await tx.execute(
        """
        update shop.customers
           set name = %(tombstone)s, country = '', deleted_at = now(), operation_id = %(operation)s
         where tenant_id = %(tenant)s and customer_id = any(%(ids)s)
        """,
        {"tenant": tenant, "ids": list(ids), "operation": operation_id, "tombstone": TOMBSTONE},
    )


async def _remove(tx: Transaction, tenant: str, ids: Sequence[str]) -> None:
    await tx.execute(
        "delete from shop.customers where tenant_id = %(tenant)s and customer_id = any(%(ids)s)",
        {"tenant": tenant, "ids": list(ids)},
    )


def _going(known: Sequence[Customer]) -> list[Customer]:
    return [one for one in known if one.hindrance is None]


def _line(customer_id: str, customer: Customer | None) -> Line:
    if customer is None:
        return Line(ref=customer_id, status="refused", reason="no customer of this id is known")
    if (reason := customer.hindrance) is not None:
        return Line(ref=customer_id, status="refused", reason=reason)
    kept = f"kept without a name, because of {_counted(customer.orders, 'order')}"
    return Line(ref=customer_id, status="done", reason=kept if customer.orders else None)


def _warnings(args: DeleteArguments, known: Sequence[Customer]) -> list[str]:
    by_id = {one.customer_id: one for one in known}
    refused = [line for line in (_line(one, by_id.get(one)) for one in args.customer_ids) if line.status == "refused"]
    return [f"{len(refused)} of the ids will be refused: {_some(refused)}."] if refused else []


def _some(lines: Sequence[Line], limit: int = 5) -> str:
    """The first few with their reasons, and how many more."""
    more = len(lines) - limit
    told = ", ".join(f"{line.ref} ({line.reason})" for line in lines[:limit])
    return told + (f" and {more} more" if more > 0 else "")


def _row(customer: Customer) -> dict[str, JsonValue]:
    """One affected row, as a person reads it."""
    return {
        "customer_id": customer.customer_id,
        "name": customer.name,
        "country": customer.country,
        "orders": customer.orders,
    }


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
