"""The client, and the command line over it (`PLACET_URL`), against a real server."""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from placet import cli, logs
from placet.client import Client, Refused, Unreachable
from placet.settings import settings
from tests.api.serving import Served
from tests.outside import World, happens_then


def client_of(served: Served, who: str) -> Client:
    return Client(served.url, served.keys[who])


async def test_l3_the_client_goes_the_whole_way(served: Served, world: World) -> None:
    """Ask, follow until it rests, look, preview an edit, approve that, follow to the end, see the receipt."""
    async with client_of(served, "ana") as ana, client_of(served, "marta") as marta:
        turn = await ana.ask("Pay Rosa.")
        await served.house.worker.run_until_idle()
        seen = [event.type async for event in ana.follow(turn.turn_id, until="rest")]
        [asked] = await marta.waiting(mine=True)
        edit = await marta.preview(asked, {"to": "rosa", "minor": 75})
        outcome = await marta.approve(asked, edit)
        again = await marta.approve(asked, edit)
        await served.house.worker.run_until_idle()
        rest = [event.seq async for event in ana.follow(turn.turn_id, after=len(seen))]
        done = await ana.turn(turn.turn_id)
        [effect] = await ana.effects(turn_id=turn.turn_id)

    assert seen[-1] == "turn_paused"
    assert (outcome.first, again.first, outcome.decision) == (True, False, "approve_with_changes")
    assert rest == list(range(len(seen) + 1, len(seen) + len(rest) + 1))
    assert done.status == "completed"
    assert effect.receipt is not None
    assert [line["args"]["minor"] for line in world.done("pay")] == [75]


async def test_l5_a_refusal_carries_the_server_s_code_and_state(served: Served) -> None:
    """What the server says is what the program gets; without a server it says that it does not know what arrived."""
    asked = await served.paused()
    async with client_of(served, "ana") as ana, client_of(served, "pedro") as pedro:
        with pytest.raises(Refused, match="waits for people") as waiting:
            await ana.ask("More.", thread_id=asked["thread_id"])
        [there] = await pedro.waiting()
        await served.decide(asked, {"kind": "reject", "reason": "no"})
        with pytest.raises(Refused) as late:
            await pedro.approve(there)
    async with Client("http://127.0.0.1:9", "placet_x") as nobody:
        with pytest.raises(Unreachable):
            await nobody.me()

    assert (waiting.value.status, waiting.value.code) == (409, "turn_awaits_people")
    assert late.value.details["outcome"]["decided_by"] == "marta"


async def test_l3_the_client_reads_as_many_pages_as_it_takes(served: Served) -> None:
    """Rows beyond one page are found."""
    for n in range(5):
        await served.ask(f"request {n}")
    async with client_of(served, "ana") as ana:
        ana_s = [row async for row in ana.rows("/v1/turns", 4, {})]
        assert [row["message"] for row in ana_s] == [f"request {n}" for n in (4, 3, 2, 1)]


