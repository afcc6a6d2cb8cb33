"""A model that says what the test tells it to: a list of answers, or a function of the messages.

model = Scripted(calls(("search_orders", {"batch": "NOV-17"})), "Nothing to refund.")
model.asked       # how often it was asked
model.shown[0]    # the messages it was shown, the first time
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import PrivateAttr

Said = str | AIMessage | Exception
Script = Callable[[list[BaseMessage]], Said]


class ScriptRanOut(AssertionError):
    """The model was asked more often than the test expected."""


class Scripted(BaseChatModel):
    """Answers in order, one per call; an exception among them is raised. Given one function, asks it each time."""

    _script: list[Said] | Script = PrivateAttr()
    _shown: list[list[BaseMessage]] = PrivateAttr(default_factory=list)
    _tools: list[list[str]] = PrivateAttr(default_factory=list)

    def __init__(self, *script: Said | Script) -> None:
        super().__init__()
        if len(script) == 1 and callable(script[0]):
            self._script = script[0]
        else:
            self._script = [said for said in script if not callable(said)]
            assert len(self._script) == len(script), "Scripted takes answers or one function, not both."

    @property
    def asked(self) -> int:
        """How often the model was asked."""
        return len(self._shown)

    @property
    def shown(self) -> list[list[BaseMessage]]:
        """The messages of each request."""
        return self._shown

    @property
    def offered(self) -> list[list[str]]:
        """The names of the tools bound to each request."""
        return self._tools

    def results(self, request: int = -1) -> list[dict[str, Any]]:
        """The results of calls that the model was shown in a request, in order; by default in the last one."""
        return [json.loads(m.text) for m in self._shown[request] if isinstance(m, ToolMessage)]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=list(tools), **kwargs)

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return self._next(messages, kwargs.get("tools", []))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._next(messages, kwargs.get("tools", []))

    def _next(self, messages: list[BaseMessage], tools: list[dict[str, Any]]) -> ChatResult:
        self._shown.append(list(messages))
        self._tools.append([tool["function"]["name"] for tool in tools])
        if callable(self._script):
            said = self._script(list(messages))
        elif self.asked <= len(self._script):
            said = self._script[self.asked - 1]
        else:
            last = messages[-1]
            raise ScriptRanOut(
                f"Scripted has {len(self._script)} answers and was asked {self.asked} times. "
                f"The last message it was shown ({last.type}): {str(last.content)[:500]}"
            )
        if isinstance(said, Exception):
            raise said
        message = AIMessage(content=said) if isinstance(said, str) else said.model_copy(deep=True)
        return ChatResult(generations=[ChatGeneration(message=message)])


def calls(*proposed: tuple[str, dict[str, Any]], text: str = "") -> AIMessage:
    """An answer that proposes calls, each as `(tool, arguments)`; ids are as careless as a provider's."""
    return AIMessage(
        content=text,
        tool_calls=[
            {"type": "tool_call", "name": tool, "args": arguments, "id": f"call_{place}"}
            for place, (tool, arguments) in enumerate(proposed)
        ],
    )
