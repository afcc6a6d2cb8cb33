"""The real client against an OpenAI-compatible server on loopback, which counts the requests itself."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core import exceptions as langchain
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pydantic import SecretStr

from graph import models
from graph.answers import normalise
from graph.models import ask, build_model, tool_schema
from graph.openai_compatible import OpenAICompatible
from graph.protocol import invalid, system_message, tool_message
from placet.settings import Settings
from tests.peers.openai_server import Server, call, completion, cut_off, drip, reply, serving, silence, status
from tests.scripted import Scripted, ScriptRanOut
from tools.contract import Arguments, Tier, Tool

KEY = "sk-test-0123456789abcdef"
NOW = {"retry-after-ms": "1"}  # OpenAI's own header: try again at once


class Ping(Tool[Any, Any]):
    """Answer with the same word."""

    class Arguments(Arguments):
        word: str

    name = "ping"
    tier = Tier.read_only

    async def execute(self, args: Any, operation_id: str) -> Any:
        return args.word


TOOLS = [tool_schema(Ping())]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as running:
        yield running


def configured(server: Server | None = None, **changes: Any) -> Settings:
    base: dict[str, Any] = {
        "model": "gpt-test",
        "openai_base_url": server.url if server else None,
        "openai_api_key": SecretStr(KEY),
        "model_retries": 2,
        "model_timeout": 5.0,
    }
    return Settings(**(base | changes))


def client(server: Server, **changes: Any) -> BaseChatModel:
    return build_model(configured(server, **changes))


async def asked(server: Server, *history: BaseMessage, **changes: Any) -> AIMessage:
    return await ask(client(server, **changes), [system_message(), *(history or (HumanMessage("Hi"),))], TOOLS)


async def test_g1_a_plain_answer_arrives_with_its_usage(server: Server) -> None:
    """One request goes out with model, key, tools and token limit; text, tokens and model come back."""
    server.will(completion("Hello."))

    answer = normalise(await asked(server, model_max_tokens=77), turn_id="t", step=0)

    [request] = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["model"] == "gpt-test"
    assert request.body["max_tokens"] == 77
    assert "max_completion_tokens" not in request.body
    assert request.body["tools"] == TOOLS
    assert request.body["messages"][0]["role"] == "system"
    assert (answer.text, answer.usage.input_tokens, answer.usage.output_tokens) == ("Hello.", 11, 7)
    assert (answer.model, answer.finish_reason, answer.dropped) == ("served-model", "stop", ())


async def test_g1_no_tools_are_not_an_empty_list(server: Server) -> None:
    """Without tools the request has none; providers refuse an empty list."""
    server.will(completion("Hello."))

    await ask(client(server), [HumanMessage("Hi")], [])

    assert "tools" not in server.requests[0].body


@pytest.mark.parametrize(
    ("model", "parameter"),
    [("gpt-test", "max_tokens"), ("o3", "max_completion_tokens"), ("openai/gpt-5-mini", "max_completion_tokens")],
)
async def test_g1_the_token_limit_has_the_name_that_the_model_knows(server: Server, model: str, parameter: str) -> None:
    """Compatible servers know `max_tokens`; OpenAI's reasoning models, also behind a proxy, only the newer name."""
    server.will(completion("Hello."))

    await asked(server, model=model)

    assert {"max_tokens", "max_completion_tokens"} & set(server.requests[0].body) == {parameter}


async def test_g5_good_and_malformed_calls_keep_the_models_order(server: Server) -> None:
    """JSON, no JSON, not an object, NaN, duplicate and empty ids: five places, errors that name the field."""
    server.will(
        completion(
            "Let me see.",
            calls=[
                call("ping", {"word": "one"}, "same"),
                call("ping", '{"word": "tw', "same"),
                call("ping", "[1, 2]", ""),
                call("ping", '{"word": NaN}', None),
                call("pong", {"word": "five"}, "same"),
            ],
        )
    )

    answer = normalise(await asked(server), turn_id="t", step=0)

    assert [call.tool for call in answer.calls] == ["ping", "ping", "ping", "ping", "pong"]
    assert [call.error and (call.error.code, call.error.field) for call in answer.calls] == [
        None,
        ("not_json", "arguments"),
        ("not_an_object", "arguments"),
        ("not_finite", "word"),
        None,
    ]
    assert [call.arguments for call in answer.calls] == [{"word": "one"}, {}, {}, {}, {"word": "five"}]
    assert len({call.call_id for call in answer.calls}) == 5
    assert answer.text == "Let me see."


