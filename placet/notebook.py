"""Placet in a notebook: the real graph on the real database, one cell at a time.

    placet = await open_notebook()
    graph = placet.as_user("ana")
    paused = await graph.ainvoke({"messages": [("user", "Refund the failed orders of batch NOV-17")]}, thread)
    done = await placet.as_user("marta").ainvoke(Command(resume={"kind": "approve"}), thread)

No worker runs the graph here, so the invocation claims the thread itself (O1), under an epoch like any other run. A resume
value is a decision of the user whose graph it is, and goes through `decide` like every other (A6, L2). What a resume
cannot do here it cannot do anywhere: approve one's own request, approve something else, approve twice.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, StateSnapshot

from graph import Graph, build
from graph.advance import advance
from graph.services import Services
from placet.house import open_house
from placet.record import approvals, events, people, runs, threads, turns
from placet.record.approvals import Approval
from placet.record.checkpointer import FencedSaver
from placet.record.database import Transaction
from placet.record.errors import Conflict, InvalidInput
from placet.record.events import Event
from placet.record.runs import Owned
from placet.settings import Settings
from tools.shop import Shop
from tools.shop.seed import seed


class ThreadBusy(Conflict):
    """Another run owns the thread now; it will take what was decided along."""

    code = "thread_busy"


class NothingPending(Conflict):
    """There is nothing to resume on this thread."""

    code = "nothing_pending"


@dataclass(frozen=True)
class UserGraph:
    """The graph as one authenticated user drives it; `ainvoke` and `aget_state` as LangGraph has them."""

    services: Services
    graph: Graph
    user_id: str

    async def ainvoke(
        self, given: Mapping[str, Any] | Command[Any], config: RunnableConfig | None = None
    ) -> dict[str, Any]:
        """Start a turn with `{"messages": […]}`, or resume the thread's with `Command(resume=…)`.

        Returns the state's values, with `__interrupt__` where it paused. Raises `TurnWaits` for a new message on a
        thread that waits for people, `NothingPending` for a resume that nothing waits for, `ThreadBusy`.
        """
        resume: Command[Any] | None = None
        if isinstance(given, Command):
            resume, owned = given, await self._claim_waiting(_thread_of(config))
        else:
            owned = await self._claim_new(_message_of(given), _thread_of(config))
        await advance(self.services, self.graph, owned, resume=resume, acting=self.user_id)
        while (more := await self._claim(owned.thread_id)) is not None:  # the decision's own knock
            await advance(self.services, self.graph, more)
        snapshot = await self.aget_state({"configurable": {"thread_id": str(owned.thread_id)}})
        paused = {"__interrupt__": list(snapshot.interrupts)} if snapshot.interrupts else {}
        return {**snapshot.values, **paused}

    async def aget_state(self, config: RunnableConfig) -> StateSnapshot:
        """The thread's latest checkpoint, of a thread of this user's tenant."""
        thread_id = _thread_of(config)
        async with self.services.database.read() as tx:
            await turns.latest(tx, self.services.settings.tenant, thread_id)
        reader = self.graph.copy(update={"checkpointer": FencedSaver(self.services.database, None)})
        return await reader.aget_state({"configurable": {"thread_id": str(thread_id)}})

    async def _claim(self, thread_id: UUID) -> Owned | None:
        async with self.services.database.transaction() as tx:
            return await self._claim_in(tx, thread_id)

    async def _claim_new(self, message: str, thread_id: UUID) -> Owned:
        settings = self.services.settings
        async with self.services.database.transaction() as tx:
            user = await people.get(tx, settings.tenant, self.user_id)
            await threads.create(tx, user, thread_id)
            await turns.create(
                tx,
                user,
                message,
                max_steps=settings.max_steps,
                max_chars=settings.max_message_chars,
                thread_id=thread_id,
            )
            return self._ours(await self._claim_in(tx, thread_id), thread_id)

    async def _claim_waiting(self, thread_id: UUID) -> Owned:
        """Make the waiting turn due and claim it, in one transaction: no worker can come between."""
        tenant = self.services.settings.tenant
        async with self.services.database.transaction() as tx:
            turn = await turns.latest(tx, tenant, thread_id)
            if turn.status not in turns.WAITING:
                raise NothingPending(f"Nothing waits on this thread: its last turn is {turn.status}.")
            await runs.lock_thread(tx, thread_id)
            await runs.make_due(tx, tenant, thread_id, turn.turn_id, because="resume")
            return self._ours(await self._claim_in(tx, thread_id), thread_id)

    async def _claim_in(self, tx: Transaction, thread_id: UUID) -> Owned | None:
        settings = self.services.settings
        return await runs.claim(
            tx, settings.tenant, owner=f"notebook:{self.user_id}", lease=settings.lease, thread_id=thread_id
        )

    def _ours(self, owned: Owned | None, thread_id: UUID) -> Owned:
        if owned is None:
            raise ThreadBusy(f"Another run works on thread {thread_id}; look at it again in a moment.")
        return owned


@dataclass(frozen=True)
class Notebook:
    """An open house, for as many users as the notebook plays."""

    services: Services
    graph: Graph
    _stack: AsyncExitStack

    def as_user(self, user_id: str) -> UserGraph:
        """The graph as that user drives it: their requests, their decisions."""
        return UserGraph(self.services, self.graph, user_id)

    def thread(self) -> RunnableConfig:
        """The configuration of a new thread."""
        return {"configurable": {"thread_id": str(uuid4())}}

    async def pending(self) -> list[Approval]:
        """What waits for people."""
        async with self.services.database.read() as tx:
            return await approvals.waiting(tx, self.services.settings.tenant)

    async def timeline(self, config: RunnableConfig) -> list[Event]:
        """The thread's events, oldest first."""
        async with self.services.database.read() as tx:
            return await events.of_thread(tx, self.services.settings.tenant, _thread_of(config))

    async def close(self) -> None:
        """Close the connections; the embedded database goes on."""
        await self._stack.aclose()


