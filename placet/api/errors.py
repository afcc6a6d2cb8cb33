"""Errors as people and programs get them: JSON with a stable code, a sentence, and what to do (L5).

    {"code": "already_decided", "message": "It was approved by marta before. …", "outcome": {…}}

`field` names what of the request cannot be used; a conflict carries the state it met. Never a stack trace: what nobody
foresaw is logged under an id, and the answer carries that id.
"""

from typing import Any, ClassVar
from uuid import uuid4

import psycopg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from psycopg_pool import PoolTimeout
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from placet.record.errors import NotFound, PlacetError
from tools.registry import UnknownTool

log = structlog.get_logger()
SECONDS_AWAY = "2"  # Retry-After while the database is away


class NotAuthenticated(PlacetError):
    """The request carries no credentials, or none that are good: which of the two is said, never why a token failed
    in a way that helps to forge one."""

    code = "not_authenticated"
    status = 401


class TooManyRequests(PlacetError):
    """The key or person asked for more than the limit; `retry_after` is in seconds."""

    code = "too_many_requests"
    status = 429


class NotServedHere(PlacetError):
    """The caller's tenant is known, but this server's tools and rules are another tenant's."""

    code = "tenant_not_served_here"
    status = 409


class NoSuchTool(NotFound):
    """There is no tool of that name; the message names the ones there are."""

    code = "unknown_tool"


class BodyTooLarge(HTTPException):
    """The request's body is larger than `PLACET_MAX_BODY_BYTES`."""

    code: ClassVar[str] = "body_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The request's body is larger than {limit:,} bytes; nothing of it was used.")


class Problem(BaseModel):
    """What every answer that is not 2xx carries; some codes carry more fields."""

    model_config = ConfigDict(extra="allow")

    code: str = Field(description="Stable; programs decide by it.", examples=["unknown_turn"])
    message: str = Field(description="For people: what came, what was expected, what to do.")
    field: str | None = Field(default=None, description="With 422: the path of what cannot be used.")


