"""A real SMTP server on loopback that counts messages by their Message-ID, and misbehaves where a test says so.

`async with PostOffice() as post:` … `post.port`, `post.taken["<id>"]`. What it has taken it has taken, whatever it answers.
"""

import asyncio
from collections import Counter
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Literal

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

Fault = Literal[
    "cut_at_greeting",  # hangs up before it says a word
    "cut_before_content",  # hangs up instead of answering DATA
    "cut_within_content",  # hangs up after DATA was agreed to, without taking anything
    "cut_after_content",  # takes the message, then hangs up
    "hang_after_content",  # takes the message, then never answers
    "nonsense_after_content",  # takes the message, then answers what is no answer
]


class PostOffice:
    """One server; the address is `host`, `port`."""

    host = "127.0.0.1"

    def __init__(
        self, *, fault: Fault | None = None, smtputf8: bool = True, user: tuple[str, str] | None = None
    ) -> None:
        self.fault = fault
        self.smtputf8 = smtputf8
        self.user = user
        self.recipients: dict[str, str] = {}  # what RCPT TO is answered, by address
        self.answer = "250 2.0.0 taken"  # to the content; only 250 takes it
        self.data_answer: str | None = None  # to DATA, instead of agreeing
        self.taken: Counter[str] = Counter()  # messages by Message-ID: the witness
        self.messages: list[EmailMessage] = []
        self.envelopes: list[Envelope] = []
        self.logins = 0
        self.port = 0
        self._connections: set[asyncio.Transport] = set()

    async def __aenter__(self) -> "PostOffice":
        self._server = await asyncio.get_running_loop().create_server(lambda: _Clerk(self), self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for transport in list(self._connections):
            transport.abort()
        await self._server.wait_closed()

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        answer = self.recipients.get(address, "250 2.1.5 good")
        if answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        assert isinstance(envelope.content, bytes)
        message = message_from_bytes(envelope.content, policy=policy.SMTPUTF8)
        if self.answer.startswith("250"):
            self.taken[str(message["Message-ID"])] += 1
            self.messages.append(message)
            self.envelopes.append(envelope)
        if self.fault == "cut_after_content":
            server.transport.abort()
        if self.fault == "hang_after_content":
            await asyncio.Event().wait()
        return "so be it" if self.fault == "nonsense_after_content" else self.answer

    def authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        self.logins += 1
        assert isinstance(data, LoginPassword)
        good = (data.login.decode(), data.password.decode()) == self.user
        return AuthResult(success=good, handled=False)


class _Clerk(SMTP):
    def __init__(self, post: PostOffice) -> None:
        self._post = post
        login = {"authenticator": post.authenticate, "auth_require_tls": False} if post.user else {}
        super().__init__(post, hostname="post.example", enable_SMTPUTF8=post.smtputf8, **login)

    def connection_made(self, transport: Any) -> None:
        self._post._connections.add(transport)
        if self._post.fault == "cut_at_greeting":
            transport.abort()
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._post._connections.discard(self.transport)  # type: ignore[arg-type]
        super().connection_lost(error)

    async def smtp_DATA(self, arg: str) -> None:  # noqa: N802
        if self._post.fault == "cut_before_content":
            self.transport.abort()
            return
        if self._post.fault == "cut_within_content":
            await self.push("354 go on")
            self.transport.abort()
            return
        if self._post.data_answer is not None:
            await self.push(self._post.data_answer)
            return
        await super().smtp_DATA(arg)
