"""`placet db`: what a person and a script see."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from placet.cli import db as cli_db
from placet.record import embedded
from placet.record.errors import Conflict
from placet.settings import settings
from tests.cli.conftest import PLACET
from tests.cli.terminal import at_a_terminal

run = CliRunner().invoke


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """PLACET_HOME, as a person would set it."""
    folder = Path(tempfile.mkdtemp(prefix="placet-cli-"))
    folder.chmod(0o755)
    monkeypatch.setenv("PLACET_HOME", str(folder / "home"))
    monkeypatch.delenv("PLACET_DATABASE_URL", raising=False)
    settings.cache_clear()
    yield folder / "home"
    embedded.stop(folder / "home")
    shutil.rmtree(folder)
    settings.cache_clear()


def test_db_starts_shows_and_stops(home: Path) -> None:
    """start, status, url, stop, each twice over: the second start and stop say that there was nothing to do."""
    assert json.loads(run(cli_db.app, ["status", "--json"]).stdout)["running"] is False
    assert "not running" in run(cli_db.app, ["status"]).stdout
    assert json.loads(run(cli_db.app, ["start", "--json"]).stdout) == {
        "started": True,
        "data": f"{home}/postgres/data",
    }
    assert "already running" in run(cli_db.app, ["start"]).stdout
    seen = json.loads(run(cli_db.app, ["status", "--json"]).stdout)
    assert (seen["running"], seen["data"], seen["kind"]) == (True, f"{home}/postgres/data", "embedded")
    assert f"data: {home}/postgres/data\n" in run(cli_db.app, ["status"]).stdout
    for options, role in (([], "placet_app"), (["--owner"], "placet_owner")):
        with psycopg.connect(run(cli_db.app, ["url", *options]).stdout.strip()) as connection:
            assert connection.info.user == role
    assert json.loads(run(cli_db.app, ["stop", "--json"]).stdout) == {"stopped": True}
    assert "Was not running" in run(cli_db.app, ["stop"]).stdout


def test_the_first_command_shows_that_a_database_is_being_made(home: Path) -> None:
    """It takes seconds once; whoever sits at a terminal sees that something is happening."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PLACET_", "OPENAI_"))}
    code, shown = at_a_terminal([PLACET, "inbox"], {**environment, "PLACET_HOME": str(home), "TERM": "xterm"})

    assert code == 0
    assert "Opening the database" in shown
    assert "Nothing waits" in shown


def test_db_does_not_start_or_stop_what_is_not_ours(
    home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PLACET_DATABASE_URL set, `start` and `stop` refuse, `url` and `status` speak of that database."""
    monkeypatch.setenv("PLACET_DATABASE_URL", database_url)
    settings.cache_clear()
    for command in ("start", "stop"):
        refused = run(cli_db.app, [command])
        assert refused.exit_code != 0
        assert isinstance(refused.exception, Conflict)
    assert run(cli_db.app, ["url"]).stdout.strip() == database_url
    seen = json.loads(run(cli_db.app, ["status", "--json"]).stdout)
    assert (seen["kind"], seen["running"]) == ("given", True)
    assert not home.exists()
