"""`placet users`: who asks, who decides (A5), and the keys that prove it (L4)."""

from datetime import timedelta
from typing import Annotated, Literal
from uuid import UUID

import typer

from placet.cli import output
from placet.cli.opening import open_record, run
from placet.cli.output import Json
from placet.record import credentials, lookup, people
from placet.record.errors import InvalidInput

app = typer.Typer(help="People: who asks, who decides.", no_args_is_help=True)
ACTOR = "command line"  # in the audit chain: whoever can reach the database
LONGEST = 100 * 365  # days
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The key's id, as `placet users keys` lists it.")]


@app.command()
def add(
    user: Annotated[str, typer.Argument(help="Lower-case letters, digits and . _ @ -; never used twice.")],
    role: Annotated[list[str], typer.Option(help="requester, reviewer, operator or auditor; may be repeated.")],
    duty: Annotated[list[str] | None, typer.Option(help="What a reviewer may decide: support, finance, …")] = None,
    name: Annotated[str | None, typer.Option(help="As people call them.")] = None,
    locale: Annotated[str, typer.Option(help="en or es.")] = "en",
    with_key: Annotated[bool, typer.Option("--key", help="Make an API key too, and show it once.")] = False,
    as_json: Json = False,
) -> None:
    """Add a person."""
    run(_add(user, role, duty or [], name or user, locale, with_key=with_key, as_json=as_json))


async def _add(
    user: str, roles: list[str], duties: list[str], name: str, locale: str, *, with_key: bool, as_json: bool
) -> None:
    async with open_record() as record, record.database.transaction() as tx:
        added = await people.add(tx, record.tenant, user, name=name, roles=roles, duties=duties, locale=locale)
        made = await credentials.issue(tx, record.tenant, user, by=ACTOR) if with_key else None
    if as_json:
        output.show_json({"user": added} | ({"key": made[0], "key_id": made[1].key_id} if made else {}))
        return
    may = f", may decide for {', '.join(added.duties)}" if added.duties else ""
    output.say(f"Added {added.user_id}: {', '.join(added.roles)}{may}.", stderr=made is not None)
    if made is not None:
        _show_once(*made, as_json=False)


@app.command()
def change(
    user: Annotated[str, typer.Argument(help="Whom.")],
    role: Annotated[
        list[str] | None, typer.Option(help="All the roles they have from now on; may be repeated.")
    ] = None,
    duty: Annotated[list[str] | None, typer.Option(help="All their duties; `--duty none` takes them away.")] = None,
    name: Annotated[str | None, typer.Option(help="As people call them.")] = None,
    locale: Annotated[str | None, typer.Option(help="en or es.")] = None,
    as_json: Json = False,
) -> None:
    """Change a person's roles, duties, name or language; it counts at once, also for what waits."""
    if role is None and duty is None and name is None and locale is None:
        raise typer.BadParameter("Say what changes: --role, --duty, --name or --locale.")
    run(_change(user, role, [] if duty == ["none"] else duty, name, locale, as_json=as_json))


async def _change(
    user: str, roles: list[str] | None, duties: list[str] | None, name: str | None, locale: str | None, *, as_json: bool
) -> None:
    async with open_record() as record, record.database.transaction() as tx:
        changed = await people.change(
            tx, record.tenant, user, by=ACTOR, name=name, roles=roles, duties=duties, locale=locale
        )
    if as_json:
        output.show_json({"user": changed})
        return
    may = f", may decide for {', '.join(changed.duties)}" if changed.duties else ""
    output.say(f"{changed.user_id} is now {', '.join(changed.roles)}{may}.")


@app.command()
def remove(user: Annotated[str, typer.Argument(help="Whom.")], as_json: Json = False) -> None:
    """Remove a person: their keys and tokens open nothing any more. What they did stays; the id is never used again."""
    run(_remove(user, as_json=as_json))


async def _remove(user: str, *, as_json: bool) -> None:
    async with open_record() as record, record.database.transaction() as tx:
        removed = await people.remove(tx, record.tenant, user, by=ACTOR)
    if as_json:
        output.show_json({"user": removed})
        return
    output.say(f"{removed.user_id} is removed; what they asked and decided stays.")


@app.command("list")
def show_list(as_json: Json = False) -> None:
    """Who there is."""
    run(_list(as_json=as_json))


async def _list(*, as_json: bool) -> None:
    async with open_record() as record, record.database.read() as tx:
        everybody = await people.everybody(tx, record.tenant)
    if as_json:
        output.show_json({"users": everybody})
        return
    table = output.table("user", "name", "roles", "may decide for", "language")
    for one in everybody:
        table.add_row(
            output.cell(one.user_id, "cyan"),
            output.cell(one.name),
            output.cell(", ".join(one.roles)),
            output.cell(", ".join(one.duties) or "–"),
            output.cell(one.locale),
        )
    output.show_table(table, nothing="Nobody yet. Add somebody: placet users add ana --role requester")


