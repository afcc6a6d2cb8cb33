"""The app: routes, who may call them, limits and errors, over open services (L1, L4, L5).

    app = create_app(settings, services)                 # an open house, which the caller closes
    app = create_app(settings, open_house(settings))     # opened and closed in the app's own lifespan

The request holds nothing for a turn: it stores, answers, and a worker of this or another process goes on (L3).
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from types import ModuleType

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from graph.services import Services
from placet.api import about, approvals, auth, effects, errors, events, langgraph, policy, turns
from placet.api.following import Timelines
from placet.api.langgraph.opened import open_face
from placet.api.limits import BodyLimit, Limiter
from placet.api.oidc import Issuer
from placet.settings import Settings

ABOUT = """
Agents whose consequential calls wait for assent. A turn is stored and answered with 202; a worker goes on with it; what a
rule does not let pass waits as an approval, is decided here, and exactly that call is executed, once.
"""
ROOMS: Sequence[ModuleType] = (about, turns, events, approvals, effects, policy, langgraph)


def create_app(
    settings: Settings,
    services: Services | AbstractAsyncContextManager[Services],
    *,
    rooms: Sequence[ModuleType] = ROOMS,
) -> FastAPI:
    """The app, with the routers of `rooms`. Raises `UndeclaredRoute` when a route does not say who may call it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if not isinstance(services, Services):
                app.state.services = await stack.enter_async_context(services)
            await stack.enter_async_context(app.state.timelines.open(app.state.services.database))
            if langgraph in rooms:
                app.state.langgraph = open_face(app.state.services, app.state.timelines.stopping)
                await stack.enter_async_context(app.state.langgraph.following)
            if settings.oidc_issuer is not None:
                app.state.oidc = Issuer(settings)
                stack.push_async_callback(app.state.oidc.close)
            yield

    app = FastAPI(
        title="Placet",
        version=version("placet"),
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # served by a route of ours, so that it is declared like every other
        separate_input_output_schemas=False,
        redirect_slashes=False,  # a redirect would name our own idea of host and scheme, and clients send the key there
    )
    app.state.settings = settings
    app.state.limiter = Limiter(settings.rate_limit)
    app.state.oidc = None
    app.state.timelines = Timelines()
    if isinstance(services, Services):
        app.state.services = services
    errors.install(app)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "PATCH", "PUT", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Content-Location", "Location", "Placet-Applied", "Retry-After"],
        )
    for room in rooms:
        app.include_router(room.router)
    auth.refuse_undeclared(app)
    return app
