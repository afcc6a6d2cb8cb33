"""Several processes at once: one asks, one works, one decides; none of them has to wait for another's life."""

import json
import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from placet.record.approvals import Approval
from tests.cli.conftest import PLACET, REQUEST, Ran
from tests.cli.terminal import CTRL_C, at_a_terminal

Placet = Callable[..., Ran]


@pytest.fixture
def shop(process: Placet) -> None:
    assert process("demo", "--seed-only", "--json").json["added"]["orders"] == 10_000


@pytest.mark.usefixtures("shop", "worker")
def test_a4_asked_worked_on_decided_and_done_by_four_processes(process: Placet) -> None:
    """`run` shows the timeline until it waits, `approve` shows the receipt, `events --follow` ends with the turn."""
    asked = process("run", REQUEST, "--as", "ana", PLACET_DATABASE_WAIT="60")
    [waiting] = process("inbox", "--json").json["approvals"]
    decided = process("approve", waiting["approval_id"], "--as", "marta", "--yes", "--json")
    followed = process("events", waiting["turn_id"], "--follow", "--json").out.splitlines()

    assert asked.code == 0, asked.err
    assert decided.json["next"]["kind"] == "executed"
    assert decided.json["next"]["receipt"]["summary"] == "Refunded 38 of 38 payments: 4,120.00 EUR."
    assert json.loads(followed[-1])["type"] == "turn_completed"
    [turn] = process("turn", "list", "--json").json["turns"]
    assert turn["status"] == "completed"


@pytest.mark.usefixtures("shop")
def test_o3_without_a_worker_it_is_stored_said_and_done_here_on_demand(process: Placet) -> None:
    """Nobody takes it up: it says how to start somebody, exit code 0, nothing lost. `--here` needs nobody."""
    alone = process("run", "Refund order O-105009", "--as", "ana")
    here = process("run", REQUEST, "--as", "ana", "--here", "--json")
    at_once = process("run", REQUEST, "--as", "ana", "--no-wait", "--json")

    assert alone.code == 0
    assert "Nobody has taken it up within 3 seconds" in alone.out
    assert "placet worker" in alone.out
    assert here.json["turn"]["status"] == "awaiting_approval"
    assert len(here.json["approvals"]) == 1
    assert at_once.json["turn"]["status"] == "created"


def test_o3_ctrl_c_stops_watching_and_nothing_else(environment: dict[str, str], placet: Placet) -> None:
    """Who watches may leave: the turn is stored, and it is said how to see it again."""
    placet("users", "add", "ana", "--role", "requester")

    code, shown = at_a_terminal([PLACET, "run", REQUEST, "--as", "ana"], environment, ("Working", CTRL_C))

    assert code == 130
    assert "the turn goes on" in shown
    [turn] = placet("turn", "list", "--json").json["turns"]
    assert f"placet turn show {turn['turn_id'][:8]}" in shown
    assert turn["status"] == "created"


def test_o4_a_worker_ends_when_it_is_told_to(environment: dict[str, str]) -> None:
    """SIGTERM, and its log is JSON lines on stdout when asked for."""
    with subprocess.Popen(
        [PLACET, "worker", "--json", "--concurrency", "2"], env=environment, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        ready = json.loads(running.stdout.readline())
        os.kill(running.pid, signal.SIGTERM)
        assert running.wait(20) == 0
    assert (ready["event"], ready["concurrency"]) == ("worker_ready", 2)


def test_a10_a_rejection_tells_the_agent_and_the_reviewer(
    placet: Placet, process: Placet, paused: Approval, worker: "subprocess.Popen[bytes]"
) -> None:
    """The reason arrives; nothing is paid."""
    decided = process("reject", paused.approval_id, "--as", "marta", "--reason", "paid by hand", "--json")

    assert decided.json["decision"]["status"] == "rejected"
    assert decided.json["next"]["kind"] in ("told", "nobody_works")  # a slow machine may not have come to it
    placet("events", paused.turn_id, "--follow")
    [_, item] = placet("turn", "show", paused.turn_id, "--json").json["items"]
    assert (item["status"], item["result"]["reason"]) == ("rejected", "paid by hand")
    assert placet("effects", "list", "--json").json == {"effects": []}
