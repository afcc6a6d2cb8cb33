"""What a message asks for: a few kinds of request, in English and in plain Spanish, and no guessing.

A request that says more than is understood here ("under 50.00", "except…", "do not…") is not understood at all: to
ignore a restriction would be to ask for more than was asked.
"""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["refund", "tag", "balance", "search", "report"]

EXAMPLES = (
    "Refund the failed orders of batch NOV-17",
    "Refund the cancelled invoices of 2010-12-20",
    "Refund the failed orders of batch NOV-17 and tag them as refund-requested",
    "What is the balance of batch NOV-17? (or of a customer, a day, an order)",
    "Search the delivered orders of customer 17850",
    "Tag the failed orders of batch NOV-17 as look-at-this",
    "Draft a refund report for batch NOV-17",
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was understood: what to do, and with which orders. Fields that were not named are None."""

    kinds: tuple[Kind, ...]
    batch: str | None = None
    day: str | None = None  # 2010-12-20
    status: str | None = None
    customer: str | None = None
    order_ids: tuple[str, ...] = ()
    tag: str | None = None
    refunds_due: bool = False  # of a search: only what has to go back
    currencies: frozenset[str] = frozenset()  # only orders in these; empty: in any

    @property
    def names_orders(self) -> bool:
        """Whether it says which orders; a status alone is the whole shop."""
        return bool(self.batch or self.day or self.customer or self.order_ids)

    def described(self, noun: str = "orders") -> str:
        """`failed orders of batch NOV-17`."""
        words = [self.status, noun] if self.status else [noun]
        if self.order_ids:
            words.append(", ".join(self.order_ids))
        if self.batch:
            words.append(f"of batch {self.batch}")
        if self.customer:
            words.append(f"of customer {self.customer}")
        if self.day:
            words.append(f"of {self.day}")
        if self.currencies:
            words.append(f"in {' or '.join(sorted(self.currencies))}")
        return " ".join(words)


class NotUnderstood(Exception):
    """A message is not a request that can be planned here; says why, without a full stop."""

    code = "not_understood"


LONGEST = 1000  # characters of a request; what is longer is no short request
_CURRENCY = re.compile(
    r"\b(EUR|GBP|USD|JPY|CHF|SEK|NOK|DKK|PLN|CZK|HUF|RON|TRY|CAD|AUD|NZD|BRL|MXN|CLP|INR|CNY|KRW|SGD|HKD|ZAR|KWD|BHD)\b"
)
_QUOTED = re.compile(r"""\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)""")
_QUOTED_OR = r"""(?:"([^"]+)"|'([^']+)'|{})"""
_REPORT = re.compile(r"\b(report|informe)\b", re.I)
_BALANCE = re.compile(r"\b(balance|saldo)\b", re.I)
_SEARCH = re.compile(r"\b(search|find|show|list|which|look\s+up|busca\w*|muestra\w*|lista\w*|qué|cuáles)\b", re.I)
_REFUND = re.compile(r"\b(refund|refunds|repay|reimburse|reembols\w*|devuelv\w*|devolver)\b", re.I)
_TAG = re.compile(r"\b(tag|label|mark|etiquet\w+|marca\w*)\b", re.I)
_NOT = re.compile(r"\b(not|don't|dont|never|no|stop|instead|nunca)\b", re.I)
_RESTRICTION = re.compile(
    r"\b(under|below|above|over|less|more|than|except|without|only|but|first|last|largest|smallest|until|before|after|"
    r"since|between|half|some|menos|más|excepto|salvo|sin|solo|sólo|antes|después|desde|hasta|entre|algunos)\b",
    re.I,
)
_BATCH = re.compile(r"\b(?i:batch|lote)\s+" + _QUOTED_OR.format(r"""([^\s,;?!"']*[A-Z0-9][^\s,;?!"']*)"""))
_DAY = re.compile(r"\b(\d{4}-\d{2}-\d{2})\b")
_CUSTOMER = re.compile(
    r"\b(?i:customer|client|cliente)\s+"
    + _QUOTED_OR.format(r"""([^\s,.;?!"']+(?:\s+[^\sa-z,.;?!"'\d][^\s,.;?!"']*)*)""")
)
_ORDERS = re.compile(
    r"\b(?:orders?|invoices?|pedidos?|facturas?)\s+((?:(?:,|and\b|y\b|\s)*\b[A-Za-z]{0,8}-?\d[\w-]*)+)", re.I
)
_TAG_AS = re.compile(r"\b(?:as|como)\s+" + _QUOTED_OR.format(r"([\w:/-]+)"), re.I)
_STATUS = {
    "failed": r"failed|fallid[oa]s?",
    "cancelled": r"cancell?ed|cancelad[oa]s?|anulad[oa]s?",
    "delivered": r"delivered|entregad[oa]s?",
    "completed": r"completed|completad[oa]s?",
    "shipped": r"shipped|enviad[oa]s?",
    "paid": r"paid|pagad[oa]s?",
}


