"""The embedded Postgres: used when no address is set, so that one command works on a fresh machine.

Several processes share one server; it outlives them and is stopped by `placet db stop`. Everything that starts or stops
it happens under one file lock. It counts as alive when a connection authenticates and reports our data folder, never by
a process number: a number in a stale file may by now be anybody's, and nothing is signalled by it.

    home/postgres.lock   the lock             home/postgres.json  passwords and the socket's folder, 0600
    home/postgres/       the data root: data/, log/, socket/, perhaps a copy of the binaries

As root, Postgres runs as another account, to which `data/`, `log/` and `socket/` belong. Where that account cannot get
into `home` (it lies under /root, say), `home/postgres` is a link to a folder of ours under /var/lib/placet.
"""

import errno
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg
from filelock import FileLock, Timeout
from psycopg import sql

from placet.record import binaries
from placet.record.binaries import Account, Binaries
from placet.record.problems import DatabaseProblem, DataUnreadable, DiskFull, PostgresFailed, WrongPostgresVersion

OWNER, APP, SUPERUSER = "placet_owner", "placet_app", "postgres"
DATABASE = "placet"
SHELTER = Path("/var/lib/placet")  # root's data root, where the account cannot get into `home`
LONGEST_SOCKET = 100  # bytes; the system's own limit is 103 to 107, without saying so
PATIENCE = 90.0  # seconds for a server to come up: it may be recovering
PORT = 5432  # only names the socket; there is no TCP


@dataclass(frozen=True, slots=True)
class Server:
    """The embedded server's places and passwords; whether it runs is asked by `running`."""

    home: Path
    socket: Path
    passwords: dict[str, str] = field(repr=False)
    started: bool = False  # by the call that returned this

    @property
    def root(self) -> Path:
        """The data root."""
        return (self.home / "postgres").resolve()

    @property
    def data(self) -> Path:
        return self.root / "data"

    def url(self, role: str, database: str = DATABASE) -> str:
        """The address for a role; it carries the password."""
        return (
            f"postgresql://{role}:{self.passwords[role]}@/{quote(database)}"
            f"?host={quote(str(self.socket), safe='')}&port={PORT}"
        )

    @property
    def app_url(self) -> str:
        """For what runs: it can neither change nor delete audit rows."""
        return self.url(APP)

    @property
    def owner_url(self) -> str:
        """For what migrates."""
        return self.url(OWNER)


def running(home: Path) -> Server | None:
    """The server of `home` if it is alive, else None. Starts nothing, waits for nothing."""
    with _explained(home):
        server = _known(_absolute(home))
        return server if server and _answers(server, OWNER, DATABASE) else None


def start(home: Path, *, fsync: bool = True) -> Server:
    """The server of `home`, started if it is not alive, its database and two roles made if they are not there.

    `fsync=False` is for tests: a crash of the machine may then lose everything. Raises a `DatabaseProblem`.
    """
    home = _absolute(home)
    if server := running(home):
        return server
    with _explained(home), _locked(home):
        return running(home) or _start(home, fsync=fsync)


def stop(home: Path) -> bool:
    """Stop the server of `home`; returns whether there was one. Connected clients lose their connections."""
    home = _absolute(home)
    if not (home / "postgres.json").exists():
        return False
    with _explained(home), _locked(home):
        server = _known(home)
        if server is None or not _answers(server, SUPERUSER, "postgres"):
            return False
        # The one who answered wrote this file; should its number not be that of a process in our folder, leave it.
        if not _lives_in(_pid(server), server.data):
            raise PostgresFailed(
                f"{server.data}/postmaster.pid does not name the server that answers; nothing was stopped."
            )
        account = binaries.account_for(server.data)
        tools = binaries.find(server.root, account)
        said = binaries.run(
            [tools.folder / "pg_ctl", "stop", "-m", "fast", "-w", "-t", "60"],
            account=account,
            cwd=server.root,
            data=server.data,
        )
        if said.returncode:
            raise PostgresFailed(f"The embedded Postgres in {server.data} did not stop: {said.stdout.strip()}")
        return True


