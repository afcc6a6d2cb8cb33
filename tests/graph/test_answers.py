"""Whatever a model answers becomes plain JSON, with every call in its place."""

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import rfc8785
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_openai.chat_models.base import _construct_lc_result_from_responses_api
from openai.types.responses import Response
from psycopg.types.json import Jsonb

from graph.answers import MAX_CALLS, NO_ANSWER, RAW_CALLS, Answer, call_id, normalise
from graph.plain import MAX_DEPTH, MAX_INTEGER, plain
from placet.record.canonical import canonical, parse
from placet.record.database import Database
from tests.scripted import calls


def arguments_of(arguments: Any, **options: Any) -> Any:
    """One call with these arguments, normalised."""
    raw = [{"function": {"name": "refund_payments", "arguments": arguments}}]
    message = AIMessage(content="")
    message.additional_kwargs[RAW_CALLS] = raw
    [call] = normalise(message, turn_id="t", step=1, **options).calls
    return call


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names of fields too."""
    match value:
        case str():
            yield value
        case dict():
            for key, item in value.items():
                yield from (key, *texts(item))
        case list():
            for item in value:
                yield from texts(item)


def through_jsonb(value: Any) -> Any:
    """What PostgreSQL's jsonb gives back: numbers are decimals without exponent, keys are sorted and unique."""
    assert not any("\x00" in said for said in texts(value))
    text = json.dumps(value, ensure_ascii=True)

    def number(digits: str) -> Any:
        shown = format(Decimal(digits), "f")
        return float(shown) if "." in shown else int(shown)

    return json.loads(text, parse_float=number)


wild_text = st.text(st.characters(codec=None, categories=None), max_size=20)  # NUL and lone surrogates too
wild_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | wild_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(wild_text, inner, max_size=4),
    max_leaves=12,
)
wild_object = st.dictionaries(wild_text, wild_json | st.binary(max_size=3) | st.just({1, 2}), max_size=4)
ids = st.none() | st.sampled_from(["", "a", "b"]) | wild_text
tool_calls: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"name": wild_text, "args": wild_object, "id": ids, "type": st.just("tool_call")}
)
invalid_calls: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {
        "name": st.none() | wild_text,
        "args": st.none() | wild_text,
        "id": ids,
        "error": st.none() | wild_text,
        "type": st.just("invalid_tool_call"),
    }
)
raw_calls = st.lists(
    st.none()
    | wild_json
    | st.fixed_dictionaries(
        {
            "id": wild_json,
            "function": st.fixed_dictionaries(
                {
                    "name": wild_json | st.sampled_from(["search_orders", "refund_payments"]),
                    "arguments": wild_json | wild_object.map(lambda o: json.dumps(plain(o))) | wild_text,
                }
            ),
        }
    ),
    max_size=5,
)
blocks = wild_text | st.fixed_dictionaries(
    {"type": wild_text | st.just("text")}, optional={"text": wild_json, "id": ids}
)


@st.composite
def messages(draw: st.DrawFn) -> AIMessage:
    message = AIMessage(content=draw(wild_text | st.lists(blocks, max_size=4)))
    message.tool_calls = draw(st.lists(tool_calls, max_size=4))
    message.invalid_tool_calls = draw(st.lists(invalid_calls, max_size=4))
    if draw(st.booleans()):
        message.additional_kwargs[RAW_CALLS] = draw(raw_calls)
    message.response_metadata = draw(st.dictionaries(st.sampled_from(["finish_reason", "model_name", "x"]), wild_json))
    usage: Any = draw(st.none() | st.dictionaries(st.sampled_from(["input_tokens", "y"]), wild_json))
    message.usage_metadata = usage
    return message


def proposed_by(message: AIMessage) -> int:
    raw = message.additional_kwargs.get(RAW_CALLS)
    return len(raw) if raw is not None else len(message.tool_calls) + len(message.invalid_tool_calls)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages())
