"""A client for `/v1`: thin, typed, async.

    async with Client("https://placet.example", api_key) as placet:
        turn = await placet.ask("Refund the failed orders of NOV-17")
        async for event in placet.follow(turn.turn_id, until="rest"):
            print(event.type, event.payload)
        for asked in await placet.waiting():
            await placet.approve(asked)          # exactly what `asked` showed

A refusal is `Refused`, with the server's code and sentence. A stream that breaks is opened again where it stopped. A
request whose answer is lost is sent again under its key and stays one; all else that changes something is sent once, and
may be repeated by whoever wants to: deciding, undoing and settling twice are once.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Literal, TypeVar
from uuid import UUID, uuid4

import httpx
from httpx_sse import ServerSentEvent, aconnect_sse

T = TypeVar("T")
Json = dict[str, Any]
Until = Literal["now", "rest", "end"]
RECONNECTS = 8  # in a row, without anything new, before a broken stream is given up
LONGEST_WAIT = 5.0  # seconds between them
ASKED_AGAIN = 3  # times, when the answer to a request is lost


class Refused(Exception):
    """The server said no. `code` is stable, `details` is the whole answer: a conflict carries the state it met."""

    def __init__(self, status: int, code: str, message: str, details: Json) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.details = details


class Unreachable(Exception):
    """The server does not answer. Whether the last request arrived is not known; look before asking again."""

    code = "server_unreachable"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, from message to answer; times are ISO 8601 in UTC."""

    turn_id: UUID
    thread_id: UUID
    requester: str
    message: str
    status: str
    next_step: str | None
    steps: int
    max_steps: int
    output_text: str | None
    error: Json | None
    created_at: str
    updated_at: str
    ended_at: str | None


@dataclass(frozen=True, slots=True)
class Approval:
    """A request to decide one call. A decision about it carries its `payload_hash`."""

    approval_id: UUID
    thread_id: UUID
    turn_id: UUID
    status: str
    payload_hash: str
    tool: str
    arguments: Json
    facts: Json
    preview: Json
    requester: str
    duty: str
    quorum: int
    confirm: str
    rule: str
    reason: str
    rationale: str
    difference: Json | None
    asked_at: str
    expires_at: str
    decided_by: str | None
    decision: str | None
    decision_reason: str | None
    effect: str | None
    may_decide: bool
    may_not_because: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is stored about a decision; `first` says whether this one made it."""

    approval_id: UUID
    status: str
    decision: str | None
    decided_by: str | None
    decided_at: str | None
    reason: str | None
    payload_hash: str
    effect: str | None
    first: bool


@dataclass(frozen=True, slots=True)
class Edit:
    """What an edit would do; pass it to `approve` to approve exactly this."""

    payload_hash: str
    arguments: Json
    facts: Json
    preview: Json


@dataclass(frozen=True, slots=True)
class Effect:
    """What was sent into the world, and what came back."""

    operation_id: UUID
    turn_id: UUID
    tool: str
    arguments: Json
    status: str
    attempts: int
    approval_id: UUID | None
    undoes: UUID | None
    receipt: Json | None
    error: Json | None
    evidence: list[Json]
    dispatched_at: str
    settled_at: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a timeline."""

    thread_id: UUID
    seq: int
    turn_id: UUID | None
    item_id: UUID | None
    type: str
    payload: Json
    at: str


