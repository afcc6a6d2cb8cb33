"""Mail addresses: one form for each, so that what is approved is what is sent to.

An address is normalised when it is read: the domain in small letters, Unicode composed. Its domain is compared and shown
in ASCII (RFC 5890), where a letter of another script cannot pass for one of ours.
"""

from typing import Annotated

from email_validator import EmailNotValidError, ValidatedEmail, validate_email
from pydantic import AfterValidator, Field


class NotAnAddress(ValueError):
    """The text is no mail address. Code: `not_an_address`."""

    code = "not_an_address"


def address(text: str) -> str:
    """The normal form of an address. Raises `NotAnAddress` with what is wrong."""
    return _parsed(text).normalized


def domain_of(text: str) -> str:
    """The domain of an address, in ASCII and small letters: `xn--bcher-kva.example`."""
    return _parsed(text).ascii_domain.lower()


def on_the_wire(text: str) -> str:
    """The address as SMTP takes it: all ASCII where the local part is, so that only others need SMTPUTF8 (RFC 6531)."""
    parsed = _parsed(text)
    return parsed.ascii_email or f"{parsed.local_part}@{parsed.ascii_domain}"


def _parsed(text: str) -> ValidatedEmail:
    try:
        return validate_email(text, check_deliverability=False)
    except EmailNotValidError as error:
        raise NotAnAddress(f"expected an address like ana@example.com, got {text[:100]!r}: {error}") from None


def _distinct(addresses: list[str]) -> list[str]:
    seen: set[str] = set()
    for one in addresses:
        if one.casefold() in seen:
            raise ValueError(f"expected each address once, got {one} twice; name it once")
        seen.add(one.casefold())
    return addresses


Address = Annotated[str, Field(max_length=254, json_schema_extra={"format": "email"}), AfterValidator(address)]
Addresses = Annotated[list[Address], Field(min_length=1, max_length=50), AfterValidator(_distinct)]
