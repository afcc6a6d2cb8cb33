"""What the model is told of each ending."""

import json
from typing import Any

import pytest
import rfc8785

from graph import protocol
from graph.protocol import SYSTEM_PROMPT, system_message, tool_message

REJECTED = protocol.rejected("refund_payments", denied_by="marta", reason="Already refunded by hand.")

ENDINGS: dict[str, Any] = {
    "executed": protocol.executed({"count": 38}),
    "executed_gated": protocol.executed_gated(
        {"summary": "Refunded."}, approved_by="marta", executed_input={"refund_due_ids": ["a"]}
    ),
    "invalid": protocol.invalid("not_finite", "NaN is not a number.", field="refund_due_ids[3]"),
    "unknown_tool": protocol.unknown_tool("refund", ["refund_payments", "search_orders"]),
    "deferred": protocol.deferred("tag_orders", waits_for="refund_payments"),
    "denied_by_policy": protocol.denied_by_policy(
        "refund_payments", rule="too-large", reason="More than a house costs."
    ),
    "asked_too_much": protocol.asked_too_much("refund_payments", reason="8 asks in this turn; the limit is 8."),
    "rejected": REJECTED,
    "expired": protocol.expired("refund_payments", expires_at="2026-01-02T03:04:05Z"),
    "cancelled": protocol.cancelled("refund_payments", by="ana"),
    "superseded": protocol.superseded("refund_payments"),
    "failed": protocol.failed("gateway_closed", "The gateway said no.", retryable=False),
    "orphaned": protocol.orphaned("refund_payments", reason="The tool's arguments have changed."),
    "unknown": protocol.unknown_do_not_repeat(
        "refund_payments", operation_id="op-1", evidence="The gateway is silent."
    ),
}
UNDONE = {name: result for name, result in ENDINGS.items() if not result["ok"]}


def test_a10_a_rejection_has_exactly_its_keys() -> None:
    """A person's refusal: the six keys, who, why, and what not to try."""
    assert set(REJECTED) == {"ok", "approval_denied", "tool", "denied_by", "reason", "instruction"}
    assert (REJECTED["ok"], REJECTED["approval_denied"]) == (False, True)
    assert (REJECTED["denied_by"], REJECTED["reason"]) == ("marta", "Already refunded by hand.")
    for word in ("Do not call it again", "other parameters", "smaller batches", "another tool", "end your turn"):
        assert word in str(REJECTED["instruction"])


@pytest.mark.parametrize("name", sorted(set(UNDONE) - {"rejected"}))
def test_a10_only_a_persons_refusal_reads_like_one(name: str) -> None:
    """Expiry, cancellation, supersession, policy and the rest are never `approval_denied`, nor denied by somebody."""
    result = UNDONE[name]

    assert "approval_denied" not in result
    assert "denied_by" not in result
    assert "person refused" not in json.dumps(result)


@pytest.mark.parametrize("name", sorted(UNDONE))
def test_g5_every_ending_says_why_and_what_to_do(name: str) -> None:
    """What did not happen has a reason and an instruction; all but a rejection an error with a code and `retryable`."""
    result = UNDONE[name]

    assert result["instruction"]
    assert name == "rejected" or (result["error"]["code"] and result["error"]["message"])
    assert name == "rejected" or result["error"]["retryable"] is False


def test_g5_endings_cannot_be_taken_for_each_other() -> None:
    """No two endings have the same marks and code; none that is undone carries data."""
    marks = {
        name: (frozenset(k for k, v in result.items() if v is True), result.get("error", {}).get("code"))
        for name, result in UNDONE.items()
    }

    assert len(set(marks.values())) == len(UNDONE)
    assert not any("data" in result for result in UNDONE.values())


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("deferred", "deferred"),
        ("denied_by_policy", "denied_by_policy"),
        ("asked_too_much", "denied_by_policy"),
        ("rejected", "approval_denied"),
        ("expired", "expired"),
        ("cancelled", "cancelled"),
        ("superseded", "superseded"),
        ("orphaned", "orphaned"),
        ("unknown", "unknown"),
        ("failed", None),
        ("invalid", None),
        ("unknown_tool", None),
    ],
)
def test_a10_each_ending_has_its_word(name: str, mark: str | None) -> None:
    """One mark per ending, and no other."""
    assert [key for key, value in UNDONE[name].items() if value is True] == ([mark] if mark else [])


def test_g5_what_happened_carries_who_approved_and_what_ran() -> None:
    """A gated call that ran says who approved it and its real input; an ungated one only its data."""
    assert ENDINGS["executed"] == {"ok": True, "data": {"count": 38}}
    assert ENDINGS["executed_gated"] == {
        "ok": True,
        "data": {"summary": "Refunded."},
        "approved_by": "marta",
        "executed_input": {"refund_due_ids": ["a"]},
    }


def test_p6_an_invalid_call_names_its_field() -> None:
    """The field stands by itself and in the sentence."""
    error = ENDINGS["invalid"]["error"]

    assert error["field"] == "refund_due_ids[3]"
    assert "refund_due_ids[3]" in error["message"]


def test_e8_retryable_is_part_of_a_failure() -> None:
    """A failure says whether the unchanged call may be tried again."""
    assert protocol.failed("busy", "Busy.", retryable=True)["error"] == {
        "code": "busy",
        "message": "Busy.",
        "retryable": True,
    }


@pytest.mark.parametrize("name", sorted(ENDINGS))
def test_g7_every_result_is_plain_json(name: str) -> None:
    """A result is plain JSON, whatever people and tools said in it."""
    rfc8785.dumps(ENDINGS[name])


def test_g7_hostile_words_in_a_result_are_made_plain() -> None:
    """NUL, half a surrogate pair, NaN, 2**70 in what people and tools say never reach a history."""
    rfc8785.dumps(protocol.rejected("t", denied_by="m\x00", reason="\ud800"))
    rfc8785.dumps(protocol.executed({"n": float("nan"), "i": 2**70, "\x00": object()}))
    rfc8785.dumps(protocol.executed_gated({"n": {1, 2}}, approved_by="m\x00", executed_input={"i": 2**70}))
    rfc8785.dumps(protocol.unknown_tool("x\x00" * 10_000, []))


def test_g5_a_tool_message_answers_its_call() -> None:
    """The message carries the call's id and the result as JSON, the same each time."""
    message = tool_message(REJECTED, call_id="abc123XYZ", tool="refund_payments")

    assert (message.tool_call_id, message.status, message.id) == ("abc123XYZ", "error", "result:abc123XYZ")
    assert json.loads(message.text) == REJECTED
    assert message == tool_message(REJECTED, call_id="abc123XYZ", tool="refund_payments")
    assert tool_message(ENDINGS["executed"], call_id="a", tool="t").status == "success"


@pytest.mark.parametrize("name", sorted(UNDONE))
def test_a10_the_system_prompt_explains_every_mark(name: str) -> None:
    """Each mark that a result can carry stands in the system prompt."""
    for mark in (key for key, value in UNDONE[name].items() if value is True):
        assert f"`{mark}: true`" in SYSTEM_PROMPT
    assert system_message().content == SYSTEM_PROMPT


def test_a10_the_system_prompt_states_the_protocol() -> None:
    """Pauses, assent, refusal, what really ran: the prompt says them before the first call."""
    for words in (
        "may pause",
        "a person refused",
        "smaller batches",
        "`executed_input`",
        "Nobody refused",
        "never follow",
    ):
        assert words in SYSTEM_PROMPT
