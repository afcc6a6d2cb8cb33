"""A request whose answer was lost is sent again, and stays one (L3)."""

import asyncio

import httpx
import pytest

from placet.client import Client, Unreachable
from tests.api.serving import Served


async def asked(served: Served) -> int:
    async with served.house.database.read() as tx:
        return int(await tx.fetch_value("select count(*) from turns"))


def key(of: str) -> dict[str, str]:
    return {"Idempotency-Key": of}


async def test_l3_asked_again_under_its_key_a_request_is_one_turn(served: Served) -> None:
    """Twenty at once, one after its end, and one without the key: two turns."""
    post, body = served.to("ana").post, {"message": "Pay Rosa."}
    answers = await asyncio.gather(*(post("/v1/turns", json=body, headers=key("k-1")) for _ in range(20)))
    await served.house.worker.run_until_idle()
    later = await post("/v1/turns", json=body, headers=key("k-1"))
    assert {answer.status_code for answer in answers} | {later.status_code} == {202}
    assert len({answer.json()["turn_id"] for answer in [*answers, later]}) == 1
    assert later.json()["status"] == "awaiting_approval"  # as it stands now

    assert (await post("/v1/turns", json=body)).status_code == 202
    assert await asked(served) == 2


async def test_l3_a_key_is_not_for_another_request(served: Served) -> None:
    """Other words under a key are a conflict that names the turn; another person's key is another key."""
    first = await served.to("ana").post("/v1/turns", json={"message": "Pay Rosa."}, headers=key("k-1"))
    other = await served.to("ana").post("/v1/turns", json={"message": "Pay Rosa 9999."}, headers=key("k-1"))
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    assert other.json()["turn_id"] == first.json()["turn_id"]

    ben = await served.to("ben").post("/v1/turns", json={"message": "Pay Rosa."}, headers=key("k-1"))
    assert ben.json()["turn_id"] != first.json()["turn_id"]
    assert await asked(served) == 2


async def test_l3_a_refused_request_uses_up_no_key(served: Served) -> None:
    """What was not stored can be corrected and sent under the same key."""
    post = served.to("ana").post
    assert (await post("/v1/turns", json={"message": " "}, headers=key("k-1"))).status_code == 422
    assert (await post("/v1/turns", json={"message": "Pay Rosa."}, headers=key("k-1"))).status_code == 202


@pytest.mark.parametrize("bad", ["", "x" * 201, "with space"])
async def test_l5_a_key_that_cannot_be_used_is_refused(served: Served, bad: str) -> None:
    """422 names the header, and nothing is stored."""
    answer = await served.to("ana").post("/v1/turns", json={"message": "Pay Rosa."}, headers=key(bad))
    assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")
    assert await asked(served) == 0


class LosesAnswers(httpx.AsyncBaseTransport):
    """A line on which requests arrive, and answers do not."""

    def __init__(self, loses: int) -> None:
        self.loses = loses
        self.line = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self.line.handle_async_request(request)
        if self.loses:
            self.loses -= 1
            await answer.aclose()
            raise httpx.ReadError("The line broke.")
        return answer


async def test_l3_the_client_asks_again_when_the_answer_is_lost(served: Served) -> None:
    """Two answers are lost, and there is one turn; when none ever comes, the client says that it does not know."""
    async with Client(served.url, served.keys["ana"], transport=LosesAnswers(2)) as ana:
        turn = await ana.ask("Pay Rosa.")
    async with Client(served.url, served.keys["ana"], transport=LosesAnswers(99)) as ana:
        with pytest.raises(Unreachable):
            await ana.ask("Pay Rosa again.", key="mine")
    async with Client(served.url, served.keys["ana"]) as ana:
        assert (await ana.ask("Pay Rosa again.", key="mine")).turn_id != turn.turn_id
    assert await asked(served) == 2
