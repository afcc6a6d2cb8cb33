"""What a reviewer sees before they decide (A1, I2), in reading order: the sentence, what it does, why it asks, exactly what
would run, and last, apart, the agent's own words.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from placet.cli import amounts, output, text
from placet.cli.output import Indented
from placet.record.approvals import Approval, Revision
from tools.money import show as money

LABEL = 17  # columns


def show(console: Console, asked: Approval, now: datetime) -> None:
    """The approval as it is pending, or was."""
    head = Text("Approval ", style="bold").append(output.short(asked.approval_id), style="bold cyan")
    head.append("  ").append_text(output.status(asked.status))
    if asked.ask:
        head.append(f"  asked for the {_ordinal(asked.ask + 1)} time", style="yellow")
    console.print(head)
    console.print()
    console.print(what(asked.preview))
    if asked.difference is not None:
        console.print(differs(asked.difference))
    console.print(_why(asked, now))
    console.print()
    console.print(sample(asked.preview))
    console.print(runs(asked.tool, asked.content["arguments"]))
    console.print(own_words(asked.rationale))
    console.print(_line("SHA-256", Text(asked.payload_hash.hex(), style="dim")))


def what(preview: Mapping[str, Any]) -> RenderableType:
    """The effect sentence, and its counted consequences."""
    lines: list[RenderableType] = [Indented(output.cell(preview["title"], "bold")), Text()]
    impact = [*preview.get("impact", [])]
    if not preview.get("reversible", False):
        impact.append("It cannot be taken back.")
    lines.append(_list("What it does", impact))
    if warnings := preview.get("warnings", []):
        lines.append(_list("Look out", warnings, style="bold red"))
    return Group(*lines)


def differs(difference: Mapping[str, Any]) -> RenderableType:
    """Why it is asked again, and what was shown then against what is true now (A7)."""
    lines = [f"{difference.get('because', '')}"]
    for name, pair in dict(difference.get("changed", {})).items():
        lines.append(f"{name}: {_value(pair.get('shown'))} when it was shown, {_value(pair.get('now'))} now")
    return _list("Asked again", lines, style="yellow")


def edited(asked: Approval, revision: Revision) -> RenderableType:
    """What an edit would change: arguments and facts, as they were and as they would be (A8)."""
    before, after = asked.content, json.loads(revision.payload)
    table = output.table("what", "asked", "edited")
    for part in ("arguments", "facts"):
        for name in sorted({*before[part], *after[part]}):
            was, now = before[part].get(name), after[part].get(name)
            if was != now:
                table.add_row(output.cell(name), *_changed(name, was, now, before[part], after[part]))
    if not table.rows:
        return Text("The edit changes nothing.", style="yellow")
    return Group(Text("The difference", style="bold"), Indented(table), Text())


def sample(preview: Mapping[str, Any]) -> RenderableType:
    """Some of the affected rows: ids first, amounts last."""
    rows: list[Mapping[str, Any]] = preview.get("sample", [])
    if not rows:
        return Group()
    columns = sorted(rows[0], key=lambda name: (name == "amount", not name.endswith("_id"), name))
    table = output.table(*[text.visible(column) for column in columns], right=["amount"])
    for row in rows:
        table.add_row(
            *[output.cell(_value(row.get(column)), "" if column == "amount" else "dim") for column in columns]
        )
    return Group(Text(f"A sample: {len(rows)} of the rows", style="bold"), Indented(table), Text())


def runs(tool: str, arguments: Mapping[str, Any]) -> RenderableType:
    """Exactly what would run, complete."""
    lines = [_argument(name, value) for name, value in sorted(arguments.items())]
    title = Text("Exactly this runs: ", style="bold").append(text.visible(tool), style="bold cyan")
    return Group(title, *[Indented(line) for line in lines or [Text("(no arguments)", style="dim")]], Text())


def own_words(rationale: str) -> RenderableType:
    """What the agent says, marked as its own."""
    if not rationale.strip():
        return Group()
    title = Text("The agent's own words (untrusted, nobody has checked them)", style="dim italic")
    return Group(title, output.words_of(rationale, style="dim"), Text())


def total(content: Mapping[str, Any]) -> str | None:
    """The total that friction makes a reviewer type, as they see it; None where the facts hold none."""
    facts = content["facts"]
    minor, currency = facts.get("total"), facts.get("currency")
    if not isinstance(minor, int) or not isinstance(currency, str) or not (len(currency) == 3 and currency.isupper()):
        return None
    return money(minor, currency)


def _why(asked: Approval, now: datetime) -> RenderableType:
    who = f"{asked.duty} decides" if asked.quorum == 1 else f"{asked.quorum} people of {asked.duty} decide"
    lines = [
        _line("It asks because", output.cell(f"{asked.reason} (rule {asked.rule}; {who})")),
        _line("Asked by", output.cell(f"{asked.requester}, {output.at(asked.asked_at, now)}")),
    ]
    if asked.policy_error:
        lines.append(_line("Policy error", output.cell(asked.policy_error, "red")))
    if asked.precondition:
        held = ", ".join(f"{name} = {_value(value)}" for name, value in asked.precondition.items())
        lines.append(_line("Holds only while", output.cell(held)))
    if asked.status == "pending":
        lines.append(_line("Expires", output.cell(output.at(asked.expires_at, now), "red" if asked.overdue else "")))
    elif asked.decided_at is not None:
        lines.append(_line("Decided", output.cell(f"by {asked.decided_by}, {output.at(asked.decided_at, now)}")))
    if asked.closed_because:
        lines.append(_line("Closed because", output.cell(asked.closed_because)))
    return Group(*lines)


def _line(label: str, value: Text) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=LABEL, style="bold")
    grid.add_column(overflow="fold")
    grid.add_row(label, value)
    return grid


def _list(label: str, lines: Iterable[object], *, style: str = "") -> RenderableType:
    shown = [_line(label if place == 0 else "", output.cell(line, style)) for place, line in enumerate(lines)]
    return Group(*shown)


def _argument(name: str, value: Any) -> Text:
    line = Text(text.visible(name), style="cyan").append(" = ", style="dim")
    if isinstance(value, list):
        line.append(f"{len(value)} of them: ", style="dim")
    elif amounts.is_money(value):
        line.append(f"{money(value['minor'], value['currency'])}, that is ", style="dim")
    return line.append(text.visible(_value(value)), style="default")


def _changed(name: str, was: Any, now: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Text, Text]:
    if isinstance(was, list) and isinstance(now, list):
        return output.cell(_listed(was, now), "red"), output.cell(_listed(now, was), "green")
    return (
        output.cell(_amount(name, was, before), "red"),
        output.cell(_amount(name, now, after), "green"),
    )


def _listed(these: list[Any], others: list[Any]) -> str:
    """`38 of them; only here: R-105053`."""
    only = [_value(one) for one in these if one not in others]
    more = f" and {len(only) - 20} more" if len(only) > 20 else ""
    return f"{len(these)} of them" + (f"; only here: {', '.join(only[:20])}{more}" if only else "")


def facts(known: Mapping[str, Any]) -> str:
    """Facts in one line, totals as money."""
    return ", ".join(f"{name} = {_amount(name, value, known)}" for name, value in known.items())


def _amount(name: str, value: Any, beside: Mapping[str, Any]) -> str:
    """Minor units as money, where a currency stands beside them."""
    if amounts.is_money(value):
        return amounts.in_words(value)
    pair = {"minor": value, "currency": beside.get("currency")}
    return money(value, pair["currency"]) if name in ("total", "largest") and amounts.is_money(pair) else _value(value)


def _value(value: Any) -> str:
    """A value as its JSON; text without quotation marks where it is the whole value."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")
