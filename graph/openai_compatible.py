"""The client of any OpenAI-compatible address, on langchain-openai.

It retries what may pass (429, 5xx, a broken connection), waits as long as `Retry-After` says up to two minutes, and ends
at `model_timeout` per attempt. It keeps the provider's calls as they came, in their order, because LangChain separates
good from malformed ones and gives up the whole answer for arguments that are not an object; `graph.answers` sorts that
out.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from graph.answers import RAW_CALLS
from graph.models import OPENAI, explained, shown
from placet.settings import Settings

LONGEST_WAIT = 120.0  # seconds of `Retry-After` that the client obeys; longer is given up at once


def connect(settings: Settings, name: str, key: str, address: str) -> "OpenAICompatible":
    """The model `name` at `address`; an empty `key` where none is needed."""
    timeout = openai.Timeout(settings.model_timeout, connect=min(10.0, settings.model_timeout))
    return OpenAICompatible(
        model=name,
        base_url=address,
        api_key=SecretStr(key or "none"),
        timeout=timeout,
        max_retries=settings.model_retries,
        max_tokens=settings.model_max_tokens,
        use_responses_api=None if address == OPENAI else False,  # only OpenAI speaks it, some models there nothing else
        http_async_client=openai.DefaultAsyncHttpxClient(timeout=timeout),  # LangChain's is shared between event loops
        deadline=(settings.model_retries + 1) * settings.model_timeout + settings.model_retries * LONGEST_WAIT,
    )


class OpenAICompatible(ChatOpenAI):
    """`ChatOpenAI` with a deadline for all attempts together, `ModelError`s, and the provider's calls as they came."""

    deadline: float  # seconds; a server that drips one byte at a time never runs into the client's own time-outs

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        try:
            async with asyncio.timeout(self.deadline):
                return await super()._agenerate(messages, stop, run_manager, **kwargs)
        except (
            openai.OpenAIError,
            TimeoutError,
            *(ValueError, LookupError, TypeError, AttributeError, RecursionError),  # how LangChain meets garbage
        ) as error:
            problem = explained(
                error, model=self.model_name, address=shown(self.openai_api_base or OPENAI), secret=self._key()
            )
        raise problem

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        """Token by token, for those who follow; deadline, errors and calls as they came are the same as without."""
        calls: dict[object, dict[str, Any]] = {}
        ended = False
        end = asyncio.get_running_loop().time() + self.deadline
        parts = super()._astream(messages, stop, run_manager, **kwargs)
        try:
            while True:
                async with asyncio.timeout_at(end):
                    part = await anext(parts, None)
                if part is None:
                    break
                _add_calls(calls, part.message)
                about = {**(part.generation_info or {}), **part.message.response_metadata}
                ended = ended or bool(about.get("finish_reason") or about.get("status"))
                yield part
            if not ended:
                raise ValueError("The stream ended before the answer did.")
        except (
            openai.OpenAIError,
            httpx.HTTPError,
            TimeoutError,
            *(ValueError, LookupError, TypeError, AttributeError, RecursionError),
        ) as error:
            problem = explained(
                error, model=self.model_name, address=shown(self.openai_api_base or OPENAI), secret=self._key()
            )
        else:
            if calls:
                last = AIMessageChunk(content="", additional_kwargs={RAW_CALLS: list(calls.values())})
                yield ChatGenerationChunk(message=last)
            return
        raise problem

    def _key(self) -> str:
        return self.openai_api_key.get_secret_value() if isinstance(self.openai_api_key, SecretStr) else ""

    def _get_request_payload(self, input_: Any, *, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        payload = super()._get_request_payload(input_, stop=stop, **kwargs)
        if not _speaks_openai(self.openai_api_base or OPENAI, self.model_name) and "max_completion_tokens" in payload:
            payload["max_tokens"] = payload.pop("max_completion_tokens")  # the name that every compatible server knows
        return payload

    def _create_chat_result(
        self, response: dict[str, Any] | openai.BaseModel, generation_info: dict[str, Any] | None = None
    ) -> ChatResult:
        if not isinstance(response, openai.BaseModel):
            return super()._create_chat_result(response, generation_info)
        answer = response.model_dump(warnings=False)
        calls = [_take_calls(choice) for choice in answer.get("choices") or []]
        if not calls and not answer.get("error"):
            raise ValueError("The answer has no choices.")
        result = super()._create_chat_result(answer, generation_info)
        for generation, raw in zip(result.generations, calls, strict=True):
            if raw:
                generation.message.additional_kwargs[RAW_CALLS] = raw
        return result


def _add_calls(calls: dict[object, dict[str, Any]], message: BaseMessage) -> None:
    """What a part says of calls: the first of each names it, the others go on with its arguments."""
    for place, chunk in enumerate(getattr(message, "tool_call_chunks", [])):
        key = chunk["index"] if chunk.get("index") is not None else chunk.get("id") or place
        call = calls.setdefault(key, {"id": chunk.get("id"), "function": {"name": None, "arguments": ""}})
        function = call["function"]
        function["name"] = function["name"] or chunk.get("name")
        function["arguments"] += chunk.get("args") or ""


def _take_calls(choice: dict[str, Any]) -> list[Any]:
    """The calls of a choice, taken out of it, so that LangChain does not sort them."""
    message = choice["message"]
    calls = message.pop("tool_calls", None) or []
    if single := message.pop("function_call", None):  # the form before tool calls; some servers still answer so
        calls = [*calls, {"function": single}]
    return calls if isinstance(calls, list) else [calls]


def _speaks_openai(address: str, model: str) -> bool:
    """Whether `max_completion_tokens` is known there: at OpenAI and Azure, and for OpenAI's models behind a proxy."""
    host = urlsplit(address).hostname or ""
    return host.endswith(("openai.com", "openai.azure.com")) or bool(re.match(r"(.*/)?(o\d|gpt-[5-9])", model))
