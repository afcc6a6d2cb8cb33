"""What the planner says: what it found and proposes, and what became of it, from results alone (A10).

What ran is told from `executed_input` and the receipt, never from what had been proposed (A8).
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from graph.rehearsal.history import Balances, Call, Done, Found, OrderRow, ReceiptData, ReceiptLine, data_of
from graph.rehearsal.understand import Request
from tools.money import show

SHOWN = 10  # rows that are spelled out
NAMED = 25  # orders that are named beside why they cannot be refunded


def some(items: Iterable[str], limit: int = 5) -> str:
    """The first few, and how many more; `none` for none."""
    listed = list(items)
    more = len(listed) - limit
    return (", ".join(listed[:limit]) or "none") + (f" and {more} more" if more > 0 else "")


def counted(count: int, noun: str) -> str:
    """`1 order`, `2 orders`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def unreadable(tool: str) -> str:
    """A result that is not what the tool is known to give."""
    return f"I cannot read what {tool} answered, so I stop here and have changed nothing since."


def wanted(call: Call) -> str:
    """A call in words: `the refund of 38 payments, 4,120.00 EUR`."""
    arguments = call.arguments
    match call.tool:
        case "refund_payments":
            total = arguments.get("stated_total")
            money = f", {show(total['minor'], total['currency'])}" if total else ""
            return f"the refund of {counted(len(arguments['refund_due_ids']), 'payment')}{money}"
        case "tag_orders":
            return f"the tag {arguments['tag']!r} on {counted(len(arguments['order_ids']), 'order')}"
        case "draft_refund_report":
            about = " ".join(f"{kind} {name}" for kind, name in arguments.items() if kind in ("batch", "day"))
            return f"the draft report on the refunds of {about}" if about else "the draft report on all refunds"
        case _:
            return f"the call of {call.tool}"


def wanted_rows(found: Found, request: Request) -> list[OrderRow]:
    """The rows that a change is about: for a refund those that are due and not on their way, in the named currency."""
    rows = [row for row in found.rows if not request.currencies or row.currency in request.currencies]
    if "refund" in request.kinds:
        rows = [row for row in rows if row.refund_due_id and row.refund and row.refund.status == "due"]
    return rows


def rationale(proposed: Sequence[Call], found: Found, request: Request) -> str:
    """Why these calls: what was found, counted."""
    rows = wanted_rows(found, request)
    about = request.described("order" if len(rows) == 1 else "orders")
    said = [f"I found {len(rows):,} {about}" + _whose_money(rows, request) + "."]
    if len(rows) < found.count:
        said.append(f"{found.count:,} match in all; one call takes 500, and what is on its way already is left out.")
    said.extend(_not_refundable(found, request))
    said.append(f"I propose {' and '.join(wanted(call) for call in proposed)}.")
    return " ".join(said)


def _whose_money(rows: Sequence[OrderRow], request: Request) -> str:
    if "refund" not in request.kinds:
        return ""
    return (
        f" whose money has to go back, {_sums((row.refund.minor, row.refund.currency) for row in rows if row.refund)}"
    )


def nothing_to_do(found: Found, request: Request) -> str:
    """Nothing matches, or nothing of it is due."""
    said = [f"I found no {request.described()} " + ("to refund." if "refund" in request.kinds else "to tag.")]
    moving = sum(row.refund is not None and row.refund.status == "on_its_way" for row in found.rows)
    if moving:
        said.append(f"The money of {counted(moving, 'order')} is on its way already.")
    return " ".join([*said, *_not_refundable(found, request)])


def report(done: Sequence[Done], found: Found, request: Request) -> str:
    """What became of every proposed call, and what stays undone."""
    said = [told(one) for one in done]
    if any(one.is_("approval_denied") for one in done):
        return "\n".join([*said, "I stop here."])
    said.extend(_not_refundable(found, request))
    if found.more:
        said.append(f"{found.more:,} more match and were not part of this; ask me again for them.")
    return "\n".join(said)


ENDINGS = {  # the mark of a result, and what is said of it; a person's refusal first, nothing else reads like it
    "approval_denied": "I wanted {what}. {denied_by} refused it: {reason}. I will not try it again.",
    "denied_by_policy": "{What} is not done, because the rules forbid it: {reason}. Nobody was asked.",
    "expired": "{What} stays undone: {reason}. Nobody refused it; tell me if you still want it.",
    "unknown": "It is not known whether {what} happened: {reason}. I do not repeat it; people have to look.",
    "deferred": "{What} has not run yet: {message}.",
    "cancelled": "{What} did not run: {reason}.",
    "superseded": "{What} did not run: {reason}.",
    "orphaned": "{What} did not run: {reason}.",
}


