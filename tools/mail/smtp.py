"""One message, handed to one SMTP server, with the point of no return in plain sight (E4, RFC 5321).

Until the server has agreed to take the content (354), whatever goes wrong is definite: nothing was sent. From the first
byte of the content on, only the server's own answer is: 2xx accepted, 4xx and 5xx not accepted (RFC 5321, 4.2.5). Anything
else, a broken connection above all, is unknown and stays so: SMTP has no way to ask.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NoReturn

from aiosmtplib import (
    SMTP,
    SMTPAuthenticationError,
    SMTPException,
    SMTPRecipientRefused,
    SMTPResponseException,
)
from pydantic import SecretStr

from tools.contract import NothingSent, Refused
from tools.mail.addresses import domain_of, on_the_wire

PREPARING = 20.0  # seconds until the server agrees to take the content
ANSWERING = 60.0  # seconds for its answer to the content
PARTING = 2.0  # seconds for a goodbye that no longer matters


class AnswerLost(ConnectionError):
    """The content was on its way and no answer came that could be read; it may have been delivered. Code: `answer_lost`."""

    code = "answer_lost"


@dataclass(frozen=True, slots=True)
class Server:
    """The server that takes our mail, and as whom."""

    host: str
    port: int
    tls: Literal["starttls", "tls", "none"]
    sender: str
    user: str | None = None
    password: SecretStr | None = None
    preparing: float = PREPARING
    answering: float = ANSWERING

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Delivered:
    """The server's answer, and its reason for each recipient that it did not take."""

    answer: str
    refused: dict[str, str]


async def deliver(server: Server, recipients: Sequence[str], content: bytes, *, smtputf8: bool) -> Delivered:
    """Hand `content` (RFC 5322, CRLF lines) over for `recipients`.

    Raises `Refused` when the server says no for good, `NothingSent` when it says "later" or nothing had left, `AnswerLost`
    when it is unknown.
    """
    client = SMTP(
        hostname=server.host,
        port=server.port,
        use_tls=server.tls == "tls",
        start_tls=server.tls == "starttls",
        username=server.user,
        password=server.password.get_secret_value() if server.password else None,
        local_hostname=domain_of(server.sender),
        timeout=server.preparing,
    )
    try:
        try:
            async with asyncio.timeout(server.preparing):
                refused = await _prepare(client, server, recipients, smtputf8=smtputf8)
        except SMTPResponseException as no:
            _not_taken(server, no)
        except (SMTPException, OSError, ValueError) as error:
            raise NothingSent(f"{server} took nothing: {_in_words(error)}") from error
        answer = await _hand_over(client, server, content)
        with suppress(SMTPException, OSError):
            async with asyncio.timeout(PARTING):
                await client.quit()
        return Delivered(answer, refused)
    finally:
        client.close()


async def _prepare(client: SMTP, server: Server, recipients: Sequence[str], *, smtputf8: bool) -> dict[str, str]:
    """Everything before the content; returns the recipients that were refused, with the reasons."""
    await client.connect()
    if client.is_ehlo_or_helo_needed:
        await client.ehlo()
    if smtputf8 and not client.supports_extension("smtputf8"):
        raise Refused(f"{server} takes no addresses outside ASCII (SMTPUTF8); nothing was sent.", code="no_smtputf8")
    encoding = "utf-8" if smtputf8 else "ascii"
    options = ["SMTPUTF8", "BODY=8BITMIME"] if smtputf8 else []
    await client.mail(on_the_wire(server.sender), options=options, encoding=encoding)
    refused: dict[str, SMTPRecipientRefused] = {}
    for recipient in recipients:
        try:
            await client.rcpt(on_the_wire(recipient), encoding=encoding)
        except SMTPRecipientRefused as error:
            refused[recipient] = error
    reasons = {recipient: f"{error.code} {error.message}" for recipient, error in refused.items()}
    if len(refused) == len(recipients):
        told = "; ".join(f"{recipient}: {reason}" for recipient, reason in reasons.items())
        if any(400 <= error.code < 500 for error in refused.values()):
            raise NothingSent(f"{server} takes none of the recipients now: {told}")
        raise Refused(f"{server} takes none of the recipients: {told}", code="recipients_refused")
    start = await client.execute_command(b"DATA")
    if start.code != 354:
        raise SMTPResponseException(start.code, start.message)
    return reasons


async def _hand_over(client: SMTP, server: Server, content: bytes) -> str:
    """Send the content and wait for the one answer that says whether it was taken."""
    assert client.protocol is not None
    stuffed = re.sub(rb"(?m)^\.", b"..", content)  # RFC 5321, 4.5.2
    try:
        client.protocol.write(stuffed + b".\r\n")
        answer = await client.protocol.read_response(timeout=server.answering)
    except (SMTPException, OSError) as error:
        raise AnswerLost(f"{server} was handed the message and did not answer: {_in_words(error)}") from error
    if 200 <= answer.code < 300:
        return f"{answer.code} {answer.message}"
    if 400 <= answer.code < 600:
        _not_taken(server, SMTPResponseException(answer.code, answer.message))
    raise AnswerLost(f"{server} was handed the message and answered what is no answer: {answer.code} {answer.message}")


def _not_taken(server: Server, answer: SMTPResponseException) -> NoReturn:
    """A no of the server: for good, or for now."""
    told = f"{server} did not take it: {answer.code} {answer.message}"
    if isinstance(answer, SMTPAuthenticationError):
        raise Refused(f"{told} Check PLACET_SMTP_USER and PLACET_SMTP_PASSWORD.", code="login_refused") from answer
    if 500 <= answer.code < 600:
        raise Refused(told, code="mail_refused") from answer
    raise NothingSent(told) from answer


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()
