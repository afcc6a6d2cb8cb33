"""Every point × every fault × every story, and what is left out of it, and why.

The points of a story, and how often each is reached, come from a rehearsal without a fault. Of their product with the
faults this is left out, because it is the same case again:

- killed at `…:begin`: nothing was done since the point before it.
- cut or restarted at `…:committed`: what follows without touching the database is the next point, with the same cut.
- the two kinds of tool that are not its turn, before the effect row is begun: until then nothing looks at the kind. Each
  such point has one kind, in rotation. The same for `edited` before the decision, which `approved` has.
- the model answers the same, away from where it is asked: another answer is the stronger test of an answer that is
  recorded already. Around the asking both are tried.
- sweeps that find nothing, behind the first.
- a side story as far as it goes the same way as one before it, up to the first decision.
- for the side stories: all faults but the kill, since what they add is points, and the main stories show what the other
  faults do to points of the same form.

`everything=True` leaves out nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from placet.record.embedded import Server
from tests.crash.case import Case, Fault, Played, play
from tests.crash.judge import judge
from tests.crash.slots import Nursery, Slot, open_slot, restart
from tests.crash.stories import SIDE_STORIES, Assent, Story, main_story

TOOLS = ("pay", "stamp", "mail")
ASSENTS: tuple[Assent, ...] = ("automatic", "approved", "edited")
FAULTS: tuple[Fault, ...] = ("kill", "cut", "restart", "overtaken")
SWEEPS = ("expire_due", "parked")
ELSEWHERE = {
    "renew": "needs a lease that runs out in real time: tests/crash/test_ownership.py",
    "prune_streams": "once a minute, on no call's way: tests/crash/test_ownership.py",
    "refuse": "needs a checkpoint of another version: tests/graph/test_versions.py",
    "decision_refused": "writes down who was refused, and changes nothing else: tests/api/langgraph/test_bounds.py",
    "orphan_all": "needs a graph without a node: tests/graph/test_orphans.py",
    "was_refused": "a guard: `refused` ends effect and call in one transaction, so that nobody finds one without the other",
}


@dataclass(frozen=True)
class Rehearsed:
    """A main story's points, in the order in which they are reached."""

    tool: str
    assent: Assent
    points: list[str]


def numbered(points: Iterable[str]) -> list[str]:
    """The n-th time of each point as `point#n`."""
    seen: Counter[str] = Counter()
    result = []
    for point in points:
        seen[point] += 1
        result.append(f"{point}#{seen[point]}")
    return result


def main_cases(rehearsed: Sequence[Rehearsed], *, everything: bool = False) -> list[Case]:
    """The kill matrix: three kinds of tool × three kinds of assent × two answers × every point × four faults."""
    cases = []
    for one in rehearsed:
        same, differs = (main_story(one.tool, one.assent, differs=differs) for differs in (False, True))
        numbers = numbered(one.points)
        dispatch = numbers.index("dispatch:begin#1")
        decision = numbers.index("decide:begin#1") if one.assent != "automatic" else 0
        for place, point in enumerate(numbers):
            if not everything:
                if place < dispatch and TOOLS[place % len(TOOLS)] != one.tool:
                    continue
                if place < decision and one.assent == "edited":
                    continue
            for fault in FAULTS:
                if not everything and is_again(point, fault):
                    continue
                cases.append(Case(differs, point, fault))
                if everything or _is_asked_around(point):
                    cases.append(Case(same, point, fault))
    return cases


def is_again(point: str, fault: Fault) -> bool:
    """Whether the fault at this point is the same as at another."""
    name, _, nth = point.partition("#")
    where, _, when = name.partition(":")
    return (
        (fault == "kill" and when == "begin")
        or (fault in ("cut", "restart") and when == "committed")
        or (where in SWEEPS and nth != "1")
    )


def _is_asked_around(point: str) -> bool:
    return point.startswith(("model:", "answer:"))


def side_cases(rehearsal: "Rehearsal", *, everything: bool = False) -> list[Case]:
    """Each side story, killed at each of its points."""
    before = [numbered(one.points) for one in rehearsal.mains]
    cases = []
    for story in SIDE_STORIES:
        numbers = numbered(rehearsal.sides[story.name])
        known = 0 if everything else _known(numbers, before)
        before.append(numbers)
        cases += [
            Case(story, point, fault)
            for point in numbers[known:]
            if point.partition("#")[0] not in story.meanwhile
            for fault in (FAULTS if everything else FAULTS[:1])
            if everything or not is_again(point, fault)
        ]
    return cases


def _known(numbers: list[str], before: Iterable[list[str]]) -> int:
    """How far a story went the same way as one before it; what made it go another way is three points back at most, or
    the first decision."""
    longest = max(
        next(
            (place for place, (one, other) in enumerate(zip(numbers, other, strict=False)) if one != other), len(other)
        )
        for other in before
    )
    decision = numbers.index("decide:begin#1") if "decide:begin#1" in numbers else longest
    return max(0, min(longest - 3, decision))


