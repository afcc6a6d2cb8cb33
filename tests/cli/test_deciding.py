"""Deciding at the command line: exactly what was shown, by the right person, once, and never by accident."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from placet.cli import decisions, opening
from placet.record.approvals import Approval
from placet.record.turns import Turn
from tests.cli.conftest import PLACET, REQUEST, Ran
from tests.cli.terminal import at_a_terminal
from tests.steps import House
from tools.shop import Shop
from tools.shop.seed import fail_three_more

Placet = Callable[..., Ran]
TWO = json.dumps({"refund_due_ids": ["R-105009", "R-105022"], "stated_total": None})


@pytest.fixture(autouse=True)
def _no_worker_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody works in these tests, so there is nothing to wait for."""
    monkeypatch.setattr("placet.cli.aftermath.NOBODY", 0.0)
    monkeypatch.setattr("placet.cli.timeline.NOBODY", 0.0)


@pytest.fixture
def status(house: Callable[..., Approval], paused: Approval) -> Callable[[], str]:
    """`status()`: what has become of the approval."""

    async def read(opened: House) -> Approval:
        return await opened.approval(paused.approval_id)

    return lambda: house(read).status


def test_a2_approve_sends_the_hash_of_what_it_showed(process: Placet, paused: Approval) -> None:
    """Through a real process: title, complete arguments, impact, sample, precondition, rule, requester and the agent's
    words stand there, and the stored decision has the hash that stood beside them."""
    shown = process("approve", str(paused.approval_id)[:8], "--as", "marta", "--yes")
    flat = " ".join(shown.out.split())

    assert shown.code == 0, shown.err
    for part in (
        "Refund 38 payments: 4,120.00 EUR",
        "38 customers receive money; it does not come back",
        "It cannot be taken back.",
        "A sample: 5 of the rows",
        "due_in_batches = 38",
        "More than 1,000.00 leaves the house at once. (rule refund-large; finance decides)",
        "Asked by ana",
        "untrusted",
        *paused.content["arguments"]["refund_due_ids"],
    ):
        assert part in flat
    [stored] = process("turn", "show", paused.turn_id, "--json").json["approvals"]
    assert stored["payload_hash"] in shown.out
    assert (stored["status"], stored["decided_by"]) == ("approved", "marta")
    assert "No worker has taken it up" in flat


def test_a2_a_hash_of_something_else_decides_nothing(
    placet: Placet, paused: Approval, status: Callable[[], str]
) -> None:
    """A script that looked earlier says what it saw; if something else is pending now, it is told what."""
    shown = placet("approve", paused.approval_id, "--as", "marta", "--yes", "--hash", "0" * 64, "--json")

    assert (shown.code, shown.error["code"]) == (3, "not_the_same_request")
    assert shown.error["pending_hash"] == paused.payload_hash.hex()
    assert status() == "pending"


@pytest.mark.parametrize("given", ["abc", "0" * 63, "Z" * 64])
def test_a6_a_hash_that_is_none_is_a_mistake_and_leaves_it_answerable(
    placet: Placet, paused: Approval, status: Callable[[], str], given: str
) -> None:
    """What was typed cannot be used: exit code 2, a sentence about --hash, and nothing is decided."""
    for decision in (("approve", "--yes"), ("reject", "--reason", "no")):
        shown = placet(decision[0], paused.approval_id, *decision[1:], "--as", "marta", "--hash", given, "--json")
        assert (shown.code, shown.error["code"]) == (2, "invalid_decision")
        assert "--hash takes the SHA-256" in shown.error["message"]
    assert status() == "pending"


def test_a3_the_same_again_is_answered_and_anything_else_is_told_what_stands(placet: Placet, paused: Approval) -> None:
    """A double click is no error; another decision, and another person, get the stored outcome with who and when."""
    first = placet("approve", paused.approval_id, "--as", "marta", "--yes", "--json")
    again = placet("approve", paused.approval_id, "--as", "marta", "--yes", "--json")
    other = placet("reject", paused.approval_id, "--as", "marta", "--reason", "no", "--json")
    pedro = placet("approve", paused.approval_id, "--as", "pedro", "--yes")

    assert first.json["decision"]["first"] is True
    assert again.code == 0
    assert again.json["decision"] == {**first.json["decision"], "first": False}
    assert (other.code, other.error["code"]) == (3, "already_decided")
    assert other.error["outcome"]["decided_by"] == "marta"
    assert pedro.code == 3
    assert "Approved by marta at 20" in pedro.err
    assert "Your decision was not recorded" in pedro.err


def test_a4_a_decision_is_kept_while_nobody_works(placet: Placet, paused: Approval) -> None:
    """It is stored, and the command says so and how to start somebody."""
    shown = placet("approve", paused.approval_id, "--as", "marta", "--yes", "--json").json

    assert shown["decision"]["status"] == "approved"
    assert shown["next"]["kind"] == "nobody_works"


