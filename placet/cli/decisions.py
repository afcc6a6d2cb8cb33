"""`placet inbox`, `placet approve`, `placet reject`: what waits for people, and deciding it.

A decision carries the hash of what was shown (A2, I5): what is pending by then may be something else, and is then left
alone. Nothing approves by accident: Enter is no, and where the rule wants it the total has to be typed (I4). After a
decision the command looks for what comes of it; it executes nothing itself.
"""

import json
import re
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from placet.cli import aftermath, output, preview, rows, text
from placet.cli.effects import how_to_settle
from placet.cli.opening import As, NobodyToConfirm, Record, ask_person, is_interactive, open_house, open_record, run
from placet.cli.output import Json
from placet.record import approvals, canonical, decisions, effects, lookup
from placet.record.approvals import Approval, Revision
from placet.record.decisions import Decided, Decision, InvalidDecision
from placet.record.digests import Keys
from placet.record.effects import Effect
from placet.record.errors import Conflict, NotAllowed
from placet.record.people import User
from placet.record.start import load_digest_key

CHANNEL = "cli"
Id = Annotated[str, typer.Argument(metavar="ID", help="The approval, or the first eight digits of it.")]
Hash = Annotated[
    str | None, typer.Option("--hash", metavar="SHA256", help="Decide only if this is what is pending (for scripts).")
]


class NotConfirmed(Conflict):
    """The person did not confirm; nothing was decided."""

    code = "not_confirmed"


def inbox(
    as_user: As = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many of each kind, at most.")] = 100,
    as_json: Json = False,
) -> None:
    """What waits for people, what expires first at the top."""
    run(_inbox(as_user, limit, as_json=as_json))


async def _inbox(user: str | None, limit: int, *, as_json: bool) -> None:
    async with open_record() as record:
        who = await record.user(user) if user or record.settings.user else None
        async with record.database.read() as tx:
            waiting = await approvals.waiting(tx, record.tenant, limit=limit)
            unknown = await effects.recent(tx, record.tenant, status="unknown", limit=limit)
            now = await lookup.now(tx)
    if as_json:
        output.show_json(
            {"approvals": [rows.approval(one) for one in waiting], "unknown": [rows.effect(one) for one in unknown]}
        )
        return
    show_inbox([(asked, _may(who, asked)) for asked in waiting], unknown, now)


def show_inbox(waiting: list[tuple[Approval, str]], unknown: list[Effect], now: datetime) -> None:
    """What waits for people, each approval with what is to be said of the person who looks."""
    for one in unknown:
        short = output.short(one.operation_id)
        ago = output.relative(one.dispatched_at - now)
        said = f"! {one.tool} was sent {ago} and nobody knows what became of it; see: placet effects show {short}"
        output.say(said, "magenta")
        output.say(f"  {how_to_settle(one)}", "magenta")
    table = output.table(
        "approval", "what", "risk", "asked by", "age", "expires", "who decides", whole=["approval", "risk"]
    )
    for asked, may in waiting:
        table.add_row(
            Text(output.short(asked.approval_id), style="cyan"),
            output.cell(asked.preview["title"], "bold"),
            Text("reversible") if asked.preview.get("reversible") else Text("! irreversible", style="red"),
            output.cell(asked.requester),
            output.duration((now - asked.asked_at).total_seconds()),
            output.relative(asked.expires_at - now),
            output.cell(f"{asked.duty}{may}"),
        )
    if waiting:
        output.show_table(table)
        first = output.short(waiting[0][0].approval_id)
        output.note(f"Look at one and decide: placet approve {first}, or placet reject … --reason")
    elif not unknown:
        output.say("Nothing waits for anybody.")


def _may(who: User | None, asked: Approval) -> str:
    if who is None:
        return ""
    try:
        decisions.check_may_decide(who, asked)
    except NotAllowed:
        return " (your own request)" if who.user_id == asked.requester else " (not you)"
    return " (you may)"


def approve(
    approval: Id,
    changes: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Approve with these arguments changed; the others stay, null removes one. @FILE reads it.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    shown: Hash = None,
    total: Annotated[str | None, typer.Option(help="The total, where the rule wants it typed.")] = None,
    as_user: As = None,
    as_json: Json = False,
) -> None:
    """Look at what waits, and approve exactly that."""
    run(_approve(approval, changes, shown, total, as_user, yes=yes, as_json=as_json))


