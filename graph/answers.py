"""What the model answered, made safe to store, to act on and to send back.

A provider's message may hold anything: arguments that are not JSON, two calls under one id, half a surrogate pair, 5 MB
of text. `normalise` is total: any message becomes one `Answer` of plain JSON in which every call keeps its place (G5),
and a call that cannot be acted on carries an error that names the field, for the gate to answer to the model (P6). Such
a call keeps no arguments, so nothing of it can ever run.

Ids are ours, derived from turn, step and place: providers reuse theirs, leave them empty or give one to two calls, and
then refuse the history. Nine letters and digits are what the strictest provider takes (Mistral: `[a-zA-Z0-9]{9}`).
"""

import hashlib
import re
import string
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage
from pydantic import BaseModel, ConfigDict, JsonValue

from graph.plain import MAX_CHARS, clean, flaw, parse, shortened
from placet.record.canonical import restored

RAW_CALLS = (
    "raw_tool_calls"  # additional_kwargs: the provider's calls as they came, in order, where the client kept them
)
MAX_CALLS = 128  # of one answer; providers refuse a history with more
NO_ANSWER = "(The model gave an empty answer.)"  # several providers refuse a history with an empty message

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what providers accept in a history
_ALPHABET = string.digits + string.ascii_letters


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CallError(_Frozen):
    """Why a call cannot be acted on, for the model: a stable code, the field, what was wrong and what came."""

    code: str
    field: str
    message: str


class ProposedCall(_Frozen):
    """One call that the model proposed. With an `error`, `arguments` is empty."""

    call_id: str
    tool: str
    arguments: dict[str, JsonValue]
    error: CallError | None = None


class Usage(_Frozen):
    """Tokens, as the provider counted them; 0 where it did not say."""

    input_tokens: int = 0
    output_tokens: int = 0


class Answer(_Frozen):
    """One step of the model: its text and its calls, in its own order."""

    turn_id: str
    step: int
    text: str = ""
    calls: tuple[ProposedCall, ...] = ()
    usage: Usage = Usage()
    model: str = ""
    finish_reason: str = ""  # "length": cut at the token limit
    dropped: tuple[str, ...] = ()  # kinds of content that were left out: images, a model's private reasoning

    @property
    def is_empty(self) -> bool:
        """Neither text nor a call: nothing to tell and nothing to do."""
        return not self.text and not self.calls

    def as_message(self) -> AIMessage:
        """The message for the history: valid for any OpenAI-compatible provider, the same each time."""
        return AIMessage(
            id=f"{self.turn_id}:{self.step}",
            content=NO_ANSWER if self.is_empty else self.text,
            tool_calls=[
                {"type": "tool_call", "id": call.call_id, "name": call.tool, "args": dict(call.arguments)}
                for call in self.calls
            ],
        )

    def as_json(self) -> dict[str, JsonValue]:
        """Plain JSON, for the record."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, stored: Mapping[str, JsonValue]) -> "Answer":
        """The answer that `as_json` gave, also after PostgreSQL's jsonb."""
        return cls.model_validate(restored(dict(stored)))


def call_id(turn_id: str, step: int, ordinal: int) -> str:
    """The id of a call in the history: nine letters and digits (53 bits), the same each time, unique in its thread."""
    number = int.from_bytes(hashlib.sha256(f"{turn_id}:{step}:{ordinal}".encode()).digest()[:16])
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def normalise(message: AIMessage, *, turn_id: str, step: int, max_chars: int = MAX_CHARS) -> Answer:
    """`message` as an `Answer`; never raises on what a model or provider said.

    `max_chars` bounds the text, and the arguments of each call as JSON.
    """
    metadata = message.response_metadata
    finish_reason = _label(metadata.get("finish_reason") or metadata.get("status"))
    text, dropped = _text(message)
    calls = [
        _call(name, arguments, call_id(turn_id, step, ordinal), finish_reason, max_chars)
        if ordinal < MAX_CALLS
        else _flawed(name, call_id(turn_id, step, ordinal), "too_many_calls", "", f"At most {MAX_CALLS} calls at once.")
        for ordinal, (name, arguments) in enumerate(_proposed(message))
    ]
    return Answer(
        turn_id=turn_id,
        step=step,
        text=shortened(text, max_chars),
        calls=tuple(calls),
        usage=_usage(message.usage_metadata),
        model=_label(metadata.get("model_name")),
        finish_reason=finish_reason,
        dropped=dropped,
    )


