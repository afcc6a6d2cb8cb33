"""The same commands against a server, when PLACET_URL says where it is: asking, looking, deciding, steering, effects.

PLACET_API_KEY says who acts, so `--as` can only repeat it. What is shown comes over the wire and looks as it does beside
the database; every check is the server's. Whatever is no request to a server (users, db, worker, serve, shop) stays what
it is.
"""

import asyncio
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import typer
from pydantic import TypeAdapter

from placet.cli import asking, decisions, effects, output, policy, preview, timeline, turns
from placet.cli.opening import LISTED, UNKNOWN, AmbiguousId, digits_of, run
from placet.record import canonical
from placet.record.approvals import Approval, Revision
from placet.record.decisions import Decided
from placet.record.effects import Effect
from placet.record.errors import Conflict, InvalidInput, NotAllowed
from placet.record.events import Event
from placet.record.items import Item
from placet.record.lookup import Kind
from placet.record.runs import Standing
from placet.record.turns import Turn
from placet.settings import settings

if TYPE_CHECKING:
    from placet.client import Client

R = TypeVar("R")
Json = dict[str, Any]
PATHS: dict[Kind, str] = {
    "approval": "/v1/approvals",
    "effect": "/v1/effects",
    "thread": "/v1/turns",
    "turn": "/v1/turns",
}
IDS: dict[Kind, str] = {"approval": "approval_id", "effect": "operation_id", "thread": "thread_id", "turn": "turn_id"}
LOOKED_AT = 1000  # rows among which a short id is looked for


class SomebodyElse(NotAllowed):
    """The key is another person's than --as names."""

    code = "somebody_else"


class NotUndone(Conflict):
    """The undo was refused, or its answer did not come; beside the database it has the same code."""

    code = "undo_refused"


Way = Callable[..., Awaitable[int | None]]


def attach(app: typer.Typer) -> None:
    """Let every command that has a way over the wire take it when PLACET_URL is set."""
    ways: dict[str, Way] = {
        "run": _run,
        "inbox": _inbox,
        "approve": _approve,
        "reject": _reject,
        "events": _events,
        "turn list": _turn_list,
        "turn show": _turn_show,
        "turn cancel": _turn_cancel,
        "turn retry": _turn_retry,
        "turn migrate": _turn_migrate,
        "effects list": _effect_list,
        "effects show": _effect_show,
        "effects resolve": _effect_resolve,
        "effects undo": _effect_undo,
        "policy explain": _policy_explain,
    }
    groups = {"": app, **{f"{group.name} ": group.typer_instance for group in app.registered_groups}}
    for prefix, group in groups.items():
        for command in group.registered_commands if group is not None else ():
            here = command.callback
            assert here is not None
            if way := ways.get(f"{prefix}{command.name or here.__name__}"):
                command.callback = _either(here, way)


def _either(here: Callable[..., Any], there: Way) -> Callable[..., Any]:
    @functools.wraps(here)
    def command(**given: Any) -> Any:
        if settings().url is None:
            return here(**given)
        wanted = inspect.signature(there).parameters
        if code := run(_with_client(there, {name: value for name, value in given.items() if name in wanted}, given)):
            raise typer.Exit(code)
        return None

    return command


async def _with_client(there: Way, wanted: Json, given: Json) -> int | None:
    from placet.client import Refused  # noqa: PLC0415

    try:
        async with _client(given.get("as_user")) as client:
            return await there(client, **{name: value for name, value in wanted.items() if name != "client"})
    except Refused as refused:
        if refused.status != 401:
            raise
        message = f"{refused} The command line sends what PLACET_API_KEY holds."
        raise Refused(refused.status, refused.code, message, refused.details) from None


