"""The planner without a model: what it understands, proposes, and says of each ending."""

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage

from graph import protocol
from graph.answers import Answer, normalise
from graph.models import ask
from graph.protocol import Result, system_message, tool_message
from graph.rehearsal import Rehearsal
from tools.money import show

ALL = ("search_orders", "get_balance", "draft_refund_report", "tag_orders", "refund_payments")
REQUEST = "Refund the failed orders of batch NOV-17"
World = Callable[[str, dict[str, Any]], Result | Awaitable[Result]]


def offered(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "description": "", "parameters": {}}} for name in names]


def amount(minor: int, currency: str = "EUR") -> dict[str, Any]:
    return {"minor": minor, "currency": currency, "text": show(minor, currency)}


def order(
    number: int, minor: int = 1000, currency: str = "EUR", refund: str | None = "due", **more: Any
) -> dict[str, Any]:
    """A row as search_orders gives it."""
    return {
        "order_id": f"ORD-{number}",
        "batch": "NOV-17",
        "status": "failed",
        "placed_at": "2025-11-17 09:00 UTC",
        "customer_id": f"C-{number}",
        "customer": "Someone",
        **amount(minor, currency),
        "refund_due_id": f"RD-{number}" if refund else None,
        "refund": {"status": refund, "reason": "failed", **amount(minor, currency)} if refund else None,
        "tags": [],
        **more,
    }


def found(*rows: dict[str, Any], more: int = 0, hopeless: tuple[dict[str, Any], ...] = ()) -> Result:
    """The result of a search."""
    currencies = sorted({row["currency"] for row in rows})
    totals = [amount(sum(row["minor"] for row in rows if row["currency"] == c), c) for c in currencies]
    return protocol.executed(
        {
            "count": len(rows) + more,
            "totals": totals,
            "rows": list(rows),
            "more": more,
            "not_refundable": {"count": len(hopeless), "totals": [], "rows": list(hopeless), "more": 0},
        }
    )


def receipt(ids: list[str], minor: int = 1000, refused: tuple[str, ...] = ()) -> dict[str, Any]:
    """The gateway's receipt for these ids."""
    lines = [
        {"ref": one, "status": "refused", "reason": "already refunded", "minor": minor, "currency": "EUR"}
        if one in refused
        else {"ref": one, "status": "done", "minor": minor, "currency": "EUR", "external_id": f"GB-{one}"}
        for one in ids
    ]
    return {"external_id": "GB-1", "summary": "Refunded.", "lines": lines, "data": {}}


class Talk:
    """A conversation with the planner, in which `world` says what becomes of each call."""

    def __init__(self, world: World, tools: tuple[str, ...] = ALL) -> None:
        self.world, self.tools = world, offered(*tools)
        self.messages: list[BaseMessage] = [system_message()]
        self.proposed: list[list[tuple[str, dict[str, Any]]]] = []  # per answer
        self.said: list[str] = []

    async def user(self, text: str) -> str:
        """Say something; returns what the planner says at the end of its turn."""
        self.messages.append(HumanMessage(text))
        for _ in range(12):
            answer = await self._step()
            if not answer.calls:
                return answer.text
        raise AssertionError(f"The turn did not end: {self.proposed}")

    async def _step(self) -> Answer:
        message = await ask(Rehearsal(), self.messages, self.tools)
        answer = normalise(message, turn_id=f"turn{len(self.messages)}", step=len(self.proposed))
        assert not any(call.error for call in answer.calls)
        self.said.append(answer.text)
        self.proposed.append([(call.tool, dict(call.arguments)) for call in answer.calls])
        self.messages.append(answer.as_message())
        for call in answer.calls:
            told = self.world(call.tool, dict(call.arguments))
            result = await told if inspect.isawaitable(told) else told
            self.messages.append(tool_message(result, call_id=call.call_id, tool=call.tool))
        return answer

    def called(self, tool: str) -> list[dict[str, Any]]:
        """The arguments of every call of `tool`, in order."""
        return [arguments for answer in self.proposed for name, arguments in answer if name == tool]


