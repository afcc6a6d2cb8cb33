"""Looking at turns, effects, events and people: what is printed, for whom, and which row an id means."""

import json
import re
from collections.abc import Callable
from importlib import metadata
from typing import Any
from uuid import UUID

import pytest

from placet.record import lookup
from placet.record.approvals import Approval
from placet.record.database import Transaction
from tests.cli.conftest import PLACET, REQUEST, Ran
from tests.cli.terminal import at_a_terminal
from tests.steps import House

Placet = Callable[..., Ran]


def test_looking_at_an_empty_house_says_what_to_do(placet: Placet) -> None:
    """No table without rows; the way to the first row instead."""
    assert "placet users add" in placet("users", "list").out
    assert "placet run" in placet("turn", "list").out
    assert "Nothing waits" in placet("inbox").out
    assert "Nothing was sent" in placet("effects", "list").out


@pytest.mark.parametrize(
    ("command", "keys"),
    [("users list", "users"), ("turn list", "turns"), ("inbox", "approvals unknown"), ("effects list", "effects")],
)
def test_json_is_one_document_and_nothing_else(placet: Placet, command: str, keys: str) -> None:
    """Also where there is nothing."""
    assert placet(*command.split(), "--json").json == {key: [] for key in keys.split()}


@pytest.mark.parametrize(("what", "one_of"), [("turn", "awaiting_approval"), ("effects", "unknown")])
def test_t5_a_status_that_does_not_exist_is_not_an_empty_list(placet: Placet, what: str, one_of: str) -> None:
    """A typo would look like "nothing is stuck"; it is refused, with the statuses there are."""
    shown = placet(what, "list", "--status", f"{one_of}x", "--json")

    assert (shown.code, shown.error["code"]) == (2, "usage")
    assert f"'{one_of}'" in shown.error["message"]
    assert placet(what, "list", "--status", one_of).code == 0


def test_a5_people_are_added_once_and_listed(placet: Placet) -> None:
    """With roles and duties; the same id again is a conflict, a role that does not exist a mistake."""
    added = placet("users", "add", "marta", "--role", "reviewer", "--duty", "finance", "--name", "Marta", "--json")
    again = placet("users", "add", "marta", "--role", "reviewer", "--json")
    wrong = placet("users", "add", "pedro", "--role", "boss", "--json")

    assert added.json["user"]["duties"] == ["finance"]
    assert (again.code, again.error["code"]) == (3, "conflict")
    assert (wrong.code, wrong.error["code"]) == (2, "invalid_input")
    for given, field in ((("bob smith",), "user_id"), (("bob", "--locale", "fr"), "locale")):
        odd = placet("users", "add", *given, "--role", "requester", "--json")
        assert (odd.code, odd.error["code"], odd.error["field"]) == (2, "invalid_input", field)
        assert given[-1] in odd.error["message"]
    assert "finance" in placet("users", "list").out


def test_t5_one_turn_says_what_is_finished_what_is_next_and_where_it_is_stuck(placet: Placet, paused: Approval) -> None:
    """For people in a sentence, with the command that goes on; for a machine complete."""
    shown = placet("turn", "show", str(paused.turn_id)[:8])
    document = placet("turn", "show", paused.turn_id, "--json").json

    assert "1 of 2 calls finished" in shown.out
    assert "awaiting approval for" in shown.out
    assert f"placet approve {str(paused.approval_id)[:8]}" in shown.out
    assert [item["status"] for item in document["items"]] == ["completed", "awaiting_approval"]
    assert document["approvals"][0]["payload_hash"] == paused.payload_hash.hex()
    assert document["turn"]["message"] == REQUEST
    assert "digest" not in document["approvals"][0]


