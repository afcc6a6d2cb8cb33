"""What the self-test proves: one function per promise, which says what it has seen, or raises `Broken`."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.types import Command

from graph.advance import advance
from graph.deciding import decide
from placet.record import approvals, effects, events, items, runs
from placet.record.canonical import canonical, parse, sha256
from placet.record.checkpointer import FencedSaver, config_of
from placet.record.decisions import Decided
from placet.record.errors import PlacetError, StaleEpoch
from placet.record.runs import Owned
from placet.record.turns import Turn
from placet.selftest.killed import killed
from placet.selftest.stage import LEASE, Broken, Pay, Stage

ROUNDS = 8  # of two people at the same instant


async def two_people_decide(stage: Stage) -> str:
    """One decision stands, the other person is told which; what was approved happens once."""
    approved = 0
    for _ in range(ROUNDS):
        turn, payee, asked = await stage.paused()
        answers = await asyncio.gather(
            stage.decide(asked, "approve", stage.marta),
            stage.decide(asked, "reject", stage.pedro, reason="not this one"),
            return_exceptions=True,
        )
        decided = [answer for answer in answers if isinstance(answer, Decided)]
        late = [answer for answer in answers if isinstance(answer, PlacetError) and answer.code == "already_decided"]
        if (len(decided), len(late)) != (1, 1):
            raise Broken(f"two people decided at once, and the answers were {answers}")
        await asyncio.gather(stage.go_on(turn), stage.go_on(turn))
        paid = stage.bank.payments(payee)
        if paid != ([700] if decided[0].status == "approved" else []):
            raise Broken(f"{decided[0].status}, and the bank paid {paid}")
        approved += len(paid)
    return f"{ROUNDS} times one decision and one 409; {approved} approved and paid once, the others not at all"


async def forged_decisions(stage: Stage) -> str:
    """Another hash, the requester, an unknown id, nobody's resume: refused, and still answerable by the right person."""
    turn, payee, asked = await stage.paused()
    other = replace(asked, payload_hash=sha256(b"something else"))
    await stage.refused("another hash", stage.decide(other, "approve", stage.marta), "not_the_same_request")
    await stage.refused("the requester", stage.decide(asked, "approve", stage.ana), "not_allowed")
    unknown = replace(asked, approval_id=uuid4())
    await stage.refused("an unknown id", stage.decide(unknown, "approve", stage.marta), "unknown_approval")
    raw: Any = "approve"
    malformed = decide(stage.services, asked.approval_id, raw, stage.marta, channel="selftest")
    await stage.refused("a bare word", malformed, "invalid_decision")

    async with stage.database.transaction() as tx:
        await runs.make_due(tx, stage.tenant, turn.thread_id, turn.turn_id, because="resume")
    owned = await _claimed(stage, turn)
    await advance(stage.services, stage.worker.graph, owned, resume=Command(resume={"kind": "approve"}))
    if stage.bank.payments(payee) or (await stage.pending(turn)).approval_id != asked.approval_id:
        raise Broken("a resume that nobody signed decided the approval")
    await stage.decide(asked, "approve", stage.marta)
    await stage.go_on(turn)
    return _paid_once(stage, payee, "4 forged decisions and an unsigned resume refused; the right one paid once")


async def crash_before_the_receipt(stage: Stage) -> str:
    """A worker process is killed after the payment and before its receipt: looked up by the next one, paid once."""
    turn, payee, asked = await stage.paused()
    await stage.decide(asked, "approve", stage.marta)
    code = await killed(stage, turn)
    if (paid := stage.bank.payments(payee)) != [700] or code != -9:
        raise Broken(f"the worker ended with {code} after the bank paid {paid}; it was to be killed after one payment")
    async with asyncio.timeout(30):
        while (await stage.go_on(turn)).status != "completed":  # noqa: ASYNC110  # the dead worker's lease has to lapse
            await asyncio.sleep(0.2)
    told = await _told(stage, turn)
    if told.count("effect_reconciled") != 1 or told.count("effect_unknown") != 1:
        raise Broken(f"paid {stage.bank.payments(payee)}, but the timeline says {told}")
    return _paid_once(
        stage, payee, "killed after the payment; found by the next worker: unknown → observed → committed"
    )


async def changed_state(stage: Stage) -> str:
    """The amount is changed in the run's state after the approval: the stored call is asked again, nothing is paid."""
    turn, payee, asked = await stage.paused()
    async with stage.database.transaction() as tx:
        await runs.make_due(tx, stage.tenant, turn.thread_id, turn.turn_id, because="selftest")
    owned = await _claimed(stage, turn)
    graph = stage.worker.graph.copy(update={"checkpointer": FencedSaver(stage.database, owned)})
    [task] = (await graph.aget_state(cast("RunnableConfig", config_of(owned)), subgraphs=True)).tasks
    inner: Any = task.state
    call = {**inner.values["call"], "arguments": {"to": payee, "minor": 99_999}}
    await graph.aupdate_state(inner.config, {"call": call})
    async with stage.database.transaction() as tx:
        await runs.release(tx, owned, outcome="selftest")
    await stage.decide(asked, "approve", stage.marta)
    await stage.go_on(turn)
    if paid := stage.bank.payments(payee):
        raise Broken(f"the state said 99999 where 700 was approved, and the bank paid {paid}")
    again = await stage.pending(turn)
    if again.ask != asked.ask + 1 or again.content["arguments"] != asked.content["arguments"]:
        raise Broken(f"asked again about {again.content['arguments']}")
    await stage.decide(again, "approve", stage.marta)
    await stage.go_on(turn)
    return _paid_once(stage, payee, "700 became 99999 in the state: not paid, asked again about 700, then paid once")


