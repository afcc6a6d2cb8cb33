"""Whatever is wrong is one clear sentence that says what to do, a stable code, and nothing lost; never a traceback."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import psycopg.errors
import pytest
from psycopg_pool import PoolTimeout

from placet.cli import failures
from tests.cli.conftest import Ran

Placet = Callable[..., Ran]


@pytest.fixture
def ana(placet: Placet) -> str:
    placet("users", "add", "ana", "--role", "requester")
    return "ana"


@pytest.mark.parametrize(
    ("message", "code", "says"),
    [
        ("", "invalid_input", "The message is empty"),
        (" \n", "invalid_input", "The message is empty"),
        ("x" * 1_000_000, "invalid_input", "1,000,000 characters, 100,000 are the limit; nothing was stored"),
        ("a\x00b", "invalid_input", "NUL"),
        ("half \udcff", "invalid_input", "surrogate"),
    ],
)
def test_t1_a_message_that_cannot_be_stored_is_refused_whole(
    placet: Placet, ana: str, message: str, code: str, says: str
) -> None:
    """Empty, a megabyte, NUL, no UTF-8: refused with the reason, and no turn is left behind."""
    shown = placet("run", "-", "--as", ana, "--no-wait", "--json", stdin=message)

    assert (shown.code, shown.error["code"]) == (2, code)
    assert says in shown.error["message"]
    assert placet("turn", "list", "--json").json == {"turns": []}


def test_a5_who_is_unknown_or_may_not_ask_is_told_how_that_changes(placet: Placet, ana: str) -> None:
    """No user, an unknown one, one without the role."""
    placet("users", "add", "marta", "--role", "reviewer")

    for who, code, exit_code in ((None, "nobody_acts", 2), ("bob", "unknown_user", 2), ("marta", "not_allowed", 3)):
        shown = placet("run", "hello", *(["--as", who] if who else []), "--no-wait", "--json")
        assert (shown.code, shown.error["code"]) == (exit_code, code)
    assert "placet users add bob" in placet("run", "hello", "--as", "bob").err


def test_p7_a_rules_file_with_a_typo_stops_the_start_with_line_and_suggestion(
    placet: Placet, process: Placet, tmp_path: Path
) -> None:
    """A worker process refuses to start, nothing is claimed; `policy check` says the same without a database."""
    rules = tmp_path / "rules.toml"
    text = (Path(__file__).parents[2] / "policies" / "rules.toml").read_text()
    rules.write_text(text.replace("facts.total > 100000", "facts.totl > 100000"))
    line = next(number for number, one in enumerate(rules.read_text().splitlines(), 1) if "facts.totl" in one)

    for shown in (process("worker", PLACET_RULES=str(rules)), placet("policy", "check", rules)):
        assert shown.code == 1
        assert f"{rules}:{line}:" in shown.err
        assert "Did you mean" in shown.err
        assert "facts.total" in shown.err
        assert "Traceback" not in shown.err
    assert placet("policy", "check", rules, "--json").error["errors"][0]["line"] == line


def test_a_database_that_is_down_is_waited_for_and_then_given_up(process: Placet) -> None:
    """It says so at once, tries again, and in the end says what to do; stdout carries the error alone."""
    gone = {"PLACET_DATABASE_URL": "postgresql://127.0.0.1:1/placet", "PLACET_DATABASE_WAIT": "1"}
    people, machine = process("turn", "list", **gone), process("turn", "list", "--json", **gone)

    assert people.code == machine.code == 1
    assert "trying again for up to 1 seconds" in people.err
    assert "Nothing is lost: start it and run this again" in people.err
    assert people.out == ""
    assert machine.error["code"] == "database_unreachable"
    assert "Traceback" not in people.err + machine.err


def test_a_full_disk_is_said_and_nothing_is_half_stored(placet: Placet, ana: str, owner_url: str) -> None:
    """Postgres has no room (class 53) while the turn is stored: the whole of it is refused, and works when there is room."""
    with psycopg.connect(owner_url, autocommit=True) as owner:
        owner.execute(
            """
            create function placet.no_room() returns trigger language plpgsql as $$
            begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$;
            create trigger no_room before insert on placet.runs execute function placet.no_room()
            """
        )
        full = placet("run", "hello", "--as", ana, "--no-wait", "--json")
        assert (full.code, full.error["code"], full.error["sqlstate"]) == (1, "disk_full", "53100")
        assert "nothing that was stored is lost" in full.error["message"]
        assert placet("turn", "list", "--json").json == {"turns": []}
        owner.execute("drop trigger no_room on placet.runs")
    assert placet("run", "hello", "--as", ana, "--no-wait").code == 0


@pytest.fixture
def old_home() -> Iterator[Path]:
    """A PLACET_HOME with data of Postgres 9.6, where the account that Postgres runs as can get to."""
    home = Path(tempfile.mkdtemp(prefix="placet-old-"))
    home.chmod(0o755)
    (home / "postgres" / "data").mkdir(parents=True)
    (home / "postgres" / "data" / "PG_VERSION").write_text("9.6\n")
    passwords = dict.fromkeys(("postgres", "placet_owner", "placet_app"), "x")
    (home / "postgres.json").write_text(json.dumps({"socket": str(home / "socket"), "passwords": passwords}))
    yield home
    shutil.rmtree(home)


def test_data_of_another_postgres_are_not_touched(process: Placet, old_home: Path) -> None:
    """The embedded data are of a version that this Postgres cannot read: it says which, and leaves them alone."""
    shown = process("turn", "list", "--json", PLACET_DATABASE_URL="", PLACET_HOME=str(old_home))

    assert (shown.code, shown.error["code"]) == (1, "wrong_postgres_version")
    assert "9.6" in shown.error["message"]
    assert (old_home / "postgres" / "data" / "PG_VERSION").read_text() == "9.6\n"


def test_a_setting_that_cannot_be_used_is_named_as_people_set_it(placet: Placet) -> None:
    """By the variable's name."""
    shown = placet("turn", "list", "--json", PLACET_POOL_SIZE="many")

    assert (shown.code, shown.error["code"]) == (2, "invalid_settings")
    assert "PLACET_POOL_SIZE" in shown.error["message"]


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (psycopg.errors.DiskFull("x"), "disk_full", 1),
        (psycopg.errors.OutOfMemory("x"), "out_of_memory", 1),
        (psycopg.errors.TooManyConnections("x"), "database_busy", 1),
        (psycopg.errors.AdminShutdown("x"), "database_unreachable", 1),
        (psycopg.OperationalError("server closed the connection"), "database_unreachable", 1),
        (PoolTimeout("x"), "database_unreachable", 1),
        (psycopg.errors.UndefinedTable("x"), "database_refused", 1),
        (OSError(28, "No space left on device", "/data"), "disk_full", 1),
        (FileNotFoundError(2, "No such file", "rules.toml"), "file_not_found", 2),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "not_text", 2),
        (ExceptionGroup("x", [psycopg.errors.DiskFull("x")]), "disk_full", 1),
        (RuntimeError("[red]\x1b[2J"), "internal_error", 1),
    ],
)
def test_l5_every_failure_has_a_code_and_a_sentence(
    error: Exception, code: str, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those that nobody foresaw; their text is as harmless as everybody's."""
    explained = failures.explain(error)
    failures.show(error, as_json=False)
    shown = capsys.readouterr()

    assert (explained.code, explained.exit_code) == (code, exit_code)
    assert set(explained.as_json()["error"]) >= {"code", "message"}
    assert shown.out == ""
    assert shown.err.startswith("Error: ")
    assert "\x1b" not in shown.err
    assert "Traceback" not in shown.err


def test_l5_a_traceback_is_shown_to_who_asks_for_it(placet: Placet) -> None:
    """PLACET_DEBUG=1, beside the sentence."""
    shown = placet("run", "", "--as", "bob", PLACET_DEBUG="1")

    assert "Traceback" in shown.err
    assert "Error: Nobody is called 'bob' here" in shown.err
