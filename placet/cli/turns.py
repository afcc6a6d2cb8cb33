"""`placet turn`, `placet events`: where a request stands, what happened, and ending it."""

from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from placet.cli import output, rows, text, timeline
from placet.cli.opening import As, open_record, run
from placet.cli.output import Json
from placet.record import approvals, effects, items, lookup, runs, turns
from placet.record.approvals import Approval
from placet.record.database import Transaction
from placet.record.effects import Effect
from placet.record.events import Event
from placet.record.items import Item
from placet.record.people import User
from placet.record.runs import Standing
from placet.record.turns import Turn

app = typer.Typer(help="Turns: what was asked for, and where it stands.", no_args_is_help=True)
Id = Annotated[str, typer.Argument(metavar="ID", help="The turn, or the first eight digits of it.")]
OPEN_ITEMS = frozenset({"proposed", "awaiting_approval", "approved", "executing", "unknown", "orphaned"})


@app.command("list")
def show_list(
    status: Annotated[
        turns.Status | None,
        typer.Option(metavar="STATUS", help="Only those with this status, e.g. awaiting_approval."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, the one that changed last first.")] = 20,
    as_json: Json = False,
) -> None:
    """What was asked for lately."""
    run(_list(status, limit, as_json=as_json))


async def _list(status: str | None, limit: int, *, as_json: bool) -> None:
    async with open_record() as record, record.database.read() as tx:
        found = await turns.recent(tx, record.tenant, status=status, limit=limit)
        now = await lookup.now(tx)
    if as_json:
        output.show_json({"turns": found})
    else:
        show_turns(found, now)


def show_turns(found: list[Turn], now: datetime) -> None:
    """A table of turns, for people."""
    table = output.table("turn", "thread", "status", "asked by", "message", "changed", whole=["turn", "thread"])
    for turn in found:
        table.add_row(
            Text(output.short(turn.turn_id), style="cyan"),
            output.short(turn.thread_id),
            output.status(turn.status),
            output.cell(turn.requester),
            output.cell(turn.message[:60] + ("…" if len(turn.message) > 60 else "")),
            output.relative(turn.updated_at - now),
        )
    output.show_table(table, nothing="No turns here yet. Ask for something: placet run MESSAGE")


@app.command()
def show(
    turn: Id,
    as_json: Json = False,
) -> None:
    """One turn: what is next, what is finished, where it is stuck, and for how long."""
    run(_show(turn, as_json=as_json))


async def _show(typed: str, *, as_json: bool) -> None:
    async with open_record() as record, record.database.read() as tx:
        turn = await turns.get(tx, record.tenant, await record.find(tx, "turn", typed))
        calls = await items.of_turn(tx, turn.tenant_id, turn.turn_id)
        asked = [found for call in calls if (found := await approvals.latest(tx, record.tenant, call.item_id))]
        sent = await effects.recent(tx, record.tenant, turn_id=turn.turn_id)
        standing = await runs.standing(tx, turn.turn_id)
        now = await lookup.now(tx)
    if as_json:
        output.show_json(
            {
                "turn": turn,
                "run": standing,
                "items": [rows.item(call) for call in calls],
                "approvals": [rows.approval(one) for one in asked],
                "effects": [rows.effect(one) for one in sent],
            }
        )
    else:
        show_whole(turn, standing, calls, asked, sent, now)


def show_whole(
    turn: Turn, run: Standing | None, calls: list[Item], asked: list[Approval], sent: list[Effect], now: datetime
) -> None:
    """One turn with all that belongs to it, for people; `asked` holds the latest approval of each call."""
    console = output.console()
    console.print(_head(turn, now))
    console.print(_where(turn, calls, now))
    for line in _next(turn, run, calls, asked, sent, now):
        output.say(line)
    if calls:
        output.show_table(_calls(calls, asked))
    for one in sent:
        output.say(_effect(one))
    if turn.output_text:
        console.print(Text("The agent's answer", style="dim italic"))
        console.print(output.words_of(turn.output_text))
    if turn.error:
        console.print(output.cell(f"{turn.error.get('code')}: {turn.error.get('message')}", "red"))


def _head(turn: Turn, now: datetime) -> RenderableType:
    head = Text("Turn ", style="bold").append(output.short(turn.turn_id), style="bold cyan").append("  ")
    head.append_text(output.status(turn.status)).append(f"  thread {output.short(turn.thread_id)}", style="dim")
    who = Text(f"  asked by {text.visible(turn.requester)}, {output.at(turn.created_at, now)}", style="dim")
    return Group(head, output.words_of(turn.message), who)


def _calls(calls: list[Item], asked: list[Approval]) -> Table:
    table = output.table("step", "call", "status", "verdict", "decided by", "took", right=["step"], whole=["status"])
    by_item = {one.item_id: one for one in asked}
    for call in calls:
        approval = by_item.get(call.item_id)
        table.add_row(
            str(call.step),
            output.cell(call.tool),
            output.status(call.status),
            output.cell(f"{call.verdict['kind']} ({call.verdict['rule']})" if call.verdict else "–", "dim"),
            output.cell(approval.decided_by or "–") if approval else "–",
            output.duration((call.finished_at - call.proposed_at).total_seconds()) if call.finished_at else "–",
        )
    return table


def _effect(sent: Effect) -> Text:
    summary = (sent.receipt or {}).get("summary") or (sent.error or {}).get("message", "")
    line = Text("Effect ").append(output.short(sent.operation_id), "cyan").append("  ")
    return line.append_text(output.status(sent.status)).append(f"  {text.visible(summary)}")


def _where(turn: Turn, calls: list[Item], now: datetime) -> Text:
    """Where it stands, in one sentence (T5)."""
    finished = sum(call.status not in OPEN_ITEMS for call in calls)
    parts = [f"{finished} of {len(calls)} calls finished", f"step {turn.steps} of {turn.max_steps}"]
    if turn.status not in turns.ENDED:
        parts.append(f"{turn.status.replace('_', ' ')} for {output.duration((now - turn.updated_at).total_seconds())}")
        parts.append(f"next: {turn.next_step or 'end'}")
    else:
        parts.append(f"ended {output.at(turn.ended_at or turn.updated_at, now)}")
    return Text("  " + " · ".join(parts))


def _next(
    turn: Turn, run: Standing | None, calls: list[Item], asked: list[Approval], sent: list[Effect], now: datetime
) -> Iterator[Text]:
    """Who has to do something for it to go on, and what; a line each (T5)."""
    short = output.short(turn.turn_id)
    if run is not None and (said := _standing(run, now)):
        yield Text(f"  {said}", "dim" if run.worker and not run.lapsed else "yellow")
    for one in asked:
        if one.status == "pending":
            yield Text(
                f"  waits for {text.visible(one.duty)}: placet approve {output.short(one.approval_id)}", "yellow"
            )
    for effect in sent:
        if effect.status == "unknown":
            id_ = output.short(effect.operation_id)
            yield Text(
                f"  waits for an operator: placet effects show {id_}, then placet effects resolve {id_}", "magenta"
            )
    for call in calls:
        if call.status == "orphaned":
            yield Text(
                f"  {text.visible(call.tool)} has changed since it was asked: placet turn migrate {short}, as an operator, "
                f"or placet turn cancel {short}",
                "magenta",
            )
    if turn.status == "failed":
        yield Text(f"  goes on where it broke off, when somebody says so: placet turn retry {short}", "yellow")


def _standing(run: Standing, now: datetime) -> str:
    since = (now - run.since).total_seconds()
    if run.behind is not None:
        return f"begins when turn {output.short(run.behind)} of the same thread has ended"
    if run.lapsed:
        return (
            f"worker {text.visible(run.worker)} has not been heard of for {output.duration(since)}; the next worker takes it "
            "up: placet worker"
        )
    if run.status == "running":
        return f"worker {text.visible(run.worker)} works on it"
    if since < 0:
        return f"is taken up again in {output.duration(-since)}"
    if since > timeline.NOBODY:
        return f"nobody has taken it up for {output.duration(since)}; is a worker running? placet worker"
    return ""


@app.command()
def cancel(
    turn: Id,
    reason: Annotated[str | None, typer.Option(help="Why; kept in the record.")] = None,
    as_user: As = None,
    as_json: Json = False,
) -> None:
    """Cancel a turn for good: what has not left the house will not, what has is still looked up."""
    run(_cancel(turn, reason, as_user, as_json=as_json))


async def _cancel(typed: str, reason: str | None, user: str | None, *, as_json: bool) -> None:
    from graph import protocol  # noqa: PLC0415  # what the model is told of a cancelled call

    async with open_record() as record:
        who = await record.user(user)
        async with record.database.transaction() as tx:
            turn_id = await record.find(tx, "turn", typed)
            told = {key: said for key, said in protocol.cancelled("", by=who.user_id).items() if key != "tool"}
            turn = await turns.cancel(tx, who, turn_id, reason=reason, result=told)
    if as_json:
        output.show_json({"turn": turn})
        return
    output.say(
        f"Turn {output.short(turn.turn_id)} is cancelled; it never runs again. What was sent before is still looked up: "
        f"placet turn show {output.short(turn.turn_id)}"
    )


@app.command()
def retry(turn: Id, as_user: As = None, as_json: Json = False) -> None:
    """Reopen a failed turn where it broke off; a call that has a result is not repeated."""
    run(_steer(turn, as_user, turns.retry, "is due again", as_json=as_json))


@app.command()
def migrate(turn: Id, as_user: As = None, as_json: Json = False) -> None:
    """Bring orphaned calls to the tools as they are now; what can be asked is asked again. For operators."""
    run(_steer(turn, as_user, turns.migrate, "is brought to the tools as they are now", as_json=as_json))


async def _steer(
    typed: str,
    user: str | None,
    verb: Callable[[Transaction, User, UUID], Awaitable[Turn]],
    words: str,
    *,
    as_json: bool,
) -> None:
    async with open_record() as record:
        who = await record.user(user)
        async with record.database.transaction() as tx:
            turn = await verb(tx, who, await record.find(tx, "turn", typed))
    if as_json:
        output.show_json({"turn": turn})
    else:
        short = output.short(turn.turn_id)
        output.say(f"Turn {short} {words}. Follow it: placet events {short} --follow")


def show_events(
    turn: Annotated[str, typer.Argument(metavar="TURN", help="The turn, or the first eight digits of it.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the turn ends.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only events behind this number.")] = 0,
    as_json: Json = False,
) -> None:
    """The timeline of a turn, one line per event; with --json one object per line."""
    run(_events(turn, after, follow=follow, as_json=as_json))


async def _events(typed: str, after: int, *, follow: bool, as_json: bool) -> None:
    async with open_record() as record:
        async with record.database.read() as tx:
            turn = await turns.get(tx, record.tenant, await record.find(tx, "turn", typed))

        def show(event: Event) -> None:
            if as_json:
                output.show_json(event, line=True)
            else:
                output.say(timeline.line(event))

        await timeline.show_all(record, turn, show, after=after, follow=follow)