def shop(
    search: Result, *refunds: Result | Callable[[dict[str, Any]], Result], **others: Result
) -> Callable[[str, dict[str, Any]], Result]:
    """A world with this search; each refund has the next of these results, and the last one again and again."""
    left = list(refunds)

    def result(tool: str, arguments: dict[str, Any]) -> Result:
        if tool == "search_orders":
            return search
        if tool == "refund_payments":
            ending = left.pop(0) if len(left) > 1 else left[0]
            return ending(arguments) if callable(ending) else ending
        return others[tool]

    return result


def paid(arguments: dict[str, Any]) -> Result:
    """Approved as it was proposed."""
    return protocol.executed_gated(receipt(arguments["refund_due_ids"]), approved_by="marta", executed_input=arguments)


THREE = (order(1), order(2), order(3, 2000))


async def test_p4_a_batch_is_one_call_with_the_sum_of_what_was_found() -> None:
    """It looks first, then proposes all of it at once, with the total in minor units and the reason in words."""
    talk = Talk(shop(found(*THREE), paid))

    last = await talk.user(REQUEST)

    assert talk.called("search_orders") == [{"batch": "NOV-17", "status": "failed", "refunds_due": True, "limit": 500}]
    assert talk.called("refund_payments") == [
        {"refund_due_ids": ["RD-1", "RD-2", "RD-3"], "stated_total": {"minor": 4000, "currency": "EUR"}}
    ]
    assert "I found 3 failed orders of batch NOV-17 whose money has to go back, 40.00 EUR" in talk.said[1]
    assert "Refunded 3 payments, 30.00 EUR" in last  # what the receipt says, not what was proposed
    assert "Approved by marta" in last
    assert "GB-1" in last


async def test_p4_each_currency_is_a_call_of_its_own() -> None:
    """Currencies are never added up; both calls stand in one answer."""
    talk = Talk(shop(found(order(1), order(2, 500, "GBP"), order(3)), paid))

    await talk.user(REQUEST)

    assert [len(answer) for answer in talk.proposed] == [1, 2, 0]
    assert talk.called("refund_payments") == [
        {"refund_due_ids": ["RD-1", "RD-3"], "stated_total": {"minor": 2000, "currency": "EUR"}},
        {"refund_due_ids": ["RD-2"], "stated_total": {"minor": 500, "currency": "GBP"}},
    ]


@pytest.mark.parametrize(("currency", "ids"), [("GBP", ["RD-2"]), ("USD", [])])
async def test_p4_a_named_currency_is_kept_to(currency: str, ids: list[str]) -> None:
    """Of the orders found only those in the currency that was named; none of another when there is none in it."""
    talk = Talk(shop(found(order(1), order(2, 500, "GBP")), paid))

    await talk.user(f"Refund the {currency} orders of batch NOV-17")

    assert [call["refund_due_ids"] for call in talk.called("refund_payments")] == ([ids] if ids else [])


async def test_p4_at_most_500_in_a_call_and_the_rest_is_said() -> None:
    """More than the tool takes: 500 of them, and the others are named as undone."""
    talk = Talk(shop(found(*[order(i) for i in range(500)], more=120), paid))

    last = await talk.user(REQUEST)

    assert [len(call["refund_due_ids"]) for call in talk.called("refund_payments")] == [500]
    assert "620 match in all" in talk.said[1]
    assert "120 more match" in last


async def test_p4_what_is_on_its_way_or_not_refundable_is_not_proposed() -> None:
    """Only what is due and nobody sends already; what cannot be refunded is named with its reason."""
    hopeless = ({"order_id": "C-9", "why": "no customer is known", **amount(310)},)
    talk = Talk(shop(found(order(1), order(2, refund="on_its_way"), hopeless=hopeless), paid))

    last = await talk.user(REQUEST)

    assert talk.called("refund_payments")[0]["refund_due_ids"] == ["RD-1"]
    for said in (talk.said[1], last):
        assert "1 cannot be refunded. No customer is known: C-9 (3.10 EUR)." in said


