"""The shop's tools as the policy sees them, and short ways to write rules and calls in tests."""

from textwrap import dedent
from typing import Any

from pydantic import BaseModel, Field

from placet.rules import CONFIGURED, schema_of
from policies import RULES, Policy, RulesRefused, ToolSchema, compile_rules, load_rules
from tools.contract import Arguments, Facts, NoFacts
from tools.money import Money
from tools.shop.delete_customers import DeleteCustomers


class RefundArguments(Arguments):
    refund_due_ids: list[str] = Field(min_length=1, max_length=500)
    stated_total: Money | None = None


class RefundFacts(Facts):
    count: int
    total: int
    currency: str
    largest: int
    due_in_batches: int
    not_due: int
    stated_total_differs: bool


class SearchArguments(Arguments):
    text: str = ""
    batch: str | None = None


class TagArguments(Arguments):
    order_ids: list[str]
    tag: str


REFUND = ToolSchema("refund_payments", "irreversible", RefundArguments, RefundFacts)
SEARCH = ToolSchema("search_orders", "read_only", SearchArguments, NoFacts)
BALANCE = ToolSchema("get_balance", "read_only", SearchArguments, NoFacts)
DRAFT = ToolSchema("draft_refund_report", "reversible", SearchArguments, NoFacts)
TAG = ToolSchema("tag_orders", "reversible", TagArguments, NoFacts)
SHOP = (REFUND, SEARCH, BALANCE, DRAFT, TAG)
OTHERS = [schema_of(tool) for tool in (DeleteCustomers, *CONFIGURED)]  # tools whose rules have tests of their own


def refund(*ids: str, stated: Money | None = None) -> RefundArguments:
    return RefundArguments(refund_due_ids=list(ids or ("r-1",)), stated_total=stated)


def facts(**changed: Any) -> RefundFacts:
    """One small refund, as its tool finds it; `changed` goes in unvalidated, as a faulty tool would deliver it."""
    good = {
        "count": 1,
        "total": 4200,
        "currency": "EUR",
        "largest": 4200,
        "due_in_batches": 1,
        "not_due": 0,
        "stated_total_differs": False,
    }
    return RefundFacts.model_construct(**{**good, **changed})


def starting_rules() -> Policy:
    return load_rules(RULES, SHOP, absent=OTHERS)


def policy(rules: str, *schemas: ToolSchema, timeout: float = 2.0) -> Policy:
    """Compile `rules` for the refund tool alone, or for `schemas`."""
    return compile_rules(dedent(rules), source="rules.toml", schemas=schemas or (REFUND,), timeout=timeout)


def refund_policy(auto_if: str, more: str = "", *, timeout: float = 2.0) -> Policy:
    """A refund tool with one condition."""
    head = f"[refund_payments]\nauto_if = '''{auto_if}'''\nreason = 'small'\n"
    return policy(head + dedent(more), timeout=timeout)


def faults(rules: str, *schemas: ToolSchema) -> list[tuple[str, int, int]]:
    """The faults of `rules` as (code, line, column); empty when there are none."""
    try:
        policy(rules, *schemas)
    except RulesRefused as refused:
        return [(error.code, error.place.line, error.place.column) for error in refused.errors]
    return []


def schema_of(facts_model: type[BaseModel], arguments: type[BaseModel] = RefundArguments) -> ToolSchema:
    return ToolSchema("refund_payments", "irreversible", arguments, facts_model)
