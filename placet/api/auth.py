"""Who sends a request, and what they may do (L4, A5).

Every route declares who may call it: `Depends(needs("reviewer"))`, `Depends(needs(*ROLES))` for everybody who is known,
`Depends(public)` for nobody in particular. A route without a declaration stops the start (`refuse_undeclared`), so that
one that is forgotten is closed, not open. Roles and duties are read from the person's row on every request.

    X-Api-Key: placet_…                 or Authorization: Bearer placet_…
    Authorization: Bearer eyJ…          a token of the issuer in PLACET_OIDC_ISSUER
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts
from fastapi.security import APIKeyHeader, HTTPBearer

from placet.api.errors import NotAuthenticated
from placet.record import credentials, people
from placet.record.errors import NotAllowed
from placet.record.people import ROLES, Role, User

LOOPBACK = ("127.0.0.1", "::1", "localhost")
MAX_CREDENTIAL = 16_384  # characters of a key or token


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who is authenticated, as their row says now."""

    user: User
    via: Literal["key", "oidc", "dev"]
    credential: str  # `key:…`, `oidc:…` or `dev:…`; what requests are counted by

    @property
    def user_id(self) -> str:
        return self.user.user_id

    @property
    def tenant(self) -> str:
        return self.user.tenant_id

    @property
    def roles(self) -> list[str]:
        return self.user.roles

    @property
    def duties(self) -> list[str]:
        return self.user.duties

    @property
    def sees_all(self) -> bool:
        """Whether they see what others of their tenant asked for; a mere requester sees their own."""
        return any(role in self.roles for role in ("reviewer", "operator", "auditor"))

    def sees(self, requester: str) -> bool:
        """Whether they see what `requester` asked for."""
        return self.sees_all or requester == self.user_id

    def narrowed(self, requester: str | None) -> str | None:
        """A filter by requester, narrowed to what they see: theirs, whatever was asked for; None is everybody's."""
        if self.sees_all:
            return requester
        if requester not in (None, self.user_id):
            raise NotAllowed("You see what you asked for yourself; leave `requester` out, or give your own id.")
        return self.user_id


class UndeclaredRoute(RuntimeError):
    """A route says neither who may call it nor that it is public; the server does not start with it."""


# Only for the OpenAPI document: which credentials there are. What counts is `authenticated`.
_key = APIKeyHeader(name="X-Api-Key", auto_error=False, description="A key made by `placet users key`.")
_bearer = HTTPBearer(auto_error=False, description="A key, or a token of the OpenID Connect issuer.")


async def authenticated(
    request: Request, _documented: Annotated[object, Depends(_key)], _too: Annotated[object, Depends(_bearer)]
) -> Caller:
    """The caller; raises `NotAuthenticated`, or `TooManyRequests` when they asked too often."""
    caller = await identify(request)
    await request.app.state.limiter.count(caller.credential)
    return caller


async def identify(request: Request) -> Caller:
    """Whom the request's credentials belong to now; also asked again while a stream goes on."""
    state = request.app.state
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip() if scheme.lower() == "bearer" else ""
    given = token or request.headers.get("x-api-key", "")
    if not given:
        return await _developer(request)
    if len(given) > MAX_CREDENTIAL:
        raise NotAuthenticated("The key or token is longer than any of ours.")
    if given.startswith(credentials.PREFIX) or not token:
        async with state.services.database.read() as tx:
            known = await credentials.whose_key(tx, given)
        if known is None:
            raise NotAuthenticated("This key is unknown, has expired or was revoked. Make one: placet users key USER.")
        return Caller(known.user, "key", known.credential)
    if state.oidc is None:
        raise NotAuthenticated("This server takes API keys; no issuer of tokens is configured (PLACET_OIDC_ISSUER).")
    identity = await state.oidc.verify(token)
    async with state.services.database.read() as tx:
        user = await credentials.whose_subject(tx, identity.issuer, identity.subject)
        if user is None and identity.user_id is not None:
            try:
                user = await people.get(tx, state.settings.tenant, identity.user_id)
            except people.UnknownUser:
                user = None
    if user is None:
        raise NotAllowed(
            "The token is good, but nobody here is its subject. Add them: placet users add, then placet users link."
        )
    return Caller(user, "oidc", f"oidc:{user.tenant_id}:{user.user_id}")


async def _developer(request: Request) -> Caller:
    """Without credentials: the settings' development identity, to a client on this machine that no web page sent."""
    settings = request.app.state.settings
    missing = NotAuthenticated("This needs a key or a token: send X-Api-Key, or Authorization: Bearer ….")
    if settings.dev_user is None:
        raise missing
    host = (request.url.hostname or "").lower()
    if host not in LOOPBACK or (request.client is not None and request.client.host not in LOOPBACK):
        raise missing
    origin = request.headers.get("origin")
    if origin is not None and origin not in settings.cors_origins:  # some page in a browser of this machine
        raise missing
    async with request.app.state.services.database.read() as tx:
        user = await people.get(tx, settings.tenant, settings.dev_user)
    return Caller(user, "dev", f"dev:{user.user_id}")


@dataclass(frozen=True, slots=True)
class needs:  # noqa: N801  # reads as the sentence it is: Depends(needs("reviewer"))
    """A dependency: the caller, who has at least one of the roles; raises `NotAllowed` otherwise."""

    roles: tuple[Role, ...]

    def __init__(self, *roles: Role) -> None:
        object.__setattr__(self, "roles", roles)

    async def __call__(self, caller: Annotated[Caller, Depends(authenticated)]) -> Caller:
        if not any(caller.user.is_a(role) for role in self.roles):
            raise NotAllowed(
                f"This needs the role {' or '.join(self.roles)}; {caller.user_id} is {', '.join(caller.roles)}."
            )
        return caller


def public() -> None:
    """A dependency that says: anybody may call this, without credentials."""


Anybody = Annotated[Caller, Depends(needs(*ROLES))]
Requester = Annotated[Caller, Depends(needs("requester"))]
Reviewer = Annotated[Caller, Depends(needs("reviewer"))]
Operator = Annotated[Caller, Depends(needs("operator"))]
RequesterOrOperator = Annotated[Caller, Depends(needs("requester", "operator"))]


@dataclass(frozen=True, slots=True)
class Declared:
    """A route and who may call it; no roles: it is public; None: nobody said."""

    method: str
    path: str
    roles: tuple[Role, ...] | None


def declarations(app: FastAPI) -> Iterator[Declared]:
    """Every route of the app with what it declares."""
    for context in iter_route_contexts(app.routes):
        dependant: Dependant | None = getattr(context, "dependant", None)
        roles = _declared(dependant) if dependant is not None else None
        for method in sorted(getattr(context, "methods", None) or ["*"]):
            yield Declared(method, str(getattr(context, "path", context)), roles)


def _declared(dependant: Dependant) -> tuple[Role, ...] | None:
    for inner in dependant.dependencies:
        if inner.call is public:
            return ()
        if isinstance(inner.call, needs):
            return inner.call.roles
    return None


def refuse_undeclared(app: FastAPI) -> None:
    """Raise `UndeclaredRoute` for the first route that declares nothing (L4)."""
    for route in declarations(app):
        if route.roles is None:
            raise UndeclaredRoute(
                f"{route.method} {route.path} does not say who may call it: add Depends(needs(…)) or Depends(public)."
            )