async def changed_row(stage: Stage) -> str:
    """The amount is changed in the approval's row: the row refuses, and one put in its place is not believed."""
    turn, payee, asked = await stage.paused()
    await stage.decide(asked, "approve", stage.marta)
    forged = canonical({**parse(asked.payload), "arguments": {"to": payee, "minor": 99_999}})
    rewrite = "update approval_revisions set payload = %(payload)s, payload_hash = %(hash)s where approval_id = %(id)s"
    values = {"id": asked.approval_id, "payload": forged, "hash": sha256(forged)}
    try:
        async with stage.database.transaction() as tx:
            await tx.execute(rewrite, values)
    except psycopg.Error:
        pass
    else:
        raise Broken("what was shown could be rewritten in its row")
    async with stage.database.transaction() as tx:
        await approvals.store_revision(
            tx, asked.approval_id, 1, approvals.Revision(forged, asked.preview, asked.precondition), made_by="nobody"
        )
        await tx.execute(
            "update approvals set revision = 1, payload_hash = %(hash)s where approval_id = %(id)s", values
        )
    await stage.go_on(turn)
    async with stage.database.read() as tx:
        [call] = await items.of_turn(tx, stage.tenant, turn.turn_id)
    if paid := stage.bank.payments(payee):
        raise Broken(f"a revision that nobody signed was executed: the bank paid {paid}")
    if call.status == "completed":
        raise Broken("a call that never ran is told as completed")
    return f"the row could not be changed; one put beside it was not believed: the call is {call.status}, nothing paid"


async def stale_epoch(stage: Stage) -> str:
    """A worker lost its thread to another: checkpoint, event, effect and release are refused, and the other finishes."""
    turn, payee = await stage.ask(30)
    lost = await _claimed(stage, turn, lease=timedelta(milliseconds=1))
    async with asyncio.timeout(30):
        while (now := await _claim(stage, turn, LEASE)) is None:  # noqa: ASYNC110  # the lease has to lapse
            await asyncio.sleep(0.02)

    await stage.refused("a checkpoint", _checkpoint(stage, lost), StaleEpoch.code)
    await stage.refused("an event", _event(stage, lost), StaleEpoch.code)
    await advance(stage.services, stage.worker.graph, now)
    await stage.refused("an effect", _dispatch(stage, lost), StaleEpoch.code)
    await stage.refused("a release", _release(stage, lost), StaleEpoch.code)
    return _paid_once(stage, payee, "4 writes of the worker that lost its thread refused; the other one finished")


async def audit_is_final(stage: Stage) -> str:
    """What has been decided cannot be rewritten by the role that runs."""
    for verb in ("update audit set actor = 'nobody'", "delete from audit"):
        try:
            async with stage.database.transaction() as tx:
                await tx.execute(cast("Any", f"{verb} where tenant_id = %(tenant)s"), {"tenant": stage.tenant})
        except psycopg.Error:
            continue
        raise Broken(f"the role that runs may {verb.split()[0]} audit rows")
    async with stage.database.read() as tx:
        count = await tx.fetch_value(
            "select count(*) from audit where tenant_id = %(tenant)s", {"tenant": stage.tenant}
        )
    return f"{count} rows of this self-test can be neither changed nor deleted"


PROMISES: dict[str, Callable[[Stage], Awaitable[str]]] = {
    "Two people decide at once: one decision": two_people_decide,
    "A forged decision counts for nothing": forged_decisions,
    "Killed between payment and receipt: paid once": crash_before_the_receipt,
    "Arguments changed in the state: not executed": changed_state,
    "Arguments changed in the row: not executed": changed_row,
    "A worker that lost its thread writes nothing": stale_epoch,
    "The audit log cannot be changed": audit_is_final,
}


def _paid_once(stage: Stage, payee: str, seen: str) -> str:
    if len(paid := stage.bank.payments(payee)) != 1:
        raise Broken(f"{seen}; but the bank paid {paid}")
    return seen


async def _told(stage: Stage, turn: Turn) -> list[str]:
    async with stage.database.read() as tx:
        told = await events.of_thread(tx, stage.tenant, turn.thread_id, turn_id=turn.turn_id)
    return [event.type for event in told]


async def _claim(stage: Stage, turn: Turn, lease: timedelta) -> Owned | None:
    async with stage.database.transaction() as tx:
        return await runs.claim(tx, stage.tenant, owner="selftest", lease=lease, thread_id=turn.thread_id)


async def _claimed(stage: Stage, turn: Turn, *, lease: timedelta = LEASE) -> Owned:
    if (owned := await _claim(stage, turn, lease)) is None:
        raise Broken("a run that is due could not be claimed")
    return owned


async def _checkpoint(stage: Stage, owned: Owned) -> None:
    config = cast("RunnableConfig", config_of(owned, checkpoint_ns=""))
    await FencedSaver(stage.database, owned).aput(config, empty_checkpoint(), {}, {})


async def _event(stage: Stage, owned: Owned) -> None:
    async with stage.database.transaction() as tx:
        await events.append(tx, owned.thread_id, "tool_progress", {}, turn_id=owned.turn_id, epoch=owned.epoch)


async def _dispatch(stage: Stage, owned: Owned) -> None:
    async with stage.database.transaction() as tx:
        [call] = await items.of_turn(tx, stage.tenant, owned.turn_id)
        raw = call.arguments or b""
        await effects.dispatch(
            tx, stage.services.keys, owned, call, effect_class=Pay.effect_class, arguments=raw, approval=None
        )


async def _release(stage: Stage, owned: Owned) -> None:
    async with stage.database.transaction() as tx:
        await runs.release(tx, owned, outcome="selftest")
