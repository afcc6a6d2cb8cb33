"""The audit chain: what was asked, decided, dispatched and answered, in rows that the application cannot change (V3)."""

from collections.abc import Mapping
from typing import Any

from placet.record.canonical import canonical, restored
from placet.record.database import Transaction


async def append(
    tx: Transaction, tenant: str, *, actor: str, action: str, subject: str, body: Mapping[str, Any]
) -> None:
    """Append to the tenant's chain. Last in a transaction: it holds the chain's head until the commit. `body` may come from
    jsonb columns."""
    await tx.execute(
        "select append_audit(%(tenant)s, %(actor)s, %(action)s, %(subject)s, %(body)s)",
        {"tenant": tenant, "actor": actor, "action": action, "subject": subject, "body": canonical(restored(body))},
    )
