"""`placet worker`: the process that works. Any number of them may run, here and on other machines."""

import sys
from typing import Annotated

import typer

from placet.cli.opening import open_house, run
from placet.cli.output import Json
from placet.settings import settings


def worker(
    concurrency: Annotated[int | None, typer.Option(min=1, max=200, help="Runs at the same time.")] = None,
    as_json: Json = False,
) -> None:
    """Work on what is due, until stopped. Ctrl-C or SIGTERM drains: what runs reaches its boundary first."""
    run(_work(concurrency, as_json=as_json))


async def _work(concurrency: int | None, *, as_json: bool) -> None:
    from placet import logs  # noqa: PLC0415

    logs.configure(json=as_json, to=sys.stdout if as_json else sys.stderr)
    now = settings()
    if concurrency is not None:
        now = now.model_copy(update={"concurrency": concurrency})
    async with open_house(now) as services:
        from placet.worker import Worker  # noqa: PLC0415

        await Worker(services).run()
