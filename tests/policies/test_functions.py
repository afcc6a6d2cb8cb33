"""Python functions as rules: found, type-checked and part of the version."""

import asyncio
import importlib
import sys

import pytest

from policies import RulesRefused
from tests.policies.shop import facts, refund, refund_policy

HERE = "python:tests.policies.function_rules"


@pytest.mark.parametrize("function", ["single", "single_async"])
@pytest.mark.parametrize(("count", "kind"), [(1, "auto"), (2, "ask")])
async def test_p7_a_typed_function_says_what_cel_cannot(function, count, kind):
    """It sees the validated arguments and facts, and may be async."""
    verdict = await refund_policy(f"{HERE}.{function}").decide("refund_payments", refund(), facts(count=count))

    assert (verdict.kind, verdict.policy_error) == (kind, None)


async def test_p7_a_function_may_be_written_for_a_base_class():
    """One for any tool takes any model."""
    verdict = await refund_policy(f"{HERE}.of_any_tool").decide("refund_payments", refund(), facts())

    assert verdict.kind == "auto"


async def test_p7_functions_stand_wherever_a_condition_stands():
    """Denying, flagging and asking may need one too."""
    rules = refund_policy(
        "false",
        f"""
        [[refund_payments.deny]]
        id = "denied"
        when = "{HERE}.single"
        reason = "r"
        """,
    )

    assert (await rules.decide("refund_payments", refund(), facts())).kind == "deny"
    assert (await rules.decide("refund_payments", refund(), facts(count=2))).kind == "ask"


async def test_p6_many_calls_of_one_function_do_not_wait_for_each_other():
    """Calls that are decided together are answered together."""
    rules = refund_policy(f"{HERE}.single")

    verdicts = await asyncio.gather(*(rules.decide("refund_payments", refund(), facts()) for _ in range(50)))

    assert {verdict.kind for verdict in verdicts} == {"auto"}


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        (f"{HERE}.singel", "Did you mean python:tests.policies.function_rules.single?"),
        (f"{HERE}.BaseModel", "has no function BaseModel"),
        (f"{HERE}.release", "has no function release"),
        ("python:tests.policies.nowhere.single", "tests.policies.nowhere cannot be imported (ModuleNotFoundError"),
        ("python:single", "Write python:package.module.function."),
        ("python:", "Write python:package.module.function."),
        ("python:tests/policies.single", "Write python:package.module.function."),
        (f"{HERE}.says_no_type", "returns nothing that is said"),
        (f"{HERE}.returns_int", "returns int"),
        (f"{HERE}.for_another_tool", "takes TagArguments as arguments"),
        (f"{HERE}.untyped_parameter", "takes nothing as arguments"),
        (f"{HERE}.takes_anything", "Expected: def takes_anything(arguments: RefundArguments, facts: RefundFacts)"),
        (f"{HERE}.takes_three", "Expected: def takes_three(arguments: RefundArguments, facts: RefundFacts) -> bool."),
        (f"{HERE}.wrong_annotation", "cannot be read"),
    ],
)
def test_p7_a_function_that_does_not_fit_stops_start_up(named, sentence):
    """Its name, its parameters and its result are checked when the rules are loaded."""
    with pytest.raises(RulesRefused) as caught:
        refund_policy(named)

    (error,) = caught.value.errors
    assert (error.code, error.place.line, error.place.column) == ("bad_function", 2, 14)
    assert sentence in str(error)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of rules that a test can rewrite."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str):
        (tmp_path / "house_rules.py").write_text(text)
        sys.modules.pop("house_rules", None)
        importlib.invalidate_caches()

    yield write
    sys.modules.pop("house_rules", None)


SOURCE = """
from tests.policies.shop import RefundArguments, RefundFacts
LIMIT = 5000
def small(arguments: RefundArguments, facts: RefundFacts) -> bool:
    return facts.total <= LIMIT
"""


def test_p8_the_source_of_a_function_is_part_of_the_version(module):
    """A limit that is changed beside the function is another policy."""
    module(SOURCE)
    first, again = refund_policy("python:house_rules.small"), refund_policy("python:house_rules.small")
    module(SOURCE.replace("5000", "6000"))
    changed = refund_policy("python:house_rules.small")

    assert first.version == again.version
    assert first.version != changed.version


def test_p7_a_module_that_cannot_be_imported_is_refused(module):
    """Whatever importing it raises, start-up stops with the sentence."""
    module("raise RuntimeError('no key')")

    with pytest.raises(RulesRefused, match="RuntimeError: no key"):
        refund_policy("python:house_rules.small")
