"""Migrations: once, whoever starts; whole or not at all; and rights that follow the tables."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import AsyncConnection, sql

from placet.record import migrate as migrations
from placet.record.embedded import APP, OWNER, SUPERUSER, Server
from placet.record.migrate import RECORD, migrate
from placet.record.problems import MigrationFailed, WrongPostgresVersion

RECORDS_OWN = sorted(file.stem for file in RECORD.glob("*.sql"))


@pytest.fixture
def empty_url(server: Server) -> Iterator[str]:
    """The owner's address of a database without any table."""
    name = f"empty_{uuid4().hex[:12]}"
    with psycopg.connect(server.url(SUPERUSER, "postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {} owner {}").format(sql.Identifier(name), sql.Identifier(OWNER)))
        yield server.url(OWNER, name)
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of migrations; its name would be a pattern to a careless reader."""
    folder = tmp_path / "tools [a]* of ours"
    folder.mkdir()
    return folder


def query(url: str, statement: Any, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


# Once, whole, in order


async def test_migrate_applies_the_records_files_in_order_and_then_nothing(empty_url: str) -> None:
    """The first start applies every file, the second none."""
    assert await migrate(empty_url, [], application=APP) == RECORDS_OWN
    assert await migrate(empty_url, [], application=APP) == []
    tables = {
        name for (name,) in query(empty_url, "select relname from pg_class where relnamespace = 'placet'::regnamespace")
    }
    assert {"threads", "checkpoints", "checkpoint_writes", "audit", "clock_offset"} <= tables


async def test_migrate_with_nothing_to_do_asks_once(owner_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command passes here, so a schema that is up to date costs one statement after connecting."""
    asked: list[object] = []
    ask = AsyncConnection.execute

    async def counted(self: Any, statement: Any, *rest: Any, **options: Any) -> Any:
        asked.append(statement)
        return await ask(self, statement, *rest, **options)

    monkeypatch.setattr(AsyncConnection, "execute", counted)
    assert await migrate(owner_url, [], application=APP) == []
    assert len(asked) == 1