@asynccontextmanager
async def _client(as_user: str | None) -> AsyncIterator["Client"]:
    from placet.client import Client  # noqa: PLC0415

    now = settings()
    assert now.url is not None
    async with Client(now.url, now.api_key.get_secret_value() if now.api_key else None) as client:
        if as_user is not None and (me := await client.me())["user_id"] != as_user:
            raise SomebodyElse(
                f"PLACET_API_KEY is the key of {me['user_id']}, not of {as_user}; the key says who acts."
            )
        yield client


async def _find(client: "Client", kind: Kind, typed: str) -> UUID:
    """The id that `typed` begins, among what the person sees."""
    digits = digits_of(kind, typed)
    if len(digits) == 32:
        return UUID(digits)
    filters = {"any": "true"} if kind == "approval" else {}
    rows = [row[IDS[kind]] async for row in client.rows(PATHS[kind], LOOKED_AT, filters)]
    found = sorted({row for row in rows if row.replace("-", "").startswith(digits)})
    if not found:
        raise UNKNOWN[kind](
            f"There is no {kind} {typed} among the last {LOOKED_AT} that you see; give the whole id. {LISTED[kind]}."
        )
    if len(found) > 1:
        raise AmbiguousId(f"{len(found)} {kind}s begin with {typed}: {', '.join(found)}. Give more digits.", ids=found)
    return UUID(found[0])


# What comes over the wire, as the rows that the screens are made for


def _approval(row: Json) -> Approval:
    content = {"tool": row["tool"], "schema_version": "", "arguments": row["arguments"], "facts": row["facts"]}
    filled = {
        **row,
        "payload": canonical.canonical(content),
        "payload_hash": bytes.fromhex(row["payload_hash"]),
        "tenant_id": "",
        "key_id": "",
        "digest": b"",
        "steered_by": [],  # the server has looked: `may_decide`
    }
    return _row(Approval, filled)


def _turn(row: Json) -> Turn:
    return _row(Turn, {**row, "tenant_id": ""})


def _item(turn: Turn, row: Json) -> Item:
    arguments = canonical.canonical(row["arguments"]) if row["arguments"] is not None else None
    empty = {"thread_id": turn.thread_id, "turn_id": turn.turn_id, "schema_version": None}
    return _row(Item, {**row, **empty, "arguments": arguments})


def _effect(row: Json) -> Effect:
    empty = {"tenant_id": "", "revision": None, "payload_hash": None, "epoch": 0, "key_id": "", "digest": b"", "age": 0}
    return _row(Effect, {**row, **empty, "arguments": canonical.canonical(row["arguments"])})


def _row(kind: type[R], values: Json) -> R:
    known = {name: value for name, value in values.items() if name in kind.__dataclass_fields__}  # type: ignore[attr-defined]
    return TypeAdapter(kind).validate_python(known)


def _now() -> datetime:
    return datetime.now(UTC)


# The commands


async def _run(client: "Client", message: str, thread: str | None, wait: bool, here: bool, as_json: bool) -> int:
    if here:
        raise InvalidInput(
            "--here works beside a database, and PLACET_URL names a server, whose workers do it. Leave --here away, or unset "
            "PLACET_URL.",
            field="here",
        )
    if message == "-":
        message = sys.stdin.buffer.read().decode(errors="surrogateescape")
    thread_id = await _find(client, "thread", thread) if thread else None
    asked = await client.ask(message, thread_id=thread_id)
    if not as_json:
        output.note(f"Stored as turn {output.short(asked.turn_id)} on thread {output.short(asked.thread_id)}.")
    if wait:
        with output.progress("Working …"):
            await _watch(client, asked.turn_id, quiet=as_json)
    whole = await client.whole(asked.turn_id)
    turn = _turn(whole["turn"])
    pending = [row for row in whole["approvals"] if row["status"] == "pending"]
    if as_json:
        output.show_json({"turn": whole["turn"], "approvals": pending})
    else:
        asking.show_rest(turn, [_approval(row) for row in pending], waited=wait)
    return asking.exit_code(turn)


