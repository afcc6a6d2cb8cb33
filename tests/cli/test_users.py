"""`placet users`: people, and the keys that prove who they are (L4)."""

import asyncio
from collections.abc import Callable
from uuid import uuid4

from placet.record import credentials
from placet.record.database import Database
from tests.cli.conftest import Ran

Placet = Callable[..., Ran]


async def test_l4_a_key_is_made_shown_once_listed_rotated_and_revoked(placet: Placet, database: Database) -> None:
    """The text of a key goes to stdout once; no list has it; rotated and revoked ones are nobody's any more."""

    async def call(*arguments: object) -> Ran:
        return await asyncio.to_thread(placet, "users", *arguments)

    added = (await call("add", "rosa", "--role", "requester", "--key", "--json")).json
    made = (await call("key", "rosa", "--label", "ci", "--days", 30)).out.strip()
    keys = (await call("keys", "rosa", "--json")).json["keys"]
    shown = (await call("keys")).out
    rotated = (await call("rotate", added["key_id"], "--json")).json
    revoked = await call("revoke", rotated["key_id"])

    assert made.startswith(credentials.PREFIX)
    assert [key["label"] for key in keys] == ["ci", ""]
    assert made not in shown
    assert added["key"] not in shown
    assert revoked.code == 0
    async with database.read() as tx:
        whose = [await credentials.whose_key(tx, key) for key in (made, added["key"], rotated["key"])]
    assert [known.user.user_id if known else None for known in whose] == ["rosa", None, None]


def test_l4_what_cannot_be_done_with_keys_is_a_sentence(placet: Placet) -> None:
    """Unknown people and keys, a key that has ended, a lifetime that is none, an issuer that nobody named."""
    placet("users", "add", "rosa", "--role", "requester")
    key_id = placet("users", "key", "rosa", "--json").json["key_id"]
    placet("users", "revoke", key_id)

    assert placet("users", "key", "nobody", "--json").error["code"] == "unknown_user"
    assert placet("users", "key", "rosa", "--days", -1, "--json").error["code"] == "invalid_input"
    for days in ("1e9", "inf", "nan", "4000000"):
        assert placet("users", "key", "rosa", "--days", days, "--json").error["field"] == "days"
    assert placet("users", "keys", "nobody", "--json").error["code"] == "unknown_user"
    assert placet("users", "rotate", key_id, "--hours", "1e12", "--json").error["code"] == "invalid_input"
    assert "`placet users keys`" in placet("users", "revoke", "1234").err
    assert placet("users", "revoke", uuid4(), "--json").error["code"] == "unknown_key"
    assert placet("users", "revoke", key_id, "--json").error["code"] == "conflict"
    assert placet("users", "rotate", key_id, "--json").error["code"] == "conflict"
    assert placet("users", "link", "rosa", "auth0|1", "--json").error["field"] == "issuer"
    assert placet("users", "link", "rosa", "auth0|1", "--issuer", "https://id.example").code == 0
    assert (
        placet("users", "link", "rosa", "auth0|1", "--issuer", "https://id.example", "--json").error["code"]
        == "conflict"
    )