async def test_migrate_four_processes_at_once_on_an_empty_database(empty_url: str) -> None:
    """Four processes start together: all succeed, and each file was applied by exactly one of them."""
    program = (
        "import asyncio, sys; from placet.record.migrate import migrate\n"
        f"print(*asyncio.run(migrate(sys.argv[1], [], application={APP!r})), sep='\\n')"
    )
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", program, empty_url, stdout=asyncio.subprocess.PIPE)
        for _ in range(4)
    ]
    said = [(await process.communicate())[0].decode().split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    assert sorted(name for names in said for name in names) == RECORDS_OWN
    assert query(empty_url, "select count(*) from placet._yoyo_migration") == [(len(RECORDS_OWN),)]


async def test_migrate_waits_while_another_migrates(empty_url: str) -> None:
    """The lock is the database's: whoever comes second waits, and goes on when the first lets go."""
    async with await AsyncConnection.connect(empty_url, autocommit=True) as other:
        await other.execute(migrations.LOCK)
        waiting = asyncio.create_task(migrate(empty_url, [], application=APP))
        while not query(
            empty_url,
            "select 1 from pg_stat_activity where query like %s and pid <> %s",
            "%" + migrations.LOCK[:40] + "%",
            other.info.backend_pid,
        ):
            assert not waiting.done()
            await asyncio.sleep(0)
        assert query(empty_url, "select to_regclass('placet.threads')") == [(None,)]
    assert await waiting == RECORDS_OWN


async def test_migrate_is_not_stopped_by_the_lock_row_of_a_killed_process(owner_url: str, folder: Path) -> None:
    """yoyo's own lock is a row that outlives its process; it is not what counts."""
    query(owner_url, "insert into placet.yoyo_lock (locked, ctime, pid) values (1, now(), 1)")
    (folder / "0001.late.sql").write_text("create table placet.late (n int)")
    assert await migrate(owner_url, [folder], application=APP) == ["0001.late"]


async def test_migrate_keeps_bodies_whole(owner_url: str, folder: Path) -> None:
    """Functions, blocks and texts with semicolons, dollars and percent signs arrive as they were written."""
    (folder / "0001.bodies.sql").write_text(
        """
        -- opens with a comment; with a semicolon
        create schema if not exists shop;
        set search_path = shop;
        create table t (a text default 'x;y''z', n int);   -- trails; too
        create function plain() returns text language sql begin atomic select 'a;b'; end;
        create function named(n int) returns text language plpgsql as $body$
        declare
            it text := $$in;ner$$;
        begin
            if n > 1 then raise exception '%; 100%% of %', n, n; end if;
            case n when 1 then it := it || ';'; else null; end case;
            return it;
        exception when division_by_zero then return null;
        end $body$;
        create trigger tr before update on t for each row execute function suppress_redundant_updates_trigger();
        do $$ begin insert into t (n) select g from generate_series(1, 3) g where g % 2 = 1; end $$;
        """
    )
    assert await migrate(owner_url, [folder], application=APP) == ["0001.bodies"]
    assert query(owner_url, "select shop.plain(), shop.named(1), (select count(*) from shop.t)") == [
        ("a;b", "in;ner;", 2)
    ]
    assert query(owner_url, "select distinct a from shop.t") == [("x;y'z",)]


async def test_migrate_keeps_nothing_of_a_file_that_fails(owner_url: str, folder: Path) -> None:
    """The error names the file and the server's words; corrected, the file is applied from its first line."""
    file = folder / "0001.broken.sql"
    file.write_text("create table placet.half (n int); create table placet.half (n int);")
    with pytest.raises(MigrationFailed, match=r'0001\.broken\.sql: relation "half" already exists') as caught:
        await migrate(owner_url, [folder], application=APP)
    assert caught.value.code == "migration_failed"
    assert query(owner_url, "select to_regclass('placet.half')") == [(None,)]
    file.write_text("create table placet.half (n int)")
    assert await migrate(owner_url, [folder], application=APP) == ["0001.broken"]


async def test_migrate_a_file_and_its_mark_are_one_transaction(
    owner_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies after the last statement and before the mark leaves nothing that the next would trip over."""

    def dies(*args: object, **options: object) -> None:
        raise SystemExit

    (folder / "0001.whole.sql").write_text("create table placet.whole (n int)")
    with monkeypatch.context() as patched:
        patched.setattr("yoyo.backends.base.DatabaseBackend.mark_one", dies)
        with pytest.raises(SystemExit):
            await migrate(owner_url, [folder], application=APP)
    assert await migrate(owner_url, [folder], application=APP) == ["0001.whole"]


async def test_migrate_says_what_right_is_missing(database_url: str, folder: Path) -> None:
    """A role that may not migrate is told so, in the server's words."""
    (folder / "0001.more.sql").write_text("create table placet.more (n int)")
    with pytest.raises(MigrationFailed, match="permission denied"):
        await migrate(database_url, [folder], application=APP)


async def test_migrate_refuses_an_old_server(owner_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what was found and what is needed."""
    monkeypatch.setattr(migrations, "OLDEST", 99)
    with pytest.raises(WrongPostgresVersion, match=r"is Postgres \d+\.\d+; Placet needs 99") as caught:
        await migrate(owner_url, [], application=APP)
    assert caught.value.code == "wrong_postgres_version"


# Rights


async def test_v3_the_application_can_read_the_audit_chain_and_only_append(database_url: str) -> None:
    """No update, delete, truncate, nor an insert past the function that chains the rows; the same for the chain's heads."""
    query(database_url, "select placet.append_audit('t', 'marta', 'approved', 'approval:1', '{}')")
    assert query(database_url, "select actor from placet.audit") == [("marta",)]
    for statement in (
        "update placet.audit set actor = 'x'",
        "delete from placet.audit",
        "truncate placet.audit",
        "insert into placet.audit select * from placet.audit",
        "update placet.audit_heads set n = 0",
        "delete from placet.audit_heads",
        "alter table placet.audit disable trigger all",
        "drop table placet.audit",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            query(database_url, sql.SQL(statement))


async def test_migrate_lets_the_application_neither_move_the_clock_nor_see_migrations(database_url: str) -> None:
    """The clock is the database's, and what was applied is the owner's business."""
    assert query(database_url, "select count(*) from placet.clock_offset") == [(1,)]
    for statement in (
        "update placet.clock_offset set shift = '1 day'",
        "select * from placet._yoyo_migration",
        "delete from placet.yoyo_lock",
        "create table placet.mine (n int)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            query(database_url, sql.SQL(statement))


async def test_migrate_gives_rights_on_tables_that_come_later(owner_url: str, database_url: str, folder: Path) -> None:
    """Tables, sequences and schemas of a later file are the application's to use, with no word about it in the file."""
    (folder / "0001.stall.sql").write_text(
        "CREATE SCHEMA IF NOT EXISTS stall;\ncreate table stall.sales (n serial primary key, what text);"
    )
    await migrate(owner_url, [folder], application=APP)
    (folder / "0002.more.sql").write_text("create table stall.returns (n int generated always as identity, what text)")
    await migrate(owner_url, [folder], application=APP)
    for table in ("sales", "returns"):
        name = sql.Identifier("stall", table)
        query(database_url, sql.SQL("insert into {} (what) values ('a')").format(name))
        query(database_url, sql.SQL("update {} set what = 'b'").format(name))
        assert query(database_url, sql.SQL("select what from {}").format(name)) == [("b",)]
        query(database_url, sql.SQL("delete from {}").format(name))


async def test_migrate_mends_rights_that_differ(owner_url: str, database_url: str) -> None:
    """A process that died between the tables and the rights, or a hand that granted too much: the next start mends it."""
    query(owner_url, sql.SQL("revoke all on placet.threads from {}").format(sql.Identifier(APP)))
    query(owner_url, sql.SQL("grant update on placet.audit to {}").format(sql.Identifier(APP)))
    assert await migrate(owner_url, [], application=APP) == []
    assert query(database_url, "select count(*) from placet.threads") == [(0,)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        query(database_url, "update placet.audit set actor = 'x'")


async def test_migrate_leaves_schemas_of_others_alone(owner_url: str, database_url: str) -> None:
    """Rights are given where our files made the schema, nowhere else."""
    query(owner_url, "create schema theirs")
    query(owner_url, "create table theirs.secret (n int)")
    query(owner_url, sql.SQL("grant usage on schema theirs to {}").format(sql.Identifier(APP)))
    await migrate(owner_url, [], application=APP)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        query(database_url, "select * from theirs.secret")


# The test's own tools


async def test_the_clock_of_a_test_moves_for_everybody(clock: Any, database_url: str) -> None:
    """`clock.advance` moves `placet.clock()` in every process, and only in this test's database."""
    await clock.advance(3600)
    (seconds,) = query(database_url, "select extract(epoch from placet.clock() - now())::int")[0]
    assert seconds == 3600
