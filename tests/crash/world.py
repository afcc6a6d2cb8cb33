"""The outside world of the matrix: that of `tests/outside.py`, as several processes see it, and one tool of each kind.

What the world is like (facts, how the next calls go, what the model says) stands in files of the case's folder. The
witness is the book of `tests/outside.py` for payments and letters, and a table for stamps: nothing that is tested writes
there but the tools, and each kind is counted as that part of the world would count:

    pay     observable and idempotent: the bank does one thing per key
    stamp   transactional: rows in the receipt's own transaction
    mail    unobservable: every letter that arrives is a letter, and nobody can ask
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pydantic import Field

from placet.record.database import Database, Transaction
from tests import outside
from tests.outside import Label, LabelArguments, Look, Mail, Pay, PayArguments, World
from tests.scripted import Said, calls
from tools import contract
from tools.contract import NothingSent, Observed, Preview, Receipt, Refused, Tier, TransactionalTool
from tools.registry import AnyTool

Call = tuple[str, dict[str, Any]]

STAMPS = """
    create schema stamps;
    create table stamps.made (operation_id text not null, at_case text not null, name text not null);
    grant usage on schema stamps to placet_app;
    grant select, insert on stamps.made to placet_app;
"""

RULES = (
    outside.RULES
    + """
[stamp]
auto_if = "facts.count == 1"
reason  = "One stamp."

[[stamp.ask]]
id     = "stamp"
duty   = "support"
reason = "Stamps do not come off."
"""
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of tool, and what is called: automatic, asked, edited, and by a model that says something else."""

    tool: str
    auto: dict[str, Any]
    ask: dict[str, Any]
    edited: dict[str, Any]
    other_auto: dict[str, Any]
    other_ask: dict[str, Any]


def _letter(*to: str, text: str) -> dict[str, Any]:
    return {"to": [f"{name}@house.example" for name in to], "text": text}


KINDS = {
    kind.tool: kind
    for kind in (
        Kind(
            "pay",
            auto={"to": "bo", "minor": 30},
            ask={"to": "bo", "minor": 700},
            edited={"to": "bo", "minor": 650},
            other_auto={"to": "eve", "minor": 40},
            other_ask={"to": "eve", "minor": 900},
        ),
        Kind(
            "stamp",
            auto={"names": ["A"]},
            ask={"names": ["A", "B"]},
            edited={"names": ["A", "C"]},
            other_auto={"names": ["X"]},
            other_ask={"names": ["X", "Y"]},
        ),
        Kind(
            "mail",
            auto=_letter("bo", text="Hello."),
            ask=_letter("bo", "li", text="Hello."),
            edited=_letter("bo", "li", text="Good day."),
            other_auto=_letter("eve", text="Hello?"),
            other_ask=_letter("eve", "li", text="Hello?"),
        ),
    )
}


class SharedWorld(World):
    """A world that several processes act on; `enter` goes to another case's."""

    def __init__(self, database: Database | None = None) -> None:  # the folder comes with `enter`
        self.database = database
        self.looked = 0

    def enter(self, folder: Path) -> None:
        self.folder = folder
        self.book = folder / "witness.jsonl"
        self.book.touch()

    @property
    def facts(self) -> dict[str, Any]:  # type: ignore[override]
        return {"open": 38, "frozen": False, **self._read("facts", {})}

    def change(self, **facts: Any) -> None:
        """The world moves."""
        self._save("facts", {**self._read("facts", {}), **facts})

    @property
    def silent(self) -> bool:  # type: ignore[override]
        return bool(self.facts.get("silent"))

    def plan(self, first: Sequence[Sequence[Call]], other: Sequence[Sequence[Call]] | None = None) -> None:
        """What the model proposes, step by step, and what instead once something went wrong."""
        self._save("plan", {"first": first, "other": other if other is not None else first})

    def misbehave(self, *how: str) -> None:
        """How the next calls go: `refuses`, `sends nothing`, `breaks off`, `breaks off before`."""
        self._save("acts", list(how))

    def something_went_wrong(self) -> None:
        (self.folder / "wrong").touch()

    def says(self, messages: list[BaseMessage]) -> Said:
        """The model, as a function of what it is shown: steps of calls, from the case's plan or the message itself."""
        if self.facts.get("model_breaks"):
            self.change(model_breaks=False)
            return RuntimeError("the model broke")
        wrong = (self.folder / "wrong").exists()
        asked = [message.text for message in messages if isinstance(message, HumanMessage)][-1]
        steps = json.loads(asked) if asked.startswith("[") else self._read("plan", {})["other" if wrong else "first"]
        step = 0
        for message in reversed(messages):
            if not isinstance(message, (AIMessage, ToolMessage)):
                break
            step += isinstance(message, AIMessage)
        if step < len(steps):
            return calls(*((tool, args) for tool, args in steps[step]), text="As you wish." if wrong else "I will.")
        return "It is as you see." if wrong else "Done."

    def tools(self) -> list[AnyTool]:
        return [Look(self), TakenOff(self), ChangingPay(self), Mail(self), Stamp(self)]

    def do(self, tool: str, args: Any, operation_id: str) -> Receipt:
        """As everywhere; but a letter that is sent twice arrives twice."""
        with self._locked():
            if tool == "mail" or operation_id not in self._keys():
                self._write("done", tool, args, operation_id)
        return self.receipt(tool, operation_id)

    async def act(self, tool: str, args: Any, operation_id: str) -> Any:
        with self._locked():
            self._write("arrived", tool, args, operation_id)
            acts = self._read("acts", [])
            self._save("acts", acts[1:])
        match acts[0] if acts else "":
            case "refuses":
                raise Refused("No.", code="no_funds")
            case "sends nothing":
                raise NothingSent("The line is dead.")
            case "breaks off before":
                raise ConnectionError("reset")
            case "breaks off":
                self.do(tool, args, operation_id)
                raise ConnectionError("reset")
            case _:
                return self.do(tool, args, operation_id)

    async def happened(self, witness: Database) -> dict[str, list[dict[str, Any]]]:
        """What really happened, by tool: the arguments, once for each time. Stamps of one transaction are one time."""
        async with witness.read() as tx:
            stamps = await tx.fetch_dicts(
                """
                select array_agg(name order by name) as names from stamps.made
                 where at_case = %(case)s group by operation_id, xmin::text
                """,
                {"case": self.folder.name},
            )
        return {
            "pay": [line["args"] for line in self.done("pay")],
            "mail": [line["args"] for line in self.done("mail")],
            "label": [line["args"] for line in self.done("label")],
            "stamp": [{"names": row["names"]} for row in stamps],
        }

    def _read(self, name: str, default: Any) -> Any:
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else default

    def _save(self, name: str, value: Any) -> None:
        path = self.folder / f"{name}.json"
        path.with_suffix(".new").write_text(json.dumps(value))
        path.with_suffix(".new").replace(path)


