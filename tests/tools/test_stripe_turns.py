"""Refunds through Stripe, through the whole graph: whatever breaks, each line once, and half made is never called absent."""

from datetime import timedelta
from typing import Any

import pytest

from graph import protocol
from placet.record import runs, turns
from placet.record.database import Database
from tests.conftest import Clock
from tests.peers.stripe_server import Fault, StripeServer
from tests.peers.worker import killed, proposes
from tests.steps import TENANT, House, open_test_house
from tests.tools.stripe_account import CALL, NAME, ONE, once, peer

__all__ = ["peer"]


async def opened(database: Database, peer: StripeServer, call: dict[str, Any]) -> House:
    """A house at this Stripe, that looks twice without waiting in between."""
    house = await open_test_house(database, proposes(NAME, call), stripe_api_key=peer.key, stripe_address=peer.address)
    tool = house.services.registry[NAME]
    tool._settle = 0.0  # type: ignore[attr-defined]
    return house


async def approved(house: House) -> turns.Turn:
    """A turn whose one call was approved and is due."""
    turn = await house.run("Refund them")
    [asked] = await house.pending(turn)
    await house.approve(asked)
    return turn


async def test_e7_a_batch_is_asked_approved_and_refunded_once(database: Database, peer: StripeServer) -> None:
    """Five payments are one question; approved, each is refunded once under the effect's own id."""
    house = await opened(database, peer, CALL)

    turn = await house.run("Refund them")
    [asked] = await house.pending(turn)
    before = len(peer.refunds)
    await house.approve(asked)
    await house.worker.run_until_idle()

    [effect] = await house.effects(turn)
    assert (before, asked.preview["title"]) == (0, "Refund 5 payments through Stripe: 50.00 EUR")
    assert once(peer, str(effect.operation_id), 1, 2, 3, 4, 5)
    assert (effect.status, (await house.turn(turn.turn_id)).status) == ("committed", "completed")


@pytest.mark.parametrize("fault", ["cut_before", "cut_after", "500_after", "409"])
async def test_e5_a_single_refund_ends_once_whatever_breaks(
    database: Database, peer: StripeServer, fault: Fault
) -> None:
    """Unknown, looked up, committed or sent again: one refund, and nobody is bothered."""
    house = await opened(database, peer, ONE)
    peer.faults = [fault]

    turn = await house.run("Refund it")

    [effect] = await house.effects(turn)
    assert once(peer, str(effect.operation_id), 1)
    assert (effect.status, turn.status) == ("committed", "completed")


@pytest.mark.parametrize("fault", ["cut_before", "cut_after", "409", "500_after"])
@pytest.mark.parametrize("line", [2, 5])
async def test_e5_a_batch_that_breaks_in_the_middle_is_sent_to_its_end(
    database: Database, peer: StripeServer, fault: Fault, line: int
) -> None:
    """The rest goes out under the same operation, without asking people about what has begun; each line once, one
    receipt."""
    house = await opened(database, peer, CALL)
    turn = await approved(house)
    peer.faults = [*[None] * (line - 1), fault]

    await house.worker.run_until_idle()

    [effect] = await house.effects(turn)
    assert once(peer, str(effect.operation_id), 1, 2, 3, 4, 5)
    assert await house.pending(turn) == []
    assert (effect.status, (await house.turn(turn.turn_id)).status) == ("committed", "completed")


async def test_e5_a_batch_half_made_says_so_and_is_never_called_absent(database: Database, peer: StripeServer) -> None:
    """The timeline has the unknown, what was seen, and the second sending; no event ever says that it did not happen."""
    house = await opened(database, peer, CALL)
    turn = await approved(house)
    peer.faults = [None, None, "cut_after"]

    await house.worker.run_until_idle()

    told = [(event.type, event.payload.get("status")) for event in await house.events(turn)]
    [effect] = await house.effects(turn)
    assert ("effect_reconciled", "partial") in told
    assert ("effect_reconciled", "absent") not in told
    assert (effect.attempts, effect.status) == (2, "committed")
    assert [line["status"] for line in (effect.receipt or {})["lines"]] == ["done"] * 5


@pytest.mark.parametrize("fault", ["401", "429"])
async def test_e4_an_answer_about_the_rest_does_not_speak_for_what_was_made(
    database: Database, peer: StripeServer, fault: Fault
) -> None:
    """Two lines are made; sent again, Stripe lets nobody in. That is no refusal of the whole, nor "nothing sent": it
    stays unknown, for people, with what is known."""
    house = await opened(database, peer, CALL)
    account = house.services.registry[NAME]._account  # type: ignore[attr-defined]
    account._patience = timedelta(seconds=0.2)
    turn = await approved(house)
    peer.faults = [None, "cut_after", *[fault] * 200]

    await house.worker.run_until_idle()

    [effect] = await house.effects(turn)
    assert (effect.status, effect.attempts) == ("unknown", 3)
    assert "2 of 5" in effect.evidence[-1]["said"]
    assert (await house.turn(turn.turn_id)).status == "awaiting_reconciliation"
    assert peer.times().total() == 2