WHEN = {
    400: "The body is not JSON.",
    401: "No credentials, or none that are good.",
    403: "The role or the duty is missing, or it is the caller's own request.",
    404: "There is no such thing, or it belongs to somebody else.",
    409: "It is in another state; the answer says which.",
    413: "The body is too large.",
    422: "Something given cannot be used; `field` says what. Nothing was changed.",
    429: "More requests than the limit; `Retry-After` says when.",
    500: "Something nobody foresaw; the server's log has it under `id`.",
    503: "The database is away; nothing confirmed is lost.",
}
EXAMPLES: dict[int, dict[str, Any]] = {
    401: {
        "code": "not_authenticated",
        "message": "This needs a key or a token: send X-Api-Key, or Authorization: Bearer ….",
    },
    403: {
        "code": "not_allowed",
        "message": "It is your own request; somebody else has to decide it.",
        "duty": "support",
    },
    404: {"code": "unknown_turn", "message": "There is no turn 6f1c2a60-… here."},
    409: {
        "code": "already_decided",
        "message": "It was rejected by pedro before.",
        "outcome": {"status": "rejected", "decided_by": "pedro", "reason": "already done by hand"},
    },
    422: {"code": "invalid_input", "message": "message: String should have at least 1 character", "field": "message"},
    429: {"code": "too_many_requests", "message": "More than 200 per 1 second; try again in 1 s.", "retry_after": 1},
    503: {"code": "database_unreachable", "message": "The database does not answer; try again in 2 s."},
}


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How a route documents what else it answers; what any route may answer comes with it."""
    documented: dict[int | str, dict[str, Any]] = {}
    for status in sorted({401, 403, 422, 429, 503, *statuses}):
        body: dict[str, Any] = {"model": Problem, "description": WHEN[status]}
        if status in EXAMPLES:
            body["content"] = {"application/json": {"example": EXAMPLES[status]}}
        documented[status] = body
    return documented


def document_bodies(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document, in which whatever takes a body says what becomes of one that cannot be read or is too large."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path in document["paths"].values():
        for operation in path.values():
            if "requestBody" in operation:
                for status in (400, 413):
                    operation["responses"].setdefault(str(status), {"description": WHEN[status], "content": content})
    return document


def problem(
    status: int, code: str, message: str, headers: dict[str, str] | None = None, **details: Any
) -> JSONResponse:
    """An answer that is not 2xx."""
    return JSONResponse({"code": code, "message": message, **details}, status, headers)


def of(error: PlacetError) -> JSONResponse:
    """What an error of the project answers."""
    headers: dict[str, str] = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == 503:
        headers["Retry-After"] = SECONDS_AWAY
    if "retry_after" in error.details:
        headers["Retry-After"] = str(error.details["retry_after"])
    return JSONResponse(error.as_json(), error.status, headers)


def install(app: FastAPI) -> None:
    """Turn every exception of the app into such an answer."""
    app.add_exception_handler(PlacetError, _of_ours)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(UnknownTool, _of_tool)
    app.add_exception_handler(psycopg.OperationalError, _of_database)
    app.add_exception_handler(PoolTimeout, _of_database)
    app.add_middleware(_LastDoor)


async def _of_ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PlacetError)
    if error.status >= 500 and error.status != 503:
        log.error("request_failed", path=request.url.path, code=error.code, error=str(error))
    return of(error)


async def _of_tool(request: Request, error: Exception) -> JSONResponse:
    return of(NoSuchTool(str(error)))


async def _of_validation(request: Request, error: Exception) -> JSONResponse:
    """422 with the first field, and all of them; never what was sent, which may be a secret."""
    assert isinstance(error, RequestValidationError)
    found = [{"field": _path(one["loc"]), "problem": str(one["msg"])} for one in error.errors()[:20]]
    said = "; ".join(f"{one['field']}: {one['problem']}" for one in found)
    return problem(
        422,
        "invalid_input",
        _printable(said)[:2000],
        field=_printable(found[0]["field"]),
        errors=[{name: _printable(text) for name, text in one.items()} for one in found],
    )


def _path(location: tuple[int | str, ...]) -> str:
    """`body.filter.tool` without where it stood: `filter.tool`."""
    inside = location[1:] if len(location) > 1 else location
    path = ""
    for part in inside:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path or "body"


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


async def _of_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = getattr(error, "code", None)
    match error.status_code:
        case 404:
            code, said = "no_such_route", f"There is nothing at {request.method} {request.url.path}; see /openapi.json."
        case 405:
            code, said = "method_not_allowed", f"{request.url.path} does not know {request.method}."
        case 400:
            code, said = "unreadable_body", "The body cannot be read as JSON."
        case _:
            said = str(error.detail)
    headers = dict(error.headers) if error.headers else None
    return problem(error.status_code, code or "refused", _printable(said), headers)


async def _of_database(request: Request, error: Exception) -> JSONResponse:
    log.warning("database_away", path=request.url.path, error=str(error).strip())
    full = isinstance(error, psycopg.errors.DiskFull)
    return problem(
        503,
        "disk_full" if full else "database_unreachable",
        "The database's disk is full; nothing of this was stored, and nothing that was stored is lost."
        if full
        else f"The database does not answer; what was confirmed is stored. Try again in {SECONDS_AWAY} s.",
        {"Retry-After": SECONDS_AWAY},
    )


class _LastDoor:
    """What nobody foresaw becomes a 500 without its innards; the log has them, under the id in the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception as error:  # the last place where an error can become an answer
            id_ = uuid4().hex[:12]
            log.error("request_broke", id=id_, method=scope["method"], path=scope["path"], exc_info=error)
            if started:
                raise
            message = (
                f"Something nobody foresaw; what was confirmed before is stored. The server's log has it as {id_}."
            )
            await problem(500, "internal_error", message, id=id_)(scope, receive, send)
