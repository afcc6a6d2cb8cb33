"""The timeline for people: one event, one line; and following it while others work (V1).

Whoever works may be another process on another machine, so following means reading rows, from the last number seen; a
database that goes away is waited for, since nothing is lost while it is gone.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from rich.text import Text

from placet.cli import amounts, output, text
from placet.cli.opening import Record
from placet.record import events, turns
from placet.record.database import AWAY
from placet.record.events import Event
from placet.record.turns import Turn

T = TypeVar("T")
Said = dict[str, Any]
Show = Callable[[Event], None]
LOOK = 0.15  # seconds between two looks while following
NOBODY = 3.0  # seconds after which nobody seems to work
MOST_IDS = 4  # values of a list in one line
PLAIN = ("cyan", "blue")  # styles of marks whose words stay plain

MARKS: dict[str, tuple[str, str]] = {
    "turn_started": ("▶", "cyan"),
    "plan_updated": ("✎", "blue"),
    "tool_started": ("→", "cyan"),
    "tool_progress": ("…", "cyan"),
    "tool_completed": ("✓", "green"),
    "tool_failed": ("✗", "red"),
    "approval_requested": ("?", "yellow"),
    "approval_decided": ("!", "bold"),
    "approval_closed": ("×", "yellow"),
    "effect_unknown": ("~", "magenta"),
    "effect_reconciled": ("✓", "magenta"),
    "turn_paused": ("‖", "yellow"),
    "turn_resumed": ("▶", "cyan"),
    "turn_completed": ("■", "green"),
    "turn_failed": ("■", "red"),
    "turn_exhausted": ("■", "red"),
    "turn_cancelled": ("■", "red"),
}


async def show_all(record: Record, turn: Turn, show: Show, *, after: int = 0, follow: bool = False) -> None:
    """Show the turn's events behind number `after`; with `follow` go on until it has ended."""
    while True:
        now = await patiently(record, partial(_turn, record, turn))  # before its events: an ended turn writes no more
        after = await _show_new(record, turn, show, after)
        if not follow or now.status in turns.ENDED:
            return
        await asyncio.sleep(LOOK)


async def until_it_rests(record: Record, turn: Turn, show: Show, *, nobody: float | None = NOBODY) -> Turn:
    """Show a new turn's events until it waits or has ended; the turn as it then is.

    Without anybody taking it up within `nobody` seconds it is returned as it is: created.
    """
    started = time.monotonic()
    after = 0
    while True:
        now = await patiently(record, partial(_turn, record, turn))
        after = await _show_new(record, turn, show, after)
        if now.status in turns.ENDED or now.status in turns.WAITING:
            return now
        if now.status == "created" and nobody is not None and time.monotonic() - started > nobody:
            return now
        await asyncio.sleep(LOOK)


async def _show_new(record: Record, turn: Turn, show: Show, after: int) -> int:
    while new := await patiently(record, partial(_events, record, turn, after)):
        for event in new:
            show(event)
        after = new[-1].seq
    return after


async def patiently(record: Record, look: Callable[[], Awaitable[T]]) -> T:
    """Read; while the database is away say so once, and try again for as long as the settings wait for one."""
    deadline = time.monotonic() + record.settings.database_wait
    told = False
    while True:
        try:
            return await look()
        except AWAY:
            if time.monotonic() > deadline:
                raise
            if not told:
                output.note("The database does not answer; trying again. Nothing is lost meanwhile.")
                told = True
            await asyncio.sleep(0.5)


async def _events(record: Record, turn: Turn, after: int) -> list[Event]:
    async with record.database.read() as tx:
        return await events.of_thread(tx, record.tenant, turn.thread_id, after=after, turn_id=turn.turn_id)


async def _turn(record: Record, turn: Turn) -> Turn:
    async with record.database.read() as tx:
        return await turns.get(tx, record.tenant, turn.turn_id)


def line(event: Event) -> Text:
    """`20:31:40.397 ✓ refund_payments is done: Refunded 38 of 38 payments: 4,120.00 EUR.`"""
    return Text(" ").join(parts(event))


def parts(event: Event) -> tuple[Text, Text, Text]:
    """Time of day, mark and words of an event."""
    mark, style = MARKS.get(event.type, ("·", "dim"))
    said = text.visible(words(event))
    return (
        Text(clock(event.at), style="dim"),
        Text(mark, style=style),
        Text(said, style="" if style in PLAIN else style),
    )


def clock(at: datetime) -> str:
    """The time of day to the millisecond, UTC."""
    utc = at.astimezone(UTC)
    return f"{utc:%H:%M:%S}.{utc.microsecond // 1000:03}"


def words(event: Event) -> str:
    """One event as a sentence; nothing in it is made safe yet."""
    sentence = SENTENCES.get(event.type)
    return sentence(event.payload) if sentence else event.type