async def test_g5_the_history_with_malformed_calls_is_accepted_again(server: Server) -> None:
    """The next request holds every call once, under an id of its own, with JSON arguments and one result each."""
    server.will(
        completion(calls=[call("ping", "nope", ""), call("no tool!", {}, "x"), call("ping", {"word": "a"}, "x")]),
        completion("Sorry."),
    )
    model = client(server)
    first = normalise(await ask(model, [HumanMessage("Hi")], TOOLS), turn_id="t", step=0)
    results = [
        tool_message(invalid("not_json", "…", field="arguments"), call_id=call.call_id, tool=call.tool)
        for call in first.calls
    ]

    await ask(model, [HumanMessage("Hi"), first.as_message(), *results], TOOLS)

    _, assistant, *answered = server.requests[1].body["messages"]
    ids = [sent["id"] for sent in assistant["tool_calls"]]
    assert len(set(ids)) == 3
    assert all(len(id_) == 9 and id_.isalnum() for id_ in ids)
    assert [message["tool_call_id"] for message in answered] == ids
    assert [json.loads(sent["function"]["arguments"]) for sent in assistant["tool_calls"]] == [{}, {}, {"word": "a"}]
    assert [sent["function"]["name"] for sent in assistant["tool_calls"]] == ["ping", "no_tool_", "ping"]


@pytest.mark.parametrize(
    "calls",
    [
        [{"id": "a", "type": "function", "function": None}],
        [{"id": "a", "type": "function"}],
        [None],
        ["ping"],
        [{"id": 7, "type": "custom", "custom": {"name": "ping", "input": "x"}}],
        [{"id": "a", "type": "function", "function": {"name": None, "arguments": None}}],
        [call("ping", "[" * 100_000)],
        [call("ping", '{"word": ' + "9" * 100_000 + "}")],
        [call("ping", '{"word": 1e999}')],
        [call("ping", '{"word": "\\ud800"}')],
        [call("ping", '{"word": "\\u0000"}')],
        [call("ping", '{"word": "a", "word": "b"}')],
        [call("ping", json.dumps({"word": "x" * 5_000_000}))],
    ],
)
async def test_p6_whatever_a_call_looks_like_it_is_answered_to_the_model(server: Server, calls: list[Any]) -> None:
    """No shape of a call loses the answer: it keeps its place, with an error and without arguments."""
    server.will(completion("Text stays.", calls=calls))

    answer = normalise(await asked(server), turn_id="t", step=0)

    [only] = answer.calls
    assert only.error
    assert only.arguments == {}
    assert len(only.error.message) < 1000
    assert answer.text == "Text stays."


async def test_p6_no_arguments_are_no_error(server: Server) -> None:
    """Empty text, null and an object instead of text are how servers say "no arguments" or just send them."""
    shapes: list[Any] = ["", None, {}, {"word": "a"}, "null"]
    server.will(completion(calls=[{"id": "a", "function": {"name": "ping", "arguments": shape}} for shape in shapes]))

    answer = normalise(await asked(server), turn_id="t", step=0)

    assert [call.error for call in answer.calls] == [None] * 5
    assert [call.arguments for call in answer.calls] == [{}, {}, {}, {"word": "a"}, {}]


async def test_p6_half_a_surrogate_in_the_text_is_replaced(server: Server) -> None:
    """Text that no database takes is told with U+FFFD instead."""
    server.will(completion("a\ud800b\x00c"))

    answer = normalise(await asked(server), turn_id="t", step=0)

    assert answer.text == "a\ufffdb\ufffdc"


async def test_g1_a_function_call_of_the_old_form_is_a_call(server: Server) -> None:
    """Servers that still answer with `function_call` are understood."""
    server.will(completion(function_call={"name": "ping", "arguments": '{"word": "a"}'}))

    answer = normalise(await asked(server), turn_id="t", step=0)

    assert [(call.tool, call.arguments) for call in answer.calls] == [("ping", {"word": "a"})]


async def test_g1_an_empty_answer_is_said_in_the_history(server: Server) -> None:
    """Neither text nor call: known as empty, and still a message that providers take."""
    server.will(completion(None))

    answer = normalise(await asked(server), turn_id="t", step=0)

    assert answer.is_empty
    assert answer.as_message().content


async def test_e8_a_rate_limit_is_waited_for_as_long_as_the_server_says(server: Server) -> None:
    """429 with `Retry-After: 1`: the next request comes after one second, not before, and is the last."""
    server.will(status(429, {"retry-after": "1"}), completion("Hello."))

    assert (await asked(server)).text == "Hello."

    assert len(server.requests) == 2
    assert 1.0 <= server.seconds_between(0, 1) < 3.0


