"""The decision of the demo: at the prompt, or taken by itself and said so. Then it goes the way of every decision."""

import json
from dataclasses import dataclass
from typing import Literal

from rich.console import Console

from placet.cli import decisions, opening, output, preview
from placet.cli.output import Indented
from placet.record.approvals import Approval
from placet.record.decisions import Decided, Decision
from placet.record.people import User

Kind = Literal["approve", "edit", "reject"]
REASON = "These were refunded by hand already."
CHANNEL = "demo"
WORDS = {"approve": "Approved", "approve_with_changes": "Approved with changes", "reject": "Rejected"}


@dataclass(frozen=True, slots=True)
class Choice:
    """What the person wants: approve, reject with a reason, or approve without some of the refunds."""

    kind: Kind
    reason: str | None = None
    without: tuple[str, ...] = ()


def by_itself(kind: Kind, asked: Approval) -> Choice:
    """The choice of nobody: `edit` leaves out the largest refund; a call that is asked again is approved."""
    if asked.ask or kind == "approve":
        return Choice("approve")
    if kind == "reject":
        return Choice("reject", reason=REASON)
    return Choice("edit", without=(str(asked.preview["sample"][0]["refund_due_id"]),))


def ask(asked: Approval) -> Choice:
    """Ask the person at the terminal, as marta. Enter decides nothing."""
    ids: list[str] = asked.content["arguments"]["refund_due_ids"]
    while True:
        match opening.ask_person("You are marta. [a]pprove, [e]dit or [r]eject?").lower():
            case "a" | "approve":
                return Choice("approve")
            case "r" | "reject":
                if reason := opening.ask_person("Why not? The agent is told:"):
                    return Choice("reject", reason=reason)
            case "e" | "edit":
                typed = opening.ask_person("Ids of refunds to leave out, e.g. R-105053:").replace(",", " ").split()
                if typed and set(typed) < set(ids):
                    return Choice("edit", without=tuple(typed))
                output.note(f"Some of these {len(ids)}, not all: {', '.join(ids)}")


async def decide(
    record: opening.Record, console: Console, asked: Approval, choice: Choice, marta: User, *, confirm: bool
) -> Decided | None:
    """Decide about what was shown. An edit is shown first, with the difference; None when `confirm` is wanted and the
    person did not."""
    shown = asked.payload_hash.hex()
    if choice.kind == "approve":
        return await decisions.decide(
            record, asked, Decision(kind="approve", payload_hash=shown), marta, channel=CHANNEL
        )
    if choice.kind == "reject":
        decision = Decision(kind="reject", payload_hash=shown, reason=choice.reason)
        return await decisions.decide(record, asked, decision, marta, channel=CHANNEL)
    arguments = dict(asked.content["arguments"])
    arguments["refund_due_ids"] = [one for one in arguments["refund_due_ids"] if one not in choice.without]
    arguments.pop("stated_total", None)  # it was the total of all of them
    async with opening.open_house(record.settings) as services:
        from graph import deciding  # noqa: PLC0415

        revision = await deciding.prepare_edit(services, asked, arguments)
        console.print(Indented(preview.what(revision.preview), 3))
        console.print(Indented(preview.edited(asked, revision), 3))
        if confirm and opening.ask_person("Approve exactly this? Type yes:").lower() not in ("y", "yes"):
            return None
        decision = Decision(
            kind="approve_with_changes",
            payload_hash=revision.payload_hash.hex(),
            arguments=json.loads(revision.payload)["arguments"],
        )
        return await deciding.decide(services, asked.approval_id, decision, marta, channel=CHANNEL)
