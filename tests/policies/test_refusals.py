"""Rules files that are refused: with the line, what was expected, and what may have been meant."""

from datetime import date
from textwrap import dedent

import pytest

from policies import RULES, RulesRefused, compile_rules, load_rules
from policies.errors import PolicyError
from tests.policies.shop import OTHERS, REFUND, SEARCH, SHOP, TAG, Money, RefundFacts, faults, policy, schema_of
from tools.contract import Arguments, Facts

GOOD = """\
[policy]
duties = ["support", "finance"]

[refund_payments]
auto_if = "facts.total <= 5000"
reason  = "A small refund."
mode    = "mutating"

[[refund_payments.deny]]
id     = "refund-mixed"
when   = "facts.currency == 'MIXED'"
reason = "One currency at a time."

[[refund_payments.flag]]
id     = "refund-differs"
when   = "facts.stated_total_differs"
reason = "The stated total differs."

[[refund_payments.ask]]
id      = "refund-large"
when    = '''
   facts.total > 100000 &&
   facts.count > 1
'''
duty    = "finance"
quorum  = 2
ttl     = "8h"
confirm = "type-total"
reason  = "Much money."

[[refund_payments.ask]]
id     = "refund"
duty   = "support"
reason = "Money leaves."
"""


def refused(rules, *schemas) -> tuple[PolicyError, ...]:
    with pytest.raises(RulesRefused) as caught:
        policy(rules, *schemas)
    return caught.value.errors


def test_p7_the_file_that_the_typos_are_made_in_is_good():
    """Without a typo nothing is refused."""
    assert faults(GOOD) == []


