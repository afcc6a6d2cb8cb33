"""`placet effects`: what was sent into the world, and what became of it (E1–E6)."""

import json
from typing import Annotated

import typer
from rich.text import Text

from placet.cli import output, preview, rows
from placet.cli.opening import open_record, run
from placet.cli.output import Indented, Json
from placet.record import effects, lookup
from placet.record.effects import Effect
from tools.money import show as money

app = typer.Typer(help="Effects: what was sent into the world, with its receipt.", no_args_is_help=True)


@app.command("list")
def show_list(
    status: Annotated[str | None, typer.Option(help="Only those with this status, e.g. unknown.")] = None,
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
        return
    table = output.table("effect", "tool", "status", "what happened", "sent", "times sent", right=["times sent"])
    for one in found:
        table.add_row(
            Text(output.short(one.operation_id), style="cyan"),
            output.cell(one.tool),
            output.status(one.status),
            output.cell(_summary(one)),
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
        return
    console = output.console()
    head = Text("Effect ", style="bold").append(output.short(effect.operation_id), "bold cyan").append("  ")
    console.print(
        head.append_text(output.status(effect.status)).append(f"  turn {output.short(effect.turn_id)}", "dim")
    )
    by = f"approval {output.short(effect.approval_id)}" if effect.approval_id else "an automatic verdict"
    often = "once" if effect.attempts == 1 else f"{effect.attempts} times"
    output.say(f"  sent {often}, {output.at(effect.dispatched_at, now)}, allowed by {by}")
    console.print(output.cell(f"  {_summary(effect)}", "bold"))
    for seen in effect.evidence:
        console.print(output.cell(f"  looked up at {seen.get('at', '')!s:.19}: {seen.get('said')}", "magenta"))
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


def _summary(effect: Effect) -> str:
    if effect.receipt:
        return f"{effect.receipt.get('summary', '')} [receipt {effect.receipt.get('external_id', '')}]"
    return str((effect.error or {}).get("message", "no answer yet"))
