"""Stripe's wire format on loopback, as far as refunds need it, with a will to fail in the middle.

Form-encoded requests, JSON answers and error objects, lists page by page, and idempotency as Stripe has it: the first
answer to a key is kept, a 500 included, and given again with `Idempotent-Replayed: true`; the key with another body is a
400 `idempotency_error`; a key that is still being worked on is a 409; what is turned away before it begins (429) is not kept.
What it has refunded it has refunded, whatever it answers: `refunds` is its own ledger, the witness.
"""

import asyncio
import base64
import json
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

Json = dict[str, Any]
Fault = Literal[
    "cut_before",  # hangs up, having done nothing
    "cut_after",  # makes the refund, then hangs up
    "500_before",  # answers 500, having done nothing, and keeps that answer
    "500_after",  # makes the refund, answers 500 and keeps that answer
    "hang_after",  # makes the refund, then never answers
    "hang_before",  # never answers and makes it only when `go_on` is set
    "garbage_after",  # makes the refund, then answers what is no JSON
    "429",  # the rate is limited
    "lock_timeout",  # another request holds the payment
    "409",  # a conflict
    "401",  # the key was revoked
    "die_after",  # makes the refund, then the whole server is gone until `revive`
]


@dataclass
class Answer:
    status: int
    body: Json
    headers: dict[str, str] = field(default_factory=dict)
    keep: bool = True  # under the idempotency key


class HungUp(Exception):
    """The connection is cut without an answer."""


