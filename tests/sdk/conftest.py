"""A real server on SQLite for the whole module, and the clients to it: the same calls through both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from ropeway.sdk import AsyncClient, Client, Patience
from tests.api.served import Served, server, sqlite_url

#: Tries come soon after one another: what is waited for is on this machine.
QUICK = Patience(tries=30, base=0.01, cap=0.05)


class Both:
    """One of the two clients, called alike: an awaitable is awaited, an async iterator is gathered."""

    def __init__(self, kind: str, url: str, token: str, **options: Any) -> None:
        self._runner = asyncio.Runner()
        make: Callable[..., Any] = Client if kind == "sync" else AsyncClient
        self._kind = kind
        self.client = make(url, token, **{"patience": QUICK, **options})

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._kind == "sync":
                answer = method(*args, **kwargs)
                return list(answer) if isinstance(answer, Iterator) else answer
            return self._runner.run(_settled(method(*args, **kwargs)))

        return call

    def end(self) -> None:
        if self._kind == "sync":
            self.client.close()
        else:
            self._runner.run(self.client.aclose())
        self._runner.close()


async def _settled(answer: Any) -> Any:
    if isinstance(answer, AsyncIterator):
        return [one async for one in answer]
    return await answer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("sdk")
    with server(sqlite_url(folder), folder) as served:
        yield served


@pytest.fixture(scope="module")
def url(served: Served) -> str:
    return f"http://127.0.0.1:{served.port}"


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(kind: str, url: str, served: Served) -> Iterator[Callable[..., Both]]:
    """Makes clients of one kind; all scopes of a tenant unless a token is given."""
    made: list[Both] = []

    def connect(*, to: str = url, token: str | None = None, **options: Any) -> Both:
        key = served.key("enqueue", "work", "read", "read:payload", "admin") if token is None else token
        made.append(Both(kind, to, key, **options))
        return made[-1]

    yield connect
    for one in made:
        one.end()


@pytest.fixture
def client(connect: Callable[..., Both]) -> Both:
    return connect()
