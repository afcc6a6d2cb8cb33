"""`placet worker`: the process that works. Any number of them may run, here and on other machines."""

import sys
from typing import Annotated

import typer

from placet import logs
from placet.cli.opening import open_house, run
from placet.cli.output import Json
from placet.settings import settings


def worker(
    concurrency: Annotated[int | None, typer.Option(min=1, max=200, help="Runs at the same time.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, max=64, help="So many processes, under this one, which restarts what ends.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Work on what is due, until stopped. Ctrl-C or SIGTERM drains: what runs reaches its boundary first."""
    if processes is None:
        run(_work(concurrency, as_json=as_json))
        return
    _log(as_json=as_json)
    options = [f"--concurrency={concurrency}"] if concurrency is not None else []
    options += ["--json"] if as_json else []
    from placet.supervisor import supervise  # noqa: PLC0415

    run(supervise([sys.executable, "-m", "placet.cli", "worker", *options], processes))


async def _work(concurrency: int | None, *, as_json: bool) -> None:
    _log(as_json=as_json)
    now = settings()
    if concurrency is not None:
        now = now.model_copy(update={"concurrency": concurrency})
    async with open_house(now) as services:
        from placet.worker import Worker  # noqa: PLC0415

        await Worker(services).run()


def _log(*, as_json: bool) -> None:
    logs.configure(json=as_json, to=sys.stdout if as_json else sys.stderr)