def test_t5_a_turn_says_whether_anybody_works_on_it(
    placet: Placet, paused: Approval, house: Callable[..., Any]
) -> None:
    """Nobody while no worker runs, a worker by its name, one that is not heard of any more; and how to start another."""

    async def approve(opened: House) -> None:
        await opened.approve(paused)
        await opened.rows("update runs set due_at = clock() - interval '1 minute' where status = 'due' returning 1")

    async def claim(opened: House) -> None:
        await opened.worker.claim()

    async def die(opened: House) -> None:
        await opened.rows("update threads set lease_until = clock() - interval '2 minutes' returning 1")

    seen = []
    for work in (approve, claim, die):
        house(work)
        seen.append(placet("turn", "show", paused.turn_id).out)
    whole = placet("turn", "show", paused.turn_id, "--json").json

    assert "nobody has taken it up for 1 min; is a worker running? placet worker" in seen[0]
    assert re.search(r"worker \S+ works on it", seen[1])
    assert re.search(r"worker \S+ has not been heard of for 2 min; the next worker takes it up: placet worker", seen[2])
    assert (whole["run"]["status"], whole["run"]["lapsed"]) == ("running", True)


def test_i1_on_a_narrow_terminal_ids_and_risks_stay_whole(
    environment: dict[str, str], placet: Placet, paused: Approval
) -> None:
    """On 80 columns long words break; what people copy, and what tells them the risk, does not."""
    key = placet("users", "key", "ana", "--json").json["key_id"]
    for arguments, whole in (
        (("inbox",), f"{str(paused.approval_id)[:8]}"),
        (("inbox",), "! irreversible"),
        (("users", "keys"), key),
        (("turn", "show", str(paused.turn_id)), "awaiting approval"),
    ):
        code, shown = at_a_terminal([PLACET, *arguments], {**environment, "TERM": "dumb", "NO_COLOR": "1"}, columns=80)
        assert code == 0
        assert any(whole in line for line in shown.splitlines()[1:]), shown
        assert max(map(len, shown.splitlines())) <= 80


def test_i1_columns_stand_apart_where_nobody_looks(placet: Placet, paused: Approval) -> None:
    """Two spaces between columns, so that a script can tell them from the words in one."""
    head, row = placet("turn", "list").out.splitlines()

    assert len(re.split(r" {2,}", head)) == len(re.split(r" {2,}", row)) == 6


def test_i1_the_inbox_says_what_for_whom_and_how_long(placet: Placet, paused: Approval) -> None:
    """Verb and amount, risk in words, who asked, when it expires, and whether the person at the keyboard may decide."""
    marta = placet("inbox", "--as", "marta").out
    ana = placet("inbox", "--as", "ana").out

    assert "Refund 38 payments: 4,120.00 EUR" in marta
    assert "! irreversible" in marta
    assert re.search(r"in 2[34] h", marta)
    assert "finance (you may)" in marta
    assert "finance (your own request)" in ana
    [listed] = placet("inbox", "--json").json["approvals"]
    assert listed["approval_id"] == str(paused.approval_id)
    assert len(listed["arguments"]["refund_due_ids"]) == 38


def test_v1_events_are_lines_from_any_number(placet: Placet, paused: Approval) -> None:
    """One JSON object per line, in order, without gaps; for people one line each."""
    lines = [json.loads(line) for line in placet("events", paused.turn_id, "--json").out.splitlines()]
    later = placet("events", paused.turn_id, "--json", "--after", "5").out.splitlines()
    shown = placet("events", paused.turn_id).out.splitlines()

    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert [json.loads(line)["seq"] for line in later] == list(range(6, len(lines) + 1))
    assert len(shown) == len(lines)
    assert "pauses: awaiting approval" in shown[-1]


def test_ids_are_found_by_eight_digits_and_never_guessed(placet: Placet, paused: Approval) -> None:
    """Too short, no id at all, nobody's: each says so, with the command that lists them."""
    turn = str(paused.turn_id)

    for typed, code in (
        (turn[:7], "not_an_id"),
        ("zz" * 6, "not_an_id"),
        ("", "not_an_id"),
        ("f" * 32, "unknown_turn"),
    ):
        shown = placet("turn", "show", typed, "--json")
        assert (shown.code, shown.error["code"]) == (2, code)
        assert "placet turn list" in shown.error["message"]
    assert placet("turn", "show", turn[:13].upper(), "--json").json["turn"]["turn_id"] == turn
    assert placet("approve", turn[:8], "--as", "marta", "--json").error["code"] == "unknown_approval"
    assert placet("effects", "show", turn[:8], "--json").error["code"] == "unknown_effect"


