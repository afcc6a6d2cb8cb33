"""What customers and the agent wrote, made safe to look at (I6).

Their text may hold what moves the cursor, turns the direction of writing or shows nothing at all, and then an amount
beside it reads like another one. Every such character is shown by its number, `⟨U+202E⟩`. Markup needs no care of its
own: nothing here is ever printed through a console that reads markup.
"""

import json
import re
import unicodedata
from typing import Any

# Letters and marks that show nothing, beside what Unicode calls control, format, surrogate, private and separators.
BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, range(0xFE00, 0xFE10)))
    + "".join(map(chr, range(0xE0100, 0xE01F0)))
)
JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f")
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: object, *, lines: bool = False) -> str:
    """`text` with everything that acts or hides shown as `⟨U+…⟩`; with `lines`, line breaks and tabs stay.

    What joins letters or picks a glyph stays behind a letter that can be joined: Persian, Hindi and emoji need it.
    """
    shown, before = [], ""
    for char in str(text):
        stays = (
            not hides(char) or (lines and char in "\n\t") or (char in JOINERS and before > "~" and not hides(before))
        )
        shown.append(char if stays else f"⟨U+{ord(char):04X}⟩")
        before = char
    return "".join(shown)


def hides(char: str) -> bool:
    """Whether a terminal would act on the character, or show nothing."""
    return not (" " <= char <= "~") and (char in BLANK or unicodedata.category(char) in HIDDEN)


def as_json(document: Any, *, indent: int | None = None) -> str:
    """JSON that stays readable and does nothing to a terminal: what hides is written as `\\u…`."""
    return _escaped(json.dumps(document, ensure_ascii=False, indent=indent, default=str))


def _escaped(text: str) -> str:
    return re.sub(r"[^\n -~]", lambda found: _escape(found[0]) if hides(found[0]) else found[0], text)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