# Under the lock


def _start(home: Path, *, fsync: bool) -> Server:
    server = _known(home) or _make_secrets(home)
    account = binaries.account_for(home / "postgres" / "data")
    _make_root(home, account)
    tools = binaries.find(server.root, account)
    if not server.data.exists():
        _initdb(server, tools, account, fsync=fsync)
    _check_version(server, tools)
    server = _place_socket(server, account)
    _configure(server, fsync=fsync)
    _boot(server, tools, account)
    _make_roles(server)
    return Server(server.home, server.socket, server.passwords, started=True)


def _make_secrets(home: Path) -> Server:
    if (home / "postgres" / "data").exists():
        raise DataUnreadable(
            f"There are data in {home}/postgres, but their passwords ({home}/postgres.json) are gone. "
            "Restore that file, or use another PLACET_HOME."
        )
    server = Server(home, Path(), {role: secrets.token_urlsafe(24) for role in (SUPERUSER, OWNER, APP)})
    _save(server)
    return server


def _save(server: Server) -> None:
    write_private(
        server.home / "postgres.json",
        json.dumps({"socket": str(server.socket), "passwords": server.passwords}, indent=1).encode(),
    )


def _known(home: Path) -> Server | None:
    try:
        kept = json.loads((home / "postgres.json").read_bytes())
        return Server(home, Path(kept["socket"]), dict(kept["passwords"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DataUnreadable(f"{home}/postgres.json is damaged ({error}); restore it from a backup.") from error


def _make_root(home: Path, account: Account | None) -> None:
    """Make the data root: in `home`, or elsewhere with a link in `home` when the account could not get there."""
    root = home / "postgres"
    if not root.exists():
        if root.is_symlink():
            raise DataUnreadable(f"{root} points to {root.readlink()}, which is not there. Mount or restore it.")
        if binaries.can_enter(home, account):
            _make_folder(root, 0o755 if account else 0o700)
        else:
            SHELTER.mkdir(parents=True, exist_ok=True, mode=0o755)
            elsewhere = SHELTER / secrets.token_hex(6)
            _make_folder(elsewhere, 0o755)
            root.symlink_to(elsewhere)
    if not binaries.can_enter(root.resolve(), account):
        name = account.name if account else ""
        raise DataUnreadable(
            f"Postgres runs as {name!r} here, who cannot enter {root.resolve()}. Use a PLACET_HOME that this account can reach."
        )
    _make_folder(root.resolve() / "log", 0o700, account)


def _make_folder(folder: Path, mode: int, account: Account | None = None) -> None:
    """A folder of ours, with exactly this mode whatever the umask."""
    if not folder.exists():
        folder.mkdir()
        folder.chmod(mode)
        if account:
            os.chown(folder, account.uid, account.gid)


def _initdb(server: Server, tools: Binaries, account: Account | None, *, fsync: bool) -> None:
    """Make the data folder under another name, so that one that was interrupted is never taken for whole."""
    fresh = server.root / "data.new"
    if fresh.exists():
        shutil.rmtree(fresh)
    _make_folder(fresh, 0o700, account)
    password = server.root / "log" / "password"
    write_private(password, server.passwords[SUPERUSER].encode())
    if account:
        os.chown(password, account.uid, account.gid)
    # A locale that needs nothing from the system: Unicode letters from Postgres itself where it can (17), else bytes.
    locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if tools.major >= 17 else []
    try:
        said = binaries.run(
            [
                tools.folder / "initdb",
                "--auth=scram-sha-256",
                f"--username={SUPERUSER}",
                f"--pwfile={password}",
                "--encoding=UTF8",
                "--locale=C",
                *locale,
                "--data-checksums",
                *([] if fsync else ["--no-sync"]),
            ],
            account=account,
            cwd=server.root,
            data=fresh,
        )
    finally:
        password.unlink(missing_ok=True)
    if said.returncode:
        raise _failure(server, "initdb failed", said.stdout)
    with (fresh / "postgresql.conf").open("a") as file:
        file.write("\ninclude_if_exists = 'placet.conf'  # written at each start\n")
    fresh.rename(server.data)


def _check_version(server: Server, tools: Binaries) -> None:
    made_by = (server.data / "PG_VERSION").read_text().strip()
    if made_by != str(tools.major):
        raise WrongPostgresVersion(
            f"The data in {server.data} were made by Postgres {made_by}, and {tools.folder} is {tools.version}. "
            f"Start Postgres {made_by} on them, dump (`pg_dumpall`), and restore into a new PLACET_HOME."
        )


def _place_socket(server: Server, account: Account | None) -> Server:
    """The folder of the socket, private: in the data root, or a short path elsewhere when that one is too long."""
    name = f".s.PGSQL.{PORT}"
    here = server.root / "socket"
    if len(os.fsencode(here / name)) <= LONGEST_SOCKET:
        _make_folder(here, 0o700, account)
    elif server.socket != here and _is_private(server.socket, account):
        here = server.socket  # of an earlier start
    else:
        here = Path(tempfile.mkdtemp(prefix="placet-", dir="/tmp"))
        if account:
            os.chown(here, account.uid, account.gid)
    if here == server.socket:
        return server
    moved = Server(server.home, here, server.passwords)
    _save(moved)
    return moved


def _is_private(folder: Path, account: Account | None) -> bool:
    """Whether it is still the folder that we made: in /tmp somebody else may make another under an old name."""
    try:
        kept = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(kept.st_mode)
        and kept.st_mode & 0o077 == 0
        and kept.st_uid == (account.uid if account else os.geteuid())
    )


def _configure(server: Server, *, fsync: bool) -> None:
    settings = {
        "listen_addresses": "",
        "port": PORT,
        "unix_socket_directories": '"' + str(server.socket).replace('"', '""') + '"',
        "unix_socket_permissions": "0700",
        "max_connections": 200,
        "password_encryption": "scram-sha-256",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "jit": "off",  # our statements are short
    }
    if not fsync:
        settings |= {"fsync": "off", "full_page_writes": "off"}  # a killed process still loses nothing
    lines = [f"{name} = '{str(value).replace(chr(39), chr(39) * 2)}'" for name, value in settings.items()]
    owner = server.data.stat()
    path = server.data / "placet.conf"
    write_private(path, ("\n".join(lines) + "\n").encode())
    if os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid)


class _NotYet(Exception):
    """Something of an earlier server still has to go, or this one still has to come."""


def _boot(server: Server, tools: Binaries, account: Account | None) -> None:
    """Start the postmaster and wait until it answers, as long as `PATIENCE` while something only needs time: a server
    that is recovering or stopping, children of one that was killed."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return _try_to_boot(server, tools, account)
        except _NotYet as error:
            if time.monotonic() > end:
                raise _failure(server, "it did not come up in time", str(error)) from error
            time.sleep(0.1)


def _try_to_boot(server: Server, tools: Binaries, account: Account | None) -> None:
    if _answers(server, SUPERUSER, "postgres"):
        return
    _clear_stale(server)
    log = server.root / "log" / "postgres.log"
    if log.exists() and log.stat().st_size > 10_000_000:
        log.replace(log.with_suffix(".old"))
    before = log.stat().st_size if log.exists() else 0
    said = binaries.run(
        [tools.folder / "pg_ctl", "start", "-s", "-w", "-t", "60", "-l", "log/postgres.log"],
        account=account,
        cwd=server.root,
        data=server.data,
    )
    if _answers(server, SUPERUSER, "postgres"):
        return
    new = log.read_bytes()[before:].decode(errors="replace") if log.exists() else ""
    # "already exists": one that is stopping; "still in use": children of one that was killed
    if said.returncode and not any(sign in new + said.stdout for sign in ("already exists", "still in use", "in time")):
        raise _failure(server, "it did not start", said.stdout + new)
    raise _NotYet(said.stdout + new)


def _clear_stale(server: Server) -> None:
    """Remove the lock files of a server that is gone, where Postgres itself would not: it takes any living process with
    that number for a server. Ours has our data folder as its working folder, and while one of its children lives,
    Postgres finds their shared memory by the folder's inode and refuses to start."""
    pid = _pid(server)
    if _lives_in(pid, server.data):
        raise _NotYet(f"a server in {server.data} is starting or stopping")
    if pid and psutil.pid_exists(pid):
        (server.data / "postmaster.pid").unlink(missing_ok=True)
    socket_lock = server.socket / f".s.PGSQL.{PORT}.lock"
    if socket_lock.exists():
        socket_lock.unlink()


def _pid(server: Server) -> int | None:
    try:
        return int((server.data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None


def _lives_in(pid: int | None, data: Path) -> bool:
    """Whether the process with this number has `data` as its working folder; a zombie has none."""
    if not pid:
        return False
    try:
        folder = psutil.Process(pid).cwd()
        return folder != "" and Path(folder).samefile(data)
    except (psutil.Error, OSError):
        return False


def _make_roles(server: Server) -> None:
    """Make what is not there yet: the owner, who migrates, the application, which runs, and the database."""
    with _connect(server, SUPERUSER, "postgres") as connection:
        for role in (OWNER, APP):
            known = connection.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone()
            verb = sql.SQL("alter role {} login password {}" if known else "create role {} login password {}")
            connection.execute(verb.format(sql.Identifier(role), sql.Literal(server.passwords[role])))
        # The owner may see which data folder it is connected to, which is how a server is known for ours.
        connection.execute(sql.SQL("grant pg_read_all_settings to {}").format(sql.Identifier(OWNER)))
        if not connection.execute("select 1 from pg_database where datname = %s", [DATABASE]).fetchone():
            connection.execute(
                sql.SQL("create database {} owner {}").format(sql.Identifier(DATABASE), sql.Identifier(OWNER))
            )
    with _connect(server, SUPERUSER, DATABASE) as connection:
        connection.execute(sql.SQL("create schema if not exists placet authorization {}").format(sql.Identifier(OWNER)))


# Asking


def _connect(server: Server, role: str, database: str) -> "psycopg.Connection[tuple[Any, ...]]":
    return psycopg.connect(server.url(role, database), autocommit=True, connect_timeout=5)


def _answers(server: Server, role: str, database: str) -> bool:
    """Whether a connection authenticates and reports our data folder."""
    if not server.socket.is_absolute():
        return False
    try:
        with _connect(server, role, database) as connection:
            row = connection.execute("show data_directory").fetchone()
            return row is not None and Path(row[0]).samefile(server.data)
    except (psycopg.Error, FileNotFoundError):
        return False


# Small things


def _absolute(home: Path) -> Path:
    return home.expanduser().resolve()


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads (0600), whole or not at all."""
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One process at a time starts or stops the server, or makes a key."""
    home.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(home / "postgres.lock", timeout=2 * PATIENCE):
            yield
    except Timeout as error:
        raise PostgresFailed(
            f"Another process has been starting or stopping Postgres for long and holds {home}/postgres.lock."
        ) from error


@contextmanager
def _explained(home: Path) -> Iterator[None]:
    """Turn what the system says of the folder into a sentence that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(home) from error
        raise DataUnreadable(
            f"{error.filename or home} cannot be used: {error.strerror or error}. "
            "Run as the user to whom it belongs, or set PLACET_HOME to a folder of yours."
        ) from error


def _full(folder: Path) -> DiskFull:
    return DiskFull(
        f"There is no room left for {folder}. Nothing that was confirmed is lost; make room and start again."
    )


def _failure(server: Server, what: str, words: str) -> DatabaseProblem:
    if "No space left on device" in words:
        return _full(server.root)
    last = "\n".join(words.strip().splitlines()[-8:])
    return PostgresFailed(
        f"The embedded Postgres in {server.root}: {what}. Its last words:\n{last}\nLog: {server.root}/log"
    )
