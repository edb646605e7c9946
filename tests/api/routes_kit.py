"""The real application over a real engine, asked in process; or on a port, for what goes on for a while."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx

from ropeway.api.app import Api, build_app
from ropeway.asgi import Server
from ropeway.core.access import NewTenant, Scope
from ropeway.core.errors import NameTaken
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine
from ropeway.service.keys import Keys
from ropeway.settings import Settings

ALL = tuple(Scope)


class Caller:
    """Sends requests with one key."""

    def __init__(self, http: httpx.AsyncClient, engine: Engine, token: str | None, tenant: str) -> None:
        self.http = http
        self.engine = engine
        self.tenant = tenant
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def ask(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> httpx.Response:
        sent = {**self._headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body is not None:
            raw = json.dumps(body).encode()
        if raw is not None:
            sent.setdefault("Content-Type", "application/json")
        return await self.http.request(method, path, content=raw, headers=sent)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.ask("GET", path, **headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return await self.ask("POST", path, body, **headers)

    async def job(self, type: str = "work", **fields: Any) -> dict[str, Any]:
        answer = await self.post("/v1/jobs", {"type": type, **fields})
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def lease(self, queue: str = "default", **fields: Any) -> list[dict[str, Any]]:
        answer = await self.post(f"/v1/queues/{queue}/lease", {"worker_id": "w1", **fields})
        if answer.status_code == 204:
            return []
        assert answer.status_code == 200, answer.text
        return answer.json()["leases"]

    async def leased(self, queue: str = "default", **fields: Any) -> tuple[str, dict[str, Any]]:
        """One leased job: its id, and a body with its token."""
        (one,) = await self.lease(queue, **fields)
        return one["job"]["id"], {"lease_token": one["lease_token"]}

    async def dead(self, message: str = "broken", **fields: Any) -> str:
        """A job that is dead."""
        made = await self.job(**fields)
        id, token = await self.leased(made["queue"])
        answer = await self.post(f"/v1/jobs/{id}/nack", {**token, "error": message, "retry": False})
        assert answer.json()["status"] == "dead", answer.text
        return id


class Stage:
    """One application and callers of any tenant and scope."""

    def __init__(self, api: Api, engine: Engine, http: httpx.AsyncClient) -> None:
        self.api = api
        self.engine = engine
        self.http = http

    async def caller(self, *scopes: Scope, tenant: str = "default") -> Caller:
        if tenant != "default":
            with contextlib.suppress(NameTaken):
                await self.engine.create_tenant(NewTenant(tenant, tenant))
        _, token = await Keys(self.engine, tenant=tenant).create("a test", frozenset(scopes or ALL))
        return Caller(self.http, self.engine, token, tenant)

    def stranger(self) -> Caller:
        return Caller(self.http, self.engine, None, "default")


@contextlib.asynccontextmanager
async def stage(url: str, **settings: Any) -> AsyncIterator[Stage]:
    """The application in this process, without a port."""
    chosen = Settings(url=url, port=0, **settings)
    engine = engine_for(chosen)
    async with engine:
        api = build_app(engine, chosen)
        await api.start()
        transport = httpx.ASGITransport(app=api)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            try:
                yield Stage(api, engine, http)
            finally:
                await api.stop()


@contextlib.asynccontextmanager
async def serving(url: str, **settings: Any) -> AsyncIterator[Stage]:
    """The same on a port of its own, for streams, long polls and clients that hang up."""
    chosen = Settings(url=url, port=0, **settings)
    engine = engine_for(chosen)
    async with engine, Server(engine, chosen) as server:
        base = f"http://127.0.0.1:{server.port}"
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=base, timeout=60, limits=limits) as http:
            yield Stage(server.api, engine, http)


async def until(fact: Callable[[], Any], *, within: float = 20.0) -> Any:
    """Waits for a fact, which may be a coroutine's answer."""
    async with asyncio.timeout(within):
        while True:
            found = fact()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.005)


class Frames:
    """Reads server-sent events."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> Mapping[str, Any]:
        """The next block: `id`, `event`, `data` (decoded) and `comment`, as far as it has them."""
        block: dict[str, Any] = {}
        async for line in self._lines:
            if line:
                name, _, value = line.partition(":")
                block[name or "comment"] = value.removeprefix(" ")
            elif block:
                if "data" in block:
                    block["data"] = json.loads(block["data"])
                return block
        raise StopAsyncIteration

    async def next_event(self) -> Mapping[str, Any]:
        """The next block that is an event."""
        while True:
            block = await self.next()
            if "event" in block:
                return block

    async def rest(self) -> list[Mapping[str, Any]]:
        """All events until the stream ends."""
        found = []
        with contextlib.suppress(StopAsyncIteration):
            while True:
                found.append(await self.next_event())
        return found


def _staged(fixture: str, opened: Callable[..., Any]) -> Callable[..., Any]:
    """A test that takes a Stage becomes one that takes a store."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        first, *others = inspect.signature(test).parameters.values()

        @functools.wraps(test)
        async def run(**given: Any) -> None:
            async with opened(given.pop(fixture)) as stage:
                await test(**{first.name: stage}, **given)

        store = inspect.Parameter(fixture, inspect.Parameter.KEYWORD_ONLY)
        others = [other.replace(kind=inspect.Parameter.KEYWORD_ONLY) for other in others]
        run.__signature__ = inspect.Signature([store, *others])  # type: ignore[attr-defined]
        return run

    return decorate


on_memory = _staged("memory_store", stage)
on_every_engine = _staged("any_store", stage)
served_from_memory = _staged("memory_store", serving)
served_from_every_engine = _staged("any_store", serving)
