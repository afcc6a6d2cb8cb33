"""Refund payments through Stripe: observable and idempotent, over the wire (E7).

Stripe takes one refund at a time, so a batch is one effect of many requests: in order, each under a key of its own made
from the operation and its line, and the first one whose outcome is unknown ends it. What has happened is found again by
the metadata. All lines there: committed. None: absent. Some: partial, and the same operation is sent again; what was made
gets its first answer once more, the others are made. To call that absent would be a lie, since the call could then be
rejected or cancelled with money gone; committed as well, since another worker may still be sending the next line.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, JsonValue

from tools import contract
from tools.contract import Line, NothingSent, Observed, Preview, Receipt, Refused, Tier, Tool
from tools.money import Money, show
from tools.payments.account import Account, LineRefused, Payment, Refund

AT_ONCE = 8  # requests that only read
SETTLE = 2.0  # seconds between the two looks that it takes to say "absent": a request may still be on its way
MIXED, NONE = "MIXED", "NONE"  # instead of a currency: several, or no payment that can be refunded


class HalfWay(ConnectionError):
    """Some lines were made and the next one could not be sent. Code: `half_way`."""

    code = "half_way"


class OnePayment(contract.Arguments):
    """How much of which payment goes back."""

    payment: str = Field(pattern=r"^pi_[A-Za-z0-9_]{1,100}$", description="Stripe's id of the PaymentIntent.")
    minor: int = Field(ge=1, le=10**12, description="How much, in minor units of the payment's currency.")


def _distinct(refunds: list[OnePayment]) -> list[OnePayment]:
    seen: set[str] = set()
    for one in refunds:
        if one.payment in seen:
            raise ValueError(f"expected each payment once, got {one.payment} twice; name it once, with the sum")
        seen.add(one.payment)
    return refunds


class RefundArguments(contract.Arguments):
    """One batch. The total that the model states is only compared (P3)."""

    refunds: Annotated[list[OnePayment], Field(min_length=1, max_length=50), AfterValidator(_distinct)]
    stated_total: Money | None = Field(default=None, description="What you believe it comes to; compared.")


class RefundFacts(contract.Facts):
    """What Stripe says of these payments now.

    `total` and `largest` are minor units of `currency`; with `MIXED` they are bare numbers over several currencies.
    """

    count: int  # lines that can be refunded as they stand
    total: int
    largest: int
    currency: str
    not_refundable: int  # unknown payments, payments with less left, disputed ones
    stated_total_differs: bool


class RefundStripePayments(Tool[RefundArguments, RefundFacts]):
    """Give money back for card payments at Stripe, all of them as one batch. It cannot be taken back.

    Pass every payment of the request in one call: one batch is one decision. The answer says for each payment whether it
    was refunded or refused, and why.
    """

    name = "refund_stripe_payments"
    Arguments = RefundArguments
    Facts = RefundFacts
    tier = Tier.irreversible
    effect_class = "money.out"
    preconditions: ClassVar[tuple[str, ...]] = ("count",)  # somebody refunded one meanwhile: ask again (A7)
    idempotency_window = timedelta(hours=23)  # Stripe keeps a key for 24; a batch takes its time
    timeout = timedelta(seconds=120)

    def __init__(self, account: Account, *, settle: float = SETTLE) -> None:
        self._account = account
        self._settle = settle

    def resources(self, args: RefundArguments) -> list[str]:
        """Each payment."""
        return [f"payment:{one.payment}" for one in args.refunds]

    async def facts(self, args: RefundArguments) -> RefundFacts:
        """Asked of Stripe, a few payments at a time."""
        payments = await self._payments(args)
        good = [
            (one.minor, payment.currency)
            for one in args.refunds
            if (payment := payments[one.payment]) is not None and payment.hindrance(one.minor) is None
        ]
        currencies = {currency for _, currency in good}
        currency = NONE if not currencies else currencies.pop() if len(currencies) == 1 else MIXED
        total = sum(minor for minor, _ in good)
        return RefundFacts(
            count=len(good),
            total=total,
            largest=max((minor for minor, _ in good), default=0),
            currency=currency,
            not_refundable=len(args.refunds) - len(good),
            stated_total_differs=args.stated_total is not None
            and (args.stated_total.minor, args.stated_total.currency) != (total, currency),
        )

    async def preview(self, args: RefundArguments, facts: RefundFacts) -> Preview:
        """Title and counts from `facts`; the five largest lines as the sample."""
        payments = await self._payments(args)
        good = [one for one in args.refunds if self._hindrance(one, payments[one.payment]) is None]
        sums: dict[str, int] = {}
        for one in good:
            currency = _currency(payments[one.payment])
            sums[currency] = sums.get(currency, 0) + one.minor
        money = " and ".join(show(minor, currency) for currency, minor in sorted(sums.items()))
        largest = sorted(good, key=lambda one: (-one.minor, one.payment))[:5]
        return Preview(
            title=f"Refund {_counted(facts.count, 'payment')} through Stripe" + (f": {money}" if money else ""),
            impact=[f"{_counted(facts.count, 'card payment')} given back, {money or 'nothing'}; it does not come back"],
            sample=[_row(one, payments[one.payment]) for one in largest],
            warnings=self._warnings(args, facts, payments, money),
            reversible=False,
        )

    async def execute(self, args: RefundArguments, operation_id: str) -> Receipt:
        """Line after line. Again under the same operation id: the same answers, and the lines that were missing.

        Raises `Refused` when every line was, `NothingSent` when none was made and the next could not be sent. What else
        is raised ends the batch where it is: `observe` finds out how far it got.
        """
        lines: list[Line] = []
        for number, one in enumerate(args.refunds, start=1):
            try:
                made = await self._account.refund(one.payment, one.minor, operation_id=operation_id, line=number)
            except LineRefused as no:
                lines.append(Line(ref=one.payment, status="refused", reason=f"{no.code}: {no}"))
            except NothingSent as nothing:
                done = sum(line.external_id is not None for line in lines)
                if not done:
                    raise
                raise HalfWay(f"{done} of {len(args.refunds)} lines were made, then: {nothing}") from nothing
            else:
                lines.append(_line(made))
        if all(line.external_id is None for line in lines):
            raise Refused(f"Stripe refused every line. {_some(lines)}.", code=_code_of(lines))
        return _receipt(operation_id, lines)

    async def observe(self, args: RefundArguments, operation_id: str) -> Observed:
        """Look for the operation's refunds among those of its payments; twice, before nothing is called absent."""
        made = await self._made(args, operation_id)
        if not made:
            await asyncio.sleep(self._settle)
            made = await self._made(args, operation_id)
        count, found = len(args.refunds), len(made)
        evidence = f"Stripe lists {found} of {count} refunds with operation_id {operation_id} in their metadata."
        if not found:
            return Observed(status="absent", evidence=evidence)
        if found < count:
            missing = [one.payment for number, one in enumerate(args.refunds, start=1) if number not in made]
            return Observed(
                status="partial",
                evidence=f"{evidence} Missing, or refused: {', '.join(missing)}. Sending the operation again makes only "
                "these, each under its own key.",
            )
        receipt = _receipt(operation_id, [_line(made[number]) for number in range(1, count + 1)])
        return Observed(status="committed", receipt=receipt, evidence=evidence)

    async def _made(self, args: RefundArguments, operation_id: str) -> dict[int, Refund]:
        """The operation's refunds, by line."""
        several = asyncio.Semaphore(AT_ONCE)

        async def of(payment_id: str) -> Sequence[Refund]:
            async with several:
                return await self._account.refunds(payment_id)

        listed = await asyncio.gather(*(of(one.payment) for one in args.refunds))
        return {
            int(refund.line): refund
            for refunds in listed
            for refund in refunds
            if refund.operation_id == operation_id and refund.line is not None and refund.line.isdecimal()
        }

    async def _payments(self, args: RefundArguments) -> dict[str, Payment | None]:
        several = asyncio.Semaphore(AT_ONCE)

        async def of(payment_id: str) -> Payment | None:
            async with several:
                return await self._account.payment(payment_id)

        found = await asyncio.gather(*(of(one.payment) for one in args.refunds))
        return {one.payment: payment for one, payment in zip(args.refunds, found, strict=True)}

    def _hindrance(self, one: OnePayment, payment: Payment | None) -> str | None:
        return "no payment of this id is known" if payment is None else payment.hindrance(one.minor)

    def _warnings(
        self, args: RefundArguments, facts: RefundFacts, payments: dict[str, Payment | None], money: str
    ) -> list[str]:
        warnings = []
        if facts.stated_total_differs and args.stated_total is not None:
            warnings.append(
                f"The agent stated a total of {args.stated_total}; the refunds come to {money or 'nothing'}."
            )
        if facts.currency == MIXED:
            warnings.append("More than one currency: each total stands for itself.")
        hindered = [
            f"{one.payment} ({reason})"
            for one in args.refunds
            if (reason := self._hindrance(one, payments[one.payment])) is not None
        ]
        if hindered:
            more = f" and {len(hindered) - 5} more" if len(hindered) > 5 else ""
            warnings.append(f"Stripe will refuse {len(hindered)} of them: {', '.join(hindered[:5])}{more}.")
        return warnings


