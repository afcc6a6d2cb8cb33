"""`placet demo`: the main job, shown. It ends with the gateway's own count, and with exit code 0 only if that is right."""

import asyncio
import signal
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from placet.cli import opening, output
from placet.cli.output import Json
from placet.settings import Settings, settings


class Taken(StrEnum):
    """A decision that the demo takes by itself."""

    approve = "approve"
    edit = "edit"
    reject = "reject"


def demo(
    decision: Annotated[
        Taken | None, typer.Option(help="Take this decision without asking; approve where there is no terminal.")
    ] = None,
    drift: Annotated[bool, typer.Option("--drift", help="Three more orders fail before the decision.")] = False,
    crash: Annotated[bool, typer.Option("--crash", help="The worker dies between payment and receipt.")] = False,
    seed_only: Annotated[
        bool, typer.Option("--seed-only", help="Only fill the shop, for trying things by hand.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The whole way of a call, shown: asked, paused, killed, decided, continued, paid once. Takes some ten seconds."""
    if seed_only:
        opening.run(_seed_only(as_json=as_json))
        return
    if not opening.run(_demo(decision, drift=drift, crash=crash, as_json=as_json)):
        raise typer.Exit(1)


async def _demo(taken: Taken | None, *, drift: bool, crash: bool, as_json: bool) -> bool:
    from placet.cli.demo import deciding, place  # noqa: PLC0415
    from placet.cli.demo.play import Play  # noqa: PLC0415
    from placet.cli.demo.processes import workers  # noqa: PLC0415
    from placet.cli.demo.stage import Stage  # noqa: PLC0415

    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    if taken is None and (as_json or not opening.is_interactive()):
        taken = Taken.approve
    choose = None if taken is None else partial(deciding.by_itself, taken.value)
    now = place.settings_of_the_demo(settings())
    logs = now.home.expanduser() / "demo-logs" / now.tenant
    async with place.open_place(now) as record, workers(place.environment_of(now), logs) as started:
        play = Play(record, started, Stage(quiet=as_json), choose, drift=drift, crash=crash)
        testimony = await play.perform()
    if as_json:
        output.show_json(
            {
                "ok": not testimony.wrong,
                "tenant": record.tenant,
                "decisions": play.decisions,
                "gateway": testimony.as_json(),
                "processes": [mark.words for mark in started.marks],
            }
        )
    return not testimony.wrong


async def _seed_only(*, as_json: bool) -> None:
    from placet.cli.demo.play import REQUEST, fill  # noqa: PLC0415

    now: Settings = settings()
    async with opening.open_record(now) as record:
        with output.progress("Filling the shop …"):
            filled = await fill(record)
    if as_json:
        output.show_json({"tenant": now.tenant, "added": filled, "users": ["ana", "marta"]})
        return
    console = output.console()
    added = f"{filled.customers:,} customers, {filled.orders:,} orders, {filled.refunds_due} refunds due"
    console.print(
        f"The shop is filled: {added}." if filled.orders else "The shop was filled before; nothing was added."
    )
    console.print(f'Now, for example:\n  placet worker &\n  placet run "{REQUEST}" --as ana\n  placet inbox --as marta')
