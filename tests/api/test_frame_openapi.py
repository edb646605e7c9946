"""The OpenAPI document says what the routes are, all of it, and nothing else."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urljoin

import jsonschema_rs
import msgspec
import pytest
import schemathesis

from ropeway.api.openapi import codes_of, document
from ropeway.api.routes import ROUTES
from ropeway.api.routing import Route, Table
from ropeway.wire.problems import CODES
from tests.api import frame_kit
from tests.api.frame_kit import frame

TABLES = {"frame": frame_kit.ROUTES, "server": ROUTES}


@pytest.fixture(params=TABLES)
def routes(request: pytest.FixtureRequest) -> tuple[Route, ...]:
    return TABLES[request.param]


@pytest.fixture
def told(routes: tuple[Route, ...]) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(document(routes))
    return decoded


def _operations(told: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in told["paths"].items()
        for method, operation in methods.items()
    }


def test_it_is_a_document_that_tools_can_read(told: dict[str, Any]) -> None:
    schemathesis.openapi.from_dict(told).validate()


@pytest.mark.parametrize("base", ["https://host/", "https://host/tools/ropeway/"])
def test_it_leads_to_the_server_that_it_came_from(told: dict[str, Any], base: str) -> None:
    """Whatever path a proxy shows it below."""
    (server,) = told["servers"]
    assert urljoin(f"{base}openapi.json", server["url"]) == base


def test_every_route_is_in_it_and_nothing_else(routes: tuple[Route, ...], told: dict[str, Any]) -> None:
    assert set(_operations(told)) == {(route.method, route.path) for route in routes if not route.hidden}


def test_no_route_is_there_twice_or_hides_another(routes: tuple[Route, ...]) -> None:
    table = Table(routes)
    for route in routes:
        path = re.sub(r"\{\w+\}", "0198c0de-0000-7000-8000-000000000000", route.path)
        found = table.find(path.encode())
        assert found is not None
        assert found[0][route.method] is route


def test_operations_have_names_of_their_own_and_words_for_people(told: dict[str, Any]) -> None:
    ids = [operation["operationId"] for operation in _operations(told).values()]
    assert len(ids) == len(set(ids))


def test_every_part_of_a_path_is_described(told: dict[str, Any]) -> None:
    for (_, path), operation in _operations(told).items():
        named = [each["name"] for each in operation["parameters"] if each["in"] == "path"]
        assert named == re.findall(r"\{(\w+)\}", path)


def test_every_problem_that_may_come_back_is_listed_under_its_status(
    routes: tuple[Route, ...], told: dict[str, Any]
) -> None:
    operations = _operations(told)
    for route in routes:
        responses = operations[route.method, route.path]["responses"]
        for code in codes_of(route):
            problem = responses[str(CODES[code].status)]["content"]["application/problem+json"]
            assert code in problem["schema"]["properties"]["code"]["enum"]
        for status, kind in route.replies.items():
            assert ("application/json" in responses[str(status)].get("content", {})) is (kind is not None)


def test_links_lead_to_operations_that_are_there(told: dict[str, Any]) -> None:
    operations = {each["operationId"]: each for each in _operations(told).values()}
    for operation in operations.values():
        for reply in operation["responses"].values():
            for link in reply.get("links", {}).values():
                target = operations[link["operationId"]]
                assert set(link.get("parameters", {})) <= {each["name"] for each in target["parameters"]}


def test_scopes_are_told_and_keys_asked_for(routes: tuple[Route, ...], told: dict[str, Any]) -> None:
    operations = _operations(told)
    for route in routes:
        operation = operations[route.method, route.path]
        if route.scopes:
            assert all(f"`{scope}`" in operation["description"] for scope in route.scopes)
        assert (operation.get("security") == []) is not bool(route.scopes)
    assert told["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/nowhere", None),
        ("GET", "/things?limit=x", None),
        ("POST", "/things", b"{"),
        ("POST", "/things/batch", b'{"jobs":[{}]}'),
        ("GET", "/fail/terminal", None),
        ("GET", "/fail/long", None),
        ("GET", "/fail/bug", None),
    ],
)
async def test_a_problem_is_as_its_schema_says(method: str, path: str, body: bytes | None) -> None:
    schema = msgspec.json.decode(document(frame_kit.ROUTES))["components"]["schemas"]
    problem = {"$ref": "#/$defs/Problem", "$defs": schema}
    text = msgspec.json.encode(problem).decode().replace("#/components/schemas/", "#/$defs/")
    async with frame() as served:
        answer = await served.ask(method, path, body)
    jsonschema_rs.validate(msgspec.json.decode(text), answer.json)


def test_old_paths_are_served_only_when_asked_for() -> None:
    assert all(
        route.compat or route.path.startswith(("/v1/", "/health", "/ready", "/metrics", "/openapi.json"))
        for route in ROUTES
    )
