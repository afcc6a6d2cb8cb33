"""`python -m tests.crash.soak` (make soak): the same by chance, for ten minutes.

Turns are asked, decided, edited and rejected under several worker processes, while workers are killed and stopped and
Postgres falls over and comes back. Then the storm ends, everything comes to rest, and the witness counts: what was approved
or automatic happened once, what was rejected did not, and nobody has to be told to look.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from uuid import UUID, uuid4

import typer
from rich.console import Console
from rich.table import Table

from graph.deciding import decide, prepare_edit
from graph.services import Services
from placet.record import approvals, by_hand, effects, people, turns
from placet.record.approvals import Approval
from placet.record.database import Database
from placet.record.decisions import Decided
from placet.record.embedded import APP
from placet.record.errors import PlacetError
from tests.crash.case import patiently
from tests.crash.child import POLICY, services_of
from tests.crash.judge import ALWAYS
from tests.crash.slots import (
    Nursery,
    Process,
    Slot,
    make_template,
    open_nursery,
    open_slot,
    open_zygote,
    restart,
    server_of_ones_own,
)
from tests.crash.world import Call, SharedWorld
from tests.steps import TENANT, settings_for_tests

LEASE = timedelta(seconds=5)
AT_ONCE = 40  # turns that are under way
STOPPED = 7.0  # seconds for which a worker is stopped: longer than its lease
REST = 180.0  # seconds in which everything has to come to rest
ATTEMPTS = "select max(attempt) as n, count(*) filter (where attempt > 1) as again from placet.runs"
console = Console(stderr=True)


@dataclass
class Storm:
    """What is done to them, and what was wanted."""

    slot: Slot
    nursery: Nursery
    world: SharedWorld
    services: Services
    end: float
    workers: list[Process] = field(default_factory=list)
    asked: dict[UUID, list[Call]] = field(default_factory=dict)  # by turn
    edited: dict[str, dict[str, Any]] = field(default_factory=dict)  # arguments as approved, by the mark of the call
    rejected: set[str] = field(default_factory=set)  # marks
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end

    # What happens to workers and database

    async def hire(self) -> None:
        """One more worker process."""
        settings = {"lease": LEASE.total_seconds(), "poll": 0.5}
        worker = await self.nursery.born("worker", self.slot.server.url(APP, self.slot.name), settings=settings)
        await worker.call(do="enter", folder=str(self.world.folder), arm={}, note=False)
        worker.tell(do="serve")
        self.workers.append(worker)

    async def kill_workers(self) -> None:
        while not self.is_over:
            await asyncio.sleep(random.uniform(2, 6))
            worker = random.choice(self.workers)
            if random.random() < 0.25:
                os.kill(worker.pid, signal.SIGSTOP)
                await asyncio.sleep(STOPPED)
                os.kill(worker.pid, signal.SIGCONT)
                self.counts["workers stopped"] += 1
                continue
            os.kill(worker.pid, signal.SIGKILL)
            self.workers.remove(worker)
            worker.close()
            self.counts["workers killed"] += 1
            await self.hire()

    async def restart_postgres(self) -> None:
        while not self.is_over:
            await asyncio.sleep(random.uniform(10, 30))
            await asyncio.to_thread(restart, self.slot.server)
            self.counts["restarts of Postgres"] += 1

    # What people do

    async def ask(self, count: int) -> None:
        """So many turns over the time there is, not too many at once."""
        start = time.monotonic()
        pause = (self.end - start) / count
        while not self.is_over and len(self.asked) < count:
            is_due = len(self.asked) < (time.monotonic() - start) / pause  # what a restart delayed is made up for
            if is_due and await self.open_turns() < AT_ONCE:
                calls = _calls()
                turn = await patiently(lambda calls=calls: self._store(calls))  # type: ignore[misc]
                self.asked[turn.turn_id] = calls
            else:
                await asyncio.sleep(pause / 2)

    async def _store(self, calls: list[Call]) -> turns.Turn:
        async with self.slot.owner.transaction() as tx:
            ana = await people.get(tx, TENANT, "ana")
            return await turns.create(tx, ana, json.dumps([calls]), max_steps=12, max_chars=10_000)

    async def open_turns(self) -> int:
        rows = await self.rows("select count(*) as n from placet.turns where ended_at is null")
        return int(rows[0]["n"])

    async def review(self, stop: asyncio.Event) -> None:
        """Two reviewers decide what is pending; often both of them the same."""
        while not stop.is_set():
            await asyncio.sleep(0.1)
            for asked in await patiently(self._pending):
                await self._decide(asked)

    async def _pending(self) -> list[Approval]:
        async with self.services.database.read() as tx:
            return await approvals.waiting(tx, TENANT, limit=20)

    async def _decide(self, asked: Approval) -> None:
        chance, arguments = random.random(), asked.content["arguments"]
        if chance < 0.1:
            raw: dict[str, Any] = {"kind": "reject", "reason": "by chance"}
        elif chance < 0.2:
            raw = {"kind": "approve_with_changes", "arguments": _edited(asked.tool, arguments)}
        else:
            raw = {"kind": "approve"}
        who = ["marta", "pedro"] if random.random() < 0.3 else [random.choice(["marta", "pedro"])]
        with suppress(PlacetError):  # somebody or something was faster
            await patiently(lambda: self._record(asked, raw, who))  # again by the same: they are told what is stored

    async def _record(self, asked: Approval, raw: dict[str, Any], who: list[str]) -> None:
        shown = await prepare_edit(self.services, asked, raw["arguments"]) if "arguments" in raw else asked
        raw = {**raw, "payload_hash": shown.payload_hash.hex()}
        async with self.services.database.read() as tx:
            reviewers = [await people.get(tx, TENANT, name) for name in who]
        answers = await asyncio.gather(
            *(decide(self.services, asked.approval_id, raw, one, channel="soak") for one in reviewers),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, PlacetError):
                raise answer
        mark = _mark(asked.content["arguments"])
        for decided in answers:
            if isinstance(decided, Decided):
                self.counts["decisions"] += decided.first
                if decided.decision == "reject":
                    self.rejected.add(mark)
                elif decided.decision == "approve_with_changes":
                    self.edited[mark] = raw["arguments"]

    async def look_after_the_unknown(self, stop: asyncio.Event) -> None:
        """An operator looks whether a letter arrived, once nobody can be sending it any more."""
        late = STOPPED + 2 * LEASE.total_seconds()
        query = """
            select operation_id, tool, convert_from(arguments, 'UTF8')::jsonb as arguments from placet.effects
             where status = 'unknown' and dispatched_at < placet.clock() - make_interval(secs => %(late)s)
        """
        while not stop.is_set():
            await asyncio.sleep(1)
            for row in await self.rows(query, late=late):
                happened = await patiently(lambda: self.world.happened(self.slot.owner))
                found = any(_mark(row["arguments"]) == _mark(args) for args in happened[row["tool"]])
                with suppress(PlacetError):
                    await patiently(lambda row=row, found=found: self._resolve(row["operation_id"], found=found))  # type: ignore[misc]
                self.counts["unknown, settled by an operator"] += 1

    async def _resolve(self, operation_id: UUID, *, found: bool) -> None:
        async with self.slot.owner.transaction() as tx:
            otto = await people.get(tx, TENANT, "otto")
            effect = await effects.get(tx, TENANT, operation_id)
            external = "seen" if found else None
            to: Any = "committed" if found else "absent"
            await by_hand.resolve(tx, otto, effect, to=to, reason="I looked.", external_id=external)

    async def rows(self, query: Any, **values: Any) -> list[dict[str, Any]]:
        async def read() -> list[dict[str, Any]]:
            async with self.slot.owner.read() as tx:
                return await tx.fetch_dicts(query, values)

        return await patiently(read)


def _calls() -> list[Call]:
    mark = uuid4().hex[:12]
    single: list[list[Call]] = [
        [("pay", {"to": mark, "minor": 30})],
        [("pay", {"to": mark, "minor": 700})],
        [("pay", {"to": mark, "minor": 800})],
        [("label", {"name": mark})],
        [("stamp", {"names": [mark]})],
        [("stamp", {"names": [mark, "too"]})],
        [("mail", {"to": ["a@house.example"], "text": mark})],
        [("mail", {"to": ["a@house.example", "b@house.example"], "text": mark})],
        [("look", {"what": mark})],
    ]
    if random.random() < 0.2:
        other = f"{mark}+"
        return [
            ("pay", {"to": mark, "minor": 700}),
            ("mail", {"to": ["a@house.example", "b@house.example"], "text": other}),
        ]
    return random.choice(single)


def _mark(arguments: dict[str, Any]) -> str:
    """What only this call has in its arguments."""
    names = arguments.get("names")
    return str(
        arguments.get("text") or arguments.get("to") or arguments.get("name") or (min(names, key=_too) if names else "")
    )


def _too(name: str) -> bool:
    return name == "too"


def _edited(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    match tool:
        case "pay":
            return {"to": arguments["to"], "minor": 650}
        case "mail":
            return {**arguments, "to": arguments["to"][:2]}
        case _:
            return {"names": [*arguments["names"], "more"]}


OF_THE_CALL = """
    select i.turn_id::text, i.status, i.result as told, a.status as asked, d.kind, d.user_id,
           e.status as effect, e.evidence
      from placet.plan_items i
      left join placet.approvals a using (item_id)
      left join placet.decisions d using (approval_id)
      left join placet.effects e on e.item_id = i.item_id and e.undoes is null
     where convert_from(i.arguments, 'UTF8') like '%%"' || %(mark)s || '"%%'
