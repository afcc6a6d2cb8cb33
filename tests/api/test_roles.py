"""Every route, by everybody: one table (L4, A5). A route that is missing in it fails, and so does one that declares nothing."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from fastapi import APIRouter

from placet.api.app import create_app
from placet.api.auth import UndeclaredRoute, declarations, refuse_undeclared
from tests.api.serving import Served
from tests.outside import World, happens_then

WHO = ("nobody", "ben", "ana", "marta", "olga", "aldo", "zoe")  # ben asks too; zoe is everything, of another tenant
ARGUMENTS = {"to": "rosa", "minor": 75}

# route: the answer to somebody without credentials, another requester, the requester, a reviewer, an operator, an
# auditor, and somebody of another tenant. {…} is the requester's own turn, approval, effect or thread.
TABLE: dict[str, tuple[int, ...]] = {
    "GET /ok": (200, 200, 200, 200, 200, 200, 200),
    "GET /info": (200, 200, 200, 200, 200, 200, 200),
    "GET /openapi.json": (200, 200, 200, 200, 200, 200, 200),
    "GET /v1/me": (401, 200, 200, 200, 200, 200, 200),
    "POST /v1/turns": (401, 202, 202, 202, 403, 403, 202),
    "GET /v1/turns": (401, 200, 200, 200, 200, 200, 200),
    "GET /v1/turns/{turn_id}": (401, 404, 200, 200, 200, 200, 404),
    "GET /v1/turns/{turn_id}/events": (401, 404, 200, 200, 200, 200, 404),
    "GET /v1/threads/{thread_id}/events": (401, 404, 200, 200, 200, 200, 404),
    "POST /v1/turns/{turn_id}/migrate": (401, 403, 403, 403, 409, 403, 404),  # 409: nothing of it is orphaned
    "POST /v1/turns/{turn_id}/retry": (401, 404, 409, 403, 409, 403, 404),  # 409: it did not fail
    "GET /v1/approvals": (401, 200, 200, 200, 200, 200, 200),
    "GET /v1/approvals/{approval_id}": (401, 404, 200, 200, 200, 200, 404),
    "POST /v1/approvals/{approval_id}/preview": (401, 403, 403, 200, 403, 403, 409),  # 409: tools of another tenant
    "POST /v1/approvals/{approval_id}/decision": (401, 403, 403, 200, 403, 403, 404),
    "GET /v1/effects": (401, 200, 200, 200, 200, 200, 200),
    "GET /v1/effects/{operation_id}": (401, 404, 200, 200, 200, 200, 404),
    "POST /v1/effects/{operation_id}/undo": (401, 404, 200, 403, 200, 403, 409),
    "POST /v1/effects/{operation_id}/resolution": (401, 403, 403, 403, 200, 403, 404),
    "GET /v1/policy": (401, 200, 200, 200, 200, 200, 409),
    "POST /v1/policy/explain": (401, 403, 403, 200, 200, 200, 409),
    "POST /v1/turns/{turn_id}/cancel": (401, 404, 200, 403, 409, 403, 404),  # 409: the requester was faster
}
BODIES: dict[str, Any] = {
    "POST /v1/turns": {"message": "Do it."},
    "POST /v1/turns/{turn_id}/cancel": {},
    "POST /v1/approvals/{approval_id}/preview": {"arguments": ARGUMENTS},
    "POST /v1/approvals/{approval_id}/decision": {"kind": "reject", "reason": "no"},
    "POST /v1/effects/{operation_id}/resolution": {"to": "abandoned", "reason": "nobody answers"},
    "POST /v1/policy/explain": {"tool": "pay", "arguments": ARGUMENTS},
}


def test_l4_every_route_is_in_the_table(served: Served) -> None:
    """What is served under /v1, and what is public, is what the table says; LangGraph's routes have a table of their own."""
    ours = {f"{route.method} {route.path}" for route in declarations(served.app)}
    ours = {route for route in ours if "/v1/" in route or TABLE.get(route)}
    assert ours == set(TABLE)
    public = {f"{route.method} {route.path}" for route in declarations(served.app) if route.roles == ()}
    assert public == {"GET /ok", "GET /info", "GET /openapi.json"}