class Client:
    """A connection to one server as one person."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        token: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"X-Api-Key": api_key} if api_key else {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=30, transport=transport)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def me(self) -> Json:
        """Who this client is: `user_id`, `roles`, `duties`, `tenant`."""
        return await self.send("GET", "/v1/me")

    # Turns

    async def ask(
        self, message: str, *, thread_id: UUID | None = None, supersede: bool = False, key: str | None = None
    ) -> Turn:
        """Store a request; a worker goes on with it. Raises `Refused` 409 while the thread waits for people.

        It goes under an idempotency key, `key` or one of its own, and is sent again when its answer is lost.
        """
        body: Json = {"message": message, "supersede": supersede}
        if thread_id is not None:
            body["thread_id"] = str(thread_id)
        headers = {"Idempotency-Key": key or str(uuid4())}
        for tried in range(1, ASKED_AGAIN + 1):
            try:
                return _as(Turn, await self.send("POST", "/v1/turns", body, headers=headers))
            except Unreachable:
                await asyncio.sleep(min(0.1 * 2**tried, LONGEST_WAIT))
        return _as(Turn, await self.send("POST", "/v1/turns", body, headers=headers))

    async def turn(self, turn_id: UUID) -> Turn:
        return _as(Turn, (await self.whole(turn_id))["turn"])

    async def whole(self, turn_id: UUID) -> Json:
        """The turn with its `items`, `approvals` and `effects`, as the server says them."""
        return await self.send("GET", f"/v1/turns/{turn_id}")

    async def turns(self, *, limit: int = 50, **filters: Any) -> list[Turn]:
        """The newest first; filters are `status`, `thread_id`, `requester`."""
        return [_as(Turn, row) async for row in self.rows("/v1/turns", limit, filters)]

    async def cancel(self, turn_id: UUID, *, reason: str | None = None) -> Turn:
        return _as(Turn, await self.send("POST", f"/v1/turns/{turn_id}/cancel", {"reason": reason}))

    async def retry(self, turn_id: UUID) -> Turn:
        return _as(Turn, await self.send("POST", f"/v1/turns/{turn_id}/retry"))

    async def migrate(self, turn_id: UUID) -> Turn:
        """Bring orphaned calls to the tools as they are now; for operators."""
        return _as(Turn, await self.send("POST", f"/v1/turns/{turn_id}/migrate"))

    async def follow(self, turn_id: UUID, *, after: int = 0, until: Until = "end") -> AsyncIterator[Event]:
        """The turn's events behind number `after`, as they come; a line that breaks is opened again there."""
        tries = 0
        while True:
            try:
                async for line in self._stream(f"/v1/turns/{turn_id}/events", after, until):
                    if line.event == "end":
                        said = json.loads(line.data)
                        if "code" in said:
                            raise Refused(401, said["code"], said["message"], said)
                        return
                    event = _as(Event, json.loads(line.data))
                    after, tries = event.seq, 0
                    yield event
            except httpx.TransportError as error:
                if tries >= RECONNECTS:
                    raise Unreachable(f"The stream broke and could not be opened again: {error!r}.") from error
            tries += 1
            await asyncio.sleep(min(0.1 * 2**tries, LONGEST_WAIT))

    async def _stream(self, path: str, after: int, until: Until) -> AsyncIterator[ServerSentEvent]:
        params = {"after": after, "until": until}
        async with aconnect_sse(self._http, "GET", path, params=params, timeout=httpx.Timeout(30, read=60)) as source:
            if source.response.is_error:
                await source.response.aread()
                _check(source.response)
            async for line in source.aiter_sse():
                if line.data:  # httpx-sse makes an event without data of a heartbeat, under the number of the last one
                    yield line

    # Approvals

    async def waiting(self, *, limit: int = 100, **filters: Any) -> list[Approval]:
        """What waits for people, what expires first at the top; filters are `mine`, `tool`, `turn_id`, `thread_id`."""
        return [_as(Approval, row) async for row in self.rows("/v1/approvals", limit, filters)]

    async def approval(self, approval_id: UUID) -> Approval:
        return _as(Approval, await self.send("GET", f"/v1/approvals/{approval_id}"))

    async def preview(self, asked: Approval, arguments: Json) -> Edit:
        """What the call would do with these arguments instead."""
        path = f"/v1/approvals/{asked.approval_id}/preview"
        return _as(Edit, await self.send("POST", path, {"arguments": arguments}))

    async def approve(self, asked: Approval, edit: Edit | None = None) -> Outcome:
        """Approve exactly what `asked` showed, or exactly the edit that was previewed."""
        if edit is None:
            return await self.decide(asked.approval_id, {"kind": "approve", "payload_hash": asked.payload_hash})
        body = {"kind": "approve_with_changes", "payload_hash": edit.payload_hash, "arguments": edit.arguments}
        return await self.decide(asked.approval_id, body)

    async def reject(self, asked: Approval, reason: str) -> Outcome:
        body = {"kind": "reject", "payload_hash": asked.payload_hash, "reason": reason}
        return await self.decide(asked.approval_id, body)

    async def decide(self, approval_id: UUID, decision: Json) -> Outcome:
        """Send a decision as it is; the same again by the same person is answered with what is stored."""
        return _as(Outcome, await self.send("POST", f"/v1/approvals/{approval_id}/decision", decision))

    # Effects and policy

    async def effects(self, *, limit: int = 50, **filters: Any) -> list[Effect]:
        """What left last, first; filters are `status`, `turn_id`, `tool`, `requester`."""
        return [_as(Effect, row) async for row in self.rows("/v1/effects", limit, filters)]

    async def effect(self, operation_id: UUID) -> Effect:
        return _as(Effect, await self.send("GET", f"/v1/effects/{operation_id}"))

    async def resolve(
        self,
        operation_id: UUID,
        to: Literal["committed", "absent", "abandoned"],
        reason: str,
        *,
        external_id: str | None = None,
    ) -> Effect:
        """Say what became of an unknown effect, and how you know."""
        body = {"to": to, "reason": reason, "external_id": external_id}
        return _as(Effect, await self.send("POST", f"/v1/effects/{operation_id}/resolution", body))

    async def undo(self, operation_id: UUID) -> Effect:
        """Take a committed change back; commanding it twice is one undo."""
        return _as(Effect, await self.send("POST", f"/v1/effects/{operation_id}/undo"))

    async def explain(self, tool: str, arguments: Json) -> Json:
        """What the rules say of one call now, with the facts."""
        return await self.send("POST", "/v1/policy/explain", {"tool": tool, "arguments": arguments})

    async def rows(self, path: str, limit: int, filters: Json) -> AsyncIterator[Json]:
        """Rows of as many pages as it takes."""
        params = {name: str(value) for name, value in filters.items() if value is not None}
        while limit > 0:
            page = await self.send("GET", path, params={**params, "limit": str(min(limit, 200))})
            for row in page["rows"]:
                yield row
            limit -= len(page["rows"])
            if page["next"] is None:
                return
            params["cursor"] = page["next"]

    async def send(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Json:
        """One request as it is; raises `Refused` or `Unreachable`."""
        try:
            answer = await self._http.request(method, path, json=body, params=params, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unreachable(
                f"{self._http.base_url} cannot be reached ({error}). Nothing was sent; is the server running there?"
            ) from error
        except httpx.TransportError as error:
            raise Unreachable(
                f"{self._http.base_url} does not answer ({type(error).__name__}). Whether the request arrived is not known."
            ) from error
        _check(answer)
        said: Json = answer.json()
        return said


def _check(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    try:
        said = answer.json()
        code, message = str(said["code"]), str(said["message"])
    except (ValueError, KeyError, TypeError):  # something between us and the server answered
        said, code, message = {}, "unexpected_answer", f"{answer.url} answered {answer.status_code}."
    raise Refused(answer.status_code, code, message, said)


def _as(kind: type[T], row: Json) -> T:
    """The row as its type; what a newer server says beside it is left out."""
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        value = row[field.name]
        values[field.name] = UUID(value) if field.type in (UUID, UUID | None) and value is not None else value
    return kind(**values)
