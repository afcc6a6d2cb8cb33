"""The model: any OpenAI-compatible address through langchain-openai, or the rehearsal planner without a key.

The client (`openai_compatible.py`) retries what may pass; what remains is a `ModelError` with a stable code that says what
to do and never holds the key.
"""

import math
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from langchain_core import exceptions as langchain
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import JsonValue

from graph.plain import clean, shortened
from graph.rehearsal import Rehearsal
from placet.settings import Settings
from tools.registry import AnyTool

OPENAI = "https://api.openai.com/v1"
DEFAULT_MODEL = "gpt-4.1-mini"
ToolSchema = dict[str, JsonValue]


class ModelError(Exception):
    """The model gave no usable answer. `retryable`: the same request may work later; `retry_after`: in so many seconds,
    where the provider said so; `status`: its HTTP status, if there was one."""

    code = "model_error"
    retryable = False

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class ModelUnavailable(ModelError):
    """The address cannot be reached, does not answer in time, or fails on its side."""

    code = "model_unavailable"
    retryable = True


class ModelRateLimited(ModelError):
    """Too many requests, or the account's quota is used up."""

    code = "model_rate_limited"
    retryable = True


class ModelAuthentication(ModelError):
    """The key is missing, wrong, or not allowed to use the model."""

    code = "model_authentication"


class ModelRefusedRequest(ModelError):
    """The provider does not accept the request: an unknown model, a parameter, a history it calls invalid."""

    code = "model_refused_request"


class ModelContextExceeded(ModelRefusedRequest):
    """The conversation is longer than the model can read."""

    code = "model_context_exceeded"


class ModelAnswerUnreadable(ModelError):
    """The address answered with something that is not a chat completion."""

    code = "model_answer_unreadable"
    retryable = True


class ModelMisconfigured(ModelError):
    """The settings cannot work; nothing was sent."""

    code = "model_misconfigured"


def build_model(settings: Settings) -> BaseChatModel:
    """The model that `settings` name: rehearsal without a key or by name, else the one at `openai_base_url`.

    An address of one's own needs no key, but a name. Raises `ModelMisconfigured` for settings that cannot work.
    """
    key = settings.openai_api_key.get_secret_value().strip() if settings.openai_api_key else ""
    name = settings.model or (DEFAULT_MODEL if key else Rehearsal.NAME)
    if name == Rehearsal.NAME:
        return Rehearsal()
    address = settings.openai_base_url or OPENAI
    if not key and address == OPENAI:
        raise ModelMisconfigured(
            f"PLACET_MODEL is {name!r}, but there is no OPENAI_API_KEY. Set the key, or OPENAI_BASE_URL for a server "
            f"that needs none, or PLACET_MODEL={Rehearsal.NAME} to work without a model."
        )
    if not (key.isascii() and key.isprintable()):
        raise ModelMisconfigured("OPENAI_API_KEY holds a character that no HTTP header takes; copy it again.")
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
        raise ModelMisconfigured(f"OPENAI_BASE_URL is {shown(address)!r}; expected something like {OPENAI}.")
    from graph.openai_compatible import connect  # noqa: PLC0415  # its client takes a second to import; rehearsal needs none

    return connect(settings, name, key, address)


MESSAGE_ID = "placet_message_id"  # in a streamed token's metadata: the id of the message that it becomes part of


async def ask(
    model: BaseChatModel, messages: Sequence[BaseMessage], tools: Sequence[ToolSchema], *, message_id: str | None = None
) -> AIMessage:
    """The model's next step, with `tools` bound (see `tool_schema`).

    `message_id` is what the answer is going to be called; who follows its tokens finds it in their metadata.

    Raises `ModelError`; an error of a model that is not one of ours keeps its own class unless LangChain knows it.
    """
    bound = model.bind_tools([dict(tool) for tool in tools]) if tools else model
    try:
        answer = await bound.ainvoke(list(messages), {"metadata": {MESSAGE_ID: message_id}} if message_id else None)
    except langchain.ModelError as error:
        problem = explained(error, model=type(model).__name__, address="its address", secret="")
    else:
        return answer
    raise problem  # outside `except`: the client's error holds the request, and that the key


def tool_schema(tool: AnyTool) -> ToolSchema:
    """A tool as the model is offered it: an OpenAI function of name, description and JSON schema."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.Arguments.model_json_schema(),
        },
    }


def explained(error: Exception, *, model: str, address: str, secret: str) -> ModelError:
    """What a client raised, as a `ModelError` that says what to do; `secret` is struck out of the provider's words."""
    status = getattr(error, "status_code", None)
    said = str(error).replace(secret, "[key]") if len(secret) >= 8 else str(error)
    kind, advice = _kind_of(error, status)
    answered = f" answered {status}" if status else ""
    message = f"{model} at {address}{answered}: {shortened(clean(said), 500) or type(error).__name__}. {advice}"
    return kind(message, status=status, retry_after=_retry_after(error))


_KINDS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], type[ModelError], str], ...] = (
    (langchain.ContextOverflowError, ModelContextExceeded, "The conversation is too long for it: start a new thread."),
    (
        (langchain.ModelAuthenticationError, langchain.ModelPermissionDeniedError),
        ModelAuthentication,
        "Check OPENAI_API_KEY, and that its account may use this model.",
    ),
    (
        langchain.ModelRateLimitError,
        ModelRateLimited,
        "Try again later, or look at the limits and quota of OPENAI_API_KEY.",
    ),
    (
        (langchain.ModelTimeoutError, TimeoutError),
        ModelUnavailable,
        "No answer in time: try again later, or raise PLACET_MODEL_TIMEOUT.",
    ),
    (langchain.ModelConnectionError, ModelUnavailable, "Check OPENAI_BASE_URL and the network."),
    (langchain.ModelAPIError, ModelUnavailable, "The provider failed: try again later, or check OPENAI_BASE_URL."),
    (langchain.ModelNotFoundError, ModelRefusedRequest, "Check PLACET_MODEL and OPENAI_BASE_URL."),
)


def _kind_of(error: Exception, status: int | None) -> tuple[type[ModelError], str]:
    for classes, kind, advice in _KINDS:
        if isinstance(error, classes):
            return kind, advice
    if status in (408, 409):
        return ModelUnavailable, "Try again later, or check OPENAI_BASE_URL."
    if status:
        return ModelRefusedRequest, "It does not take this request: check PLACET_MODEL and what that model accepts."
    return ModelAnswerUnreadable, "Is this an OpenAI-compatible address? Check OPENAI_BASE_URL."


def _retry_after(error: Exception) -> float | None:
    """Seconds that the provider asks to wait, if it said so in seconds."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def shown(address: str) -> str:
    """An address without the user and password that it may hold."""
    return re.sub(r"//[^/@]*@", "//", address)
