"""Opening what a command needs, who acts, and which row an id means.

Looking, asking and deciding need only the record, which opens in a moment; running turns, edits and rules need the whole
house. Everything heavy is imported where it is used, so that `placet inbox` does not wait for a model's client.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

import typer
from rich.text import Text

from placet.cli import output
from placet.record import approvals, effects, lookup, people, turns
from placet.record.database import Database, Transaction
from placet.record.errors import InvalidInput, NotFound
from placet.record.start import open_database
from placet.settings import Settings, settings

if TYPE_CHECKING:
    from graph.services import Services

T = TypeVar("T")
As = Annotated[str | None, typer.Option("--as", metavar="USER", help="Who acts; else PLACET_USER.")]
SHORTEST = 8  # digits of an id that may be given instead of all


class NobodyActs(InvalidInput):
    """Neither --as nor PLACET_USER says who acts."""

    code = "nobody_acts"


class AmbiguousId(InvalidInput):
    """Several ids begin like this; the details list them."""

    code = "ambiguous_id"


class NotAnId(InvalidInput):
    """What was given is neither an id nor the first eight or more digits of one."""

    code = "not_an_id"


class NobodyToConfirm(InvalidInput):
    """Something has to be confirmed, and there is no terminal to ask at."""

    code = "confirmation_needed"


UNKNOWN: dict[lookup.Kind, type[NotFound]] = {
    "approval": approvals.UnknownApproval,
    "effect": effects.UnknownEffect,
    "thread": turns.UnknownThread,
    "turn": turns.UnknownTurn,
}
LISTED: dict[lookup.Kind, str] = {
    "approval": "`placet inbox` lists what waits",
    "effect": "`placet effects list` shows them",
    "thread": "`placet turn list` shows the threads",
    "turn": "`placet turn list` shows them",
}


@dataclass(frozen=True, slots=True)
class Record:
    """The open database and whose data it serves here."""

    settings: Settings
    database: Database

    @property
    def tenant(self) -> str:
        return self.settings.tenant

    async def user(self, name: str | None) -> people.User:
        """Who acts: the option, else PLACET_USER; raises `NobodyActs` or `UnknownUser`."""
        name = name or self.settings.user
        if not name:
            raise NobodyActs("Say who acts: --as USER, or set PLACET_USER. `placet users list` shows who there is.")
        async with self.database.read() as tx:
            return await people.get(tx, self.tenant, name)

    async def find(self, tx: Transaction, kind: lookup.Kind, typed: str) -> UUID:
        """The id that `typed` begins; raises `NotAnId`, `AmbiguousId` with all of them, or the kind's unknown error."""
        digits = digits_of(kind, typed)
        found = await lookup.beginning_with(tx, self.tenant, kind, digits)
        if not found:
            raise UNKNOWN[kind](f"There is no {kind} {typed} here; {LISTED[kind]}.")
        if len(found) > 1:
            ids = [str(one) for one in found]
            raise AmbiguousId(f"{len(ids)} {kind}s begin with {typed}: {', '.join(ids)}. Give more digits.", ids=ids)
        return found[0]


def digits_of(kind: lookup.Kind, typed: str) -> str:
    """The hex digits that were typed, 8 to 32; raises `NotAnId`."""
    digits = typed.strip().replace("-", "").lower()
    if not digits or len(digits) > 32 or not set(digits) <= set("0123456789abcdef"):
        raise NotAnId(f"{typed!r} is no {kind} id; one looks like 1b2c3d4e, or longer. {LISTED[kind]}.")
    if len(digits) < SHORTEST:
        raise NotAnId(f"{typed!r} is too short: give at least {SHORTEST} digits of the {kind}'s id. {LISTED[kind]}.")
    return digits


@asynccontextmanager
async def open_record(given: Settings | None = None) -> AsyncIterator[Record]:
    """The record alone: enough to look, to ask and to decide."""
    from tools.shop import MIGRATIONS  # noqa: PLC0415

    now = given or settings()
    async with AsyncExitStack() as stack:
        with output.progress("Opening the database …"):  # the first time, it is made
            database = await stack.enter_async_context(
                open_database(now, migrations=(MIGRATIONS,), wait=now.database_wait)
            )
        yield Record(now, database)


@asynccontextmanager
async def open_house(given: Settings | None = None) -> AsyncIterator["Services"]:
    """The whole house: tools, rules, model."""
    with output.progress("Opening …"):
        from placet import house  # noqa: PLC0415

    async with house.open_house(given or settings()) as services:
        yield services


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work to its end."""
    return asyncio.run(work)


def is_interactive() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_person(question: str) -> str:
    """A line from the person at the terminal, without its line break; Ctrl-C ends the command, Ctrl-D answers nothing.

    The prompt goes to stderr. While it waits, Ctrl-C raises at once instead of cancelling a task that cannot notice.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        output.console(stderr=True).print(Text(f"{question} ", style="bold"), end="")
        return input().strip()
    except EOFError:
        return ""
    finally:
        signal.signal(signal.SIGINT, before)