# what is written, what is written instead, the fault's code, line and column, and a part of its sentence
TYPOS = [
    ("[refund_payments]", "[refund_paymnets]", "no_such_tool", 4, 1, "Did you mean refund_payments?"),
    ("auto_if =", "auto_fi =", "unknown_key", 5, 1, "Did you mean auto_if?"),
    ('"A small refund."', '""', "wrong_value", 6, 1, "a sentence for people"),
    ('reason  = "A small refund."', "", "missing_key", 4, 1, "[refund_payments] has no reason."),
    ('"mutating"', '"mutatin"', "wrong_value", 7, 1, "Did you mean mutating?"),
    ('"mutating"', '"safe_readonly"', "wrong_value", 7, 1, "since the tool is irreversible"),
    ('"mutating"', '"confirm_once"', "not_yet", 7, 1, "remembered approvals cannot be used in rules yet"),
    ("facts.total <= 5000", "facts.totl <= 5000", "unknown_name", 5, 12, "Did you mean facts.total?"),
    ("facts.total <= 5000", "total <= 5000", "unknown_name", 5, 12, "Did you mean facts.total?"),
    ("facts.total <= 5000", "args.total <= 5000", "unknown_name", 5, 12, "Did you mean facts.total?"),
    ("facts.total <= 5000", "fact.total <= 5000", "unknown_name", 5, 12, "Did you mean facts.total?"),
    ("facts.total <= 5000", "siz(args.refund_due_ids) < 2", "unknown_name", 5, 15, "Did you mean size?"),
    ("facts.total <= 5000", "args.stated_total == 5", "unknown_name", 5, 12, "args.stated_total.minor"),
    ("facts.total <= 5000", "facts == 5", "unknown_name", 5, 12, "facts is not a value"),
    ("facts.total <= 5000", "facts.total <= '50'", "wrong_type", 5, 24, "`<=` does not go with (int, string)"),
    ("facts.total <= 5000", "facts.total <= 50.0", "wrong_type", 5, 24, "minor units: 5000 is 50.00"),
    ("facts.total <= 5000", "facts.total", "wrong_type", 5, 12, "The condition is int."),
    ("facts.total <= 5000", "facts.total.minor < 1", "wrong_type", 5, 23, "select operation"),
    ("facts.total <= 5000", "dyn(facts.stated_total_differs)", "wrong_type", 5, 12, "The condition is dyn."),
    ("facts.total <= 5000", "facts.total <=", "not_a_condition", 5, 26, "cannot be read"),
    ("facts.total <= 5000", "facts.total < 9 and facts.count < 2", "not_a_condition", 5, 28, "Did you mean `&&`?"),
    ("facts.total <= 5000", "facts.total = 5000", "not_a_condition", 5, 24, "Did you mean `==`?"),
    ("facts.total <= 5000", "has(facts.stated_total_differs)", "not_a_condition", 5, 12, "`.present`"),
    ("facts.total <= 5000", "(" * 99 + "true" + ")" * 99, "not_a_condition", 5, 1, "recursion"),
    ("facts.total <= 5000", "facts.count < 2" + " " * 4000, "not_a_condition", 5, 12, "4015 characters"),
    ("facts.total <= 5000", "window.turn.total < 2", "not_yet", 5, 12, "limits over a window"),
    ("facts.total <= 5000", "args.stated_total.minor < 2", "unguarded_optional", 5, 12, "may be absent"),
    ("facts.total <= 5000", "true", "always_automatic", 5, 1, "would always run by itself"),
    ("facts.total <= 5000", "facts.total <= 5000 || 1 < 2", "always_automatic", 5, 1, "would always run by itself"),
    ("refund_payments.deny", "refund_payments.dney", "unknown_key", 9, 1, "Did you mean deny?"),
    (
        "[[refund_payments.deny]]",
        "[refund_payments.deny]",
        "wrong_value",
        9,
        1,
        "Did you mean [[refund_payments.deny]]?",
    ),
    ("facts.currency == 'MIXED'", "1 > 2", "never_true", 11, 1, "refund-mixed is never true"),
    ("facts.currency == 'MIXED'", r"'\\\\' + facts.curency == 'x'", "unknown_name", 11, 20, "facts.currency?"),
    ('when   = "facts.stated_total_differs"\n', "", "missing_key", 14, 1, "has no when"),
    ('"refund-large"', '"Refund large"', "wrong_value", 20, 1, "a name in small letters"),
    ('"refund-large"', '"refund-mixed"', "duplicate_id", 20, 1, "already taken in line 10"),
    ("when    = '''", "wehn    = '''", "unknown_key", 21, 1, "Did you mean when?"),
    ("facts.count > 1", "facts.cuont > 1", "unknown_name", 23, 4, "Did you mean facts.count?"),
    ("facts.count > 1", "facts.count > '1'", "wrong_type", 23, 16, "(int, string)"),
    ("facts.count > 1", "args.stated_total.minor > 1", "unguarded_optional", 23, 4, "args.stated_total.present &&"),
    ('"finance"\nquorum', '"finanec"\nquorum', "unknown_duty", 25, 1, "Did you mean finance?"),
    ("quorum  = 2", "quorum  = 0", "wrong_value", 26, 1, "a whole number from 1"),
    ("quorum  = 2", "quorum  = true", "wrong_value", 26, 1, "a whole number from 1"),
    ("quorum  = 2", 'quorum  = "two"', "wrong_value", 26, 1, "a whole number from 1"),
    ('"Much money."', r'"Much\u0000money."', "wrong_value", 29, 1, "a sentence for people"),
    ("quorum  = 2", "quroum  = 2", "unknown_key", 26, 1, "Did you mean quorum?"),
    ('"8h"', '"8 hours"', "wrong_value", 27, 1, '"30m"'),
    ('"8h"', "8", "wrong_value", 27, 1, '"30m"'),
    ('"8h"', '"999d"', "wrong_value", 27, 1, "at most a year"),
    ('"8h"', '"0h"', "wrong_value", 27, 1, '"30m"'),
    ('"type-total"', '"type-totl"', "wrong_value", 28, 1, "Did you mean type-total?"),
    ('reason  = "Much money."', 'resaon  = "Much money."', "unknown_key", 29, 1, "Did you mean reason?"),
    ('reason  = "Much money."', "reason  = 5", "wrong_value", 29, 1, "a sentence for people"),
    ('id     = "refund"\n', "", "missing_key", 31, 1, "[[refund_payments.ask]] has no id"),
    ('duty   = "support"\n', "", "missing_key", 31, 1, "has no duty"),
    ('duties = ["support", "finance"]', 'duties = ["support", 5]', "wrong_value", 2, 1, "different names"),
    ('"finance"]', '"finance"]\nduty = "suport"', "unknown_duty", 3, 1, "Did you mean support?"),
    ('"finance"]', '"finance"]\nquorum = 2', "unknown_key", 3, 1, "Expected: duties, duty"),
    ('"A small refund."', '"A small refund.', "not_toml", 6, 27, "This is not TOML"),
    ('mode    = "mutating"', 'reason = "again"', "not_toml", 7, 17, "This is not TOML"),
]


