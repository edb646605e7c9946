"""Is it alive, is it ready, what has it counted, what can it do: for machines that look after others."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Literal

import msgspec

from ropeway.api.routing import Call, Reply, Route
from ropeway.core.access import Scope
from ropeway.core.errors import MissingScope
from ropeway.core.job import DEFAULT_TENANT
from ropeway.observability.metrics import CONTENT_TYPE


class Health(msgspec.Struct, frozen=True):
    """The process is alive."""

    status: Literal["ok"]
    service: Literal["ropeway"]
    version: str
    engine: str
    durability: Literal["full", "relaxed", "none"]


class Readiness(msgspec.Struct, frozen=True):
    """Whether requests can be served; `checks` names what is needed for it, `ok` or what is wrong."""

    status: Literal["ready", "not ready"]
    checks: dict[str, str]


async def health(call: Call) -> Reply:
    engine = call.deps.engine
    return Reply(200, Health("ok", "ropeway", _version(), engine.name, engine.durability))


async def ready(call: Call) -> Reply:
    checks = await call.deps.readiness.look()
    fine = all(found == "ok" for found in checks.values())
    return Reply(200 if fine else 503, Readiness("ready" if fine else "not ready", checks))


async def metrics(call: Call) -> Reply:
    if call.tenant != DEFAULT_TENANT:
        # They are of the whole server: queues, types and numbers that are not this tenant's.
        raise MissingScope("only a key of the tenant default may see the figures of the server")
    return Reply(200, call.deps.metrics.render(), media_type=CONTENT_TYPE)


async def openapi(call: Call) -> Reply:
    return Reply(200, call.deps.openapi)


@cache
def _version() -> str:
    return version("ropeway")


ROUTES = (
    Route(
        "GET",
        "/health",
        health,
        replies={200: Health},
        summary="Whether the process is alive",
        tag="service",
    ),
    Route(
        "GET",
        "/ready",
        ready,
        replies={200: Readiness, 503: Readiness},
        summary="Whether requests can be served, and what is missing if not",
        tag="service",
    ),
    Route(
        "GET",
        "/metrics",
        metrics,
        scopes=(Scope.READ,),
        replies={200: None},
        media=(CONTENT_TYPE.partition(";")[0],),
        summary="Figures for Prometheus",
        tag="service",
        free=True,
    ),
    Route(
        "GET",
        "/openapi.json",
        openapi,
        replies={200: dict},
        summary="This description",
        tag="service",
    ),
)
