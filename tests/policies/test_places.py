"""Finding the lines of a TOML file: every key, table and character of a string stands where it is said to stand."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.compiler import RULES
from policies.places import Path, places

UNTIDY = '''# a comment with "quotes" and [brackets]
top = { inline = "x", other = [1, 2] }

[one] # another
  key = "a \\"quoted\\" value" # and "more"
'lit key' = \'\'\'
first
second\'\'\'
list = [
  "not = a key", # ]
  "closed ] but open", 'so is ] this',
  """[not.a.table]
""",
]
long = """\\
    joined \\
    line \\u00e9x
last"""
many = """""two quotes before""\\""""""

[[one.rows]]
id = 'first'
[one.rows.sub]
id = 'of the first'
[[one.rows]]
id = 'second'
[two."dotted.key".three]
a.b = "deep"
'''


def every_string(data: Any, path: Path = ()) -> dict[Path, str]:
    """The strings of parsed TOML outside of inline tables and plain lists."""
    if isinstance(data, str):
        return {path: data}
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return {key: value for name, item in below for key, value in every_string(item, (*path, name)).items()}


def test_p7_keys_tables_and_strings_of_an_untidy_file_are_found():
    """Comments, quoted keys, arrays over lines, nested arrays of tables: nothing shifts a line."""
    found = places(UNTIDY, "f.toml")
    lines = UNTIDY.split("\n")

    for path in found.keys:
        place = found.of(*path)
        assert str(path[-1]).split(".")[0] in lines[place.line - 1][place.column - 1 :] or path[-1] == "b"
    assert lines[found.of("one", "rows", 1, "id").line - 1] == "id = 'second'"
    assert lines[found.of("one", "rows", 1).line - 1] == "[[one.rows]]"
    assert lines[found.of("one", "rows", 0, "sub", "id").line - 1] == "id = 'of the first'"
    assert lines[found.of("two", "dotted.key", "three", "a", "b").line - 1] == 'a.b = "deep"'
    assert found.of("one", "rows") == found.of("one", "rows", 0)
    assert found.of("nowhere", "at", "all") == found.at(0)
    assert found.of("one", "rows", 1, "missing") == found.of("one", "rows", 1)


def test_p7_a_table_stands_at_its_own_header():
    """Also when the file opens a part of it before."""
    found = places("[a.b]\nx = 1\n[a]\ny = 2\n", "f.toml")

    assert [found.of("a").line, found.of("a", "b").line, found.of("a", "y").line] == [3, 1, 4]


def test_p7_strings_are_read_as_tomllib_reads_them():
    """The characters that have a place are exactly those of the value."""
    found = places(UNTIDY, "f.toml")
    parsed = every_string(tomllib.loads(UNTIDY))

    assert {path: text.value for path, text in found.strings.items()} == {
        path: value for path, value in parsed.items() if path[0] != "top" and path[:2] != ("one", "list")
    }


def test_p7_the_starting_rules_are_read_completely():
    """Every string of the real file has its place."""
    text = RULES.read_text()

    assert set(every_string(tomllib.loads(text))) - set(places(text, "rules.toml").strings) == {
        ("policy", "duties", 0),
        ("policy", "duties", 1),
    }


QUOTED = {
    '"': st.text(st.sampled_from('ab \té😀"\\#[]=.'), max_size=12),
    "'": st.text(st.sampled_from('ab é😀"\\#[]=.'), max_size=12),
    '"""': st.text(st.sampled_from('ab\n é😀"\\#[]='), max_size=12),
    "'''": st.text(st.sampled_from('ab\n é😀"\\#[]='), max_size=12),
}


def written(value: str, quote: str) -> str:
    if quote[0] == "'":
        return f"{quote}{chr(10) if len(quote) == 3 else ''}{value}{quote}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t").replace("é", "\\u00e9")
    return f"{quote}{chr(10) if len(quote) == 3 else ''}{escaped}{quote}"


@given(st.data())
def test_p7_every_character_of_a_condition_is_found_where_it_stands(data):
    """For any string in any of the four quotes, a spot in the value is that spot in the file."""
    quote = data.draw(st.sampled_from(sorted(QUOTED)))
    value = data.draw(QUOTED[quote])
    text = f"# x\n[tool]\n\n  key = {written(value, quote)} # behind\nnext = 1\n"
    assert tomllib.loads(text)["tool"]["key"] == value
    found = places(text, "f.toml")
    lines = text.split("\n")
    line, column = 1, 1

    for character in value:
        place = found.inside(("tool", "key"), value, line, column)
        if character != "\n":
            there = lines[place.line - 1][place.column - 1]
            assert there == ("\\" if written(character, quote).strip(quote + "\n").startswith("\\") else character)
        line, column = (line + 1, 1) if character == "\n" else (line, column + 1)
    assert found.of("tool", "next").line == text.rstrip("\n").count("\n") + 1


@pytest.mark.parametrize("value", ["something else", ""])
def test_p7_a_value_that_was_read_otherwise_keeps_the_place_of_its_key(value):
    """When the two readings disagree, the key's line is still right."""
    found = places("[a]\nk = 'x'\n", "f.toml")

    assert found.inside(("a", "k"), value, 1, 1) == found.of("a", "k")