def test_l4_a_route_that_declares_nothing_stops_the_start(served: Served) -> None:
    """Whoever forgets to say who may call a route does not open it."""
    app = create_app(served.house.services.settings, served.house.services)
    forgotten = APIRouter()

    @forgotten.get("/v1/forgotten")
    async def forgotten_route() -> None: ...

    app.include_router(forgotten)

    with pytest.raises(UndeclaredRoute, match="/v1/forgotten"):
        refuse_undeclared(app)


async def test_l4_every_route_by_everybody(served: Served, world: World) -> None:
    """Each route answers each person as the table says, and a refusal is JSON with a code; nothing was executed by a refusal."""
    asked = await served.paused()
    ids = {name: asked[name] for name in ("turn_id", "thread_id", "approval_id")}
    undoable, unknown = await _label(served), await _unknown(served, world)

    wrong = []
    for route, expected in TABLE.items():
        method, path = route.split(" ", 1)
        effect = unknown if route.endswith("/resolution") else undoable
        body = BODIES.get(route)
        if body is not None and "kind" in body:
            body = {**body, "payload_hash": asked["payload_hash"]}
        params = {"until": "now"} if path.endswith("/events") else {}
        for who, status in zip(WHO, expected, strict=True):
            answer = await served.to(None if who == "nobody" else who).request(
                method, path.format(**ids, operation_id=effect), json=body, params=params
            )
            if answer.status_code != status:
                wrong.append(f"{route} by {who}: {answer.status_code}, expected {status}: {answer.text[:200]}")
            elif status >= 400:
                assert set(answer.json()) >= {"code", "message"}, (route, who)
    assert not wrong, "\n".join(wrong)
    assert world.arrivals("pay") == []


async def test_l4_a_tenant_sees_only_its_own(served: Served) -> None:
    """Somebody of another tenant, with every role, lists nothing of ours and finds nothing by its id."""
    asked = await served.paused()
    await _label(served)

    for what in ("turns", "approvals", "effects"):
        params: dict[str, Any] = {"any": True} if what == "approvals" else {}
        assert (await served.to("zoe").get(f"/v1/{what}", params=params)).json()["rows"] == []
        assert (await served.to("aldo").get(f"/v1/{what}", params=params)).json()["rows"] != []
    there = await served.to("zoe").get(f"/v1/turns/{asked['turn_id']}")
    nowhere = await served.to("zoe").get(f"/v1/turns/{uuid4()}")
    assert there.status_code == nowhere.status_code == 404
    assert set(there.json()) == set(nowhere.json())


async def test_l4_a_requester_sees_only_what_they_asked_for(served: Served) -> None:
    """Ben asks too; Ana's turns, approvals and effects are not in his lists, and a filter does not bring them there."""
    await served.paused()
    await _label(served)

    for what in ("turns", "approvals", "effects"):
        assert (await served.to("ben").get(f"/v1/{what}")).json()["rows"] == []
        assert (await served.to("ben").get(f"/v1/{what}", params={"requester": "ana"})).status_code == 403


async def _label(served: Served) -> UUID:
    """An effect of Ana's that was committed and can be taken back."""
    return await _effect_of(served, "label", {"name": "fragile"})


async def _unknown(served: Served, world: World) -> UUID:
    """An effect of Ana's of which nobody knows what became."""
    world.silent = True
    world.next("label", happens_then(ConnectionError("reset")))
    return await _effect_of(served, "label", {"name": "lost"})


async def _effect_of(served: Served, tool: str, arguments: dict[str, Any]) -> UUID:
    said: Any = served.house.model._script
    served.house.model._script = _once(tool, arguments)
    try:
        turn_id = await served.ask()
        await served.house.worker.run_until_idle()
    finally:
        served.house.model._script = said
    [effect] = (await served.to("ana").get("/v1/effects", params={"turn_id": str(turn_id)})).json()["rows"]
    return UUID(effect["operation_id"])


def _once(tool: str, arguments: dict[str, Any]) -> Any:
    from tests.scripted import calls  # noqa: PLC0415

    return lambda messages: "Done." if messages[-1].type == "tool" else calls((tool, arguments))
