"""What cannot be used is refused with a code, a sentence and the field; nothing is stored (L5), nobody is flooded."""

import json
from typing import Any
from uuid import uuid4

import httpx
import pytest

from placet.api.app import create_app
from placet.api.limits import Limiter
from tests.api.serving import Served, listening
from tests.steps import settings_for_tests

BAD_TURNS: list[tuple[Any, int, str]] = [
    ({}, 422, "message"),
    ({"message": ""}, 422, "message"),
    ({"message": "   "}, 422, "message"),
    ({"message": 12}, 422, "message"),
    ({"message": None}, 422, "message"),
    ({"message": "a\x00b"}, 422, "message"),
    ({"message": "x" * 200_000}, 422, "message"),
    ({"message": "hi", "thread_id": "nonsense"}, 422, "thread_id"),
    ({"message": "hi", "thread_id": str(uuid4())}, 404, ""),
    ({"message": "hi", "tenant": "other"}, 422, "tenant"),
    ({"message": "hi", "requester": "marta"}, 422, "requester"),
    (["hi"], 422, "body"),
    ("hi", 422, "body"),
]


@pytest.mark.parametrize(("body", "status", "field"), BAD_TURNS)
async def test_l5_a_turn_that_cannot_be_used_names_the_field(
    served: Served, body: Any, status: int, field: str
) -> None:
    """A stable code and the field; nothing is stored."""
    answer = await served.to("ana").post("/v1/turns", json=body)

    assert answer.status_code == status, answer.text
    assert answer.json()["code"]
    if field:
        assert answer.json()["field"] == field
    assert (await served.to("ana").get("/v1/turns")).json()["rows"] == []


async def test_l5_a_body_that_is_too_large_is_413_announced_or_not(served: Served) -> None:
    """By its length, or where that is not said, while it comes."""
    limit = served.house.services.settings.max_body_bytes
    headers = {"Content-Type": "application/json"}
    large = json.dumps({"message": "x" * limit}).encode()

    async def in_pieces() -> Any:
        for begin in range(0, len(large), 65_536):
            yield large[begin : begin + 65_536]

    announced = await served.to("ana").post("/v1/turns", content=large, headers=headers)
    in_chunks = await served.to("ana").post("/v1/turns", content=in_pieces(), headers=headers)

    assert announced.status_code == in_chunks.status_code == 413
    assert announced.json()["code"] == in_chunks.json()["code"] == "body_too_large"


async def test_l5_too_many_requests_of_one_key_are_429_and_others_go_on(served: Served) -> None:
    """The answer says when to try again."""
    served.app.state.limiter = Limiter("5/minute")
    answers = [await served.to("ana").get("/v1/me") for _ in range(7)]

    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert answers[-1].json()["code"] == "too_many_requests"
    assert int(answers[-1].headers["Retry-After"]) == answers[-1].json()["retry_after"] >= 1
    assert (await served.to("marta").get("/v1/me")).status_code == 200


