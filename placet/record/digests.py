"""Keyed digests over the identity of rows that decide (V6).

Whoever can write to the database but has no key cannot make an approval or an effect that the runtime believes, nor move
one to another thread: the digest covers which tenant, thread, call and bytes the row is about.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from placet.record.errors import Tampered


@dataclass(frozen=True, slots=True)
class Keys:
    """The key that signs now, and older ones that still verify, by their ids."""

    key_id: str
    key: bytes = field(repr=False)
    older: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def sign(self, kind: str, *identity: UUID | str | int | bytes | None) -> bytes:
        """HMAC-SHA-256 over `kind` and its identity, 32 bytes."""
        return _digest(self.key, kind, identity)

    def verify(self, key_id: str, digest: bytes, kind: str, *identity: UUID | str | int | bytes | None) -> None:
        """Raise `Tampered` unless the digest is that of this identity."""
        key = self.key if key_id == self.key_id else self.older.get(key_id)
        if key is None:
            raise Tampered(
                f"This {kind} was signed with key {key_id!r}, which this process does not have; "
                "set PLACET_DIGEST_KEY and PLACET_DIGEST_KEY_ID as on the machine that wrote it."
            )
        if not hmac.compare_digest(digest, _digest(key, kind, identity)):
            raise Tampered(f"This {kind} does not carry the digest of its own identity; it was copied or changed.")


def _digest(key: bytes, kind: str, identity: tuple[UUID | str | int | bytes | None, ...]) -> bytes:
    mac = hmac.new(key, digestmod="sha256")
    for part in (kind, *identity):
        data = part if isinstance(part, bytes) else b"" if part is None else str(part).encode()
        mac.update(len(data).to_bytes(8) + data)
    return mac.digest()
