"""`placet serve`: the endpoints, with a worker in the same process unless told otherwise."""

import sys
from typing import Annotated

import typer

from placet.cli.opening import run
from placet.cli.output import Json
from placet.settings import settings


def serve(
    workers: Annotated[
        int,
        typer.Option(
            min=0, max=64, help="0: endpoints only. 1: a worker in this process. More: processes of their own."
        ),
    ] = 1,
    host: Annotated[
        str | None, typer.Option(help="Where to listen; elsewhere than here only with keys or OIDC.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0 takes a free one.")] = None,
    as_json: Json = False,
) -> None:
    """Serve the endpoints until stopped. Ctrl-C or SIGTERM drains."""
    from placet import logs  # noqa: PLC0415
    from placet.serving import serve as serve_until_stopped  # noqa: PLC0415

    logs.configure(json=as_json, to=sys.stdout if as_json else sys.stderr)
    given = {"host": host, "port": port}
    now = settings().model_copy(update={name: value for name, value in given.items() if value is not None})
    run(serve_until_stopped(now, workers=workers))