def test_a5_who_asked_does_not_decide_and_who_lacks_the_duty_neither(
    placet: Placet, paused: Approval, status: Callable[[], str]
) -> None:
    """Told before they read anything; --as is needed, and must be somebody."""
    placet("users", "add", "sam", "--role", "reviewer", "--duty", "support")

    for who, code, exit_code in (("ana", "not_allowed", 3), ("sam", "not_allowed", 3), ("nobody", "unknown_user", 2)):
        for decision in (("approve", "--yes"), ("reject", "--reason", "no")):
            shown = placet(decision[0], paused.approval_id, *decision[1:], "--as", who, "--json")
            assert (shown.code, shown.error["code"]) == (exit_code, code)
    missing = placet("approve", paused.approval_id, "--yes", "--json")
    assert (missing.code, missing.error["code"]) == (2, "nobody_acts")
    assert "PLACET_USER" in missing.error["message"]
    assert placet("inbox", PLACET_USER="marta").out.count("(you may)") == 1
    assert status() == "pending"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ("{", "invalid_decision"),
        ("[]", "invalid_decision"),
        ("null", "invalid_decision"),
        ("{}", "invalid_decision"),
        ('{"refund_due_ids": "lots"}', "invalid_decision"),
        ('{"refund_due_ids": []}', "invalid_decision"),
        ('{"tool": "get_balance"}', "invalid_decision"),
        ('{"stated_total": {"minor": NaN, "currency": "EUR"}}', "invalid_decision"),
        ('{"refund_due_ids": ["R-1\\u0000"]}', "invalid_decision"),
    ],
)
def test_a6_malformed_changes_leave_it_answerable(
    placet: Placet, paused: Approval, status: Callable[[], str], changes: str, code: str
) -> None:
    """Refused with what was wrong; then a good decision works."""
    shown = placet("approve", paused.approval_id, "--as", "marta", "--yes", "--json", "--changes", changes)

    assert (shown.code, shown.error["code"]) == (2, code)
    assert status() == "pending"
    assert placet("approve", paused.approval_id, "--as", "marta", "--yes").code == 0


def test_a6_a_rejection_needs_a_reason(placet: Placet, paused: Approval, status: Callable[[], str]) -> None:
    """An empty one is none."""
    shown = placet("reject", paused.approval_id, "--as", "marta", "--reason", " ", "--json")

    assert (shown.code, shown.error["code"]) == (2, "invalid_decision")
    assert status() == "pending"


def test_a8_an_edit_is_shown_with_its_difference_before_it_counts(
    placet: Placet, paused: Approval, tmp_path: Path
) -> None:
    """The new preview, what was and what would be; its hash is decided; the same edit again is answered."""
    (tmp_path / "changes.json").write_text(TWO)
    shown = placet("approve", paused.approval_id, "--as", "marta", "--yes", "--changes", f"@{tmp_path}/changes.json")
    again = placet("approve", paused.approval_id, "--as", "marta", "--yes", "--changes", TWO, "--json")
    other = placet(
        "approve", paused.approval_id, "--as", "marta", "--yes", "--json", "--changes", '{"stated_total": 1}'
    )

    assert "Refund 2 payments: 467.39 EUR" in shown.out
    assert "4,120.00 EUR" in shown.out.split("The difference")[1].split("467.39 EUR")[0]
    assert "Approved with changes by marta" in shown.out
    assert (again.code, again.json["decision"]["first"]) == (0, False)
    assert (other.code, other.error["code"]) == (3, "already_decided")
    [stored] = placet("turn", "show", paused.turn_id, "--json").json["approvals"]
    assert stored["arguments"]["refund_due_ids"] == ["R-105009", "R-105022"]


