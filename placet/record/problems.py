"""What can keep the database from being used. Each class has a stable `code`; each message says what came, what was
expected, and what to do."""

from placet.record.errors import PlacetError


class DatabaseProblem(PlacetError):
    """Base of all of them."""

    code = "database_problem"
    status = 503


class NoPostgres(DatabaseProblem):
    """No address is set and no Postgres was found to start."""

    code = "no_postgres"


class WrongPostgresVersion(DatabaseProblem):
    """The server, or the data on the disk, is of a version that cannot be used."""

    code = "wrong_postgres_version"


class DiskFull(DatabaseProblem):
    """There is no room left where the data are."""

    code = "disk_full"


class DataUnreadable(DatabaseProblem):
    """The data folder cannot be read or written by whoever runs this."""

    code = "data_unreadable"


class PostgresFailed(DatabaseProblem):
    """The embedded Postgres did not start or stop; the message carries its last words."""

    code = "postgres_failed"


class DatabaseUnreachable(DatabaseProblem):
    """The database did not answer for as long as we wait."""

    code = "database_unreachable"


class DatabaseRefused(DatabaseProblem):
    """The database is there and does not let us in: an address, a role, a password or a right is wrong."""

    code = "database_refused"


class MigrationFailed(DatabaseProblem):
    """A statement of a migration failed; the file it stands in left nothing behind."""

    code = "migration_failed"
