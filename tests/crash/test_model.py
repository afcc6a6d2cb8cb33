"""Anything that people, time, the world and crashes may do, in any order, against a small model of the rules.

`HYPOTHESIS_PROFILE=large pytest tests/crash/test_model.py` looks for longer.
"""

import asyncio
import json
import os
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from langchain_core.messages import BaseMessage

from placet.record import by_hand, crashpoints, effects, people, turns
from placet.record.database import Database
from placet.record.errors import PlacetError
from tests.conftest import Clock
from tests.crash.rules import Call, Rules, Turn
from tests.outside import World, happens_then
from tests.scripted import Said, Scripted, calls
from tests.steps import TENANT, House, outside_house

T = TypeVar("T")
ENOUGH = 4  # turns of one example
LARGE = os.environ.get("HYPOTHESIS_PROFILE") == "large"
BOUNDS = settings(
    max_examples=300 if LARGE else 12,
    stateful_step_count=40 if LARGE else 14,
    derandomize=not LARGE,
    database=None,
    phases=[Phase.generate, Phase.shrink] if LARGE else [Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
POINTS = [
    "claim:committed",
    "start:commit",
    "model:after",
    "answer:commit",
    "freeze:commit",
    "freeze:committed",
    "dispatch:begin",
    "dispatch:commit",
    "dispatch:committed",
    "call:before",
    "call:after",
    "receipt:commit",
    "receipt:committed",
    "ask_again:commit",
    "observed:commit",
    "reconciled:commit",
    "settle:commit",
    "settle:committed",
    *(f"checkpoint:{when}#{nth}" for when in ("commit", "committed") for nth in (1, 3, 6, 9)),
]
PROPOSED = st.sampled_from(
    [
        [("pay", 700)],
        [("pay", 30)],
        [("label", 0)],
        [("mail", 1)],
        [("mail", 2)],
        [("pay", 700), ("mail", 2)],
        [("label", 0), ("pay", 700)],
        [("pay", 700), ("pay", 800)],
    ]
)


def as_the_message_says(messages: list[BaseMessage]) -> Said:
    """The message holds the calls; once they have results, the turn is done."""
    if messages[-1].type != "human":
        return "Done."
    return calls(*((tool, arguments) for tool, arguments in json.loads(messages[-1].text)))


def arguments_of(tool: str, size: int, mark: str) -> dict[str, Any]:
    """Arguments that no other call has, so that the witness can tell."""
    match tool:
        case "pay":
            return {"to": mark, "minor": size}
        case "mail":
            return {"to": ["a@house.example", "b@house.example"][:size], "text": mark}
        case _:
            return {"name": mark}


class Machine(RuleBasedStateMachine):
    """The real thing beside the model."""

    loop: asyncio.AbstractEventLoop
    database: Database
    clock: Clock
    folder: Path

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def open(self) -> None:
        folder = self.folder / uuid4().hex
        folder.mkdir()
        self.world = World(folder)
        self.rules = Rules()
        self.house: House = self.do(
            outside_house(self.database, self.world, model=Scripted(as_the_message_says), lease=timedelta(seconds=30))
        )
        self.other = self.house.elsewhere()
        self.rows: list[tuple[turns.Turn, Turn]] = []

    def teardown(self) -> None:
        crashpoints.disarm()
        self.world.silent = False
        for row, _ in getattr(self, "rows", []):
            self.do(self._cancelled(row))
        self.do(self._settled())

    async def _cancelled(self, row: turns.Turn) -> str:
        try:
            return (await self.house.cancel(row)).status
        except PlacetError as error:
            return error.code

    async def _settled(self) -> None:
        await self.other.worker.sweep()
        await self.other.worker.run_until_idle()

    # What is done to it

    @precondition(lambda self: len(self.rows) < ENOUGH)
    @rule(proposed=PROPOSED)
    def somebody_asks(self, proposed: list[tuple[str, int]]) -> None:
        what = [(tool, arguments_of(tool, size, uuid4().hex[:8])) for tool, size in proposed]
        gated = [(tool, size) in (("pay", 700), ("pay", 800), ("mail", 2)) for tool, size in proposed]
        row = self.do(self.house.ask(json.dumps(what)))
        turn = Turn([Call(*one, gated=asks) for one, asks in zip(what, gated, strict=True)])
        self.rules.turns.append(turn)
        self.rows.append((row, turn))

    @precondition(lambda self: self.rows)
    @rule(two=st.booleans())
    def workers_work(self, two: bool) -> None:
        async def work() -> None:
            await self.house.worker.sweep()
            workers = [self.house.worker, self.other.worker][: 1 + two]
            await asyncio.gather(*(worker.run_until_idle() for worker in workers))

        self._prepare()
        self.do(work())
        self.rules.work()
        self._compare()

    @precondition(lambda self: self.rows)
    @rule(point=st.sampled_from(POINTS))
    def a_worker_dies_and_another_goes_on(self, point: str) -> None:
        async def work() -> None:
            crashpoints.arm(point, "die")
            try:
                await self.house.worker.sweep()
                await self.house.worker.run_until_idle()
            except crashpoints.Died:
                pass
            crashpoints.disarm()
            in_flight = self.house.services._in_flight
            await asyncio.gather(*in_flight, return_exceptions=True)
            await self.house.rows(
                "update threads set lease_until = clock() - interval '1 second' where owner is not null returning epoch"
            )
            await self._settled()

        self._prepare()
        self.do(work())
        self.rules.work(dying=True)
        self._compare()

    @precondition(lambda self: self._asked())
    @rule(
        data=st.data(),
        kind=st.sampled_from(["approve", "approve", "reject", "edit"]),
        right=st.sampled_from([1, 1, 1, 0]),
    )
    def somebody_decides(self, data: st.DataObject, kind: str, right: int) -> None:
        row, place, call = data.draw(st.sampled_from(self._asked()))
        who = data.draw(st.sampled_from(["marta", "marta", "pedro", "ana"]))
        edited = {**call.arguments, "minor": 600} if call.tool == "pay" else {**call.arguments, "text": "edited"}
        if kind == "edit" and call.status != "waiting":
            kind = "approve"
        answer = self.do(self._decide(row, place, who, kind, right_hash=bool(right), arguments=edited))
        expected = self.rules.decide(call, who, kind, right_hash=bool(right), arguments=edited)
        assert answer == expected, (answer, expected)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def somebody_cancels(self, data: st.DataObject) -> None:
        row, turn = data.draw(st.sampled_from(self.rows))
        assert self.do(self._cancelled(row)) == self.rules.cancel(turn)

    @precondition(lambda self: self._unknown())
    @rule(data=st.data(), gives_up=st.booleans())
    def an_operator_looks(self, data: st.DataObject, gives_up: bool) -> None:
        row, call = data.draw(st.sampled_from(self._unknown()))
        found = "abandoned" if gives_up else "committed" if self._happened(call) else "absent"
        self.do(self._resolve(row, call, found))
        self.rules.resolve(call, found)

    @rule(hours=st.sampled_from([1, 20, 25]))
    def time_goes_on(self, hours: int) -> None:
        self.do(self.clock.advance(hours * 3600))
        self.rules.now += hours * 3600

    @rule()
    def the_world_moves(self) -> None:
        self.rules.open += 1
        self.world.facts["open"] = self.rules.open

    @rule(silent=st.booleans())
    def nobody_answers_or_everybody_does(self, silent: bool) -> None:
        self.world.silent = self.rules.silent = silent

    @precondition(lambda self: self._to_leave())
    @rule(data=st.data())
    def an_answer_will_be_lost(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self._to_leave())).breaks = True

    # What must be true of it

    @invariant()
    def nothing_happens_twice_or_without_assent(self) -> None:
        for turn in getattr(self, "rules", Rules()).turns:
            for call in turn.calls:
                happened = self._happened(call)
                assert happened <= 1
                if call.status in ("proposed", "waiting", "rejected", "expired"):
                    assert happened == 0, call
                if call.status == "completed" and not call.may_be_unknown:
                    assert happened == 1, call

    @invariant()
    def events_have_no_gaps(self) -> None:
        for row, _ in getattr(self, "rows", []):
            events = self.do(self.house.events(row))
            assert [event.seq for event in events] == list(range(1, len(events) + 1))

    # Helpers

    def _prepare(self) -> None:
        """Tell the world how the next calls go, in the order in which they leave: one turn after the other."""
        self.world._acts.clear()
        breaking = {json.dumps(call.arguments) for turn in self.rules.turns for call in turn.calls if call.breaks}

        async def act(world: World, tool: str, args: Any, operation_id: str) -> Any:
            said = json.dumps(args.model_dump(mode="json", exclude_none=True))
            if said in breaking:
                return await happens_then(ConnectionError("reset"))(world, tool, args, operation_id)
            return world.do(tool, args, operation_id)

        for tool in ("pay", "mail", "label"):
            self.world.next(tool, *[act] * 50)

    def _compare(self) -> None:
        """Every call is what the model says; where the model does not know, it learns."""
        for row, turn in self.rows:
            items = self.do(self.house.items(row))
            waiting = {"waiting": "awaiting_approval"}
            for item, call in zip(items, turn.calls, strict=False):
                expected = waiting.get(call.status, call.status)
                if call.may_be_unknown and item.status == "unknown":
                    call.status = expected = "unknown"
                assert item.status == expected, (item.tool, item.status, call)
                call.may_be_unknown = False
            if turn.status == "completed" and any(call.status == "unknown" for call in turn.calls):
                turn.status = "running"
            assert len(items) in (len(turn.calls), 0 if turn.status == "cancelled" else len(turn.calls))
            now = self.do(self.house.turn(row.turn_id))
            wanted = {"completed": {"completed"}, "cancelled": {"cancelled"}}.get(
                turn.status, {"awaiting_approval", "awaiting_reconciliation"}
            )
            assert now.status in wanted, (now.status, turn)

    def _asked(self) -> list[tuple[turns.Turn, int, Call]]:
        """Calls about which people were asked."""
        return [
            (row, place, call)
            for row, turn in getattr(self, "rows", [])
            for place, call in enumerate(turn.calls)
            if call.gated and call.status != "proposed" and (call.expires > 0)
        ]

    def _unknown(self) -> list[tuple[turns.Turn, Call]]:
        return [
            (row, call)
            for row, turn in getattr(self, "rows", [])
            for call in turn.calls
            if call.status == "unknown" and turn.status == "running"
        ]

    def _to_leave(self) -> list[Call]:
        return [
            call
            for _, turn in getattr(self, "rows", [])
            for call in turn.calls
            if call.status in ("proposed", "waiting", "approved")
        ]

    def _happened(self, call: Call) -> int:
        return sum(
            line["tool"] == call.tool and call.arguments.items() <= line["args"].items()
            for line in self.world.arrivals()
        )

    async def _decide(
        self, row: turns.Turn, place: int, who: str, kind: str, *, right_hash: bool, arguments: dict[str, Any]
    ) -> str:
        item = (await self.house.items(row))[place]
        [latest] = await self.house.rows(
            "select approval_id from approvals where item_id = %(item)s order by ask desc limit 1", item=item.item_id
        )
        asked = await self.house.approval(latest["approval_id"])
        raw: dict[str, Any] = {"kind": kind, "payload_hash": asked.payload_hash.hex()}
        if kind == "reject":
            raw["reason"] = "no"
        if kind == "edit":
            raw = await self.house.edit(asked, arguments)
        if not right_hash:
            raw["payload_hash"] = "0" * 64
        reviewer = {"marta": self.house.marta, "pedro": self.house.pedro, "ana": self.house.ana}[who]
        try:
            decided = await self.house.decide_raw(asked, raw, reviewer)
        except PlacetError as error:
            return error.code
        return decided.status if decided.first else "as stored"

    async def _resolve(self, row: turns.Turn, call: Call, to: Any) -> None:
        async with self.database.transaction() as tx:
            await people.ensure(tx, TENANT, "otto", name="Otto", roles=["operator"], duties=[])
            otto = await people.get(tx, TENANT, "otto")
            for effect in await effects.recent(tx, TENANT, turn_id=row.turn_id, status="unknown"):
                if call.arguments.items() <= json.loads(effect.arguments).items():
                    external = "seen" if to == "committed" else None
                    await by_hand.resolve(tx, otto, effect, to=to, reason="I looked.", external_id=external)


@pytest.mark.timeout(3600 if LARGE else 300)
def test_e2_whatever_happens_in_whatever_order(database_url: str, owner_url: str, tmp_path: Path) -> None:
    """Asking, deciding, editing, cancelling, time, a world that moves or does not answer, workers that die: each call is
    what the model says, happens at most once, and never without assent."""
    loop = asyncio.new_event_loop()
    database, owner = Database(database_url), Database(owner_url, size=2)
    loop.run_until_complete(database.pool.open())
    loop.run_until_complete(owner.pool.open())
    try:
        fixed = {"loop": loop, "database": database, "clock": Clock(owner), "folder": tmp_path}
        run_state_machine_as_test(type("Bound", (Machine,), fixed), settings=BOUNDS)
    finally:
        loop.run_until_complete(database.pool.close())
        loop.run_until_complete(owner.pool.close())
        loop.close()
