"""Who calls LangGraph's server: owners of our keys. Threads and runs are theirs alone, but for who decides."""

from typing import Any

from langgraph_sdk import Auth

from placet.platform import authenticate
from placet.record.errors import NotAllowed

auth = Auth()


@auth.authenticate
async def who(headers: dict[bytes, bytes]) -> Any:
    """The key's owner."""
    try:
        return await authenticate(headers)
    except NotAllowed as error:
        raise Auth.exceptions.HTTPException(status_code=401, detail=str(error)) from None
