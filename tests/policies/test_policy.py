"""The policy as people see it: its version, its sentences, and what it looked at."""

import json
from pathlib import Path

from policies import version
from policies.version import policy_version
from tests.policies.shop import TAG, facts, policy, refund, refund_policy, starting_rules


def test_p8_the_version_changes_with_every_byte_of_the_rules():
    """Also a comment: what people read is part of what was decided."""
    first, again = refund_policy("facts.count == 1"), refund_policy("facts.count == 1")

    assert first.version == again.version
    assert first.version != refund_policy("facts.count == 2").version
    assert first.version != refund_policy("facts.count == 1", "# a comment\n").version
    assert len({first.version[:16], refund_policy("facts.count ==  1").short_version}) == 2


def test_p8_the_version_holds_the_code_that_decides(monkeypatch, tmp_path):
    """Changed code under the same rules is another policy."""
    before = policy_version(b"rules", [])
    for file in Path(version.__file__).parent.glob("*.py"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(version, "__file__", str(tmp_path / "version.py"))
    version._deciding_code.cache_clear()
    copied = policy_version(b"rules", [])
    (tmp_path / "policy.py").write_bytes((tmp_path / "policy.py").read_bytes() + b"\n")
    version._deciding_code.cache_clear()
    changed = policy_version(b"rules", [])
    monkeypatch.undo()
    version._deciding_code.cache_clear()

    assert before == copied
    assert before != changed


def test_p8_no_part_of_the_version_flows_into_another():
    """Moving bytes between the rules and a function's source is a change."""
    moved = [(b"ab", [b"c"]), (b"a", [b"bc"]), (b"abc", []), (b"", [b"a", b"bc"]), (b"", [b"ab", b"c"])]

    assert len({policy_version(rules, functions) for rules, functions in moved}) == len(moved)


def test_p7_the_rules_can_be_read_as_sentences():
    """Every tool, in the order in which its rules are applied."""
    sentences = starting_rules().sentences()

    assert sentences["search_orders"] == ["Runs by itself: Reading our own orders changes nothing."]
    assert [line.partition(" (")[0].replace(": A single", "\nA single") for line in sentences["refund_payments"]] == [
        "Flagged, and never automatic, if `facts.stated_total_differs`",
        "Flagged, and never automatic, if `facts.not_due > 0`",
        "Runs by itself only if `facts.count == 1 && facts.total > 0 && facts.total <= 5000 && "
        "facts.currency != 'MIXED'`\nA single refund of at most 50.00.",
        "Otherwise, if `facts.total > 100000`, finance decides",
        "Otherwise support decides",
    ]


def test_p7_a_sentence_says_how_many_how_long_and_how():
    """Quorum, time and friction are words, and the built-in ask is said too."""
    rules = policy(
        """\
        [tag_orders]
        auto_if = "false"
        reason  = "Tags are seen by customers."

        [[tag_orders.deny]]
        id     = "no-tags"
        when   = "args.tag == ''"
        reason = "A tag has a name."

        [[tag_orders.ask]]
        id     = "many"
        when   = '''
            size(args.order_ids) > 100
            && args.tag != 'late'
        '''
        duty   = "finance"
        quorum = 2
        ttl    = "8h"
        confirm = "type-total"
        reason = "Many."
        """,
        TAG,
    )

    assert rules.sentences()["tag_orders"] == [
        "Denied if `args.tag == ''` (no-tags): A tag has a name.",
        "Never runs by itself: Tags are seen by customers.",
        "Otherwise, if `size(args.order_ids) > 100 && args.tag != 'late'`, "
        "2 people of finance decide within 8h, typing the total (many): Many.",
        "Otherwise support decides.",
    ]


async def test_p8_an_explanation_shows_what_each_rule_saw():
    """Which rules were looked at, in order, with their outcome and the values they looked at."""
    explained = await starting_rules().explain("refund_payments", refund(), facts(total=412_000, count=38))

    assert [(look.rule, look.part, look.outcome) for look in explained.looks] == [
        ("refund-total-differs", "flag", "false"),
        ("refund-not-due", "flag", "false"),
        ("refund_payments.auto", "auto_if", "false"),
        ("refund-large", "ask", "true"),
    ]
    assert explained.looks[-1].looked_at == {"facts.total": 412_000}
    assert set(explained.looks[2].looked_at) == {"facts.count", "facts.total", "facts.currency"}
    assert json.loads(json.dumps(explained.as_json()))["verdict"]["rule"] == "refund-large"


async def test_p6_an_explanation_says_which_rule_failed_and_where():
    """The problem stands at the rule, with its line."""
    rules = refund_policy("1 / (facts.count - 1) > 0")

    (look,) = (await rules.explain("refund_payments", refund(), facts())).looks

    assert (look.outcome, look.looked_at) == ("error", {"facts.count": 1})
    assert "divide by zero" in str(look.problem)
    assert (look.place.file, look.place.line) == ("rules.toml", 1)


def test_p7_the_mode_is_that_of_the_tier():
    """Reads are safe_readonly, everything else mutating."""
    assert {name: rules.mode for name, rules in starting_rules().rules.items()} == {
        "search_orders": "safe_readonly",
        "get_balance": "safe_readonly",
        "draft_refund_report": "mutating",
        "tag_orders": "mutating",
        "refund_payments": "mutating",
        "delete_customers": "mutating",
        "send_email": "mutating",
        "refund_stripe_payments": "mutating",
    }