def test_a7_when_the_world_has_moved_the_decision_shows_the_new_ask(
    placet: Placet, paused: Approval, house: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reviewer learns at once that nothing was executed, what has changed, and which approval asks now."""

    async def work(opened: House) -> None:
        await fail_three_more(Shop(opened.database, "default"))
        await opened.approve(paused)
        await opened.worker.run_until_idle()

    house(work)
    again = placet("approve", paused.approval_id, "--as", "marta", "--yes")
    [waiting] = placet("inbox", "--json").json["approvals"]
    asked = placet("approve", waiting["approval_id"], "--as", "marta", "--json")

    assert again.code == 0
    assert "Not executed: the world moved meanwhile" in again.out
    assert f"placet approve {waiting['approval_id'][:8]}" in again.out
    assert waiting["difference"]["changed"] == {"due_in_batches": {"shown": 38, "now": 41}}
    assert asked.error["code"] == "confirmation_needed"
    shown = placet("approve", waiting["approval_id"], "--as", "marta").out
    assert "asked for the second time" in shown
    assert "due_in_batches: 38 when it was shown, 41 now" in shown


def test_t3_a_decision_after_the_turn_was_cancelled_changes_nothing(placet: Placet, paused: Approval) -> None:
    """Cancelled from another process by who asked; the late approval is told so, a second cancel too."""
    cancelled = placet("turn", "cancel", str(paused.turn_id)[:8], "--as", "ana", "--reason", "wrong batch", "--json")
    late = placet("approve", paused.approval_id, "--as", "marta", "--yes", "--json")
    again = placet("turn", "cancel", paused.turn_id, "--as", "ana", "--json")

    assert cancelled.json["turn"]["status"] == "cancelled"
    assert (late.code, late.error["outcome"]["status"]) == (3, "cancelled")
    assert (again.code, again.error["code"]) == (3, "turn_ended")


def test_t3_only_who_asked_or_an_operator_cancels(placet: Placet, paused: Approval) -> None:
    """Marta may decide; the turn is not hers."""
    shown = placet("turn", "cancel", paused.turn_id, "--as", "marta", "--json")

    assert (shown.code, shown.error["code"]) == (3, "not_allowed")


def test_t4_a_thread_that_waits_takes_no_new_message(placet: Placet, paused: Approval) -> None:
    """409 in other words: what is pending, and the two ways out; somebody else's thread does not exist."""
    waits = placet("run", "and now?", "--thread", str(paused.thread_id)[:8], "--as", "ana")
    other = placet("run", "hello", "--thread", paused.thread_id, "--as", "pedro", "--json")

    assert waits.code == 3
    assert f"placet approve {str(paused.approval_id)[:8]}" in waits.err
    assert f"placet turn cancel {str(paused.turn_id)[:8]}" in waits.err
    assert (other.code, other.error["code"]) == (2, "unknown_thread")


def test_i4_enter_approves_nothing_at_a_terminal(
    environment: dict[str, str], paused: Approval, status: Callable[[], str]
) -> None:
    """At a real terminal: Enter is no, Ctrl-C is no, yes is yes."""
    command = [PLACET, "approve", str(paused.approval_id), "--as", "marta"]

    enter, said = at_a_terminal(command, environment, ("Type yes", ""))
    stopped, _ = at_a_terminal(command, environment, ("Type yes", "\x03"))
    assert (enter, stopped, status()) == (3, 130, "pending")
    assert "nothing was decided" in said
    yes, _ = at_a_terminal(command, environment, ("Type yes", "yes"))
    assert (yes, status()) == (0, "approved")


def test_i4_where_the_rule_wants_it_the_total_is_typed(
    placet: Placet, house: Callable[..., Approval], paused: Approval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--yes is not enough, a wrong total decides nothing, the right one in any spelling does."""
    content = paused.content
    typed = iter(["yes", "412000", "4120", "4,120.00 EUR"])
    monkeypatch.setattr(decisions, "is_interactive", lambda: True)
    monkeypatch.setattr(decisions, "ask_person", lambda question: next(typed))
    wanted = paused.__class__(**{name: getattr(paused, name) for name in paused.__slots__} | {"confirm": "type-total"})

    for _ in range(2):
        with pytest.raises(decisions.NotConfirmed):
            decisions._confirm(wanted, content, None, yes=False, as_json=False)
    for _ in range(2):
        decisions._confirm(wanted, content, None, yes=False, as_json=False)
    with pytest.raises(opening.NobodyToConfirm, match=r"--yes --total '4,120\.00 EUR'"):
        decisions._confirm(wanted, content, None, yes=True, as_json=True)
    with pytest.raises(decisions.NotConfirmed):
        decisions._confirm(wanted, content, "412000", yes=True, as_json=True)
    decisions._confirm(wanted, content, "4120.00", yes=True, as_json=True)


def test_i4_nobody_approves_where_nobody_is(placet: Placet, paused: Approval, status: Callable[[], str]) -> None:
    """Without a terminal and without --yes it only looks, and says how a script decides."""
    shown = placet("approve", paused.approval_id, "--as", "marta")

    assert shown.code == 2
    assert "add --yes" in shown.err
    assert status() == "pending"


def test_i6_a_hostile_agent_and_a_hostile_customer_stay_in_their_place(
    placet: Placet, paused: Approval, house: Callable[..., Turn]
) -> None:
    """A customer's name that turns the line round and an agent's markup: the reviewer sees what they are."""

    async def ask(opened: House) -> Turn:
        async with opened.database.transaction() as tx:
            await tx.execute("update shop.customers set name = %(name)s", {"name": "\u202eAda [red]4[/red]"})
        await opened.ask("\u202e" + REQUEST)
        return await opened.run(REQUEST)

    turn = house(ask)
    [waiting] = placet("turn", "show", turn.turn_id, "--json").json["approvals"]
    shown = placet("approve", waiting["approval_id"], "--as", "marta")

    assert "⟨U+202E⟩Ada [red]4[/red]" in shown.out
    assert "\u202e" not in shown.out
    assert "\u202e" not in placet("turn", "show", turn.turn_id, "--json").out
    assert "⟨U+202E⟩" in placet("turn", "list").out
