"""What can go wrong, for people: what was expected, what came, what to do. Each class has a stable code."""

from typing import Any, ClassVar


class PlacetError(Exception):
    """Base of the errors that callers are meant to show. `code` is stable, `status` is its HTTP status."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details

    def as_json(self) -> dict[str, Any]:
        """`{code, message, …details}`, as every interface answers it."""
        return {"code": self.code, "message": str(self), **self.details}


class StaleEpoch(PlacetError):
    """Another run owns the thread now; whatever this one wanted to write was refused (O2)."""

    code = "stale_epoch"
    status = 409


class NotDispatchable(PlacetError):
    """The last door refused: no approval that is still good, no automatic verdict, or a turn that does not run (E1).

    `why` is `not_approved`, `approval_expired`, `not_what_was_approved`, `no_verdict`, `call_ended`, `turn_not_running` or
    `not_unknown` (somebody settled it meanwhile).
    """

    code = "not_dispatchable"
    status = 409

    def __init__(self, why: str) -> None:
        super().__init__(f"The call may not be dispatched: {why}.", why=why)
        self.why = why


class NotFound(PlacetError):
    """There is no such thing, or it belongs to somebody else: the answer is the same (A5)."""

    code = "not_found"
    status = 404


class NotAllowed(PlacetError):
    """The person lacks the role or the duty, or would approve their own request (A5)."""

    code = "not_allowed"
    status = 403


class InvalidInput(PlacetError):
    """Something that was given cannot be used; nothing was changed."""

    code = "invalid_input"
    status = 422


class Conflict(PlacetError):
    """The thing is in another state than the request assumes; the details say which."""

    code = "conflict"
    status = 409


class Tampered(PlacetError):
    """A row that decides does not carry the digest of its own identity (V6): it was copied, moved or changed."""

    code = "tampered_row"
    status = 500
