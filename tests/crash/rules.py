"""The rules, as small as they can be said: what becomes of a call, by what people, time, the world and crashes do to it.

`test_model.py` does the same things to the real thing and compares. What is not certain here (a letter whose worker died)
is a set of possibilities, one of which has to be found.
"""

from dataclasses import dataclass, field
from typing import Any

DAY = 24 * 3600.0
OPEN = ("proposed", "waiting", "approved", "unknown", "resolved")


@dataclass
class Call:
    """One call of a turn. `status` is one of `OPEN`, or completed, failed, rejected, expired, cancelled."""

    tool: str
    arguments: dict[str, Any]
    gated: bool
    status: str = "proposed"
    open: int = 0  # the fact that justified it, as it was shown
    expires: float = 0.0
    decided: tuple[str, str] | None = None  # by whom, and what
    resolved: str = ""  # what a person found out about an unknown one
    breaks: bool = False  # its next attempt happens, and no answer comes
    may_be_unknown: bool = False  # a worker died somewhere around it


@dataclass
class Turn:
    """A turn, of one model answer."""

    calls: list[Call]
    status: str = "created"


@dataclass
class Rules:
    """The whole: turns, the clock, and what the world is like."""

    turns: list[Turn] = field(default_factory=list)
    now: float = 0.0
    open: int = 38
    silent: bool = False  # nobody answers when asked what became of a key

    def work(self, *, dying: bool = False) -> None:
        """Workers go as far as they can; `dying`: one of them died on the way, and another went on."""
        for turn in self.turns:
            if turn.status in ("created", "running", "cancelled"):
                for call in turn.calls:
                    self._go_on(call, dying=dying, closing=turn.status == "cancelled")
                if turn.status != "cancelled":
                    turn.status = "running" if any(call.status in OPEN for call in turn.calls) else "completed"

    def _go_on(self, call: Call, *, dying: bool, closing: bool) -> None:
        if call.status == "waiting" and call.expires <= self.now:
            call.status = "expired"  # nobody decided in time (A9)
        elif call.status == "proposed" and call.gated:
            self._ask(call)
        elif call.status == "approved" and (call.expires <= self.now or call.open != self._fact(call)):
            self._ask(call)  # what justified it has changed, or it is too late (A7)
        elif call.status in ("proposed", "approved") or (call.status, call.resolved) == ("resolved", "absent"):
            self._send(call, dying=dying)
        elif call.status == "resolved":
            call.status = "completed" if call.resolved == "committed" else "failed"
        elif call.status == "unknown" and not self._hidden(call):
            call.status = "completed"  # looked up (E5); what this model leaves unknown has happened
        elif call.status == "unknown" and closing:
            call.status = "failed"  # unknown, do not repeat; the task for people stays (T3)

    def _ask(self, call: Call) -> None:
        call.status, call.decided = "waiting", None
        call.open, call.expires = self._fact(call), self.now + DAY

    def _send(self, call: Call, *, dying: bool) -> None:
        breaks, call.breaks = call.breaks, False
        call.status = "unknown" if breaks and self._hidden(call) else "completed"
        call.may_be_unknown = dying and self._hidden(call)

    def _hidden(self, call: Call) -> bool:
        """Nobody can say what became of it."""
        return call.tool == "mail" or self.silent

    def _fact(self, call: Call) -> int:
        return self.open if call.tool == "pay" else 0

    def decide(self, call: Call, who: str, kind: str, *, right_hash: bool, arguments: dict[str, Any]) -> str:
        """What a decision is answered with: the status it made or found, or the code of the refusal (A3, A5, A9)."""
        if who == "ana":
            return "not_allowed"
        if call.status != "waiting":
            same = call.decided == (who, kind) and right_hash
            return "as stored" if same else "already_decided"
        if call.expires <= self.now:
            return "approval_expired"
        if not right_hash:
            return "not_the_same_request"
        call.decided = (who, kind)
        call.status = "rejected" if kind == "reject" else "approved"
        if kind == "edit":
            call.arguments, call.open = arguments, self._fact(call)
        return call.status

    def cancel(self, turn: Turn) -> str:
        """Nothing that has not left will leave (T3)."""
        if turn.status in ("completed", "cancelled"):
            return "turn_ended"
        turn.status = "cancelled"
        for call in turn.calls:
            if call.status in ("proposed", "waiting", "approved"):
                call.status = "cancelled"
        return "cancelled"

    def resolve(self, call: Call, to: str) -> None:
        """A person found out (E6)."""
        call.status, call.resolved = "resolved", to
