"""Opening the database: which one, what is said, and what happens while it is down."""

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr

from placet.record import embedded
from placet.record.embedded import APP, OWNER
from placet.record.problems import DatabaseRefused, DatabaseUnreachable, DataUnreadable, MigrationFailed
from placet.record.start import load_digest_key, open_database, status
from placet.settings import Settings


@pytest.fixture
def home() -> Iterator[Path]:
    """A home that every account can enter; its server is stopped and it is removed."""
    folder = Path(tempfile.mkdtemp(prefix="placet-start-"))
    folder.chmod(0o755)
    yield folder / "home"
    embedded.stop(folder / "home")
    shutil.rmtree(folder, ignore_errors=True)


async def who(settings: Settings, **options: float) -> str:
    async with open_database(settings, migrations=[], **options) as database, database.read() as tx:
        assert await tx.fetch_value("select count(*) from placet.threads") == 0
        return str(await tx.fetch_value("select current_user"))


async def test_start_uses_the_address_that_is_given(
    home: Path, database_url: str, owner_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """PLACET_DATABASE_URL comes first: nothing is started, nothing is said, and the application's role runs."""
    settings = Settings(home=home, database_url=SecretStr(database_url), owner_database_url=SecretStr(owner_url))
    assert await who(settings) == APP
    assert (await status(settings.model_copy(update={"database_url": None}))).running is False
    assert capsys.readouterr() == ("", "")


async def test_start_says_what_is_weaker_with_one_address(
    home: Path, owner_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one role for all, audit rows are only protected by their chain; stderr says so, stdout stays clean."""
    assert await who(Settings(home=home, database_url=SecretStr(owner_url))) == OWNER
    said = capsys.readouterr()
    assert "could change or delete audit rows" in said.err
    assert said.out == ""


async def test_start_says_which_address_is_missing(
    home: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The application's role alone may not migrate: the error names the setting that is missing, and nothing untrue is said
    about who owns the tables."""
    with pytest.raises(MigrationFailed, match="PLACET_OWNER_DATABASE_URL"):
        await who(Settings(home=home, database_url=SecretStr(database_url)))
    assert capsys.readouterr() == ("", "")


async def test_start_says_where_the_embedded_data_are_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an address the embedded Postgres is started; the first start says where its data are, the next nothing."""
    settings = Settings(home=home)
    assert await who(settings) == APP
    said = capsys.readouterr()
    assert f"{home}/postgres/data" in said.err
    assert "PLACET_DATABASE_URL" in said.err
    assert await who(settings) == APP
    assert capsys.readouterr() == ("", "")
    seen = await status(settings)
    assert (seen.kind, seen.running, seen.data) == ("embedded", True, f"{home}/postgres/data")


async def test_start_waits_for_a_database_that_is_down(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so at once, tries again, and goes on as soon as the database is there."""
    server = embedded.start(home, fsync=False)
    embedded.stop(home)
    settings = Settings(
        home=home, database_url=SecretStr(server.app_url), owner_database_url=SecretStr(server.owner_url)
    )
    waiting = asyncio.create_task(who(settings))
    said = ""
    while "does not answer" not in said:
        await asyncio.sleep(0)
        said += capsys.readouterr().err
    await asyncio.to_thread(embedded.start, home, fsync=False)
    assert await waiting == APP


async def test_start_gives_up_with_a_code(home: Path) -> None:
    """Down for longer than we wait: `database_unreachable`, with what to do, and no password in the words."""
    settings = Settings(home=home, database_url=SecretStr("postgresql://placet:geheim@127.0.0.1:1/placet"))
    with pytest.raises(DatabaseUnreachable, match="Nothing is lost") as caught:
        await who(settings, wait=0.3)
    assert caught.value.code == "database_unreachable"
    assert "geheim" not in str(caught.value)
    assert (await status(settings)).running is False


@pytest.mark.parametrize("damage", ["password", "database", "address"])
async def test_start_does_not_wait_for_what_will_not_change(home: Path, database_url: str, damage: str) -> None:
    """A wrong password, database or address is `database_refused` at once, not after a minute."""
    wrong = {
        "password": database_url.replace(f"{APP}:", f"{APP}:wrong"),
        "database": database_url.replace("@/test_", "@/nope_"),
        "address": "localhost 5432",
    }[damage]
    with pytest.raises(DatabaseRefused, match="PLACET_DATABASE_URL") as caught:
        await asyncio.wait_for(who(Settings(home=home, database_url=SecretStr(wrong))), timeout=20)
    assert caught.value.code == "database_refused"


def test_v6_the_digest_key_is_made_once_and_is_private(home: Path) -> None:
    """Many at once get the same key of 32 bytes or more, from a file that only its owner reads."""
    settings = Settings(home=home)
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: load_digest_key(settings), range(8)))
    ((name, key),) = keys
    assert name == "k1"
    assert len(key) >= 32
    assert stat.S_IMODE(os.stat(home / "digest.key").st_mode) == 0o600


def test_v6_a_given_digest_key_comes_first_and_may_not_be_short(home: Path) -> None:
    """Several machines share a key by the settings; one that could be guessed is refused."""
    given = Settings(home=home, digest_key=SecretStr("k" * 40), digest_key_id="k7")
    assert load_digest_key(given) == ("k7", b"k" * 40)
    assert not home.exists()
    with pytest.raises(DataUnreadable, match="needs at least 32"):
        load_digest_key(Settings(home=home, digest_key=SecretStr("short")))
