"""Names and values of a tool's arguments and facts."""

from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, NewType, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from policies.conditions import TYPES
from policies.schemas import CannotTell, ToolSchema, names, values
from tests.policies.shop import REFUND, RefundFacts, facts, refund
from tools.contract import Arguments, Facts, NoFacts
from tools.money import Money

OrderId = NewType("OrderId", str)


class Channel(Enum):
    post = "post"
    mail = "mail"


class Address(Arguments):
    city: str
    zip: str | None = None


class Customer(Arguments):
    name: str
    address: Address | None = None


class Everything(Arguments):
    flag: bool
    number: Annotated[int, Field(ge=0)]
    text: str
    channel: Channel
    size: Literal["s", "m"]
    order: OrderId
    tags: list[Annotated[str, Field(min_length=1)]]
    counts: tuple[int, ...]
    note: Optional[str] = None  # noqa: UP045  # the older spelling must do too
    customer: Customer | None = None
    price: float = 0.0
    since: date | None = None
    lines: list[Money] = []  # noqa: RUF012  # pydantic copies it
    anything: Any = None
    either: int | str = 0
    mixed: Literal["a", 1] = 1
    gaps: list[str | None] = []  # noqa: RUF012  # pydantic copies it


class Node(Arguments):
    label: str
    next: "Node | None" = None


def flat(model: type[BaseModel]) -> dict[str, str]:
    return {leaf.name: leaf.kind for leaf in names(ToolSchema("t", "reversible", model, NoFacts)).leaves.values()}


def test_p7_arguments_and_facts_become_dotted_typed_names():
    """Each usable field is one name with one type; what may be absent has a `.present`."""
    known = names(REFUND)

    assert {leaf.name: leaf.kind for leaf in known.leaves.values()} == {
        "args.refund_due_ids": "list<string>",
        "args.stated_total.present": "bool",
        "args.stated_total.minor": "int",
        "args.stated_total.currency": "string",
        "facts.count": "int",
        "facts.total": "int",
        "facts.currency": "string",
        "facts.largest": "int",
        "facts.due_in_batches": "int",
        "facts.not_due": "int",
        "facts.stated_total_differs": "bool",
    }
    assert known.leaves["args.stated_total.minor"].guard == "args.stated_total.present"


def test_p7_every_spelling_of_a_usable_type_is_usable():
    """Annotated, Literal, Enum, NewType, Optional and nested models; what rules cannot know is left out, with why."""
    known = names(ToolSchema("t", "reversible", Everything, NoFacts))

    assert flat(Everything) == {
        "args.flag": "bool",
        "args.number": "int",
        "args.text": "string",
        "args.channel": "string",
        "args.size": "string",
        "args.order": "string",
        "args.tags": "list<string>",
        "args.counts": "list<int>",
        "args.note": "string",
        "args.note.present": "bool",
        "args.customer.present": "bool",
        "args.customer.name": "string",
        "args.customer.address.present": "bool",
        "args.customer.address.city": "string",
        "args.customer.address.zip": "string",
        "args.customer.address.zip.present": "bool",
        "args.since.present": "bool",
    }
    assert set(known.unusable) == {
        f"args.{name}" for name in ("price", "since", "lines", "anything", "either", "mixed", "gaps")
    }
    assert set(TYPES) >= set(flat(Everything).values())


def test_p7_a_model_that_contains_itself_ends():
    """A recursive model is usable down to where it repeats."""
    assert flat(Node) == {"args.label": "string", "args.next.present": "bool"}


def test_p7_a_field_named_present_in_something_optional_is_ambiguous():
    """`present` of the field and `present` of the tool's own model would be the same name."""

    class Gift(Arguments):
        present: bool

    class Arguments_(Arguments):  # noqa: N801
        gift: Gift | None = None

    assert names(ToolSchema("t", "reversible", Arguments_, NoFacts)).clashes == ("args.gift.present",)


def test_p7_what_is_absent_has_no_value():
    """Nothing is invented for an optional argument that is not there, at any depth."""
    everything = {
        "flag": True,
        "number": 1,
        "text": "",
        "channel": Channel.post,
        "size": "s",
        "order": "o",
        "tags": [],
        "counts": (),
    }
    known = names(ToolSchema("t", "reversible", Everything, NoFacts))

    without = values(known, Everything(**everything), NoFacts())
    with_some = values(
        known, Everything(**everything, customer=Customer(name="n", address=Address(city="c"))), NoFacts()
    )

    assert {name for name in without if name.startswith("args.customer")} == {
        "args.customer.present",
        "args.customer.address.present",
        "args.customer.address.zip.present",
    }
    assert not any(without[name] for name in without if name.endswith(".present"))
    assert with_some["args.customer.address.city"] == "c"
    assert with_some["args.customer.address.present"] is True
    assert with_some["args.customer.address.zip.present"] is False
    assert "args.customer.address.zip" not in with_some
    assert (with_some["args.channel"], with_some["args.counts"]) == ("post", [])