@app.command()
def key(
    user: Annotated[str, typer.Argument(help="Whose.")],
    label: Annotated[str, typer.Option(help="What it is for; shown in the list.")] = "",
    days: Annotated[float | None, typer.Option(help="How long it lives; without it, until it is revoked.")] = None,
    as_json: Json = False,
) -> None:
    """Make an API key. It is shown now and never again; only its hash is stored."""
    run(_key(user, label, days, as_json=as_json))


async def _key(user: str, label: str, days: float | None, *, as_json: bool) -> None:
    lifetime = _time("days", days) if days is not None else None
    async with open_record() as record, record.database.transaction() as tx:
        made = await credentials.issue(tx, record.tenant, user, label=label, lifetime=lifetime, by=ACTOR)
    _show_once(*made, as_json=as_json)


@app.command()
def keys(
    user: Annotated[str | None, typer.Argument(help="Whose; without it, everybody's.")] = None, as_json: Json = False
) -> None:
    """Which keys there are; nobody can see one again."""
    run(_keys(user, as_json=as_json))


async def _keys(user: str | None, *, as_json: bool) -> None:
    async with open_record() as record, record.database.read() as tx:
        if user is not None:
            await people.get(tx, record.tenant, user)
        found = await credentials.of_tenant(tx, record.tenant, user_id=user)
        now = await lookup.now(tx)
    if as_json:
        output.show_json({"keys": found})
        return
    table = output.table("key", "of", "label", "made", "ends", whole=["key"])
    for one in found:
        ended = "revoked" if one.revoked_at else "" if one.live else "expired"
        ends = ended or (output.relative(one.expires_at - now) if one.expires_at else "never")
        table.add_row(
            output.cell(one.key_id, "cyan"),
            output.cell(one.user_id),
            output.cell(one.label or "–"),
            output.relative(one.created_at - now),
            ends,
        )
    output.show_table(table, nothing="No keys yet. Make one: placet users key USER")


@app.command()
def revoke(key_id: KeyId, as_json: Json = False) -> None:
    """End a key; the next request with it is refused."""
    run(_revoke(key_id, as_json=as_json))


async def _revoke(key_id: str, *, as_json: bool) -> None:
    async with open_record() as record, record.database.transaction() as tx:
        revoked = await credentials.revoke(tx, record.tenant, _key_id(key_id), by=ACTOR)
    if as_json:
        output.show_json({"key": revoked})
        return
    output.say(f"The key {revoked.key_id} of {revoked.user_id} has ended.")


@app.command()
def rotate(
    key_id: KeyId,
    hours: Annotated[float, typer.Option(min=0, help="How long the old one still works.")] = 0,
    as_json: Json = False,
) -> None:
    """A new key in place of one: same person, label and lifetime."""
    run(_rotate(key_id, hours, as_json=as_json))


async def _rotate(key_id: str, hours: float, *, as_json: bool) -> None:
    async with open_record() as record, record.database.transaction() as tx:
        made = await credentials.rotate(tx, record.tenant, _key_id(key_id), overlap=_time("hours", hours), by=ACTOR)
    _show_once(*made, as_json=as_json)


@app.command()
def link(
    user: Annotated[str, typer.Argument(help="Who.")],
    subject: Annotated[str, typer.Argument(help="The `sub` of their tokens.")],
    issuer: Annotated[str | None, typer.Option(help="Whose tokens; else PLACET_OIDC_ISSUER.")] = None,
    as_json: Json = False,
) -> None:
    """Say which subject of an OpenID Connect issuer a person is."""
    run(_link(user, subject, issuer, as_json=as_json))


async def _link(user: str, subject: str, issuer: str | None, *, as_json: bool) -> None:
    async with open_record() as record, record.database.transaction() as tx:
        issuer = issuer or record.settings.oidc_issuer
        if issuer is None:
            raise InvalidInput("Say whose tokens: --issuer, or PLACET_OIDC_ISSUER.", field="issuer")
        await credentials.link(tx, record.tenant, user, issuer=issuer, subject=subject, by=ACTOR)
    if as_json:
        output.show_json({"user": user, "issuer": issuer, "subject": subject})
        return
    output.say(f"{subject} of {issuer} is {user} now.")


def _time(unit: Literal["days", "hours"], given: float) -> timedelta:
    """That many days or hours; raises `InvalidInput` for more than anybody means, and for what is no number."""
    days = given if unit == "days" else given / 24
    if not days <= LONGEST:
        raise InvalidInput(
            f"--{unit} {given:g}: expected a number of {unit} that ends within {LONGEST} days.", field=unit
        )
    return timedelta(days=days)


def _key_id(typed: str) -> UUID:
    try:
        return UUID(typed)
    except ValueError:
        raise InvalidInput(f"{typed!r} is no key's id; `placet users keys` lists them, whole.", field="key") from None


def _show_once(text: str, made: credentials.Key, *, as_json: bool) -> None:
    if as_json:
        output.show_json({"key": text, "key_id": made.key_id, "user": made.user_id, "expires_at": made.expires_at})
        return
    print(text)
    output.note(f"This is {made.user_id}'s key {made.key_id}. It is shown once; send it as X-Api-Key.")
