"""Where things stand in a TOML file.

`tomllib` gives values without their lines, and a fault of a rule has to be shown where it stands (P7), also inside a
condition that spans several lines. This reads only as much TOML as that takes: table headers, keys and strings. It runs
after `tomllib` has accepted the text; what it does not recognise keeps the place of the nearest thing around it.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from policies.errors import Place

Path = tuple[str | int, ...]  # ("refund_payments", "ask", 0, "when")

ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\", "e": "\x1b"}
BLANK = " \t"


@dataclass(frozen=True, slots=True)
class Text:
    """A string as TOML reads it, with the offset in the file of each of its characters, and of its end."""

    value: str
    offsets: tuple[int, ...]  # one more than characters


@dataclass(slots=True)
class Places:
    """The places of tables and keys of one file, and of the characters of its strings."""

    file: str
    text: str
    tables: dict[Path, int] = field(default_factory=dict)
    keys: dict[Path, int] = field(default_factory=dict)
    strings: dict[Path, Text] = field(default_factory=dict)
    lines: list[int] = field(default_factory=list)  # offset at which each line starts

    def at(self, offset: int) -> Place:
        """The place of a character."""
        line = bisect_right(self.lines, offset)
        return Place(self.file, line, offset - self.lines[line - 1] + 1)

    def of(self, *path: str | int) -> Place:
        """The place of a key or of a table's header; where it has none of its own, of the first thing in it, else of
        what contains it."""
        marks = {**self.tables, **self.keys}
        while path:
            below = [offset for mark, offset in marks.items() if mark[: len(path)] == path]
            if below:
                return self.at(marks.get(path, min(below)))
            path = path[:-1]
        return self.at(0)

    def inside(self, path: Path, value: str, line: int, column: int) -> Place:
        """The place of a character of the string at `path`, counted within its `value`: lines and columns from 1."""
        text = self.strings.get(path)
        if text is None or text.value != value or line < 1:
            return self.of(*path)
        starts = [0, *(index + 1 for index, character in enumerate(value) if character == "\n")]
        index = starts[min(line, len(starts)) - 1] + max(column, 1) - 1
        return self.at(text.offsets[min(index, len(value))])

    def end(self) -> Place:
        """The place of the last line that says something."""
        return self.at(len(self.text.rstrip()))


def places(text: str, file: str) -> Places:
    """Find the places in `text`, which is TOML with line feeds as `tomllib` sees it (CRLF read as LF)."""
    found = Places(file, text)
    found.lines = [0, *(index + 1 for index, character in enumerate(text) if character == "\n")]
    _Reader(found).read()
    return found


@dataclass(slots=True)
class _Reader:
    """Walks through the text once."""

    found: Places
    position: int = 0
    arrays: dict[Path, int] = field(default_factory=dict)  # index of the last table of each array of tables

    def read(self) -> None:
        table: Path = ()
        text = self.found.text
        while self._skip_to_statement():
            start = self.position
            if text.startswith("[", start):
                table = self._header()
                self.found.tables.setdefault(table, start)
            else:
                path = (*table, *self._key())
                self.found.keys.setdefault(path, start)
                self._skip(BLANK + "=")
                if text.startswith(('"', "'"), self.position):
                    self.found.strings[path] = self._string()
            self._skip_value()

    def _skip(self, characters: str) -> None:
        while self.position < len(self.found.text) and self.found.text[self.position] in characters:
            self.position += 1

    def _skip_to_statement(self) -> bool:
        while True:
            self._skip(BLANK + "\n\r")
            if not self.found.text.startswith("#", self.position):
                return self.position < len(self.found.text)
            self._skip_comment()

    def _skip_comment(self) -> None:
        end = self.found.text.find("\n", self.position)
        self.position = len(self.found.text) if end < 0 else end

    def _header(self) -> Path:
        is_array = self.found.text.startswith("[[", self.position)
        self.position += 2 if is_array else 1
        *above, last = self._key()
        table: Path = ()
        for part in above:
            table = self._current((*table, part))
        table = (*table, last)
        if is_array:
            self.arrays[table] = self.arrays.get(table, -1) + 1
            table = (*table, self.arrays[table])
        self.position += 2 if is_array else 1
        return table

    def _current(self, table: Path) -> Path:
        return (*table, self.arrays[table]) if table in self.arrays else table

    def _key(self) -> tuple[str, ...]:
        """A dotted key; ends before `=` or `]`."""
        parts: list[str] = []
        text = self.found.text
        while True:
            self._skip(BLANK)
            if text.startswith(('"', "'"), self.position):
                parts.append(self._string().value)
            else:
                start = self.position
                while self.position < len(text) and text[self.position] not in BLANK + "=].\n":
                    self.position += 1
                parts.append(text[start : self.position])
            self._skip(BLANK)
            if not text.startswith(".", self.position):
                return tuple(parts)
            self.position += 1

    def _skip_value(self) -> None:
        """To the end of the statement: over the rest of the line, and over lines while a bracket is open."""
        depth = 0
        text = self.found.text
        while self.position < len(text):
            character = text[self.position]
            if character == "\n" and depth == 0:
                return
            if character in "\"'":
                self._string()
            elif character == "#":
                self._skip_comment()
            else:
                depth += (character in "[{") - (character in "]}")
                self.position += 1

    def _string(self) -> Text:
        text = self.found.text
        quote = text[self.position]
        is_long = text.startswith(quote * 3, self.position)
        mark = quote * 3 if is_long else quote
        self.position += len(mark)
        if is_long and text.startswith("\n", self.position):
            self.position += 1
        characters: list[str] = []
        offsets: list[int] = []
        while self.position < len(text) and not text.startswith(mark, self.position):
            start = self.position
            if quote == '"' and text[start] == "\\":
                character = self._escape()
            else:
                character = text[start]
                self.position += 1
            characters.append(character)
            offsets.extend([start] * len(character))
        while is_long and text.startswith(quote, self.position + 3):  # up to two quotes may stand before the mark
            characters.append(quote)
            offsets.append(self.position)
            self.position += 1
        offsets.append(self.position)
        self.position += len(mark)
        return Text("".join(characters), tuple(offsets))

    def _escape(self) -> str:
        text = self.found.text
        letter = text[self.position + 1 : self.position + 2]
        digits = {"x": 2, "u": 4, "U": 8}.get(letter)
        if digits:
            code = text[self.position + 2 : self.position + 2 + digits]
            self.position += 2 + digits
            return chr(int(code, 16))
        if letter in ESCAPES:
            self.position += 2
            return ESCAPES[letter]
        self.position += 1  # a backslash at the end of a line: the next lines' leading blanks do not count
        self._skip(BLANK + "\n")
        return ""