async def test_e8_a_wait_of_an_hour_is_given_up_at_once(server: Server) -> None:
    """`Retry-After: 3600`: one request, and an error that says how long."""
    server.will(status(429, {"retry-after": "3600"}))

    with pytest.raises(models.ModelRateLimited) as caught:
        await asked(server)

    assert len(server.requests) == 1
    assert caught.value.retry_after == 3600
    assert caught.value.retryable


@pytest.mark.parametrize("code", [429, 500, 502, 503, 529])
async def test_e8_retries_are_bounded(server: Server, code: int) -> None:
    """A server that always fails is asked 1 + `model_retries` times, then the error names its status."""
    server.will(*[status(code, NOW)] * 9)

    with pytest.raises(models.ModelRateLimited if code == 429 else models.ModelUnavailable) as caught:
        await asked(server, model_retries=2)

    assert len(server.requests) == 3
    assert caught.value.status == code
    assert caught.value.retryable


async def test_e8_a_failure_that_passes_is_not_seen(server: Server) -> None:
    """500, a connection cut in the middle of the body, then an answer: the answer counts, three requests were made."""
    server.will(status(500, NOW), cut_off(), completion("Hello."))

    assert (await asked(server)).text == "Hello."
    assert len(server.requests) == 3


async def test_e8_no_retries_means_one_request(server: Server) -> None:
    """`model_retries=0` is one request, whatever happens to it."""
    server.will(cut_off(), completion("Never sent."))

    with pytest.raises(models.ModelUnavailable):
        await asked(server, model_retries=0)

    assert len(server.requests) == 1


async def test_e8_silence_ends_at_the_time_out(server: Server) -> None:
    """A server that does not answer is given up after `model_timeout`."""
    server.will(silence())

    with pytest.raises(models.ModelUnavailable, match="PLACET_MODEL_TIMEOUT"):
        await asked(server, model_timeout=0.2, model_retries=0)

    assert len(server.requests) == 1


async def test_e8_each_attempt_has_the_time_out(server: Server) -> None:
    """Silence at the first attempt is given up in time for the second, which is answered."""
    server.will(silence(), completion("Hello."))

    assert (await asked(server, model_timeout=0.3, model_retries=1)).text == "Hello."
    assert server.seconds_between(0, 1) < 5.0


async def test_e8_dripping_ends_at_the_deadline(server: Server) -> None:
    """A byte now and then never runs into a read time-out; the deadline of all attempts ends it."""
    server.will(drip())

    with pytest.raises(models.ModelUnavailable, match="in time"):
        await asked(server, model_timeout=0.3, model_retries=0)


@pytest.mark.parametrize(
    ("reply_", "error"),
    [
        (status(401, message=f"Incorrect API key provided: {KEY}."), models.ModelAuthentication),
        (status(403, message=f"{KEY} may not use this model."), models.ModelAuthentication),
        (status(404, message="No such model."), models.ModelRefusedRequest),
        (status(400, message="Bad history."), models.ModelRefusedRequest),
        (status(400, message="context_length_exceeded"), models.ModelContextExceeded),
        (status(413, message="Too large."), models.ModelRefusedRequest),
        (status(422, message="Extra field."), models.ModelRefusedRequest),
        (reply("<html>Welcome to nginx</html>", kind="text/html"), models.ModelAnswerUnreadable),
        (reply("{not json"), models.ModelAnswerUnreadable),
        (reply(""), models.ModelAnswerUnreadable),
        (reply("[]"), models.ModelAnswerUnreadable),
        (reply("null"), models.ModelAnswerUnreadable),
        (reply("{}"), models.ModelAnswerUnreadable),
        (reply('{"choices": []}'), models.ModelAnswerUnreadable),
        (reply('{"choices": null}'), models.ModelAnswerUnreadable),
        (reply('{"choices": [{"message": null}]}'), models.ModelAnswerUnreadable),
        (reply('{"choices": [{}]}'), models.ModelAnswerUnreadable),
        (reply('{"choices": [null]}'), models.ModelAnswerUnreadable),
        (reply('{"choices": 7}'), models.ModelAnswerUnreadable),
        (reply('{"choices": [{"message": {"role": "assistant", "content": {"a": 1}}}]}'), models.ModelAnswerUnreadable),
        (reply(f'{{"error": {{"message": "inside a 200, {KEY}"}}}}'), models.ModelAnswerUnreadable),
        (reply("[" * 100_000), models.ModelAnswerUnreadable),
    ],
)
async def test_v4_errors_say_what_to_do_and_never_hold_the_key(
    server: Server, reply_: Any, error: type[models.ModelError]
) -> None:
    """What is no use to retry is asked once; the error has its class, a sentence, and neither key nor request in it."""
    server.will(reply_)

    with pytest.raises(models.ModelError) as caught:
        await asked(server)

    assert type(caught.value) is error
    assert len(server.requests) == 1
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "OPENAI" in str(caught.value) or "PLACET" in str(caught.value) or "thread" in str(caught.value)
    assert len(str(caught.value)) < 1000


