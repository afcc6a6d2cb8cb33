"""The server process: settings → database → endpoints, and a worker beside them.

Without configuration it listens on this machine only, and says what is open. Elsewhere it listens when people can prove
who they are: somebody has a key, or tokens of an issuer are accepted (L4). SIGTERM drains: nothing new is accepted,
streams end and their clients come back elsewhere, what runs reaches its boundary (O4).
"""

import asyncio
import ipaddress
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from placet.api.app import create_app
from placet.house import open_house
from placet.record import credentials
from placet.record.database import Database
from placet.record.errors import PlacetError
from placet.record.start import say
from placet.settings import Settings
from placet.supervisor import supervise
from placet.worker import Worker

PATIENCE = 10  # seconds for requests that are under way when the server stops
WORKER = [sys.executable, "-m", "placet.cli", "worker"]


class NotSafeToListen(PlacetError):
    """Other machines would reach a server to which nobody can prove who they are."""

    code = "not_safe_to_listen"
    status = 422


class CannotListen(PlacetError):
    """The address or port cannot be had."""

    code = "cannot_listen"
    status = 422


class _Server(uvicorn.Server):
    """Uvicorn, with the process's signals left to us: a worker and the database stop with it."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings, *, workers: int = 1) -> None:
    """Serve until SIGTERM or SIGINT.

    `workers` is 0 for the endpoints alone, 1 for a worker in this process, more for that many processes of their own.
    Raises `NotSafeToListen`, `CannotListen`, or what opening the house raises.
    """
    async with open_house(settings) as services:
        has_keys = await _check_may_listen(settings, services.database)
        app = create_app(settings, services)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=PATIENCE,
        )
        stopping = asyncio.Event()
        worker = Worker(services) if workers == 1 else None

        with _listen(settings.host, settings.port) as listener:
            port = listener.getsockname()[1]
            server = _Server(config, lambda: _announce(settings, port, workers, has_keys=has_keys))

            def stop() -> None:
                app.state.timelines.stop()
                server.handle_exit(signal.SIGTERM, None)
                stopping.set()
                if worker is not None:
                    worker.stop()

            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop)
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve(sockets=[listener])).add_done_callback(lambda _: stop())
                if worker is not None:
                    group.create_task(worker.run(signals=False))
                elif workers > 1:
                    group.create_task(supervise(WORKER, workers, stopping))


async def _check_may_listen(settings: Settings, database: Database) -> bool:
    """Whether anybody has a key; raises `NotSafeToListen`."""
    async with database.read() as tx:
        has_keys = await credentials.anybody_has_a_key(tx, settings.tenant)
    if is_loopback(settings.host):
        return has_keys
    if settings.dev_user is not None:
        raise NotSafeToListen(
            f"With PLACET_DEV_USER whoever reaches {settings.host} would act as {settings.dev_user}; unset it, or listen "
            "on 127.0.0.1."
        )
    if not has_keys and settings.oidc_issuer is None:
        raise NotSafeToListen(
            f"Nobody has a key and no issuer of tokens is set, so nothing at {settings.host} could be used, and listening "
            "there is refused. Make a key (placet users key USER), or set PLACET_OIDC_ISSUER and PLACET_OIDC_AUDIENCE."
        )
    return has_keys


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host.strip("[]"), port), family=family, backlog=2048)
    except OSError as error:
        raise CannotListen(
            f"Cannot listen on {host}:{port} ({error.strerror or error}). Is another server there? Give another --port."
        ) from None


def _announce(settings: Settings, port: int, workers: int, *, has_keys: bool) -> None:
    """Say where it listens, what works beside it, and what is open."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    beside = {0: "no worker in this process", 1: "one worker in this process"}
    say(f"Listening on http://{host}:{port}, {beside.get(workers, f'{workers} worker processes')}.")
    if settings.dev_user is not None:
        say(
            f"Open: a request without a key acts as {settings.dev_user} (PLACET_DEV_USER). Anybody on this machine can send "
            "one; this is for development."
        )
    else:
        say(
            "Open without a key: /ok, /info and /openapi.json, which know nothing about anybody. All else needs a key or token."
        )
    if not has_keys and settings.oidc_issuer is None:
        say("Nobody has a key yet. Make one: placet users key USER")