"""


@dataclass(frozen=True)
class Verdict:
    """What the witness and the rows say in the end."""

    wanted: int
    happened: int
    twice: list[str]
    lost: list[str]
    against: list[str]  # happened although somebody had refused, or not as approved
    wrong: list[str]

    @property
    def is_clean(self) -> bool:
        return not (self.twice or self.lost or self.against or self.wrong)


async def verdict(storm: Storm) -> Verdict:
    """Call by call: what was wanted, and what happened."""
    happened = await storm.world.happened(storm.slot.owner)
    done = Counter((tool, _mark(args)) for tool, all_of_it in happened.items() for args in all_of_it)
    what = {(tool, _mark(args)): args for tool, all_of_it in happened.items() for args in all_of_it}
    wanted, twice, lost, against = 0, [], [], []
    for calls in storm.asked.values():
        for tool, arguments in calls:
            mark = _mark(arguments)
            count = done.pop((tool, mark), 0)
            if tool == "look":
                continue
            wanted += mark not in storm.rejected
            if count > 1:
                twice.append(f"{tool} {mark}: {count} times")
            elif count and mark in storm.rejected:
                against.append(f"{tool} {mark} was rejected")
            elif count == 0 and mark not in storm.rejected:
                lost.append(f"{tool} {mark}: {await storm.rows(OF_THE_CALL, mark=mark)}")
            elif count and not _same(what[tool, mark], expected := storm.edited.get(mark, arguments)):
                against.append(f"{tool} {mark}: {what[tool, mark]} instead of {expected}")
    against += [f"{tool} {mark}: nobody asked for it" for tool, mark in done]
    return Verdict(wanted, sum(map(len, happened.values())), twice, lost, against, await _wrong(storm))


def _same(done: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Stamps are counted without their order; what was not said is not compared."""
    return all(_plain(done[name]) == _plain(value) for name, value in wanted.items())


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