@pytest.mark.parametrize("typo", TYPOS)
def test_p7_a_typo_stops_start_up_with_its_line(typo):
    """Each slip is one fault, at its own line and column, with what was expected (case 27)."""
    old, new, code, line, column, sentence = typo
    assert GOOD.count(old) == 1

    errors = refused(GOOD.replace(old, new))

    assert [(error.code, error.place.line, error.place.column) for error in errors] == [(code, line, column)]
    assert sentence in str(errors[0])
    assert str(errors[0]).startswith(f"rules.toml:{line}:{column}: ")


def test_p7_lines_are_those_of_a_file_with_windows_line_ends():
    """A carriage return shifts nothing."""
    with pytest.raises(RulesRefused) as caught:
        compile_rules(
            GOOD.replace("facts.count >", "facts.cuont >").replace("\n", "\r\n"), source="r", schemas=[REFUND]
        )

    assert [(error.place.line, error.place.column) for error in caught.value.errors] == [(23, 4)]


def test_p7_all_faults_are_shown_at_once_in_the_order_of_the_file():
    """Nobody has to start five times to find five typos."""
    broken = (
        GOOD.replace("facts.total <= 5000", "facts.totl <= 5000 && facts.cuont == 1")
        .replace("resaon", "reason")
        .replace('"8h"', '"8"')
        .replace('reason = "Money leaves."', 'resaon = "Money leaves."')
    )

    errors = refused(broken)

    assert [(error.code, error.place.line) for error in errors] == [
        ("unknown_name", 5),
        ("unknown_name", 5),
        ("wrong_value", 27),
        ("unknown_key", 34),
    ]
    assert "4 faults" in str(RulesRefused("rules.toml", errors))
    assert errors[0].as_json()["suggestion"] == "facts.total"


def test_p7_a_rule_behind_an_unconditional_one_is_refused():
    """It would never be reached, whether the earlier one has no condition or one that always holds."""
    ask = "[[refund_payments.ask]]\nid = '{}'\n{}duty = 'support'\nreason = 'r'\n"
    head = "[refund_payments]\nauto_if = 'false'\nreason = 'r'\n"

    no_when = refused(head + ask.format("first", "") + ask.format("second", "when = 'facts.count > 1'\n"))
    always = refused(head + ask.format("first", "when = 'facts.count > 1 || true'\n") + ask.format("second", ""))
    denied = refused(head + "[[refund_payments.deny]]\nid = 'a'\nreason = 'r'\n" * 2)

    assert [(error.code, error.place.line) for error in no_when] == [("shadowed_rule", 8)]
    assert "second is never reached: first in line 4 always holds" in str(no_when[0])
    assert [(error.code, error.place.line) for error in always] == [("shadowed_rule", 9)]
    assert {error.code for error in denied} == {"shadowed_rule", "duplicate_id"}


def test_p7_rules_that_ask_behind_an_automatic_one_are_refused():
    """`auto_if = "true"` with a limit in an ask rule is a misunderstanding: the limit would never be looked at."""
    rules = """\
        [tag_orders]
        auto_if = "true"
        reason  = "Tags."

        [[tag_orders.ask]]
        id     = "tag-many"
        when   = "size(args.order_ids) > 100"
        duty   = "support"
        reason = "Many orders."
        """

    errors = refused(rules, TAG)

    assert [(error.code, error.place.line) for error in errors] == [("shadowed_rule", 5)]
    assert "auto_if in line 2 always holds" in str(errors[0])


def test_p7_every_known_tool_needs_a_rule():
    """A known tool about which the file says nothing stops start-up (case 28)."""
    errors = refused("[search_orders]\nauto_if = 'true'\nreason = 'Reads.'\n", SEARCH, REFUND, TAG)

    assert [error.code for error in errors] == ["tool_without_rule", "tool_without_rule"]
    assert [error.place.line for error in errors] == [3, 3]
    assert 'add [refund_payments] with auto_if = "false" and a reason' in str(errors[0])


def test_p7_a_misspelt_tool_is_one_fault():
    """The tool that was meant is not reported a second time, as one without a rule."""
    errors = refused("[refund_paymnets]\nauto_if = 'false'\nreason = 'r'\n")

    assert [error.code for error in errors] == ["no_such_tool"]


def test_p7_a_tool_without_a_rule_in_an_empty_file():
    """An empty file lacks the rules of all tools."""
    assert {error.code for error in refused("", *SHOP)} == {"tool_without_rule"}