async def test_t3_a_cancelled_turn_sends_no_rest(database: Database, peer: StripeServer, clock: Clock) -> None:
    """Cancelled while half of it is made: nothing more leaves; the model's one result says unknown, the task stays."""
    house = await opened(database, peer, CALL)
    turn = await approved(house)
    peer.faults = [None, None, "die_after"]
    await house.worker.run_until_idle()
    assert (await house.turn(turn.turn_id)).status == "awaiting_reconciliation"
    await peer.revive()

    async with database.transaction() as tx:
        await turns.cancel(tx, house.ana, turn.turn_id, reason="not now", result=protocol.cancelled(NAME))
    await house.worker.run_until_idle()

    [effect], [item] = await house.effects(turn), await house.items(turn)
    assert item.result is not None
    assert (effect.status, item.result["error"]["code"]) == ("unknown", "unknown_do_not_repeat")
    assert "3 of 5" in effect.evidence[-1]["said"]
    assert peer.times().total() == 3


async def test_e5_the_rest_is_not_sent_when_the_keys_are_too_old(
    database: Database, peer: StripeServer, clock: Clock
) -> None:
    """A day later Stripe may have forgotten the keys: half made stays unknown, and people say what happens."""
    house = await opened(database, peer, CALL)
    turn = await approved(house)
    peer.faults = [None, None, "die_after"]
    await house.worker.run_until_idle()
    await peer.revive()
    await clock.advance(23 * 3600 + 1)

    async with database.transaction() as tx:
        await runs.make_due(tx, TENANT, turn.thread_id, turn.turn_id, because="looked again")
    await house.worker.run_until_idle()

    [effect] = await house.effects(turn)
    assert effect.status == "unknown"
    assert "3 of 5" in effect.evidence[-1]["said"]
    assert peer.times().total() == 3


async def test_e8_what_stripe_never_makes_ends_after_three_attempts(database: Database, peer: StripeServer) -> None:
    """A 500 that is kept under the key, and nothing was made: absent, sent again, and given up with a result."""
    house = await opened(database, peer, ONE)
    peer.faults = ["500_before"]

    turn = await house.run("Refund it")

    [effect], [item] = await house.effects(turn), await house.items(turn)
    assert item.result is not None
    assert (effect.status, effect.attempts, item.result["error"]["code"]) == ("absent", 3, "not_done")
    assert not peer.refunds


@pytest.mark.parametrize(
    "point", ["dispatch:committed", "call:before", "call:after", "receipt:commit", "receipt:committed"]
)
async def test_e5_a_killed_worker_refunds_once(
    database: Database, database_url: str, peer: StripeServer, clock: Clock, point: str
) -> None:
    """kill -9 anywhere between dispatch and receipt: looked up by the next worker, each line once in the end."""
    house = await opened(database, peer, CALL)
    turn = await approved(house)

    await killed(point, database_url, NAME, CALL, stripe_api_key=peer.key, stripe_address=peer.address)
    await clock.advance(60)
    await house.worker.run_until_idle()

    [effect] = await house.effects(turn)
    assert once(peer, str(effect.operation_id), 1, 2, 3, 4, 5)
    assert (effect.status, (await house.turn(turn.turn_id)).status) == ("committed", "completed")


@pytest.mark.parametrize("point", ["dispatch_rest:commit", "dispatch_rest:committed"])
async def test_e5_a_worker_killed_between_looking_and_sending_the_rest(
    database: Database, database_url: str, peer: StripeServer, clock: Clock, point: str
) -> None:
    """Half made, looked up, and then killed -9 around the second dispatch: the next worker ends it, each line once."""
    house = await opened(database, peer, CALL)
    turn = await approved(house)
    peer.faults = [None, None, "cut_after"]

    await killed(point, database_url, NAME, CALL, stripe_api_key=peer.key, stripe_address=peer.address)
    assert peer.times().total() == 3
    await clock.advance(60)
    await house.worker.run_until_idle()

    [effect] = await house.effects(turn)
    assert once(peer, str(effect.operation_id), 1, 2, 3, 4, 5)
    assert (effect.status, (await house.turn(turn.turn_id)).status) == ("committed", "completed")
