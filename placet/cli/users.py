"""`placet users`: who asks and who decides (A5)."""

from typing import Annotated

import typer

from placet.cli import output
from placet.cli.opening import open_record, run
from placet.cli.output import Json
from placet.record import people

app = typer.Typer(help="People: who asks, who decides.", no_args_is_help=True)


@app.command()
def add(
    user: Annotated[str, typer.Argument(help="Lower-case letters, digits and . _ @ -; never used twice.")],
    role: Annotated[list[str], typer.Option(help="requester, reviewer, operator or auditor; may be repeated.")],
    duty: Annotated[list[str] | None, typer.Option(help="What a reviewer may decide: support, finance, …")] = None,
    name: Annotated[str | None, typer.Option(help="As people call them.")] = None,
    locale: Annotated[str, typer.Option(help="en or es.")] = "en",
    as_json: Json = False,
) -> None:
    """Add a person."""
    run(_add(user, role, duty or [], name or user, locale, as_json=as_json))


async def _add(user: str, roles: list[str], duties: list[str], name: str, locale: str, *, as_json: bool) -> None:
    async with open_record() as record, record.database.transaction() as tx:
        added = await people.add(tx, record.tenant, user, name=name, roles=roles, duties=duties, locale=locale)
    if as_json:
        output.show_json({"user": added})
        return
    may = f", may decide for {', '.join(added.duties)}" if added.duties else ""
    output.say(f"Added {added.user_id}: {', '.join(added.roles)}{may}.")


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
