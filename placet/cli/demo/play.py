"""The demo's story: asked, paused, killed, decided, continued in another process, proved.

Nothing here executes a call or knows an answer in advance: the turn is run by worker processes, decisions go the way of
`placet approve`, and what is shown was read from the record and from the gateway.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from placet.cli import opening, output, preview
from placet.cli.demo import deciding
from placet.cli.demo.deciding import Choice
from placet.cli.demo.processes import Worker, WorkerFailed, Workers
from placet.cli.demo.stage import Stage
from placet.cli.demo.witness import Approved, Testimony, examine
from placet.record import approvals, effects, events, items, lookup, people, turns
from placet.record.approvals import Approval
from placet.record.effects import Effect
from placet.record.events import Event
from placet.record.items import Item
from placet.record.people import User
from placet.record.turns import Turn
from tools.shop import Shop
from tools.shop.seed import FAILED_BATCH, Seeded, fail_three_more, seed

REQUEST = f"Refund the failed orders of batch {FAILED_BATCH}"
PATIENCE = 90.0  # seconds for a worker to come up and do its part
MOST_ASKS = 5  # of the same call; then the demo gives up
RESTS = frozenset({"turn_paused", "turn_completed", "turn_failed", "turn_exhausted", "turn_cancelled"})


@dataclass
class Play:
    """One performance."""

    record: opening.Record
    workers: Workers
    stage: Stage
    choose: Callable[[Approval], Choice] | None  # None: ask the person at the terminal
    drift: bool
    crash: bool
    seen: int = 0  # the last event's number
    decisions: list[dict[str, Any]] = field(default_factory=list)

    async def perform(self) -> Testimony:
        """From the empty shop to the gateway's own count."""
        await self._scene()
        first = await self.workers.start()  # it starts while the shop is filled
        marta = await self._shop_and_people()
        turn = await self._ask(first)
        asked = await self._pending(turn)
        self.stage.section("What marta sees")
        preview.show(self.stage.console, asked, await self._now())
        await self._kill(first, asked)
        if self.drift:
            await self._drift()
        for _ in range(MOST_ASKS):
            await self._decide(asked, marta)
            turn = await self._go_on(turn)
            if turn.status not in turns.WAITING:
                break
            asked = await self._asked_again(turn)
        return await self._prove(turn)

    async def _scene(self) -> None:
        self.stage.say("Placet: the whole way of a call, from message to receipt.", "bold")
        self.stage.say(
            "Agents may plan freely, but no consequential call leaves the building until the rules, or a person, have "
            "assented to exactly that call; and no call that has left is ever repeated on a guess.",
            "dim",
        )

    async def _shop_and_people(self) -> User:
        self.stage.section("A shop, and two people")
        with output.progress("Filling the shop …"):
            filled = await fill(self.record)
        self.stage.done(f"{filled.customers:,} customers, {filled.orders:,} orders, {filled.refunds_due} refunds due")
        self.stage.done("ana asks; marta decides for support and finance, never about her own requests")
        where = (
            "PLACET_DATABASE_URL" if self.record.settings.database_url else f"embedded, in {self.record.settings.home}"
        )
        self.stage.say(
            f"Postgres: {where}; tenant {self.record.tenant}. Planner: rehearsal, fixed, no language model.", "dim"
        )
        async with self.record.database.read() as tx:
            return await people.get(tx, self.record.tenant, "marta")

    async def _ask(self, worker: Worker) -> Turn:
        self.stage.section(f"ana asks: {REQUEST}")
        async with self.record.database.transaction() as tx:
            ana = await people.get(tx, self.record.tenant, "ana")
            limits = self.record.settings
            turn = await turns.create(tx, ana, REQUEST, max_steps=limits.max_steps, max_chars=limits.max_message_chars)
        self.stage.say(f"Stored as turn {output.short(turn.turn_id)}; worker process {worker.pid} takes it up.")
        turn, new = await self._watch(turn, worker)
        self.stage.plan(new, await self._items(turn))
        self.stage.done(f"The turn is {turn.status.replace('_', ' ')}. Nothing has been paid.")
        return turn

    async def _kill(self, worker: Worker, asked: Approval) -> None:
        self.stage.section("The worker is killed while it waits")
        await self.workers.kill(worker)
        self.stage.say(f"kill -9 {worker.pid}. No process runs now; what is known stands in the database:")
        self.stage.done(f"approval {output.short(asked.approval_id)}, {asked.status}, of exactly these bytes:")
        self.stage.say(f"  SHA-256 {asked.payload_hash.hex()}", "dim")

    async def _drift(self) -> None:
        self.stage.section("Meanwhile the world moves")
        more = await fail_three_more(Shop(self.record.database, self.record.tenant))
        self.workers.mark(f"three more orders of {FAILED_BATCH} fail")
        self.stage.say(f"Three more orders of {FAILED_BATCH} fail: {', '.join(more)} are due now too.")
        self.stage.say("marta has not seen them. What she approves is what she saw.")

    async def _decide(self, asked: Approval, marta: User) -> None:
        self.stage.section("The decision" if not asked.ask else "The second decision")
        decided = None
        while decided is None:  # an edit that was looked at and not confirmed is no decision
            if self.choose is not None:
                choice = self.choose(asked)
                self.stage.say(f"Nobody is asked: the demo takes {choice.kind!r} by itself.", "yellow")
            else:
                choice = deciding.ask(asked)
            decided = await deciding.decide(
                self.record, self.stage.console, asked, choice, marta, confirm=self.choose is None
            )
        self.decisions.append(decided.public())
        self.stage.done(
            f"{deciding.WORDS[str(decided.decision)]} by {decided.decided_by}, in one transaction with the wake-up"
        )
        self.stage.say(f"  SHA-256 {decided.payload_hash}", "dim")

    async def _go_on(self, turn: Turn) -> Turn:
        """A new process continues; with `crash` it dies between payment and receipt, and another one finishes."""
        self.stage.section("Another process goes on")
        armed = {"PLACET_CRASH_AT": "call:after=kill"} if self.crash else {}
        worker = await self.workers.start(**armed)
        self.stage.say(f"Worker process {worker.pid} takes the turn up where it stands. It has no memory of it.")
        turn, new = await self._watch(turn, worker)
        if worker.ended and turn.status not in turns.ENDED:
            self.workers.mark(f"process {worker.pid} is killed between payment and receipt")
            turn, new = await self._after_the_crash(turn, worker)
        else:
            await self.workers.end()
        self._say_what_happened(new)
        return turn

    async def _after_the_crash(self, turn: Turn, dead: Worker) -> tuple[Turn, list[Event]]:
        paid = await self._gateway.ledger()
        self.stage.wrong(f"Process {dead.pid} is killed (-9) between the payment and its receipt.")
        for effect in await self._effects(turn):
            receipt = "with a receipt" if effect.receipt else "no receipt"
            self.stage.say(f"Our record: effect {output.short(effect.operation_id)} is {effect.status}, {receipt}.")
        self.stage.say(f"The gateway: {len(paid)} refunds have been paid. Sending again would pay them twice.")
        self.stage.section("A third process finds it out")
        self.crash = False
        worker = await self.workers.start()
        self.stage.say(
            f"Worker process {worker.pid} takes over when the lease of {dead.pid} has run out, and asks the gateway."
        )
        turn, new = await self._watch(turn, worker)
        await self.workers.end()
        return turn, new

    def _say_what_happened(self, new: list[Event]) -> None:
        for event in new:
            said = event.payload
            match event.type:
                case "effect_unknown":
                    self.stage.say("dispatched → unknown: it was sent, the answer was lost, nobody guesses.", "magenta")
                case "effect_reconciled" if said.get("receipt"):
                    self.stage.say(
                        "unknown → committed: the gateway knows the key, so it happened. Not sent again.", "green"
                    )
                case "tool_completed" if said.get("receipt"):
                    self.stage.done("Checked once more, then sent, once, under one key; the receipt is stored.")
                case "approval_requested":
                    self.stage.say(
                        "Checked once more before anything leaves: the world has moved. It asks again.", "yellow"
                    )
                case "turn_completed":
                    self.stage.say(f"The agent: {said.get('output_text')}", "italic")
                case "turn_failed" | "turn_exhausted":
                    self.stage.wrong(f"The turn {event.type.removeprefix('turn_')}: {said.get('error')}")

    async def _asked_again(self, turn: Turn) -> Approval:
        asked = await self._pending(turn)
        self.stage.section("The same call is asked again, with the difference")
        facts, ids = asked.content["facts"], asked.content["arguments"].get("refund_due_ids", [])
        self.stage.difference(asked.difference or {})
        self.stage.say(
            f"{len(ids)} in this call, {facts.get('due_in_batches')} due now. The call stays as it was proposed:"
        )
        self.stage.say(f"  {asked.preview['title']}", "bold")
        return asked

    async def _prove(self, turn: Turn) -> Testimony:
        sent, calls = await self._effects(turn), await self._items(turn)
        self.stage.section("The receipts")
        self.stage.receipts(sent)
        if not sent:
            self.stage.say("There are none: nothing was sent.")
        self.stage.section("The timeline, across all processes")
        async with self.record.database.read() as tx:
            everything = await events.of_thread(tx, self.record.tenant, turn.thread_id, turn_id=turn.turn_id)
        self.stage.timeline(everything, self.workers.marks)
        self.stage.section("What the model was told")
        self.stage.told(calls)
        self.stage.section("The gateway's own count")
        testimony = examine(await self._gateway.ledger(), await self._approved(calls), sent)
        if turn.status != "completed":
            testimony.wrong.append(f"the turn is {turn.status}: {turn.error}")
        stale = any(event.type == "approval_closed" for event in everything)
        if self.drift and self.decisions[0]["decision"] == "approve" and not stale:  # an edit shows the world as it is
            testimony.wrong.append("the world moved and nobody was asked again")
        self.stage.testimony(testimony)
        self._look_further(turn)
        return testimony

    def _look_further(self, turn: Turn) -> None:
        settings = self.record.settings
        home = "" if settings.database_url else f"PLACET_HOME={settings.home} "
        self.stage.console.print()
        self.stage.say(f"Look further: export {home}PLACET_TENANT={self.record.tenant}", "dim")
        short = output.short(turn.turn_id)
        self.stage.say(
            f"  placet turn show {short}   placet effects list   placet events {short}   placet policy show", "dim"
        )

    async def _watch(self, turn: Turn, worker: Worker) -> tuple[Turn, list[Event]]:
        """The turn when it rests again, or its worker has died, and the events until then."""
        deadline = time.monotonic() + PATIENCE
        new: list[Event] = []
        with output.progress(f"Worker process {worker.pid} works …"):
            while True:
                ended = worker.ended
                async with self.record.database.read() as tx:
                    new += await events.of_thread(
                        tx, self.record.tenant, turn.thread_id, after=self.seen, turn_id=turn.turn_id
                    )
                    turn = await turns.get(tx, self.record.tenant, turn.turn_id)
                self.seen = new[-1].seq if new else self.seen
                if any(event.type in RESTS for event in new) or (ended and worker.was_killed):
                    return turn, new
                if ended or time.monotonic() > deadline:
                    what = "ended by itself" if ended else f"did not finish within {PATIENCE:g} seconds"
                    raise WorkerFailed(f"Worker process {worker.pid} {what}. Its last words:\n{worker.last_words()}")
                await asyncio.sleep(0.05)

    async def _pending(self, turn: Turn) -> Approval:
        async with self.record.database.read() as tx:
            waiting = await approvals.waiting(tx, self.record.tenant, turn_id=turn.turn_id)
        if len(waiting) != 1:
            raise WorkerFailed(f"One approval should wait, {len(waiting)} do; the turn is {turn.status}: {turn.error}")
        return waiting[0]

    async def _approved(self, calls: list[Item]) -> Approved:
        """What was approved last of the call that moves money."""
        async with self.record.database.read() as tx:
            asked = [await approvals.latest(tx, self.record.tenant, call.item_id) for call in calls]
        for one in asked:
            if one is not None and one.status == "approved":
                facts = one.content["facts"]
                ids = tuple(one.content["arguments"]["refund_due_ids"])
                return Approved(ids, facts["total"], facts["currency"])
        return Approved()

    async def _items(self, turn: Turn) -> list[Item]:
        async with self.record.database.read() as tx:
            return await items.of_turn(tx, turn.tenant_id, turn.turn_id)

    async def _effects(self, turn: Turn) -> list[Effect]:
        async with self.record.database.read() as tx:
            return await effects.recent(tx, self.record.tenant, turn_id=turn.turn_id)

    async def _now(self) -> Any:
        async with self.record.database.read() as tx:
            return await lookup.now(tx)

    @property
    def _gateway(self) -> Any:
        return Shop(self.record.database, self.record.tenant).gateway


async def fill(record: opening.Record) -> Seeded:
    """The shop's rows and its two people; what is there already stays."""
    async with record.database.transaction() as tx:
        await people.ensure(tx, record.tenant, "ana", name="Ana", roles=["requester"], duties=[])
        await people.ensure(tx, record.tenant, "marta", name="Marta", roles=["reviewer"], duties=["support", "finance"])
    return await seed(Shop(record.database, record.tenant))
