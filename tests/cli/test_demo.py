"""The demo, as people start it: real worker processes, killed and replaced, and the gateway's own count at the end."""

import re
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from placet.cli.demo.stage import shortened
from placet.cli.demo.witness import Approved, examine
from tests.cli.conftest import PLACET, Ran
from tests.cli.terminal import at_a_terminal
from tools.shop.gateway import Paid

pytestmark = pytest.mark.timeout(240)  # three processes start one after another, perhaps on a busy machine
Placet = Callable[..., Ran]
PAID = "38 refunds, each paid exactly once, 4,120.00 EUR in all."


def processes_of(shown: str) -> list[int]:
    """The ids of the worker processes that the demo says it started."""
    return [int(found) for found in re.findall(r"process (\d+) starts", shown)]


def test_o3_the_demo_is_asked_paused_killed_decided_and_continued(process: Placet) -> None:
    """Without a terminal it approves by itself and says so; every section stands there; nothing it started is left."""
    shown = process("demo")

    assert shown.code == 0, shown.out + shown.err
    sections = re.findall(r"^\d+  (.*?) ─", shown.out, re.MULTILINE)
    assert sections == [
        "A shop, and two people",
        "ana asks: Refund the failed orders of batch NOV-17",
        "What marta sees",
        "The worker is killed while it waits",
        "The decision",
        "Another process goes on",
        "The receipts",
        "The timeline, across all processes",
        "What the model was told",
        "The gateway's own count",
    ]
    assert "Nobody is asked: the demo takes 'approve' by itself." in shown.out
    assert PAID in shown.out
    first, second = processes_of(shown.out)
    assert f"process {first} is killed (-9)" in shown.out
    assert not any(psutil.pid_exists(pid) for pid in (first, second))


def test_a7_drift_asks_the_same_call_again_and_pays_what_was_approved_last(process: Placet) -> None:
    """38 in this call, 41 due now: asked again with the difference, and exactly the 38 are paid."""
    shown = process("demo", "--drift")

    assert shown.code == 0, shown.out + shown.err
    assert "due_in_batches: 38 when it was shown, 41 now" in shown.out
    assert "38 in this call, 41 due now." in shown.out
    assert shown.out.count("by itself.") == 2
    assert len(processes_of(shown.out)) == 3
    assert PAID in shown.out


def test_e5_crash_between_payment_and_receipt_is_looked_up_and_paid_once(process: Placet) -> None:
    """unknown → observed → committed: the third process asks the gateway instead of sending again."""
    shown = process("demo", "--crash")

    assert shown.code == 0, shown.out + shown.err
    assert "is killed (-9) between the payment and its receipt" in shown.out
    assert "is dispatched, no receipt" in shown.out
    assert "dispatched → unknown" in shown.out
    assert "unknown → committed" in shown.out
    assert len(processes_of(shown.out)) == 3
    assert PAID in shown.out


def test_a8_an_edit_pays_what_is_left_of_it(process: Placet) -> None:
    """The largest refund is left out: 37 are paid, and one JSON document says so. Who edits sees the world as it is by
    then, so it has not moved since."""
    shown = process("demo", "--drift", "--decision", "edit", "--json")

    assert shown.code == 0, shown.out + shown.err
    assert shown.json["ok"] is True
    assert (shown.json["gateway"]["count"], shown.json["gateway"]["total"]["text"]) == (37, "3,832.60 EUR")
    assert [decision["decision"] for decision in shown.json["decisions"]] == ["approve_with_changes"]


def test_a10_a_rejection_at_the_prompt_pays_nothing(environment: dict[str, str]) -> None:
    """A person at a terminal: Enter decides nothing, nor does an edit of nothing, or one that is looked at and not
    confirmed; a rejection with its reason does."""
    code, shown = at_a_terminal(
        [PLACET, "demo", "--drift"],
        environment,
        ("[r]eject?", ""),
        ("[r]eject?", "e"),
        ("to leave out", "R-1"),
        ("[r]eject?", "e"),
        ("to leave out", "R-105053"),
        ("Type yes", ""),
        ("[r]eject?", "r"),
        ("Why not?", "refunded by hand"),
    )

    assert code == 0
    assert "The gateway has paid nothing." in shown
    assert "Refund 37 payments: 3,832.60 EUR" in shown
    assert "refunded by hand" in shown


def test_o3_ctrl_c_ends_what_the_demo_started(environment: dict[str, str], tmp_path: Path) -> None:
    """Stopped in the middle, it leaves no process behind."""
    with (tmp_path / "shown").open("wb") as shown:
        demo = subprocess.Popen([PLACET, "demo"], env=environment, stdin=subprocess.DEVNULL, stdout=shown, stderr=shown)
    started: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while not started and time.monotonic() < deadline:
        started = psutil.Process(demo.pid).children()
        time.sleep(0.05)
    demo.send_signal(signal.SIGINT)

    assert demo.wait(60) == 130
    assert started
    assert not any(child.is_running() for child in started)


def test_seed_only_fills_this_house_once(placet: Placet) -> None:
    """For trying by hand: the shop and the two people in the tenant at hand; again, it stays as it is."""
    first, again = placet("demo", "--seed-only", "--json").json, placet("demo", "--seed-only", "--json").json

    assert (first["added"]["customers"], first["added"]["orders"]) == (2_000, 10_000)
    assert set(again["added"].values()) == {0}
    assert [user["user_id"] for user in placet("users", "list", "--json").json["users"]] == ["ana", "marta"]


NOW = datetime(2025, 11, 17, tzinfo=UTC)


@pytest.mark.parametrize(
    ("paid", "says"),
    [
        ([("R-1", 2, 200), ("R-2", 1, 300)], "paid more than once: R-1"),
        ([("R-1", 1, 100)], "approved and not paid: R-2"),
        ([("R-1", 1, 100), ("R-2", 1, 300), ("R-3", 1, 5)], "paid and not approved: R-3"),
        ([("R-1", 1, 100), ("R-2", 1, 301)], "4.01 EUR were paid, 4.00 EUR were approved"),
        ([], "approved and not paid: R-1, R-2"),
    ],
)
def test_e2_the_demos_check_finds_what_is_wrong(paid: list[tuple[str, int, int]], says: str) -> None:
    """Twice, missing, too much, a cent off, nothing at all: the demo would end with exit code 1 and this sentence."""
    ledger = [Paid(ref, times, minor, "EUR", NOW, NOW) for ref, times, minor in paid]

    testimony = examine(ledger, Approved(("R-1", "R-2"), 400, "EUR"), [])

    assert says in testimony.wrong
    assert testimony.as_json()["each_once"] is (says != "paid more than once: R-1")


def test_what_is_long_is_shortened_without_losing_how_much() -> None:
    """A list becomes its length, an amount what people read."""
    assert shortened({"ids": list("abcd"), "rows": [{}] * 9, "few": [1], "sum": {"minor": 5, "currency": "EUR"}}) == {
        "ids": "(4: a, …)",
        "rows": "(9 rows)",
        "few": [1],
        "sum": "0.05 EUR",
    }
