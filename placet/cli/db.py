"""`placet db`: start, stop and look at the embedded Postgres.

With PLACET_DATABASE_URL set there is nothing here to start or stop; `status` and `url` then speak of that one.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from rich.text import Text

from placet.cli import output
from placet.cli.output import Json
from placet.record import embedded
from placet.record.errors import Conflict
from placet.record.start import Status, status
from placet.settings import Settings, settings

app = typer.Typer(help="The embedded Postgres: start, stop, look.", no_args_is_help=True)
T = TypeVar("T")


@app.command()
def start(as_json: Json = False) -> None:
    """Start it if it is not running; it then runs until `placet db stop`."""
    server = _with_progress("Starting Postgres …", lambda: embedded.start(_embedded().home))
    words = "Started" if server.started else "Was already running"
    _show({"started": server.started, "data": str(server.data)}, f"{words}; its data are in {server.data}", as_json)


@app.command()
def stop(as_json: Json = False) -> None:
    """Stop it. Whoever is connected loses the connection; nothing that was confirmed is lost."""
    home = _embedded().home
    stopped = _with_progress("Stopping Postgres …", lambda: embedded.stop(home))
    _show({"stopped": stopped}, "Stopped" if stopped else f"Was not running (PLACET_HOME is {home})", as_json)


@app.command()
def url(
    owner: Annotated[bool, typer.Option("--owner", help="Of the role that migrates.")] = False, as_json: Json = False
) -> None:
    """Print the address, with its password, of the role that runs; starts the embedded Postgres if need be."""
    now = settings()
    if now.database_url is None:
        server = _with_progress("Starting Postgres …", lambda: embedded.start(now.home))
        address = server.owner_url if owner else server.app_url
    else:
        given = (now.owner_database_url or now.database_url) if owner else now.database_url
        address = given.get_secret_value()
    if as_json:
        output.show_json({"url": address})
    else:
        print(address)


@app.command("status")
def show_status(as_json: Json = False) -> None:
    """Say where it is, whether it answers, its version and size."""
    seen = asyncio.run(status(settings()))
    if as_json:
        output.show_json(seen)
        return
    for name, value in _lines(seen):
        output.say(
            Text(f"{name}: ", style="bold").append_text(output.cell(value, "green" if value == "running" else ""))
        )


def _lines(seen: Status) -> list[tuple[str, str]]:
    kind = "embedded" if seen.kind == "embedded" else "given by PLACET_DATABASE_URL"
    lines = [("database", kind), ("state", "running" if seen.running else "not running")]
    rest = {
        "problem": seen.problem,
        "version": seen.version,
        "data": seen.data or seen.home,
        "server": seen.server,
        "size": None if seen.size is None else f"{seen.size / 1_000_000:,.1f} MB",
        "connections": None if seen.connections is None else str(seen.connections),
    }
    return lines + [(name, value) for name, value in rest.items() if value is not None]


def _embedded() -> Settings:
    now = settings()
    if now.database_url is not None:
        raise Conflict("PLACET_DATABASE_URL is set, so there is no embedded Postgres to start or stop. Unset it first.")
    return now


def _with_progress(words: str, do: Callable[[], T]) -> T:
    with output.progress(words):
        return do()


def _show(result: dict[str, Any], sentence: str, as_json: bool) -> None:
    if as_json:
        output.show_json(result)
    else:
        output.say(f"{sentence}.")
