"""Is it there, and what is it: `/ok`, `/info`, `/openapi.json`. Public, and without anything about anybody."""

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from placet.api.auth import public
from placet.api.errors import document_bodies

router = APIRouter(tags=["about"], dependencies=[Depends(public)])


class Ok(BaseModel):
    """The server answers."""

    ok: bool = Field(examples=[True])


class Info(BaseModel):
    """Which server this is, as LangGraph's clients read it."""

    version: str
    langgraph_py_version: str
    flags: dict[str, bool]
    host: dict[str, Any] = Field(default_factory=dict)


@router.get("/ok", summary="Whether the server answers")
async def ok() -> Ok:
    """The process answers; whether the database does, each request says itself."""
    return Ok(ok=True)


@router.get("/info", summary="Versions and what is switched on")
async def info() -> Info:
    """Versions, and what LangGraph's clients ask for before they use it."""
    return Info(
        version=version("placet"),
        langgraph_py_version=version("langgraph"),
        flags={"assistants": True, "crons": False, "langsmith": False},
        host={"kind": "placet"},
    )


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> dict[str, Any]:
    """This interface as OpenAPI 3.1."""
    return document_bodies(request.app.openapi())
