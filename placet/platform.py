"""The same graph where LangGraph's own server runs it: `langgraph dev`, or its platform (L2, O1).

There is no worker of ours, so the invocation admits what it is given like our own endpoints do, claims the thread and
advances the turn under its epoch; checkpoints go through our fenced saver. What LangGraph's server writes beside that is
its own bookkeeping. `deploy/langgraph/` has the entry points that `langgraph.json` names.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, cast
from uuid import UUID

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, StateSnapshot, StreamMode

from graph import Graph, build
from graph.advance import advance
from graph.services import Services
from placet.api.langgraph.admission import Asked, ThreadBusy, admit
from placet.api.langgraph.bodies import RunCreate
from placet.emit import encode
from placet.house import open_house
from placet.record import credentials, people, runs, turns
from placet.record.checkpointer import FencedSaver
from placet.record.database import AWAY
from placet.record.errors import NotAllowed, PlacetError
from placet.record.people import User
from placet.settings import Settings

_opened: dict[asyncio.AbstractEventLoop, tuple[AsyncExitStack, Services]] = {}
_opening = asyncio.Lock()


async def services() -> Services:
    """This process's open house, one per event loop; LangGraph's server ends with the process."""
    loop = asyncio.get_running_loop()
    async with _opening:
        if loop not in _opened:
            stack = AsyncExitStack()
            opened = await stack.enter_async_context(open_house(Settings()))
            _opened[loop] = (stack, opened)
    return _opened[loop][1]


class RunFailed(PlacetError):
    """The turn ended without an answer; its error says why."""

    code = "run_failed"


class Driven(CompiledStateGraph[Any, Any, Any, Any]):
    """The graph as LangGraph's server drives it: an invocation is a turn or a decision of who is authenticated."""

    async def astream(self, input: Any, config: Any = None, **how: Any) -> AsyncIterator[Any]:
        """Parts in the modes that were asked for, as LangGraph's own `astream` gives them."""
        house = await services()
        where = (config or {}).get("configurable", {})
        user = await _user(house, where)
        thread_id = UUID(str(where["thread_id"]))
        asked = how.get("stream_mode") or ["values"]
        modes: list[StreamMode] = [cast("StreamMode", asked)] if isinstance(asked, str) else list(asked)
        await admit(house, build(house), Asked(user, thread_id, _body(input), [], create=True))
        sink = _Queue(modes, subgraphs=bool(how.get("subgraphs")))
        work = asyncio.create_task(_drive(house, thread_id, sink))
        try:
            while (part := await sink.parts.get()) is not None:
                namespace, mode, chunk = part
                told = (mode, chunk) if not isinstance(asked, str) else chunk
                if how.get("subgraphs"):
                    told = (namespace, mode, chunk) if not isinstance(asked, str) else (namespace, chunk)
                yield told
            await work
        finally:
            if not work.done():  # whoever listened is gone; what runs reaches its boundary (O4)
                with suppress(Exception):
                    await asyncio.shield(work)


async def _drive(house: Services, thread_id: UUID, sink: "_Queue") -> None:
    """Claim and advance until nothing of the thread is due."""
    graph = build(house)
    try:
        claimed = False
        while True:
            async with house.database.transaction("claim") as tx:
                owned = await runs.claim(
                    tx, house.settings.tenant, owner="langgraph", lease=house.settings.lease, thread_id=thread_id
                )
            if owned is None:
                break
            claimed = True
            keeper = asyncio.create_task(_keep(house, owned))
            try:
                status = await advance(house, graph, owned, sink=sink)
            finally:
                keeper.cancel()
            if status in ("failed", "exhausted"):
                async with house.database.read() as tx:
                    turn = await turns.get(tx, owned.tenant_id, owned.turn_id)
                raise RunFailed(str((turn.error or {}).get("message") or f"The turn is {status}."))
        if not claimed:
            raise ThreadBusy("Another run works on this thread; it takes what was decided along.")
    finally:
        await sink.parts.put(None)


async def _keep(house: Services, owned: runs.Owned) -> None:
    """Renew the lease until the run is over, or another one owns the thread; a database that is away is asked again."""
    while True:
        await asyncio.sleep(house.settings.lease.total_seconds() / 3)
        with suppress(*AWAY):
            async with house.database.transaction("renew") as tx:
                await runs.renew(tx, owned, lease=house.settings.lease)


class _Queue:
    """A sink that hands parts to who iterates."""

    def __init__(self, modes: Sequence[StreamMode], *, subgraphs: bool) -> None:
        self.modes = modes
        self.subgraphs = subgraphs
        self.parts: asyncio.Queue[tuple[tuple[str, ...], str, Any] | None] = asyncio.Queue(maxsize=1000)

    async def put(self, namespace: tuple[str, ...], mode: str, part: Any) -> None:
        await self.parts.put((namespace, mode, part))

    async def end(self, state: StateSnapshot) -> None:
        """What was put is out."""


def _body(given: Any) -> RunCreate:
    """What LangGraph's server read of a request, as our endpoints take it."""
    if isinstance(given, Command):
        return RunCreate.model_validate(
            {
                "assistant_id": "placet",
                "command": {"resume": given.resume, "update": given.update, "goto": given.goto or None},
            }
        )
    if isinstance(given, dict) and "messages" in given:
        messages = [_said(message) for message in given["messages"]]
        return RunCreate.model_validate({"assistant_id": "placet", "input": {"messages": messages}})
    return RunCreate.model_validate({"assistant_id": "placet", "input": given})


def _said(message: Any) -> Any:
    import json  # noqa: PLC0415

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
    yield driven(build(await services()))


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
    saver = Saver((await services()).database, None)
    saver.serde = _Serializer()
    yield saver


async def authenticate(headers: dict[bytes, bytes]) -> dict[str, Any]:
    """Who sends a request, for LangGraph's `Auth`: the owner of the key, or the development identity."""
    house = await services()
    key = headers.get(b"x-api-key", b"").decode("latin-1")
    if not key:
        bearer = headers.get(b"authorization", b"").decode("latin-1")
        key = bearer[7:] if bearer.lower().startswith("bearer ") else ""
    if not key and house.settings.dev_user:
        return {"identity": house.settings.dev_user}
    async with house.database.read() as tx:
        known = await credentials.whose_key(tx, key) if key else None
    if known is None or known.user.tenant_id != house.settings.tenant:
        raise NotAllowed("This needs a key: send X-Api-Key, made by `placet users key`.")
    return {"identity": known.user.user_id, "display_name": known.user.name, "permissions": list(known.user.roles)}
