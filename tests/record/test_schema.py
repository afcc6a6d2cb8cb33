"""The schema refuses by itself what no code may do, whoever writes and however."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from placet.record import canonical
from placet.record.database import Database
from tests.outside import World
from tests.scripted import calls
from tests.steps import House, outside_house

PAY = ("pay", {"to": "bo", "minor": 700})


async def refused(database: Database, sql: str, params: Mapping[str, Any] | None = None) -> str:
    """The SQLSTATE and the name or reason with which a statement is refused; fails when it is not."""
    with pytest.raises(psycopg.Error) as error:
        async with database.transaction() as tx:
            await tx.execute(sql, params)  # type: ignore[arg-type]
    diag = error.value.diag
    return f"{diag.sqlstate} {diag.constraint_name or diag.message_detail or diag.message_primary}"


async def waiting(database: Database, world: World) -> tuple[House, Any, Any]:
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    return house, turn, asked


INSERT_EFFECT = """
    insert into effects (operation_id, tenant_id, thread_id, turn_id, item_id, tool, effect_class, arguments,
                         arguments_hash, approval_id, revision, payload_hash, epoch, key_id, digest)
    select gen_random_uuid(), i.tenant_id, i.thread_id, i.turn_id, i.item_id, i.tool, 'money.out', %(arguments)s,
           coalesce(%(hash)s, sha256(%(arguments)s)), %(approval)s, %(revision)s, %(payload_hash)s, t.epoch, 'k1', %(digest)s
      from plan_items i join threads t using (thread_id)
     where i.item_id = %(item)s
