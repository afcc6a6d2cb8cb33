"""What people ask, decide and look up: a turn from message to end, as answers to what the rows show.

A story says what is proposed, how the world behaves, and how people react; it is played by looking at the rows again and
again, so that it goes on from wherever a fault left it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.crash.world import KINDS, Call, SharedWorld

Assent = Literal["automatic", "approved", "edited"]
Raw = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """A pending approval, as a reviewer sees it."""

    approval_id: str
    tool: str
    ask: int
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Unknown:
    """An unknown effect, as an operator sees it, with what they find out there: whether it really happened."""

    operation_id: str
    tool: str
    happened: bool


def _approve(asked: Asked, world: SharedWorld) -> Raw:
    return {"kind": "approve"}


def _by_looking(unknown: Unknown, world: SharedWorld) -> str:
    """Found: committed. Not found: it may be sent again."""
    return "committed" if unknown.happened else "absent"


@dataclass(frozen=True)
class Story:
    """One turn."""

    name: str
    first: Sequence[Sequence[Call]]
    other: Sequence[Sequence[Call]] = ()  # what the model says after something went wrong; none: the same
    facts: dict[str, Any] = field(default_factory=dict)
    acts: Sequence[str] = ()
    dies_first: str | None = None  # the point at which a first worker died before this story begins
    meanwhile: dict[str, str] = field(default_factory=dict)  # at a point, somebody else cancels
    sweeps: bool = True  # the worker looks for what is overdue before it works
    decide: Callable[[Asked, SharedWorld], Raw | float] = _approve  # or so many seconds later nobody has decided
    resolve: Callable[[Unknown, SharedWorld], str] = _by_looking
    cancels: Literal["before it runs", "when it waits"] | None = None
    orphaned: Literal["cancel", "migrate"] = "cancel"
    undo: bool = False  # what was done is taken back at the end
    effects: frozenset[int] = frozenset({1})  # how many may have happened in the end
    ends: frozenset[str] = frozenset({"completed"})
    one_by_one: bool = False  # of several pending, one is decided before the worker goes on


def main_story(tool: str, assent: Assent, *, differs: bool) -> Story:
    """One call of one kind of tool: automatic, approved or edited."""
    kind = KINDS[tool]
    first, other = (kind.auto, kind.other_auto) if assent == "automatic" else (kind.ask, kind.other_ask)

    def edits(asked: Asked, world: SharedWorld) -> Raw:
        return {"kind": "approve_with_changes", "arguments": kind.edited}

    return Story(
        f"{tool} {assent}{', another answer' if differs else ''}",
        first=[[(tool, first)]],
        other=[[(tool, other)]] if differs else (),
        decide=edits if assent == "edited" else _approve,
    )


def _reject(asked: Asked, world: SharedWorld) -> Raw:
    return {"kind": "reject", "reason": "Not this one."}


def _never(asked: Asked, world: SharedWorld) -> float:
    return DAY


def _while_the_world(**moves: Any) -> Callable[[Asked, SharedWorld], Raw]:
    """Approve; before it counts, the world moves, once."""

    def decide(asked: Asked, world: SharedWorld) -> Raw:
        if asked.ask == 0:
            world.change(**moves)
        return {"kind": "approve"}

    return decide


def _mail_late(asked: Asked, world: SharedWorld) -> Raw | float:
    """Only the letter is approved, and the day is over before it leaves."""
    if asked.tool == "mail":
        return {"kind": "approve"} if asked.ask else {"kind": "approve", "then": DAY}
    return DAY


def _too_late_for_its_key(asked: Asked, world: SharedWorld) -> Raw:
    return {"kind": "approve", "after": 7200.0} if asked.ask else {"kind": "approve"}


def _absent_and_the_world_moved(unknown: Unknown, world: SharedWorld) -> str:
    world.change(open=41)
    return "absent"


DAY = 86_400.0
PAY, MAIL = KINDS["pay"], KINDS["mail"]
ASKED, AUTO, LETTER = [[("pay", PAY.ask)]], [[("pay", PAY.auto)]], [[("mail", MAIL.auto)]]
BOTH = [[("pay", PAY.ask), ("mail", MAIL.ask)]]
LABELLED: list[list[Call]] = [[("label", {"name": "new"})]]
NONE, ONE, TWO = frozenset({0}), frozenset({1}), frozenset({2})
CANCELLED = frozenset({"cancelled"})
SIDE_STORIES = [
    # what people do
    Story("rejected", ASKED, decide=_reject, effects=NONE),
    Story("two at once", BOTH, effects=TWO),
    Story("one by one", BOTH, effects=TWO, one_by_one=True),
    Story("cancelled while it waits", ASKED, cancels="when it waits", effects=NONE, ends=CANCELLED),
    Story("cancelled before it runs", ASKED, cancels="before it runs", effects=NONE, ends=CANCELLED),
    Story("cancelled before it leaves", AUTO, meanwhile={"dispatch:begin": "cancel"}, effects=NONE, ends=CANCELLED),
    Story("cancelled while it leaves", AUTO, meanwhile={"call:before": "cancel"}, ends=CANCELLED),
    Story("undone", LABELLED, undo=True),
    Story("undo refused", LABELLED, acts=["", "refuses"], undo=True),
    Story("undo not answered", LABELLED, acts=["", "breaks off"], undo=True),
    # what time does
    Story("expired", ASKED, decide=_never, effects=NONE),
    Story("expired on the way", [BOTH[0][::-1]], decide=_mail_late, sweeps=False, one_by_one=True, effects=NONE | ONE),
    # what the world does
    Story("stale", ASKED, decide=_while_the_world(open=41)),
    Story("denied now", ASKED, decide=_while_the_world(frozen=True), effects=NONE),
    Story("orphaned, cancelled", ASKED, decide=_while_the_world(new_schema=True), effects=NONE, ends=CANCELLED),
    Story("orphaned, migrated", ASKED, decide=_while_the_world(new_schema=True), orphaned="migrate"),
    Story("refused", AUTO, acts=["refuses"], effects=NONE | ONE),  # one: who died with the answer asked again
    Story("not sent", AUTO, acts=["sends nothing"]),
    Story("breaks off after", ASKED, acts=["breaks off"]),
    Story("breaks off before", ASKED, acts=["breaks off before"]),
    Story("made in part", AUTO, facts={"in_part": True}, acts=["breaks off before"]),
    Story("breaks in the call", AUTO, facts={"tool_is_broken": True}, effects=NONE),
    Story("nobody knows", ASKED, facts={"silent": True}, acts=["breaks off"]),
    Story("abandoned", LETTER, acts=["breaks off before"], resolve=lambda unknown, world: "abandoned", effects=NONE),
    Story("a letter lost", LETTER, acts=["breaks off"]),
    Story(
        "too late for its key",
        ASKED,
        facts={"silent": True, "window": 3600},
        acts=["breaks off before"],
        resolve=_absent_and_the_world_moved,
        decide=_too_late_for_its_key,
        effects=NONE,
    ),
    # what the model does
    Story("reads", [[("look", {"what": "a"}), ("look", {"what": "b"})]], effects=NONE),
    Story("automatic, then asked", [[("label", {"name": "new"}), ("pay", PAY.ask)]], effects=TWO),
    Story("two steps", [[("pay", PAY.auto)], [("mail", MAIL.auto)]], effects=TWO),
    Story("breaks, and is tried again", AUTO, facts={"model_breaks": True}),
    # what came before: a worker died, and these points are those of who takes over
    Story("found sent", AUTO, dies_first="call:after"),
    Story("found unsent", ASKED, dies_first="call:before"),
    Story("found without an answer", LETTER, dies_first="call:after"),
]
