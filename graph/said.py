"""What an exception says, as text that every store and provider takes.

A tool's error can hold what its system sent: NUL, half of a surrogate pair, megabytes. Telling what went wrong must
never be what goes wrong (E3, E4, P6).
"""

from graph.plain import clean, shortened


def said(error: BaseException, limit: int = 1000) -> str:
    """`ValueError: what it says`, clean and at most `limit` characters; never raises."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001  # a foreign __str__ may raise anything
        words = "(it cannot be told)"
    return shortened(clean(f"{type(error).__name__}: {words}" if words else type(error).__name__), limit)
