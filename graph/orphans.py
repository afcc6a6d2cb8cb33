"""Calls that the graph leads to no more, because it was deployed without the node at which they waited (G8).

They are shown as what they are: their approvals are closed as orphaned, the turn waits for people, and nothing is reported
as success. What was sent already is unknown, and a task for people (E6).
"""

from collections.abc import Sequence
from typing import Any

from graph.services import Services
from placet.record import approvals, effects, items, runs
from placet.record.items import Item
from placet.record.runs import Owned

BECAUSE = "The step at which it waited no longer exists."


async def orphan(services: Services, owned: Owned, left: Sequence[Item]) -> None:
    """Close what was asked about these calls; may run again."""
    async with services.database.transaction("orphan_all") as tx:
        await runs.fence(tx, owned)
        for item in left:
            effect = await effects.of_item(tx, owned.tenant_id, item.item_id)
            if effect is not None and effect.status == "dispatched":
                await effects.lose(tx, owned, effect, code="interrupted", message=BECAUSE)
            elif effect is None or effect.status != "unknown":
                await approvals.orphan(tx, owned, item.item_id, because=BECAUSE)
                await items.move(tx, item.item_id, "orphaned")


def question(left: Sequence[Item]) -> dict[str, Any]:
    """The interrupt's value: which calls, and what people can do."""
    return {
        "type": "orphaned",
        "calls": [{"item_id": str(item.item_id), "tool": item.tool} for item in left],
        "because": BECAUSE,
        "do": "Cancel the turn, migrate it, or run the version that wrote it.",
    }
