"""Send an email: unobservable (E7). Nobody can be asked whether it arrived, so a call whose answer was lost stays unknown
until a person has looked: `observe` says so, and says what to look for.

The Message-ID is made from the operation id. It lets people find a message in the server's log or a mailbox, and many
mailboxes show the same id only once; it is no promise of any server, so nothing is sent again on it.
"""

import re
from datetime import UTC, datetime, timedelta
from email import policy
from email.headerregistry import Address as Mailbox
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from tools import contract
from tools.contract import Line, Observed, Preview, Receipt, Tier, Tool
from tools.mail import smtp
from tools.mail.addresses import Address, Addresses, domain_of, on_the_wire
from tools.mail.smtp import Server


def _one_line(text: str) -> str:
    """A header ends at a line break: what stands behind one would be a header of its own. Nor may one turn the direction
    of what a reviewer reads."""
    if odd := re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", text):
        raise ValueError(f"expected one line of plain text, got U+{ord(odd[0]):04X}; leave it out")
    return text


def _lines(text: str) -> str:
    """Line breaks and tabs are text; other control characters are not."""
    if odd := re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)", text):
        raise ValueError(f"expected text with line breaks and tabs only, got U+{ord(odd[0]):04X}; leave it out")
    return text


class EmailArguments(contract.Arguments):
    """One message. Every recipient sees all the others."""

    to: Addresses = Field(description="Addresses, each once; at most 50. All of them see each other.")
    subject: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_one_line)]
    body: Annotated[str, Field(min_length=1, max_length=50_000), AfterValidator(_lines)] = Field(
        description="Plain text."
    )
    reply_to: Address | None = Field(default=None, description="Where answers go; default: to the sender.")


class EmailFacts(contract.Facts):
    """Who would get it."""

    recipient_count: int
    external_count: int  # recipients outside our own domains
    external_domains: list[str]  # in ASCII, sorted
    reply_goes_elsewhere: bool  # answers go to an address outside our own domains
    characters: int  # of the body


class SendEmail(Tool[EmailArguments, EmailFacts]):
    """Send one plain text email. It cannot be taken back.

    Everybody it goes to sees all addresses. The answer says for each recipient whether the mail server took it; that does
    not mean that it was read.
    """

    name = "send_email"
    Arguments = EmailArguments
    Facts = EmailFacts
    tier = Tier.irreversible
    effect_class = "mail.out"
    timeout = timedelta(seconds=smtp.PREPARING + smtp.ANSWERING + smtp.PARTING + 5)

    def __init__(self, server: Server, *, own_domains: frozenset[str] = frozenset()) -> None:
        """`own_domains` in ASCII and small letters; all others are outside."""
        self._server = server
        self._own = own_domains

    def resources(self, args: EmailArguments) -> list[str]:
        """Each recipient."""
        return [f"mail:{on_the_wire(one).casefold()}" for one in args.to]

    async def facts(self, args: EmailArguments) -> EmailFacts:
        """Counted from the addresses; nothing is asked of anybody."""
        outside = [domain_of(one) for one in args.to if self._is_outside(one)]
        return EmailFacts(
            recipient_count=len(args.to),
            external_count=len(outside),
            external_domains=sorted(set(outside)),
            reply_goes_elsewhere=args.reply_to is not None and self._is_outside(args.reply_to),
            characters=len(args.body),
        )

    async def preview(self, args: EmailArguments, facts: EmailFacts) -> Preview:
        """Title and counts from `facts`; the first five recipients as the sample. Text and addresses are in the payload,
        complete."""
        people = "1 person" if facts.recipient_count == 1 else f"{facts.recipient_count:,} people"
        warnings = [
            f"{one} is an address at {domain_of(one)}."
            for one in (*args.to, *filter(None, [args.reply_to]))
            if not one.isascii()
        ]
        if facts.reply_goes_elsewhere:
            warnings.append(f"Answers go to {args.reply_to}, outside our own domains.")
        outside = f": {', '.join(facts.external_domains)}" if facts.external_domains else ""
        return Preview(
            title=f"Send an email to {people}: {args.subject}",
            impact=[
                f"{people} get {facts.characters:,} characters from {self._server.sender}; it does not come back",
                f"{facts.external_count:,} of them outside our own domains{outside}",
            ],
            sample=[self._row(one) for one in args.to[:5]],
            warnings=warnings,
            reversible=False,
        )

    async def execute(self, args: EmailArguments, operation_id: str) -> Receipt:
        """Hand the message to the server; a line for each recipient. Raises as `smtp.deliver`."""
        message_id = self.message_id(operation_id)
        wide = any(
            not on_the_wire(one).isascii() for one in (self._server.sender, args.reply_to or "a@b.example", *args.to)
        )
        content = _compose(args, self._server.sender, message_id, smtputf8=wide)
        delivered = await smtp.deliver(self._server, args.to, content, smtputf8=wide)
        lines = [
            Line(ref=one, status="refused", reason=delivered.refused[one])
            if one in delivered.refused
            else Line(ref=one, status="done", external_id=message_id)
            for one in args.to
        ]
        taken = len(args.to) - len(delivered.refused)
        return Receipt(
            external_id=message_id,
            summary=f"The mail server took it for {taken:,} of {len(args.to):,} recipients.",
            lines=lines,
            data={"server": str(self._server), "answer": delivered.answer},
        )

    async def observe(self, args: EmailArguments, operation_id: str) -> Observed:
        """Always `unknown`: SMTP cannot be asked."""
        return Observed(
            status="unknown",
            evidence=f"Mail cannot be looked up. Search the log of {self._server}, or a recipient's mailbox, for "
            f"Message-ID {self.message_id(operation_id)}: found, it was sent.",
        )

    def message_id(self, operation_id: str) -> str:
        """The id in the message's head: the same for the same operation."""
        return f"<{operation_id}@{domain_of(self._server.sender)}>"

    def _is_outside(self, address: str) -> bool:
        return domain_of(address) not in self._own

    def _row(self, address: str) -> dict[str, JsonValue]:
        return {"to": address, "domain": domain_of(address), "outside": self._is_outside(address)}


def _compose(args: EmailArguments, sender: str, message_id: str, *, smtputf8: bool) -> bytes:
    """The message as it goes over the wire (RFC 5322). The library encodes, folds, and refuses line breaks in headers."""
    message = EmailMessage(policy=policy.SMTPUTF8 if smtputf8 else policy.SMTP.clone(cte_type="7bit"))
    message["From"] = _mailbox(sender)
    message["To"] = [_mailbox(one) for one in args.to]
    if args.reply_to is not None:
        message["Reply-To"] = _mailbox(args.reply_to)
    message["Subject"] = args.subject
    message["Date"] = format_datetime(datetime.now(UTC))
    message["Message-ID"] = message_id
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no machine should answer
    message.set_content(args.body)
    return message.as_bytes()


def _mailbox(address: str) -> Mailbox:
    local, _, domain = on_the_wire(address).rpartition("@")
    return Mailbox(username=local, domain=domain)
