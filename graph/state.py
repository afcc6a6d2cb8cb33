"""What a checkpoint holds (G7): plain JSON, the conversation, and where the turn stands.

State is a cursor. What was decided, dispatched and answered is in the rows; the arguments stand here so that people and
clients see them, and are compared with the rows before anything runs (A2). Big ones are only referred to.
"""

from typing import Annotated, Any, Literal, NotRequired

from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict  # pydantic makes schemas of no other before Python 3.12

from placet.record.turns import Turn

STATE_VERSION = 1
INLINE_BYTES = 8192  # arguments up to this size stand in the state; larger ones only as their hash

Ending = Literal["completed", "exhausted", "failed", "cancelled"]
Step = Literal["approval", "execute", "reconcile", "end"]


class Call(TypedDict):
    """One call that the gate let through to its pipeline."""

    item_id: str
    tool: str
    verdict: Literal["auto", "ask"]
    arguments_hash: str  # SHA-256 of the canonical bytes, hex
    arguments: NotRequired[dict[str, Any]]


class TurnState(TypedDict):
    """The graph's state."""

    state_version: int
    turn_id: str
    messages: Annotated[list[AnyMessage], add_messages]
    step: int  # model turns used in this turn; a resume does not reset it (G6)
    calls: list[Call]
    ending: Ending | None
    error: dict[str, Any] | None


class CallState(TypedDict):
    """The state of one call's pipeline."""

    call: Call
    next: Step
    problem: str | None  # why the last answer to the interrupt could not be used
    checked: NotRequired[int]  # the epoch under which it was checked that the approved call may still execute (A7)


class Nothing(TypedDict):
    """What a pipeline hands back: nothing; its result is in the call's row."""


def first_state(turn: Turn, *, said: str = "") -> TurnState:
    """The input of a turn that starts. `said` tells apart a message that is said again, behind what followed it."""
    return {
        "state_version": STATE_VERSION,
        "turn_id": str(turn.turn_id),
        "messages": [HumanMessage(turn.message, id=f"user:{turn.turn_id}{said}")],
        "step": 0,
        "calls": [],
        "ending": None,
        "error": None,
    }
