"""`placet effects`: what was sent into the world, and what became of it (E1–E6)."""

import json
from datetime import datetime
from typing import Annotated, Literal

import typer
from rich.text import Text

from placet.cli import output, preview, rows
from placet.cli.opening import As, open_house, open_record, run
from placet.cli.output import Indented, Json
from placet.record import by_hand, effects, lookup
from placet.record.effects import Effect
from placet.record.errors import InvalidInput
from tools.money import show as money

app = typer.Typer(help="Effects: what was sent into the world, with its receipt.", no_args_is_help=True)
Ending = Literal["committed", "absent", "abandoned"]


@app.command("list")
def show_list(
    status: Annotated[
        effects.Status | None, typer.Option(metavar="STATUS", help="Only those with this status, e.g. unknown.")
    ] = None,
    turn: Annotated[str | None, typer.Option(metavar="ID", help="Only those of this turn.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, the last sent first.")] = 20,
    as_json: Json = False,
) -> None:
    """What was sent lately."""
    run(_list(status, turn, limit, as_json=as_json))


async def _list(status: str | None, turn: str | None, limit: int, *, as_json: bool) -> None:
    async with open_record() as record, record.database.read() as tx:
        turn_id = await record.find(tx, "turn", turn) if turn else None
        found = await effects.recent(tx, record.tenant, status=status, turn_id=turn_id, limit=limit)
        now = await lookup.now(tx)
    if as_json:
        output.show_json({"effects": [rows.effect(one) for one in found]})
    else:
        show_effects(found, now)


def show_effects(found: list[Effect], now: datetime) -> None:
    """A table of effects, for people."""
    table = output.table(
        "effect",
        "tool",
        "status",
        "what happened",
        "sent",
        "times",
        right=["times"],
        whole=["effect", "tool", "status"],
    )
    for one in found:
        table.add_row(
            Text(output.short(one.operation_id), style="cyan"),
            output.cell(one.tool),
            output.status(one.status),
            output.cell(summary(one)),
            output.relative(one.dispatched_at - now),
            str(one.attempts),
        )
    output.show_table(table, nothing="Nothing was sent.")


@app.command()
def show(
    effect: Annotated[str, typer.Argument(metavar="ID", help="The operation, or the first eight digits of it.")],
    as_json: Json = False,
) -> None:
    """One effect: the arguments that ran, what allowed it, and the receipt, line by line."""
    run(_show(effect, as_json=as_json))


async def _show(typed: str, *, as_json: bool) -> None:
    async with open_record() as record, record.database.read() as tx:
        effect = await effects.get(tx, record.tenant, await record.find(tx, "effect", typed))
        now = await lookup.now(tx)
    if as_json:
        output.show_json({"effect": rows.effect(effect)})
    else:
        show_effect(effect, now)


def show_effect(effect: Effect, now: datetime) -> None:
    """One effect with its evidence and its receipt, for people."""
    console = output.console()
    head = Text("Effect ", style="bold").append(output.short(effect.operation_id), "bold cyan").append("  ")
    console.print(
        head.append_text(output.status(effect.status)).append(f"  turn {output.short(effect.turn_id)}", "dim")
    )
    by = f"approval {output.short(effect.approval_id)}" if effect.approval_id else "an automatic verdict"
    often = "once" if effect.attempts == 1 else f"{effect.attempts} times"
    output.say(f"  sent {often}, {output.at(effect.dispatched_at, now)}, allowed by {by}")
    console.print(Indented(output.cell(summary(effect), "bold")))
    for seen in effect.evidence:
        at = f"{seen.get('at', '')!s:.19}".replace("T", " ")
        what = "said by hand" if seen.get("by") else "looked up"
        console.print(Indented(output.cell(f"{what} at {at} UTC: {seen.get('said')}", "magenta")))
    if effect.status == "unknown":
        console.print(Indented(Text(how_to_settle(effect), "yellow")))
    console.print()
    console.print(preview.runs(effect.tool, json.loads(effect.arguments)))
    if lines := (effect.receipt or {}).get("lines"):
        table = output.table("line", "status", "amount", "receipt", right=["amount"])
        for line in lines:
            amount = money(line["minor"], line["currency"]) if line.get("currency") else "–"
            table.add_row(
                output.cell(line["ref"]),
                output.status(line["status"]),
                output.cell(amount),
                output.cell(line.get("external_id") or line.get("reason") or "–", "dim"),
            )
        console.print(Indented(table, 2))


