"""The audit chain: appended to, in order, by everybody at once (V3)."""

import hashlib
import struct

from placet.record import audit
from placet.record.database import Database
from tests.outside import World
from tests.scripted import calls
from tests.steps import outside_house, together


def expected(row: dict[str, object], previous: bytes) -> bytes:
    """The hash of a row, computed here from the description in the schema."""
    parts = b""
    for name in ("actor", "action", "subject"):
        text = str(row[name]).encode()
        parts += struct.pack("!i", len(text)) + text
    return hashlib.sha256(
        previous + struct.pack("!q", row["n"]) + struct.pack("!q", row["micros"]) + parts + bytes(row["body"])  # type: ignore[arg-type]
    ).digest()


CHAIN = """
    select n, actor, action, subject, body, previous, hash, (extract(epoch from at) * 1000000)::bigint as micros
      from audit where tenant_id = %(tenant)s order by n
"""


async def test_v3_forty_writers_at_once_make_one_chain(database: Database, world: World) -> None:
    """Forty rows of two tenants are appended at the same time: each tenant has one chain, numbered from 1, unbroken."""
    house = await outside_house(database, world)

    async def append(n: int) -> None:
        async with database.transaction() as tx:
            await audit.append(
                tx, f"t{n % 2}", actor="ümläut", action="tested", subject=f"n:{n}", body={"n": n, "rate": 10**16 + 0.0}
            )

    done = await together(*(append(n) for n in range(40)))
    assert [error for error in done if error is not None] == []
    for tenant in ("t0", "t1"):
        previous = bytes(32)
        rows = await house.rows(CHAIN, tenant=tenant)
        assert [row["n"] for row in rows] == list(range(1, 21))
        for row in rows:
            assert bytes(row["previous"]) == previous
            assert bytes(row["hash"]) == expected(row, previous)
            previous = bytes(row["hash"])


async def test_v3_a_turn_leaves_who_asked_who_decided_what_was_sent_and_what_came_back(
    database: Database, world: World
) -> None:
    """From question to receipt, each step is a row of the chain, in its order."""
    house = await outside_house(database, world, calls(("pay", {"to": "bo", "minor": 700})), "Paid.")
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    await house.go_on(turn)
    rows = await house.rows("select actor, action, subject from audit order by n")
    assert [(row["action"], row["subject"].split(":")[0]) for row in rows] == [
        ("asked", "approval"),
        ("approve", "approval"),
        ("dispatched", "effect"),
        ("committed", "effect"),
    ]
    assert [row["actor"] for row in rows] == ["policy", "marta", "epoch:2", "epoch:2"]


async def test_v3_a_decision_that_was_rolled_back_is_not_in_the_chain(database: Database, world: World) -> None:
    """The row and what it speaks of are one transaction; the next one takes the same number."""
    house = await outside_house(database, world)
    for text in ("lost", "kept"):
        try:
            async with database.transaction() as tx:
                await audit.append(tx, "t", actor="a", action="b", subject="c:d", body={"text": text})
                if text == "lost":
                    raise RuntimeError("rolled back")
        except RuntimeError:
            continue
    [row] = await house.rows(CHAIN, tenant="t")
    assert (row["n"], bytes(row["body"])) == (1, b'{"text":"kept"}')
