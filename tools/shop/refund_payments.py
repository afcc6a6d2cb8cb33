"""Refund payments: observable and idempotent (E7).

The gateway takes the batch whole under one key, answers the same to the same key for 24 hours, and can be asked what
became of a key. So a crash between sending and hearing is settled by looking, never by sending again (E5).

Three steps, three transactions: our books claim the refunds for this operation, the gateway pays, our books record its
answer. If the process dies between any two, `observe` asks the gateway and repairs the books. What is sent are
exactly the ids of the call (never "all that are due now"), with the amounts of our books, never the model's (P3).
"""

from collections.abc import Sequence
from typing import ClassVar

from psycopg import OperationalError
from pydantic import Field, JsonValue

from tools import contract
from tools.contract import Line, NothingSent, Observed, Preview, Receipt, Refused, Tier, Tool
from tools.money import Money, show
from tools.shop import gateway, refunds
from tools.shop.amounts import MIXED, NONE, in_words, listed, sums
from tools.shop.refunds import Refund
from tools.shop.shop import Shop
from tools.shop.words import Ids


class RefundArguments(contract.Arguments):
    """What the model may say. The total that it states is only compared: the real one comes from the refunds (P3)."""

    refund_due_ids: Ids = Field(description="Ids of refunds that are due, from search_orders, each once; at most 500.")
    stated_total: Money | None = Field(
        default=None, description="What you believe they come to, in minor units; compared with the real total."
    )


class RefundFacts(contract.Facts):
    """What the shop's own books say of these ids now.

    `total` and `largest` are minor units of `currency`. That is `MIXED` when there are several, and then both are bare
    numbers over all of them: a rule that compares amounts has to look at `currency` too. `NONE`: nothing of it is due.
    """

    count: int  # of the ids, how many are due
    total: int
    largest: int
    currency: str
    due_in_batches: int  # all that are due in the batches that these ids touch
    not_due: int  # ids that are unknown, already refunded or not refundable
    stated_total_differs: bool


class RefundPayments(Tool[RefundArguments, RefundFacts]):
    """Give money back for refunds that are due, all of them as one batch. It cannot be taken back.

    Take the ids from search_orders with refunds_due=true and pass every id of the request in one call: one batch is one
    decision. The answer says for each id whether it was paid or refused, and why.
    """

    name = "refund_payments"
    Arguments = RefundArguments
    Facts = RefundFacts
    tier = Tier.irreversible
    effect_class = "money.out"
    preconditions: ClassVar[tuple[str, ...]] = ("due_in_batches",)  # 38 when asked, 41 when approved: ask again (A7)
    idempotency_window = gateway.KEY_LIFETIME

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    def resources(self, args: RefundArguments) -> list[str]:
        """Each refund."""
        return [f"refund:{one}" for one in args.refund_due_ids]

    async def facts(self, args: RefundArguments) -> RefundFacts:
        """Counted by the database, in one query."""
        async with self._shop.database.read() as tx:
            due = await refunds.count_due(tx, self._shop.tenant, args.refund_due_ids)
        currency = NONE if not due.currencies else due.currencies[0] if len(due.currencies) == 1 else MIXED
        return RefundFacts(
            count=due.count,
            total=due.total,
            largest=due.largest,
            currency=currency,
            due_in_batches=due.due_in_batches,
            not_due=len(args.refund_due_ids) - due.count,
            stated_total_differs=args.stated_total is not None
            and (args.stated_total.minor, args.stated_total.currency) != (due.total, currency),
        )

    async def preview(self, args: RefundArguments, facts: RefundFacts) -> Preview:
        """Title and counts from `facts`; the five largest refunds as the sample."""
        async with self._shop.database.read() as tx:
            known = await refunds.named(tx, self._shop.tenant, args.refund_due_ids)
        due = [refund for refund in known if refund.due]
        totals = sums((refund.minor, refund.currency) for refund in due)
        money = show(facts.total, facts.currency) if facts.currency not in (MIXED, NONE) else in_words(totals)
        largest = sorted(due, key=lambda refund: (-refund.minor, refund.refund_due_id))[:5]
        return Preview(
            title=f"Refund {_payments(facts.count)}" + (f": {money}" if money else ""),
            impact=_impact(facts, due),
            sample=[_row(refund) for refund in largest],
            warnings=_warnings(args, facts, known, money),
            reversible=False,
        )

    async def execute(self, args: RefundArguments, operation_id: str) -> Receipt:
        """Pay. Lines of the receipt are in the order of the ids; those that were not due are refused lines.

        Raises `NothingSent` when our own database cannot be reached before anything has left, `Refused` when none of
        the ids can be sent (`nothing_due`) or the gateway says no.
        """
        known: Sequence[Refund] | None = None
        try:
            async with self._shop.database.transaction() as tx:
                known = await refunds.claim(tx, self._shop.tenant, args.refund_due_ids, operation_id)
        except OperationalError as error:
            if known is not None:  # the commit was on its way: the claim may hold, until `observe` releases it
                raise
            raise NothingSent(f"The shop's database did not answer, nothing was sent: {error}") from error
        batch = _batch(known, operation_id)
        if not batch:
            because = _some([f"{line.ref}: {line.reason}" for line in _not_sent(args, known, sent=set())])
            raise Refused(f"Nothing was sent, because none of the refunds can be: {because}.", code="nothing_due")
        try:
            answer = await self._shop.gateway.refund(batch, idempotency_key=operation_id)
        except Refused as refusal:
            if refusal.code != "key_reused":  # under that key something was paid: what is claimed stays claimed
                async with self._shop.database.transaction() as tx:
                    await refunds.release(tx, self._shop.tenant, operation_id)
            raise
        return await self._record(args, answer, operation_id)

    async def observe(self, args: RefundArguments, operation_id: str) -> Observed:
        """Ask the gateway, and bring our own books into line with what it says."""
        seen = await self._shop.gateway.look_up(operation_id)
        if seen.status == "committed" and seen.receipt is not None:
            receipt = await self._record(args, seen.receipt, operation_id)
            return seen.model_copy(update={"receipt": receipt})
        if seen.status == "absent":
            async with self._shop.database.transaction() as tx:
                await refunds.release(tx, self._shop.tenant, operation_id)
        return seen

    async def _record(self, args: RefundArguments, answer: Receipt, operation_id: str) -> Receipt:
        """Write the gateway's answer into our books, and say of every id what became of it."""
        async with self._shop.database.transaction() as tx:
            await refunds.settle(tx, self._shop.tenant, operation_id, answer.lines)
            known = await refunds.named(tx, self._shop.tenant, args.refund_due_ids)
        answered = {line.ref: line for line in answer.lines}
        others = {line.ref: line for line in _not_sent(args, known, sent=set(answered))}
        lines = [answered.get(one) or others[one] for one in args.refund_due_ids]
        paid = sums((line.minor or 0, line.currency or "") for line in lines if line.status == "done")
        return answer.model_copy(
            update={"lines": lines, "summary": gateway.summary(lines), "data": {"totals": listed(paid)}}
        )


