"""The command line: one way in for people and scripts. A different process, on another machine, may run each command.

    placet demo                         the whole way of a call, shown
    placet worker                       works
    placet run MESSAGE --as ana         asks
    placet inbox; placet approve ID     decides

Every command has `--json`; nothing but the answer goes to stdout. A failure is one sentence that says what to do, or
`{"error": {code, message, …}}`; never a traceback.
"""

import asyncio
import logging
import sys
from typing import Annotated

import typer

from placet import logs
from placet.cli import (
    asking,
    db,
    decisions,
    effects,
    failures,
    output,
    policy,
    remote,
    selftest,
    serve,
    shop,
    turns,
    users,
    worker,
)
from placet.cli.demo import demo

app = typer.Typer(
    name="placet",
    help="Agents whose consequential calls wait for assent, execute exactly once, and prove it.",
    epilog=failures.EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(worker.worker)
app.command()(serve.serve)
app.command("run")(asking.ask)
app.command()(decisions.inbox)
app.command()(decisions.approve)
app.command()(decisions.reject)
app.add_typer(turns.app, name="turn")
app.command("events")(turns.show_events)
app.add_typer(effects.app, name="effects")
app.add_typer(policy.app, name="policy")
app.add_typer(users.app, name="users")
app.add_typer(shop.app, name="shop")
app.add_typer(db.app, name="db")
app.command()(selftest.selftest)
remote.attach(app)  # with PLACET_URL, what is a request goes to that server


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415

        print(version("placet"))
        raise typer.Exit


@app.callback()
def house(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Agents whose consequential calls wait for assent, execute exactly once, and prove it."""


def main() -> None:
    """The entry point `placet`."""
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """Run one command line; returns its exit code (see `failures.EXIT_CODES`)."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter is no reason to fail
    logs.configure(level=logging.ERROR)  # a command says itself what happens; `placet worker` logs
    as_json = failures.wants_json(arguments)
    try:
        code = app(args=arguments, prog_name="placet", standalone_mode=False)
    except typer.TyperException as error:
        return _usage(error, as_json=as_json)
    except (typer.Abort, KeyboardInterrupt, asyncio.CancelledError):
        return failures.STOPPED
    except Exception as error:  # noqa: BLE001  # the last place where an error can become a sentence
        return failures.show(error, as_json=as_json)
    return code if isinstance(code, int) else 0


def _usage(error: typer.TyperException, *, as_json: bool) -> int:
    """What was typed cannot be read as a command."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        return failures.MISTYPED
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "placet"
    said = error.format_message().replace("Value error, ", "")
    message = f"{said}{'' if said.endswith(('.', '?')) else '.'} See: {path} --help"
    if as_json:
        output.show_json({"error": {"code": "usage", "message": message}})
    else:
        output.say(f"Error: {message}", stderr=True)
    return failures.MISTYPED
