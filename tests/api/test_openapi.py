"""The OpenAPI document against the server: no 5xx, no answer that it does not document (L5)."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from placet.record.database import Database
from tests.api.conftest import pays
from tests.api.serving import Served, serve
from tests.outside import World
from tests.steps import outside_house

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = int(
    os.environ.get("SCHEMATHESIS", "10")
)  # of each operation and person; `SCHEMATHESIS=200` is worth an afternoon
STREAMS = ("/events", "/stream", "/wait", "/join", "/cancel")
WHO = ("marta", "olga")


@pytest.fixture
async def served(database: Database, world: World) -> AsyncIterator[Served]:
    house = await outside_house(database, world, pays, rate_limit="100000/second")
    async with serve(house) as served:
        yield served


@pytest.mark.timeout(240)
async def test_l5_no_request_gets_a_5xx_or_an_undocumented_answer(served: Served) -> None:
    """Valid and invalid requests, made from the document, by a reviewer who asks and by an operator."""
    done = await served.paused()
    await served.decide(done, {"kind": "approve"})
    await served.house.worker.run_until_idle()
    asked = await served.paused()
    [sent_before] = (await served.to("ana").get("/v1/effects")).json()["rows"]
    real = {**asked, "operation_id": sent_before["operation_id"]}
    document = _without_security((await served.to(None).get("/openapi.json")).json())
    schema = schemathesis.openapi.from_dict(document)
    answered: set[int] = set()

    def run() -> int:
        sent = 0
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path.endswith(STREAMS):
                continue  # streams and waits have tests of their own

            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @_given(operation)
            def check(case: Any) -> None:
                nonlocal sent
                for who, ids in ((one, ids) for one in WHO for ids in ({}, real)):
                    case.path_parameters.update({name: ids[name] for name in case.path_parameters if name in ids})
                    answer = case.call(base_url=served.url, headers={"X-Api-Key": served.keys[who]}, timeout=20)
                    case.validate_response(answer, checks=CHECKS)
                    answered.add(answer.status_code)
                    sent += 1

            check()
        return sent

    assert await asyncio.to_thread(run) > 200
    assert answered >= {200, 202, 403, 404, 409, 422}
    assert (await served.decide(asked, {"kind": "approve"})).status_code in (200, 409)


def _given(operation: Any) -> Any:
    return given(case=operation.as_strategy() | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))


def _without_security(document: dict[str, Any]) -> dict[str, Any]:
    """The document for somebody who has a key already: none is made up."""
    document["components"].pop("securitySchemes")
    for path in document["paths"].values():
        for operation in path.values():
            operation.pop("security", None)
    return document