def test_an_ambiguous_id_lists_what_it_could_mean(
    placet: Placet, paused: Approval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows begin alike: neither is taken."""
    both = [UUID(int=1), UUID(int=2)]

    async def two(tx: Transaction, tenant: str, kind: str, digits: str) -> list[UUID]:
        return both

    monkeypatch.setattr(lookup, "beginning_with", two)
    shown = placet("turn", "show", "00000000", "--json")

    assert (shown.code, shown.error["code"], shown.error["ids"]) == (2, "ambiguous_id", [str(one) for one in both])


def test_ids_of_another_tenant_are_not_found(placet: Placet, paused: Approval) -> None:
    """The answer is the same as for one that does not exist (A5)."""
    shown = placet("turn", "show", paused.turn_id, "--json", PLACET_TENANT="somebody-else")

    assert shown.error["code"] == "unknown_turn"


def test_e3_an_effect_is_shown_with_its_receipt_line_by_line(
    placet: Placet, paused: Approval, house: Callable[..., None]
) -> None:
    """What ran, what allowed it, and what the gateway answered for each refund."""

    async def approve(opened: House) -> None:
        await opened.approve(paused)
        await opened.worker.run_until_idle()

    house(approve)
    [effect] = placet("effects", "list", "--json").json["effects"]
    shown = placet("effects", "show", effect["operation_id"][:8]).out

    assert effect["status"] == "committed"
    assert len(effect["receipt"]["lines"]) == 38
    assert "4,120.00 EUR" in shown
    assert effect["receipt"]["lines"][37]["external_id"] in shown
    assert f"approval {str(paused.approval_id)[:8]}" in shown


def test_p7_rules_are_read_as_sentences_and_tried_on_one_call(placet: Placet, paused: Approval) -> None:
    """`show` prints them, `check` proves them, `explain` says what they say of a call and which facts they saw."""
    assert "Otherwise, if `facts.total > 100000`, finance decides (refund-large)" in placet("policy", "show").out
    assert placet("policy", "check", "--json").json["rules"]["refund_payments"] > 1
    ids = json.dumps({"refund_due_ids": paused.content["arguments"]["refund_due_ids"]})
    asks = placet("policy", "explain", "refund_payments", ids, "--json").json
    one = placet(
        "policy", "explain", json.dumps({"tool": "get_balance", "arguments": {"batch": "NOV-17"}}), "--json"
    ).json

    assert (asks["verdict"]["kind"], asks["verdict"]["rule"]) == ("ask", "refund-large")
    assert asks["facts"]["total"] == 412_000
    assert one["verdict"]["kind"] == "auto"
    assert "total = 4,120.00 EUR" in placet("policy", "explain", "refund_payments", ids).out


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (("refund", "{}"), "unknown_tool"),
        (("refund_payments", "{"), "not_a_call"),
        (("refund_payments", "[]"), "not_a_call"),
        (('{"arguments": {}}',), "not_a_call"),
        (("refund_payments", '{"refund_due_ids": "R-1"}'), "invalid_arguments"),
    ],
)
def test_p6_a_call_that_cannot_be_read_is_said_so(placet: Placet, call: tuple[str, ...], code: str) -> None:
    """Nothing is explained about a call that could not be made."""
    shown = placet("policy", "explain", *call, "--json")

    assert (shown.code, shown.error["code"]) == (2, code)


def test_help_says_the_exit_codes_and_a_typo_is_usage(placet: Placet) -> None:
    """2 for what cannot be read as a command; JSON where JSON was asked for."""
    assert "130 stopped by Ctrl-C" in " ".join(placet("--help").out.split())
    assert placet("--version").out.strip() == metadata.version("placet")
    typo = placet("inbx", "--json")
    missing = placet("reject", "12345678")

    assert (typo.code, typo.error["code"]) == (2, "usage")
    assert (missing.code, missing.out) == (2, "")
    assert "--reason" in missing.err
