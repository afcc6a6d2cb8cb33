"""Never automatic on a doubt: whatever is not exactly true asks, and the record says why."""

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from policies.conditions import MAX_ITEMS, MAX_TEXT
from policies.functions import MAX_HANGING, find
from policies.schemas import CannotTell
from tests.policies import function_rules
from tests.policies.shop import (
    REFUND,
    SHOP,
    Money,
    RefundArguments,
    RefundFacts,
    SearchArguments,
    facts,
    policy,
    refund,
    refund_policy,
    starting_rules,
)
from tools.contract import NoFacts

RULES = starting_rules()
NOTHING = object()  # stands for a fact that is missing
HERE = "python:tests.policies.function_rules"


@pytest.fixture
def _come_back():
    """Lets functions that hang in this test come back at its end."""
    function_rules.release.clear()
    yield
    function_rules.release.set()


def anything(*good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of the right type, mostly, and everything that a faulty tool could deliver."""
    wrong = st.one_of(
        st.just(NOTHING),
        st.none(),
        st.booleans(),
        st.floats(allow_nan=True, allow_infinity=True),
        st.integers(),
        st.integers(2**63, 2**80),
        st.text(max_size=3),
        st.sampled_from(["EUR\0", "\ud800", float("nan"), -0.0, 1e16, [], {}, b"EUR", 1 + 0j]),
    )
    return st.one_of(*good, *good, wrong)


def exactly(value: Any, kind: type) -> bool:
    return type(value) is kind and (kind is not int or -(2**63) <= value < 2**63)


@settings(max_examples=500)
@given(
    count=anything(st.just(1), st.integers(0, 3)),
    total=anything(st.integers(-10, 10_000), st.integers(-(2**63), 2**63 - 1)),
    currency=anything(st.sampled_from(["EUR", "GBP", "MIXED"])),
    largest=anything(st.integers(0, 10_000)),
    due_in_batches=anything(st.integers(0, 50)),
    not_due=anything(st.just(0), st.integers(0, 3)),
    stated_total_differs=anything(st.booleans()),
)
async def test_p6_never_automatic_unless_the_condition_is_exactly_true(**found):
    """For any facts, of any types, present or not: automatic exactly when every fact is what it should be and the small
    refund is proved; and whenever the policy could not tell, it asks and says so."""
    usable = all(
        exactly(found[name], info.annotation)
        and not (isinstance(found[name], str) and ("\0" in found[name] or "\ud800" in found[name]))
        for name, info in RefundFacts.model_fields.items()
    )
    given_facts = RefundFacts.model_construct(**{name: value for name, value in found.items() if value is not NOTHING})

    verdict = await RULES.decide("refund_payments", refund(), given_facts)

    small = usable and (
        found["count"] == 1
        and 0 < found["total"] <= 5000
        and found["currency"] != "MIXED"
        and found["not_due"] <= 0
        and not found["stated_total_differs"]
    )
    assert verdict.kind == ("auto" if small else "ask")
    assert (verdict.policy_error is None) == usable


@given(st.sampled_from([schema.name for schema in SHOP]) | st.text(max_size=20), st.data())
async def test_p6_no_input_makes_deciding_fail(tool, data):
    """Any tool name with any arguments and facts gets a verdict; without usable ones it asks."""
    odd: st.SearchStrategy[Any] = st.sampled_from([None, 5, "x", {}, {"total": 1}, NoFacts(), refund(), facts()])

    verdict = await RULES.decide(tool, data.draw(odd), data.draw(odd))

    assert verdict.kind == "ask" or (verdict.kind == "auto" and verdict.policy_error is None)


@pytest.mark.parametrize(
    ("auto_if", "problem"),
    [
        ("facts.total / (facts.count - 1) > 0", "divide by zero"),
        ("facts.total * 9223372036854775807 > 0", "overflow"),
        ("args.refund_due_ids[7] == 'a'", "index"),
        ("int(facts.currency) > 0", "cannot convert string to int"),
        ("facts.currency.matches('(')", "regular expression"),
        ("timestamp(facts.currency) > timestamp('2020-01-01T00:00:00Z')", "Timestamp"),
        ("facts.count == 1 && args.stated_total.present || args.stated_total.minor > 0", "args.stated_total.minor"),
        ("args.refund_due_ids.all(a, args.refund_due_ids.all(b, a + b != ''))", "Iteration budget"),
    ],
)
async def test_p6_a_rule_that_cannot_be_answered_asks(auto_if, problem):
    """The engine gives errors as values whose content is true-like text: none of them is a yes (case 26)."""
    rules = refund_policy(auto_if)

    verdict = await rules.decide("refund_payments", refund(*"abcdefg" if "[7]" in auto_if else ["a"] * 101), facts())

    assert (verdict.kind, verdict.rule, verdict.duty) == ("ask", "refund_payments.ask", "support")
    assert verdict.policy_error is not None
    assert problem in verdict.policy_error
    assert "rules.toml:1" in verdict.policy_error


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("returns_nothing", "returned NoneType, expected bool"),
        ("returns_text", "returned str, expected bool"),
        ("returns_one", "returned int, expected bool"),
        ("raises", "raised LookupError: no such customer"),
        ("raises_async", "raised LookupError: no such customer"),
        ("exits", "raised SystemExit"),
    ],
)
async def test_p6_a_function_that_gives_no_answer_asks(function, problem):
    """Nothing, text, 1, an exception: ask, with what happened in the record (case 26)."""
    verdict = await refund_policy(f"{HERE}.{function}").decide("refund_payments", refund(), facts())

    assert verdict.kind == "ask"
    assert verdict.policy_error is not None
    assert problem in verdict.policy_error


async def test_p6_a_verdict_on_a_hostile_name_can_be_stored():
    """A tool name is text from outside until somebody knows the tool."""
    verdict = await RULES.decide("\ud800\0" * 1_000, refund(), facts())

    assert verdict.kind == "ask"
    assert "\0" not in verdict.model_dump_json()
    assert "\\u0000" not in verdict.model_dump_json()


async def test_p6_what_a_function_raises_can_be_stored():
    """A message with a NUL, half a character and a million letters becomes one that a record can keep."""
    verdict = await refund_policy(f"{HERE}.raises_anything").decide("refund_payments", refund(), facts())

    assert verdict.policy_error is not None
    assert len(verdict.policy_error) < 1000
    assert "\0" not in verdict.policy_error.encode().decode()


@pytest.mark.usefixtures("_come_back")
@pytest.mark.parametrize("function", ["hangs", "hangs_async"])
async def test_p6_a_function_that_takes_too_long_asks(function):
    """A rule that hangs costs its time-out, not the process, whether it waits or blocks (case 26)."""
    rules = refund_policy(f"{HERE}.{function}", timeout=0.05)

    async with asyncio.timeout(4):
        verdict = await rules.decide("refund_payments", refund(), facts())

    assert verdict.kind == "ask"
    assert verdict.policy_error is not None
    assert "did not answer in time" in verdict.policy_error


@pytest.mark.usefixtures("_come_back")
async def test_p6_a_function_that_keeps_hanging_is_not_called_any_more():
    """A call that never comes back costs a thread: their number is bounded; once they are back it is called again."""
    rule = find("tests.policies.function_rules.hangs", REFUND)
    before = set(threading.enumerate())
    problems = []

    for _ in range(MAX_HANGING + 3):
        with pytest.raises(CannotTell) as caught:
            await rule.answer(refund(), facts(), seconds=0.01)
        problems.append(str(caught.value))
    hanging = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("rule ")]
    function_rules.release.set()
    for thread in hanging:
        thread.join(timeout=10)

    assert len(hanging) == MAX_HANGING
    assert f"{MAX_HANGING} earlier calls have not come back" in problems[-1]
    assert await rule.answer(refund(), facts(), seconds=60) is True


async def test_p6_an_answer_that_comes_too_late_is_no_answer():
    """A condition that was true, but only after the time was over, asks."""
    verdict = await refund_policy("facts.count == 1", timeout=1e-9).decide("refund_payments", refund(), facts())

    assert verdict.kind == "ask"
    assert "too late" in str(verdict.policy_error)


async def test_p6_more_than_a_rule_can_look_at_asks():
    """An evaluation cannot be interrupted, so what it is given is bounded; what no rule looks at is not."""
    looks = refund_policy("size(args.refund_due_ids) > 0")
    does_not_look = refund_policy("facts.count == 1")
    long_text = refund("x" * (MAX_TEXT + 1))
    many = RefundArguments.model_construct(refund_due_ids=["x"] * (MAX_ITEMS + 1), stated_total=None)
    much = RefundArguments.model_construct(refund_due_ids=["x" * MAX_TEXT] * 51, stated_total=None)

    asked = [await looks.decide("refund_payments", arguments, facts()) for arguments in (long_text, many, much)]
    unseen = [
        await does_not_look.decide("refund_payments", arguments, facts()) for arguments in (long_text, many, much)
    ]

    assert [verdict.kind for verdict in asked] == ["ask"] * 3
    assert all("that a rule looks at" in str(verdict.policy_error) for verdict in asked)
    assert [verdict.kind for verdict in unseen] == ["auto"] * 3


LAYERS = """\
    [refund_payments]
    auto_if = "facts.count == 1"
    reason  = "one"

    [[refund_payments.deny]]
    id     = "blocked"
    when   = "10 / facts.largest == 1"
    reason = "Blocked."

    [[refund_payments.flag]]
    id     = "odd"
    when   = "10 / facts.due_in_batches == 1"
    reason = "Odd."

    [[refund_payments.ask]]
    id     = "large"
    when   = "10 / facts.not_due == 1"
    duty   = "finance"
    quorum = 2
    ttl    = "30m"
    confirm = "type-total"
    reason = "Large."

    [[refund_payments.ask]]
    id     = "usual"
    duty   = "support"
    reason = "Usual."
    """


@pytest.mark.parametrize(
    ("found", "kind", "rule", "flags", "fails"),
    [
        ({}, "auto", "refund_payments.auto", [], None),
        ({"count": 2}, "ask", "usual", [], None),
        ({"largest": 10}, "deny", "blocked", [], None),
        ({"largest": 0}, "ask", "usual", [], "blocked"),
        ({"due_in_batches": 10}, "ask", "usual", ["odd"], None),
        ({"due_in_batches": 0}, "ask", "usual", ["odd"], "odd"),
        ({"count": 2, "not_due": 10}, "ask", "large", [], None),
        ({"count": 2, "not_due": 0}, "ask", "large", [], "large"),
        ({"not_due": 0}, "auto", "refund_payments.auto", [], None),
        ({"largest": 0, "not_due": 0}, "ask", "large", [], "blocked"),
        ({"total": None}, "ask", "large", ["odd"], "facts.total is missing"),
    ],
)
async def test_p6_a_condition_that_fails_never_makes_a_call_easier(found, kind, rule, flags, fails):
    """Deny first, then automatic, then asking; a deny rule or a flag that fails stops automatic, an ask rule that fails
    is taken for met, and missing facts ask whom the strictest rule names."""
    usual = {"largest": 5, "due_in_batches": 5, "not_due": 5}

    verdict = await policy(LAYERS).decide("refund_payments", refund(), facts(**{**usual, **found}))

    assert (verdict.kind, verdict.rule, [flag.rule for flag in verdict.flags]) == (kind, rule, flags)
    assert (verdict.policy_error is None) == (fails is None)
    assert (fails or "") in (verdict.policy_error or "")
    if rule == "large":
        assert (verdict.duty, verdict.quorum, verdict.ttl, verdict.confirm) == ("finance", 2, 1800, "type-total")


async def test_p6_facts_of_another_model_are_not_facts():
    """Whatever stands in the place of the tool's own models is not read."""

    class Other(BaseModel):
        count: int = 1
        total: int = 1

    verdict = await RULES.decide("refund_payments", refund(), Other())

    assert verdict.kind == "ask"
    assert "the facts are Other, expected RefundFacts" in str(verdict.policy_error)


async def test_p6_reads_with_unusable_facts_ask_too():
    """Even an unconditional rule is for calls that are what they should be."""
    verdict = await RULES.decide("search_orders", SearchArguments.model_construct(text="a\0", batch=None), NoFacts())

    assert verdict.kind == "ask"
    assert "args.text" in str(verdict.policy_error)


@pytest.mark.parametrize(
    ("stated", "kind"),
    [(None, "auto"), (Money(minor=4200, currency="EUR"), "auto"), (Money(minor=1, currency="EUR"), "ask")],
)
async def test_p7_an_optional_argument_is_used_behind_its_presence(stated, kind):
    """`!….present || …` speaks of a total only where one was stated."""
    rules = refund_policy("!args.stated_total.present || args.stated_total.minor == facts.total")

    verdict = await rules.decide("refund_payments", refund(stated=stated), facts())

    assert (verdict.kind, verdict.policy_error) == (kind, None)


async def test_p6_the_default_duty_is_asked_where_no_rule_says_whom():
    """It is the head's `duty`; without one the highest of the list."""
    body = "[refund_payments]\nauto_if = 'false'\nreason = 'r'\n"
    named = policy("[policy]\nduties = ['support', 'finance']\nduty = 'support'\n" + body, REFUND)
    highest = policy("[policy]\nduties = ['support', 'finance']\n" + body, REFUND)

    assert (await named.decide("refund_payments", refund(), facts())).duty == "support"
    assert (await highest.decide("refund_payments", refund(), facts())).duty == "finance"
    assert (await highest.decide("run_time_tool", refund(), facts())).duty == "finance"
