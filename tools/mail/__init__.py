"""Mail, over SMTP: the tool whose effect nobody can look up afterwards.

`tools(settings)` is empty where no server is configured. `KNOWN` are the tools' classes, whose rules are checked anyway.
"""

from placet.settings import Settings
from tools.mail.addresses import NotAnAddress, address, domain_of
from tools.mail.send_email import SendEmail
from tools.mail.smtp import Server
from tools.registry import AnyTool

KNOWN = (SendEmail,)

__all__ = ["KNOWN", "MailMisconfigured", "tools"]


class MailMisconfigured(ValueError):
    """The settings name a mail server that cannot be used as they say. Code: `mail_misconfigured`."""

    code = "mail_misconfigured"


def tools(settings: Settings) -> list[AnyTool]:
    """`send_email`, when the settings name a server. Raises `MailMisconfigured`."""
    if settings.smtp_host is None:
        return []
    if settings.smtp_from is None:
        raise MailMisconfigured("PLACET_SMTP_HOST is set; set PLACET_SMTP_FROM to the sender's address too.")
    if (settings.smtp_user is None) != (settings.smtp_password is None):
        raise MailMisconfigured("PLACET_SMTP_USER and PLACET_SMTP_PASSWORD go together: set both, or neither.")
    try:
        sender = address(settings.smtp_from)
        own = frozenset(domain_of(f"postmaster@{domain}") for domain in settings.own_domains)
    except NotAnAddress as error:
        raise MailMisconfigured(f"PLACET_SMTP_FROM or PLACET_OWN_DOMAINS: {error}") from None
    server = Server(
        host=settings.smtp_host,
        port=settings.smtp_port or {"tls": 465, "starttls": 587, "none": 25}[settings.smtp_tls],
        tls=settings.smtp_tls,
        sender=sender,
        user=settings.smtp_user,
        password=settings.smtp_password,
    )
    return [SendEmail(server, own_domains=own)]