async def test_g1_nobody_listens(server: Server) -> None:
    """A refused connection is `model_unavailable` and names the address."""
    with pytest.raises(models.ModelUnavailable, match="OPENAI_BASE_URL") as caught:
        await asked(server, openai_base_url="http://user:secret@127.0.0.1:9/v1", model_retries=0)

    assert "127.0.0.1:9" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_g1_without_a_key_it_is_rehearsal() -> None:
    """No key, or rehearsal by name: the planner that says it is no model."""
    assert build_model(configured(model=None, openai_api_key=None))._llm_type == "rehearsal"
    assert build_model(configured(model=None, openai_api_key=SecretStr(" ")))._llm_type == "rehearsal"
    assert build_model(configured(model="rehearsal"))._llm_type == "rehearsal"


def test_g1_the_settings_decide_which_model() -> None:
    """With a key: the default model at OpenAI, or the one that is named; an own address needs a name and no key."""
    default = build_model(configured(model=None))
    own = build_model(configured(model="llama", openai_base_url="http://127.0.0.1:9/v1", openai_api_key=None))

    assert isinstance(default, OpenAICompatible)
    assert (default.model_name, default.openai_api_base) == ("gpt-4.1-mini", "https://api.openai.com/v1")
    assert isinstance(own, OpenAICompatible)
    assert own.model_name == "llama"


@pytest.mark.parametrize(
    "changes",
    [
        {"openai_api_key": None},
        {"openai_api_key": SecretStr("sk-a\nb")},
        {"openai_api_key": SecretStr("sk-ü")},
        {"openai_base_url": "localhost:11434"},
        {"openai_base_url": "ftp://x/v1"},
        {"openai_base_url": "http://"},
    ],
)
def test_g1_settings_that_cannot_work_are_said_at_once(changes: dict[str, Any]) -> None:
    """A model without a key, a key that is no header, an address that is none: an error before anything is sent."""
    with pytest.raises(models.ModelMisconfigured, match="OPENAI_"):
        build_model(configured(**changes))


async def test_v4_the_key_is_in_no_text_of_the_model(server: Server) -> None:
    """Neither the model's repr nor what LangChain identifies it by holds the key."""
    model = client(server)

    assert KEY not in repr(model) + str(model) + str(model._get_llm_string())


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (langchain.ModelRateLimitError("Slow down."), models.ModelRateLimited),
        (langchain.ModelAuthenticationError("Who?"), models.ModelAuthentication),
        (langchain.ModelConnectionError("Gone."), models.ModelUnavailable),
        (langchain.ContextOverflowError("Long."), models.ModelContextExceeded),
    ],
)
async def test_g1_errors_of_any_langchain_model_are_ours(raised: Exception, error: type[models.ModelError]) -> None:
    """Another provider's model fails with the same classes, and without its own error inside, which holds the request."""
    with pytest.raises(error, match=str(raised)) as caught:
        await ask(Scripted(raised), [HumanMessage("Hi")], TOOLS)

    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


async def test_g1_a_scripted_model_says_when_it_runs_out() -> None:
    """`Scripted` answers in order, counts, keeps what it was shown, and fails clearly beyond its script."""
    model = Scripted("One.", RuntimeError("two"))

    assert (await ask(model, [HumanMessage("Hi")], TOOLS)).text == "One."
    with pytest.raises(RuntimeError, match="two"):
        await ask(model, [HumanMessage("Again")], TOOLS)
    with pytest.raises(ScriptRanOut, match=r"2 answers and was asked 3 times.*Thrice"):
        await ask(model, [HumanMessage("Thrice")], TOOLS)

    assert model.asked == 3
    assert model.shown[0][0].text == "Hi"
    assert model.offered[0] == ["ping"]
