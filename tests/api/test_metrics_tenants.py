"""Figures of the whole server are for whoever runs it, not for every tenant."""

from __future__ import annotations

from ropeway.asgi import Server
from ropeway.core.access import Scope
from ropeway.engines.memory import MemoryEngine
from ropeway.service.keys import Keys
from ropeway.service.tenants import Tenants
from ropeway.settings import Settings
from tests.api.frame_kit import Frame


async def test_only_the_tenant_default_sees_the_figures_of_the_server() -> None:
    async with MemoryEngine() as engine, Server(engine, Settings(port=0)) as server:
        served = Frame(server, engine)
        await Tenants(served.engine).create("Acme", id="acme")
        _, foreign = await Keys(served.engine, tenant="acme").create("k", {Scope.READ, Scope.ADMIN})
        refused = await served.ask("GET", "/metrics", token=foreign)
        assert (refused.status, refused.code) == (403, "missing_scope")
        assert b"ropeway_" not in refused.body
        page = await served.ask("GET", "/metrics", token=await served.token(Scope.READ))
        assert page.status == 200
        assert b'ropeway_http_problems_total{code="missing_scope"} 1.0' in page.body
        assert b'ropeway_http_waiting{kind="poll"} 0.0' in page.body