@given(
    ids=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=5),
    stated=st.none() | st.builds(Money, minor=st.integers(-(2**53) + 1, 2**53 - 1), currency=st.just("EUR")),
    total=st.integers(-(2**63), 2**63 - 1),
    differs=st.booleans(),
)
def test_p7_flat_values_are_those_of_the_models(ids, stated, total, differs):
    """Flattening changes no value and loses none."""
    flat_values = values(names(REFUND), refund(*ids, stated=stated), facts(total=total, stated_total_differs=differs))

    assert flat_values["args.refund_due_ids"] == ids
    assert flat_values["args.stated_total.present"] is (stated is not None)
    assert flat_values.get("args.stated_total.minor") == (stated.minor if stated else None)
    assert flat_values["facts.total"] == total
    assert flat_values["facts.stated_total_differs"] is differs


class Number(int):
    """An int that is not exactly one."""


not_an_int = (
    st.booleans()
    | st.floats()
    | st.none()
    | st.text()
    | st.lists(st.integers())
    | st.integers(min_value=2**63)
    | st.integers(max_value=-(2**63) - 1)
    | st.just(Number(1))
    | st.decimals()
)


@given(not_an_int)
def test_p6_a_value_that_is_not_exactly_an_int64_is_not_a_value(value):
    """True, 1.0, NaN, None, text, 2**63 and subclasses are no integers to a rule."""
    with pytest.raises(CannotTell, match=r"facts\.total"):
        values(names(REFUND), refund(), facts(total=value))


@pytest.mark.parametrize("value", ["EUR\0X", "\ud800", "a\udfff", b"EUR", 1, True, None, ["EUR"]])
def test_p6_a_text_that_the_engine_would_cut_is_not_a_value(value):
    """CEL ends a text at a NUL, so that EUR\\0X would equal EUR; half a character makes it raise."""
    with pytest.raises(CannotTell, match=r"facts\.currency"):
        values(names(REFUND), refund(), facts(currency=value))


@pytest.mark.parametrize("value", [1, 0, "true", None, "", 1.0])
def test_p6_only_true_and_false_are_bools(value):
    """Nothing else is read as one."""
    with pytest.raises(CannotTell, match=r"facts\.stated_total_differs"):
        values(names(REFUND), refund(), facts(stated_total_differs=value))


@pytest.mark.parametrize("ids", ["abc", None, {"a": 1}, [1], ["a", None], ["a", True], [["a"]], ["a\0"], {"a"}])
def test_p6_a_list_is_checked_item_by_item(ids):
    """One wrong item makes the list unusable."""
    arguments = refund().model_construct(refund_due_ids=ids, stated_total=None)

    with pytest.raises(CannotTell, match=r"args\.refund_due_ids"):
        values(names(REFUND), arguments, facts())


def test_p6_a_missing_fact_is_named():
    """A fact that its tool did not deliver is missing, not zero."""
    with pytest.raises(CannotTell, match=r"facts\.total is missing"):
        values(names(REFUND), refund(), RefundFacts.model_construct(count=1))


@pytest.mark.parametrize("stated", [{"minor": 1, "currency": "EUR"}, "1.00 EUR", 5])
def test_p6_something_else_than_the_model_has_no_fields(stated):
    """A dictionary where a model should be is not read as one."""
    with pytest.raises(CannotTell, match=r"args\.stated_total"):
        values(names(REFUND), refund().model_construct(refund_due_ids=["a"], stated_total=stated), facts())


class FactsWithGap(Facts):
    ok: bool
    limit: int | None = None


def test_p7_facts_may_be_optional_too():
    """An optional fact has its `.present` like an argument."""
    known = names(ToolSchema("t", "irreversible", Address, FactsWithGap))

    assert values(known, Address(city="c"), FactsWithGap(ok=True))["facts.limit.present"] is False
    assert values(known, Address(city="c"), FactsWithGap(ok=True, limit=3))["facts.limit"] == 3