async def _watch(client: "Client", turn_id: UUID, *, quiet: bool) -> None:
    """Show the turn's events until it rests, or until nobody seems to take it up."""
    coming = client.follow(turn_id, until="rest")
    try:
        async with asyncio.timeout(timeline.NOBODY) as patience:
            async for event in coming:
                patience.reschedule(None)  # somebody works on it
                if not quiet:
                    output.say(timeline.line(_event(event)))
    except TimeoutError:
        return


def _event(event: Any) -> Event:
    return _row(Event, {name: getattr(event, name) for name in Event.__dataclass_fields__})


async def _inbox(client: "Client", limit: int, as_json: bool) -> None:
    waiting = [row async for row in client.rows(PATHS["approval"], limit, {})]
    unknown = [row async for row in client.rows(PATHS["effect"], limit, {"status": "unknown"})]
    if as_json:
        output.show_json({"approvals": waiting, "unknown": unknown})
        return
    shown = [(_approval(row), " (you may)" if row["may_decide"] else " (not you)") for row in waiting]
    decisions.show_inbox(shown, [_effect(row) for row in unknown], _now())


async def _approve(
    client: "Client", approval: str, changes: str | None, yes: bool, shown: str | None, total: str | None, as_json: bool
) -> None:
    changed, shown = decisions.read_changes(changes), decisions.read_hash(shown)
    row = await client.send("GET", f"/v1/approvals/{await _find(client, 'approval', approval)}")
    asked = _approval(row)
    waits = asked.status == "pending"
    if waits and not as_json:
        preview.show(output.console(), asked, _now())
    if changed is None:
        if waits:
            decisions._confirm(asked, asked.content, total, yes=yes, as_json=as_json)
        decision: Json = {"kind": "approve", "payload_hash": shown or row["payload_hash"]}
    else:
        arguments = decisions._merged(asked, changed)
        edit = await client.send("POST", f"/v1/approvals/{asked.approval_id}/preview", {"arguments": arguments})
        content = {"arguments": edit["arguments"], "facts": edit["facts"], "tool": asked.tool, "schema_version": ""}
        if not as_json:
            decisions._show_edit(asked, Revision(canonical.canonical(content), edit["preview"], edit["precondition"]))
        decisions._confirm(asked, content, total, yes=yes, as_json=as_json)
        decision = {
            "kind": "approve_with_changes",
            "payload_hash": shown or edit["payload_hash"],
            "arguments": edit["arguments"],
        }
    await _decide(client, asked, decision, as_json=as_json)


async def _reject(client: "Client", approval: str, reason: str, shown: str | None, as_json: bool) -> None:
    shown = decisions.read_hash(shown)
    row = await client.send("GET", f"/v1/approvals/{await _find(client, 'approval', approval)}")
    decision = {"kind": "reject", "payload_hash": shown or row["payload_hash"], "reason": reason}
    await _decide(client, _approval(row), decision, as_json=as_json)


async def _decide(client: "Client", asked: Approval, decision: Json, *, as_json: bool) -> None:
    said = await client.send("POST", f"/v1/approvals/{asked.approval_id}/decision", decision)
    if as_json:
        output.show_json({"decision": said})
        return
    output.console().print(decisions._stored(_row(Decided, said)))
    output.note(f"What comes of it: placet events {output.short(asked.turn_id)} --follow")


async def _events(client: "Client", turn: str, follow: bool, after: int, as_json: bool) -> None:
    turn_id = await _find(client, "turn", turn)
    async for event in client.follow(turn_id, after=after, until="end" if follow else "now"):
        if as_json:
            output.show_json(event, line=True)
        else:
            output.say(timeline.line(_event(event)))


async def _turn_list(client: "Client", status: str | None, limit: int, as_json: bool) -> None:
    found = [row async for row in client.rows(PATHS["turn"], limit, {"status": status})]
    if as_json:
        output.show_json({"turns": found})
        return
    turns.show_turns([_turn(row) for row in found], _now())


