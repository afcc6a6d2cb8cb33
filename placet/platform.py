"""The same graph where LangGraph's own server runs it: `langgraph dev`, or its platform (L2, O1).

An invocation is admitted like what our own endpoints are given, and follows the run, which a worker advances under its
epoch: one in this process, or any other on the database. Checkpoints go through our fenced saver, `/v1` is mounted as it
is. What LangGraph's server writes beside that is its own bookkeeping. `deploy/langgraph/` has the entry points that
`langgraph.json` names.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, cast
from uuid import UUID

from langchain_core.messages import AIMessageChunk, BaseMessage, convert_to_messages
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from graph import Graph
from graph.services import Services
from placet.api import approvals, effects, events, policy, turns
from placet.api.app import create_app
from placet.api.langgraph.admission import Asked, admit
from placet.api.langgraph.bodies import MODES, Mode, RunCreate
from placet.api.langgraph.opened import LangGraph, open_face
from placet.api.langgraph.sending import error_of, follow
from placet.emit import encode
from placet.house import open_house
from placet.record import client_runs, credentials, people, threads
from placet.record.checkpointer import FencedSaver
from placet.record.client_runs import ClientRun
from placet.record.errors import NotAllowed, PlacetError
from placet.record.people import User
from placet.record.streams import Part
from placet.settings import Settings
from placet.worker import Worker

ALL_THREADS = "threads:all"  # a permission: to see those of others

_opened: dict[asyncio.AbstractEventLoop, tuple[AsyncExitStack, LangGraph]] = {}
_opening = asyncio.Lock()


async def opened() -> LangGraph:
    """This event loop's open house, with a worker in it; opened by whatever LangGraph's server loads first."""
    loop = asyncio.get_running_loop()
    async with _opening:
        if loop not in _opened:
            async with AsyncExitStack() as stack:
                services = await stack.enter_async_context(open_house(Settings()))
                face = open_face(services, asyncio.Event())
                await stack.enter_async_context(face.following)
                await stack.enter_async_context(_working(Worker(services)))
                stack.callback(face.following.stopping.set)
                _opened[loop] = (stack.pop_all(), face)
    return _opened[loop][1]


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    """A worker beside the server; what it runs reaches its boundary before this ends (O4)."""
    work = asyncio.create_task(worker.run(signals=False))
    try:
        yield
    finally:
        worker.stop()
        await work


@asynccontextmanager
async def _services() -> AsyncIterator[Services]:
    """The house for as long as the server's http app lives."""
    try:
        yield (await opened()).services
    finally:
        stack, _ = _opened.pop(asyncio.get_running_loop())
        await stack.aclose()


class RunFailed(PlacetError):
    """The turn ended without an answer; its error says why."""

    code = "run_failed"


class Driven(CompiledStateGraph[Any, Any, Any, Any]):
    """The graph as LangGraph's server drives it: an invocation is a turn or a decision of who is authenticated."""

    async def astream(self, input: Any, config: Any = None, **how: Any) -> AsyncIterator[Any]:
        """Parts in the modes that were asked for, as LangGraph's own `astream` gives them, from whichever worker runs."""
        house = await opened()
        where = (config or {}).get("configurable", {})
        user = await _user(house.services, where)
        asked = how.get("stream_mode") or ["values"]
        one = isinstance(asked, str)
        modes = [cast("Mode", mode) for mode in ([asked] if one else asked) if mode in MODES]
        body = _body(input, subgraphs=bool(how.get("subgraphs")))
        run = await admit(
            house.services, house.graph, Asked(user, UUID(str(where["thread_id"])), body, modes, create=True)
        )
        async with aclosing(follow(house, run, 0)) as parts:
            async for some in parts:
                for part in some or ():
                    if part.mode in modes:
                        namespace = (tuple(part.namespace),) if how.get("subgraphs") else ()
                        told = (*namespace, *(() if one else (part.mode,)), _chunk(part))
                        yield told if len(told) > 1 else told[0]
        await _check_ended(house, run)


def _chunk(part: Part) -> Any:
    """A stored part as the graph gave it; tokens are messages again, which LangGraph's server adds up."""
    data = json.loads(part.data)
    if part.mode != "messages":
        return data
    raw, about = data
    message = AIMessageChunk(**raw) if raw.get("type") == "AIMessageChunk" else convert_to_messages([raw])[0]
    return message, about