def test_p6_any_answer_can_be_stored_hashed_and_sent_back(message: AIMessage) -> None:
    """Any message gives an answer that survives JSON, jsonb and RFC 8785, with every call under an id of its own."""
    answer = normalise(message, turn_id="t", step=3)

    assert len(answer.calls) == proposed_by(message)
    stored = answer.as_json()
    assert Answer.from_json(json.loads(json.dumps(stored))) == answer
    assert Answer.from_json(through_jsonb(stored)) == answer
    json.dumps(stored, ensure_ascii=False).encode()
    for call in answer.calls:
        canonical = rfc8785.dumps(call.arguments)
        [again] = [c for c in Answer.from_json(through_jsonb(stored)).calls if c.call_id == call.call_id]
        assert rfc8785.dumps(again.arguments) == canonical
        assert not (call.error and call.arguments)

    history = answer.as_message()
    ids_sent = [call["id"] for call in history.tool_calls]
    assert len(set(ids_sent)) == len(ids_sent) == len(answer.calls)
    assert all(ids_sent)
    assert history == answer.as_message()
    assert history.content or history.tool_calls
    json.dumps([call["args"] for call in history.tool_calls], allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        ('{"refund_due_ids": ["a", "b", "c", NaN]}', "not_finite", "refund_due_ids[3]"),
        ('{"stated_total": {"minor": Infinity}}', "not_finite", "stated_total.minor"),
        ('{"stated_total": {"minor": -1e999}}', "not_finite", "stated_total.minor"),
        (f'{{"a": 1, "minor": {2**53}}}', "integer_too_large", "minor"),
        (f'{{"minor": -{2**53}}}', "integer_too_large", "minor"),
        ('{"minor": 1' + "0" * 5000 + "}", "integer_too_large", "minor"),
        (r'{"note": "a\u0000b"}', "forbidden_character", "note"),
        (r'{"note": ["ok", {"by": "\ud83d"}]}', "forbidden_character", "note[1].by"),
        (r'{"a\u0000": 1}', "forbidden_character", r'"a\u0000"'),
        ('{"note": ' + "[" * 40 + "]" * 40 + "}", "too_deep", "note" + "[0]" * (MAX_DEPTH)),
        ("[" * 100_000, "too_deep", "arguments"),
        ('{"note": "' + "x" * 5_000_000 + '"}', "too_long", "note"),
        (json.dumps({"a": 1, "refund_due_ids": ["RD-000001"] * 200_000}), "too_long", "refund_due_ids"),
        ('{"total": 1, "b": {"total": 2, "total": 3}}', "repeated_field", "b"),
        ('{"refund_due_ids": ["a"', "not_json", "arguments"),
        ("refund everything", "not_json", "arguments"),
        ("{'a': 1}", "not_json", "arguments"),
        ('["a"]', "not_an_object", "arguments"),
        ('"{}"', "not_an_object", "arguments"),
        ("0", "not_an_object", "arguments"),
        ("false", "not_an_object", "arguments"),
        ({"when": {1, 2}}, "not_json", "when"),
        ({1: "a"}, "forbidden_character", '"1"'),
    ],
)
def test_p6_an_error_names_the_field(arguments: Any, code: str, field: str) -> None:
    """Each kind of bad argument is an error with the path of the field, and nothing of the call is kept to run."""
    call = arguments_of(arguments)

    assert (call.error.code, call.error.field) == (code, field)
    assert call.arguments == {}
    assert call.tool == "refund_payments"
    assert 0 < len(call.error.message) < 500
    call.error.message.encode()