async def _turn_show(client: "Client", turn: str, as_json: bool) -> None:
    whole = await client.whole(await _find(client, "turn", turn))
    if as_json:
        output.show_json(whole)
        return
    turn_, run_ = _turn(whole["turn"]), whole.get("run")
    latest = {row["item_id"]: row for row in sorted(whole["approvals"], key=lambda row: row["ask"])}
    turns.show_whole(
        turn_,
        _row(Standing, run_) if run_ else None,
        [_item(turn_, row) for row in whole["items"]],
        [_approval(row) for row in latest.values()],
        [_effect(row) for row in whole["effects"]],
        _now(),
    )


async def _turn_cancel(client: "Client", turn: str, reason: str | None, as_json: bool) -> None:
    turn_id = await _find(client, "turn", turn)
    said = await client.send("POST", f"/v1/turns/{turn_id}/cancel", {"reason": reason})
    _tell("turn", said, f"Turn {output.short(turn_id)} is cancelled; it never runs again.", as_json=as_json)


async def _turn_retry(client: "Client", turn: str, as_json: bool) -> None:
    turn_id = await _find(client, "turn", turn)
    said = await client.send("POST", f"/v1/turns/{turn_id}/retry")
    _tell("turn", said, f"Turn {output.short(turn_id)} is due again.", as_json=as_json)


async def _turn_migrate(client: "Client", turn: str, as_json: bool) -> None:
    turn_id = await _find(client, "turn", turn)
    said = await client.send("POST", f"/v1/turns/{turn_id}/migrate")
    _tell("turn", said, f"Turn {output.short(turn_id)} is brought to the tools as they are now.", as_json=as_json)


async def _effect_list(client: "Client", status: str | None, turn: str | None, limit: int, as_json: bool) -> None:
    turn_id = await _find(client, "turn", turn) if turn else None
    found = [row async for row in client.rows(PATHS["effect"], limit, {"status": status, "turn_id": turn_id})]
    if as_json:
        output.show_json({"effects": found})
        return
    effects.show_effects([_effect(row) for row in found], _now())


async def _effect_show(client: "Client", effect: str, as_json: bool) -> None:
    row = await client.send("GET", f"/v1/effects/{await _find(client, 'effect', effect)}")
    if as_json:
        output.show_json({"effect": row})
        return
    effects.show_effect(_effect(row), _now())


async def _effect_resolve(
    client: "Client", effect: str, reason: str, committed: str | None, absent: bool, abandoned: bool, as_json: bool
) -> None:
    ending = effects.read_ending(committed, absent=absent, abandoned=abandoned)
    body = {"to": ending, "reason": reason, "external_id": committed}
    operation_id = await _find(client, "effect", effect)
    said = await client.send("POST", f"/v1/effects/{operation_id}/resolution", body)
    then = "; the turn goes on" if said["undoes"] is None else ""
    _tell("effect", said, f"Effect {output.short(operation_id)} is {said['status']}{then}.", as_json=as_json)


async def _effect_undo(client: "Client", effect: str, as_json: bool) -> None:
    operation_id = await _find(client, "effect", effect)
    said = await client.send("POST", f"/v1/effects/{operation_id}/undo")
    told = said["receipt"] or said["error"] or {}
    summary = told.get("summary") or told.get("message") or said["status"]
    if said["status"] != "committed":
        raise NotUndone(
            f"Effect {output.short(operation_id)} was not taken back, the undo is {said['status']}: {summary}",
            operation_id=said["operation_id"],
            status=said["status"],
        )
    _tell("effect", said, f"The undo is committed: {summary}", as_json=as_json)


async def _policy_explain(client: "Client", call: str, arguments: str | None, as_json: bool) -> None:
    tool, given = policy.read_call(call, arguments)
    policy.show_explained(await client.explain(tool, given), as_json=as_json)


def _tell(name: str, said: Json, sentence: str, *, as_json: bool) -> None:
    if as_json:
        output.show_json({name: said})
    else:
        output.say(sentence)
