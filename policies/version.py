"""Which policy decided: a hash of the rules and of the code that decides (P8).

The same file under changed code is another policy. What counts: the bytes of the rules, every source of this package,
the sources of the function rules, and the versions of the CEL engine that evaluates the conditions.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import version as installed
from pathlib import Path

SHOWN = 16  # digits that people see


def policy_version(rules: bytes, functions: Iterable[bytes]) -> str:
    """SHA-256 as 64 hex digits; each part is hashed by itself, so that none can flow into the next."""
    parts = [rules, *_deciding_code(), *functions, installed("cel-expr-python").encode()]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@lru_cache(maxsize=1)
def _deciding_code() -> tuple[bytes, ...]:
    """Names and contents of this package's sources as they were when first asked: those that run."""
    here = Path(__file__).parent
    files = sorted(here.rglob("*.py"))
    return tuple(part for file in files for part in (file.relative_to(here).as_posix().encode(), file.read_bytes()))