async def test_p4_nothing_due_is_said() -> None:
    """Nothing to refund: no call, and the reasons."""
    hopeless = ({"order_id": "C-9", "why": "no customer is known", **amount(310)},)
    talk = Talk(shop(found(hopeless=hopeless), paid))

    last = await talk.user("Refund the cancelled invoices of 2010-12-07")

    assert talk.called("refund_payments") == []
    assert "no cancelled orders of 2010-12-07 to refund" in last
    assert "No customer is known: C-9 (3.10 EUR)" in last


async def test_a10_a_refusal_ends_the_turn_and_says_what_and_why() -> None:
    """A person refused: no further call of any kind, and who, what and why."""
    world = shop(
        found(*THREE),
        protocol.rejected("refund_payments", denied_by="marta", reason="Already refunded by hand."),
        tag_orders=protocol.deferred("tag_orders", waits_for="refund_payments"),
    )
    talk = Talk(world)

    last = await talk.user(f"{REQUEST} and tag them as refund-requested")

    assert len(talk.called("refund_payments")) == 1
    assert len(talk.called("tag_orders")) == 1
    assert "the refund of 3 payments, 40.00 EUR" in last
    assert "marta refused it: Already refunded by hand" in last


async def test_a10_a_refusal_holds_for_the_whole_conversation() -> None:
    """Asked again later in the same conversation, also differently, it does not call again; reading goes on."""
    world = shop(
        found(*THREE),
        protocol.rejected("refund_payments", denied_by="marta", reason="Not now."),
        get_balance=protocol.executed({"balances": []}),
    )
    talk = Talk(world)
    await talk.user(REQUEST)

    again = await talk.user("Refund order ORD-1")
    balance = await talk.user("What is the balance of batch NOV-17?")

    assert len(talk.called("refund_payments")) == 1
    assert "marta refused it (Not now.)" in again
    assert "No money was taken" in balance


async def test_a8_what_really_ran_is_reported() -> None:
    """A person left out one and changed the total: the report is about what ran, and says what was changed."""

    def edited(arguments: dict[str, Any]) -> Result:
        ran = {"refund_due_ids": ["RD-1", "RD-3"], "stated_total": {"minor": 3000, "currency": "EUR"}}
        return protocol.executed_gated(receipt(["RD-1", "RD-3"]), approved_by="marta", executed_input=ran)

    last = await Talk(shop(found(*THREE), edited)).user(REQUEST)

    assert "Refunded 2 payments, 20.00 EUR" in last
    assert "refund_due_ids: 1 left out (RD-2)" in last
    assert "stated_total: 30.00 EUR instead of 40.00 EUR" in last


async def test_a8_lines_that_were_refused_are_reported() -> None:
    """The gateway refused one line: it is not counted as paid, and named with its reason."""

    def partly(arguments: dict[str, Any]) -> Result:
        data = receipt(arguments["refund_due_ids"], refused=("RD-2",))
        return protocol.executed_gated(data, approved_by=["marta", "pedro"], executed_input=arguments)

    last = await Talk(shop(found(*THREE), partly)).user(REQUEST)

    assert "Refunded 2 payments, 20.00 EUR" in last
    assert "1 not done: RD-2 (already refunded)" in last
    assert "Approved by marta and pedro" in last
    assert "changed before" not in last


