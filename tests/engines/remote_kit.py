"""The remote engine for the conformance suite: through a real server on a port of its own, over an engine whose
clock can be moved.

A remote engine sees one tenant, its key's, and leaves the chores of the store to the server. The suite asks for
other tenants and for chores: `ManyTenants` takes each call to the remote engine of its tenant, and chores to the
store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from ropeway.asgi import Server
from ropeway.core.access import NewTenant, Scope
from ropeway.core.errors import NotSupported
from ropeway.core.job import DEFAULT_TENANT
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Engine, EngineRules
from ropeway.engines.remote import RemoteEngine
from ropeway.service.keys import Keys
from ropeway.settings import Settings
from ropeway.testing.conformance.subject import TEST_RULES, Harness, Subject

#: What the server does by itself, so that a remote engine has no call for it.
CHORES = frozenset({"rescue", "audit", "expire", "prune", "fire_due"})
#: All that a tenant's own key may have.
SCOPES = frozenset(Scope) - {Scope.TENANT_ADMIN}


class ManyTenants:
    """Looks like one engine: a remote one per tenant, each with a key of its own."""

    name = RemoteEngine.name

    def __init__(self, url: str, store: Engine, keys: dict[str, str]) -> None:
        self._url = url
        self._store = store
        #: Tokens by tenant, shared by all handles of a subject.
        self._keys = keys
        self._engines: dict[str, RemoteEngine] = {}

    async def of(self, tenant: str) -> RemoteEngine:
        engine = self._engines.get(tenant)
        if engine is None:
            engine = RemoteEngine(self._url, await self._token(tenant))
            await engine.open()
            engine = self._engines.setdefault(tenant, engine)
        return engine

    async def _token(self, tenant: str) -> str:
        if tenant not in self._keys:
            if tenant != DEFAULT_TENANT:
                await self._store.create_tenant(NewTenant(tenant, tenant))
            _, self._keys[tenant] = await Keys(self._store, tenant=tenant).create("suite", SCOPES)
        return self._keys[tenant]

    async def open(self) -> None:
        await self.of(DEFAULT_TENANT)

    async def close(self) -> None:
        for engine in self._engines.values():
            await engine.close()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._engines[DEFAULT_TENANT].capabilities

    @property
    def durability(self) -> str:
        return self._engines[DEFAULT_TENANT].durability

    def transaction(self, *args: Any, **kwargs: Any) -> Any:
        return self._engines[DEFAULT_TENANT].transaction(*args, **kwargs)

    def enqueue_in_sync(self, *args: Any, **kwargs: Any) -> Any:
        return self._engines[DEFAULT_TENANT].enqueue_in_sync(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in CHORES:
            return getattr(self._store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            engine = await self.of(kwargs.get("tenant") or DEFAULT_TENANT)
            return await getattr(engine, name)(*args, **kwargs)

        return call


class RemoteSubject:
    def __init__(self, behind: Subject, url: str) -> None:
        self.behind = behind
        self._url = url
        self._keys: dict[str, str] = {}
        self._handles: list[ManyTenants] = []
        self.engine: Any = None

    async def advance(self, seconds: float) -> None:
        await self.behind.advance(seconds)

    async def another(self) -> Any:
        handle = ManyTenants(self._url, self.behind.engine, self._keys)
        self._handles.append(handle)
        await handle.open()
        return handle

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        raise NotSupported("a remote engine takes no part in the caller's transactions")

    async def close(self) -> None:
        for handle in self._handles:
            await handle.close()


class RemoteHarness:
    """`behind` is the harness of the engine that the server keeps its jobs in."""

    name = RemoteEngine.name
    inside_json = True

    def __init__(self, behind: Harness) -> None:
        self._behind = behind
        self.capabilities = (behind.capabilities & {Capability.DURABLE}) | {Capability.SHARED}

    @asynccontextmanager
    async def subject(self, rules: EngineRules = TEST_RULES) -> AsyncIterator[RemoteSubject]:
        settings = Settings(port=0, max_payload_bytes=rules.max_payload_bytes, tenant_rate=1e9, tenant_burst=2**53)
        async with self._behind.subject(rules) as behind, Server(behind.engine, settings) as server:
            subject = RemoteSubject(behind, server.url)
            try:
                subject.engine = await subject.another()
                yield subject
            finally:
                await subject.close()
