"""Verdicts: what they may be, how they are stored, and when a later one stands in the way."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from policies import Flag, Verdict, stricter
from policies.verdicts import CONFIRM

DUTIES = ("support", "finance")
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
flags = st.lists(st.builds(Flag, rule=text, reason=text), max_size=3).map(tuple)
asking = st.builds(
    Verdict,
    kind=st.just("ask"),
    rule=text,
    reason=text,
    policy_version=text,
    duty=st.sampled_from(["support", "finance", "legal"]),
    quorum=st.integers(1, 3),
    ttl=st.none() | st.integers(1, 10**6),
    confirm=st.sampled_from(CONFIRM),
    policy_error=st.none() | text,
    flags=flags,
)
automatic = st.builds(
    Verdict,
    kind=st.just("auto"),
    rule=text,
    reason=text,
    policy_version=text,
    duty=st.none(),
    quorum=st.just(0),
    ttl=st.none(),
    confirm=st.none(),
    policy_error=st.none(),
    flags=st.just(()),
)
denying = automatic.map(lambda verdict: verdict.model_copy(update={"kind": "deny"}))


def ask(**changed: object) -> Verdict:
    return Verdict.model_validate(
        {
            "kind": "ask",
            "rule": "refund",
            "reason": "Money leaves.",
            "policy_version": "v",
            "duty": "support",
            "quorum": 1,
            "confirm": "click",
            **changed,
        }
    )


AUTO = Verdict(kind="auto", rule="refund_payments.auto", reason="small", policy_version="v")
DENY = Verdict(kind="deny", rule="stop", reason="Not today.", policy_version="v")


@given(asking | automatic | denying)
def test_p8_a_verdict_survives_storage(verdict):
    """What is stored as JSON is read back as it was."""
    stored = json.loads(json.dumps(verdict.as_json()))

    assert Verdict.from_json(stored) == verdict


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "auto"},
        {"kind": "deny"},
        {"duty": None},
        {"quorum": 0},
        {"quorum": True},
        {"quorum": "1"},
        {"confirm": "shout"},
        {"ttl": 0},
        {"ttl": 1.5},
        {"kind": "maybe"},
        {"surprise": 1},
    ],
)
def test_p6_a_verdict_that_contradicts_itself_does_not_exist(changed):
    """Who decides is said exactly when people are asked, and nothing is guessed from another type."""
    with pytest.raises(ValidationError):
        Verdict.from_json({**ask().as_json(), **changed})


@pytest.mark.parametrize(
    "changed", [{"policy_error": "cannot tell"}, {"flags": (Flag(rule="differs", reason="The total differs."),)}]
)
def test_p6_automatic_and_doubtful_exclude_each_other(changed):
    """A verdict with a policy error or a flag cannot be automatic."""
    with pytest.raises(ValidationError):
        Verdict(kind="auto", rule="r", reason="r", policy_version="v", **changed)


@pytest.mark.parametrize(
    ("frozen", "now", "outcome"),
    [
        (AUTO, AUTO, None),
        (AUTO, ask(), "ask_again"),
        (AUTO, DENY, "denied"),
        (ask(), AUTO, None),
        (ask(), DENY, "denied"),
        (ask(), ask(), None),
        (ask(), ask(rule="other", reason="other", policy_version="w", ttl=60), None),
        (ask(), ask(duty="finance"), "ask_again"),
        (ask(duty="finance"), ask(duty="support"), None),
        (ask(), ask(duty="legal"), "ask_again"),
        (ask(duty="legal"), ask(duty="support"), "ask_again"),
        (ask(), ask(quorum=2), "ask_again"),
        (ask(quorum=2), ask(), None),
        (ask(), ask(confirm="type-total"), "ask_again"),
        (ask(confirm="type-total"), ask(), None),
        (ask(), ask(policy_error="facts.total is missing"), "ask_again"),
        (ask(policy_error="facts.total is missing"), ask(policy_error="still"), None),
        (ask(duty="finance", quorum=2), ask(duty="support", quorum=3), "ask_again"),
        (DENY, AUTO, "denied"),
        (DENY, ask(), "denied"),
    ],
)
def test_a7_the_policy_is_asked_again_only_to_be_stricter(frozen, now, outcome):
    """A higher requirement asks again, a denial denies, and a loosened rule changes nothing."""
    found = stricter(frozen, now, duties=DUTIES)

    assert (found and found.outcome) == outcome
    assert found is None or found.because


def test_a7_the_caller_is_told_why_it_must_ask_again():
    """The sentence names what was and what is now."""
    automatic_then = stricter(AUTO, ask())
    more_now = stricter(ask(), ask(duty="finance", quorum=2))

    assert automatic_then is not None
    assert automatic_then.because == "It was automatic and now asks support: Money leaves."
    assert more_now is not None
    assert more_now.because == "finance must decide, not support; 2 people must approve, not 1"


def test_a7_without_a_ranking_another_duty_must_be_asked():
    """Where nobody says which duty is higher, each stands for itself."""
    assert stricter(ask(duty="finance"), ask(duty="support")) is not None


@given(asking | automatic | denying)
def test_a7_the_same_verdict_is_never_stricter_than_itself(verdict):
    """An unchanged policy asks nothing again; only what was denied stays denied."""
    found = stricter(verdict, verdict, duties=DUTIES)

    assert (found is None) == (verdict.kind != "deny")


@given(asking | automatic, automatic)
def test_a7_automatic_now_never_stops_a_call_that_was_not_denied(frozen, now):
    """What was approved or automatic goes on when the rule of today would not even ask."""
    assert stricter(frozen, now, duties=DUTIES) is None
