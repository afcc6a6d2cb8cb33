"""Rehearsal: a fixed planner in the place of a model, for trying the whole way of a call without a key.

It is no model and says so. It understands a handful of requests to the shop (`understand`), looks before it proposes,
proposes a batch as one call (P4), and takes what became of it as the protocol says (A10): it stops after a refusal,
reports what really ran, asks again once for what was deferred. It knows only the messages and the tools that are bound,
keeps nothing, and gives the same answer to the same messages.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable

from graph.rehearsal.planner import next_step

__all__ = ["Rehearsal"]


class Rehearsal(BaseChatModel):
    """The planner, as a chat model: bind tools, give messages, get the next step."""

    NAME: ClassVar[str] = "rehearsal"

    @property
    def _llm_type(self) -> str:
        return self.NAME

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Tools as OpenAI function schemas; only those that are bound are ever called."""
        return self.bind(tools=list(tools), **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        step = next_step(messages, {tool["function"]["name"] for tool in kwargs.get("tools", [])})
        message = AIMessage(
            content=step.text,
            tool_calls=[
                {"type": "tool_call", "id": f"call_{place}", "name": call.tool, "args": call.arguments}
                for place, call in enumerate(step.calls)
            ],
            response_metadata={"model_name": self.NAME, "finish_reason": "tool_calls" if step.calls else "stop"},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._generate(messages, stop, **kwargs)