def told(done: Done) -> str:
    """What became of a call, in the protocol's words."""
    if done.ok:
        return _happened(done)
    what, result = wanted(done.call), done.result
    error = result.get("error")
    said = {
        "reason": "no reason given",
        "denied_by": "Somebody",
        **result,
        **(error if isinstance(error, dict) else {}),
    }
    sentence = next((text for mark, text in ENDINGS.items() if done.is_(mark)), "{What} did not happen: {message}.")
    return sentence.format(
        what=what,
        What=what[0].upper() + what[1:],
        denied_by=said["denied_by"],
        reason=str(said["reason"]).rstrip("."),
        message=str(said.get("message", "no reason given")).rstrip("."),
    )


def _happened(done: Done) -> str:
    receipt = data_of(done, ReceiptData) or ReceiptData()
    paid = [line for line in receipt.lines if line.status == "done"]
    refused = [line for line in receipt.lines if line.status != "done"]
    if done.call.tool == "refund_payments" and receipt.lines:
        money = _sums((line.minor or 0, line.currency or "") for line in paid if line.currency)
        said = [f"Refunded {counted(len(paid), 'payment')}{', ' + money if money else ''}."]
    else:
        said = [receipt.summary or f"{wanted(done.call)} is done.".capitalize()]
    if approved_by := done.result.get("approved_by"):
        people = approved_by if isinstance(approved_by, list) else [approved_by]
        said.append(f"Approved by {' and '.join(map(str, people))}.")
    said.extend(_changes(done))
    if refused:
        said.append(f"{len(refused):,} not done: {some(map(_why, refused), SHOWN)}.")
    if receipt.external_id:
        said.append(f"Receipt {receipt.external_id}.")
    return " ".join(said)


def _why(line: ReceiptLine) -> str:
    return f"{line.ref} ({line.reason or 'no reason given'})"


def _changes(done: Done) -> list[str]:
    """How what ran differs from what was proposed: somebody changed it before they approved it."""
    ran = done.result.get("executed_input")
    if not isinstance(ran, dict):
        return []
    changes = [
        _change(name, done.call.arguments.get(name), ran.get(name))
        for name in {**done.call.arguments, **ran}
        if done.call.arguments.get(name) != ran.get(name)
    ]
    return [f"It was changed before it was approved: {'; '.join(changes)}."] if changes else []


def _change(name: str, proposed: Any, ran: Any) -> str:
    if isinstance(proposed, list) and isinstance(ran, list):
        out = [str(item) for item in proposed if item not in ran]
        new = [str(item) for item in ran if item not in proposed]
        parts = [f"{len(out):,} left out ({some(out)})"] * bool(out) + [f"{len(new):,} added ({some(new)})"] * bool(new)
        return f"{name}: {', '.join(parts) or 'another order'}"
    return f"{name}: {_value(ran)} instead of {_value(proposed)}"


def _value(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case {"minor": int(minor), "currency": str(currency)}:
            return show(minor, currency)
        case _:
            return json.dumps(value, ensure_ascii=False)


def found(found: Found, request: Request) -> str:
    """What a search found: how many, what they come to, the first few."""
    if not found.count:
        return " ".join([f"I found no {request.described()}.", *_not_refundable(found, request)])
    money = " and ".join(total.text for total in found.totals)
    whose = " whose money has to go back" if request.refunds_due else ""
    about = request.described("order" if found.count == 1 else "orders")
    said = [f"I found {found.count:,} {about}{whose}: {money}."]
    said.extend(f"- {row.order_id}: {row.status}, {row.text}" for row in found.rows[:SHOWN])
    if found.count > SHOWN:
        said.append(f"- and {found.count - SHOWN:,} more")
    return "\n".join([*said, *_not_refundable(found, request)])


def balances(told_: Balances, request: Request) -> str:
    """What was captured, went back, has to go back, and is left, per currency."""
    if not told_.balances:
        return f"No money was taken for the {request.described()}."
    return "\n".join(
        f"{one.currency}: {one.balance.text} left of {one.captured.text} captured in "
        f"{counted(one.payments, 'payment')}; {one.refunded.text} refunded, {one.refunds_due.text} due."
        for one in told_.balances
    )


def _not_refundable(found: Found, request: Request) -> list[str]:
    hopeless = found.not_refundable
    if not hopeless.count or ("refund" not in request.kinds and not request.refunds_due):
        return []
    by_reason: dict[str, list[str]] = {}
    for row in hopeless.rows:
        by_reason.setdefault(row.why or "no reason given", []).append(f"{row.order_id} ({row.text})")
    reasons = "; ".join(f"{why}: {some(rows, NAMED)}" for why, rows in by_reason.items())
    return [f"{hopeless.count:,} cannot be refunded. {reasons[:1].upper()}{reasons[1:]}."]


def _sums(amounts: Iterable[tuple[int, str]]) -> str:
    """`4,120.00 EUR and 9.00 GBP`; two currencies are never added."""
    totals: dict[str, int] = {}
    for minor, currency in amounts:
        totals[currency] = totals.get(currency, 0) + minor
    return " and ".join(show(minor, currency) for currency, minor in sorted(totals.items()))
