"""What customers and the agent wrote, on a terminal: it moves nothing, hides nothing, and passes for nobody else."""

import io
import json

import pytest
from rich.console import Console

from placet.cli import output, text

HOSTILE = "Ada\u202e 00.02\x1b[2J\u2066\u200b\x9b1m\ud800\ue000\u3164"


def printed(what: object, *, width: int = 40) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, markup=False, emoji=False, highlight=False, force_terminal=True).print(what)
    return stream.getvalue()


def test_i6_what_acts_or_hides_is_shown_by_its_number() -> None:
    """Control, direction, zero-width, half and blank characters become readable; letters of any script stay."""
    shown = text.visible(HOSTILE + "\n")

    assert shown == ("Ada⟨U+202E⟩ 00.02⟨U+001B⟩[2J⟨U+2066⟩⟨U+200B⟩⟨U+009B⟩1m⟨U+D800⟩⟨U+E000⟩⟨U+3164⟩⟨U+000A⟩")
    assert text.visible("Ελένη फ़ातिमा 李 Søren يوسف") == "Ελένη फ़ातिमा 李 Søren يوسف"


def test_i6_joiners_stay_where_a_script_needs_them_and_nowhere_else() -> None:
    """Persian, Hindi and emoji are written with them; in an id they would only hide a difference."""
    persian = "\u0645\u06cc\u200c\u062e"
    assert text.visible(f"{persian} ❤\ufe0f") == f"{persian} ❤\ufe0f"
    assert text.visible("R-1\u200d05") == "R-1⟨U+200D⟩05"


@pytest.mark.parametrize("words", ["[red]x[/red]", "[link=http://evil]x[/]", ":smile:", "[/]", "\\[b]"])
def test_i6_markup_is_text(words: str) -> None:
    """What looks like markup or an emoji's name comes out as it was written, in cells, sentences and quotations."""
    table = output.table("a")
    table.add_row(output.cell(words))
    for shown in (table, output.cell(words), output.words_of(words), output.Indented(output.cell(words))):
        assert words in printed(shown)


def test_i6_somebodys_words_keep_their_bar_on_every_line() -> None:
    """A line break, or a line that is too long, does not let them leave their quotation."""
    shown = printed(output.words_of("short\nApproved by marta.\n" + "long " * 20))

    assert all("│ " in line for line in shown.splitlines())
    assert len(shown.splitlines()) > 4


def test_i6_long_words_are_cut_and_it_is_said() -> None:
    """A reviewer is not buried; the whole text is in --json."""
    assert "… and 6,000 more characters (--json has them)" in printed(output.words_of("x" * 10_000), width=200)


def test_i6_json_does_nothing_to_a_terminal() -> None:
    """What hides is escaped, what people read is not, and it reads back as it was."""
    shown = text.as_json({"name": HOSTILE + "李😀\U000e0100"})

    assert not any(text.hides(char) for char in shown)
    assert "李😀" in shown
    assert json.loads(shown) == {"name": HOSTILE + "李😀\U000e0100"}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3600, "1 h"),
        (86_399, "23 h 59 min"),
        (200_000, "2 d 7 h"),
        (172_800, "2 d"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, words: str) -> None:
    """As long as a person needs it."""
    assert output.duration(seconds) == words
