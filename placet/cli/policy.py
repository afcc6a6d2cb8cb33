"""`placet policy`: is the rules file right, what does it say, and what would it say of one call (P7)."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from placet.cli import output, preview, text
from placet.cli.opening import open_house, run
from placet.cli.output import Indented, Json
from placet.record.errors import InvalidInput
from placet.settings import settings

if TYPE_CHECKING:
    from policies import Policy

app = typer.Typer(help="Which calls must pause: check the rules, read them, try one call.", no_args_is_help=True)
File = Annotated[Path | None, typer.Argument(help="The rules file; else PLACET_RULES, else policies/rules.toml.")]


class NotACall(InvalidInput):
    """What was given does not name a tool with arguments."""

    code = "not_a_call"


@app.command()
def check(file: File = None, as_json: Json = False) -> None:
    """Compile the rules and check them against the tools. Needs no database."""
    policy = _read(file)
    counts = {tool: len(rules.asks) + len(rules.flags) + len(rules.deny) + 1 for tool, rules in policy.rules.items()}
    if as_json:
        output.show_json({"file": policy.source, "version": policy.version, "rules": counts})
        return
    said = f"{sum(counts.values())} rules about {len(counts)} tools in {policy.source}, version {policy.short_version}."
    output.say(Text("Right: ", style="green").append(said, style="default"))


@app.command()
def show(file: File = None, as_json: Json = False) -> None:
    """The rules as sentences, in the order in which they are applied."""
    policy = _read(file)
    if as_json:
        output.show_json({"file": policy.source, "version": policy.version, "tools": policy.sentences()})
        return
    console = output.console()
    for tool, sentences in policy.sentences().items():
        console.print(Text(text.visible(tool), style="bold cyan"))
        for sentence in sentences:
            console.print(Indented(output.cell(sentence), 2))
        console.print()


@app.command()
def explain(
    call: Annotated[str, typer.Argument(metavar="CALL", help='A tool\'s name, or {"tool": …, "arguments": {…}}.')],
    arguments: Annotated[str | None, typer.Argument(metavar="[ARGUMENTS]", help="Its arguments as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """What the rules say of one call now, and why: the facts come from the real system, nothing is executed."""
    tool, given = read_call(call, arguments)
    run(_explain(tool, given, as_json=as_json))


async def _explain(name: str, given: dict[str, Any], *, as_json: bool) -> None:
    async with open_house() as services:
        from graph.asking import assess, validate  # noqa: PLC0415
        from policies.schemas import CannotTell  # noqa: PLC0415

        tool = services.registry[name]
        arguments, raw = validate(tool, given)
        assessed = await assess(services, tool, arguments, raw)
        facts = assessed.facts
        unknown = CannotTell("the facts could not be had")
        explained = await services.policy.explain(name, arguments, facts if facts is not None else unknown)
    shown = {"tool": name, "arguments": given, "facts": assessed.facts_json, **explained.as_json()}
    show_explained(shown, as_json=as_json)


def show_explained(said: dict[str, Any], *, as_json: bool) -> None:
    """What the rules say of a call, as `/v1/policy/explain` says it."""
    if as_json:
        output.show_json(said)
        return
    verdict, name = said["verdict"], said["tool"]
    style = {"auto": "bold green", "ask": "bold yellow", "deny": "bold red"}[verdict["kind"]]
    words = {"auto": "runs by itself", "ask": f"asks {verdict['duty']}", "deny": "is denied"}[verdict["kind"]]
    why = text.visible(f": {verdict['reason']} ({verdict['rule']})")
    output.say(Text(f"{text.visible(name)} {words}", style=style).append(why, "not bold default"))
    if verdict["policy_error"]:
        output.say(f"Policy error: {verdict['policy_error']}", "red")
    known = preview.facts(said["facts"])
    output.say(Text("The facts: ", style="bold").append(text.visible(known) or "none", style="not bold"))
    table = output.table("rule", "part", "said", "condition", "saw")
    for look in said["looks"]:
        saw = ", ".join(f"{key} = {json.dumps(value)}" for key, value in look["looked_at"].items())
        table.add_row(
            output.cell(look["rule"], "cyan"),
            look["part"],
            Text(look["outcome"], style={"true": "green", "false": "dim", "error": "red"}[look["outcome"]]),
            output.cell(" ".join(look["condition"].split())),
            output.cell(look["problem"] or (saw if len(saw) <= 200 else saw[:200] + "…"), "dim"),
        )
    output.show_table(table)


def _read(file: Path | None) -> "Policy":
    from placet.record.database import Database  # noqa: PLC0415
    from placet.rules import read_policy  # noqa: PLC0415
    from placet.toolbox import registry_of  # noqa: PLC0415

    now = settings()
    if file is not None:
        now = now.model_copy(update={"rules": file})

    async def with_tools() -> "Policy":  # a pool wants a running loop; it is never opened
        return read_policy(now, registry_of(now, Database("")))

    return run(with_tools())


def read_call(call: str, arguments: str | None) -> tuple[str, dict[str, Any]]:
    """`refund_payments '{…}'`, or one object with `tool` and `arguments`."""
    try:
        if arguments is not None or not call.lstrip().startswith("{"):
            tool, given = call, json.loads(arguments or "{}")
        else:
            whole = json.loads(call)
            tool, given = whole["tool"], whole.get("arguments", {})
    except (ValueError, KeyError) as error:
        raise NotACall(
            f"The call cannot be read ({type(error).__name__}: {error}). It looks like: refund_payments "
            '\'{"refund_due_ids": ["R-105009"]}\''
        ) from None
    if not isinstance(tool, str) or not isinstance(given, dict):
        raise NotACall("A call is a tool's name and an object of arguments.")
    return tool, given
