"""People: who asks, who decides, and whether they may (A5)."""

from dataclasses import dataclass
from typing import Literal

import psycopg.errors

from placet.record import canonical
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
    unknown = sorted(set(roles) - set(ROLES))
    if unknown or not roles:
        raise InvalidInput(f"Roles are {', '.join(ROLES)}; got {', '.join(unknown) or 'none'}.", field="roles")
    if "reviewer" not in roles and duties:
        raise InvalidInput("Duties are what a reviewer may decide; give the role reviewer too.", field="duties")
    if locale not in LOCALES:
        raise InvalidInput(f"Locales are {' and '.join(LOCALES)}; got {locale}.", field="locale")
    canonical.check_plain({"user_id": user_id, "name": name, "duties": duties})
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
