"""API keys: shown once, stored as a hash, ended at once (L4)."""

from datetime import timedelta

import pytest

from placet.record import credentials
from placet.record.credentials import Key
from placet.record.errors import Conflict, InvalidInput
from placet.record.people import UnknownUser
from tests.api.serving import OTHER, Served
from tests.conftest import Clock
from tests.steps import TENANT


async def _issue(served: Served, **more: object) -> Key:
    async with served.house.database.transaction() as tx:
        served.keys["new"], key = await credentials.issue(tx, TENANT, "ana", by="test", **more)  # type: ignore[arg-type]
    return key


async def _status(served: Served, who: str = "new") -> int:
    return (await served.to(who).get("/v1/me")).status_code


async def test_l4_a_key_has_256_bits_and_only_its_hash_is_stored(served: Served) -> None:
    """43 letters of base64 behind the prefix; nothing in the table is the key."""
    await _issue(served)
    text = served.keys["new"]

    rows = await served.house.rows("select api_keys::text as line from api_keys")

    assert len(text.removeprefix(credentials.PREFIX)) == 43
    assert not any(text in row["line"] or text[7:] in row["line"] for row in rows)
    assert await _status(served) == 200


async def test_l4_both_headers_carry_a_key(served: Served) -> None:
    """X-Api-Key as LangGraph's clients send it, or a bearer token."""
    bearer = served.to(None, Authorization=f"Bearer {served.keys['ana']}")
    assert (await bearer.get("/v1/me")).json()["user_id"] == "ana"
    assert (await served.to("ana").get("/v1/me")).json()["via"] == "key"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Api-Key": ""},
        {"X-Api-Key": "placet_" + "A" * 43},
        {"X-Api-Key": "lsv2_something_else"},
        {"X-Api-Key": "p" * 20_000},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer eyJhbGciOiJub25lIn0.e30."},
        {"Authorization": "Basic YW5hOmFuYQ=="},
        {"X-Placet-User": "ana"},
        {"X-Forwarded-User": "ana"},
    ],
)
async def test_l4_no_other_header_makes_somebody_of_nobody(served: Served, headers: dict[str, str]) -> None:
    """401 with a code and the challenge, whatever else is sent."""
    answer = await served.to(None, **headers).get("/v1/me")

    assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_l4_an_expired_key_is_refused(served: Served, clock: Clock) -> None:
    """By the database's clock."""
    await _issue(served, lifetime=timedelta(hours=1))
    assert await _status(served) == 200

    await clock.advance(3601)

    assert await _status(served) == 401
    assert await _status(served, "ana") == 200


async def test_l4_a_revoked_key_and_a_removed_person_count_at_once(served: Served) -> None:
    """The next request is refused; the person's other keys go on until the person is gone."""
    key = await _issue(served)
    async with served.house.database.transaction() as tx:
        await credentials.revoke(tx, TENANT, key.key_id, by="test")
    assert await _status(served) == 401
    assert await _status(served, "ana") == 200

    async with served.house.database.transaction() as tx:
        await tx.execute("update users set removed_at = clock() where user_id = 'ana'")

    assert await _status(served, "ana") == 401


async def test_l4_a_rotated_key_works_beside_the_new_one_for_as_long_as_is_said(served: Served, clock: Clock) -> None:
    """Same person, label and lifetime; the old one ends when the overlap is over."""
    key = await _issue(served, label="ci", lifetime=timedelta(days=30))
    async with served.house.database.transaction() as tx:
        served.keys["newer"], newer = await credentials.rotate(
            tx, TENANT, key.key_id, overlap=timedelta(hours=1), by="test"
        )

    assert newer.label == "ci"
    assert newer.expires_at is not None
    assert await _status(served) == await _status(served, "newer") == 200
    await clock.advance(3601)
    assert await _status(served) == 401
    assert await _status(served, "newer") == 200


async def test_l4_keys_of_another_tenant_cannot_be_touched(served: Served) -> None:
    """Its keys are unknown here, and nobody gets a key who is nobody here."""
    key = await _issue(served)
    async with served.house.database.transaction() as tx:
        assert all(one.user_id == "zoe" for one in await credentials.of_tenant(tx, OTHER))
        with pytest.raises(credentials.UnknownKey):
            await credentials.revoke(tx, OTHER, key.key_id, by="test")
        with pytest.raises(UnknownUser):
            await credentials.issue(tx, OTHER, "ana", by="test")
        with pytest.raises(InvalidInput):
            await credentials.issue(tx, TENANT, "ana", lifetime=timedelta(0), by="test")
        await credentials.revoke(tx, TENANT, key.key_id, by="test")
        with pytest.raises(Conflict):
            await credentials.rotate(tx, TENANT, key.key_id, by="test")
