"""The next step of a turn: look, propose, report. A function of the messages and the names of the tools, no more."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage

from graph.rehearsal import words
from graph.rehearsal.history import Balances, Call, Done, Found, History, OrderRow, data_of, read
from graph.rehearsal.understand import EXAMPLES, Kind, NotUnderstood, Request, understand

MOST = 500  # rows of one search and lines of one call, as the shop's tools say
TWICE = 2  # a call that was deferred, or failed for a moment, is proposed again once

NEEDED: dict[Kind, tuple[str, ...]] = {
    "refund": ("search_orders", "refund_payments"),
    "tag": ("search_orders", "tag_orders"),
    "search": ("search_orders",),
    "balance": ("search_orders", "get_balance"),
    "report": ("draft_refund_report",),
}


@dataclass(frozen=True, slots=True)
class Step:
    """What the planner answers: words, and the calls it proposes; without calls the turn ends."""

    text: str
    calls: tuple[Call, ...] = ()


def next_step(messages: Sequence[BaseMessage], tools: set[str]) -> Step:
    """The next step after `messages`, with only these tools."""
    history = read(messages)
    try:
        request = understand(history.request)
    except NotUnderstood as why:
        return Step(_help(str(why)))
    if hindrance := _hindrance(request, history, tools):
        return Step(hindrance)
    match request.kinds:
        case ("search",):
            return _search(request, history)
        case ("balance",):
            return _balance(request, history)
        case ("report",):
            return _report(request, history)
        case _:
            return _change(request, history)


def _hindrance(request: Request, history: History, tools: set[str]) -> str | None:
    """Why this is not even begun: a tool is missing, or a person refused it earlier in the conversation (A10)."""
    needed = list(dict.fromkeys(tool for kind in request.kinds for tool in NEEDED[kind]))
    if missing := [tool for tool in needed if tool not in tools]:
        return f"I cannot do that: I have no tool {' and no tool '.join(missing)}."
    for refusal in history.refused_before:
        if refusal.tool in needed:
            return (
                f"I do not call {refusal.tool} again in this conversation: {refusal.by} refused it ({refusal.reason}). "
                f"Begin another conversation if that has changed."
            )
    return None


def _help(why: str) -> str:
    examples = "\n".join(f"- {example}" for example in EXAMPLES)
    return (
        f"{why}. I am rehearsal, a fixed planner and no language model. I understand requests like these:\n{examples}"
    )


def _once(history: History, call: Call, text: str) -> Step | Done:
    """The result of `call`, or the step that proposes it; once more if it failed for a moment or was deferred."""
    done = history.latest(call)
    if done is None:
        return Step(text, (call,))
    if _once_more(done) and history.times(call) < TWICE:
        return Step(f"{words.told(done)} I try once more.", (call,))
    return done


def _search_call(request: Request) -> Call:
    named = {
        "batch": request.batch,
        "status": request.status,
        "day": request.day,
        "customer": request.customer,
        "order_ids": list(request.order_ids) or None,
        "refunds_due": True if request.refunds_due or "refund" in request.kinds else None,
    }
    return Call("search_orders", {name: value for name, value in named.items() if value is not None} | {"limit": MOST})


def _look(request: Request, history: History) -> Step | Found:
    done = _once(history, _search_call(request), f"I look for the {request.described()}.")
    if isinstance(done, Step):
        return done
    if not done.ok:
        return Step(words.told(done))
    return data_of(done, Found) or Step(words.unreadable("search_orders"))


def _search(request: Request, history: History) -> Step:
    found = _look(request, history)
    return found if isinstance(found, Step) else Step(words.found(found, request))


def _balance(request: Request, history: History) -> Step:
    if len(request.order_ids) > 1:
        return Step("I can take the balance of one order at a time.")
    customer = _customer_id(request, history)
    if isinstance(customer, Step):
        return customer
    named = {
        "batch": request.batch,
        "day": request.day,
        "customer_id": customer,
        "order_id": request.order_ids[0] if request.order_ids else None,
    }
    call = Call("get_balance", {name: value for name, value in named.items() if value is not None})
    done = _once(history, call, f"I look up the balance of the {request.described()}.")
    if isinstance(done, Step):
        return done
    balances = data_of(done, Balances)
    if done.ok:
        return Step(words.balances(balances, request) if balances else words.unreadable("get_balance"))
    return Step(words.told(done))


def _customer_id(request: Request, history: History) -> Step | str | None:
    """The customer's id; of a name (a word without a digit, or several words), what a search says."""
    if request.customer is None or re.fullmatch(r"\S*\d\S*", request.customer):
        return request.customer
    found = _look(Request(kinds=("search",), customer=request.customer), history)
    if isinstance(found, Step):
        return found
    ids = sorted({row.customer_id for row in found.rows if row.customer_id})
    if len(ids) == 1:
        return ids[0]
    return Step(f"{len(ids) or 'No'} customers are called {request.customer}: {words.some(ids)}. Name one by its id.")


def _report(request: Request, history: History) -> Step:
    if request.customer or request.order_ids or (request.batch and request.day):
        return Step("A report is of a batch, of a day, or of everything; name one of them.")
    named = {"batch": request.batch, "day": request.day}
    call = Call("draft_refund_report", {name: value for name, value in named.items() if value is not None})
    done = _once(history, call, f"I write {words.wanted(call)}.")
    return done if isinstance(done, Step) else Step(words.told(done))


def _change(request: Request, history: History) -> Step:
    """Refund, tag, or both: look, propose all of it in one answer, ask again for what was deferred, report."""
    found = _look(request, history)
    if isinstance(found, Step):
        return found
    proposed = [*_refunds(request, found), *_tags(request, found)]
    if not proposed:
        return Step(words.nothing_to_do(found, request))
    done = [result for call in proposed if (result := history.latest(call))]
    if not done:
        return Step(words.rationale(proposed, found, request), tuple(proposed))
    again = tuple(result.call for result in done if _once_more(result) and history.times(result.call) < TWICE)
    if again and all(result.ok or _once_more(result) for result in done):  # else somebody or something said no
        return Step("\n".join([*map(words.told, done), "I ask for what is still wanted once more."]), again)
    return Step(words.report(done, found, request))


def _once_more(done: Done) -> bool:
    return done.is_("deferred") or done.may_be_repeated


def _refunds(request: Request, found: Found) -> Iterable[Call]:
    """One call for all that is due, per currency (no sum holds two) and per 500 (the tool takes no more)."""
    if "refund" not in request.kinds:
        return
    rows = [row for row in words.wanted_rows(found, request) if row.refund_due_id]
    for currency in sorted({row.refund.currency for row in rows if row.refund}):
        same = [row for row in rows if row.refund and row.refund.currency == currency]
        for part in _parts(same):
            yield Call(
                "refund_payments",
                {
                    "refund_due_ids": [row.refund_due_id for row in part],
                    "stated_total": {
                        "minor": sum(row.refund.minor for row in part if row.refund),
                        "currency": currency,
                    },
                },
            )


def _tags(request: Request, found: Found) -> Iterable[Call]:
    if "tag" not in request.kinds:
        return
    for part in _parts(words.wanted_rows(found, request)):
        yield Call("tag_orders", {"order_ids": [row.order_id for row in part], "tag": request.tag})


def _parts(rows: Sequence[OrderRow]) -> Iterable[Sequence[OrderRow]]:
    return (rows[start : start + MOST] for start in range(0, len(rows), MOST))
