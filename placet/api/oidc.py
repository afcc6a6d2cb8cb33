"""Bearer tokens of an OpenID Connect issuer (L4).

The issuer's signing keys are found by discovery, kept for minutes and read again when a token names one we do not know,
but not more often than every few seconds, whatever tokens come. Only asymmetric algorithms on the list count, whatever
the token's header says; issuer, audience, expiry and subject are required.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
import structlog

from placet.api.errors import NotAuthenticated
from placet.record.canonical import NotPlain, check_plain
from placet.record.errors import PlacetError
from placet.settings import Settings

log = structlog.get_logger()
FRESH = 300.0  # seconds after which keys are read again: one that was withdrawn stops counting
PAUSE = 5.0  # seconds between two readings, however many unknown keys are named
TIMEOUT = 5.0  # seconds for the issuer's answer


class IssuerUnreachable(PlacetError):
    """The issuer's keys cannot be read, so no token can be checked; API keys work as before."""

    code = "issuer_unreachable"
    status = 503


class IssuerMisconfigured(PlacetError):
    """An issuer without an audience would accept tokens that were made for somebody else."""

    code = "issuer_misconfigured"
    status = 500


@dataclass(frozen=True, slots=True)
class Identity:
    """What a good token says. `user_id` is the claim that names a user here; None when it may not be believed."""

    issuer: str
    subject: str
    user_id: str | None


class Issuer:
    """One issuer and its keys."""

    def __init__(self, settings: Settings, client: httpx.AsyncClient | None = None) -> None:
        assert settings.oidc_issuer is not None
        if not settings.oidc_audience:
            raise IssuerMisconfigured("PLACET_OIDC_ISSUER needs PLACET_OIDC_AUDIENCE: whom a token must be made for.")
        self.settings = settings
        self.name = settings.oidc_issuer
        self._client = client or httpx.AsyncClient(timeout=TIMEOUT, follow_redirects=False)
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at = -FRESH
        self._reading = asyncio.Lock()

    async def close(self) -> None:
        await self._client.aclose()

    async def verify(self, token: str) -> Identity:
        """The token's identity; raises `NotAuthenticated` with what is wrong, or `IssuerUnreachable`."""
        settings = self.settings
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in settings.oidc_algorithms:
                raise jwt.InvalidAlgorithmError("its algorithm is not on the list")
            key = await self._key(header.get("kid"))
            claims = jwt.decode(
                token,
                key,
                algorithms=list(settings.oidc_algorithms),
                audience=settings.oidc_audience,
                issuer=self.name,
                leeway=settings.oidc_leeway,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise NotAuthenticated("The token has expired; get a new one.") from None
        except jwt.PyJWTError as error:
            raise NotAuthenticated(f"The token is not good: {type(error).__name__}.") from None
        identity = Identity(self.name, str(claims["sub"]), _user_id(claims, settings.oidc_user_claim))
        try:
            check_plain([identity.subject, identity.user_id])
        except NotPlain:
            raise NotAuthenticated("The token names somebody by text that no id here has.") from None
        return identity

    async def _key(self, kid: object) -> jwt.PyJWK:
        if not isinstance(kid, str):
            raise jwt.InvalidTokenError("it names no key")
        if kid not in self._keys or time.monotonic() - self._read_at > FRESH:
            await self._read(kid)
        if kid not in self._keys:
            raise jwt.InvalidKeyError("it names a key that the issuer does not have")
        return self._keys[kid]

    async def _read(self, kid: str) -> None:
        """Read the issuer's keys, once for all who wait. Without an answer, keys that are not old still count."""
        async with self._reading:
            age = time.monotonic() - self._read_at
            if age < PAUSE or (kid in self._keys and age <= FRESH):
                return
            try:
                found = await self._get(f"{self.name.rstrip('/')}/.well-known/openid-configuration")
                if found.get("issuer") != self.name:
                    raise ValueError(f"it calls itself {found.get('issuer')!r}")
                keys = (await self._get(str(found["jwks_uri"])))["keys"]
                self._keys = {key["kid"]: jwt.PyJWK(key) for key in keys if _is_for_signing(key)}
                self._read_at = time.monotonic()
            except (httpx.HTTPError, ValueError, KeyError, TypeError, jwt.PyJWTError) as error:
                log.warning("issuer_unreachable", issuer=self.name, error=f"{type(error).__name__}: {error}")
                raise IssuerUnreachable(
                    f"The keys of {self.name} cannot be read, so tokens cannot be checked now; API keys work."
                ) from error

    async def _get(self, url: str) -> dict[str, Any]:
        response = await self._client.get(url)
        response.raise_for_status()
        answer = response.json()
        if not isinstance(answer, dict):
            raise ValueError(f"{url} answered {type(answer).__name__}")
        return answer


def _is_for_signing(key: dict[str, Any]) -> bool:
    return bool(key.get("kid")) and key.get("use", "sig") == "sig" and key.get("kty") in ("RSA", "EC", "OKP")


def _user_id(claims: dict[str, Any], claim: str) -> str | None:
    """The claim's value, unchanged: an address counts only when the issuer has verified it."""
    value = claims.get(claim)
    if not isinstance(value, str) or (claim == "email" and claims.get("email_verified") is not True):
        return None
    return value
