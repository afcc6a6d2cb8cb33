"""Plain JSON: what can be stored, hashed, sent to a model and read back as the same value.

I-JSON (RFC 7493), with the limits of what carries it here: PostgreSQL's jsonb takes neither NUL nor lone surrogates,
RFC 8785 no integer beyond 2^53-1, and LangGraph's checkpoints stay wedged on NaN or infinity. Whatever a model proposes
is examined (`flaw`) and refused by the name of its field, never repaired: a repaired argument would be another call
(P6, A2). Whatever is only told, a tool's answer or a text, is made plain (`plain`, `clean`), since telling must not
fail (G7, E3).
"""

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

MAX_INTEGER = 2**53 - 1  # RFC 8785, RFC 7493: beyond it JSON readers disagree
MAX_DEPTH = 32  # levels of lists and objects
MAX_CHARS = 1_000_000  # of one call's arguments as JSON: 10,000 addresses pass, 5 MB of text do not

_FORBIDDEN = re.compile("[\x00\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a value is not plain: a stable code, the path of the field (`refund_due_ids[3]`), a sentence."""

    code: str
    field: str
    message: str


class Repeated(dict[str, Any]):
    """A JSON object that named a field twice; readers differ in which one they take."""

    name: str


_PLAIN = (type(None), bool, int, float, str, list, dict, Repeated)


def clean(text: str) -> str:
    """`text` with U+FFFD for each NUL and lone surrogate, which no database or provider takes."""
    return _FORBIDDEN.sub("\ufffd", text)


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters of `text`; a cut is said, with the length it had."""
    return text if len(text) <= limit else f"{text[:limit]}… [cut: {len(text):,} characters]"


def flaw(value: object, *, name: str = "arguments", max_chars: int = MAX_CHARS) -> Flaw | None:
    """A reason why `value` is not plain JSON, with the path of the field that shows it, or None.

    Walks without recursion and stops at `max_chars`: neither depth nor size can hurt. `name` stands for the whole.
    """
    sizes: Counter[str] = Counter()  # characters by top-level field, to name the one that is too long
    todo: list[tuple[str, str, int, object]] = [("", "", 0, value)]
    while todo:
        path, top, depth, item = todo.pop()
        if found := _own_flaw(item, depth):
            return Flaw(found[0], shortened(path, 200) or name, found[1])
        sizes[top] += _length(item)
        if sizes.total() > max_chars:
            largest = shortened(sizes.most_common(1)[0][0], 200) or name
            return Flaw("too_long", largest, f"More than {max_chars:,} characters; the limit is for the whole call.")
        if isinstance(item, dict):
            for key in reversed(item):
                inner = f"{path}.{_shown(key)}" if path else _shown(key)
                if type(key) is str and not _FORBIDDEN.search(key):
                    todo.append((inner, top or inner, depth + 1, item[key]))
                    sizes[top or inner] += len(key) + 4
                else:
                    return Flaw(
                        "forbidden_character", shortened(inner, 200), "A field's name has a forbidden character."
                    )
        elif isinstance(item, list):
            todo.extend((f"{path}[{i}]", top, depth + 1, item[i]) for i in reversed(range(len(item))))
    return None


def _own_flaw(item: object, depth: int) -> tuple[str, str] | None:
    match item:
        case _ if type(item) not in _PLAIN:  # exactly: an enum or a numpy number is stored as something else
            return "not_json", f"A value of type {type(item).__name__} is not JSON."
        case int() if abs(item) > MAX_INTEGER:
            return "integer_too_large", f"An integer beyond {MAX_INTEGER} (2^53-1); pass a long identifier as a string."
        case float() if not math.isfinite(item):
            return "not_finite", "NaN and infinity are not numbers that can be acted on."
        case str() if _FORBIDDEN.search(item):
            return "forbidden_character", "Text with a NUL character or half of a surrogate pair."
        case Repeated():
            return "repeated_field", f"The field {_shown(item.name)} is given twice; give it once."
        case dict() | list() if depth > MAX_DEPTH:
            return "too_deep", f"More than {MAX_DEPTH} levels of lists and objects."
        case _:
            return None


def _length(item: object) -> int:
    match item:
        case str():
            return len(item) + 3
        case dict() | list():
            return 2
        case _:
            return 5


def _shown(key: object) -> str:
    text = key if isinstance(key, str) else repr(key)
    return text if _NAME.fullmatch(text) else json.dumps(shortened(text, 60))


def parse(text: str) -> Any:
    """JSON as it was written: NaN, infinity, huge integers and repeated fields are kept for `flaw` to find and name.

    Raises ValueError when `text` is not JSON, RecursionError when it is nested beyond the parser.
    """
    return json.loads(text, strict=False, parse_int=_integer, object_pairs_hook=_object)


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= 20 else MAX_INTEGER + 1  # int() of a long text is slow, and refused past 4,300


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    counts = Counter(key for key, _ in pairs)
    repeated = Repeated(result)
    repeated.name = next(key for key, count in counts.items() if count > 1)
    return repeated


def plain(value: object, *, depth: int = 0) -> JsonValue:
    """`value` as plain JSON, whatever it is: what JSON cannot say is told as text, and nothing raises.

    For what is told, never for what is executed: 2**70 becomes "1180591620717411303424", NaN "nan", a lambda its repr.
    """
    match value:
        case None | bool():
            return value
        case str():
            return clean(str.__str__(value))  # an enum's text, not its name
        case int() if abs(value) <= MAX_INTEGER:
            return int(value)
        case int():
            return str(int(value)) if value.bit_length() < 4000 else shortened(hex(value), 2000)
        case float():
            return float(value) if math.isfinite(value) else str(float(value))
        case dict() if depth < MAX_DEPTH:
            return {clean(k if isinstance(k, str) else _told(k)): plain(v, depth=depth + 1) for k, v in value.items()}
        case list() | tuple() if depth < MAX_DEPTH:
            return [plain(item, depth=depth + 1) for item in value]
        case _:
            return _told(value)


def _told(value: object) -> str:
    try:
        return shortened(clean(repr(value)), 2000)
    except Exception:  # noqa: BLE001 - a foreign __repr__ may raise anything, and telling must not fail
        return f"<{type(value).__name__}>"