class StripeServer:
    """One account; `address` is its base address. `faults` are taken in turn by requests for a refund, None for none."""

    key = "sk_test_loopback"

    def __init__(self, *, page: int = 100) -> None:
        self.page = page  # at most so many rows of a list at a time
        self.payments: dict[str, Json] = {}
        self.refunds: list[Json] = []  # the ledger, in order
        self.faults: list[Fault | None] = []
        self.seen: list[tuple[str, str, dict[str, str]]] = []  # method, path, headers of every request
        self.go_on = asyncio.Event()
        self.listed = asyncio.Event()  # somebody has looked
        self._kept: dict[str, tuple[list[tuple[str, str]], Answer]] = {}
        self._working: set[str] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._port = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def pay(self, payment_id: str, minor: int, currency: str = "eur", **charge: Any) -> str:
        """A customer has paid."""
        self.payments[payment_id] = {
            "status": "succeeded",
            "minor": minor,
            "currency": currency,
            "disputed": False,
            "name": "Zoë Müller",
            **charge,
        }
        return payment_id

    def times(self) -> Counter[tuple[str, str]]:
        """How often each line of each operation was refunded, by its own ledger."""
        return Counter((one["metadata"]["operation_id"], one["metadata"]["line"]) for one in self.refunds)

    def refunded(self, payment_id: str) -> int:
        """How much of a payment has been given back."""
        return sum(one["amount"] for one in self.refunds if one["payment_intent"] == payment_id)

    async def __aenter__(self) -> "StripeServer":
        await self.revive()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.die()
        await self._server.wait_closed()

    async def revive(self) -> None:
        """Listen, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def die(self) -> None:
        """Nobody listens any more, every connection is cut."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                method, target, _ = line.decode().split()
                headers: dict[str, str] = {}
                while (header := (await reader.readline()).decode().strip()) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.seen.append((method, target, headers))
                answer = await self._answer(method, target, headers, body.decode())
                text = json.dumps(answer.body).encode() if answer.body else b"<html>gateway</html>"
                lines = {"Content-Type": "application/json", "Content-Length": str(len(text)), **answer.headers}
                head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
                writer.write(
                    f"HTTP/1.1 {answer.status} X\r\nRequest-Id: req_{len(self.seen)}\r\n{head}\r\n".encode() + text
                )
                await writer.drain()
        except (HungUp, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, method: str, target: str, headers: dict[str, str], body: str) -> Answer:
        if not self._knows(headers.get("authorization", "")):
            return error(401, "invalid_request_error", None, "Invalid API Key provided")
        url = urlsplit(target)
        query = dict(parse_qsl(url.query))
        match method, url.path.removeprefix("/v1/").split("/"):
            case "POST", ["refunds"]:
                return await self._idempotent(headers.get("idempotency-key", ""), parse_qsl(body))
            case "GET", ["refunds"]:
                return self._list(query)
            case "GET", ["payment_intents", payment_id] if payment_id in self.payments:
                return Answer(200, self._payment(payment_id, expand=query.get("expand[0]") == "latest_charge"))
            case "GET", ["payment_intents", payment_id]:
                return missing("payment_intent", payment_id)
        return error(404, "invalid_request_error", None, f"Unrecognized request URL ({method}: {url.path})")

    def _knows(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        if scheme == "Basic":
            given = base64.b64decode(given).decode().rstrip(":")
        return given == self.key

    async def _idempotent(self, key: str, body: list[tuple[str, str]]) -> Answer:
        fault = self.faults.pop(0) if self.faults else None
        if fault == "429":
            return error(429, "invalid_request_error", "rate_limit", "Too many requests", keep=False)
        if fault == "401":
            return error(401, "invalid_request_error", None, "Expired API Key provided", keep=False)
        if fault == "cut_before":
            raise HungUp
        if key in self._working:
            told = "There is currently another in-progress request using this Idempotent Key"
            return error(409, "idempotency_error", "idempotency_key_in_use", told, keep=False)
        if key in self._kept:
            first, kept = self._kept[key]
            if first != body:
                told = f"Keys for idempotent requests can only be used with the same parameters ('{key}')."
                return error(400, "idempotency_error", None, told)
            return Answer(kept.status, kept.body, {"Idempotent-Replayed": "true", "Idempotency-Key": key})
        self._working.add(key)
        try:
            answer = await self._refund(fault, dict(body))
        finally:
            self._working.discard(key)
        if answer.keep:
            self._kept[key] = (body, answer)
        if fault in ("cut_after", "hang_after", "die_after"):
            if fault == "die_after":
                self.die()
            if fault == "hang_after":
                await asyncio.Event().wait()
            raise HungUp
        if fault == "garbage_after":
            return Answer(200, {})
        return answer

    async def _refund(self, fault: Fault | None, form: dict[str, str]) -> Answer:
        if fault == "500_before":
            return error(500, "api_error", None, "Something went wrong")
        if fault == "lock_timeout":
            told = "This object cannot be accessed right now because another API request is accessing it."
            return error(429, "invalid_request_error", "lock_timeout", told, keep=False)
        if fault == "409":
            return error(409, "invalid_request_error", None, "Conflict", keep=False)
        if fault == "hang_before":
            await asyncio.shield(self.go_on.wait())
        payment_id, minor = form["payment_intent"], int(form["amount"])
        payment = self.payments.get(payment_id)
        if payment is None:
            return missing("payment_intent", payment_id)
        left = payment["minor"] - self.refunded(payment_id)
        if payment["status"] != "succeeded":
            told = f"This PaymentIntent ({payment_id}) does not have a successful charge to refund."
            return error(400, "invalid_request_error", "payment_intent_unexpected_state", told)
        if left == 0:
            return error(400, "invalid_request_error", "charge_already_refunded", "Charge has already been refunded.")
        if minor > left:
            told = f"Refund amount ({minor}) is greater than unrefunded amount on charge ({left})"
            return error(400, "invalid_request_error", None, told)
        made = {
            "id": f"re_{secrets.token_hex(8)}",
            "object": "refund",
            "amount": minor,
            "charge": payment_id.replace("pi_", "ch_"),
            "currency": payment["currency"],
            "created": 1_763_000_000 + len(self.refunds),
            "metadata": {name[9:-1]: value for name, value in form.items() if name.startswith("metadata[")},
            "payment_intent": payment_id,
            "status": payment.get("refund_status", "succeeded"),
        }
        if made["status"] == "failed":
            made["failure_reason"] = "expired_or_canceled_card"
        self.refunds.append(made)
        return error(500, "api_error", None, "Something went wrong") if fault == "500_after" else Answer(200, made)

    def _list(self, query: dict[str, str]) -> Answer:
        self.listed.set()
        if query["payment_intent"] not in self.payments:
            return missing("payment_intent", query["payment_intent"])
        rows = [one for one in reversed(self.refunds) if one["payment_intent"] == query["payment_intent"]]
        ids = [one["id"] for one in rows]
        start = ids.index(query["starting_after"]) + 1 if "starting_after" in query else 0
        end = start + min(int(query.get("limit", 10)), self.page)
        page = {"object": "list", "url": "/v1/refunds", "has_more": end < len(rows), "data": rows[start:end]}
        return Answer(200, page)

    def _payment(self, payment_id: str, *, expand: bool) -> Json:
        payment = self.payments[payment_id]
        charge = {
            "id": payment_id.replace("pi_", "ch_"),
            "object": "charge",
            "amount": payment["minor"],
            "amount_captured": payment["minor"],
            "amount_refunded": self.refunded(payment_id),
            "currency": payment["currency"],
            "disputed": payment["disputed"],
            "billing_details": {"name": payment["name"], "email": None, "phone": None, "address": None},
        }
        succeeded = payment["status"] == "succeeded"
        return {
            "id": payment_id,
            "object": "payment_intent",
            "amount": payment["minor"],
            "amount_received": payment["minor"] if succeeded else 0,
            "currency": payment["currency"],
            "status": payment["status"],
            "latest_charge": (charge if expand else charge["id"]) if succeeded else None,
        }


def error(status: int, kind: str, code: str | None, message: str, *, keep: bool = True) -> Answer:
    """An error as Stripe writes it."""
    said = {"type": kind, "message": message} | ({"code": code} if code else {})
    return Answer(status, {"error": said}, keep=keep)


def missing(what: str, name: str) -> Answer:
    return error(404, "invalid_request_error", "resource_missing", f"No such {what}: '{name}'")