@dataclass
class Report:
    """What was played, and what came out."""

    cases: Counter[tuple[str, str]] = field(default_factory=Counter)  # by fault and story
    points: set[str] = field(default_factory=set)
    effects: int = 0
    wanted: int = 0
    unknown: int = 0
    unstruck: list[Case] = field(default_factory=list)  # the point was not reached this time
    failed: list[Played] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def played(self) -> int:
        return sum(self.cases.values())

    @property
    def duplicates(self) -> int:
        return sum(any("DUPLICATE" in problem for problem in played.problems) for played in self.failed)

    @property
    def lost(self) -> int:
        return sum(any("LOST" in problem for problem in played.problems) for played in self.failed)

    def add(self, played: Played) -> None:
        case = played.case
        self.cases[case.fault or "none", case.story.name] += 1
        if case.point:
            self.points.add(case.point.partition("#")[0])
        self.points.update(played.noted)
        self.effects += played.happened
        self.wanted += max(case.story.effects)
        self.unknown += played.unknown
        if case.fault is not None and not played.struck:
            self.unstruck.append(case)
        if played.problems:
            self.failed.append(played)


async def play_all(
    server: Server,
    template: str,
    nursery: Nursery,
    cases: Sequence[Case],
    *,
    slots: int = 4,
    unfenced: bool = False,
    prepare: Callable[[Slot], Awaitable[None]] | None = None,
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Play all cases, `slots` at a time; those in which Postgres restarts share each restart, twice as many of them."""
    report, started = Report(), time.monotonic()
    apart = [case for case in cases if case.fault != "restart"]
    together = [case for case in cases if case.fault == "restart"]
    async with AsyncExitStack() as stack:
        places = [
            await stack.enter_async_context(open_slot(server, template, nursery, unfenced=unfenced))
            for _ in range(max(min(slots, len(apart)), min(2 * slots, len(together))))
        ]
        for place in places:
            if prepare is not None:
                await prepare(place)
        queue = list(reversed(apart))

        async def empty_the_queue(slot: Slot) -> None:
            while queue:
                played = await play(slot, queue.pop())
                await _note(slot, played)

        async def _note(slot: Slot, played: Played) -> None:
            await judge(slot, played)
            report.add(played)
            report.seconds = time.monotonic() - started
            progress(report)

        await asyncio.gather(*(empty_the_queue(place) for place in places[:slots]))
        for start in range(0, len(together), len(places)):
            batch = together[start : start + len(places)]
            restarter = Restarter(server, len(batch))

            async def play_one(slot: Slot, case: Case, restarter: Restarter = restarter) -> Played:
                try:
                    return await play(slot, case, restart=restarter.arrive)
                finally:
                    restarter.leave()

            played = await asyncio.gather(*(play_one(*one) for one in zip(places, batch, strict=False)))
            for slot, one in zip(places, played, strict=False):
                await _note(slot, one)
    report.seconds = time.monotonic() - started
    return report


class Restarter:
    """Restarts Postgres once, when every case of a batch has come to its point (or to its end without it)."""

    def __init__(self, server: Server, cases: int) -> None:
        self._server = server
        self._cases = cases
        self._waiting = 0
        self._restarted = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    async def arrive(self) -> None:
        """At the point: wait until all are, and Postgres is back."""
        self._waiting += 1
        self._look()
        await self._restarted.wait()

    def leave(self) -> None:
        """At the end."""
        if not self._restarted.is_set():
            self._cases -= 1
            self._look()

    def _look(self) -> None:
        if self._waiting and self._waiting >= self._cases and self._work is None:
            self._work = asyncio.create_task(self._restart())

    async def _restart(self) -> None:
        await asyncio.to_thread(restart, self._server)
        self._restarted.set()


@dataclass(frozen=True)
class Rehearsal:
    """Every story played without a fault: its points, and the report, which must be clean."""

    mains: list[Rehearsed]
    sides: dict[str, list[str]]
    report: Report


async def rehearse(
    server: Server, template: str, nursery: Nursery, *, slots: int = 2, sides: Sequence[Story] = tuple(SIDE_STORIES)
) -> Rehearsal:
    """Play the main stories and `sides` without a fault."""
    noted: dict[str, list[str]] = {}
    mains = {main_story(tool, assent, differs=False).name: (tool, assent) for tool in TOOLS for assent in ASSENTS}
    report = Report()
    async with AsyncExitStack() as stack:
        queue = [*reversed(sides), *(main_story(*one, differs=False) for one in mains.values())]
        places = [await stack.enter_async_context(open_slot(server, template, nursery)) for _ in range(slots)]

        async def empty_the_queue(slot: Slot) -> None:
            while queue:
                played = await play(slot, Case(queue.pop()))
                await judge(slot, played)
                report.add(played)
                noted[played.case.story.name] = played.noted

        await asyncio.gather(*(empty_the_queue(place) for place in places))
    rehearsed = [Rehearsed(tool, assent, noted[name]) for name, (tool, assent) in mains.items()]
    return Rehearsal(rehearsed, {story.name: noted[story.name] for story in sides}, report)