def understand(message: str) -> Request:
    """`message` as a request. Raises `NotUnderstood`."""
    if len(message) > LONGEST:
        raise NotUnderstood(f"I take one short request, of at most {LONGEST:,} characters")
    words = _QUOTED.sub("", message)  # what stands in quotes is a name, never a verb
    kinds = _kinds(words)
    if not kinds:
        raise NotUnderstood("I do not see what to do")
    if found := _NOT.search(words) or _RESTRICTION.search(words):
        raise NotUnderstood(f"I do not understand {found[0]!r}, and will not leave it out")
    statuses = [status for status, pattern in _STATUS.items() if re.search(rf"\b({pattern})\b", words, re.I)]
    batches = _all(_BATCH, message)
    rest = _BATCH.sub("", message)
    days = _all(_DAY, rest)
    customers = _all(_CUSTOMER, rest)
    tags = _all(_TAG_AS, message) if "tag" in kinds else []
    for name, several in (
        ("status", statuses),
        ("batch", batches),
        ("day", days),
        ("customer", customers),
        ("tag", tags),
    ):
        if len(several) > 1:
            raise NotUnderstood(f"I can take one {name} at a time, and you name {' and '.join(several)}")
    request = Request(
        kinds=kinds,
        batch=batches[0] if batches else None,
        day=days[0] if days else None,
        status=statuses[0] if statuses else None,
        customer=customers[0] if customers else None,
        order_ids=_order_ids(rest),
        tag=tags[0] if tags else None,
        refunds_due="search" in kinds and bool(_REFUND.search(words)),
        currencies=frozenset(_CURRENCY.findall(rest)),
    )
    left = _ORDERS.sub("", _CUSTOMER.sub("", _TAG_AS.sub("", _DAY.sub("", rest))))
    if unknown := re.search(r"[^\s,;]*\d[^\s,;]*", left):  # another batch, a number of orders, an amount
        raise NotUnderstood(f"I do not know what to do with {unknown[0]!r}, and will not leave it out")
    if "search" not in kinds and kinds != ("report",) and not request.names_orders:
        raise NotUnderstood("I need to know which orders: a batch, a day, a customer or order numbers")
    if "tag" in kinds and not request.tag:
        raise NotUnderstood("I need to know the tag: tag … as NAME")
    return request


def _kinds(words: str) -> tuple[Kind, ...]:
    if _REPORT.search(words):
        return ("report",)
    if _BALANCE.search(words):
        return ("balance",)
    search, refund, tag = _SEARCH.search(words), _REFUND.search(words), _TAG.search(words)
    if search and not any(other and other.start() < search.start() for other in (refund, tag)):
        return ("search",)
    kinds: list[Kind] = []
    if refund:
        kinds.append("refund")
    if tag:
        kinds.append("tag")
    return tuple(kinds)


def _all(pattern: re.Pattern[str], text: str) -> list[str]:
    """Every distinct thing that the pattern names, in order."""
    found = (next(group for group in match.groups() if group) for match in pattern.finditer(text))
    return list(dict.fromkeys(name.strip().rstrip(".:") for name in found))


def _order_ids(text: str) -> tuple[str, ...]:
    ids = [word for match in _ORDERS.finditer(text) for word in re.findall(r"[A-Za-z]{0,8}-?\d[\w-]*", match[1])]
    return tuple(dict.fromkeys(word for word in ids if not _DAY.fullmatch(word)))
