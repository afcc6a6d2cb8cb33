"""Counts the round trips between a program and Postgres, from outside: a proxy on a socket of its own that counts the
server's ReadyForQuery messages, one per round trip, also in a pipeline."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

READY = b"Z"


@dataclass
class Counted:
    """The proxy's address, and how many round trips were made through it."""

    url: str
    trips: int = 0


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[Counted]:
    """A proxy in front of the server of `url`, which is reached through a Unix socket."""
    parts = conninfo_to_dict(url)
    name = f".s.PGSQL.{parts.get('port') or 5432}"
    server_socket = Path(str(parts["host"])) / name
    folder = Path(tempfile.mkdtemp(prefix="rt-"))  # short: a socket's path has at most 107 bytes
    count = Counted(make_conninfo(url, host=str(folder)))

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(str(server_socket))
        await asyncio.gather(_copy(reader, server_writer), _count(server_reader, writer, count))

    server = await asyncio.start_unix_server(connection, path=folder / name)
    try:
        yield count
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Counted) -> None:
    """Message by message: a byte that names its kind, four that say how long it is."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(int.from_bytes(head[1:]) - 4)
            count.trips += head[:1] == READY
            writer.write(head + body)
            await writer.drain()
    writer.close()
