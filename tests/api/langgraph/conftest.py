from tests.outside import world  # noqa: F401
