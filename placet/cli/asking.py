"""`placet run`: ask for something. It is stored before anything else; then one watches, or works on it oneself."""

import asyncio
import sys
from typing import Annotated
from uuid import UUID

import typer
from rich.text import Text

from placet.cli import output, rows, text, timeline
from placet.cli.opening import As, Record, open_house, open_record, run
from placet.cli.output import Json
from placet.record import approvals, turns
from placet.record.approvals import Approval
from placet.record.events import Event
from placet.record.turns import Turn


def ask(
    message: Annotated[str, typer.Argument(help="What should be done, in words; - reads it from stdin.")],
    thread: Annotated[str | None, typer.Option(help="Go on with this conversation.")] = None,
    as_user: As = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it pauses or ends.")] = True,
    here: Annotated[bool, typer.Option("--here", help="Work on it in this process; no worker is needed.")] = False,
    as_json: Json = False,
) -> None:
    """Ask for something. It is stored first; then a worker goes on with it, and you see how."""
    if message == "-":
        message = sys.stdin.buffer.read().decode(errors="surrogateescape")
    code = run(_ask(message, thread, as_user, wait=wait, here=here, as_json=as_json))
    if code:
        raise typer.Exit(code)


async def _ask(message: str, thread: str | None, user: str | None, *, wait: bool, here: bool, as_json: bool) -> int:
    async with open_record() as record:
        turn = await _store(record, message, thread, user)
        if not as_json:
            output.note(f"Stored as turn {output.short(turn.turn_id)} on thread {output.short(turn.thread_id)}.")
        show = _ignore if as_json else _print
        if here:
            turn = await _work_here(record, turn, show)
        elif wait:
            turn = await _watch(record, turn, show)
        return await _rest(record, turn, waited=wait or here, as_json=as_json)


async def _store(record: Record, message: str, thread: str | None, user: str | None) -> Turn:
    who = await record.user(user)
    async with record.database.transaction() as tx:
        return await turns.create(
            tx,
            who,
            message,
            max_steps=record.settings.max_steps,
            max_chars=record.settings.max_message_chars,
            thread_id=await record.find(tx, "thread", thread) if thread else None,
        )


async def _watch(record: Record, turn: Turn, show: timeline.Show) -> Turn:
    try:
        with output.progress("Working …"):
            return await timeline.until_it_rests(record, turn, show)
    except asyncio.CancelledError:  # Ctrl-C: whoever works on it goes on
        output.note(
            f"You stopped watching; the turn goes on. See it: placet turn show {output.short(turn.turn_id)}, "
            f"placet events {output.short(turn.turn_id)} --follow. End it: placet turn cancel {output.short(turn.turn_id)}"
        )
        raise


async def _work_here(record: Record, turn: Turn, show: timeline.Show) -> Turn:
    """Run what is due on the turn's thread in this process."""
    async with open_house(record.settings) as services:
        from placet.worker import Worker  # noqa: PLC0415

        work = asyncio.create_task(Worker(services).run_until_idle(turn.thread_id))
        watching = asyncio.create_task(timeline.until_it_rests(record, turn, show, nobody=None))
        try:
            done, _ = await asyncio.wait({work, watching}, return_when=asyncio.FIRST_COMPLETED)
            if work in done:
                work.result()  # what it raised
                async with asyncio.timeout(timeline.NOBODY):  # what it wrote last
                    return await watching
            return await watching
        except TimeoutError:  # somebody else works on this thread
            return await _read(record, turn.turn_id)
        finally:
            watching.cancel()
            await asyncio.gather(work, watching, return_exceptions=True)


async def _read(record: Record, turn_id: UUID) -> Turn:
    async with record.database.read() as tx:
        return await turns.get(tx, record.tenant, turn_id)


async def _rest(record: Record, turn: Turn, *, waited: bool, as_json: bool) -> int:
    """Say where the turn stands now; the exit code."""
    async with record.database.read() as tx:
        pending = await approvals.waiting(tx, record.tenant, turn_id=turn.turn_id)
    if as_json:
        output.show_json({"turn": turn, "approvals": [rows.approval(one) for one in pending]})
    else:
        show_rest(turn, pending, waited=waited)
    return exit_code(turn)


def exit_code(turn: Turn) -> int:
    """1 when it ended without being done."""
    return 1 if turn.status in turns.ENDED - {"completed"} else 0


def show_rest(turn: Turn, pending: list[Approval], *, waited: bool) -> None:
    """The answer, or what the turn waits for, for people."""
    short = output.short(turn.turn_id)
    if turn.status == "completed":
        output.say("The agent's answer", "dim italic")
        output.console().print(output.words_of(turn.output_text or ""))
    elif pending:
        for one in pending:
            output.say(Text("Waits for ").append(text.visible(f"{one.duty}: {one.preview['title']}"), "yellow"))
            output.say(f"  placet approve {output.short(one.approval_id)}", "bold")
    elif turn.status == "created" and waited:
        output.say(
            f"Nobody has taken it up within {timeline.NOBODY:g} seconds. It is stored and will be done as soon as a worker "
            f"runs: start one with `placet worker`. Then see it with: placet events {short} --follow"
        )
    else:
        output.say(Text("The turn is ").append_text(output.status(turn.status)).append(f": placet turn show {short}"))
        if turn.error:
            output.say(turn.error.get("message", ""), "red")


def _print(event: Event) -> None:
    output.say(timeline.line(event))


def _ignore(event: Event) -> None:
    """With --json the answer is one document."""
