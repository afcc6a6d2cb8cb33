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


async def test_a5_roles_and_duties_are_changed_and_taken_away(placet: Placet, database: Database) -> None:
    """What changes counts at once and stands in the audit chain; who is removed has no key that opens anything."""

    async def call(*arguments: object) -> Ran:
        return await asyncio.to_thread(placet, "users", *arguments)

    key = (await call("add", "rosa", "--role", "reviewer", "--duty", "finance", "--key", "--json")).json["key"]
    changed = (
        await call("change", "rosa", "--role", "requester", "--role", "reviewer", "--duty", "support", "--json")
    ).json
    assert (changed["user"]["roles"], changed["user"]["duties"]) == (["requester", "reviewer"], ["support"])
    assert (await call("change", "rosa", "--duty", "none", "--locale", "es", "--json")).json["user"]["duties"] == []
    assert (await call("change", "rosa", "--role", "requester", "--json")).json["user"]["locale"] == "es"

    assert (await call("change", "rosa")).code == 2
    assert (await call("change", "nobody", "--name", "N", "--json")).error["code"] == "unknown_user"
    assert (await call("change", "rosa", "--role", "king", "--json")).error["field"] == "roles"
    assert (await call("change", "rosa", "--duty", "finance", "--json")).error["field"] == "duties"

    async with database.read() as tx:
        assert await credentials.whose_key(tx, key) is not None
    assert (await call("remove", "rosa")).code == 0
    async with database.read() as tx:
        assert await credentials.whose_key(tx, key) is None
        rows = await tx.fetch_dicts("select action from audit where subject = 'user:rosa' order by n")
    assert [row["action"] for row in rows] == ["issued a key", "changed", "changed", "changed", "removed"]
    assert (await call("change", "rosa", "--name", "R", "--json")).error["code"] == "unknown_user"
    assert (await call("add", "rosa", "--role", "requester", "--json")).error["code"] == "conflict"
