"""People: who asks, who decides, and whether they may (A5)."""

from dataclasses import asdict, dataclass, replace
from typing import Literal

import psycopg.errors

from placet.record import audit, canonical
from placet.record.database import Transaction
from placet.record.errors import Conflict, InvalidInput, NotFound

Role = Literal["requester", "reviewer", "operator", "auditor"]
ROLES: tuple[Role, ...] = ("requester", "reviewer", "operator", "auditor")
LOCALES = ("en", "es")


@dataclass(frozen=True, slots=True)
class User:
    """Somebody of a tenant, as the database knows them now; what a payload claims about identity counts for nothing."""

    tenant_id: str
    user_id: str
    name: str
    roles: list[str]
    duties: list[str]
    locale: str

    def is_a(self, role: Role) -> bool:
        """Whether the person has the role."""
        return role in self.roles


class UnknownUser(NotFound):
    """There is no such person in this tenant."""

    code = "unknown_user"


async def get(tx: Transaction, tenant: str, user_id: str) -> User:
    """The person; raises `UnknownUser` and says how to add one."""
    user = await tx.fetch_one(
        User,
        """
        select tenant_id, user_id, name, roles, duties, locale
          from users
         where tenant_id = %(tenant)s and user_id = %(user)s and removed_at is null
        """,
        {"tenant": tenant, "user": user_id},
    )
    if user is None:
        raise UnknownUser(f"Nobody is called {user_id!r} here. Add them: placet users add {user_id} --role requester.")
    return user


async def everybody(tx: Transaction, tenant: str) -> list[User]:
    """All who were not removed, by name."""
    return await tx.fetch_all(
        User,
        """
        select tenant_id, user_id, name, roles, duties, locale
          from users
         where tenant_id = %(tenant)s and removed_at is null
         order by user_id
        """,
        {"tenant": tenant},
    )


async def add(
    tx: Transaction, tenant: str, user_id: str, *, name: str, roles: list[str], duties: list[str], locale: str = "en"
) -> User:
    """Add a person; raises `Conflict` when the name is taken, `InvalidInput` for a role that does not exist."""
    _check(name=name, roles=roles, duties=duties, locale=locale)
    canonical.check_plain({"user_id": user_id})
    try:
        await tx.execute(
            """
            insert into users (tenant_id, user_id, name, roles, duties, locale)
            values (%(tenant)s, %(user)s, %(name)s, %(roles)s, %(duties)s, %(locale)s)
            """,
            {"tenant": tenant, "user": user_id, "name": name, "roles": roles, "duties": duties, "locale": locale},
        )
    except psycopg.errors.UniqueViolation:
        raise Conflict(f"{user_id!r} exists already, or did: ids are not used twice.", field="user_id") from None
    except psycopg.errors.CheckViolation:
        raise InvalidInput(
            f"{user_id!r} cannot be a person's id: it is at most 63 lower-case letters, digits and . _ @ -, and begins with "
            "a letter or a digit.",
            field="user_id",
        ) from None
    return await get(tx, tenant, user_id)


def _check(*, name: str, roles: list[str], duties: list[str], locale: str) -> None:
    unknown = sorted(set(roles) - set(ROLES))
    if unknown or not roles:
        raise InvalidInput(f"Roles are {', '.join(ROLES)}; got {', '.join(unknown) or 'none'}.", field="roles")
    if "reviewer" not in roles and duties:
        raise InvalidInput("Duties are what a reviewer may decide; give the role reviewer too.", field="duties")
    if locale not in LOCALES:
        raise InvalidInput(f"Locales are {' and '.join(LOCALES)}; got {locale}.", field="locale")
    canonical.check_plain({"name": name, "duties": duties})


async def change(
    tx: Transaction,
    tenant: str,
    user_id: str,
    *,
    by: str,
    name: str | None = None,
    roles: list[str] | None = None,
    duties: list[str] | None = None,
    locale: str | None = None,
) -> User:
    """Change what is given; it counts from the next request and decision on (A5). Raises as `get` and `add` do.

    Who is no reviewer any more has no duties left, unless some are given.
    """
    before = await get(tx, tenant, user_id)
    after = replace(
        before,
        name=name if name is not None else before.name,
        roles=roles if roles is not None else before.roles,
        duties=duties if duties is not None else before.duties,
        locale=locale if locale is not None else before.locale,
    )
    if duties is None and not after.is_a("reviewer"):
        after = replace(after, duties=[])
    _check(name=after.name, roles=after.roles, duties=after.duties, locale=after.locale)
    await tx.execute(
        """
        update users set name = %(name)s, roles = %(roles)s, duties = %(duties)s, locale = %(locale)s
         where tenant_id = %(tenant_id)s and user_id = %(user_id)s
        """,
        asdict(after),
    )
    body = {"was": asdict(before), "is": asdict(after)}
    await audit.append(tx, tenant, actor=by, action="changed", subject=f"user:{user_id}", body=body)
    return after


async def remove(tx: Transaction, tenant: str, user_id: str, *, by: str) -> User:
    """Nobody acts as this person any more; what they asked and decided stays, under an id that is not used again."""
    removed = await get(tx, tenant, user_id)
    await tx.execute(
        "update users set removed_at = clock() where tenant_id = %(tenant)s and user_id = %(user)s",
        {"tenant": tenant, "user": user_id},
    )
    await audit.append(tx, tenant, actor=by, action="removed", subject=f"user:{user_id}", body={"roles": removed.roles})
    return removed


async def ensure(tx: Transaction, tenant: str, user_id: str, *, name: str, roles: list[str], duties: list[str]) -> None:
    """Add the person unless they are there; for seeds that may run twice."""
    await tx.execute(
        """
        insert into users (tenant_id, user_id, name, roles, duties)
        values (%(tenant)s, %(user)s, %(name)s, %(roles)s, %(duties)s)
        on conflict do nothing
        """,
        {"tenant": tenant, "user": user_id, "name": name, "roles": roles, "duties": duties},
    )