@pytest.mark.parametrize(
    "arguments",
    [
        {"zero": -0.0},
        {"large": 1e16},
        {"larger": 1.7976931348623157e308},
        {"small": 5e-324},
        {"edge": MAX_INTEGER, "other": -MAX_INTEGER},
        {"to": [f"person{i}@example.org" for i in range(10_000)]},
        {"text": "line\nbreak\ttab \u202e \u0001 \U0001f4b8"},
        {"nothing": None, "yes": True, "empty": [{}, []]},
        {},
    ],
)
def test_p6_what_is_unusual_but_plain_is_the_same_when_executed(arguments: Any) -> None:
    """-0.0, 1e16, 10,000 recipients: no error, and the same canonical bytes after the database as before."""
    call = arguments_of(json.dumps(arguments))

    assert call.error is None
    assert call.arguments == arguments
    answer = normalise(calls(("mail", arguments)), turn_id="t", step=0)
    back = Answer.from_json(through_jsonb(answer.as_json()))
    assert rfc8785.dumps(back.calls[0].arguments) == rfc8785.dumps(call.arguments) == rfc8785.dumps(arguments)
    assert canonical(parse(canonical(arguments))) == canonical(arguments)  # hashed again at dispatch (A2)


async def test_p6_postgres_gives_back_the_same_answer(database: Database) -> None:
    """What the text rules of jsonb say of it is what Postgres does: the same answer, the same canonical bytes."""
    arguments: dict[str, Any] = {
        "zero": -0.0,
        "large": 1e16,
        "larger": 1.7e308,
        "small": 5e-324,
        "edge": MAX_INTEGER,
        "text": "\u0001\u202e",
    }
    answer = normalise(calls(("mail", arguments), ("no\x00", {"\x00": "\ud800"}), text="a\x00b"), turn_id="t", step=0)

    async with database.read() as tx:
        stored = await tx.fetch_value("select %(answer)s::jsonb", {"answer": Jsonb(answer.as_json())})

    assert Answer.from_json(stored) == answer
    assert rfc8785.dumps(Answer.from_json(stored).calls[0].arguments) == rfc8785.dumps(arguments)


def test_p6_the_limit_is_a_parameter() -> None:
    """`max_chars` bounds the arguments of each call and the text."""
    assert arguments_of('{"a": "xxxxxxxxxx"}', max_chars=10).error.code == "too_long"
    assert normalise(AIMessage("x" * 50), turn_id="t", step=0, max_chars=10).text == "x" * 10 + "… [cut: 50 characters]"


@pytest.mark.parametrize("name", ["", None, 7, "refund payments", "refund_payments\x00", "ü", "x" * 65, "a.b"])
def test_p6_a_name_that_no_provider_takes_is_an_error(name: Any) -> None:
    """Such a name would wedge the history; made harmless it may equal a real tool's: an error that never runs."""
    message = AIMessage(content="")
    message.additional_kwargs[RAW_CALLS] = [{"function": {"name": name, "arguments": '{"refund_due_ids": ["a"]}'}}]

    [call] = normalise(message, turn_id="t", step=0).calls

    assert call.error
    assert call.error.code == "invalid_tool_name"
    assert call.arguments == {}
    assert call.tool.isascii()
    assert 0 < len(call.tool) <= 64


def test_p6_more_calls_than_providers_take_back_are_errors() -> None:
    """Calls beyond the 128th keep their place and are answered with an error."""
    answer = normalise(calls(*[("ping", {"i": i}) for i in range(MAX_CALLS + 2)]), turn_id="t", step=0)

    assert [call.error.code if call.error else None for call in answer.calls][-3:] == [
        None,
        "too_many_calls",
        "too_many_calls",
    ]


def test_g1_an_answer_that_was_cut_says_so() -> None:
    """Arguments cut at the token limit are told as that, so that the model asks for less."""
    message = AIMessage(content="", response_metadata={"finish_reason": "length"})
    message.additional_kwargs[RAW_CALLS] = [{"function": {"name": "ping", "arguments": '{"word": "a'}}]

    [call] = normalise(message, turn_id="t", step=0).calls

    assert call.error
    assert "token limit" in call.error.message


def test_g5_ids_are_derived_and_never_repeat_within_a_thread() -> None:
    """Providers give `call_0` in each answer; here the same place has the same id, another step or turn another."""
    first = normalise(calls(("ping", {}), ("ping", {})), turn_id="t", step=0)

    assert first == normalise(calls(("ping", {}), ("ping", {})), turn_id="t", step=0)
    assert [call.call_id for call in first.calls] == [call_id("t", 0, 0), call_id("t", 0, 1)]
    assert len({call_id(turn, step, place) for turn in "abc" for step in range(30) for place in range(30)}) == 2700


