"""What a route gets of the open house: `services: Open` for the record, `house: Tools` where tools and rules are asked.

Rows are of the caller's tenant, whichever that is. Tools and rules are those of the server's own tenant, so a caller of
another one is refused before a tool is asked.
"""

from typing import Annotated

from fastapi import Depends, Request

from graph.services import Services
from placet.api.auth import Caller, authenticated
from placet.api.errors import NotServedHere
from placet.api.following import Timelines


def services_of(request: Request) -> Services:
    """The open services."""
    services: Services = request.app.state.services
    return services


def timelines_of(request: Request) -> Timelines:
    """What follows timelines in this process."""
    timelines: Timelines = request.app.state.timelines
    return timelines


def tools_of(request: Request, caller: Annotated[Caller, Depends(authenticated)]) -> Services:
    """The services, for a caller whose tenant the tools belong to; raises `NotServedHere`."""
    return serving(services_of(request), caller)


def serving(services: Services, caller: Caller) -> Services:
    """The services, unless their tools belong to another tenant than the caller."""
    if caller.tenant != services.settings.tenant:
        raise NotServedHere(
            f"This server's tools and rules are not those of {caller.tenant!r}; ask the one that serves it."
        )
    return services


Open = Annotated[Services, Depends(services_of)]
Tools = Annotated[Services, Depends(tools_of)]
Following = Annotated[Timelines, Depends(timelines_of)]