async def open_notebook(settings: Settings | None = None) -> Notebook:
    """Open the house, fill the shop, and let in `ana` (asks) and `marta` (decides: support, finance)."""
    stack = AsyncExitStack()
    services = await stack.enter_async_context(open_house(settings or Settings()))
    tenant = services.settings.tenant
    async with services.database.transaction() as tx:
        await people.ensure(tx, tenant, "ana", name="Ana", roles=["requester"], duties=[])
        await people.ensure(tx, tenant, "marta", name="Marta", roles=["reviewer"], duties=["support", "finance"])
    await seed(Shop(services.database, tenant))
    return Notebook(services, build(services), stack)


def draw(timeline: Sequence[Event]) -> Any:
    """The timeline as a picture: one row per event, time to the right, waiting for people shaded. A matplotlib figure."""
    from matplotlib import dates, pyplot  # noqa: PLC0415  # an extra: only pictures need it

    colours = {"approval": "tab:orange", "tool": "tab:blue", "effect": "tab:red", "plan": "tab:purple"}
    figure, axes = pyplot.subplots(figsize=(9, 0.32 * len(timeline) + 0.8))
    waiting_since = None
    for row, event in enumerate(timeline):
        colour = colours.get(event.type.split("_")[0], "tab:green")
        axes.plot(event.at, row, "o", color=colour)
        axes.annotate(f"{event.seq}  {event.type}", (event.at, row), xytext=(8, -3), textcoords="offset points")
        if event.type == "turn_paused":
            waiting_since = event.at
        elif event.type == "turn_resumed" and waiting_since is not None:
            axes.axvspan(waiting_since, event.at, color="tab:orange", alpha=0.12)
            waiting_since = None
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.margins(x=0.35)
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S.%f"))
    axes.set_xlabel("UTC; shaded: nobody runs, people decide")
    pyplot.close(figure)
    return figure


def _thread_of(config: RunnableConfig | None) -> UUID:
    try:
        return UUID(str((config or {})["configurable"]["thread_id"]))
    except (KeyError, ValueError):
        raise InvalidInput(
            'The configuration names a thread: {"configurable": {"thread_id": a UUID}}; `placet.thread()` makes one.'
        ) from None


def _message_of(given: Mapping[str, Any]) -> str:
    messages: list[BaseMessage] = convert_to_messages(given.get("messages", []))
    if len(messages) != 1 or messages[0].type != "human":
        raise InvalidInput('A turn starts with one message of the user: {"messages": [("user", "…")]}.')
    return str(messages[0].text)
