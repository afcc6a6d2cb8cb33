"""Bring the schema up to date: plain SQL files, the checkpointer's own tables, then the application role's rights.

The owner's role does it, at every start, under a lock of ours that ends with its connection (yoyo's own is a row, which a
killed process leaves behind). The lock is polled, since the checkpointer builds indexes concurrently and that waits for
everyone who waits in a transaction. When nothing is to be done it costs one round trip: what the files want, what the
checkpointer wants and which rights differ are one query.

A file and the mark that it was applied are one transaction. The application's role may read and change every row, but of
the audit chain it can only read, and append through the owner's function (V3), and it cannot move the clock.
"""

import asyncio
import importlib.metadata
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict

from placet.record.binaries import OLDEST
from placet.record.database import SEARCH_PATH
from placet.record.problems import DatabaseUnreachable, DiskFull, MigrationFailed, WrongPostgresVersion

RECORD = Path(__file__).parent / "schema"
LOCK = "select pg_try_advisory_lock(hashtextextended('placet migrations', 0))"
LOCK_PATIENCE = 300.0  # seconds; a long migration of another process
CHECKPOINTER = "langgraph-checkpoint-postgres"


async def migrate(owner: str, folders: Sequence[Path], *, application: str | None) -> list[str]:
    """Apply what is missing and return the ids (the files' names without `.sql`), in order; `[]` when nothing was to be
    done.

    `owner` is the address of the role that migrates, not behind a transaction pooler. `folders` hold `NNNN.name.sql` and
    are applied in order, after the record's own. `application` is the name of the role that runs, or None when it is the
    owner itself.

    Raises `WrongPostgresVersion`, `MigrationFailed` with the file and the server's words, `DiskFull`.
    """
    files = [file for folder in (RECORD, *folders) for file in _files(folder)]
    schemas = ["placet", *_schemas_made_by(files)]
    with _explained("the rights of the application's role"):
        async with await AsyncConnection.connect(owner, autocommit=True, options=SEARCH_PATH) as connection:
            _check_version(connection)
            missing, rights = await _to_do(connection, files, schemas, application)
            if not missing and not rights:
                return []
            async with _lock(connection):
                with _explained("schema placet"):
                    await connection.execute("create schema if not exists placet")
                missing, _ = await _to_do(connection, files, schemas, application)  # perhaps another process was here
                if CHECKPOINTER in missing:
                    with _explained("the checkpointer's tables"):
                        await _set_up_checkpointer(connection)
                await asyncio.to_thread(_apply, owner, [file for file in files if file.stem in missing])
                if application is not None:
                    await _grant(connection, schemas, application)
    return [file.stem for file in files if file.stem in missing]


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.DiskFull as error:
        raise DiskFull(
            f"The database has no room left ({error}). Make room and start again; nothing is lost."
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise MigrationFailed(
            f"{what}: {_said(error)}. Only the role that owns the tables may do that: set "
            "PLACET_OWNER_DATABASE_URL to its address, beside PLACET_DATABASE_URL. Nothing of it was kept."
        ) from error
    except psycopg.Error as error:
        raise MigrationFailed(
            f"{what}: {_said(error)}. Nothing of it was kept; correct the cause and start again."
        ) from error


def _said(error: psycopg.Error) -> str:
    return str(error).strip().rstrip(".")


def _check_version(connection: AsyncConnection[Any]) -> None:
    version = connection.info.server_version  # 140003 is 14.3
    if version < OLDEST * 10_000:
        raise WrongPostgresVersion(
            f"The server at {connection.info.host} is Postgres {version // 10_000}.{version % 10_000}; "
            f"Placet needs {OLDEST} or newer. Upgrade it, or unset PLACET_DATABASE_URL to use the embedded one."
        )


@asynccontextmanager
async def _lock(connection: AsyncConnection[Any]) -> AsyncIterator[None]:
    """Held by this connection and nobody else; a killed process's ends with it."""
    end = time.monotonic() + LOCK_PATIENCE
    while not (await (await connection.execute(LOCK)).fetchone() or [False])[0]:
        if time.monotonic() > end:
            raise DatabaseUnreachable(
                "Another process has been migrating the database for five minutes; see what it does."
            )
        await asyncio.sleep(0.05)
    try:
        yield
    finally:
        if not connection.closed:
            await connection.execute("select pg_advisory_unlock(hashtextextended('placet migrations', 0))")


# What is to be done

# What the application's role may do with each table, by name; what it has, as the catalogue says; where they differ.
RIGHTS = """
    select namespace.nspname as schema, class.relname as name, class.relkind = 'S' as is_sequence, wanted.rights
      from pg_class class
      join pg_namespace namespace on namespace.oid = class.relnamespace
      cross join lateral (
          select case
                     when class.relname ~ '^_?yoyo' then ''
                     when class.relkind = 'S' then 'SELECT, USAGE'
                     when class.relkind in ('v', 'm') then 'SELECT'
                     when namespace.nspname = 'placet' and class.relname in ('audit', 'audit_heads', 'clock_offset')
                         then 'SELECT'
                     else 'DELETE, INSERT, SELECT, UPDATE'
                 end as rights
      ) wanted
      cross join lateral (
          select coalesce(string_agg(acl.privilege_type, ', ' order by acl.privilege_type), '') as rights
            from aclexplode(class.relacl) acl
            join pg_roles role on role.oid = acl.grantee
           where role.rolname = %(application)s
      ) given
     where namespace.nspname = any(%(schemas)s)
       and class.relkind in ('r', 'p', 'v', 'm', 'S')
       and wanted.rights <> given.rights
"""

TO_DO = sql.SQL("""
    select (select coalesce(array_agg(migration_id), '{{}}') from placet._yoyo_migration),
           obj_description('placet.checkpoint_migrations'::regclass),
           exists ({rights})
""").format(rights=sql.SQL(RIGHTS))


async def _to_do(
    connection: AsyncConnection[Any], files: list[Path], schemas: list[str], application: str | None
) -> tuple[set[str], bool]:
    """Ids that are not applied (the checkpointer's, when another version of it made its tables), and whether any right
    differs from what it should be."""
    wanted = {CHECKPOINTER, *(file.stem for file in files)}
    try:
        cursor = await connection.execute(TO_DO, {"application": application, "schemas": schemas})
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return wanted, True
    row = await cursor.fetchone()
    assert row is not None
    applied, checkpointer, rights = row
    if checkpointer == _checkpointer_version():
        wanted.discard(CHECKPOINTER)
    return wanted - set(applied), rights and application is not None


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder of migrations at {folder}.")
    return sorted(file for file in folder.glob("*.sql") if not file.name.endswith(".rollback.sql"))


def _schemas_made_by(files: list[Path]) -> list[str]:
    """The schemas that the files themselves create: there the application gets its rights, nowhere else."""
    made = re.compile(r"^\s*create\s+schema\s+(?:if\s+not\s+exists\s+)?(\w+)", re.IGNORECASE | re.MULTILINE)
    return sorted({name.lower() for file in files for name in made.findall(file.read_text(encoding="utf-8"))})


# Doing it


def _checkpointer_version() -> str:
    return f"{CHECKPOINTER} {importlib.metadata.version(CHECKPOINTER)}"


async def _set_up_checkpointer(connection: AsyncConnection[Any]) -> None:
    """The checkpointer's tables in schema `placet`. Its version is kept in a comment, so that a start which has nothing
    to do need not import it."""
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver  # noqa: PLC0415  slow to import

    cursor = await connection.execute(  # a concurrent build that was killed leaves an index that nobody uses
        """
        select index.indexrelid::regclass::text
          from pg_index index
         where not index.indisvalid and index.indrelid::regclass::text like 'checkpoint%%'
        """
    )
    for (name,) in await cursor.fetchall():
        await connection.execute(sql.SQL("drop index {}").format(sql.Identifier("placet", name)))
    await AsyncPostgresSaver(connection).setup()
    await connection.execute(
        sql.SQL("comment on table placet.checkpoint_migrations is {}").format(sql.Literal(_checkpointer_version()))
    )


def _apply(owner: str, files: list[Path]) -> None:
    from yoyo.backends.core.postgresql import PostgresqlPsycopgBackend  # noqa: PLC0415  slow to import, seldom needed
    from yoyo.connections import DatabaseURI  # noqa: PLC0415
    from yoyo.migrations import Migration, default_migration_table  # noqa: PLC0415

    parameters = conninfo_to_dict(owner) | {"options": SEARCH_PATH}
    address = DatabaseURI("postgresql+psycopg", None, None, None, None, parameters.get("dbname"), parameters)
    with _explained("yoyo's tables"), PostgresqlPsycopgBackend(address, default_migration_table) as backend:
        backend.init_database()
        backend.break_lock()  # of a process that was killed: we hold the lock that counts
        backend.ensure_internal_schema_updated()
        for file in files:
            migration = Migration(file.stem, str(file), str(file.parent))
            migration.load()
            with _explained(str(file)), backend.transaction() if migration.use_transactions else nullcontext():
                migration.process_steps(backend, "apply")
                backend.execute("reset all")  # the file's search_path
                with backend.transaction():
                    backend.mark_one(migration, log=False)


async def _grant(connection: AsyncConnection[Any], schemas: list[str], application: str) -> None:
    role = sql.Identifier(application)
    async with connection.transaction():
        for schema in schemas:
            await connection.execute(sql.SQL("grant usage on schema {} to {}").format(sql.Identifier(schema), role))
        cursor = await connection.execute(RIGHTS, {"application": application, "schemas": schemas})
        for schema, name, is_sequence, rights in await cursor.fetchall():
            kind = sql.SQL("sequence" if is_sequence else "table")
            table = sql.Identifier(schema, name)
            await connection.execute(sql.SQL("revoke all on {} {} from {}").format(kind, table, role))
            if rights:
                await connection.execute(sql.SQL("grant {} on {} {} to {}").format(sql.SQL(rights), kind, table, role))