def test_g5_calls_of_langchain_without_order_come_good_ones_first() -> None:
    """A model that keeps no order gives its good calls, then the malformed ones; each once."""
    message = calls(("one", {}), ("two", {}))
    message.invalid_tool_calls = [{"type": "invalid_tool_call", "name": "three", "args": "{", "id": "", "error": ""}]

    answer = normalise(message, turn_id="t", step=0)

    assert [(call.tool, bool(call.error)) for call in answer.calls] == [("one", False), ("two", False), ("three", True)]


def test_g5_calls_keep_the_order_of_content_blocks() -> None:
    """OpenAI's Responses name each call in the content: that order counts, also around a malformed one."""

    def function_call(place: int, arguments: str) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": f"fc_{place}",
            "call_id": f"c{place}",
            "name": f"tool_{place}",
            "arguments": arguments,
        }

    response = Response.model_validate(
        {
            "id": "resp_1",
            "created_at": 1,
            "model": "m",
            "object": "response",
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "output": [
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {
                    "type": "message",
                    "id": "msg_1",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "Looking.", "annotations": []}],
                },
                function_call(0, "{"),
                function_call(1, '{"a": 1}'),
            ],
        }
    )
    message = _construct_lc_result_from_responses_api(response).generations[0].message
    assert isinstance(message, AIMessage)

    answer = normalise(message, turn_id="t", step=0)

    assert answer.text == "Looking."
    assert answer.dropped == ("reasoning",)
    assert [(call.tool, bool(call.error)) for call in answer.calls] == [("tool_0", True), ("tool_1", False)]


def test_g7_content_blocks_become_text() -> None:
    """Text in blocks is joined; other kinds are left out, and named."""
    message = AIMessage(
        content=["a", {"type": "text", "text": "b"}, {"type": "image", "data": "…"}, {"type": "thinking"}, {"x": 1}]
    )

    answer = normalise(message, turn_id="t", step=0)

    assert answer.text == "ab"
    assert answer.dropped == ("image", "thinking", "unknown")
    assert answer.as_message().content == "ab"


def test_g7_a_refusal_is_text() -> None:
    """What a model says instead of an answer is told as its text."""
    message = AIMessage(content="", additional_kwargs={"refusal": "I will not."})

    assert normalise(message, turn_id="t", step=0).text == "I will not."


def test_g7_an_empty_answer_has_a_place_in_the_history() -> None:
    """Providers refuse an empty message; the history says that the answer was empty."""
    answer = normalise(AIMessage(content=" \n"), turn_id="t", step=7)

    assert answer.is_empty
    assert answer.as_message().content == NO_ANSWER
    assert answer.as_message().id == "t:7"


@given(
    st.recursive(wild_json | st.binary() | st.complex_numbers(), lambda i: st.lists(i) | st.tuples(i, i), max_leaves=8)
)
def test_e3_whatever_a_tool_answers_can_be_told(value: Any) -> None:
    """`plain` never raises, and what it gives survives JSON and RFC 8785."""
    told = plain(value)

    rfc8785.dumps(told)
    assert plain(told) == told


def test_e3_what_json_cannot_say_is_told_as_text() -> None:
    """2**70, NaN, a lambda, a cycle, an object that cannot even be shown: all told, none raises."""

    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    cycle: list[Any] = []
    cycle.append(cycle)

    told: Any = plain(
        {"big": 2**70, "huge": 2**100_000, "nan": math.nan, "f": lambda: 0, "c": cycle, "h": Hostile(), 5: {1}}
    )

    assert told["big"] == "1180591620717411303424"
    assert told["nan"] == "nan"
    assert told["h"] == "<Hostile>"
    assert told["5"] == "{1}"
    rfc8785.dumps(told)
