"""One story, with one fault at one point.

The story is played against the rows: look, let the worker work, decide what is pending, look again. The fault happens when
the worker comes to the point; then whoever is left goes on. A worker that was overtaken is let go at the end, and must
change nothing any more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from uuid import UUID

from placet.record import people, turns
from placet.record.database import AWAY
from tests.crash.child import LEASE
from tests.crash.slots import Died, Process, Slot
from tests.crash.stories import Asked, Story, Unknown
from tests.crash.world import SharedWorld
from tests.steps import TENANT

Fault = Literal["kill", "cut", "restart", "overtaken"]
T = TypeVar("T")
ROUNDS = 40  # looks at the rows, after which a turn is stuck
PATIENCE = 6  # of these in which nothing was to be done but wait


@dataclass(frozen=True, order=True)
class Case:
    """A story, and where which fault happens; without one it is a rehearsal that notes the points."""

    story: Story = field(compare=False)
    point: str | None = None  # with #n, the n-th time
    fault: Fault | None = None

    def __str__(self) -> str:
        return f"{self.story.name}: {self.fault} at {self.point}" if self.fault else self.story.name


@dataclass
class Played:
    """What became of it."""

    case: Case
    thread_id: UUID
    turn_id: UUID
    world: SharedWorld
    struck: bool = False  # the point was reached
    noted: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    happened: int = 0
    unknown: int = 0  # left for people to say


class Stuck(Exception):
    """Nobody works on it, nothing is due, nobody is asked."""


@dataclass
class Player:
    """Plays one case in a slot."""

    slot: Slot
    case: Case
    played: Played
    active: Process
    restart: Callable[[], Awaitable[None]]
    overtaken: Process | None = None  # who still has to learn that it lost the thread

    async def play(self) -> None:
        """From the message to an end, or to people who must say what happened."""
        story = self.case.story
        if story.cancels == "before it runs":
            await self.perform(do="cancel", turn=str(self.played.turn_id))
        waited = 0
        for _ in range(ROUNDS):
            await self.perform(do="work", thread=str(self.played.thread_id), sweep=story.sweeps or self.played.struck)
            now = await self.look()
            if now.owned or now.due or not await self._react(now):
                if now.ended and not now.owned and not now.due:
                    if self.overtaken is None:
                        return
                    await self.let_go()
                    continue
                waited += 1
                if waited > PATIENCE:
                    raise Stuck(f"{now}")
                if self.overtaken is not None:  # the server's time-out for transactions that hang
                    await self.slot.cut(self.overtaken, in_transaction_only=True)
                await self.outlast_the_lease()
        raise Stuck("it goes round and round")

    async def _react(self, now: "Now") -> bool:
        """What people do about what they see; whether there was anything to do."""
        story, turn = self.case.story, str(self.played.turn_id)
        if now.unknown:
            if self.overtaken is not None:  # nobody says that nothing was sent while somebody may be sending it
                await self.let_go()
                return True
            for unknown in now.unknown:
                to = story.resolve(unknown, self.played.world)
                await self.perform(do="resolve", operation=unknown.operation_id, to=to)
        elif now.status == "failed":
            await self.perform(do="retry", turn=turn)
        elif now.ended:
            return story.undo and not await self._undone()
        elif now.orphaned:
            self.played.world.change(new_schema=False)  # the tool is brought back as it was
            await self.perform(do=story.orphaned, turn=turn)
        elif now.pending and story.cancels:
            await self.perform(do="cancel", turn=turn)
        else:
            for asked in now.pending[:1] if story.one_by_one else now.pending:
                await self._decide(asked)
            return bool(now.pending)
        return True

    async def _decide(self, asked: Asked) -> None:
        raw = self.case.story.decide(asked, self.played.world)
        if isinstance(raw, float):  # nobody decides
            await self.advance(raw)
            return
        await self.advance(raw.pop("after", 0.0))
        then = raw.pop("then", 0.0)
        await self.perform(do="decide", approval=asked.approval_id, raw=raw)
        await self.advance(then)

    async def _undone(self) -> bool:
        """Take back what was done; commanded again when nobody answered."""
        rows = await self.rows(
            """
            select e.operation_id, u.status as undo
              from placet.effects e left join placet.effects u on u.undoes = e.operation_id
             where e.turn_id = %(turn)s and e.undoes is null
            """
        )
        if all(row["undo"] in ("committed", "refused") for row in rows):
            return True
        for row in rows:
            await self.perform(do="undo", operation=str(row["operation_id"]))
        return False

    async def perform(self, **told: Any) -> None:
        """Let the active process do something; when it comes to the point, the fault happens."""
        while True:
            try:
                answer = await self.active.call(**told)
                while "paused" in answer:
                    if await self._strike(answer["paused"], told["do"]):
                        return
                    self.active.tell(do="go")
                    answer = await self.active.answer()
            except Died:
                await self._after_death()
                return
            self.played.noted = answer.get("noted") or self.played.noted
            if answer.get("error") == "broken":
                raise Stuck(answer["message"])
            if answer.get("error") != "database_away":  # other errors are answers: it was decided, or ended, before
                return

    async def _after_death(self) -> None:
        self.played.struck = True
        self.played.world.something_went_wrong()
        self.slot.bury(self.active)
        self.active = await self.slot.rescuer()
        await self.enter(self.active)
        await self.outlast_the_lease()

    async def _strike(self, point: str, what: str) -> bool:
        """The process waits at the point: now. Whether another one goes on instead."""
        if point != self.case.point:
            clerk = await self.slot.clerk()
            await clerk.call(do=self.case.story.meanwhile[point], turn=str(self.played.turn_id))
            return False
        self.played.struck = True
        self.played.world.something_went_wrong()
        match self.case.fault:
            case "cut":
                await self.slot.cut(self.active)
            case "restart":
                await self.restart()
            case "overtaken":
                self.overtaken = self.active
                self.active = await self.slot.rescuer()
                await self.enter(self.active)
                await self.outlast_the_lease()
        return self.case.fault == "overtaken"

    async def let_go(self) -> None:
        """The worker that was overtaken goes on, and changes nothing."""
        assert self.overtaken is not None
        process, self.overtaken = self.overtaken, None
        before = await self.everything()
        process.tell(do="go")
        await process.answer()
        after = await self.everything()
        self.played.problems += [
            f"the worker that was overtaken changed {table}: {before[table]} → {after[table]}"
            for table in before
            if before[table] != after[table]
        ]

    async def enter(self, process: Process, **arm: str) -> None:
        """The process joins the case; whoever it is, what happens meanwhile happens to it."""
        arm = {**dict.fromkeys(self.case.story.meanwhile, "pause"), **arm}
        folder = str(self.played.world.folder)
        await process.call(do="enter", folder=folder, arm=arm, note=self.case.fault is None)

    async def advance(self, seconds: float) -> None:
        await patiently(lambda: self.slot.advance(seconds))

    async def outlast_the_lease(self) -> None:
        await self.advance(LEASE.total_seconds() + 1)

    # Looking

    async def look(self) -> "Now":
        """Where the turn stands."""
        [row] = await self.rows(
            """
            select u.status, t.owner is not null as owned,
                   exists (select 1 from placet.runs r where r.thread_id = t.thread_id and r.status <> 'ended') as due,
                   exists (select 1 from placet.plan_items i where i.turn_id = u.turn_id and i.status = 'orphaned') as orphaned
              from placet.turns u join placet.threads t using (thread_id)
             where u.turn_id = %(turn)s
            """
        )
        pending = await self.rows(
            """
            select a.approval_id::text, a.tool, a.ask, convert_from(r.payload, 'UTF8')::jsonb -> 'arguments' as arguments
              from placet.approvals a
              join placet.approval_revisions r using (approval_id, revision)
              join placet.plan_items i using (item_id)
             where a.turn_id = %(turn)s and a.status = 'pending'
             order by i.step, i.ordinal
            """
        )
        unknown = await self.rows(
            """
            select operation_id::text, tool, convert_from(arguments, 'UTF8')::jsonb as arguments
              from placet.effects where turn_id = %(turn)s and status = 'unknown' and undoes is null
            """
        )
        happened = await self.played.world.happened(self.slot.owner)
        return Now(
            row["status"],
            row["owned"],
            row["due"],
            row["orphaned"],
            [Asked(**one) for one in pending],
            [
                Unknown(one["operation_id"], one["tool"], _holds(one["arguments"], happened[one["tool"]]))
                for one in unknown
            ],
        )

    async def everything(self) -> dict[str, int]:
        """How much is written of this thread, by table, and how much happened in the world."""
        [row] = await self.rows(
            """
            select (select count(*) from placet.events where thread_id = t.thread_id) as events,
                   (select count(*) from placet.plan_items where thread_id = t.thread_id) as items,
                   (select count(*) from placet.effects where thread_id = t.thread_id) as effects,
                   (select count(*) from placet.approvals where thread_id = t.thread_id) as approvals,
                   (select count(*) from placet.runs where thread_id = t.thread_id) as runs,
                   (select count(*) from placet.checkpoints where thread_id = t.thread_id::text) as checkpoints,
                   (select count(*) from placet.checkpoint_writes where thread_id = t.thread_id::text) as writes,
                   (select count(*) from placet.audit where tenant_id = t.tenant_id) as audit,
                   t.epoch, t.seq
              from placet.threads t where thread_id = %(thread)s
            """
        )
        happened = await self.played.world.happened(self.slot.owner)
        return {**row, **{tool: len(done) for tool, done in happened.items() if tool != "mail"}}

    async def rows(self, query: Any) -> list[dict[str, Any]]:
        async def read() -> list[dict[str, Any]]:
            async with self.slot.owner.read() as tx:
                return await tx.fetch_dicts(query, {"turn": self.played.turn_id, "thread": self.played.thread_id})

        return await patiently(read)


@dataclass(frozen=True, slots=True)
class Now:
    """Where the turn stands."""

    status: str
    owned: bool
    due: bool
    orphaned: bool
    pending: list[Asked]
    unknown: list[Unknown]

    @property
    def ended(self) -> bool:
        return self.status in turns.ENDED


def _holds(arguments: dict[str, Any], done: list[dict[str, Any]]) -> bool:
    return any(arguments.items() <= one.items() for one in done)


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Our own connections break with the server's, too."""
    for wait in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        try:
            return await work()
        except AWAY:
            await asyncio.sleep(wait)
    return await work()