@pytest.mark.parametrize(
    ("auto_if", "more"),
    [
        ("false", ""),
        ("args.text == ''", ""),
        ("true", "[[search_orders.ask]]\nid = 'a'\nduty = 'support'\nreason = 'r'"),
        ("true", "[[search_orders.flag]]\nid = 'a'\nwhen = 'args.text == \"x\"'\nreason = 'r'"),
    ],
)
def test_p1_a_rule_that_makes_a_read_ask_is_refused(auto_if, more):
    """Valid reads never ask: a read that would have to is an effect, and its tool says so."""
    errors = refused(f'[search_orders]\nauto_if = "{auto_if}"\nreason = "r"\n{more}', SEARCH)

    assert [error.code for error in errors] == ["reads_never_ask"]


def test_p1_a_read_can_be_denied():
    """Denying is not asking."""
    rules = """\
        [search_orders]
        auto_if = "true"
        reason  = "Reads."

        [[search_orders.deny]]
        id     = "no-wildcard"
        when   = "args.text == '*'"
        reason = "Not everything at once."
        """

    assert faults(rules, SEARCH) == []


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ("refund_payments = 5", "wrong_value"),
        ("policy = 5\n[refund_payments]\nauto_if = 'false'\nreason = 'r'", "wrong_value"),
        ("[refund_payments]\nauto_if = 'false'\nreason = 'r'\nask = [5]", "wrong_value"),
        ("[refund_payments]\nauto_if = 'false'\nreason = 'r'\nask = 'support'", "wrong_value"),
        ("[[refund_payments]]\nauto_if = 'false'\nreason = 'r'", "wrong_value"),
        ("[refund_payments]\nauto_if = ['false']\nreason = 'r'", "wrong_value"),
    ],
)
def test_p7_another_shape_than_tables_is_refused(rules, code):
    """Numbers, texts and lists in the place of tables are faults, not crashes."""
    assert [error.code for error in refused(rules)] == [code]


class Unusual(Facts):
    total: int
    rate: float
    day: date
    parts: list[Money]


@pytest.mark.parametrize("name", ["rate", "day", "parts"])
def test_p7_a_fact_that_rules_cannot_know_is_refused_with_the_reason(name):
    """Floats, dates and lists of objects are named as what they are."""
    rules = f"[refund_payments]\nreason = 'r'\nauto_if = 'facts.{name} == 1'"

    errors = refused(rules, schema_of(Unusual))

    assert [(error.code, error.place.line, error.place.column) for error in errors] == [("unknown_name", 3, 12)]
    assert "Rules know bool, int, str" in str(errors[0])


class Gift(Arguments):
    present: bool


class WithGift(Arguments):
    gift: Gift | None = None


def test_p7_a_name_with_two_meanings_is_refused():
    """A model's own `present` below an optional field cannot be told from the field's presence."""
    errors = refused("[refund_payments]\nauto_if = 'false'\nreason = 'r'", schema_of(RefundFacts, WithGift))

    assert [error.code for error in errors] == ["unusable_schema"]


def test_p7_a_tool_cannot_be_named_like_the_head_of_the_file():
    """[policy] is the file's own table."""
    errors = refused("[policy]\nduties = []", TAG.__class__("policy", "reversible", WithGift, RefundFacts))

    assert "unusable_schema" in {error.code for error in errors}


def test_p7_a_file_is_read_and_named(tmp_path):
    """The path stands in the message; a file that is not text is refused with the line."""
    good, bad, marked = tmp_path / "good.toml", tmp_path / "bad.toml", tmp_path / "marked.toml"
    good.write_text(dedent(GOOD))
    bad.write_bytes(b"# fine\n# \xff\n")
    marked.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())

    assert load_rules(good, [REFUND]).source == str(good)
    assert load_rules(marked, [REFUND]).rules
    with pytest.raises(RulesRefused, match=r"bad\.toml:2:1: The file is not text in UTF-8"):
        load_rules(bad, [REFUND])


def test_p7_the_starting_rules_are_good():
    """The project's own file is accepted for the shop's tools."""
    assert set(load_rules(RULES, SHOP, absent=OTHERS).rules) == {schema.name for schema in (*SHOP, *OTHERS)}


def test_p7_codes_of_faults_are_stable_and_distinct():
    """Machines go by the codes."""
    codes = [fault.code for fault in PolicyError.__subclasses__()]

    assert len(codes) == len(set(codes))
    assert "policy_error" not in codes
