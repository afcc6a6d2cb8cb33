"""What only people can settle: an effect of which nobody knows, a change to take back, a turn that broke off."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from placet.record.approvals import Approval
from placet.record.database import Database
from placet.record.turns import Turn
from tests.cli.conftest import PLACET, Ran
from tests.scripted import Scripted
from tests.steps import House, open_test_house
from tools.shop import Shop
from tools.shop.gateway import Faults

Placet = Callable[..., Ran]


@pytest.fixture
def olga(placet: Placet) -> str:
    placet("users", "add", "olga", "--role", "operator")
    return "olga"


@pytest.fixture
def unknown(placet: Placet, paused: Approval, house: Callable[..., None]) -> str:
    """An effect that was sent; the gateway paid, the answer was lost, and it does not answer when asked."""

    async def lose(opened: House) -> None:
        await Shop(opened.database, "default").gateway.misbehave(Faults(drops_the_answer=True, silent=True))
        await opened.approve(paused)
        await opened.worker.run_until_idle()

    house(lose)
    [effect] = placet("effects", "list", "--status", "unknown", "--json").json["effects"]
    return str(effect["operation_id"])


def test_e6_an_unknown_effect_is_shown_with_its_evidence_and_settled_by_an_operator(
    placet: Placet, paused: Approval, unknown: str, olga: str
) -> None:
    """The inbox and the turn point at it, the effect shows what was looked up; the operator's word is its receipt."""
    inbox = placet("inbox").out
    assert f"placet effects resolve {unknown[:8]}" in inbox
    assert "Nothing waits" not in inbox
    assert f"placet effects resolve {unknown[:8]}" in placet("turn", "show", paused.turn_id).out
    assert "The gateway did not answer" in placet("effects", "show", unknown[:8]).out
    resolved = placet(
        "effects", "resolve", unknown[:8], "--committed", "batch_1", "--reason", "their portal", "--as", olga, "--json"
    )
    again = placet("effects", "resolve", unknown[:8], "--absent", "--reason", "no", "--as", olga, "--json")
    timeline = placet("events", paused.turn_id).out

    assert resolved.json["effect"]["status"] == "committed"
    assert resolved.json["effect"]["receipt"]["external_id"] == "batch_1"
    assert (again.code, again.error["code"]) == (3, "conflict")
    assert "olga says that refund_payments is committed: their portal" in timeline
    assert "said by hand at" in placet("effects", "show", unknown[:8]).out


@pytest.mark.parametrize(
    ("options", "who", "code"),
    [
        (("--absent", "--reason", "x"), "marta", "not_allowed"),
        (("--absent", "--reason", " "), "olga", "invalid_input"),
        (("--committed", " ", "--reason", "x"), "olga", "invalid_input"),
        (("--reason", "x"), "olga", "invalid_input"),
        (("--absent", "--abandon", "--reason", "x"), "olga", "invalid_input"),
    ],
)
def test_e6_nobody_settles_it_in_passing(
    placet: Placet, unknown: str, olga: str, options: tuple[str, ...], who: str, code: str
) -> None:
    """An operator, with a reason, and one word: else it stays unknown."""
    shown = placet("effects", "resolve", unknown, *options, "--as", who, "--json")

    assert shown.error["code"] == code
    assert placet("effects", "show", unknown, "--json").json["effect"]["status"] == "unknown"


def test_e9_a_change_is_taken_back_with_a_receipt_and_money_is_not(
    placet: Placet, paused: Approval, house: Callable[..., Turn]
) -> None:
    """Tags come off again, as an effect of their own; a refund does not come back."""

    async def tag(opened: House) -> Turn:
        await opened.approve(paused)
        await opened.worker.run_until_idle()
        return await opened.run('Tag the failed orders of batch NOV-17 as "checked"')

    turn = house(tag)
    [tagged] = placet("effects", "list", "--turn", turn.turn_id, "--json").json["effects"]
    [refund] = placet("effects", "list", "--turn", paused.turn_id, "--json").json["effects"]
    undone = placet("effects", "undo", tagged["operation_id"][:8], "--as", "ana", "--json")
    money = placet("effects", "undo", refund["operation_id"], "--as", "ana", "--json")

    assert undone.json["effect"]["status"] == "committed"
    assert undone.json["effect"]["operation_id"] != tagged["operation_id"]
    assert (money.code, money.error["code"]) == (3, "not_reversible")


def test_e9_an_undo_that_is_refused_is_not_told_as_done(
    placet: Placet, paused: Approval, house: Callable[..., Turn]
) -> None:
    """The system says no: an error with its reason, and exit code 3, each time that it is commanded."""

    async def tag(opened: House) -> Turn:
        turn = await opened.run('Tag the failed orders of batch NOV-17 as "checked"')
        for table in ("tags", "operations"):  # the shop forgot what it did
            await opened.rows(f"delete from shop.{table} returning operation_id")
        return turn

    turn = house(tag)
    [tagged] = placet("effects", "list", "--turn", turn.turn_id, "--json").json["effects"]
    for _ in range(2):
        refused = placet("effects", "undo", tagged["operation_id"], "--as", "ana", "--json")
        assert (refused.code, refused.error["code"], refused.error["status"]) == (3, "undo_refused", "refused")


def test_t2_a_failed_turn_is_retried_and_a_waiting_one_is_not(
    placet: Placet, paused: Approval, database_url: str
) -> None:
    """Reopened where it broke off, by who asked; anything else is a conflict."""

    async def fail() -> Any:
        async with Database(database_url) as database:
            opened = await open_test_house(database, Scripted(RuntimeError("the model is gone")))
            return await opened.run("anything")

    failed = asyncio.run(fail())
    assert failed.status == "failed"
    assert f"placet turn retry {str(failed.turn_id)[:8]}" in placet("turn", "show", failed.turn_id).out
    assert placet("turn", "retry", failed.turn_id, "--as", "marta", "--json").error["code"] == "not_allowed"
    assert placet("turn", "retry", str(failed.turn_id)[:8], "--as", "ana", "--json").json["turn"]["status"] == "created"
    assert placet("turn", "retry", paused.turn_id, "--as", "ana", "--json").error["code"] == "conflict"


def test_g8_migrating_is_for_operators_and_for_orphans(placet: Placet, paused: Approval, olga: str) -> None:
    """Who asked may not; a turn without an orphaned call has nothing to migrate."""
    assert placet("turn", "migrate", paused.turn_id, "--as", "ana", "--json").error["code"] == "not_allowed"
    assert placet("turn", "migrate", paused.turn_id, "--as", olga, "--json").error["code"] == "conflict"


def test_o4_several_worker_processes_end_with_their_parent(environment: dict[str, str]) -> None:
    """Two children under one parent, which passes SIGTERM on and waits for them."""
    with subprocess.Popen([PLACET, "worker", "--processes", "2"], env=environment, stderr=subprocess.DEVNULL) as parent:
        children: list[psutil.Process] = []
        deadline = time.monotonic() + 60
        while len(children) < 2 and time.monotonic() < deadline:
            children = psutil.Process(parent.pid).children()
            time.sleep(0.05)
        os.kill(parent.pid, signal.SIGTERM)
        parent.wait(60)
    assert len(children) == 2
    assert not any(child.is_running() for child in children)
