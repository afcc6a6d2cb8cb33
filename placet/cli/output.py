"""How the command line shows things: tables and colour for people, plain text where nobody looks, JSON where a machine does.

Standard output carries the answer and nothing else; notes, progress and logs go to standard error. With `--json` the
answer is one document, or one line per event. No console here reads markup (see `text`).
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import typer
from pydantic import BaseModel
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from placet.cli import text

Json = Annotated[bool, typer.Option("--json", help="Print JSON: one document, or one line per event.")]
WIDTH = 120  # where nobody looks there is no width, and lines may be as long as this


def console(*, stderr: bool = False) -> Console:
    """A console on today's stdout or stderr; colour only on a terminal, and not with NO_COLOR."""
    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() else WIDTH
    return Console(stderr=stderr, width=wide, markup=False, emoji=False, highlight=False, soft_wrap=False)


def say(sentence: str | Text, style: str = "", *, stderr: bool = False) -> None:
    """A sentence; only a terminal has a width at which it breaks."""
    shown = sentence if isinstance(sentence, Text) else Text(text.visible(sentence), style=style)
    here = console(stderr=stderr)
    here.print(shown, soft_wrap=not here.is_terminal)


def note(sentence: str) -> None:
    """Say something beside the answer."""
    say(sentence, "dim", stderr=True)


def show_json(document: Any, *, line: bool = False) -> None:
    """The answer for a machine: indented, or one line of many."""
    print(text.as_json(plain(document), indent=None if line else 2), flush=True)


@contextmanager
def progress(words: str) -> Iterator[None]:
    """A sign of life on a terminal while something takes longer; nothing where nobody looks.

    Both streams must be terminals: while it lives, what goes to stdout is printed above it, to stderr.
    """
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield
        return
    with console(stderr=True).status(words):
        yield


def table(*columns: str, right: Sequence[str] = (), whole: Sequence[str] = ()) -> Table:
    """A table of text; `right` names the columns of numbers, `whole` those that no terminal is too narrow for: ids that
    people copy, and short words of ours."""
    on_terminal = sys.stdout.isatty()
    made = Table(
        box=box.SIMPLE_HEAD if on_terminal else None,
        pad_edge=False,
        header_style="bold",
        show_edge=False,
        collapse_padding=on_terminal,  # there the padding stands on both sides
    )
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        made.add_column(column, justify=justify, overflow="fold", no_wrap=column in whole)
    return made


def show_table(made: Table, *, nothing: str = "") -> None:
    """Print a table, with nothing trailing behind its lines; `nothing` is said instead of an empty one."""
    if made.row_count or not nothing:
        console().print(Indented(made, 0))
    else:
        say(nothing)


@dataclasses.dataclass(frozen=True)
class Indented:
    """Something moved to the right, with a mark before each of its lines; nothing trails behind them."""

    content: RenderableType
    by: int = 2
    mark: str = ""  # "│ " marks somebody's words, so that they cannot pass for ours

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        before = " " * self.by + self.mark
        inside = options.update_width(max(options.max_width - len(before), 1))
        for line in console.render_lines(self.content, inside, pad=False):
            yield Segment(before, Style(dim=True))
            yield from _without_tail(line)
            yield Segment.line()


def _without_tail(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip():
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
    return kept


def words_of(author: str, *, by: int = 2, style: str = "", most: int = 4_000) -> Indented:
    """What a customer or the agent wrote, marked as theirs; `most` characters of it."""
    shown = text.visible(author[:most], lines=True).expandtabs(4)
    more = f"\n… and {len(author) - most:,} more characters (--json has them)" if len(author) > most else ""
    return Indented(Text(shown + more, style=style), by, "│ ")


def cell(value: object, style: str = "") -> Text:
    """One cell, of text that anybody may have written."""
    return Text(text.visible(value), style=style)


def plain(value: Any) -> Any:
    """Rows, models, ids, times and bytes as JSON has them: ids whole, times ISO 8601, canonical bytes as their JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, UUID):
        return str(value)
    return value


def short(id_: UUID | str | None) -> str:
    """The first eight digits of an id; that is what people type."""
    return str(id_)[:8] if id_ else "–"


def at(moment: datetime, now: datetime) -> str:
    """`2026-11-29 20:31:40 UTC (3 min ago)`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({relative(moment - now)})"


def relative(distance: timedelta) -> str:
    """`in 23 h 59 min`, `3 s ago`."""
    seconds = round(distance.total_seconds())
    return f"in {duration(seconds)}" if seconds > 0 else f"{duration(-seconds)} ago"


def duration(seconds: float) -> str:
    """`45 s`, `3 min`, `23 h 59 min`, `4 d 2 h`: what says something, two units at most."""
    whole = int(seconds)
    if whole < 3600:
        return f"{whole} s" if whole < 60 else f"{whole // 60} min"
    hours, minutes = divmod(whole // 60, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"


def cells(*values: str | None) -> list[Text]:
    """Cells of one row; None is nothing."""
    return [cell(value or "") for value in values]


STYLES = {
    "completed": "green",
    "committed": "green",
    "approved": "green",
    "pending": "yellow",
    "awaiting_approval": "yellow",
    "awaiting_reconciliation": "magenta",
    "unknown": "magenta",
    "orphaned": "magenta",
    "executing": "cyan",
    "dispatched": "cyan",
    "running": "cyan",
    "failed": "red",
    "refused": "red",
    "rejected": "red",
    "denied": "red",
    "invalid": "red",
    "exhausted": "red",
}


def status(word: str) -> Text:
    """A status as people read it; the word says it, the colour only repeats it."""
    return Text(word.replace("_", " "), style=STYLES.get(word, "dim"))
