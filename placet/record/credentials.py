"""Credentials: how a request proves who sends it (L4).

An API key is 256 random bits, shown once and stored as their SHA-256: whoever reads the table cannot use it, and so much
randomness needs no slow hash. What a person may do is read from their row each time, so that a role, a key or a person
that was taken away counts at once.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from placet.record import audit, people
from placet.record.database import Transaction
from placet.record.errors import Conflict, InvalidInput, NotFound
from placet.record.people import User

PREFIX = "placet_"  # so that scanners of leaked secrets, and people, see what it is


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is listed; nobody can see it again."""

    key_id: UUID
    user_id: str
    label: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    live: bool  # by the database's clock


@dataclass(frozen=True, slots=True)
class Known:
    """Whom a credential belongs to, and which one it was."""

    user: User
    credential: str  # `key:…` or `oidc:…`: what requests are counted by


class UnknownKey(NotFound):
    """There is no such key in this tenant."""

    code = "unknown_key"


def hash_of(key: str) -> bytes:
    """SHA-256 of the key's text, 32 bytes."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


async def issue(
    tx: Transaction, tenant: str, user_id: str, *, label: str = "", lifetime: timedelta | None = None, by: str
) -> tuple[str, Key]:
    """Make a key for a person; returns its text, which is nowhere else, and how it is listed.

    Raises `UnknownUser`, or `InvalidInput` for a lifetime that is not positive.
    """
    await people.get(tx, tenant, user_id)
    if lifetime is not None and lifetime <= timedelta(0):
        raise InvalidInput("A key lives for some time: give a positive number of days.", field="days")
    text = PREFIX + secrets.token_urlsafe(32)
    key_id = uuid4()
    await tx.execute(
        """
        insert into api_keys (key_id, tenant_id, user_id, key_hash, label, expires_at)
        values (%(key)s, %(tenant)s, %(user)s, %(hash)s, %(label)s, clock() + %(lifetime)s)
        """,
        {
            "key": key_id,
            "tenant": tenant,
            "user": user_id,
            "hash": hash_of(text),
            "label": label,
            "lifetime": lifetime,
        },
    )
    await audit.append(
        tx, tenant, actor=by, action="issued a key", subject=f"user:{user_id}", body={"key_id": str(key_id)}
    )
    [key] = await of_tenant(tx, tenant, key_id=key_id)
    return text, key


async def of_tenant(
    tx: Transaction, tenant: str, *, user_id: str | None = None, key_id: UUID | None = None
) -> list[Key]:
    """Keys, the newest first; of one person when given."""
    return await tx.fetch_all(
        Key,
        """
        select key_id, user_id, label, created_at, expires_at, revoked_at,
               revoked_at is null and (expires_at is null or expires_at > clock()) as live
          from api_keys
         where tenant_id = %(tenant)s
           and (%(user)s::text is null or user_id = %(user)s)
           and (%(key)s::uuid is null or key_id = %(key)s)
         order by created_at desc, key_id
        """,
        {"tenant": tenant, "user": user_id, "key": key_id},
    )


async def revoke(tx: Transaction, tenant: str, key_id: UUID, *, by: str) -> Key:
    """Revoke a key; the next request with it is refused. Raises `UnknownKey`, or `Conflict` when it was revoked before."""
    revoked = await tx.execute(
        """
        update api_keys set revoked_at = clock()
         where key_id = %(key)s and tenant_id = %(tenant)s and revoked_at is null
        """,
        {"key": key_id, "tenant": tenant},
    )
    found = await of_tenant(tx, tenant, key_id=key_id)
    if not found:
        raise UnknownKey(f"There is no key {key_id} here; `placet users keys` lists them.")
    if not revoked:
        raise Conflict(f"The key was revoked at {found[0].revoked_at:%Y-%m-%d %H:%M} UTC.", key_id=str(key_id))
    await audit.append(
        tx, tenant, actor=by, action="revoked a key", subject=f"user:{found[0].user_id}", body={"key_id": str(key_id)}
    )
    return found[0]


async def rotate(
    tx: Transaction, tenant: str, key_id: UUID, *, overlap: timedelta = timedelta(0), by: str
) -> tuple[str, Key]:
    """A new key of the same person, label and lifetime; the old one ends now, or when `overlap` is over."""
    found = await of_tenant(tx, tenant, key_id=key_id)
    if not found:
        raise UnknownKey(f"There is no key {key_id} here; `placet users keys` lists them.")
    old = found[0]
    if not old.live:
        raise Conflict("The key has ended; issue a new one with `placet users key`.", key_id=str(key_id))
    lifetime = old.expires_at - old.created_at if old.expires_at else None
    fresh = await issue(tx, tenant, old.user_id, label=old.label, lifetime=lifetime, by=by)
    if overlap <= timedelta(0):
        await revoke(tx, tenant, key_id, by=by)
    else:
        await tx.execute(
            "update api_keys set expires_at = least(expires_at, clock() + %(overlap)s) where key_id = %(key)s",
            {"overlap": overlap, "key": key_id},
        )
    return fresh


async def link(tx: Transaction, tenant: str, user_id: str, *, issuer: str, subject: str, by: str) -> None:
    """Say which subject of an issuer a person is. Raises `UnknownUser`, or `Conflict` when it is somebody already."""
    await people.get(tx, tenant, user_id)
    if not 1 <= len(subject) <= 255 or "\x00" in subject:
        raise InvalidInput("A subject has 1 to 255 characters.", field="subject")
    linked = await tx.execute(
        """
        insert into subjects (issuer, subject, tenant_id, user_id)
        values (%(issuer)s, %(subject)s, %(tenant)s, %(user)s)
        on conflict do nothing
        """,
        {"issuer": issuer, "subject": subject, "tenant": tenant, "user": user_id},
    )
    if not linked:
        raise Conflict(f"{subject!r} of {issuer} is somebody here already.", field="subject")
    await audit.append(
        tx,
        tenant,
        actor=by,
        action="linked a subject",
        subject=f"user:{user_id}",
        body={"issuer": issuer, "subject": subject},
    )


async def whose_key(tx: Transaction, key: str) -> Known | None:
    """The person whose live key this is, with roles and duties as they are now; None for any other text."""
    found = await tx.fetch_dicts(
        """
        select k.key_id, u.tenant_id, u.user_id, u.name, u.roles, u.duties, u.locale
          from api_keys k join users u using (tenant_id, user_id)
         where k.key_hash = %(hash)s
           and k.revoked_at is null and (k.expires_at is null or k.expires_at > clock())
           and u.removed_at is null
        """,
        {"hash": hash_of(key)},
    )
    if not found:
        return None
    key_id = found[0].pop("key_id")
    return Known(User(**found[0]), f"key:{key_id}")


async def whose_subject(tx: Transaction, issuer: str, subject: str) -> User | None:
    """The person that an issuer's subject was linked to."""
    return await tx.fetch_one(
        User,
        """
        select u.tenant_id, u.user_id, u.name, u.roles, u.duties, u.locale
          from subjects s join users u using (tenant_id, user_id)
         where s.issuer = %(issuer)s and s.subject = %(subject)s and u.removed_at is null
        """,
        {"issuer": issuer, "subject": subject},
    )


async def anybody_has_a_key(tx: Transaction, tenant: str) -> bool:
    """Whether some key of the tenant is live."""
    return any(key.live for key in await of_tenant(tx, tenant))