def _line(made: Refund) -> Line:
    """A refund that exists is done, unless Stripe says that it failed; then no money has moved."""
    failed = made.status in ("failed", "canceled")
    return Line(
        ref=made.payment_id,
        status="refused" if failed else "done",
        external_id=made.refund_id,
        minor=made.minor,
        currency=made.currency,
        reason=f"{made.status}: {made.failure or 'no reason given'}" if failed else None,
    )


def _receipt(operation_id: str, lines: list[Line]) -> Receipt:
    """One line has Stripe's own id; a batch has the operation's, which stands in the metadata of each of its refunds."""
    sums: dict[str, int] = {}
    for line in lines:
        if line.status == "done":
            sums[line.currency or ""] = sums.get(line.currency or "", 0) + (line.minor or 0)
    done = sum(line.status == "done" for line in lines)
    money = " and ".join(show(minor, currency) for currency, minor in sorted(sums.items()))
    return Receipt(
        external_id=lines[0].external_id or operation_id if len(lines) == 1 else operation_id,
        summary=f"Refunded {_counted(done, 'payment')}, {money or 'nothing'}; {len(lines) - done} refused.",
        lines=lines,
        data={"totals": [{"minor": minor, "currency": currency} for currency, minor in sorted(sums.items())]},
    )


def _some(lines: Sequence[Line], limit: int = 5) -> str:
    more = len(lines) - limit
    return "; ".join(f"{line.ref}: {line.reason}" for line in lines[:limit]) + (f" and {more} more" if more > 0 else "")


def _code_of(lines: Sequence[Line]) -> str:
    """Stripe's own code when all lines have the same, else `refused`."""
    codes = {(line.reason or "").partition(":")[0] for line in lines}
    return codes.pop() if len(codes) == 1 else "refused"


def _row(one: OnePayment, payment: Payment | None) -> dict[str, JsonValue]:
    """One affected payment, as a person reads it."""
    return {
        "payment": one.payment,
        "customer": payment.customer if payment else "",
        "amount": show(one.minor, _currency(payment)),
        "left": show(payment.left, payment.currency) if payment else "",
    }


def _currency(payment: Payment | None) -> str:
    return payment.currency if payment else ""


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
