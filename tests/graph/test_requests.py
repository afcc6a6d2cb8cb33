"""What the rehearsal planner understands of what people ask, and what it says when it does not."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph import protocol
from graph.protocol import Result
from graph.rehearsal.understand import EXAMPLES, NotUnderstood, understand
from placet.record.database import Database
from tests.graph.test_rehearsal import REQUEST, THREE, Talk, found, paid, shop
from tools.contract import Receipt
from tools.registry import Registry
from tools.shop import Shop, tools
from tools.shop.seed import seed


async def test_p4_the_real_shop_is_understood(database: Database) -> None:
    """With the shop's own tools and rows: 38 refunds of 4,120.00 EUR as one call, tagged, paid, told from the receipt."""
    real = Shop(database, "acme")
    await seed(real)
    registry = Registry(tools(real))

    async def run(name: str, arguments: dict[str, Any]) -> Result:
        tool = registry[name]
        args = tool.Arguments.model_validate_json(json.dumps(arguments))
        answer = await tool.execute(args, f"op-{name}")
        if isinstance(answer, Receipt):
            ran = args.model_dump(mode="json")
            return protocol.executed_gated(answer.model_dump(mode="json"), approved_by="marta", executed_input=ran)
        return protocol.executed(answer)

    talk = Talk(run)
    before = await talk.user("What is the balance of batch NOV-17?")
    last = await talk.user(f"{REQUEST} and tag them as refund-requested")
    after = await talk.user("Show the refunds of batch NOV-17")

    assert "4,120.00 EUR due" in before
    [refund] = talk.called("refund_payments")
    assert len(refund["refund_due_ids"]) == 38
    assert refund["stated_total"] == {"minor": 412000, "currency": "EUR"}
    assert "Refunded 38 payments, 4,120.00 EUR. Approved by marta. Receipt" in last
    assert "Tagged 38 orders" in last
    assert "I found no orders of batch NOV-17" in after


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (REQUEST, {"kinds": ("refund",), "batch": "NOV-17", "status": "failed"}),
        (
            "refund the cancelled invoices of 2010-12-20.",
            {"kinds": ("refund",), "day": "2010-12-20", "status": "cancelled"},
        ),
        ("Please refund orders ORD-1, ORD-22 and ORD-3", {"order_ids": ("ORD-1", "ORD-22", "ORD-3")}),
        ("Refund invoice C536379", {"order_ids": ("C536379",)}),
        (
            "Reembolsa los pedidos fallidos del lote NOV-17",
            {"kinds": ("refund",), "batch": "NOV-17", "status": "failed"},
        ),
        (
            "Devuelve las facturas anuladas de 2010-12-20",
            {"kinds": ("refund",), "day": "2010-12-20", "status": "cancelled"},
        ),
        ("¿Cuál es el saldo del cliente 17850?", {"kinds": ("balance",), "customer": "17850"}),
        ("What's the balance of customer O'Neill's?", {"kinds": ("balance",)}),
        ("Balance of Batch 'A B'", {"batch": "A B"}),
        ("Find orders of customer 山田 太郎 of 2025-11-17", {"customer": "山田 太郎", "day": "2025-11-17"}),
        ("Show the refunds of batch NOV-17", {"kinds": ("search",), "refunds_due": True}),
        ("Search orders", {"kinds": ("search",), "batch": None}),
        ("Etiqueta los pedidos fallidos del lote NOV-17 como 'por revisar'", {"kinds": ("tag",), "tag": "por revisar"}),
        ("Refund the failed orders of batch NOV-17 and tag them as done", {"kinds": ("refund", "tag"), "tag": "done"}),
        ("Draft a refund report for batch NOV-17", {"kinds": ("report",), "batch": "NOV-17"}),
        ('Search orders of customer "do not refund"', {"kinds": ("search",), "customer": "do not refund"}),
    ],
)
def test_t1_requests_are_understood(message: str, expected: dict[str, Any]) -> None:
    """English and plain Spanish: what to do, and with which orders."""
    request = understand(message)

    assert {name: getattr(request, name) for name in expected} == expected


@pytest.mark.parametrize("example", EXAMPLES)
def test_t1_every_example_of_the_help_is_understood(example: str) -> None:
    """What the help names works."""
    understand(example)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Hello",
        "Refund everything",
        "Refund the failed orders",
        "Do not refund the failed orders of batch NOV-17",
        "Don't refund batch NOV-17",
        "Refund the failed orders of batch NOV-17 under 50.00 EUR",
        "Refund only the largest order of batch NOV-17",
        "Refund all orders of batch NOV-17 except ORD-1",
        "Refund the failed or cancelled orders of batch NOV-17",
        "Refund batch NOV-17 and batch NOV-18",
        "Refund the orders of 2010-12-20 and 2010-12-21",
        "Tag the orders of batch NOV-17",
        "Refund batch NOV-17 " + "x" * 2000,
        "Refund batch NOV-17 and NOV-18",
        "Refund 5 orders of batch NOV-17",
        "Refund batch NOV-17 up to 50.00 EUR",
    ],
)
async def test_t1_what_is_not_understood_is_said_and_nothing_is_called(message: str) -> None:
    """A restriction, a negation, no orders, no verb: it says that it is rehearsal and what it understands."""
    talk = Talk(shop(found(*THREE), paid))

    last = await talk.user(message)

    assert talk.proposed == [[]]
    assert "rehearsal" in last
    assert REQUEST in last
    with pytest.raises(NotUnderstood):
        understand(message)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80) | st.lists(st.sampled_from([*" ".join(EXAMPLES).split(), '"', "'", ","])).map(" ".join))
def test_t1_any_message_is_understood_or_not(message: str) -> None:
    """No text makes it fail."""
    with suppress(NotUnderstood):
        understand(message)
