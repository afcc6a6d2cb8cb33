"""What went wrong, as one sentence for people and a stable code for machines; never a traceback (PLACET_DEBUG=1 shows it).

Errors of the project say it themselves. What comes from Postgres, the settings or the operating system is put into words
here, with what to do.
"""

import errno
import os
import sys
import traceback
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg_pool import PoolTimeout
from pydantic import ValidationError
from rich.text import Text

from placet.cli import output, text
from placet.record.errors import PlacetError

FAILED, MISTYPED, NOT_NOW, STOPPED = 1, 2, 3, 130
WORDS = {"approve": "Approved", "approve_with_changes": "Approved with changes", "reject": "Rejected"}
EXIT_CODES = (
    "Exit codes: 0 done (a turn that waits for people is done for now), 1 it failed, 2 what you typed cannot be used, "
    "3 not allowed, or no longer so: decided, expired, ended, changed, waiting for people. 130 stopped by Ctrl-C."
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A stable code, a sentence that says what to do, what else a machine may want, and the exit code."""

    code: str
    message: str
    details: dict[str, Any]
    exit_code: int = FAILED

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {"error": {"code": self.code, "message": self.message, **self.details}}


def explain(error: BaseException) -> Failure:
    """Any exception in words; what nobody foresaw has the code `internal_error`."""
    if isinstance(error, PlacetError):
        return Failure(error.code, str(error), error.details, _exit_code(error.status))
    if isinstance(error, psycopg.Error | PoolTimeout):
        return _of_postgres(error)
    if isinstance(error, ValidationError) and error.title == "Settings":
        return Failure("invalid_settings", _settings(error), {}, MISTYPED)
    if isinstance(error, ExceptionGroup):
        return explain(error.exceptions[0])
    if code := getattr(error, "code", None):  # errors of the rooms above the record carry one too
        faults = [fault.as_json() for fault in getattr(error, "errors", ()) if hasattr(fault, "as_json")]
        said = {name: value for name, value in getattr(error, "details", {}).items() if name not in ("code", "message")}
        return Failure(str(code), str(error), {"errors": faults} if faults else said, _of_room(error))
    if isinstance(error, UnicodeError):
        message = f"What was given is not text in UTF-8 ({error.reason if hasattr(error, 'reason') else error})."
        return Failure("not_text", f"{message} Nothing was stored.", {}, MISTYPED)
    if isinstance(error, OSError):
        return _of_system(error)
    return Failure(
        "internal_error",
        f"Something nobody foresaw: {type(error).__name__}: {error}. What was confirmed before is stored. "
        "Run it again with PLACET_DEBUG=1 to see where it happened, and report it.",
        {},
    )


def show(error: BaseException, *, as_json: bool) -> int:
    """Print the failure, for people on stderr or for a machine on stdout; returns the exit code."""
    if os.environ.get("PLACET_DEBUG"):
        traceback.print_exception(error)
    failure = explain(error)
    if as_json:
        output.show_json(failure.as_json())
        return failure.exit_code
    message = text.visible(failure.message, lines=True)
    output.say(Text("Error: ", style="bold red").append(message, style="not bold default"), stderr=True)
    for line in _more(failure.details):
        output.say(line, stderr=True)
    return failure.exit_code


def _more(details: dict[str, Any]) -> list[str]:
    """What a conflict carries, for people: who decided and when, what waits, and what to do."""
    lines = []
    if isinstance(outcome := details.get("outcome"), dict):
        if outcome.get("decided_at"):
            when = f"{outcome['decided_at']:.19}".replace("T", " ")
            why = f": {outcome['reason']}" if outcome.get("reason") else ""
            lines.append(f"{WORDS.get(str(outcome.get('decision')))} by {outcome.get('decided_by')} at {when} UTC{why}")
        lines.append("Your decision was not recorded. `placet inbox` lists what waits now.")
    if "pending_hash" in details:
        lines.append(f"Pending now is {details['pending_hash']}.")
    if details.get("turn_id"):
        lines += [f"  placet approve {approval:.8}" for approval in details.get("approvals", [])]
        lines.append(f"  placet turn cancel {details['turn_id']:.8}")
    return lines


def _exit_code(status: int) -> int:
    if status in (404, 422):
        return MISTYPED
    return NOT_NOW if status in (401, 403, 409) else FAILED


def _of_room(error: BaseException) -> int:
    if status := getattr(error, "status", None):  # a server's refusal
        return _exit_code(status)
    return MISTYPED if isinstance(error, LookupError | ValueError) else FAILED


def _of_postgres(error: psycopg.Error | PoolTimeout) -> Failure:
    state = getattr(error, "sqlstate", None) or ""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    details = {"sqlstate": state} if state else {}
    if state in ("53100", "53200"):
        what = "disk is full" if state == "53100" else "memory is used up"
        return Failure(
            "disk_full" if state == "53100" else "out_of_memory",
            f"The database's {what} ({said}). Nothing of this was stored, and nothing that was stored is lost. "
            f"Make room where its data are (`placet db status` says where), then run this again.",
            details,
        )
    if state.startswith("53"):
        return Failure(
            "database_busy",
            f"The database has no room for this now ({said}). Nothing was stored; run this again in a moment, or raise "
            "the limit that it names.",
            details,
        )
    if not state or state.startswith(("08", "57P")) or isinstance(error, PoolTimeout):
        return Failure(
            "database_unreachable",
            f"The database went away ({said}). What was confirmed is stored, nothing is lost. See `placet db status`, "
            "then run this again.",
            details,
        )
    return Failure(
        "database_refused",
        f"The database refused it: {said}. Nothing of this was stored. Run it again with PLACET_DEBUG=1 to see where.",
        details,
    )


def _settings(error: ValidationError) -> str:
    told = []
    for problem in error.errors(include_url=False, include_input=False):
        name = "_".join(str(part) for part in problem["loc"]).upper()
        variable = name if name.startswith("OPENAI_") else f"PLACET_{name}"
        told.append(f"{variable}: {problem['msg'].removeprefix('Value error, ')}")
    return f"A setting in the environment cannot be used. {'; '.join(told)}. Correct it and run this again."


def _of_system(error: OSError) -> Failure:
    where = f" ({error.filename})" if error.filename else ""
    if error.errno == errno.ENOSPC:
        return Failure(
            "disk_full",
            f"The disk is full{where}. Nothing that was stored is lost; make room, then run this again.",
            {},
        )
    if isinstance(error, FileNotFoundError):
        return Failure("file_not_found", f"There is no such file{where}. Check the path.", {}, MISTYPED)
    if isinstance(error, PermissionError):
        return Failure("file_not_readable", f"It may not be read or written{where}. Check its owner and rights.", {})
    return Failure("system_error", f"The system said: {error.strerror or error}{where}.", {})


def wants_json(arguments: list[str] | None = None) -> bool:
    """Whether the command line asks for JSON, also where it could not be parsed."""
    given = sys.argv[1:] if arguments is None else arguments
    return "--json" in given[: given.index("--")] if "--" in given else "--json" in given
