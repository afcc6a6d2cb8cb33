"""What must still hold when an approved call is about to execute (A7).

Still approved, not expired, arguments valid by the tool's schema, hash equal, preconditions unchanged in the real
system, and the policy asked again, only to be stricter. Whatever moved, the same call is asked again with the difference.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from graph.asking import Assessed, InvalidArguments, assess, draft, requirement, validate
from graph.services import Services
from placet.record import canonical
from placet.record.approvals import Approval, Requirement, Revision
from placet.record.items import Item
from policies.verdicts import Verdict, stricter
from tools.registry import schema_version


@dataclass(frozen=True, slots=True)
class Good:
    """It may execute."""


@dataclass(frozen=True, slots=True)
class Again:
    """Something moved: ask again, with the difference."""

    because: str
    changed: dict[str, Any]  # {fact: {"shown": …, "now": …}}
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Denied:
    """The policy forbids it now."""

    reason: str
    rule: str


@dataclass(frozen=True, slots=True)
class Orphaned:
    """The tool, or what it may be given, is no longer what it was (G8)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fresh:
    """What would be asked now."""

    revision: Revision
    requirement: Requirement


async def recheck(services: Services, item: Item, asked: Approval) -> Good | Again | Denied | Orphaned:
    """Whether the approved call may still execute."""
    asked.verify(services.keys)
    content = asked.content
    if (gone := _gone(services, content)) is not None:
        return gone
    if asked.overdue:
        return Again(
            f"the approval expired at {asked.expires_at:%Y-%m-%d %H:%M} UTC before it was used", {}, expired=True
        )
    assessed = await _assess(services, content)
    if isinstance(assessed, Orphaned):
        return assessed

    changed = {
        name: {"shown": shown, "now": assessed.facts_json.get(name)}
        for name, shown in asked.precondition.items()
        if assessed.facts_json.get(name) != shown
    }
    if changed:
        return Again("what justified it has changed", changed)
    more = stricter(_frozen(item, asked), assessed.verdict, duties=services.policy.duties)
    if more is None:
        return Good()
    if more.outcome == "denied":
        return Denied(more.because, assessed.verdict.rule)
    return Again(more.because, {})


async def fresh(services: Services, item: Item, asked: Approval) -> Fresh:
    """The same call as it would be asked now: its stored arguments, today's facts, the stricter of both requirements."""
    content = asked.content
    assessed = await _assess(services, content)
    if isinstance(assessed, Orphaned):  # the next task says so
        return Fresh(Revision(asked.payload, asked.preview, asked.precondition), _as_before(asked))
    if assessed.verdict.kind != "ask":
        return Fresh(await draft(assessed), _as_before(asked))
    return Fresh(await draft(assessed), requirement(assessed.verdict, services.settings.approval_ttl))


def still_there(services: Services, asked: Approval) -> bool:
    """Whether the tool is there and takes what it took when the call was asked."""
    return _gone(services, asked.content) is None


def _gone(services: Services, content: dict[str, Any]) -> Orphaned | None:
    if content["tool"] not in services.registry:
        return Orphaned(f"The tool {content['tool']} no longer exists.")
    if content["schema_version"] != schema_version(services.registry[content["tool"]]):
        return Orphaned(f"What {content['tool']} takes has changed since it was asked.")
    return None


async def _assess(services: Services, content: dict[str, Any]) -> Assessed | Orphaned:
    if (gone := _gone(services, content)) is not None:
        return gone
    tool = services.registry[content["tool"]]
    try:
        arguments, raw = validate(tool, content["arguments"])
    except InvalidArguments as error:
        return Orphaned(f"{tool.name} no longer takes these arguments: {error}")
    if raw != canonical.canonical(content["arguments"]):
        return Orphaned(f"{tool.name} makes something else of these arguments now.")
    return await assess(services, tool, arguments, raw)


def _frozen(item: Item, asked: Approval) -> Verdict:
    """What was required when people decided; an approval asked again may have required more than the gate froze."""
    assert item.verdict is not None
    frozen = Verdict.from_json(item.verdict)
    return frozen.model_copy(
        update={
            "duty": asked.duty,
            "quorum": asked.quorum,
            "confirm": asked.confirm,
            "policy_error": asked.policy_error,
        }
    )


def _as_before(asked: Approval) -> Requirement:
    """The rules were loosened meanwhile: people are asked as they were (never less)."""
    return Requirement(
        rule=asked.rule,
        reason=asked.reason,
        duty=asked.duty,
        quorum=asked.quorum,
        ttl=max(asked.expires_at - asked.asked_at, timedelta(minutes=1)),
        confirm=asked.confirm,
        policy_version=asked.policy_version,
        policy_error=asked.policy_error,
    )
