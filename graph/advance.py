"""One segment of a turn: from a claim to a pause or an end.

Loads the checkpoint, starts the turn (T6), runs the graph until nothing moves, and settles what the turn waits for
together with the release of the thread. A wake-up brings no answer: decisions are read from their rows.
"""

from typing import Any, cast

import psycopg
import structlog
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command
from psycopg_pool import PoolTimeout

from graph import Graph
from graph.said import said
from graph.services import Services
from graph.state import Ending, first_state
from graph.versions import StateVersionMismatch, bring_up_to_date
from placet.record import items, runs, turns
from placet.record.checkpointer import FencedSaver, config_of
from placet.record.errors import PlacetError
from placet.record.runs import Owned

log = structlog.get_logger()
Resume = Command[Any]


async def advance(
    services: Services, graph: Graph, owned: Owned, *, resume: Resume | None = None, acting: str | None = None
) -> turns.Status:
    """Run the claimed turn on; returns the status in which it was left.

    `resume` is a client's `Command`, whose values are handed to `decide` as `acting`, an authenticated user id. Raises
    `StaleEpoch` when the thread was lost on the way: its new owner goes on. A database that is away is raised too: the
    lease lapses, and the run is taken up again.
    """
    saver = FencedSaver(services.database, owned)
    bound = graph.copy(update={"checkpointer": saver})
    more = {"langgraph_auth_user_id": acting} if acting else {}
    config = cast("RunnableConfig", config_of(owned, **more))
    try:
        await bring_up_to_date(saver, config)
        status = await _run(services, bound, owned, config, resume)
    except StateVersionMismatch as error:
        log.error("turn_refused", turn_id=str(owned.turn_id), error=str(error))
        async with services.database.transaction("refuse") as tx:
            status = await turns.refuse(tx, owned, error.as_json())
    except (psycopg.OperationalError, PoolTimeout):
        raise
    except Exception as error:
        if runs.is_stale(error):
            raise
        await services.settled()
        log.exception("turn_failed", turn_id=str(owned.turn_id), epoch=owned.epoch)
        own = getattr(error, "code", None)
        problem = {
            "code": own if isinstance(own, str) else "internal_error",
            "message": str(error) if isinstance(error, PlacetError) else said(error, 2000),
            "retryable": True,
        }
        async with services.database.transaction("fail") as tx:
            status = await turns.settle(tx, owned, ending="failed", error=problem)
    return status


async def _run(
    services: Services, graph: Graph, owned: Owned, config: RunnableConfig, resume: Resume | None
) -> turns.Status:
    before = await graph.aget_state(config)
    async with services.database.transaction("start") as tx:
        status = await turns.start(tx, owned)
        turn = await turns.get(tx, owned.tenant_id, owned.turn_id)
    begun = before.values.get("turn_id") == str(owned.turn_id)
    if not begun and status in turns.ENDED:  # cancelled before it ever ran: nothing to close
        async with services.database.transaction("nothing_to_close") as tx:
            return await turns.settle(tx, owned, ending=None)

    if begun and not before.next and _is_reopened(owned, before.values["ending"]):
        await graph.aupdate_state(config, {"ending": None, "error": None}, as_node="call")  # plan is next
    await graph.ainvoke(resume if begun else first_state(turn), config, durability="sync")
    await services.settled()
    after = await graph.aget_state(config)
    ending = after.values["ending"] if not after.next else None
    async with services.database.transaction("settle") as tx:
        if not after.next and ending is None:  # what it stood at is not in this graph
            await items.orphan_open(tx, owned, because="The step that it waited in no longer exists in the graph.")
        return await turns.settle(
            tx,
            owned,
            ending=None if ending == "cancelled" else ending,
            output_text=str(after.values["messages"][-1].text) if ending == "completed" else None,
            error=after.values.get("error"),
        )


def _is_reopened(owned: Owned, ending: Ending | None) -> bool:
    """A person retries a failed turn, or brings an orphaned call to the graph as it is now."""
    return (owned.because, ending) in (("retry", "failed"), ("migrate", None))