async def test_l5_what_nobody_foresaw_is_a_500_without_its_innards(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer has an id that the log has too, and neither a class nor a line of code."""

    async def breaks(*args: Any, **more: Any) -> None:
        raise RuntimeError("the password is 12345")

    monkeypatch.setattr("placet.record.pages.turns", breaks)
    answer = await served.to("ana").get("/v1/turns")

    assert answer.status_code == 500
    assert set(answer.json()) == {"code", "message", "id"}
    assert answer.json()["code"] == "internal_error"
    assert "12345" not in answer.text
    assert "Traceback" not in answer.text


async def test_l5_a_database_that_is_away_is_503_and_says_when_to_come_back(served: Served) -> None:
    """Nothing is confirmed that is not stored."""
    await served.house.database.pool.close()

    answer = await served.to("ana").get("/v1/turns")

    assert (answer.status_code, answer.json()["code"]) == (503, "database_unreachable")
    assert answer.headers["Retry-After"]


async def test_l5_an_unknown_place_and_method_are_json_too(served: Served) -> None:
    """404 and 405 have a code like everything else."""
    nowhere = await served.to("ana").get("/v1/nowhere")
    method = await served.to("ana").put("/v1/turns")

    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "no_such_route")
    assert (method.status_code, method.json()["code"]) == (405, "method_not_allowed")


async def test_l5_pages_neither_repeat_nor_hide_a_row(served: Served) -> None:
    """Rows that are added while somebody pages change nothing of what they see."""
    made = [str(await served.ask(f"request {n}")) for n in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        params = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = (await served.to("ana").get("/v1/turns", params=params)).json()
        seen += [row["turn_id"] for row in page["rows"]]
        await served.ask("one more meanwhile")
        if (cursor := page["next"]) is None:
            break

    assert seen == made[::-1]


@pytest.mark.parametrize("cursor", ["x", "bm9wZQ==", "WzEsMl0=", "WyIyMDI2LTAxLTAxIiwgIngiXQ==", "\x00", "é" * 50])
async def test_l5_a_cursor_that_is_none_of_ours_is_422(served: Served, cursor: str) -> None:
    """And never a 500."""
    answer = await served.to("ana").get("/v1/turns", params={"cursor": cursor})
    assert (answer.status_code, answer.json()["field"]) == (422, "cursor")


async def test_t4_a_message_on_a_thread_that_waits_is_409_unless_it_takes_its_place(served: Served) -> None:
    """The conflict names the turn and what it waits for; `supersede` ends that, and its approval can no longer be decided."""
    asked = await served.paused()
    body = {"message": "Something else.", "thread_id": asked["thread_id"]}

    refused = await served.to("ana").post("/v1/turns", json=body)
    taken = await served.to("ana").post("/v1/turns", json={**body, "supersede": True})
    late = await served.decide(asked, {"kind": "approve"})

    assert (refused.status_code, refused.json()["code"]) == (409, "turn_awaits_people")
    assert refused.json()["approvals"] == [asked["approval_id"]]
    assert taken.status_code == 202
    assert late.status_code == 409
    assert (await served.row(asked)).status == "superseded"
    await served.house.worker.run_until_idle()
    [waits] = (await served.to("marta").get("/v1/approvals")).json()["rows"]
    assert waits["turn_id"] == taken.json()["turn_id"]


async def test_t3_a_turn_that_has_ended_is_not_cancelled_again_and_says_how_it_is(served: Served) -> None:
    """409 with the state, and a late decision too."""
    asked = await served.paused()
    path = f"/v1/turns/{asked['turn_id']}/cancel"

    first = await served.to("ana").post(path, json={"reason": "changed my mind"})
    second = await served.to("ana").post(path, json={})

    assert (first.status_code, first.json()["status"]) == (200, "cancelled")
    assert (second.status_code, second.json()["code"], second.json()["status"]) == (409, "turn_ended", "cancelled")
    assert (await served.decide(asked, {"kind": "approve"})).json()["outcome"]["status"] == "cancelled"


async def test_l4_cors_is_off_unless_configured(served: Served) -> None:
    """A page of another origin may read nothing, unless its origin is on the list."""
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "GET"}
    closed = await served.to("ana").options("/v1/turns", headers=asks)
    assert "access-control-allow-origin" not in closed.headers

    given = settings_for_tests(cors_origins=["https://app.example"])
    async with listening(create_app(given, served.house.services)) as url, httpx.AsyncClient(base_url=url) as client:
        allowed = await client.options("/v1/turns", headers=asks)
        other = await client.options("/v1/turns", headers={**asks, "Origin": "https://evil.example"})
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-origin" not in other.headers


async def test_l4_the_development_identity_is_only_for_programs_on_this_machine(served: Served) -> None:
    """Without a key it acts as the named person, but not for a web page, nor under another host's name."""
    given = settings_for_tests(dev_user="ana")
    async with listening(create_app(given, served.house.services)) as url, httpx.AsyncClient(base_url=url) as client:
        plain = await client.get("/v1/me")
        page = await client.get("/v1/me", headers={"Origin": "https://evil.example"})
        rebound = await client.get("/v1/me", headers={"Host": "evil.example"})
        forwarded = await client.get("/v1/me", headers={"X-Forwarded-For": "203.0.113.7"})
        with_key = await client.get("/v1/me", headers={"X-Api-Key": served.keys["marta"]})
        wrong = await client.get("/v1/me", headers={"X-Api-Key": "placet_wrong"})

    assert (plain.json()["user_id"], plain.json()["via"]) == ("ana", "dev")
    assert page.status_code == rebound.status_code == forwarded.status_code == wrong.status_code == 401
    assert with_key.json()["user_id"] == "marta"
