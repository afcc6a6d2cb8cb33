"""The demo's own check, against the gateway's ledger: what was approved last was paid, each line exactly once, to the cent,
and nothing else. The gateway counts for itself, so this believes neither our record nor our books."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from placet.record.effects import Effect
from tools.money import show as money
from tools.shop.gateway import Paid


@dataclass(frozen=True, slots=True)
class Approved:
    """What people assented to last: which refunds, and what they come to. Nothing when they refused."""

    refs: tuple[str, ...] = ()
    minor: int = 0
    currency: str = "EUR"


@dataclass(frozen=True, slots=True)
class Testimony:
    """What the gateway says, and what of it should be otherwise."""

    paid: Sequence[Paid]
    approved: Approved
    wrong: list[str] = field(default_factory=list)

    @property
    def minor(self) -> int:
        return sum(one.minor for one in self.paid)

    @property
    def total(self) -> str:
        """The gateway's own sum."""
        return money(self.minor, self.approved.currency)

    def as_json(self) -> dict[str, Any]:
        """For a machine."""
        return {
            "count": len(self.paid),
            "each_once": all(one.times == 1 for one in self.paid),
            "total": {"minor": self.minor, "currency": self.approved.currency, "text": self.total},
            "wrong": self.wrong,
        }


def examine(paid: Sequence[Paid], approved: Approved, effects: Sequence[Effect]) -> Testimony:
    """Compare ledger, approval and receipts."""
    wrong = []
    twice = [one.ref for one in paid if one.times != 1]
    if twice:
        wrong.append(f"paid more than once: {', '.join(twice)}")
    ledger, wanted = {one.ref for one in paid}, set(approved.refs)
    if missing := sorted(wanted - ledger):
        wrong.append(f"approved and not paid: {', '.join(missing)}")
    if strangers := sorted(ledger - wanted):
        wrong.append(f"paid and not approved: {', '.join(strangers)}")
    if any(one.currency != approved.currency for one in paid):
        wrong.append(f"paid in another currency than {approved.currency}")
    total = sum(one.minor for one in paid)
    if total != approved.minor:
        given, expected = money(total, approved.currency), money(approved.minor, approved.currency)
        wrong.append(f"{given} were paid, {expected} were approved")
    received = sum(_received(effect) for effect in effects)
    if received != total:
        wrong.append(
            f"the receipts come to {money(received, approved.currency)}, the ledger to {money(total, approved.currency)}"
        )
    return Testimony(paid, approved, wrong)


def _received(effect: Effect) -> int:
    """What the receipt of a refund says was paid, minor units."""
    lines = (effect.receipt or {}).get("lines", [])
    return sum(int(line["minor"]) for line in lines if line["status"] == "done" and effect.tool == "refund_payments")
