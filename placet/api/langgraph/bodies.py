"""What LangGraph's clients send, with a limit on every field (L5).

Fields that nobody here knows are ignored, as LangGraph's own server does; a known one that this server does not do is
refused with 422 and says so, since ignoring it would be an answer to something else.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from placet.record.canonical import NotPlain, check_plain
from placet.record.client_runs import Strategy
from placet.record.threads import SortBy, Status

T = TypeVar("T")

Mode = Literal["values", "updates", "messages", "messages-tuple", "custom", "tasks", "checkpoints", "debug"]
MODES: tuple[Mode, ...] = (
    "values",
    "updates",
    "messages",
    "messages-tuple",
    "custom",
    "tasks",
    "checkpoints",
    "debug",
)
UNSUPPORTED = {
    "webhook": "Webhooks that a client names are not sent; the server's own notifications are configured by its operator.",
    "interrupt_before": "What pauses is for the policy to say; stops that a client sets are not supported.",
    "interrupt_after": "What pauses is for the policy to say; stops that a client sets are not supported.",
    "feedback_keys": "Feedback keys of LangSmith are not supported.",
}


def _plain(value: T) -> T:
    try:
        check_plain(value)
    except NotPlain as error:
        raise ValueError(str(error)) from None
    return value


Plain = Annotated[Any, AfterValidator(_plain)]
Words = Annotated[dict[str, Any], AfterValidator(_plain), Field(max_length=100)]
Text = Annotated[str, Field(max_length=200), AfterValidator(_plain)]
Limit = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _checkpoint_in(config: object) -> object:
    """The checkpoint that a configuration names, as clients said it before there was a field for it."""
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    return configurable.get("checkpoint_id") if isinstance(configurable, Mapping) else None


class Body(BaseModel):
    model_config = ConfigDict(frozen=True)


class ThreadCreate(Body):
    """A new thread."""

    thread_id: UUID | None = None
    metadata: Words | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None
    supersteps: list[Any] | None = Field(
        default=None, max_length=0, description="Not supported: a thread begins empty."
    )


class ThreadPatch(Body):
    """Metadata to be merged into the thread's."""

    metadata: Words | None = None


class ThreadFilter(Body):
    """Which threads."""

    metadata: Words | None = None
    values: Words | None = Field(
        default=None, description="Compared with the state of the newest 500 that fit otherwise."
    )
    status: Status | None = None
    ids: list[UUID] | None = Field(default=None, max_length=1000)


class ThreadSearch(ThreadFilter):
    """Which threads, how many, in which order, and what of them."""

    limit: Limit = 10
    offset: Offset = 0
    sort_by: SortBy | None = None
    sort_order: Literal["asc", "desc"] | None = None
    select: list[Text] | None = Field(default=None, max_length=50)


class CheckpointRef(Body):
    """A checkpoint as LangGraph's clients name it."""

    thread_id: Text | None = None
    checkpoint_ns: Text | None = None
    checkpoint_id: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_a_config(cls, given: object) -> object:
        """The JavaScript SDK names a checkpoint by a whole configuration."""
        inside = given.get("configurable") if isinstance(given, Mapping) else None
        return inside if isinstance(inside, Mapping) else given


class StateAt(Body):
    """The state at a checkpoint."""

    checkpoint: CheckpointRef
    subgraphs: bool | None = None
    select: list[Text] | None = Field(default=None, max_length=50)


class History(Body):
    """Which of the thread's checkpoints, newest first."""

    limit: Limit = 10
    before: CheckpointRef | Text | None = None
    metadata: Words | None = None
    checkpoint: CheckpointRef | None = None
    select: list[Text] | None = Field(default=None, max_length=50)


class StateUpdate(Body):
    """Messages that an operator adds to the conversation; nothing else of the state is for clients to write."""

    values: Plain = None
    as_node: Text | None = None
    checkpoint: CheckpointRef | None = None
    checkpoint_id: Text | None = None


class Command(Body):
    """What a client wants with a thread that waits."""

    resume: Plain = None
    update: Plain = None
    goto: Plain = None

    @property
    def resumes(self) -> bool:
        """Whether it carries a resume value; null beside an update or a goto is none, alone it is a bad one."""
        return self.resume is not None or ("resume" in self.model_fields_set and not self.steers)

    @property
    def steers(self) -> bool:
        """Whether it carries what only an operator may send."""
        return bool(self.update) or bool(self.goto)


class RunCreate(Body):
    """A run: a message of the user, or a decision on what waits."""

    assistant_id: Text
    input: Plain = Field(default=None, description='`{"messages": […]}`; the last message of the user is the request.')
    command: Command | None = None
    metadata: Words | None = None
    stream_mode: Mode | Annotated[list[Mode], Field(max_length=20)] | None = None
    stream_subgraphs: bool | None = None
    stream_resumable: bool | None = Field(default=None, description="Always: every stream can be gone on with.")
    checkpoint: CheckpointRef | None = None
    checkpoint_id: Text | None = None
    multitask_strategy: Strategy | None = None
    if_not_exists: Literal["create", "reject"] | None = None
    on_disconnect: Literal["cancel", "continue"] | None = None
    on_completion: Literal["delete", "keep"] | None = None
    after_seconds: Annotated[float, Field(ge=0, le=30 * 86400)] | None = None
    durability: Literal["sync", "async", "exit"] | None = None
    strict_resume: bool | None = Field(default=None, description="Always.")
    config: Plain = Field(default=None, description="Not used: limits and identity are the server's.")
    context: Plain = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_done(cls, given: object) -> object:
        if isinstance(given, Mapping):
            for field, why in UNSUPPORTED.items():
                if given.get(field):
                    raise ValueError(f"{field}: {why}")
            if (named := _checkpoint_in(given.get("config"))) and not given.get("checkpoint_id"):
                return {**given, "checkpoint_id": named}
        return given

    @field_validator("stream_mode")
    @classmethod
    def _known_once(cls, given: Mode | list[Mode] | None) -> Mode | list[Mode] | None:
        return list(dict.fromkeys(given)) if isinstance(given, list) else given

    def modes(self, default: tuple[Mode, ...]) -> list[Mode]:
        """What is to be streamed."""
        if self.stream_mode is None:
            return list(default)
        return list(self.stream_mode) if isinstance(self.stream_mode, list) else [self.stream_mode]


class BulkCancel(Body):
    """Which runs to cancel."""

    thread_id: UUID | None = None
    run_ids: list[UUID] | None = Field(default=None, max_length=1000)
    status: Literal["pending", "running", "all"] | None = None


class AssistantSearch(Body):
    """Which assistants; there is one."""

    graph_id: Text | None = None
    name: Text | None = None
    metadata: Words | None = None
    limit: Limit = 10
    offset: Offset = 0