async def test_g4_what_was_deferred_is_asked_again_once() -> None:
    """Deferred behind the refund: asked again when that is done; deferred for ever, it is not asked a third time."""
    tags = [protocol.deferred("tag_orders", waits_for="refund_payments"), protocol.executed({"summary": "Tagged 3."})]
    world = shop(found(*THREE), paid)

    def once(tool: str, arguments: dict[str, Any]) -> Result:
        return tags.pop(0) if tool == "tag_orders" else world(tool, arguments)

    talk = Talk(once)
    last = await talk.user(f"{REQUEST} and tag them as refund-requested")

    assert len(talk.called("tag_orders")) == 2
    assert len(talk.called("refund_payments")) == 1
    assert "Refunded 3 payments" in last
    assert "Tagged 3." in last

    for_ever = Talk(shop(found(*THREE), protocol.deferred("refund_payments", waits_for="another")))
    assert "has not run yet" in await for_ever.user(REQUEST)
    assert len(for_ever.called("refund_payments")) == 2


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (protocol.expired("refund_payments", expires_at="2026-01-02T03:04:05Z"), "Nobody refused it"),
        (protocol.cancelled("refund_payments", by="ana"), "cancelled by ana"),
        (protocol.superseded("refund_payments"), "newer message"),
        (
            protocol.denied_by_policy("refund_payments", reason="Too much at once."),
            "the rules forbid it: Too much at once",
        ),
        (protocol.asked_too_much("refund_payments", reason="8 asks in this turn."), "8 asks in this turn"),
        (protocol.orphaned("refund_payments", reason="Its arguments have changed."), "Its arguments have changed"),
        (
            protocol.unknown_do_not_repeat("refund_payments", operation_id="op"),
            "I do not repeat it; people have to look",
        ),
        (protocol.failed("gateway_closed", "The gateway is closed.", retryable=False), "The gateway is closed"),
        (protocol.invalid("too_long", "At most 500.", field="refund_due_ids"), "refund_due_ids: At most 500"),
        (protocol.unknown_tool("refund_payments", []), "There is no tool"),
        ({"ok": False}, "did not happen: no reason given"),
        ({"ok": "yes", "data": {}}, "did not happen"),
    ],
)
async def test_a10_every_other_ending_is_told_in_its_own_words(ending: Result, words: str) -> None:
    """It says what did not happen and why, never as a person's refusal, and does not try again by itself."""
    talk = Talk(shop(found(*THREE), ending))

    last = await talk.user(REQUEST)

    assert len(talk.called("refund_payments")) == 1
    assert words in last
    assert "efund of 3 payments, 40.00 EUR" in last
    assert "refused it:" not in last
    assert "Refunded" not in last


async def test_a10_an_expired_refund_does_not_get_its_tag() -> None:
    """What was deferred behind a call that came to nothing is not asked for again."""
    world = shop(
        found(*THREE),
        protocol.expired("refund_payments", expires_at="2026-01-02T03:04:05Z"),
        tag_orders=protocol.deferred("tag_orders", waits_for="refund_payments"),
    )
    talk = Talk(world)

    await talk.user(f"{REQUEST} and tag them as refunded")

    assert len(talk.called("tag_orders")) == 1


async def test_e8_a_failure_that_may_pass_is_tried_once_more() -> None:
    """`retryable`: the same call again, once."""
    busy = protocol.failed("busy", "The gateway is busy.", retryable=True)
    passes, stays = Talk(shop(found(*THREE), busy, paid)), Talk(shop(found(*THREE), busy))

    assert "Refunded 3 payments" in await passes.user(REQUEST)
    assert "The gateway is busy" in await stays.user(REQUEST)
    assert len(passes.called("refund_payments")) == len(stays.called("refund_payments")) == 2
    assert passes.called("refund_payments")[0] == passes.called("refund_payments")[1]


@pytest.mark.parametrize(
    "data", [None, [], "text", {"rows": 7}, {"count": 1, "totals": [], "rows": [{"x": 1}]}, {1: 2}]
)
async def test_e3_a_result_that_cannot_be_read_ends_the_turn(data: Any) -> None:
    """Whatever a tool answers, the planner says that it cannot read it and proposes nothing."""
    talk = Talk(shop(protocol.executed(data), paid))

    assert "I cannot read what search_orders answered" in await talk.user(REQUEST)
    assert talk.called("refund_payments") == []