def _call(name: object, arguments: object, id_: str, finish_reason: str, max_chars: int) -> ProposedCall:
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        message = "A tool's name is up to 64 letters, digits, _ or -; use one of the tools you were given."
        return _flawed(name, id_, "invalid_tool_name", "name", message)
    if isinstance(text := arguments, str):
        try:
            arguments = parse(text) if text.strip() else {}
        except RecursionError:
            return _flawed(name, id_, "too_deep", "arguments", "The arguments are nested too deeply.")
        except ValueError as error:
            cut = " The answer was cut at the token limit: ask for less at once." if finish_reason == "length" else ""
            message = f"The arguments are not JSON: {error}.{cut} They began: {_excerpt(text)}"
            return _flawed(name, id_, "not_json", "arguments", message)
    if arguments is None:  # how some servers say "no arguments"
        arguments = {}
    if not isinstance(arguments, dict):
        message = f"Expected an object of named arguments, got {_excerpt(str(arguments))}"
        return _flawed(name, id_, "not_an_object", "arguments", message)
    if found := flaw(arguments, max_chars=max_chars):
        return _flawed(name, id_, found.code, found.field, found.message)
    return ProposedCall(call_id=id_, tool=name, arguments=arguments)


def _flawed(name: object, id_: str, code: str, field: str, message: str) -> ProposedCall:
    tool = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] if isinstance(name, str) else ""
    error = CallError(code=code, field=field, message=message)
    return ProposedCall(call_id=id_, tool=tool or "unnamed", arguments={}, error=error)


def _proposed(message: AIMessage) -> list[tuple[object, object]]:
    """Name and arguments of each call, in the model's order, as raw as the client left them."""
    raw = message.additional_kwargs.get(RAW_CALLS)
    if isinstance(raw, list):
        functions = [call.get("function") if isinstance(call, dict) else None for call in raw]
        return [(f.get("name"), f.get("arguments")) if isinstance(f, dict) else (None, None) for f in functions]
    calls = [*message.tool_calls, *message.invalid_tool_calls]
    order = _order_in_content(message)
    # Stable: where nothing is known, as they came.
    calls.sort(key=lambda call: order.get(call.get("id"), len(message.content)))
    return [(call.get("name"), call.get("args")) for call in calls]


def _order_in_content(message: AIMessage) -> dict[object, int]:
    """Place of each call by its id, where the content has a block per call (OpenAI's Responses, Anthropic)."""
    if not isinstance(message.content, list):
        return {}
    order: dict[object, int] = {}
    for place, block in enumerate(message.content):
        if isinstance(block, dict) and block.get("type") in ("function_call", "tool_use", "tool_call"):
            id_ = block.get("call_id") or block.get("id")
            if isinstance(id_, str):
                order.setdefault(id_, place)
    return order


def _text(message: AIMessage) -> tuple[str, tuple[str, ...]]:
    """The text, and the kinds of other content that were left out."""
    blocks = [message.content] if isinstance(message.content, str) else message.content
    parts: list[str] = []
    dropped: set[str] = set()
    for block in blocks:
        kind = "text" if isinstance(block, str) else block.get("type")
        said = block if isinstance(block, str) else block.get("text") if kind == "text" else block.get("refusal")
        if isinstance(said, str):
            parts.append(said)
        elif kind not in ("function_call", "tool_use", "tool_call", "invalid_tool_call"):
            dropped.add(_label(kind) or "unknown")
    refusal = message.additional_kwargs.get("refusal")
    if isinstance(refusal, str) and not any(parts):
        parts.append(refusal)
    return clean("".join(parts)).strip(), tuple(sorted(dropped))


def _usage(usage: object) -> Usage:
    counts = usage if isinstance(usage, dict) else {}
    return Usage(
        input_tokens=_count(counts.get("input_tokens")),
        output_tokens=_count(counts.get("output_tokens")),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def _label(value: object) -> str:
    return shortened(clean(value), 200) if isinstance(value, str) else ""


def _excerpt(text: str) -> str:
    return ascii(shortened(text, 120))
