"""What comes of a decision: the command that stored it looks for a few seconds at what the workers make of it (I2)."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from rich.text import Text

from placet.cli import output, preview, text
from placet.cli.opening import Record
from placet.cli.timeline import LOOK, NOBODY, patiently
from placet.record import approvals, effects, items
from placet.record.approvals import Approval
from placet.record.decisions import Decided

PATIENCE = 15.0  # seconds for a call that is being executed
Kind = Literal[
    "waits_for_more", "nobody_works", "executing", "executed", "asked_again", "failed", "unknown", "told", "orphaned"
]


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What happened next to the decided call."""

    kind: Kind
    turn_id: UUID
    tool: str
    receipt: dict[str, Any] | None = None
    result: dict[str, Any] | None = None  # what the agent is told
    asked_again: Approval | None = None

    def as_json(self) -> dict[str, Any]:
        """For a machine."""
        again = self.asked_again
        return {
            "kind": self.kind,
            "turn_id": str(self.turn_id),
            "receipt": self.receipt,
            "result": self.result,
            "approval_id": str(again.approval_id) if again else None,
            "difference": again.difference if again else None,
        }


async def watch(record: Record, asked: Approval, decided: Decided) -> Aftermath:
    """Look until the call has a result, is asked again, or time is up."""
    if decided.status == "pending":
        return Aftermath("waits_for_more", asked.turn_id, asked.tool)
    started = time.monotonic()
    while True:
        now = await patiently(record, lambda: _look(record, asked))
        waited = time.monotonic() - started
        if now.kind not in ("executing", "nobody_works"):
            return now
        if waited > (NOBODY if now.kind == "nobody_works" else PATIENCE):
            return now
        await asyncio.sleep(LOOK)


async def _look(record: Record, asked: Approval) -> Aftermath:
    async with record.database.read() as tx:
        item = await items.get(tx, record.tenant, asked.turn_id, asked.item_id)
        latest = await approvals.latest(tx, record.tenant, asked.item_id)
        effect = await effects.of_item(tx, record.tenant, asked.item_id)
    receipt = effect.receipt if effect else None
    kind: Kind = "nobody_works"
    if latest is not None and latest.ask > asked.ask:
        kind = "asked_again"
    elif item.result is not None:
        kind = "executed" if item.status == "completed" else "told" if item.status == "rejected" else "failed"
    elif item.status == "orphaned":
        kind = "orphaned"
    elif effect is not None:
        kind = "unknown" if effect.status == "unknown" and effect.evidence else "executing"
    again = latest if kind == "asked_again" else None
    return Aftermath(kind, asked.turn_id, asked.tool, receipt, item.result, again)


def show(after: Aftermath) -> None:
    """For people: one or two sentences."""
    short = output.short(after.turn_id)
    match after.kind:
        case "executed":
            receipt = after.receipt or {}
            said = text.visible(f"{receipt.get('summary', 'Done.')} Receipt {receipt.get('external_id', '–')}.")
            output.say(Text("Executed: ", style="green").append(said, "bold"))
        case "told":
            output.say("The agent has been told, with your reason, and does not try again.")
        case "asked_again":
            assert after.asked_again is not None
            output.say("Not executed: the world moved meanwhile, so exactly this call is asked again.", "yellow")
            output.console().print(preview.differs(after.asked_again.difference or {}))
            output.say(f"  placet approve {output.short(after.asked_again.approval_id)}", "bold")
        case "failed":
            error = (after.result or {}).get("error", {})
            output.say(Text("Not executed: ", style="red").append(text.visible(error.get("message", "it failed"))))
        case "unknown":
            output.say("It was sent and nobody knows what became of it; it is not sent again on a guess.", "magenta")
            output.say(f"  placet turn show {short}   (an operator who has looked: placet effects resolve …)", "bold")
        case "executing":
            output.say(f"It is being executed. Follow it: placet events {short} --follow")
        case "orphaned":
            output.say(
                f"The tool has changed since it was asked, so it cannot run as it is: placet turn migrate {short}, as an "
                f"operator, or placet turn cancel {short}"
            )
        case "waits_for_more":
            output.say("It runs when the others have approved too.")
        case "nobody_works":
            output.say(
                f"No worker has taken it up within {NOBODY:g} seconds. It is stored and will not be asked again: start one "
                f"with `placet worker`, and see it with: placet events {short} --follow"
            )
