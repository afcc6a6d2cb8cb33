"""Every setting, typed, with its default and one line of why. Read from the environment (`PLACET_…`), nothing else.

Two more are no settings of a house and are read where they act: `PLACET_DEBUG=1` shows a failed command's traceback,
`PLACET_CRASH_AT` arms crash points in tests.
"""

from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def default_home() -> Path:
    """The user's data folder (XDG Base Directory), where the embedded database lives."""
    import os  # noqa: PLC0415

    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "placet"


class Settings(BaseSettings):
    """One instance per process, frozen; tests build their own."""

    model_config = SettingsConfigDict(
        env_prefix="PLACET_", env_ignore_empty=True, frozen=True, extra="ignore", populate_by_name=True
    )

    # Where things are
    home: Path = Field(default_factory=default_home)  # embedded database, keys; one folder to back up
    database_url: SecretStr | None = None  # the application's role; production sets it; none: embedded Postgres
    owner_database_url: SecretStr | None = (
        None  # the role that migrates; without it the application owns its audit rows
    )
    database_wait: float = Field(default=60.0, ge=0)  # seconds to wait for a database that is down
    pool_size: int = Field(default=10, ge=2, le=200)  # connections of one process
    rules: Path | None = None  # another rules file than policies/rules.toml
    tools: Annotated[tuple[str, ...], NoDecode] = ()  # your own, module:Class or module:function, separated by commas

    # Who acts
    tenant: str = Field(default="default", min_length=1, max_length=63)  # whose data this process serves
    user: str | None = None  # who acts on the command line when --as is not given

    # Keys: rows that decide are authenticated with them (V6); several machines must share them
    digest_key: SecretStr | None = None  # at least 32 characters; none: a file in `home`, made at the first start
    digest_key_id: str = "k1"  # names the key in each row, so that keys can be rotated

    # The model
    model: str | None = None  # none: `gpt-4.1-mini` when OPENAI_API_KEY is set, else the rehearsal planner
    openai_base_url: str | None = Field(default=None, validation_alias="OPENAI_BASE_URL")
    openai_api_key: SecretStr | None = Field(default=None, validation_alias="OPENAI_API_KEY")
    model_timeout: float = Field(default=60.0, gt=0)  # seconds for one answer
    model_retries: int = Field(default=4, ge=0, le=10)  # on 429 and 5xx, with respect for Retry-After
    model_max_tokens: int = Field(default=4096, ge=1)  # of one answer

    # Turns
    max_steps: int = Field(default=12, ge=1, le=1000)  # model turns per user turn (G6)
    max_gated_calls: int = Field(default=8, ge=1, le=100)  # asked together in one model turn; more are deferred (G4)
    max_message_chars: int = Field(default=100_000, ge=1)  # a longer user message is refused, whole
    approval_ttl: timedelta = timedelta(hours=24)  # when the rule names none (A9)
    policy_timeout: float = Field(default=2.0, gt=0)  # seconds for facts and rules of one call; longer asks (P6)

    # Mail that the agent sends
    smtp_host: str | None = None  # the server that takes it; none: the agent has no send_email
    smtp_port: int | None = Field(default=None, ge=1, le=65535)  # none: 587, 465 or 25, as `smtp_tls` says
    smtp_tls: Literal["starttls", "tls", "none"] = "starttls"  # "none" only towards a server on the same machine
    smtp_user: str | None = None  # who logs in; none: nobody does
    smtp_password: SecretStr | None = None  # goes with the user
    smtp_from: str | None = None  # the sender's address; its domain also ends each Message-ID
    own_domains: Annotated[tuple[str, ...], NoDecode] = ()  # separated by commas; a recipient anywhere else is outside

    # Payments through Stripe
    stripe_api_key: SecretStr | None = (
        None  # a restricted key for refunds; none: the agent has no refund_stripe_payments
    )
    stripe_address: str | None = None  # another address than Stripe's own, for a test server

    # Ownership
    lease: timedelta = timedelta(seconds=12)  # a dead worker's run is taken up after this and a poll (O3)
    poll: float = Field(default=1.0, gt=0)  # seconds between looks for work when no NOTIFY came
    stream_retention: timedelta = timedelta(days=1)  # what a run streamed can be gone on with for so long (L1)
    concurrency: int = Field(default=4, ge=1)  # runs of one worker at the same time

    # The server
    host: str = "127.0.0.1"  # elsewhere only with keys or OIDC; TLS belongs to the proxy in front
    port: int = Field(default=2024, ge=0, le=65535)  # where LangGraph's clients look; 0: a free one
    dev_user: str | None = None  # who acts when a request carries no credentials; only on loopback, for development
    cors_origins: list[str] = []  # origins of browser apps on other hosts, as a JSON list; none: CORS stays off
    max_body_bytes: int = Field(default=2**20, ge=1024)  # a larger request is refused with 413
    rate_limit: str = "200/second"  # requests of one key or person, counted in each server process
    heartbeat: float = Field(default=5.0, gt=0)  # seconds between signs of life on an event stream

    # OpenID Connect: bearer tokens of an issuer that you have
    oidc_issuer: str | None = None  # exactly the token's `iss`; none: only API keys are accepted
    oidc_audience: str | None = None  # exactly (one of) the token's `aud`; required with an issuer
    oidc_user_claim: str = "sub"  # the claim that is a user id here, unless `placet users link` says who it is
    oidc_algorithms: list[Literal["RS256", "PS256", "ES256", "ES384", "EdDSA"]] = ["RS256", "PS256", "ES256", "EdDSA"]
    oidc_leeway: float = Field(default=30.0, ge=0, le=300)  # seconds by which clocks may differ

    # The client: the command line talks to a server instead of a database
    url: str | None = None  # of the server
    api_key: SecretStr | None = None  # made by `placet users key`

    @field_validator("url")
    @classmethod
    def _an_address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError(f"expected an address like http://127.0.0.1:2024, got {value!r}")
        return value

    @field_validator("own_domains", "tools", mode="before")
    @classmethod
    def _separated_by_commas(cls, value: object) -> object:
        return tuple(filter(None, (part.strip() for part in value.split(",")))) if isinstance(value, str) else value


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The process's settings."""
    return Settings()
