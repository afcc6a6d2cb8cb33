"""What the clients answer to a pause, read into one form: a decision, or 422 (A6).

    {"kind": "approve", "payload_hash": …}                      ours
    [{"type": "accept" | "edit" | "response" | "ignore", "args": …}]     Agent Inbox
    {"decisions": [{"type": "approve" | "edit" | "reject", …}]}         Agent Chat UI
    {"type": "approve" | "edit" | "reject", "tool_call_id": …}           one call
    {interrupt id: any of these, …}                             by interrupt id

What a client echoes of the action is never executed: only the kind, the reason, an edit and the hash count (A2). It does
say which call its author saw, so an answer that echoes another one than is pending is refused (L2).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from placet.record.decisions import InvalidDecision

_INTERRUPT = re.compile(r"[0-9a-f]{32}")
_SHAPES = (
    'It is {"kind": "approve" | "approve_with_changes" | "reject", …}, [{"type": "accept" | "edit" | "response" | "ignore"}], '
    'or {"decisions": [{"type": "approve" | "edit" | "reject"}]}, or a map of these by interrupt id.'
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One decision as a client sent it; which question it answers, where the client said so."""

    interrupt_id: str | None
    approval_id: UUID | None
    item_id: UUID | None
    raw: dict[str, Any]  # kind, reason, arguments, payload_hash: what `read_decision` takes
    echo: dict[str, Any] | None = None  # the call as the client showed it: `action` and `args`


def read_answers(resume: object) -> list[Answer]:
    """The decisions in a resume value; raises `InvalidDecision` with what was expected."""
    if isinstance(resume, Mapping) and resume and all(_INTERRUPT.fullmatch(str(key)) for key in resume):
        if len(resume) > 100:
            raise InvalidDecision("At most 100 answers at once.")
        return [_answer(key, value) for key, value in resume.items()]
    return [_answer(None, resume)]


def _answer(interrupt_id: str | None, given: object) -> Answer:
    one = _only(given)
    if "kind" in one:
        raw = {key: value for key, value in one.items() if key not in ("approval_id", "tool_call_id", "type")}
    else:
        raw = _from_client(one)
        if "payload_hash" in one:  # also one that is no hash: `read_decision` refuses it
            raw["payload_hash"] = one["payload_hash"]
    return Answer(interrupt_id, _id(one, "approval_id"), _id(one, "tool_call_id"), raw, _echo(one))


def _echo(one: dict[str, Any]) -> dict[str, Any] | None:
    """What Agent Inbox sends along with an `accept`; beside an edit it is the edited call."""
    action = one.get("args")
    if one.get("type") not in ("accept", "approve") or not isinstance(action, Mapping):
        return None
    if not isinstance(action.get("action"), str) or not isinstance(action.get("args"), Mapping):
        return None
    return {"action": action["action"], "args": dict(action["args"])}


def _only(given: object) -> dict[str, Any]:
    """The one decision in it: an interrupt of ours asks about one call."""
    if isinstance(given, Mapping) and "decisions" in given and "kind" not in given:
        given = given["decisions"]
    if isinstance(given, list):
        if len(given) != 1:
            raise InvalidDecision(f"One call was asked about; got {len(given)} decisions.")
        given = given[0]
    if not isinstance(given, Mapping):
        raise InvalidDecision(f"The answer is no decision: got {type(given).__name__}. {_SHAPES}")
    return dict(given)


def _from_client(one: dict[str, Any]) -> dict[str, Any]:
    match one.get("type"):
        case "accept" | "approve":
            return {"kind": "approve"}
        case "edit":
            return {"kind": "approve_with_changes", "arguments": _edited(one)}
        case "reject":
            return {"kind": "reject", "reason": _words(one, "message", "reason")}
        case "response" | "respond":
            return {"kind": "reject", "reason": _words(one, "args", "message")}
        case "ignore":
            return {"kind": "reject", "reason": _words(one, "message") or "Ignored in the inbox, without a reason."}
        case other:
            raise InvalidDecision(f"The answer's type is {other!r}. {_SHAPES}"[:600])


def _edited(one: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an edit; the tool beside them cannot be switched and is not read (A8)."""
    action = one.get("edited_action") or one.get("args") or one.get("arguments")
    if isinstance(action, Mapping):
        arguments = action.get("args") if isinstance(action.get("args"), Mapping) else action
        if isinstance(arguments, Mapping):
            return dict(arguments)
    raise InvalidDecision('An edit carries the new arguments: {"type": "edit", "args": {"action": …, "args": {…}}}.')


def _words(one: dict[str, Any], *names: str) -> str | None:
    for name in names:
        if isinstance(one.get(name), str) and one[name].strip():
            return str(one[name])
    return None


def _id(one: dict[str, Any], name: str) -> UUID | None:
    if one.get(name) is None:
        return None
    try:
        return UUID(str(one[name]))
    except ValueError:
        raise InvalidDecision(f"{name} is no UUID.", field=name) from None