@pytest.fixture
def placet(served: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """`await placet("marta", "inbox")`: the command line as that person, with nothing but the address and a key."""

    async def call(who: str, *arguments: str) -> tuple[int, Any]:
        monkeypatch.setenv("PLACET_URL", served.url)
        monkeypatch.setenv("PLACET_API_KEY", served.keys[who])
        monkeypatch.setenv("PLACET_DATABASE_URL", "postgresql://nobody@127.0.0.1:9/nowhere")
        settings.cache_clear()
        capfd.readouterr()
        code = await asyncio.to_thread(cli.call, [*arguments, "--json"])
        settings.cache_clear()
        return code, [json.loads(part) for part in _documents(capfd.readouterr().out)]

    return call


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command sets the process's logs up for itself, on streams that end with the test."""
    yield
    logs.configure(level=logging.WARNING)


def _documents(out: str) -> list[str]:
    try:
        json.loads(out)
    except ValueError:
        return out.splitlines()
    return [out]


async def test_l3_the_command_line_works_against_a_server(
    served: Served, world: World, placet: Callable[..., Any]
) -> None:
    """Without a database: run, inbox, approve, events, turn and effects, each as the person whose key it is."""
    code, [asked] = await placet("ana", "run", "Pay Rosa.", "--no-wait")
    assert code == 0
    turn_id = asked["turn"]["turn_id"]
    await served.house.worker.run_until_idle()

    code, [inbox] = await placet("marta", "inbox")
    [waiting] = inbox["approvals"]
    own, [refused] = await placet("ana", "approve", waiting["approval_id"][:8], "--yes")
    other, [not_me] = await placet("marta", "approve", waiting["approval_id"], "--yes", "--as", "pedro")
    code, [decided] = await placet("marta", "approve", waiting["approval_id"][:8], "--yes")
    late, [conflict] = await placet("pedro", "reject", waiting["approval_id"], "--reason", "no")
    await served.house.worker.run_until_idle()
    _, events = await placet("ana", "events", turn_id[:8])
    _, [whole] = await placet("ana", "turn", "show", turn_id[:8])
    _, [sent] = await placet("ana", "effects", "list")
    _, [explained] = await placet("marta", "policy", "explain", "pay", '{"to": "rosa", "minor": 100}')
    not_orphaned, [as_it_is] = await placet("olga", "turn", "migrate", turn_id[:8])

    assert (own, refused["error"]["code"]) == (3, "not_allowed")
    assert (other, not_me["error"]["code"]) == (3, "somebody_else")
    assert (code, decided["decision"]["decided_by"]) == (0, "marta")
    assert (late, conflict["error"]["code"]) == (3, "already_decided")
    assert events[-1]["type"] == "turn_completed"
    assert whole["turn"]["status"] == "completed"
    assert sent["effects"][0]["status"] == "committed"
    assert (explained["tool"], explained["verdict"]["kind"]) == ("pay", "ask")
    assert (not_orphaned, as_it_is["error"]["code"]) == (3, "conflict")
    assert len(world.done("pay")) == 1


@pytest.fixture
def shown(
    served: Served, owner_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Any]]:
    """`await shown("marta", "inbox")`: exit code, stdout and stderr as people read them, over the wire; with `here` beside
    the database."""

    async def call(who: str | None, *arguments: str, here: bool = False, **more: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            addresses = {"PLACET_DATABASE_URL": served.house.database.dsn, "PLACET_OWNER_DATABASE_URL": owner_url}
            database = {**addresses, "PLACET_USER": who or ""}
            server = {"PLACET_URL": served.url, "PLACET_API_KEY": served.keys[who] if who else ""}
            for name, value in {**(database if here else server), **more}.items():
                patch.setenv(name, value)
            settings.cache_clear()
            capfd.readouterr()
            code = await asyncio.to_thread(cli.call, list(arguments))
        said = capfd.readouterr()
        return code, said.out, said.err

    yield call
    settings.cache_clear()


def _lasting(said: str) -> str:
    """Without ages, which grow, and the spaces beside them."""
    return re.sub(r" +", " ", re.sub(r"(in |for )?\d+ (s|min|h)( ago| \d+ min)?", "AGE", said))


async def test_l3_what_people_see_of_a_server_looks_as_it_does_beside_the_database(
    served: Served, world: World, shown: Callable[..., Any]
) -> None:
    """The screens are the same, whether they come over the wire or not; also what waits for an operator."""
    world.silent = True
    world.next("pay", happens_then(ConnectionError("reset")))
    lost = await served.paused()
    await served.decide(lost, {"kind": "approve"})
    await served.house.worker.run_until_idle()
    asked = await served.paused()
    [effect] = await served.house.rows("select operation_id::text from effects")
    screens = [
        ["inbox"],
        ["turn", "list"],
        ["turn", "show", asked["turn_id"][:8]],
        ["turn", "show", lost["turn_id"]],
        ["events", asked["turn_id"]],
        ["effects", "list"],
        ["effects", "show", effect["operation_id"][:8]],
    ]
    for arguments in screens:
        code, out, err = await shown("marta", *arguments)
        code_here, beside, err_here = await shown("marta", *arguments, here=True)
        assert (code, code_here) == (0, 0), f"{err}{err_here}"
        assert _lasting(out) == _lasting(beside)
    _, inbox, _ = await shown("olga", "inbox")
    assert f"placet effects resolve {effect['operation_id'][:8]}" in inbox


async def test_l5_what_the_command_line_cannot_ask_of_a_server_says_what_to_do(
    served: Served, shown: Callable[..., Any]
) -> None:
    """No key, no address, nobody there, work that is the server's: a sentence, and the exit code that --help promises."""
    no_key = await shown(None, "inbox")
    bad_key = await shown("marta", "inbox", PLACET_API_KEY="placet_x")
    no_address = await shown("marta", "inbox", PLACET_URL="placet.example")
    nobody = await shown("marta", "inbox", PLACET_URL="http://127.0.0.1:9")
    here = await shown("ana", "run", "Pay Rosa.", "--here")
    no_ending = await shown("olga", "effects", "resolve", "12345678", "--reason", "x", "--json")
    no_such = await shown("olga", "turn", "show", "12345678", "--json")

    assert (no_key[0], bad_key[0], no_address[0], nobody[0], here[0]) == (3, 3, 2, 1, 2)
    assert "PLACET_API_KEY" in no_key[2]
    assert "PLACET_API_KEY" in bad_key[2]
    assert "PLACET_URL" in no_address[2]
    assert "http://" in no_address[2]
    assert "Nothing was sent" in nobody[2]
    assert "--here" in here[2]
    assert json.loads(no_ending[1])["error"]["code"] == "invalid_input"
    assert json.loads(no_such[1])["error"]["code"] == "unknown_turn"
    assert await served.house.rows("select 1 as one from turns") == []


async def test_o3_a_server_whose_workers_are_gone_keeps_nobody_waiting(
    served: Served, shown: Callable[..., Any]
) -> None:
    """`placet run` gives up watching a request that nobody takes up, as it does beside the database."""
    code, out, _ = await asyncio.wait_for(shown("ana", "run", "Pay Rosa."), 30)

    assert code == 0
    assert "Nobody has taken it up" in out


async def test_v2_the_client_waits_through_heartbeats(served: Served) -> None:
    """Signs of life are no events: who follows for long sees each event once."""
    object.__setattr__(served.house.services.settings, "heartbeat", 0.05)
    asked = await served.paused()
    async with client_of(served, "ana") as ana:
        following = ana.follow(UUID(asked["turn_id"]))
        seen = [await anext(following)]
        while seen[-1].type != "turn_paused":
            seen.append(await anext(following))
        waiting = asyncio.create_task(anext(following))
        await asyncio.wait([waiting], timeout=0.5)  # ten of them
        await served.decide(asked, {"kind": "reject", "reason": "no"})
        await served.house.worker.run_until_idle()
        seen += [await waiting, *[event async for event in following]]
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