"""


async def effect_of(house: House, asked: Any, **change: Any) -> dict[str, Any]:
    """Parameters of an effect exactly as it was approved, but for `change`."""
    return {
        "arguments": canonical.canonical(asked.content["arguments"]),
        "hash": None,
        "approval": asked.approval_id,
        "revision": asked.revision,
        "payload_hash": asked.payload_hash,
        "item": asked.item_id,
        "digest": b"d" * 32,
        **change,
    }


async def run(house: House, turn: Any) -> None:
    await house.rows("update turns set status = 'running' where turn_id = %(t)s returning turn_id", t=turn.turn_id)


async def test_e1_no_effect_without_assent(database: Database, world: World) -> None:
    """Pending, or with other arguments, or another revision, or without naming its approval: refused with why."""
    house, turn, asked = await waiting(database, world)
    await run(house, turn)
    none = {"approval": None, "revision": None, "payload_hash": None}
    assert await refused(database, INSERT_EFFECT, await effect_of(house, asked)) == "PL002 not_approved"
    assert await refused(database, INSERT_EFFECT, await effect_of(house, asked, **none)) == "PL002 no_verdict"

    await house.approve(asked)
    other = canonical.canonical({**asked.content["arguments"], "minor": 99_999})
    for change, why in (
        ({"arguments": other}, "PL002 not_what_was_approved"),
        ({"revision": 1}, "PL002 not_approved"),
        ({"payload_hash": b"x" * 32}, "PL002 not_approved"),
        (none, "PL002 no_verdict"),
        ({"approval": uuid4()}, "PL002 not_approved"),
        ({"revision": None}, "PL002 not_approved"),
        ({"hash": b"x" * 32}, "23514 e1_the_hash_is_that_of_the_bytes"),
        ({"digest": b"short"}, "23514 effects_digest_check"),
    ):
        assert await refused(database, INSERT_EFFECT, await effect_of(house, asked, **change)) == why


async def test_e1_no_effect_of_a_turn_that_does_not_run(database: Database, world: World) -> None:
    """Approved, but the turn waits, or was cancelled: nothing leaves."""
    house, turn, asked = await waiting(database, world)
    await house.approve(asked)
    assert await refused(database, INSERT_EFFECT, await effect_of(house, asked)) == "PL002 turn_not_running"
    await house.cancel(turn)
    assert await refused(database, INSERT_EFFECT, await effect_of(house, asked)) == "PL002 turn_not_running"


async def test_e1_no_effect_after_the_expiry(database: Database, world: World, clock: Any) -> None:
    """The approval was good yesterday."""
    house, turn, asked = await waiting(database, world)
    await house.approve(asked)
    await run(house, turn)
    await clock.advance(25 * 3600)
    assert await refused(database, INSERT_EFFECT, await effect_of(house, asked)) == "PL002 approval_expired"


async def test_e1_no_effect_of_a_call_that_has_its_result(database: Database, world: World) -> None:
    """Automatic, but deferred: it has its result, so it never runs."""
    house = await outside_house(database, world, calls(PAY, ("label", {"name": "x"})))
    turn = await house.run()
    await run(house, turn)
    _, deferred = await house.items(turn)
    assert deferred.status == "deferred"
    params = {
        "arguments": deferred.arguments,
        "hash": None,
        "approval": None,
        "revision": None,
        "payload_hash": None,
        "item": deferred.item_id,
        "digest": b"d" * 32,
    }
    assert await refused(database, INSERT_EFFECT, params) == "PL002 call_ended"


async def test_a3_no_approval_counts_without_a_vote_of_somebody_else(
    database: Database, owner: Database, world: World
) -> None:
    """A status set by hand, and a vote of the requester, are no assent."""
    house, turn, asked = await waiting(database, world)
    await run(house, turn)
    await house.rows("update approvals set status = 'approved', decided_at = clock() returning approval_id")
    assert await refused(database, INSERT_EFFECT, await effect_of(house, asked)) == "PL002 not_approved"
    await house.rows(
        """
        insert into decisions (approval_id, revision, user_id, tenant_id, kind, payload_hash, channel)
        values (%(id)s, 0, 'ana', 'default', 'approve', %(hash)s, 'psql') returning user_id
        """,
        id=asked.approval_id,
        hash=asked.payload_hash,
    )
    assert await refused(database, INSERT_EFFECT, await effect_of(house, asked)) == "PL002 not_approved"


async def test_e2_one_effect_per_call_and_per_approval(database: Database, world: World) -> None:
    """A second row of the same call is refused, whatever its operation; after "absent" one more may go."""
    house, turn, asked = await waiting(database, world)
    await house.approve(asked)
    await run(house, turn)
    params = await effect_of(house, asked)
    async with database.transaction() as tx:
        assert await tx.execute(INSERT_EFFECT, params) == 1
    assert (await refused(database, INSERT_EFFECT, params)).startswith("23505 e2_one_effect_per")
    await house.rows("update effects set status = 'unknown' returning operation_id")
    assert (await refused(database, INSERT_EFFECT, params)).startswith("23505 e2_one_effect_per")
    await house.rows("update effects set status = 'absent' returning operation_id")
    async with database.transaction() as tx:
        assert await tx.execute(INSERT_EFFECT, params) == 1


async def test_e2_sending_again_needs_assent_again(database: Database, world: World) -> None:
    """Absent, and the approval was closed meanwhile: the row cannot become dispatched."""
    house, turn, asked = await waiting(database, world)
    await house.approve(asked)
    await run(house, turn)
    async with database.transaction() as tx:
        await tx.execute(INSERT_EFFECT, await effect_of(house, asked))
    await house.rows("update effects set status = 'absent' returning operation_id")
    await house.rows("update approvals set status = 'stale' returning approval_id")
    assert await refused(database, "update effects set status = 'dispatched'") == "PL002 not_approved"


async def test_o2_a_stale_epoch_writes_no_effect_no_event_and_no_checkpoint(database: Database, world: World) -> None:
    """Whoever names an epoch that is over is refused by the statement itself."""
    house, turn, asked = await waiting(database, world)
    await house.approve(asked)
    await run(house, turn)
    await house.rows("update threads set epoch = epoch + 1 returning epoch")
    params = await effect_of(house, asked)
    stale = INSERT_EFFECT.replace("t.epoch", "t.epoch - 1")
    assert (await refused(database, stale, params)).startswith("PL001")
    thread = {"thread": turn.thread_id}
    assert (await refused(database, "select fence(%(thread)s, 1)", thread)).startswith("PL001")
    event = "select append_event(%(thread)s, 1, 'turn_started', null, null, '{}')"
    assert (await refused(database, event, thread)).startswith("PL001")


MOVES = {
    "approvals": ("approval_id", ["rejected", "expired", "stale", "superseded", "cancelled", "orphaned"], "pending"),
    "turns": ("turn_id", ["cancelled"], "running"),
}


@pytest.mark.parametrize("final", MOVES["approvals"][1])
async def test_a3_a_final_approval_stays_final(database: Database, world: World, final: str) -> None:
    """Nothing leads out of a final status, not even back to pending."""
    house, _, _ = await waiting(database, world)
    await house.rows(f"update approvals set status = '{final}' returning approval_id")
    for status in ("pending", "approved", *MOVES["approvals"][1]):
        if status != final:
            assert (await refused(database, f"update approvals set status = '{status}'")).startswith("PL003")


async def test_a3_an_approved_call_never_becomes_rejected_or_pending(database: Database, world: World) -> None:
    """Approved goes on to its effect or is closed; it cannot be decided the other way."""
    house, _, asked = await waiting(database, world)
    await house.approve(asked)
    for status in ("pending", "rejected"):
        assert (await refused(database, f"update approvals set status = '{status}'")).startswith("PL003")


async def test_a3_one_open_ask_per_call(database: Database, world: World) -> None:
    """While one ask is pending or approved, there is no other."""
    house, _, asked = await waiting(database, world)
    again = """
        insert into approvals (approval_id, tenant_id, thread_id, turn_id, item_id, ask, payload_hash, tool, requester, duty,
                               rule, reason, policy_version, expires_at, key_id, digest)
        select gen_random_uuid(), tenant_id, thread_id, turn_id, item_id, ask + 1, payload_hash, tool, requester, duty,
               rule, reason, policy_version, expires_at, key_id, digest
          from approvals
    """
    assert await refused(database, again) == "23505 a3_one_open_ask"
    await house.approve(asked)
    assert await refused(database, again) == "23505 a3_one_open_ask"


async def test_a3_one_vote_per_person_and_revision(database: Database, world: World) -> None:
    """The same person cannot vote twice on what they were shown."""
    house, _, asked = await waiting(database, world)
    await house.approve(asked)
    again = """
        insert into decisions (approval_id, revision, user_id, tenant_id, kind, payload_hash, channel, reason)
        select approval_id, revision, user_id, tenant_id, 'reject', payload_hash, channel, 'no' from decisions
    """
    assert await refused(database, again) == "23505 a3_one_vote_per_person_and_revision"


async def test_a2_a_decision_is_about_a_revision_that_was_shown(database: Database, world: World) -> None:
    """A vote that names another hash, or a rejection without a reason, is refused."""
    _, _, asked = await waiting(database, world)
    vote = """
        insert into decisions (approval_id, revision, user_id, tenant_id, kind, payload_hash, channel, reason)
        values (%(id)s, %(revision)s, 'marta', 'default', %(kind)s, %(hash)s, 'psql', %(reason)s)
    """
    good = {"id": asked.approval_id, "revision": 0, "kind": "approve", "hash": asked.payload_hash, "reason": None}
    for change in ({"hash": b"x" * 32}, {"revision": 7}, {"id": uuid4()}):
        assert (await refused(database, vote, {**good, **change})).startswith("23503")
    for reason in (None, "", "  ", "\n\t"):
        assert "a3_a_rejection_has_a_reason" in await refused(
            database, vote, {**good, "kind": "reject", "reason": reason}
        )


async def test_a2_what_was_shown_and_decided_is_never_changed(database: Database, world: World) -> None:
    """Revisions, decisions and recorded answers can neither be updated nor deleted."""
    house, _, asked = await waiting(database, world)
    await house.approve(asked)
    for table, column in (("approval_revisions", "made_by"), ("decisions", "channel"), ("model_answers", "tenant_id")):
        assert (await refused(database, f"update {table} set {column} = 'x'")).startswith("PL004")
        assert (await refused(database, f"delete from {table}")).startswith("PL004")


async def test_a2_the_hash_is_that_of_the_bytes(database: Database, world: World) -> None:
    """A revision whose hash is another is refused; so is an approval that points to none."""
    house, _, asked = await waiting(database, world)
    insert = """
        insert into approval_revisions (approval_id, revision, payload, payload_hash, preview, precondition, made_by)
        values (%(id)s, 1, '{}', %(hash)s, '{}', '{}', 'gate')
    """
    params = {"id": asked.approval_id, "hash": b"x" * 32}
    assert "a2_the_hash_is_that_of_the_bytes" in await refused(database, insert, params)
    assert "a2_what_is_pending_is_a_stored_revision" in await refused(database, "update approvals set revision = 1")
    assert await house.pending() == [asked]


EFFECT_MOVES = {
    "dispatched": {"committed", "refused", "absent", "unknown"},
    "committed": set(),
    "refused": set(),
    "absent": {"dispatched"},
    "unknown": {"committed", "absent", "abandoned"},
    "abandoned": set(),
}


async def test_e4_an_effect_only_moves_along_its_arrows(database: Database, owner: Database, world: World) -> None:
    """Every pair of statuses: those that section 6 names are possible, all others are refused."""
    house, turn, asked = await waiting(database, world)
    await house.approve(asked)
    await run(house, turn)
    async with database.transaction() as tx:
        await tx.execute(INSERT_EFFECT, await effect_of(house, asked))
    for start, allowed in EFFECT_MOVES.items():
        for end in EFFECT_MOVES:
            if start == end:
                continue
            async with owner.transaction() as tx:
                await tx.execute("alter table effects disable trigger user")
                await tx.execute(
                    "update effects set status = %(s)s::text, receipt = case when %(s)s::text = 'committed' then '{}'::jsonb end",
                    {"s": start},
                )
                await tx.execute("alter table effects enable trigger user")
            move = (
                f"update effects set status = '{end}', receipt = case when '{end}' = 'committed' then '{{}}'::jsonb end"
            )
            if end in allowed:
                async with database.transaction() as tx:
                    assert await tx.execute(move) == 1  # type: ignore[arg-type]
            else:
                assert (await refused(database, move)).startswith("PL003"), (start, end)


async def test_e3_committed_means_a_receipt(database: Database, world: World) -> None:
    """An effect is committed with its receipt, and only then has one."""
    house, turn, asked = await waiting(database, world)
    await house.approve(asked)
    await run(house, turn)
    async with database.transaction() as tx:
        await tx.execute(INSERT_EFFECT, await effect_of(house, asked))
    for change in ("status = 'committed'", "receipt = '{}'"):
        assert "e3_committed_means_a_receipt" in await refused(database, f"update effects set {change}")


async def test_t6_a_turn_only_moves_along_its_arrows(database: Database, world: World) -> None:
    """An ended turn stays ended; a waiting one can only go on through a run, or be cancelled."""
    house, turn, _ = await waiting(database, world)
    for status in ("created", "completed", "failed", "exhausted", "awaiting_reconciliation"):
        ended = "clock()" if status in ("completed", "failed", "exhausted") else "null"
        change = f"update turns set status = '{status}', ended_at = {ended}"
        assert (await refused(database, change)).startswith("PL003"), status
    await house.cancel(turn)
    for status in ("created", "running", "awaiting_approval", "paused"):
        change = f"update turns set status = '{status}', ended_at = null"
        assert (await refused(database, change)).startswith("PL003"), status
    assert "t1_ended_turns_have_a_time" in await refused(database, "update turns set ended_at = null")


async def test_t4_one_started_turn_per_thread(database: Database, world: World) -> None:
    """A second turn of the thread cannot start while one waits."""
    house, turn, _ = await waiting(database, world)
    await house.rows(
        """
        insert into turns (turn_id, tenant_id, thread_id, ordinal, message, max_steps)
        values (gen_random_uuid(), 'default', %(thread)s, 7, 'Two.', 3) returning turn_id
        """,
        thread=turn.thread_id,
    )
    assert (
        await refused(database, "update turns set status = 'running' where ordinal = 7") == "23505 t4_one_started_turn"
    )


async def test_o1_one_running_run_per_thread(database: Database, world: World) -> None:
    """A second running run of the thread is refused by an index, not by discipline; two knocks are one due run."""
    _, turn, _ = await waiting(database, world)
    insert = """
        insert into runs (run_id, tenant_id, thread_id, turn_id, because, status, epoch)
        values (gen_random_uuid(), 'default', %(thread)s, %(turn)s, 'test', %(status)s,
                case when %(status)s = 'running' then 7 end)
    """
    for status, name in (("running", "o1_one_running_run"), ("due", "one_due_run_per_turn")):
        params = {"thread": turn.thread_id, "turn": turn.turn_id, "status": status}
        async with database.transaction() as tx:
            await tx.execute(insert, params)
        assert await refused(database, insert, params) == f"23505 {name}"


async def test_o2_epoch_and_seq_only_grow(database: Database, world: World) -> None:
    """Nobody turns the fence or the timeline back."""
    await waiting(database, world)
    for column in ("epoch", "seq"):
        assert (await refused(database, f"update threads set {column} = {column} - 1")).startswith("PL003")
    assert "o1_owner_has_a_lease" in await refused(database, "update threads set owner = 'somebody'")


async def test_v1_events_are_final_and_numbered_without_gaps(database: Database, world: World) -> None:
    """A number is used once and an event is never changed; a transaction that is rolled back leaves no gap."""
    house, turn, _ = await waiting(database, world)
    assert (await refused(database, "update events set type = 'turn_failed'")).startswith("PL004")
    assert (
        await refused(
            database,
            "insert into events (thread_id, seq, tenant_id, type) select thread_id, seq, tenant_id, type from events limit 1",
        )
    ).startswith("23505")
    append = "select append_event(%(thread)s, null, 'turn_resumed', %(turn)s, null, '{}')"
    params = {"thread": turn.thread_id, "turn": turn.turn_id}
    with pytest.raises(RuntimeError):  # noqa: PT012  # the transaction is what is rolled back
        async with database.transaction() as tx:
            await tx.execute(append, params)
            raise RuntimeError("rolled back")
    async with database.transaction() as tx:
        await tx.execute(append, params)
    seqs = [event.seq for event in await house.events(turn)]
    assert seqs == list(range(1, len(seqs) + 1))


async def test_g5_an_ended_call_has_a_result_and_no_other_has_one(database: Database, world: World) -> None:
    """Neither a finished call without a result, nor a result on an open call."""
    await waiting(database, world)
    for change in ("status = 'rejected'", "result = '{}'"):
        assert "g5_an_ended_call_has_a_result" in await refused(database, f"update plan_items set {change}")
    assert (await refused(database, "update plan_items set status = 'completed', result = '{}'")).startswith("PL003")


async def test_g1_a_step_has_one_answer_and_a_call_one_place(database: Database, world: World) -> None:
    """A second answer of the same step, and a second call at the same place, are refused."""
    await waiting(database, world)
    again = """
        insert into model_answers (turn_id, step, tenant_id, answer) select turn_id, step, tenant_id, '{}' from model_answers
    """
    assert (await refused(database, again)).startswith("23505")
    again = """
        insert into plan_items (item_id, tenant_id, thread_id, turn_id, step, ordinal, call_id, tool, proposed)
        select gen_random_uuid(), tenant_id, thread_id, turn_id, step, ordinal, 'other', tool, proposed from plan_items
    """
    assert (await refused(database, again)).startswith("23505")


async def test_v3_the_application_cannot_touch_the_audit_chain(database: Database, world: World) -> None:
    """Its role can neither update, delete, insert nor truncate; the clock and the migrations are not its own either."""
    await waiting(database, world)
    for statement in (
        "update audit set actor = 'nobody'",
        "delete from audit",
        "insert into audit select * from audit",
        "truncate audit",
        "update audit_heads set n = 0",
        "delete from audit_heads",
        "update clock_offset set shift = interval '1 day'",
        "alter table audit disable trigger user",
        "drop trigger e1_no_effect_without_assent on effects",
        "alter table effects disable trigger user",
        "create or replace function clock() returns timestamptz language sql as 'select now()'",
    ):
        assert (await refused(database, statement)).startswith("42501"), statement


async def test_v3_even_the_owner_cannot_change_an_audit_row_unnoticed(
    database: Database, owner: Database, world: World
) -> None:
    """The owner's update and delete are refused by a trigger; a row with a wrong hash by a constraint."""
    await waiting(database, world)
    for statement in ("update placet.audit set actor = 'nobody'", "delete from placet.audit"):
        assert (await refused(owner, statement)).startswith("PL004")
    insert = """
        insert into audit (tenant_id, n, at, actor, action, subject, body, previous, hash)
        select tenant_id, n + 1000, at, 'nobody', action, subject, body, previous, hash from audit limit 1
    """
    assert "v3_the_hash_is_that_of_the_row" in await refused(owner, insert)


async def test_a_row_cannot_point_into_another_tenant(database: Database, world: World) -> None:
    """Foreign keys carry the tenant: a turn, a run or an approval of one tenant on another's thread is refused."""
    _, turn, _ = await waiting(database, world)
    params = {"thread": turn.thread_id, "turn": turn.turn_id}
    for statement in (
        "update turns set tenant_id = 'other'",
        "update approvals set tenant_id = 'other'",
        """
        insert into runs (run_id, tenant_id, thread_id, turn_id, because)
        values (gen_random_uuid(), 'other', %(thread)s, %(turn)s, 'x')
        """,
        "insert into events (thread_id, seq, tenant_id, type) values (%(thread)s, 999, 'other', 'turn_started')",
    ):
        assert (await refused(database, statement, params)).startswith("23503"), statement
