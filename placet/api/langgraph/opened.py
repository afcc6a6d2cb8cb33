"""What the LangGraph routes work with: the services, the graph to read states with, and who follows which run."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.responses import Response

from graph import Graph, build
from graph.services import Services
from placet.api.langgraph.following import Following
from placet.api.langgraph.state import Reader
from placet.emit import encode


@dataclass(frozen=True, slots=True)
class LangGraph:
    """One process's face to LangGraph's clients."""

    services: Services
    graph: Graph
    reader: Reader
    following: Following


def open_face(services: Services, stopping: asyncio.Event) -> LangGraph:
    """The face on open services; `stopping` ends every stream."""
    graph = build(services)
    return LangGraph(services, graph, Reader(graph, services.database), Following(services.database, stopping))


def house_of(request: Request) -> LangGraph:
    """What `app.state` holds."""
    house: LangGraph = request.app.state.langgraph
    return house


House = Annotated[LangGraph, Depends(house_of)]


def json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer of whatever LangGraph puts into a state."""
    return Response(encode(value), status, headers, media_type="application/json")