class TakenOff(Label):
    """Put a label on the shelf."""

    async def undo(self, args: LabelArguments, receipt: Receipt, operation_id: str) -> Receipt:
        taken_off: Receipt = await self.world.act("label taken off", args, operation_id)
        return taken_off


class NewPayArguments(PayArguments):
    """What the next version of the tool takes."""

    urgent: bool = False


class ChangingPay(Pay):
    """Send money. It does not come back."""

    @property
    def Arguments(self) -> type[contract.Arguments]:  # type: ignore[override]  # noqa: N802
        return NewPayArguments if self.world.facts.get("new_schema") else PayArguments

    @property
    def idempotency_window(self) -> timedelta:  # type: ignore[override]
        return timedelta(seconds=self.world.facts.get("window", 24 * 3600))

    @property
    def effect_class(self) -> str:  # type: ignore[override]
        if self.world.facts.get("tool_is_broken"):
            raise RuntimeError("the tool is broken")
        return "money.out"

    async def observe(self, args: Any, operation_id: str) -> Observed:
        seen = await super().observe(args, operation_id)
        if seen.status == "absent" and self.world.facts.get("in_part"):
            return Observed(status="partial", evidence="some of it")
        return seen


class StampArguments(contract.Arguments):
    names: list[str] = Field(min_length=1, max_length=100)


class StampFacts(contract.Facts):
    count: int


class Stamp(TransactionalTool[StampArguments, StampFacts]):
    """Stamp names into the book. It does not come off."""

    name = "stamp"
    Arguments = StampArguments
    Facts = StampFacts
    tier = Tier.irreversible
    effect_class = "stamps.make"
    timeout = timedelta(seconds=5)

    def __init__(self, world: SharedWorld) -> None:
        self.world = world

    async def facts(self, args: StampArguments) -> StampFacts:
        return StampFacts(count=len(args.names))

    async def preview(self, args: StampArguments, facts: StampFacts) -> Preview:
        return Preview(title=f"Stamp {facts.count} names", reversible=False)

    async def execute_in(self, tx: Transaction, args: StampArguments, operation_id: str) -> Receipt:
        """No look at what is there already: that a second time comes to nothing is the transaction's doing."""
        case = self.world.folder.name
        rows = [{"operation": operation_id, "case": case, "name": name} for name in args.names]
        await tx.execute_many("insert into stamps.made values (%(operation)s, %(case)s, %(name)s)", rows)
        return Receipt(external_id=operation_id, summary="stamped")

    async def observe(self, args: StampArguments, operation_id: str) -> Observed:
        assert self.world.database is not None
        async with self.world.database.read() as tx:
            found = "select count(*) from stamps.made where operation_id = %(operation)s"
            if not await tx.fetch_value(found, {"operation": operation_id}):
                return Observed(status="absent", evidence="the book does not have it")
        return Observed(status="committed", receipt=Receipt(external_id=operation_id, summary="stamped"))
