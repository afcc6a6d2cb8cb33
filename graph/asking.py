"""What people are asked: the bytes that would run, and a preview made by code from the real system (A1, A2).

Used by the gate, when a call is asked again, and for an edit. The model's words are no part of it.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import ValidationError

from graph.plain import clean
from graph.said import said
from graph.services import Services
from placet.record import canonical
from placet.record.approvals import Requirement, Revision
from placet.record.errors import InvalidInput
from policies.schemas import CannotTell
from policies.verdicts import Verdict
from tools.contract import Arguments, Facts, Preview
from tools.registry import AnyTool, schema_version


class InvalidArguments(InvalidInput):
    """Arguments that the tool's schema does not take; `field` is the first one's path."""

    code = "invalid_arguments"


@dataclass(frozen=True, slots=True)
class Assessed:
    """A call with what is true about it now, and what the policy says of that."""

    tool: AnyTool
    arguments: Arguments
    raw: bytes  # RFC 8785 of the arguments: what would run
    facts: Facts | None  # None when they could not be had
    verdict: Verdict

    @property
    def facts_json(self) -> dict[str, Any]:
        """The facts as they are stored and shown."""
        return self.facts.model_dump(mode="json") if self.facts is not None else {}


def validate(tool: AnyTool, proposed: Mapping[str, Any]) -> tuple[Arguments, bytes]:
    """The typed arguments and their canonical bytes; raises `InvalidArguments` with the field (P6).

    The bytes are read back through the schema when the call runs, so that what runs is what was approved.
    """
    try:
        arguments = tool.Arguments.model_validate_json(canonical.canonical(dict(proposed)))
        raw = canonical.canonical(arguments.model_dump(mode="json"))
        check_read_back(tool, raw)
    except canonical.NotPlain as error:
        raise InvalidArguments(str(error), field=error.details["field"]) from None
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        fields = [_path(problem["loc"]) for problem in problems]
        told = "; ".join(f"{field}: {problem['msg']}" for field, problem in zip(fields, problems, strict=True))
        raise InvalidArguments(told[:2000], field=fields[0]) from None
    return arguments, raw


def check_read_back(tool: AnyTool, raw: bytes) -> None:
    """Raise `InvalidArguments` unless the tool, given the bytes that were approved, understands exactly these (A2): its
    schema may have another name for a field than it takes, or change a value each time that it reads it."""
    try:
        again = canonical.canonical(tool.Arguments.model_validate_json(raw).model_dump(mode="json"))
    except ValidationError as error:
        told = "; ".join(f"{_path(one['loc'])}: {one['msg']}" for one in error.errors(include_url=False))
        raise InvalidArguments(
            f"{tool.name} does not read back what it made of them: {told[:2000]}", field="arguments"
        ) from None
    if again != raw:
        raise InvalidArguments(f"{tool.name} reads something else each time; mend its schema.", field="arguments")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "arguments"


async def assess(services: Services, tool: AnyTool, arguments: Arguments, raw: bytes) -> Assessed:
    """Facts from the real system and the policy's verdict on them; whatever goes wrong asks, never lets pass (P6)."""
    try:
        async with asyncio.timeout(services.settings.policy_timeout):
            facts = await tool.facts(arguments)
            canonical.check_plain(facts.model_dump(mode="json"))
    except Exception as error:  # noqa: BLE001  # a tool's own code may raise anything; the answer is always to ask
        return Assessed(tool, arguments, raw, None, await _judge(services, tool, arguments, CannotTell(_why(error))))
    return Assessed(tool, arguments, raw, facts, await _judge(services, tool, arguments, facts))


async def _judge(services: Services, tool: AnyTool, arguments: Arguments, facts: Facts | CannotTell) -> Verdict:
    """The policy's verdict; what a rule's own code said when it broke is made storable."""
    verdict = await services.policy.decide(tool.name, arguments, facts)
    if verdict.policy_error is None:
        return verdict
    return verdict.model_copy(update={"policy_error": clean(verdict.policy_error)})


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the facts took too long"
    return f"the facts could not be had ({said(error, 500)})"


async def draft(assessed: Assessed) -> Revision:
    """What people would be shown for this call."""
    tool, facts = assessed.tool, assessed.facts_json
    payload = canonical.canonical(
        {
            "tool": tool.name,
            "schema_version": schema_version(tool),
            "arguments": canonical.parse(assessed.raw),
            "facts": facts,
        }
    )
    return Revision(
        payload=payload,
        preview=(await _preview(assessed)).model_dump(mode="json"),
        precondition={name: facts[name] for name in tool.preconditions if name in facts},
    )


async def _preview(assessed: Assessed) -> Preview:
    try:
        if assessed.facts is None:
            raise LookupError("its facts could not be had")
        preview: Preview = await assessed.tool.preview(assessed.arguments, assessed.facts)
        canonical.check_plain(preview.model_dump(mode="json"))
    except Exception as error:  # noqa: BLE001  # people still see exactly what would run, and that nothing was counted
        return Preview(
            title=f"Call {assessed.tool.name}",
            warnings=[f"No preview ({said(error, 500)}). Only the arguments are known."],
            reversible=False,
        )
    return preview


def requirement(verdict: Verdict, default_ttl: timedelta) -> Requirement:
    """Who must decide, as the rule says it."""
    assert verdict.kind == "ask"
    assert verdict.duty is not None
    return Requirement(
        rule=verdict.rule,
        reason=verdict.reason,
        duty=verdict.duty,
        quorum=verdict.quorum,
        ttl=timedelta(seconds=verdict.ttl) if verdict.ttl else default_ttl,
        confirm=verdict.confirm or "click",
        policy_version=verdict.policy_version,
        policy_error=verdict.policy_error,
    )
