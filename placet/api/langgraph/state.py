"""A thread's state as LangGraph's clients know it, read from its checkpoints; reading never writes one.

What a state says is for people and clients to look at. What counts is in the rows.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.types import StateSnapshot

from graph import Graph
from placet.emit import as_interrupt
from placet.record.checkpointer import FencedSaver
from placet.record.database import Database
from placet.record.errors import NotFound

Json = dict[str, Any]


class UnknownCheckpoint(NotFound):
    """The thread has no such checkpoint, or no such subgraph at it."""

    code = "unknown_checkpoint"


class Reader:
    """Reads checkpoints; the caller has seen that the thread may be seen."""

    def __init__(self, graph: Graph, database: Database) -> None:
        self._graph = graph
        self._database = database

    async def at(
        self, thread_id: UUID, checkpoint_id: str | None = None, namespace: str = "", *, subgraphs: bool = False
    ) -> StateSnapshot:
        """The state at a checkpoint, the latest without an id; raises `UnknownCheckpoint`."""
        config = _config(thread_id, checkpoint_id, namespace)
        try:
            found = await self._reading().aget_state(config, subgraphs=subgraphs)
        except ValueError as error:  # a namespace that leads to no subgraph
            raise UnknownCheckpoint(f"There is no such checkpoint: {error}.") from None
        if checkpoint_id and found.metadata is None:
            raise UnknownCheckpoint(f"Thread {thread_id} has no checkpoint {checkpoint_id}.")
        return found

    async def history(
        self,
        thread_id: UUID,
        *,
        limit: int,
        before: str | None = None,
        namespace: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[StateSnapshot]:
        """Checkpoints, newest first."""
        try:
            async for snapshot in self._reading().aget_state_history(
                _config(thread_id, None, namespace),
                limit=limit,
                before=_config(thread_id, before, namespace) if before else None,
                filter=dict(metadata) if metadata else None,
            ):
                yield snapshot
        except ValueError as error:
            raise UnknownCheckpoint(f"There is no such checkpoint: {error}.") from None

    def _reading(self) -> Graph:
        return self._graph.copy(update={"checkpointer": FencedSaver(self._database, None)})


def _config(thread_id: UUID, checkpoint_id: str | None, namespace: str) -> RunnableConfig:
    where = {"thread_id": str(thread_id), "checkpoint_ns": namespace}
    if checkpoint_id:
        where["checkpoint_id"] = checkpoint_id
    return {"configurable": where}


def thread_state(snapshot: StateSnapshot, select: Sequence[str] | None = None) -> Json:
    """The snapshot in LangGraph's form; with `select`, only those of its fields (`values.messages` for one key)."""
    parent = _checkpoint(snapshot.parent_config)
    state: Json = {
        "values": snapshot.values or {},
        "next": list(snapshot.next),
        "tasks": [
            {
                "id": task.id,
                "name": task.name,
                "path": list(task.path),
                "error": str(task.error) if task.error is not None else None,
                "interrupts": [as_interrupt(interrupt) for interrupt in task.interrupts],
                "checkpoint": cast("Json", task.state)["configurable"] if isinstance(task.state, dict) else None,
                "state": thread_state(task.state) if isinstance(task.state, StateSnapshot) else None,
                "result": task.result,
            }
            for task in snapshot.tasks
        ],
        "metadata": snapshot.metadata or {},
        "created_at": snapshot.created_at,
        "checkpoint": _checkpoint(snapshot.config),
        "parent_checkpoint": parent,
        "interrupts": [as_interrupt(interrupt) for interrupt in snapshot.interrupts],
        "checkpoint_id": checkpoint_id(snapshot),
        "parent_checkpoint_id": parent["checkpoint_id"] if parent else None,
    }
    if select is None:
        return state
    chosen = {name: state[name] for name in select if name in state}
    keys = [name.removeprefix("values.") for name in select if name.startswith("values.")]
    if keys and "values" not in chosen:
        chosen["values"] = {key: snapshot.values[key] for key in keys if key in (snapshot.values or {})}
    return chosen


def checkpoint_id(snapshot: StateSnapshot) -> str | None:
    """The checkpoint's id; None of a thread that has none."""
    found: str | None = snapshot.config.get("configurable", {}).get("checkpoint_id")
    return found


def _checkpoint(config: RunnableConfig | None) -> Json | None:
    where = (config or {}).get("configurable", {})
    if not where.get("checkpoint_id"):
        return None
    return {
        "thread_id": where.get("thread_id"),
        "checkpoint_ns": where.get("checkpoint_ns") or "",
        "checkpoint_id": where["checkpoint_id"],
        "checkpoint_map": where.get("checkpoint_map") or {},
    }


def task_interrupts(snapshot: StateSnapshot) -> dict[str, list[Json]]:
    """What is asked, by task, as LangGraph's threads carry it."""
    return {
        task.id: [as_interrupt(interrupt) for interrupt in task.interrupts]
        for task in snapshot.tasks
        if task.interrupts
    }
