"""What a deploy took away from under a paused call: shown as orphaned, never a success, migrated or cancelled (G8)."""

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.types import Send

import graph as wiring
from graph.deciding import EditRefused
from placet.record import people, turns
from placet.record.database import Database
from placet.record.decisions import AlreadyDecided, InvalidDecision
from placet.record.errors import Conflict, NotAllowed
from placet.record.people import User
from tests.outside import RULES, Label, Look, Mail, Pay, PayArguments, World, happens_then
from tests.scripted import calls
from tests.steps import TENANT, House, outside_house

PAY = ("pay", {"to": "bo", "minor": 700})
NODES = ["call", "approval"]


@pytest.fixture
def written_by_another_graph(database: Database, world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A turn that waits at a node which had another name when it was written."""

    async def write(name: str, *said: Any) -> tuple[House, Any]:
        with monkeypatch.context() as before:
            _rename(before, name)
            house = await outside_house(database, world, *(said or (calls(PAY), "Paid.")))
        return house, await house.run()

    return write


def _rename(patch: pytest.MonkeyPatch, renamed: str) -> None:
    """Graphs that are built from here on have the node under another name."""

    def new(name: str) -> str:
        return f"old_{name}" if name == renamed else name

    class Renaming(wiring.StateGraph):  # type: ignore[type-arg]
        def add_node(self, name: Any, *args: Any, **more: Any) -> Any:
            return super().add_node(new(name), *args, **more)

        def add_edge(self, start: Any, end: str) -> Any:
            return super().add_edge(new(start), new(end))

        def add_conditional_edges(self, source: str, path: Any, path_map: Any = None) -> Any:
            if isinstance(path_map, dict):
                path_map = {key: new(value) for key, value in path_map.items()}
            if isinstance(path_map, list):
                path_map = [new(value) for value in path_map]
            return super().add_conditional_edges(new(source), path, path_map)

    def to(wire: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def path(state: Any) -> Any:
            found = wire(state)
            return [Send(new(send.node), send.arg) for send in found] if isinstance(found, list) else found

        return path

    patch.setattr(wiring, "StateGraph", Renaming)
    patch.setattr(wiring, "_after_plan", to(wiring._after_plan))
    patch.setattr(wiring, "_to_calls", to(wiring._to_calls))


async def operator(house: House) -> User:
    async with house.database.transaction() as tx:
        await people.ensure(tx, TENANT, "otto", name="Otto", roles=["operator"], duties=[])
        return await people.get(tx, TENANT, "otto")


async def migrate(house: House, turn: Any, who: User | None = None) -> None:
    who = who or await operator(house)
    async with house.database.transaction() as tx:
        await turns.migrate(tx, who, turn.turn_id)


async def is_orphaned(house: House, turn: Any, world: World) -> None:
    """It waits for people, says why, can be decided by nobody, and does not run in circles."""
    now = await house.turn(turn.turn_id)
    assert now.status == "awaiting_approval"
    assert now.output_text is None
    assert "orphaned" in {item.status for item in await house.items(turn)}
    assert await house.pending(turn) == []
    assert world.arrivals() == []
    await house.worker.sweep()
    assert await house.worker.claim() is None
    closed = [event for event in await house.events(turn) if event.type == "approval_closed"]
    assert {event.payload["status"] for event in closed} == {"orphaned"}


@pytest.mark.parametrize("name", NODES)
async def test_g8_a_renamed_node_leaves_an_orphan_that_can_be_migrated(
    written_by_another_graph: Callable[..., Any], world: World, name: str
) -> None:
    """Approved under the old graph, met by the new one: nothing runs and nobody's click counts; migrated, the same call is
    asked again, and runs once when it is approved again."""
    house, turn = await written_by_another_graph(name)
    [asked] = await house.pending(turn)
    await house.approve(asked)
    deployed = house.elsewhere()
    await deployed.go_on(turn)
    await is_orphaned(deployed, turn, world)
    with pytest.raises(AlreadyDecided, match="orphaned"):
        await deployed.reject(asked)

    await migrate(deployed, turn)
    assert (await deployed.go_on(turn)).status == "awaiting_approval"
    [again] = await deployed.pending(turn)
    assert (again.ask, again.content["arguments"]) == (1, asked.content["arguments"])
    assert world.arrivals() == []
    await deployed.approve(again)
    assert (await deployed.go_on(turn)).output_text == "Paid."
    assert len(world.arrivals()) == 1
    assert [item.status for item in await house.items(turn)] == ["completed"]


@pytest.mark.parametrize("name", NODES)
async def test_g8_nobody_has_decided_and_the_node_is_renamed(
    written_by_another_graph: Callable[..., Any], world: World, name: str
) -> None:
    """The question waits on until something wakes the turn; the approval is given under the new graph, and still does not
    run what that graph does not have."""
    house, turn = await written_by_another_graph(name)
    deployed = house.elsewhere()
    [asked] = await deployed.pending(turn)
    await deployed.approve(asked)
    await deployed.go_on(turn)
    await is_orphaned(deployed, turn, world)


@pytest.mark.parametrize("name", NODES)
async def test_g8_an_orphan_can_be_cancelled(
    written_by_another_graph: Callable[..., Any], world: World, name: str
) -> None:
    """Cancelled, the call has its one result, and the thread takes the next message."""
    house, turn = await written_by_another_graph(name, calls(PAY), "Hello.")
    await house.approve((await house.pending(turn))[0])
    deployed = house.elsewhere()
    await deployed.go_on(turn)
    await deployed.cancel(turn)
    assert (await deployed.go_on(turn)).status == "cancelled"
    assert [item.status for item in await house.items(turn)] == ["cancelled"]
    after = await deployed.run("Hello?", thread_id=turn.thread_id)
    assert (after.status, after.output_text) == ("completed", "Hello.")
    assert world.arrivals() == []


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("point", ["orphan_all:begin", "orphan_all:commit", "orphan_all:committed", "settle:commit"])
async def test_g8_killed_while_it_is_orphaned(
    written_by_another_graph: Callable[..., Any], world: World, name: str, point: str
) -> None:
    """The worker dies as it finds that nothing leads on: the next one finds the same."""
    house, turn = await written_by_another_graph(name)
    await house.approve((await house.pending(turn))[0])
    deployed = house.elsewhere()
    await deployed.die_at(point, turn)
    await deployed.go_on(turn)
    await is_orphaned(deployed, turn, world)


async def test_g8_what_was_sent_under_the_old_graph_is_looked_up(
    written_by_another_graph: Callable[..., Any], world: World
) -> None:
    """It left, the worker died, and the node is gone: what was sent is never orphaned, it is found."""
    house, turn = await written_by_another_graph("execute")
    await house.approve((await house.pending(turn))[0])
    await house.die_at("call:after", turn)
    deployed = house.elsewhere()
    ended = await deployed.go_on(turn)
    assert "orphaned" not in {item.status for item in await house.items(turn)}
    assert ended.status in ("completed", "awaiting_reconciliation")
    assert len(world.done()) == 1
    assert len(world.arrivals()) == 1


async def test_g8_siblings_of_an_orphan(written_by_another_graph: Callable[..., Any], world: World) -> None:
    """Two wait, one is approved, the node is renamed: both are orphans, migrated both are asked again, each runs once."""
    letter = ("mail", {"to": ["a@house.example", "b@house.example"]})
    house, turn = await written_by_another_graph("approval", calls(PAY, letter), "Both.")
    pay, _ = await house.pending(turn)
    await house.approve(pay)
    deployed = house.elsewhere()
    await deployed.go_on(turn)
    await is_orphaned(deployed, turn, world)
    await migrate(deployed, turn)
    await deployed.go_on(turn)
    for again in await deployed.pending(turn):
        await deployed.approve(again)
    assert (await deployed.go_on(turn)).status == "completed"
    assert [line["tool"] for line in world.done()] in (["pay", "mail"], ["mail", "pay"])


# The tool


class Narrower(PayArguments):
    reference: str


class NewPay(Pay):
    """Send money. It does not come back."""

    Arguments = Narrower


def without_pay(house: House, world: World) -> House:
    rules = RULES[: RULES.index("[pay]")] + RULES[RULES.index("[mail]") :]
    return house.elsewhere(tools=[Look(world), Label(world), Mail(world)], rules=rules)


def with_another_pay(house: House, world: World) -> House:
    return house.elsewhere(tools=[Look(world), Label(world), Mail(world), NewPay(world)])


DEPLOYS = [without_pay, with_another_pay]


@pytest.mark.parametrize("deploy", DEPLOYS)
async def test_g8_a_tool_that_is_gone_or_other_now_is_not_helped_by_migrating(
    database: Database, world: World, deploy: Callable[[House, World], House]
) -> None:
    """Migrating what is still not there leaves the orphan as it is; when the tool is back as it was, the call is asked
    again."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    await house.approve((await house.pending(turn))[0])
    deployed = deploy(house, world)
    await deployed.go_on(turn)
    await is_orphaned(deployed, turn, world)
    await migrate(deployed, turn)
    await deployed.go_on(turn)
    await is_orphaned(deployed, turn, world)

    await migrate(house, turn)
    assert (await house.go_on(turn)).status == "awaiting_approval"
    [again] = await house.pending(turn)
    await house.approve(again)
    assert (await house.go_on(turn)).status == "completed"
    assert len(world.arrivals()) == 1


@pytest.mark.parametrize("deploy", DEPLOYS)
async def test_g8_an_edit_does_not_bring_a_tool_back(
    database: Database, world: World, deploy: Callable[[House, World], House]
) -> None:
    """A reviewer edits a call whose tool has changed meanwhile: refused, and as answerable as before."""
    house = await outside_house(database, world, calls(PAY), "Paid.")
    turn = await house.run()
    [asked] = await house.pending(turn)
    decision = await house.edit(asked, {"to": "bo", "minor": 600})
    deployed = deploy(house, world)
    with pytest.raises((EditRefused, InvalidDecision)):
        await deployed.decide_raw(asked, decision)
    assert len(await house.pending(turn)) == 1
    assert world.arrivals() == []


async def test_g8_an_automatic_call_whose_tool_is_gone_is_no_success(database: Database, world: World) -> None:
    """Frozen as automatic, the worker died before it left, and the tool is gone: it never runs and is never told as done."""
    house = await outside_house(database, world, calls(("label", {"name": "blue"})), "Not done.")
    turn = await house.ask()
    await house.die_at("freeze:committed", turn)
    rules = RULES[: RULES.index("[label]")] + RULES[RULES.index("[pay]") :]
    deployed = house.elsewhere(tools=[Look(world), Pay(world), Mail(world)], rules=rules)
    await deployed.go_on(turn)
    assert world.arrivals() == []
    [item] = await house.items(turn)
    assert item.status in ("failed", "orphaned")
    assert item.result is None or item.result["ok"] is False


async def test_g8_who_may_migrate(written_by_another_graph: Callable[..., Any], world: World) -> None:
    """Operators; and only a turn that has an orphan."""
    house, turn = await written_by_another_graph("approval")
    with pytest.raises(Conflict, match="no orphaned call"):
        await migrate(house, turn)
    await house.approve((await house.pending(turn))[0])
    await house.elsewhere().go_on(turn)
    with pytest.raises(NotAllowed, match="operator"):
        await migrate(house, turn, house.ana)
    await migrate(house, turn)
    assert len(await house.rows("select 1 from audit where action = 'migrated'")) == 1


async def test_g8_an_unknown_effect_beside_an_orphan(
    written_by_another_graph: Callable[..., Any], world: World
) -> None:
    """One call is unknown, its sibling's node is gone: the turn says the first, and nothing is told as done."""
    world.silent = True
    world.next("label", happens_then(ConnectionError("reset")))
    house, turn = await written_by_another_graph("approval", calls(("label", {"name": "x"}), PAY), "Done.")
    assert turn.status == "awaiting_reconciliation"
    await house.approve((await house.pending(turn))[0])
    deployed = house.elsewhere()
    assert (await deployed.go_on(turn)).status == "awaiting_reconciliation"
    assert {item.status for item in await house.items(turn)} <= {"unknown", "orphaned", "approved", "completed"}
    assert len(world.arrivals("label")) == 1


@pytest.mark.parametrize("call", [("label", {"name": "blue"}), ("look", {"what": "x"})], ids=["change", "read"])
async def test_g8_an_automatic_orphan_runs_when_it_is_migrated(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    """Nobody was asked about it, and its node is gone before it left: it waits, and migrated it runs once."""
    with monkeypatch.context() as before:
        _rename(before, "execute")
        house = await outside_house(database, world, calls(call), "Done.")
    turn = await house.ask()
    await house.die_at("read_started:begin" if call[0] == "look" else "dispatch:begin", turn)
    deployed = house.elsewhere()
    await deployed.go_on(turn)
    assert [item.status for item in await house.items(turn)] == ["orphaned"]
    assert world.arrivals() == []
    await migrate(deployed, turn)
    assert (await deployed.go_on(turn)).status == "completed"
    assert [item.status for item in await house.items(turn)] == ["completed"]
    assert len(world.arrivals()) == 1


@pytest.mark.parametrize("name", ["call", "execute"])
@pytest.mark.parametrize(("silent", "item", "effect"), [(False, "completed", "committed"), (True, "failed", "unknown")])
async def test_t3_a_closing_run_looks_up_what_an_older_graph_sent(
    written_by_another_graph: Callable[..., Any], world: World, name: str, silent: bool, item: str, effect: str
) -> None:
    """The call is out, its worker died, its node is gone, and the turn is cancelled: it is looked up all the same."""
    house, turn = await written_by_another_graph(name)
    await house.approve((await house.pending(turn))[0])
    await house.die_at("call:after", turn)
    deployed = house.elsewhere()
    await deployed.cancel(turn)
    world.silent = silent
    assert (await deployed.go_on(turn)).status == "cancelled"
    assert [(one.status, one.result is None) for one in await house.items(turn)] == [(item, False)]
    assert [one.status for one in await house.effects(turn)] == [effect]
    assert len(world.arrivals()) == 1
    assert house.model.asked == 1


@pytest.mark.parametrize("name", ["call", "execute"])
async def test_g8_what_was_found_is_no_orphan(
    written_by_another_graph: Callable[..., Any], world: World, name: str
) -> None:
    """It was found to have happened, then the worker died and the node is gone: the call is completed, not orphaned."""
    world.next("pay", happens_then(ConnectionError("reset")))
    house, turn = await written_by_another_graph(name)
    await house.approve((await house.pending(turn))[0])
    await house.die_at("observed:committed", turn)
    assert (await house.elsewhere().go_on(turn)).output_text == "Paid."
    assert [item.status for item in await house.items(turn)] == ["completed"]