async def _check_ended(house: LangGraph, run: ClientRun) -> None:
    """Raise `RunFailed` when that is how the run ended, or when this process ends before it."""
    async with house.services.database.read() as tx:
        now = await client_runs.get(tx, run.tenant_id, run.thread_id, run.client_run_id)
    if not now.ended:
        raise RunFailed("This server stops; the turn goes on in another process.")
    if (error := error_of(now)) is not None:
        raise RunFailed(error["message"])


def _body(given: Any, *, subgraphs: bool) -> RunCreate:
    """What LangGraph's server read of a request, as our endpoints take it."""
    body: dict[str, Any] = {"assistant_id": "placet", "stream_subgraphs": subgraphs}
    if isinstance(given, Command):
        body["command"] = {"resume": given.resume, "update": given.update, "goto": given.goto or None}
    elif isinstance(given, dict) and "messages" in given:
        body["input"] = {"messages": [_said(message) for message in given["messages"]]}
    else:
        body["input"] = given
    return RunCreate.model_validate(body)


def _said(message: Any) -> Any:
    return json.loads(encode(message)) if isinstance(message, BaseMessage) else message


async def _user(house: Services, where: dict[str, Any]) -> User:
    """Who is authenticated; without authentication the settings' development identity, by name."""
    named = where.get("langgraph_auth_user_id") or house.settings.dev_user
    if not named:
        raise NotAllowed("Nobody is authenticated. Send a key (X-Api-Key), or set PLACET_DEV_USER for development.")
    async with house.database.read() as tx:
        return await people.get(tx, house.settings.tenant, str(named))


@asynccontextmanager
async def graph(config: dict[str, Any]) -> AsyncIterator[Graph]:
    """What `langgraph.json` names: the graph, on this process's open house."""
    yield driven((await opened()).graph)


def driven(plain: Graph) -> Graph:
    """The same graph, to be driven by an invocation."""
    made = plain.copy()
    made.__class__ = Driven
    return made


class _Serializer(JsonPlusSerializer):
    """Strict as ours is. LangGraph's server makes an allow-list of its own for each subgraph, without end; ours stands."""

    def with_msgpack_allowlist(self, extra_allowlist: Any) -> "_Serializer":
        return self


class Saver(FencedSaver):
    """Reads our checkpoints for LangGraph's server. Only a claim writes; deleting is a tombstone of ours, not its."""

    async def adelete_thread(self, thread_id: str) -> None:
        """Nothing: what happened stays (L1)."""

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Nothing: a rollback removes no checkpoints (L1)."""


@asynccontextmanager
async def checkpointer() -> AsyncIterator[Saver]:
    """What `langgraph.json` names as its checkpointer."""
    saver = Saver((await opened()).services.database, None)
    saver.serde = _Serializer()
    yield saver


async def authenticate(headers: dict[bytes, bytes]) -> dict[str, Any]:
    """Who sends a request, for LangGraph's `Auth`: the owner of the key, or the development identity."""
    house = (await opened()).services
    key = headers.get(b"x-api-key", b"").decode("latin-1")
    if not key:
        bearer = headers.get(b"authorization", b"").decode("latin-1")
        key = bearer[7:] if bearer.lower().startswith("bearer ") else ""
    async with house.database.read() as tx:
        if not key and house.settings.dev_user:
            user = await people.get(tx, house.settings.tenant, house.settings.dev_user)
        else:
            known = await credentials.whose_key(tx, key) if key else None
            if known is None or known.user.tenant_id != house.settings.tenant:
                raise NotAllowed("This needs a key: send X-Api-Key, made by `placet users key`.")
            user = known.user
    everything = [ALL_THREADS] if threads.viewer(user) is None else []
    return {"identity": user.user_id, "display_name": user.name, "permissions": [*user.roles, *everything]}


def http() -> Starlette:
    """What `langgraph.json` names as its http app: `/v1`, opened and closed in the app's lifespan."""
    own = create_app(Settings(), _services(), rooms=(turns, events, approvals, effects, policy))

    async def v1(scope: Scope, receive: Receive, send: Send) -> None:
        await own({**scope, "root_path": "", "app": own}, receive, send)  # its routes have the prefix themselves

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with own.router.lifespan_context(own):
            yield

    return Starlette(routes=[Mount("/v1", v1)], lifespan=lifespan)
