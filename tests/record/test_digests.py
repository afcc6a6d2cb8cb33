"""Keyed digests: a row that was copied, moved or changed is not believed (V6)."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from placet.record.database import Database
from placet.record.digests import Keys
from placet.record.errors import Tampered
from tests.outside import World
from tests.scripted import calls
from tests.steps import outside_house

KEYS = Keys("k1", b"x" * 32)


def test_v6_a_digest_is_of_kind_and_identity() -> None:
    """The same identity verifies; another kind, part, order or boundary between parts does not."""
    one, two = uuid4(), uuid4()
    digest = KEYS.sign("approval", one, "tenant", 1, b"bytes", None)
    KEYS.verify("k1", digest, "approval", one, "tenant", 1, b"bytes", None)
    for kind, identity in (
        ("effect", (one, "tenant", 1, b"bytes", None)),
        ("approval", (two, "tenant", 1, b"bytes", None)),
        ("approval", (one, "tenant", 2, b"bytes", None)),
        ("approval", ("tenant", one, 1, b"bytes", None)),
        ("approval", (one, "tenan", "t1", b"bytes", None)),
        ("approval", (one, "tenant", 1, b"byte", "s")),
        ("approval", (one, "tenant", 1, b"bytes")),
    ):
        with pytest.raises(Tampered):
            KEYS.verify("k1", digest, kind, *identity)


def test_v6_an_older_key_still_verifies_and_an_unknown_one_never() -> None:
    """Keys are rotated: what the older one signed is believed while it is known; the error says what to set."""
    digest = KEYS.sign("approval", "a")
    rotated = Keys("k2", b"y" * 32, {"k1": b"x" * 32})
    rotated.verify("k1", digest, "approval", "a")
    assert rotated.sign("approval", "a") != digest
    with pytest.raises(Tampered, match="PLACET_DIGEST_KEY"):
        Keys("k2", b"y" * 32).verify("k1", digest, "approval", "a")
    with pytest.raises(Tampered):
        Keys("k1", b"z" * 32).verify("k1", digest, "approval", "a")


def test_v6_a_key_is_never_shown() -> None:
    """Neither the key nor the older ones stand in its text."""
    shown = repr(Keys("k2", b"secret-one", {"k1": b"secret-two"}))
    assert "secret" not in shown


async def test_v6_an_approval_moved_to_another_thread_call_or_tenant_is_worth_nothing(
    database: Database, world: World
) -> None:
    """Each part of its identity counts, and so do its bytes."""
    house = await outside_house(database, world, calls(("pay", {"to": "bo", "minor": 700})))
    turn = await house.run()
    [asked] = await house.pending(turn)
    asked.verify(house.services.keys)
    changes: list[dict[str, Any]] = [
        {"thread_id": uuid4()},
        {"item_id": uuid4()},
        {"approval_id": uuid4()},
        {"tenant_id": "other"},
        {"revision": 1},
        {"payload": b"{}"},
        {"payload_hash": b"x" * 32},
        {"digest": b"x" * 32},
        {"key_id": "k0"},
        {"status": "approved"},  # without a vote
    ]
    for change in changes:
        with pytest.raises(Tampered):
            replace(asked, **change).verify(house.services.keys)


async def test_v6_an_approval_row_copied_to_another_thread_executes_nothing(
    database: Database, owner: Database, world: World
) -> None:
    """The owner copies a decided approval onto another thread's waiting call: nothing leaves there."""
    house = await outside_house(
        database, world, calls(("pay", {"to": "bo", "minor": 700})), calls(("pay", {"to": "bo", "minor": 700}))
    )
    mine, theirs = await house.run(), await house.run()
    [asked] = [a for a in await house.pending() if a.turn_id == mine.turn_id]
    [victim] = [a for a in await house.pending() if a.turn_id == theirs.turn_id]
    await house.approve(asked)
    await house.rows("update runs set due_at = due_at + interval '1 hour' where status = 'due' returning run_id")
    async with owner.transaction() as tx:
        await tx.execute("set local search_path = placet, public")
        await tx.execute("alter table approvals disable trigger user")
        await tx.execute(
            """
            update approvals v set status = 'approved', decided_at = clock(), digest = a.digest, key_id = a.key_id
              from approvals a where a.approval_id = %(a)s and v.approval_id = %(v)s
            """,
            {"a": asked.approval_id, "v": victim.approval_id},
        )
        await tx.execute(
            """
            insert into decisions (approval_id, revision, user_id, tenant_id, kind, payload_hash, channel)
            select %(v)s, 0, user_id, tenant_id, kind, payload_hash, channel from decisions
            """,
            {"v": victim.approval_id},
        )
        await tx.execute("update plan_items set status = 'approved' where item_id = %(i)s", {"i": victim.item_id})
    await house.worker.sweep()
    await house.worker.run_until_idle(theirs.thread_id)
    assert world.arrivals() == []
    assert await house.effects(theirs) == []