async def _wrong(storm: Storm) -> list[str]:
    """What is not as it must be in the rows, thread by thread."""
    wrong = []
    threads = await storm.rows("select thread_id, turn_id, status, error from placet.turns order by created_at")
    for row in threads:
        if row["status"] != "completed":
            wrong.append(f"turn {row['turn_id']} is {row['status']}: {row['error']}")
        for problem, query in ALWAYS.items():
            if found := await storm.rows(query, thread=row["thread_id"]):
                wrong.append(f"turn {row['turn_id']}: {problem}: {found}")
    return wrong


async def soak(seconds: float, count: int, workers: int) -> int:
    """Run it; 0 when nothing happened twice, was lost, or went against somebody."""
    started = time.monotonic()
    with server_of_ones_own() as server, open_zygote() as zygote, TemporaryDirectory(prefix="placet-soak-") as folder:
        template = await make_template(server)
        async with (
            open_nursery(zygote) as nursery,
            open_slot(server, template, nursery) as slot,
            Database(server.url(APP, slot.name), size=4) as database,
        ):
            world = SharedWorld(database)
            world.enter(Path(folder))
            services = services_of(database, world, POLICY, settings_for_tests())
            storm = Storm(slot, nursery, world, services, time.monotonic() + seconds)
            for _ in range(workers):
                await storm.hire()
            await _run(storm, count)
            found = await verdict(storm)
            attempts = await storm.rows(ATTEMPTS)
    _show(storm, found, attempts[0], time.monotonic() - started)
    return 0 if found.is_clean else 1


