"""An OpenAI-compatible server on loopback, which answers as it is told and counts what it was really asked.

    async with serving() as server:
        server.will(status(429, {"retry-after": "1"}), completion("Hello"))
        ...                                     # a client at server.url
        server.requests[0].body["messages"]     # what arrived
        server.seconds_between(0, 1)            # how long the client waited

It is the witness of the tests: what a client says it sent is not asked. A request beyond the script gets 500 and still
counts.
"""

import asyncio
import json
import logging
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.types import Receive, Scope, Send

Reply = Callable[["Server"], Awaitable["Response | Broken"]]


@dataclass(frozen=True)
class Seen:
    """A request as it arrived, and when (seconds of a monotonic clock)."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    at: float


@dataclass
class Server:
    """What to answer next, and what was asked."""

    url: str
    requests: list[Seen] = field(default_factory=list)
    script: deque[Reply] = field(default_factory=deque)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def will(self, *replies: Reply) -> None:
        """Answer with these, one per request, in order."""
        self.script.extend(replies)

    def seconds_between(self, first: int, second: int) -> float:
        """Seconds from the arrival of one request to that of another."""
        return self.requests[second].at - self.requests[first].at

    async def answer(self, request: Request) -> "Response | Broken":
        body = json.loads(await request.body() or b"{}")
        self.requests.append(Seen(request.url.path, dict(request.headers), body, time.monotonic()))
        if not self.script:
            return Response(
                '{"error": {"message": "The script has no more answers."}}', 500, media_type="application/json"
            )
        return await self.script.popleft()(self)


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """A server on a free port of loopback, in this event loop, until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
    app = FastAPI()

    @app.post("/v1/{path:path}", response_model=None)
    async def answer(request: Request) -> Response | Broken:
        return await server.answer(request)

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # broken answers are meant
    http = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    http.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    running = asyncio.create_task(http.serve(sockets=[listener]))
    try:
        yield server
    finally:
        server.stopping.set()
        http.should_exit = True
        await running


def reply(
    body: bytes | str, status: int = 200, headers: Mapping[str, str] | None = None, kind: str = "application/json"
) -> Reply:
    """Exactly this body."""

    async def send(server: Server) -> Response:
        return Response(body, status, dict(headers or {}), kind)

    return send


def status(
    code: int, headers: Mapping[str, str] | None = None, message: str = "No.", kind: str = "test_error"
) -> Reply:
    """An error as OpenAI words it."""
    return reply(json.dumps({"error": {"message": message, "type": kind, "code": kind}}), code, headers)


def completion(
    text: str | None = None,
    *,
    calls: list[dict[str, Any]] | None = None,
    finish_reason: str | None = None,
    **message: Any,
) -> Reply:
    """A chat completion; `calls` are `call(…)`s, as raw as a provider may send them."""
    said = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls is not None else {}), **message}
    return reply(
        json.dumps(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": "served-model",
                "choices": [
                    {"index": 0, "message": said, "finish_reason": finish_reason or ("tool_calls" if calls else "stop")}
                ],
                "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
            }
        )
    )


def streamed(*pieces: str, calls: list[dict[str, Any]] | None = None, finish_reason: str | None = "stop") -> Reply:
    """A completion in server-sent chunks: one per piece of text, two per call; without an end when there is no reason."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces)]
    for index, one in enumerate(calls or []):
        name, arguments = one["function"]["name"], one["function"]["arguments"]
        half = len(arguments) // 2
        deltas.append(
            {"tool_calls": [{**one, "index": index, "function": {"name": name, "arguments": arguments[:half]}}]}
        )
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments[half:]}}]})
    chunks = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    if finish_reason is not None:
        chunks.append({"index": 0, "delta": {}, "finish_reason": finish_reason})
    lines = [
        {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "served-model", "choices": [chunk]}
        for chunk in chunks
    ]
    body = "".join(f"data: {json.dumps(line)}\n\n" for line in lines)
    return reply(body + ("data: [DONE]\n\n" if finish_reason else ""), kind="text/event-stream")


def call(tool: Any, arguments: Any, id: Any = "call_1") -> dict[str, Any]:
    """One tool call; `arguments` is text as the model wrote it, or a value that is written as JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": tool, "arguments": text}}


def silence() -> Reply:
    """No answer, until the server stops."""

    async def wait(server: Server) -> Response:
        await server.stopping.wait()
        return Response(status_code=503)

    return wait


def cut_off(body: bytes = b'{"id": "chatcmpl-1", "choi') -> Reply:
    """Headers that promise more, a piece of the body, and a closed connection."""

    async def send(server: Server) -> Broken:
        return Broken(server, body, drip=False)

    return send


def drip(body: bytes = b" " * 1000) -> Reply:
    """One byte now and then: never silent, never done."""

    async def send(server: Server) -> Broken:
        return Broken(server, body, drip=True)

    return send


class Broken(Response):
    """A response that does not keep its Content-Length."""

    def __init__(self, server: Server, body: bytes, *, drip: bool) -> None:
        super().__init__(status_code=200, media_type="application/json")
        self.server, self.piece, self.drip = server, body, drip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"100000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        pieces = [self.piece[i : i + 1] for i in range(len(self.piece))] if self.drip else [self.piece]
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if self.drip:
                await asyncio.wait([asyncio.ensure_future(self.server.stopping.wait())], timeout=0.02)
