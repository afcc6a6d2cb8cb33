"""What breaks in one call's pipeline stays in that call.

LangGraph cancels the siblings of a node that raises, even between payment and receipt, and the turn would end. So a call's
node turns whatever it meets into this call's one result (G3, G5): a row that was tampered with, a tool that is gone, a
fault of our own. Three things pass: a pause, the loss of the thread, and a database that is away (the run is taken up again).
"""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any
from uuid import UUID

import structlog
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt

from graph import protocol
from graph.execute import executed
from graph.said import said
from graph.services import Services, owned_by
from graph.state import CallState
from placet.record import approvals, effects, items, runs
from placet.record.database import AWAY
from placet.record.errors import PlacetError

log = structlog.get_logger()
Node = Callable[[Services, CallState, RunnableConfig], Awaitable[dict[str, Any]]]


def contained(node: Node) -> Node:
    """`node`, whose faults end its own call and no other."""

    @wraps(node)
    async def run(services: Services, state: CallState, config: RunnableConfig) -> dict[str, Any]:
        try:
            return await node(services, state, config)
        except (GraphBubbleUp, *AWAY):
            raise
        except Exception as error:
            if runs.is_stale(error):
                raise
            log.exception("call_broke", item_id=state["call"]["item_id"], tool=state["call"]["tool"])
            if await _ended(services, state, config, error):
                return {"next": "end"}
            interrupt({"type": "reconciliation", "tool": state["call"]["tool"], "error": said(error)})
            return {"next": "approval" if node.__name__ == "approval" else "reconcile"}

    return run


async def _ended(services: Services, state: CallState, config: RunnableConfig, error: Exception) -> bool:
    """End the call with its result. False when it was sent and has no answer: then it is unknown, and waits (E6)."""
    owned = owned_by(config)
    item_id = UUID(state["call"]["item_id"])
    own = getattr(error, "code", None)
    code = own if isinstance(own, str) else "internal_error"
    because = str(error) if isinstance(error, PlacetError) else said(error)
    async with services.database.transaction("call_broke") as tx:
        await runs.fence(tx, owned)
        # One of this turn, or the turn itself is not to be trusted.
        await items.get(tx, owned.tenant_id, owned.turn_id, item_id)
        asked = await approvals.latest(tx, owned.tenant_id, item_id)
        effect = await effects.of_item(tx, owned.tenant_id, item_id)
        if effect is not None and effect.status == "dispatched":
            await effects.lose(tx, owned, effect, code=code, message=because)
        elif effect is None or effect.status in ("absent", "refused"):
            if asked is not None and asked.status in ("pending", "approved"):
                await approvals.close(tx, owned, asked, "stale", because=because)
            await items.finish(tx, item_id, "failed", protocol.failed(code, because, retryable=False))
        elif effect.status == "committed":
            await items.finish(tx, item_id, "completed", executed(effect.receipt or {}, effect, asked))
        return (await items.get(tx, owned.tenant_id, owned.turn_id, item_id)).result is not None