def _plan(said: Said) -> str:
    calls = ", ".join(call(one) for one in said.get("calls", []))
    text_said = str(said.get("text", "")).strip()
    parts = [f"the agent: “{text_said}”" if text_said else "", f"proposes {calls}" if calls else ""]
    return " → ".join(part for part in parts if part) or "the agent says nothing"


def call(proposed: Said) -> str:
    """`refund_payments(refund_due_ids=38 of them, stated_total=4,120.00 EUR)`; complete it stands with the approval."""
    given = [f"{name}={_given(value)}" for name, value in sorted(proposed.get("arguments", {}).items())]
    return f"{proposed.get('tool')}({', '.join(given)})"


def _given(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} of them" if len(value) > MOST_IDS else ", ".join(map(str, value))
    if isinstance(value, dict):
        return amounts.in_words(value) if amounts.is_money(value) else "{…}"
    return str(value)[:80]


def _done(said: Said) -> str:
    receipt = said.get("receipt")
    if not receipt:
        return f"{said.get('tool')} answered"
    return f"{said.get('tool')} is done: {receipt.get('summary', '')} [receipt {receipt.get('external_id', '')}]"


def _decided(said: Said) -> str:
    verb = {"approve": "approved", "approve_with_changes": "approved with changes", "reject": "rejected"}
    by = said.get("decided_by") or "somebody"
    return f"{verb.get(str(said.get('decision')), str(said.get('status')))} by {by}" + _reason(said.get("reason"))


def _reconciled(said: Said) -> str:
    if by := said.get("by"):  # nobody could look it up: a person says what happened (E6)
        return f"{by} says that {said.get('tool')} is {said.get('status')}{_reason(said.get('reason'))}"
    if receipt := said.get("receipt"):
        found = f"it happened. {receipt.get('summary', '')} [receipt {receipt.get('external_id', '')}]"
    else:
        found = f"{said.get('status', '')}{_reason(said.get('evidence'))}"
    return f"{said.get('tool')} was looked up: {found}"


def _because(because: str) -> str:
    kind, _, id_ = because.partition(":")
    sentences = {
        "decision": f"approval {output.short(id_)} was decided",
        "expired": f"approval {output.short(id_)} expired",
        "parked": "nobody worked on it",
        "message": "taken up again",
        "cancel": "to close what is open",
        "closing": "to close what is open",
        "resolved": f"somebody said what became of operation {output.short(id_)}",
        "retry": "somebody retries it where it broke off",
        "migrate": "its orphaned calls are brought to the tools as they are now",
        "resume": "somebody looks again at what waits",
        "update": "somebody added to the conversation",
    }
    return sentences.get(kind, because)


def _asked(said: Said) -> str:
    again = f" again ({said['difference'].get('because')})" if said.get("difference") else ""
    return f"asks {said.get('duty')}{again}: {said.get('title')} [approval {output.short(said.get('approval_id'))}]"


def _ended(word: str) -> Callable[[Said], str]:
    return lambda said: word + _reason((said.get("error") or {}).get("message"))


def _operation(said: Said) -> str:
    return f" [operation {output.short(said['operation_id'])}]" if said.get("operation_id") else ""


def _reason(why: object) -> str:
    return f": {why}" if why else ""


SENTENCES: dict[str, Callable[[Said], str]] = {
    "turn_started": lambda said: "the turn starts",
    "turn_resumed": lambda said: f"goes on: {_because(str(said.get('because', '')))}",
    "plan_updated": _plan,
    "tool_started": lambda said: f"{said.get('tool')} is called{_operation(said)}",
    "tool_progress": lambda said: f"{said.get('tool')}: {said.get('text')} ({said.get('done')} of {said.get('total')})",
    "tool_completed": _done,
    "tool_failed": lambda said: f"{said.get('tool')} failed{_reason(said.get('message') or said.get('code'))}",
    "approval_requested": _asked,
    "approval_decided": _decided,
    "approval_closed": lambda said: (
        f"approval {output.short(said.get('approval_id'))} is {said.get('status')}{_reason(said.get('because'))}"
    ),
    "effect_unknown": lambda said: (
        f"{said.get('tool')}: nobody knows yet whether it happened{_reason(said.get('message'))}"
    ),
    "effect_reconciled": _reconciled,
    "turn_paused": lambda said: f"pauses: {str(said.get('status', '')).replace('_', ' ')}; nothing runs",
    "turn_completed": lambda said: f"completed: {said.get('output_text', '')}",
    "turn_failed": _ended("failed"),
    "turn_exhausted": _ended("exhausted: the step budget is used up"),
    "turn_cancelled": lambda said: f"cancelled by {said.get('by')}{_reason(said.get('reason'))}",
}
