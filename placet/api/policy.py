"""`/v1/policy` and `/v1/me`: which calls must pause, what the rules say of one, and who is asking (P7, P8)."""

from fastapi import APIRouter, Depends

from graph.asking import assess, validate
from placet.api.auth import Anybody, needs
from placet.api.errors import answers
from placet.api.opened import Tools
from placet.api.shapes import Call, Explained, Me, Rules
from policies.schemas import CannotTell

router = APIRouter(prefix="/v1", tags=["policy"])


@router.get("/me", responses=answers(), summary="Who is asking", tags=["people"])
async def me(caller: Anybody) -> Me:
    """The caller with roles and duties as they are now."""
    user = caller.user
    return Me(
        user_id=user.user_id,
        name=user.name,
        tenant=user.tenant_id,
        roles=user.roles,
        duties=user.duties,
        via=caller.via,
    )


@router.get("/policy", responses=answers(409), summary="The rules as sentences")
async def rules(caller: Anybody, services: Tools) -> Rules:
    """Per tool, in the order in which they are applied."""
    return Rules(version=services.policy.version, tools=services.policy.sentences())


@router.post(
    "/policy/explain",
    responses=answers(400, 404, 409, 413),
    summary="What the rules say of one call now",
    dependencies=[Depends(needs("reviewer", "operator", "auditor"))],
)
async def explain(services: Tools, given: Call) -> Explained:
    """The facts come from the real system; nothing is executed or stored."""
    tool = services.registry[given.tool]
    arguments, raw = validate(tool, given.arguments)
    assessed = await assess(services, tool, arguments, raw)
    known = assessed.facts if assessed.facts is not None else CannotTell("the facts could not be had")
    explained = await services.policy.explain(given.tool, arguments, known)
    return Explained(tool=given.tool, arguments=given.arguments, facts=assessed.facts_json, **explained.as_json())
