"""Assistants: there is one, the graph `placet`. It is configured in the repository, not by clients."""

from typing import Annotated, Any
from uuid import UUID, uuid5

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response
from pydantic import Field

from graph import Graph
from placet.api.auth import Anybody, needs
from placet.api.errors import answers
from placet.api.langgraph.bodies import AssistantSearch
from placet.api.langgraph.opened import House, json
from placet.record.errors import NotFound
from placet.record.people import ROLES

GRAPH_ID = "placet"
ASSISTANT_ID = str(uuid5(UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8"), GRAPH_ID))  # as LangGraph derives it
SINCE = "2026-01-01T00:00:00+00:00"

router = APIRouter(tags=["assistants"], dependencies=[Depends(needs(*ROLES))])


class UnknownAssistant(NotFound):
    """There is one assistant, `placet`."""

    code = "unknown_assistant"


def check_assistant(name: str) -> None:
    """Raise `UnknownAssistant` unless `name` is the assistant's name or id."""
    if name not in (GRAPH_ID, ASSISTANT_ID):
        raise UnknownAssistant(f"There is no assistant {name[:100]!r}; there is {GRAPH_ID!r}.")


def assistant() -> dict[str, Any]:
    """The assistant in LangGraph's form."""
    return {
        "assistant_id": ASSISTANT_ID,
        "graph_id": GRAPH_ID,
        "name": GRAPH_ID,
        "description": "Plans freely; what has consequences waits for assent.",
        "config": {},
        "context": {},
        "metadata": {"created_by": "system"},
        "version": 1,
        "created_at": SINCE,
        "updated_at": SINCE,
    }


@router.post("/assistants/search", summary="The assistant", responses=answers(400, 413))
async def search(body: AssistantSearch) -> list[dict[str, Any]]:
    """One, unless the filter excludes it."""
    one = assistant()
    fits = (
        body.graph_id in (None, GRAPH_ID)
        and (body.name or "").lower() in GRAPH_ID
        and all(one["metadata"].get(key) == value for key, value in (body.metadata or {}).items())
        and body.offset == 0
    )
    return [one] if fits else []


@router.post("/assistants/count", summary="How many assistants", responses=answers(400, 413))
async def count(body: AssistantSearch) -> int:
    """1, unless the filter excludes it."""
    return len(await search(body))


@router.get("/assistants/{assistant_id}", summary="The assistant", responses=answers(404))
async def get(assistant_id: str) -> dict[str, Any]:
    """By name or id."""
    check_assistant(assistant_id)
    return assistant()


@router.get("/assistants/{assistant_id}/schemas", summary="JSON schemas of the graph", responses=answers(404))
async def schemas(assistant_id: str, house: House, caller: Anybody) -> dict[str, Any]:
    """What goes in and what the state holds."""
    check_assistant(assistant_id)
    graph: Graph = house.graph
    state = graph.get_output_jsonschema()
    return {
        "graph_id": GRAPH_ID,
        "input_schema": {
            "title": "Input",
            "type": "object",
            "properties": {"messages": {"type": "array", "items": {"type": "object"}, "minItems": 1}},
            "required": ["messages"],
        },
        "output_schema": state,
        "state_schema": state,
        "config_schema": None,
        "context_schema": None,
    }


@router.get("/assistants/{assistant_id}/graph", summary="The graph's picture", responses=answers(404))
async def picture(
    assistant_id: str, house: House, xray: Annotated[bool | Annotated[int, Field(ge=0, le=10)], Query()] = False
) -> Response:
    """Nodes and edges; `xray` draws the pipeline of a call as well."""
    check_assistant(assistant_id)
    return json(house.graph.get_graph(xray=xray).to_json())


@router.get("/assistants/{assistant_id}/subgraphs", summary="The graph's subgraphs", responses=answers(404))
@router.get("/assistants/{assistant_id}/subgraphs/{namespace}", summary="One subgraph", responses=answers(404))
async def subgraphs(assistant_id: str, house: House, namespace: str | None = None) -> dict[str, Any]:
    """The pipeline of a call."""
    check_assistant(assistant_id)
    found = {
        name: {"graph_id": GRAPH_ID, "input_schema": None, "output_schema": None, "state_schema": None}
        for name, _ in house.graph.get_subgraphs()
    }
    return {name: schema for name, schema in found.items() if namespace in (None, name)}
