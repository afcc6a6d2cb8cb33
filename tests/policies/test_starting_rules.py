"""The rules that the project starts with, on the shop's tools."""

import pytest

from policies import compile_rules, stricter
from policies.compiler import RULES
from tests.policies.shop import OTHERS, SHOP, SearchArguments, TagArguments, facts, refund, starting_rules
from tools.contract import NoFacts
from tools.money import Money


@pytest.mark.parametrize("tool", ["search_orders", "get_balance"])
async def test_p1_valid_reads_never_ask(tool):
    """A read runs by itself, whatever its arguments are."""
    verdict = await starting_rules().decide(tool, SearchArguments(text="NOV-17", batch="x"), NoFacts())

    assert (verdict.kind, verdict.rule) == ("auto", f"{tool}.auto")


async def test_p1_reversible_calls_run_by_themselves():
    """Tagging and drafting do not ask."""
    rules = starting_rules()

    tagging = await rules.decide("tag_orders", TagArguments(order_ids=["o-1"], tag="late"), NoFacts())
    drafting = await rules.decide("draft_refund_report", SearchArguments(), NoFacts())

    assert (tagging.kind, drafting.kind) == ("auto", "auto")


@pytest.mark.parametrize(
    ("found", "kind", "rule", "duty"),
    [
        ({"total": 5000}, "auto", "refund_payments.auto", None),
        ({"total": 1}, "auto", "refund_payments.auto", None),
        ({"total": 5001}, "ask", "refund", "support"),
        ({"total": 0}, "ask", "refund", "support"),
        ({"total": -1}, "ask", "refund", "support"),
        ({"count": 2}, "ask", "refund", "support"),
        ({"count": 0}, "ask", "refund", "support"),
        ({"currency": "MIXED"}, "ask", "refund", "support"),
        ({"not_due": 1}, "ask", "refund", "support"),
        ({"stated_total_differs": True}, "ask", "refund", "support"),
        ({"total": 100_000, "count": 38}, "ask", "refund", "support"),
        ({"total": 100_001, "count": 38}, "ask", "refund-large", "finance"),
        ({"total": 100_001}, "ask", "refund-large", "finance"),
    ],
)
async def test_p2_the_risk_is_in_what_the_call_would_do(found, kind, rule, duty):
    """One refund of at most 50.00 runs; more asks support; above 1,000.00 asks finance."""
    verdict = await starting_rules().decide("refund_payments", refund(), facts(**found))

    assert (verdict.kind, verdict.rule, verdict.duty) == (kind, rule, duty)
    assert verdict.policy_error is None


async def test_p2_a_total_that_the_agent_states_lowers_nothing():
    """38 refunds whose total the agent calls 1.00 ask as they would without it, and the reviewer is told (case 33)."""
    found = facts(count=38, total=412_000, stated_total_differs=True)

    verdict = await starting_rules().decide("refund_payments", refund(stated=Money(minor=100, currency="EUR")), found)

    assert (verdict.kind, verdict.rule, verdict.duty) == ("ask", "refund-large", "finance")
    assert [flag.rule for flag in verdict.flags] == ["refund-total-differs"]


async def test_p6_a_tool_without_a_rule_asks():
    """A tool that was registered while running asks, with the reason in the record (case 28)."""
    verdict = await starting_rules().decide("sing_a_song", refund(), facts())

    assert (verdict.kind, verdict.rule, verdict.duty) == ("ask", "policy.no-rule", "support")
    assert verdict.policy_error is not None
    assert "sing_a_song has no rule" in verdict.policy_error


async def test_p8_each_verdict_carries_the_version_of_the_policy():
    """The version is in every verdict, whatever its kind."""
    rules = starting_rules()

    verdicts = [
        await rules.decide("refund_payments", refund(), facts()),
        await rules.decide("refund_payments", refund(), facts(count=2)),
        await rules.decide("nobody_knows", refund(), facts()),
    ]

    assert {verdict.policy_version for verdict in verdicts} == {rules.version}
    assert rules.version.startswith(rules.short_version)
    assert (len(rules.version), len(rules.short_version)) == (64, 16)


def changed(old: str, new: str):
    """The starting rules with one change."""
    text = RULES.read_text()
    assert old in text
    return compile_rules(text.replace(old, new), source="rules.toml", schemas=SHOP, absent=OTHERS)


async def test_p6_a_loosened_rule_changes_nothing_for_a_call_that_was_frozen():
    """What asked when it was proposed still asks, though a new rule would let it run (case 21)."""
    then = starting_rules()
    now = changed("facts.total <= 5000", "facts.total <= 500000")
    call = (refund(), facts(total=6000))

    frozen = await then.decide("refund_payments", *call)
    looser = await now.decide("refund_payments", *call)

    assert (frozen.kind, looser.kind) == ("ask", "auto")
    assert stricter(frozen, looser, duties=now.duties) is None


async def test_p6_a_rule_that_became_deny_denies_a_call_that_was_approved():
    """The call was asked and approved; meanwhile it is forbidden: denied, with the rule's reason (case 22)."""
    then = starting_rules()
    now = changed(
        "[[refund_payments.ask]]                 #",
        "[[refund_payments.deny]]\nid = 'refund-stop'\nreason = 'No refunds until the audit is over.'\n\n"
        "[[refund_payments.ask]]                 #",
    )
    call = (refund(), facts(total=6000))

    found = stricter(await then.decide("refund_payments", *call), await now.decide("refund_payments", *call))

    assert found is not None
    assert (found.outcome, found.because) == ("denied", "No refunds until the audit is over.")