async def test_p6_a_tool_that_is_not_bound_is_not_called() -> None:
    """Without the tool it says so."""
    talk = Talk(shop(found(*THREE), paid), tools=("search_orders",))

    assert "no tool refund_payments" in await talk.user(REQUEST)
    assert talk.proposed == [[]]


async def test_g1_balances_are_told_per_currency() -> None:
    """Captured, refunded, due and left, for each currency; a customer's name is looked up first."""
    one = {
        "currency": "EUR",
        "payments": 38,
        "captured": amount(412000),
        "refunded": amount(2000),
        "refunds_due": amount(410000),
        "balance": amount(410000),
    }
    talk = Talk(shop(found(order(1)), paid, get_balance=protocol.executed({"balances": [one]})))

    last = await talk.user("What is the balance of batch NOV-17?")
    await talk.user("What is the balance of customer 17850?")
    await talk.user('What is the balance of customer "María José"?')

    assert "4,100.00 EUR left of 4,120.00 EUR captured in 38 payments" in last
    assert talk.called("get_balance") == [{"batch": "NOV-17"}, {"customer_id": "17850"}, {"customer_id": "C-1"}]
    assert talk.called("search_orders") == [{"customer": "María José", "limit": 500}]


async def test_g1_a_name_of_several_customers_is_asked_back() -> None:
    """Two customers of one name: it names their ids instead of choosing."""
    talk = Talk(shop(found(order(1), order(2)), paid))

    assert "2 customers are called Ana: C-1, C-2" in await talk.user("What is the balance of customer Ana?")


async def test_g1_a_search_is_told_with_its_first_rows() -> None:
    """How many, what they come to, the first ten."""
    talk = Talk(shop(found(*[order(i) for i in range(12)]), paid))

    last = await talk.user("Search the failed orders of batch NOV-17")

    assert talk.called("search_orders") == [{"batch": "NOV-17", "status": "failed", "limit": 500}]
    assert "I found 12 failed orders of batch NOV-17: 120.00 EUR" in last
    assert "ORD-9" in last
    assert "and 2 more" in last


async def test_g1_orders_are_tagged_and_reports_drafted() -> None:
    """The reversible tools: tag what was found, draft a report of a batch."""
    talk = Talk(
        shop(
            found(order(1), order(2, refund=None)),
            paid,
            tag_orders=protocol.executed({"summary": "Tagged 2 orders.", "external_id": "op-1", "lines": []}),
            draft_refund_report=protocol.executed({"summary": "Drafted 'Refunds of batch NOV-17'."}),
        )
    )

    tagged = await talk.user("Tag the failed orders of batch NOV-17 as look-at-this")
    drafted = await talk.user("Draft a refund report for batch NOV-17")

    assert talk.called("tag_orders") == [{"order_ids": ["ORD-1", "ORD-2"], "tag": "look-at-this"}]
    assert talk.called("draft_refund_report") == [{"batch": "NOV-17"}]
    assert "Tagged 2 orders." in tagged
    assert "Drafted" in drafted


async def test_g1_the_same_messages_get_the_same_answer() -> None:
    """It keeps nothing: another instance gives the same answer to the same messages."""
    talk = Talk(shop(found(*THREE), paid))
    await talk.user(REQUEST)

    first = await ask(Rehearsal(), talk.messages[:4], offered(*ALL))
    second = await ask(Rehearsal(), talk.messages[:4], offered(*ALL))

    assert (first.content, first.tool_calls) == (second.content, second.tool_calls)
    assert Rehearsal()._llm_type == first.response_metadata["model_name"] == "rehearsal"
    assert json.dumps(first.tool_calls)