async def _run(storm: Storm, count: int) -> None:
    """The storm, and then the calm until everything has come to rest."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(storm.review(stop))
        group.create_task(storm.look_after_the_unknown(stop))
        progress = group.create_task(_tell(storm, count))
        async with asyncio.TaskGroup() as trouble:
            trouble.create_task(storm.kill_workers())
            trouble.create_task(storm.restart_postgres())
            trouble.create_task(storm.ask(count))
        rest = time.monotonic() + REST
        while await storm.open_turns() and time.monotonic() < rest:  # noqa: ASYNC110  # other processes close them
            await asyncio.sleep(0.2)
        stop.set()
        progress.cancel()
    for worker in storm.workers:
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGTERM)
    for worker in storm.workers:
        with suppress(Exception):
            await worker.answer()


async def _tell(storm: Storm, count: int) -> None:
    """A line every ten seconds."""
    while True:
        await asyncio.sleep(10)
        left = max(0.0, storm.end - time.monotonic())
        said = ", ".join(f"{what} {number}" for what, number in sorted(storm.counts.items()))
        console.print(
            f"{left:4.0f} s left: {len(storm.asked)} of {count} turns asked, {await storm.open_turns()} open; {said}",
            soft_wrap=True,
        )


def _show(storm: Storm, found: Verdict, attempts: dict[str, Any], seconds: float) -> None:
    table = Table("", "", title="The soak", show_header=False)
    table.add_row("turns", f"{len(storm.asked):,}")
    for what, number in sorted(storm.counts.items()):
        table.add_row(what, f"{number:,}")
    table.add_row("runs taken up again", f"{attempts['again']:,} (at most {attempts['n']} attempts)")
    table.add_row("effects wanted", f"{found.wanted:,}")
    table.add_row("effects that happened, by the witness", f"{found.happened:,}")
    table.add_row("twice", str(len(found.twice)))
    table.add_row("lost", str(len(found.lost)))
    table.add_row("against a decision", str(len(found.against)))
    table.add_row("wrong in the rows", str(len(found.wrong)))
    table.add_row("seconds", f"{seconds:.0f}")
    out = Console()
    out.print(table)
    for problem in [*found.twice, *found.lost, *found.against, *found.wrong][:30]:
        out.print(problem, style="red")


def main(
    seconds: Annotated[float, typer.Option(min=5, help="How long the storm lasts.")] = 600.0,
    turns: Annotated[int, typer.Option(min=1, help="So many, if there is time.")] = 2000,
    workers: Annotated[int, typer.Option(min=1, max=32)] = 4,
    seed: Annotated[int | None, typer.Option(help="Of the dice; the machine's own timing stays its own.")] = None,
) -> None:
    """Ask, decide, kill, stop, restart; then count. Exit code 1 when anything happened twice, was lost, or is wrong."""
    random.seed(seed)
    sys.exit(asyncio.run(soak(seconds, turns, workers)))


if __name__ == "__main__":
    typer.run(main)
