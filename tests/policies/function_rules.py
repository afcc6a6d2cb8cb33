"""Python functions that rules of the tests name; most of them misbehave."""

import threading
from typing import Any

from pydantic import BaseModel

from tests.policies.shop import RefundArguments, RefundFacts, TagArguments

release = threading.Event()  # lets those that hang come back


def single(arguments: RefundArguments, facts: RefundFacts) -> bool:
    return facts.count == 1 and len(arguments.refund_due_ids) == 1


async def single_async(arguments: RefundArguments, facts: RefundFacts) -> bool:
    return facts.count == 1


def of_any_tool(arguments: BaseModel, facts: BaseModel) -> bool:
    return True


def returns_nothing(arguments: RefundArguments, facts: RefundFacts) -> bool:
    return None  # type: ignore[return-value]


def returns_text(arguments: RefundArguments, facts: RefundFacts) -> bool:
    return "auto"  # type: ignore[return-value]


def returns_one(arguments: RefundArguments, facts: RefundFacts) -> bool:
    return 1  # type: ignore[return-value]


def raises(arguments: RefundArguments, facts: RefundFacts) -> bool:
    raise LookupError("no such customer")


def raises_anything(arguments: RefundArguments, facts: RefundFacts) -> bool:
    raise LookupError("\0\ud800" + "x" * 1_000_000)


def exits(arguments: RefundArguments, facts: RefundFacts) -> bool:
    raise SystemExit(0)


def hangs(arguments: RefundArguments, facts: RefundFacts) -> bool:
    return release.wait(60)


async def hangs_async(arguments: RefundArguments, facts: RefundFacts) -> bool:
    return release.wait(60)  # blocks its event loop


async def raises_async(arguments: RefundArguments, facts: RefundFacts) -> bool:
    raise LookupError("no such customer")


def says_no_type(arguments: RefundArguments, facts: RefundFacts):  # type: ignore[no-untyped-def]
    return True


def returns_int(arguments: RefundArguments, facts: RefundFacts) -> int:
    return 1


def for_another_tool(arguments: TagArguments, facts: RefundFacts) -> bool:
    return True


def untyped_parameter(arguments, facts: RefundFacts) -> bool:  # type: ignore[no-untyped-def]
    return True


def takes_anything(arguments: Any, facts: Any) -> bool:
    return True


def takes_three(arguments: RefundArguments, facts: RefundFacts, more: int) -> bool:
    return True


def wrong_annotation(arguments: "Nowhere", facts: RefundFacts) -> bool:  # type: ignore[name-defined]  # noqa: F821
    return True
