"""`placet selftest`: the promises, proved on your own database, in a tenant of their own."""

import logging
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from placet.cli import output
from placet.cli.opening import open_record, run
from placet.cli.output import Json

if TYPE_CHECKING:
    from placet.selftest import Outcome


def selftest(as_json: Json = False) -> None:
    """Prove on your own database that nothing happens twice, nothing unapproved and nothing unseen; takes under a minute.

    It works in a tenant of its own and touches no other. Exit code 1 when a promise is not kept.
    """
    tenant, outcomes = run(_selftest())
    kept = all(outcome.kept for outcome in outcomes)
    if as_json:
        output.show_json({"kept": kept, "tenant": tenant, "promises": outcomes})
    else:
        _show(tenant, outcomes)
    if not kept:
        raise typer.Exit(1)


async def _selftest() -> tuple[str, "list[Outcome]"]:
    from placet import logs  # noqa: PLC0415
    from placet.record.digests import Keys  # noqa: PLC0415
    from placet.record.start import load_digest_key  # noqa: PLC0415
    from placet.selftest import selftest  # noqa: PLC0415

    logs.configure(level=logging.CRITICAL)  # what is provoked here is told in the table
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    async with open_record() as record:
        with output.progress("Trying every promise …"):
            return await selftest(record.database, record.settings, Keys(*load_digest_key(record.settings)))


def _show(tenant: str, outcomes: "list[Outcome]") -> None:
    table = output.table("promise", "kept", "what was seen", "took", right=["took"])
    for outcome in outcomes:
        kept = Text("yes", "green") if outcome.kept else Text("NO", "bold red")
        table.add_row(output.cell(outcome.promise), kept, output.cell(outcome.seen), f"{outcome.seconds:.1f} s")
    output.show_table(table)
    broken = sum(not outcome.kept for outcome in outcomes)
    said = (
        f"{broken} of {len(outcomes)} promises are not kept." if broken else f"All {len(outcomes)} promises are kept."
    )
    output.say(said, "bold red" if broken else "green")
    output.note(f"It happened in the tenant {tenant}, and nowhere else; what is left of it there has ended.")
