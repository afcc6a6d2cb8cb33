"""Who calls LangGraph's server, and what they may there: owners of our keys, with the roles they have (L4).

Whoever only asks has their own threads; who decides, operates or audits sees all, as on our own server. What a run asks is
admitted by our rules, whoever asks.
"""

from typing import Any

from langgraph_sdk import Auth

from placet.platform import ALL_THREADS, authenticate
from placet.record.errors import NotAllowed

OWNER = "placet_owner"

auth = Auth()


@auth.authenticate
async def who(headers: dict[bytes, bytes]) -> Any:
    """The key's owner."""
    try:
        return await authenticate(headers)
    except NotAllowed as error:
        raise Auth.exceptions.HTTPException(status_code=401, detail=str(error)) from None


@auth.on
async def nothing_else(ctx: Auth.types.AuthContext, value: Any) -> bool:
    """Crons and the store have no part in any promise: refused."""
    return False


@auth.on.assistants
async def assistants(ctx: Auth.types.AuthContext, value: Any) -> bool:
    """The one assistant is there to be read."""
    return ctx.action in ("read", "search")


@auth.on.threads
async def threads(ctx: Auth.types.AuthContext, value: Any) -> Any:
    """One's own, or all for those who have to do with others' requests; nobody says whose a thread is."""
    if isinstance(value, dict) and ctx.action in ("create", "update", "create_run"):
        metadata = value.setdefault("metadata", {})  # changed where it is: the server keeps what it handed over
        metadata.pop(OWNER, None)
        if ctx.action != "update":
            metadata[OWNER] = ctx.user.identity
    return True if ALL_THREADS in ctx.permissions else {OWNER: ctx.user.identity}
