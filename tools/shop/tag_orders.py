"""Tag orders: transactional (E7). Tags and the row of the operation are written in one transaction, so the receipt is
proof by itself; undoing removes exactly the tags that this operation wrote (E9)."""

from datetime import timedelta

from pydantic import Field

from placet.record.database import Transaction
from tools import contract
from tools.contract import Line, Observed, Preview, Receipt, Tier, Tool
from tools.shop import operations
from tools.shop.shop import Shop
from tools.shop.words import Ids, Text


class TagArguments(contract.Arguments):
    """Which orders get which tag."""

    order_ids: Ids = Field(description="Ids of orders, from search_orders, each once; at most 500.")
    tag: Text = Field(max_length=40, description="A short word, e.g. refund-requested.")


class TagFacts(contract.Facts):
    """What the shop knows of these orders now."""

    count: int  # orders that would get the tag
    already_tagged: int
    unknown: int


class TagOrders(Tool[TagArguments, TagFacts]):
    """Put a tag on orders, so that people find them again. It can be undone."""

    name = "tag_orders"
    Arguments = TagArguments
    Facts = TagFacts
    tier = Tier.reversible
    effect_class = "orders.tag"
    idempotency_window = timedelta.max  # the row of an operation stays

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    def resources(self, args: TagArguments) -> list[str]:
        """Each order."""
        return [f"order:{one}" for one in args.order_ids]

    async def facts(self, args: TagArguments) -> TagFacts:
        """How many of the orders would get the tag."""
        async with self._shop.database.read() as tx:
            tagged = await _which_have(tx, self._shop.tenant, args)
        return TagFacts(
            count=sum(not has for has in tagged.values()),
            already_tagged=sum(tagged.values()),
            unknown=len(args.order_ids) - len(tagged),
        )

    async def preview(self, args: TagArguments, facts: TagFacts) -> Preview:
        """Title and counts from `facts`, the first five orders as the sample."""
        async with self._shop.database.read() as tx:
            tagged = await _which_have(tx, self._shop.tenant, args)
        noun = "order" if facts.count == 1 else "orders"
        return Preview(
            title=f"Tag {facts.count:,} {noun}: {args.tag}",
            impact=[f"{facts.count:,} {noun} get the tag; {facts.already_tagged:,} have it already"],
            sample=[{"order_id": one, "tag": args.tag} for one, has in tagged.items() if not has][:5],
            warnings=[f"No orders of this shop, {facts.unknown:,} of {len(args.order_ids):,} ids."]
            if facts.unknown
            else [],
            reversible=True,
        )

    async def execute(self, args: TagArguments, operation_id: str) -> Receipt:
        """Write the tags; again under the same operation id: the stored receipt. Unknown orders are refused lines."""

        async def change(tx: Transaction) -> Receipt:
            tagged = await _which_have(tx, self._shop.tenant, args)
            new = await _tag(tx, self._shop.tenant, args, operation_id)
            noun = "order" if len(new) == 1 else "orders"
            return Receipt(
                external_id=operation_id,
                summary=f"Tagged {len(new):,} {noun} with {args.tag!r}; {len(tagged) - len(new):,} had it already, "
                f"{len(args.order_ids) - len(tagged):,} unknown.",
                lines=[_line(one, known=one in tagged, new=one in new) for one in args.order_ids],
                data={"tag": args.tag, "tagged": len(new)},
            )

        return await operations.once(self._shop, operation_id, self.name, args, change)

    async def observe(self, args: TagArguments, operation_id: str) -> Observed:
        """The operation's own row says it."""
        return await operations.look_up(self._shop.database, self._shop.tenant, operation_id)

    async def undo(self, args: TagArguments, receipt: Receipt, operation_id: str) -> Receipt:
        """Remove the tags that the operation of `receipt` wrote, no others. Raises `Refused` the second time."""

        async def change(tx: Transaction) -> Receipt:
            removed = await tx.execute(
                "delete from shop.tags where tenant_id = %(tenant)s and operation_id = %(operation)s",
                {"tenant": self._shop.tenant, "operation": receipt.external_id},
            )
            return Receipt(
                external_id=operation_id,
                summary=f"Removed the tag {args.tag!r} from {removed:,} {'order' if removed == 1 else 'orders'}.",
                data={"tag": args.tag, "removed": removed},
            )

        return await operations.once(
            self._shop, operation_id, f"undo {self.name}", args, change, undoes=receipt.external_id
        )


async def _which_have(tx: Transaction, tenant: str, args: TagArguments) -> dict[str, bool]:
    """The orders of these ids that exist, in the order of the list, and whether they have the tag."""
    rows = await tx.fetch_dicts(
        """
        select o.order_id, t.tag is not null as tagged
          from shop.orders o
          left join shop.tags t on t.tenant_id = o.tenant_id and t.order_id = o.order_id and t.tag = %(tag)s
         where o.tenant_id = %(tenant)s and o.order_id = any(%(ids)s)
        """,
        {"tenant": tenant, "ids": args.order_ids, "tag": args.tag},
    )
    found: dict[str, bool] = {row["order_id"]: row["tagged"] for row in rows}
    return {one: found[one] for one in args.order_ids if one in found}


async def _tag(tx: Transaction, tenant: str, args: TagArguments, operation_id: str) -> set[str]:
    """Tag those that have no such tag yet; returns which."""
    rows = await tx.fetch_dicts(
        """
        insert into shop.tags (tenant_id, order_id, tag, operation_id)
        select tenant_id, order_id, %(tag)s, %(operation)s
          from shop.orders
         where tenant_id = %(tenant)s and order_id = any(%(ids)s)
         order by order_id
        on conflict (tenant_id, order_id, tag) do nothing
        returning order_id
        """,
        {"tenant": tenant, "ids": args.order_ids, "tag": args.tag, "operation": operation_id},
    )
    return {row["order_id"] for row in rows}


def _line(order_id: str, *, known: bool, new: bool) -> Line:
    if not known:
        return Line(ref=order_id, status="refused", reason="no order of this id is known")
    return Line(ref=order_id, status="done", reason=None if new else "had the tag already")
