"""What the demo shows, for people: numbered sections, each short enough for one screen. It speaks of what was read from
the record, never of what should be there."""

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from placet.cli import amounts, output, preview, text, timeline
from placet.cli.demo.processes import Mark
from placet.cli.demo.witness import Testimony
from placet.cli.output import Indented
from placet.record.effects import Effect
from placet.record.events import Event
from placet.record.items import Item
from tools.money import show as money

FEW = 5  # lines of a receipt that are shown


class Stage:
    """Prints sections; with `quiet` nothing, for `--json`."""

    def __init__(self, *, quiet: bool) -> None:
        self.console: Console = output.console()
        self.console.quiet = quiet
        self._sections = 0

    def section(self, title: str) -> None:
        """Begin a section."""
        self._sections += 1
        self.console.print()
        head = Text(f"{self._sections}  {text.visible(title)}", style="bold cyan")
        self.console.print(Rule(head, align="left", style="dim", characters="─"))

    def say(self, words: str, style: str = "") -> None:
        """A sentence or a few."""
        self.console.print(Indented(Text(text.visible(words, lines=True), style=style), 3))

    def done(self, words: str) -> None:
        """Something that holds."""
        self.console.print(Indented(Text("✓ ", style="green").append(text.visible(words), style="default"), 3))

    def wrong(self, words: str) -> None:
        """Something that does not."""
        self.console.print(Indented(Text("✗ ", style="bold red").append(text.visible(words), style="default"), 3))

    def plan(self, events: Sequence[Event], items: Sequence[Item]) -> None:
        """What the agent says, and what the rules say of each call that it proposes."""
        for event in events:
            if event.type == "plan_updated":
                self.console.print(output.words_of(str(event.payload.get("text", "")), by=3, style="italic"))
                step = event.payload.get("step")
                for item in items:
                    if item.step == step:
                        self._call(item)

    def _call(self, item: Item) -> None:
        verdict = item.verdict or {}
        auto = verdict.get("kind") == "auto"
        line = Text("→ ", style="cyan").append(
            text.visible(timeline.call({"tool": item.tool, "arguments": item.proposed}))
        )
        self.console.print(Indented(line, 5))
        words = "runs by itself" if auto else f"asks {verdict.get('duty')}"
        said = Text(f"  {words}: ", style="green" if auto else "bold yellow")
        self.console.print(Indented(said.append(text.visible(verdict.get("reason", "")), style="default"), 5))

    def receipts(self, effects: Sequence[Effect]) -> None:
        """The outside system's own answers."""
        for effect in effects:
            receipt = effect.receipt or {}
            self.done(f"{receipt.get('summary', 'no receipt')} Receipt {receipt.get('external_id', '–')}")
            lines: list[dict[str, Any]] = receipt.get("lines", [])
            table = output.table("refund", "amount", "the gateway's id", right=["amount"])
            for line in lines[:FEW]:
                table.add_row(
                    output.cell(line["ref"]),
                    money(line["minor"], line["currency"]),
                    output.cell(line.get("external_id") or line.get("reason"), "dim"),
                )
            if len(lines) > FEW:
                table.add_row(f"… and {len(lines) - FEW} more", "", "")
            self.console.print(Indented(table, 5))

    def timeline(self, events: Sequence[Event], marks: Sequence[Mark]) -> None:
        """Everything that happened, with what became of the processes between."""
        table = Table.grid(padding=(0, 1))
        for _ in range(3):
            table.add_column(overflow="fold")
        rest = sorted(marks, key=lambda mark: mark.at)
        for event in events:
            while rest and rest[0].at < event.at:
                _mark(table, rest.pop(0))
            table.add_row(*timeline.parts(event))
        for mark in rest:
            _mark(table, mark)
        self.console.print(Indented(table, 3))

    def told(self, items: Sequence[Item]) -> None:
        """The results that the model was shown, long lists shortened."""
        for item in items:
            if item.result is not None:
                self.say(item.tool, "bold")
                for key, value in shortened(item.result).items():
                    line = Text(f"{text.visible(key)}: ", style="cyan")
                    said = text.visible(json.dumps(value, ensure_ascii=False))
                    self.console.print(Indented(line.append(said, style="default"), 5))

    def testimony(self, testimony: Testimony) -> None:
        """The gateway's own count, and whether it is right."""
        if not testimony.paid:
            self.say("The gateway has paid nothing.")
        else:
            most = max(one.times for one in testimony.paid)
            self.say(f"{len(testimony.paid)} refunds, each paid {_times(most)}, {testimony.total} in all.", "bold")
        for problem in testimony.wrong:
            self.wrong(problem)
        if not testimony.wrong:
            what = "exactly what was approved, each once, to the cent" if testimony.paid else "as decided"
            self.done(f"That is {what}.")

    def difference(self, difference: dict[str, Any]) -> None:
        """Why it is asked again."""
        self.console.print(Indented(preview.differs(difference), 3))


def shortened(value: Any) -> Any:
    """Long lists as a count, of ids with the first; amounts as people read them."""
    if amounts.is_money(value):
        return amounts.in_words(value)
    if isinstance(value, dict):
        return {key: shortened(one) for key, one in value.items()}
    if isinstance(value, list):
        if len(value) <= 3:
            return [shortened(one) for one in value]
        return f"({len(value)} rows)" if isinstance(value[0], dict) else f"({len(value)}: {value[0]}, …)"
    return value


def _mark(table: Table, mark: Mark) -> None:
    table.add_row(*[Text(part, style="dim") for part in (timeline.clock(mark.at), "──", text.visible(mark.words))])


def _times(count: int) -> str:
    return "exactly once" if count == 1 else f"up to {count} times"
