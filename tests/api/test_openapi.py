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
WHO = ("marta", "olga")


@pytest.fixture
async def served(database: Database, world: World) -> AsyncIterator[Served]:
    house = await outside_house(database, world, pays, rate_limit="100000/second")
    async with serve(house) as served:
        yield served


@pytest.mark.timeout(240)
async def test_l5_no_request_gets_a_5xx_or_an_undocumented_answer(served: Served) -> None:
    """Valid and invalid requests, made from the document, by a reviewer who asks and by an operator."""
    asked = await served.paused()
    document = (await served.to(None).get("/openapi.json")).json()
    _with_real_ids(document, asked)
    schema = schemathesis.openapi.from_dict(document)

    def run() -> int:
        sent = 0
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path.endswith(("/events", "/stream", "/wait", "/join", "/cancel")):
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
                for who in WHO:
                    answer = case.call(base_url=served.url, headers={"X-Api-Key": served.keys[who]}, timeout=20)
                    case.validate_response(answer, checks=CHECKS)
                    sent += 1

            check()
        return sent

    assert await asyncio.to_thread(run) > 200
    assert (await served.decide(asked, {"kind": "approve"})).status_code in (200, 409)


def _given(operation: Any) -> Any:
    return given(case=operation.as_strategy() | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))


def _with_real_ids(document: dict[str, Any], asked: dict[str, Any]) -> None:
    """Half of the generated ids are those of something that is there."""
    for path in document["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", []):
                if parameter["name"] in asked and parameter["in"] == "path":
                    parameter["schema"] = {
                        "anyOf": [{"type": "string", "format": "uuid"}, {"const": asked[parameter["name"]]}]
                    }