def _batch(known: Sequence[Refund], operation_id: str) -> list[gateway.Instruction]:
    """The lines that this operation has claimed, now or when it was sent before."""
    return [
        gateway.Instruction(refund.refund_due_id, refund.payment_id, refund.minor, refund.currency)
        for refund in known
        if refund.operation_id == operation_id and refund.payment_id is not None
    ]


def _not_sent(args: RefundArguments, known: Sequence[Refund], *, sent: set[str]) -> list[Line]:
    """A refused line for each id that was not sent, with the reason."""
    by_id = {refund.refund_due_id: refund for refund in known}
    lines = []
    for one in args.refund_due_ids:
        refund = by_id.get(one)
        if one in sent:
            continue
        if refund is None:
            lines.append(Line(ref=one, status="refused", reason="no refund of this id is known"))
        else:
            reason = refund.hindrance or "became due after the batch had been sent"
            lines.append(Line(ref=one, status="refused", minor=refund.minor, currency=refund.currency, reason=reason))
    return lines


def _payments(count: int) -> str:
    return "1 payment" if count == 1 else f"{count:,} payments"


def _impact(facts: RefundFacts, due: Sequence[Refund]) -> list[str]:
    """Numbers, not adverbs (A1)."""
    if not due:
        return ["Nobody receives money: none of these refunds is due"]
    customers = len({refund.customer_id for refund in due if refund.customer_id is not None})
    batches = sorted({refund.batch for refund in due})
    largest = max(due, key=lambda refund: refund.minor)
    where = f"batch {batches[0]}" if len(batches) == 1 else f"{len(batches)} batches ({', '.join(batches[:5])})"
    return [
        f"{customers:,} {'customer receives' if customers == 1 else 'customers receive'} money; it does not come back",
        f"{facts.count:,} of the {facts.due_in_batches:,} refunds that are due in {where}",
        f"The largest is {show(largest.minor, largest.currency)}",
    ]


def _warnings(args: RefundArguments, facts: RefundFacts, known: Sequence[Refund], money: str) -> list[str]:
    """What the reviewer should not overlook: another total, ids that will not be paid, several currencies."""
    warnings = []
    if facts.stated_total_differs and args.stated_total is not None:
        warnings.append(f"The agent stated a total of {args.stated_total}; the refunds come to {money or 'nothing'}.")
    if facts.currency == MIXED:
        warnings.append("More than one currency: each total stands for itself.")
    by_id = {refund.refund_due_id: refund for refund in known}
    strangers = [
        f"{one} (unknown)" if one not in by_id else f"{one} ({by_id[one].hindrance})"
        for one in args.refund_due_ids
        if one not in by_id or not by_id[one].due
    ]
    if strangers:
        warnings.append(
            f"Not due, so not paid, {len(strangers)} of {len(args.refund_due_ids)} ids: {_some(strangers)}."
        )
    moving = [refund.refund_due_id for refund in known if refund.due and refund.operation_id is not None]
    if moving:
        warnings.append(
            f"On the way already by another call, {len(moving)} of {len(args.refund_due_ids)} ids: {_some(moving)}."
        )
    return warnings


def _some(items: Sequence[str], limit: int = 5) -> str:
    """The first few, and how many more."""
    more = len(items) - limit
    return ", ".join(items[:limit]) + (f" and {more} more" if more > 0 else "")


def _row(refund: Refund) -> dict[str, JsonValue]:
    """One affected row, as a person reads it."""
    return {
        "refund_due_id": refund.refund_due_id,
        "order_id": refund.order_id,
        "customer": refund.customer,
        "amount": show(refund.minor, refund.currency),
        "reason": refund.reason,
    }
