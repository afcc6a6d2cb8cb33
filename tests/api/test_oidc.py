"""Bearer tokens of an OpenID Connect issuer, here one on loopback that turns its keys (L4)."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi import FastAPI

from placet.api import oidc
from placet.record import credentials
from placet.record.database import Database
from tests.api.conftest import pays
from tests.api.serving import Served, listening, serve
from tests.outside import World
from tests.steps import TENANT, outside_house

AUDIENCE = "placet-tests"


@dataclass
class Provider:
    """An issuer with a key; `turn` replaces it."""

    url: str = ""
    kid: int = 0
    reads: int = 0
    down: bool = False
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    def turn(self) -> None:
        self.kid += 1
        self.key = rsa.generate_private_key(65537, 2048)

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/.well-known/openid-configuration")
        async def configuration() -> dict[str, str]:
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}

        @app.get("/keys")
        async def keys() -> dict[str, Any]:
            self.reads += 1
            if self.down:
                raise RuntimeError("down")
            public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
            return {"keys": [{**public, "kid": str(self.kid), "use": "sig"}]}

        return app

    def token(self, sub: str = "marta", *, algorithm: str = "RS256", key: Any = None, **claims: Any) -> str:
        now = int(time.time())
        said = {"iss": self.url, "aud": AUDIENCE, "sub": sub, "iat": now, "exp": now + 300, **claims}
        said = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(said, key or self.key, algorithm=algorithm, headers={"kid": str(self.kid)})


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    provider = Provider()
    async with listening(provider.app()) as url:
        provider.url = url
        yield provider


@pytest.fixture
async def served(database: Database, world: World, provider: Provider) -> AsyncIterator[Served]:
    house = await outside_house(database, world, pays, oidc_issuer=provider.url, oidc_audience=AUDIENCE)
    async with serve(house) as served:
        yield served


async def _me(served: Served, token: str) -> httpx.Response:
    return await served.to(None).get("/v1/me", headers={"Authorization": f"Bearer {token}"})


async def test_l4_a_good_token_is_the_person_its_subject_names(served: Served, provider: Provider) -> None:
    """Roles and duties are our own row's; what the token says about roles counts for nothing."""
    answer = await _me(served, provider.token("marta", roles=["operator"], duties=["everything"]))

    assert answer.status_code == 200
    assert answer.json()["via"] == "oidc"
    assert answer.json()["roles"] == ["reviewer", "requester"]
    assert answer.json()["duties"] == ["support", "finance"]


async def test_l4_a_turned_key_is_found_and_the_old_one_counts_no_more(
    served: Served, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The issuer rotates: tokens of the new key work at once, those of the withdrawn one do not."""
    monkeypatch.setattr(oidc, "PAUSE", 0.0)
    old = provider.token()
    assert (await _me(served, old)).status_code == 200

    provider.turn()

    assert (await _me(served, provider.token())).status_code == 200
    assert (await _me(served, old)).status_code == 401


async def test_l4_unknown_keys_do_not_make_us_ask_the_issuer_again_and_again(
    served: Served, provider: Provider
) -> None:
    """A flood of tokens that name keys nobody has costs the issuer one reading."""
    for kid in range(20):
        token = jwt.encode({"sub": "x"}, provider.key, algorithm="RS256", headers={"kid": f"made-up-{kid}"})
        assert (await _me(served, token)).status_code == 401
    assert provider.reads == 1


async def test_l4_an_issuer_that_is_down_refuses_tokens_and_not_keys(served: Served, provider: Provider) -> None:
    """503 that says so; whoever has an API key goes on."""
    provider.down = True
    answer = await _me(served, provider.token())
    assert (answer.status_code, answer.json()["code"]) == (503, "issuer_unreachable")
    assert (await served.to("marta").get("/v1/me")).status_code == 200


FORGED: dict[str, Any] = {
    "another issuer": lambda p: p.token(iss="https://elsewhere.example"),
    "another audience": lambda p: p.token(aud="somebody-else"),
    "no audience": lambda p: p.token(aud=None),
    "expired": lambda p: p.token(exp=int(time.time()) - 3600),
    "no expiry": lambda p: p.token(exp=None),
    "not yet": lambda p: p.token(nbf=int(time.time()) + 3600),
    "no subject": lambda p: p.token(sub=None),
    "another key under our kid": lambda p: p.token(key=rsa.generate_private_key(65537, 2048)),
    "no signature": lambda p: jwt.encode({"iss": p.url, "aud": AUDIENCE, "sub": "marta"}, None, algorithm="none"),
    "an algorithm that is not on the list": lambda p: p.token(algorithm="RS384"),
    "the public key as an HMAC secret": lambda p: p.token(
        algorithm="HS256", key=str(p.key.public_key().public_numbers().n)
    ),
    "a subject that no database holds": lambda p: p.token(sub="mar\x00ta"),
    "half of a surrogate pair as subject": lambda p: p.token(sub="\ud800"),
    "garbage": lambda p: "a.b.c",
    "a changed payload": lambda p: p.token().replace(".", ".e30", 1),
}


@pytest.mark.parametrize("how", FORGED)
async def test_l4_a_token_that_is_not_good_is_401(served: Served, provider: Provider, how: str) -> None:
    """Whatever is wrong with it, it makes nobody."""
    answer = await _me(served, FORGED[how](provider))
    assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")


async def test_l4_clocks_may_differ_by_the_leeway(served: Served, provider: Provider) -> None:
    """A token that expired ten seconds ago is still taken, one of two minutes ago is not."""
    assert (await _me(served, provider.token(exp=int(time.time()) - 10))).status_code == 200
    assert (await _me(served, provider.token(exp=int(time.time()) - 120))).status_code == 401


async def test_l4_a_subject_is_a_person_only_when_somebody_said_so(served: Served, provider: Provider) -> None:
    """An unknown subject is 403 until it is linked; a link beats the claim."""
    stranger = provider.token("auth0|5f7c8ec7")
    assert (await _me(served, stranger)).status_code == 403

    async with served.house.database.transaction() as tx:
        await credentials.link(tx, TENANT, "pedro", issuer=provider.url, subject="auth0|5f7c8ec7", by="test")

    assert (await _me(served, stranger)).json()["user_id"] == "pedro"


async def test_a5_who_asked_with_a_token_may_not_approve_with_a_key(served: Served, provider: Provider) -> None:
    """It is the person who asked, not the credential."""
    token = {"Authorization": f"Bearer {provider.token('marta')}"}
    asked = await served.to(None).post("/v1/turns", json={"message": "Do it."}, headers=token)
    assert asked.status_code == 202
    await served.house.worker.run_until_idle()
    [waiting] = (await served.to("marta").get("/v1/approvals")).json()["rows"]

    answer = await served.decide(waiting, {"kind": "approve"}, "marta")

    assert answer.status_code == 403
    assert (await served.decide(waiting, {"kind": "approve"}, "pedro")).status_code == 200