async def _no_restart() -> None:
    raise AssertionError("this slot cannot restart Postgres")


async def begin(slot: Slot, case: Case) -> Played:
    """The world as the story has it, and the message stored as a turn."""
    world = slot.world()
    story = case.story
    world.plan(story.first, story.other or None)
    world.misbehave(*story.acts)
    world.change(**story.facts)

    async def ask() -> turns.Turn:
        async with slot.owner.transaction() as tx:
            ana = await people.get(tx, TENANT, "ana")
            return await turns.create(tx, ana, "Do it.", max_steps=12, max_chars=1000)

    turn = await patiently(ask)
    return Played(case, turn.thread_id, turn.turn_id, world)


async def play(slot: Slot, case: Case, *, restart: Callable[[], Awaitable[None]] = _no_restart) -> Played:
    """Play a case; what must be true afterwards is the judge's."""
    played = await begin(slot, case)
    player = Player(slot, case, played, await slot.victim(), restart)
    arm = {case.point: "kill" if case.fault == "kill" else "pause"} if case.point is not None else {}
    try:
        if case.story.dies_first:
            await player.enter(player.active, **{case.story.dies_first: "kill"})
            await player.perform(do="work", thread=str(played.thread_id))
            player.active = await slot.victim()
            played.struck = False
        await player.enter(player.active, **arm)
        await player.play()
    except Exception as error:  # noqa: BLE001  # whatever breaks a case is what the matrix looks for
        played.problems.append(f"{type(error).__name__}: {error}")
    if played.problems or player.overtaken:
        slot.bury_all()
    return played
