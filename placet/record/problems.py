"""What can keep the database from being used. Each class has a stable `code`; each message says what came, what was
expected, and what to do."""


class DatabaseProblem(Exception):
    """Base of all of them, so that a way in for people can show the sentence without a stack trace."""

    code = "database_problem"


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