@app.command()
def resolve(
    effect: Annotated[str, typer.Argument(metavar="ID", help="An unknown effect.")],
    reason: Annotated[str, typer.Option(help="How you know; kept with the effect.")],
    committed: Annotated[
        str | None,
        typer.Option("--committed", metavar="EXTERNAL_ID", help="It happened: the outside system's id of it."),
    ] = None,
    absent: Annotated[bool, typer.Option("--absent", help="It did not happen; it may be sent again.")] = False,
    abandoned: Annotated[
        bool, typer.Option("--abandon", help="Nobody finds out; the agent must not repeat it.")
    ] = False,
    as_user: As = None,
    as_json: Json = False,
) -> None:
    """Say what became of an unknown effect, as an operator who has looked; the turn then goes on."""
    ending = read_ending(committed, absent=absent, abandoned=abandoned)
    run(_resolve(effect, ending, reason, committed, as_user, as_json=as_json))


def read_ending(committed: str | None, *, absent: bool, abandoned: bool) -> Ending:
    """The one ending that was given; raises `InvalidInput`."""
    given: dict[Ending, bool] = {"committed": committed is not None, "absent": absent, "abandoned": abandoned}
    chosen = [ending for ending, is_given in given.items() if is_given]
    if len(chosen) != 1:
        raise InvalidInput("Say one of --committed EXTERNAL_ID, --absent and --abandon.", field="resolve")
    return chosen[0]


async def _resolve(
    typed: str, ending: Ending, reason: str, external_id: str | None, user: str | None, *, as_json: bool
) -> None:
    async with open_record() as record:
        who = await record.user(user)
        async with record.database.transaction() as tx:
            effect = await effects.get(tx, record.tenant, await record.find(tx, "effect", typed))
            effect = await by_hand.resolve(tx, who, effect, to=ending, reason=reason, external_id=external_id)
    then = "; the turn goes on" if effect.undoes is None else ""
    _tell(effect, f"is {effect.status}, says {who.user_id}{then}", as_json=as_json)


@app.command()
def undo(
    effect: Annotated[str, typer.Argument(metavar="ID", help="A committed effect of a reversible tool.")],
    as_user: As = None,
    as_json: Json = False,
) -> None:
    """Take a change back: an effect of its own, with a receipt. Commanding it again is safe."""
    run(_undo(effect, as_user, as_json=as_json))


async def _undo(typed: str, user: str | None, *, as_json: bool) -> None:
    async with open_record() as record:
        who = await record.user(user)
        async with record.database.read() as tx:
            effect = await effects.get(tx, record.tenant, await record.find(tx, "effect", typed))
        async with open_house(record.settings) as services:
            from graph import undoing  # noqa: PLC0415

            undone = await undoing.undo(services, effect, who)
    if undone.status != "committed":
        raise undoing.UndoRefused(
            f"Effect {output.short(effect.operation_id)} was not taken back, the undo is {undone.status}: {summary(undone)}",
            operation_id=str(undone.operation_id),
            status=undone.status,
        )
    _tell(undone, f"took {output.short(effect.operation_id)} back: {summary(undone)}", as_json=as_json)


def _tell(effect: Effect, words: str, *, as_json: bool) -> None:
    if as_json:
        output.show_json({"effect": rows.effect(effect)})
    else:
        output.say(f"Effect {output.short(effect.operation_id)} {words}.".replace("..", "."))


def how_to_settle(effect: Effect) -> str:
    """What an operator types who has found out what became of it (E6)."""
    return (
        f"An operator who has looked says what happened: placet effects resolve {output.short(effect.operation_id)} "
        "--committed EXTERNAL_ID, --absent or --abandon, with --reason"
    )


def summary(effect: Effect) -> str:
    """What became of it, in a sentence."""
    if effect.receipt:
        return f"{effect.receipt.get('summary', '')} [receipt {effect.receipt.get('external_id', '')}]"
    return str((effect.error or {}).get("message", "no answer yet"))