async def _approve(
    typed: str, changes: str | None, shown: str | None, total: str | None, user: str | None, *, yes: bool, as_json: bool
) -> None:
    changed, shown = read_changes(changes), read_hash(shown)
    async with open_record() as record:
        who = await record.user(user)
        asked, now = await _asked(record, typed)
        decisions.check_may_decide(who, asked)
        if asked.status != "pending":  # the same again is answered with what is stored, anything else with a conflict
            await _tell(record, asked, await decide(record, asked, _late(asked, changed, shown), who), as_json=as_json)
            return
        if not as_json:
            preview.show(output.console(), asked, now)
        if changed is None:
            decision = Decision(kind="approve", payload_hash=shown or asked.payload_hash.hex())
            _confirm(asked, asked.content, total, yes=yes, as_json=as_json)
            await _tell(record, asked, await decide(record, asked, decision, who), as_json=as_json)
            return
        await _approve_with_changes(record, asked, changed, shown, total, who, yes=yes, as_json=as_json)


async def _approve_with_changes(
    record: Record,
    asked: Approval,
    changes: dict[str, Any],
    shown: str | None,
    total: str | None,
    who: User,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """An edit is previewed like a first ask, with the difference, before it counts (A8, I3)."""
    arguments = _merged(asked, changes)
    async with open_house(record.settings) as services:
        from graph import deciding  # noqa: PLC0415

        revision = await deciding.prepare_edit(services, asked, arguments)
        if not as_json:
            _show_edit(asked, revision)
        content = json.loads(revision.payload)
        _confirm(asked, content, total, yes=yes, as_json=as_json)
        decision = Decision(
            kind="approve_with_changes",
            payload_hash=shown or revision.payload_hash.hex(),
            arguments=content["arguments"],
        )
        decided = await deciding.decide(services, asked.approval_id, decision, who, channel=CHANNEL)
    await _tell(record, asked, decided, as_json=as_json)


def _show_edit(asked: Approval, revision: Revision) -> None:
    console = output.console()
    console.print(Text("With your changes", style="bold underline"))
    console.print()
    console.print(preview.what(revision.preview))
    console.print()
    console.print(preview.edited(asked, revision))
    console.print(preview.sample(revision.preview))
    console.print(preview.runs(asked.tool, json.loads(revision.payload)["arguments"]))


def reject(
    approval: Id,
    reason: Annotated[str, typer.Option(help="Why not; the agent is told this.")],
    shown: Hash = None,
    as_user: As = None,
    as_json: Json = False,
) -> None:
    """Reject what waits; the agent is told why and does not try again."""
    run(_reject(approval, reason, shown, as_user, as_json=as_json))


async def _reject(typed: str, reason: str, shown: str | None, user: str | None, *, as_json: bool) -> None:
    shown = read_hash(shown)
    async with open_record() as record:
        who = await record.user(user)
        asked, _ = await _asked(record, typed)
        decision = decisions.read_decision(
            {"kind": "reject", "payload_hash": shown or asked.payload_hash.hex(), "reason": reason}
        )
        if not as_json:
            output.console().print(Text("Rejecting: ").append(text.visible(asked.preview["title"]), "bold"))
        await _tell(record, asked, await decide(record, asked, decision, who), as_json=as_json)


async def _asked(record: Record, typed: str) -> tuple[Approval, Any]:
    async with record.database.read() as tx:
        asked = await approvals.get(tx, record.tenant, await record.find(tx, "approval", typed))
        return asked, await lookup.now(tx)


def _late(asked: Approval, changes: dict[str, Any] | None, shown: str | None) -> Decision:
    """This command's decision, about an approval that is not pending any more."""
    if changes is None:
        return Decision(kind="approve", payload_hash=shown or asked.payload_hash.hex())
    arguments = _merged(asked, changes)
    is_what_ran = arguments == _merged(asked, {})
    payload_hash = asked.payload_hash if is_what_ran else canonical.sha256(canonical.canonical(arguments))
    return Decision(kind="approve_with_changes", payload_hash=shown or payload_hash.hex(), arguments=arguments)


def _merged(asked: Approval, changes: dict[str, Any]) -> dict[str, Any]:
    """The arguments as they stand, with the changes; null removes one."""
    merged = {**asked.content["arguments"], **changes}
    return {name: value for name, value in merged.items() if value is not None}


async def decide(record: Record, asked: Approval, decision: Decision, who: User, *, channel: str = CHANNEL) -> Decided:
    """Record the decision; the door that every decision without an edit goes through here."""
    keys = Keys(*load_digest_key(record.settings))
    async with record.database.transaction() as tx:
        return await decisions.decide(tx, keys, asked.approval_id, decision, who, channel=channel)


async def _tell(record: Record, asked: Approval, decided: Decided, *, as_json: bool) -> None:
    """What is stored now, and what comes of it."""
    if not as_json:
        output.console().print(_stored(decided))
    with output.progress("Waiting for a worker …"):
        after = await aftermath.watch(record, asked, decided)
    if as_json:
        output.show_json({"decision": {**decided.public(), "first": decided.first}, "next": after.as_json()})
    else:
        aftermath.show(after)


def _stored(decided: Decided) -> Text:
    word = {"approve_with_changes": "approved with changes", "approve": "approved", "reject": "rejected"}
    said = word.get(decided.decision or "", decided.status)
    style = "bold red" if said == "rejected" else "bold green"
    if decided.status == "pending":
        return Text("Your approval is stored; the rule wants more people.", style=style)
    when = f" at {decided.decided_at:%Y-%m-%d %H:%M:%S} UTC" if decided.decided_at else ""
    by = f" by {text.visible(decided.decided_by)}" if decided.decided_by else ""
    return Text(
        f"{said.capitalize()}{by}{when}{'' if decided.first else ', by this same decision, before'}.", style=style
    )


def _confirm(asked: Approval, content: dict[str, Any], total: str | None, *, yes: bool, as_json: bool) -> None:
    """Ask the person for as much as the rule wants; raises `NotConfirmed`, or `NobodyToConfirm` without a terminal."""
    amount = preview.total(content) if asked.confirm == "type-total" else None
    if amount is not None and total is not None:
        if not _is_amount(total, amount):
            raise NotConfirmed(f"The total is {amount}, not {total}; nothing was decided.", total=amount)
        if yes:
            return
    elif yes and amount is None:
        return
    if as_json or not is_interactive():
        want = f"--yes --total {amount!r}" if amount is not None else "--yes"
        raise NobodyToConfirm(f"Nobody is here to confirm; add {want} if it has been looked at. Nothing was decided.")
    if amount is not None:
        if not _is_amount(ask_person(f"To approve, type the total ({amount}):"), amount):
            raise NotConfirmed(f"That is not the total ({amount}); nothing was decided.", total=amount)
    elif ask_person("Approve exactly this? Type yes:").lower() not in ("y", "yes"):
        raise NotConfirmed("Not confirmed; nothing was decided. It waits as before.")


def _is_amount(typed: str, amount: str) -> bool:
    """`4,120.00 EUR`, `4120.00` and `4120 eur` are the same amount; `412000` is not."""
    try:
        return Decimal(_digits(typed)) == Decimal(_digits(amount))
    except InvalidOperation:
        return False


def _digits(amount: str) -> str:
    return re.sub(r"[^0-9.-]", "", amount)


def read_hash(given: str | None) -> str | None:
    """What --hash says; raises `InvalidDecision` for what cannot be the hash of anything."""
    if given is not None and not re.fullmatch("[0-9a-f]{64}", given):
        raise InvalidDecision(
            f"--hash takes the SHA-256 that `placet approve` shows, 64 digits of 0-9 and a-f; got {given!r}. Nothing was "
            "decided.",
            field="payload_hash",
        )
    return given


def read_changes(given: str | None) -> dict[str, Any] | None:
    """The arguments to change, as --changes gives them; raises `InvalidDecision`."""
    if given is None:
        return None
    source = Path(given[1:]).read_text(encoding="utf-8") if given.startswith("@") else given
    try:
        changes = json.loads(source)
    except ValueError as error:
        raise InvalidDecision(
            f'--changes is not JSON ({error}). It looks like {{"refund_due_ids": ["R-105009"]}}. Nothing was decided.'
        ) from None
    if not isinstance(changes, dict) or not changes:
        came = "an empty one" if changes == {} else source[:80]
        raise InvalidDecision(f"--changes is an object with the arguments to change, got {came}. Nothing was decided.")
    return changes
