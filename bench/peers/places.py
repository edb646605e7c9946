"""Where a measurement runs: an empty store for each, on servers whose durability is the same for everybody."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

from bench.peers.groups import cpu_seconds_of
from bench.stores import POSTGRES_SETTINGS, postgres_server
from devtools.postgres import PrivatePostgres
from devtools.redis import PrivateRedis

#: Redis is never to rewrite its file while somebody is measured: what it wrote is read from the file's size.
REDIS_SETTINGS = {"auto-aof-rewrite-percentage": "0"}


@dataclass(frozen=True)
class Place:
    """An empty store."""

    kind: str
    url: str
    #: Bytes that the store has written so far; None where the writer is the worker itself.
    written: Callable[[], int | None]
    #: Processor time of the store's own processes; None where it has none.
    cpu_seconds: Callable[[], float | None]


class Places:
    """Makes empty stores. Servers are started when they are first wanted and are gone after the `with` block."""

    def __init__(self, *, postgres_version: int | None = None) -> None:
        self._postgres_version = postgres_version
        self._postgres: PrivatePostgres | None = None
        self._number = itertools.count(1)
        self._open = contextlib.ExitStack()
        #: What there is to say about each store that was used, for results.json.
        self.facts: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Places:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def prepare(self, kind: str) -> None:
        """Start the server that these stores share, if there is one."""
        if kind == "postgres":
            self._postgres_server()

    @contextlib.contextmanager
    def fresh(self, kind: str) -> Iterator[Place]:
        """An empty store, gone after the block."""
        makers = {"postgres": self._database, "redis": self._redis, "sqlite": self._file, "memory": self._file}
        with makers[kind]() as place:
            yield place

    # ── PostgreSQL: a database each ──

    @contextlib.contextmanager
    def _database(self) -> Iterator[Place]:
        server = self._postgres_server()
        name = f"bench_{next(self._number)}"
        # What the one before has left to be written must not be written at the expense of this one.
        ask(server.url, "CHECKPOINT")
        url = server.create_database(name)

        def written() -> int:
            return int(ask(server.url, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

        try:
            yield Place("postgres", url, written, lambda: cpu_seconds_of(server_processes(server)))
        finally:
            server.drop_database(name)

    def _postgres_server(self) -> PrivatePostgres:
        if self._postgres is None:
            self._postgres = self._open.enter_context(postgres_server(self._postgres_version))
            shown = ["fsync", "shared_buffers", *POSTGRES_SETTINGS]
            self.facts["postgres"] = {
                "version": self._postgres.version,
                "settings": {name: ask(self._postgres.url, f"SHOW {name}") for name in shown},
            }
        return self._postgres

    # ── Redis: a server each, which starts within a tenth of a second ──

    @contextlib.contextmanager
    def _redis(self) -> Iterator[Place]:
        with PrivateRedis(settings=REDIS_SETTINGS) as server:
            if "redis" not in self.facts:
                shown = ("appendonly", "appendfsync", "save", *REDIS_SETTINGS)
                settings = {name: str(server.settings[name]) or '""' for name in shown}
                self.facts["redis"] = {"version": server.version, "settings": settings}
            pid = server.pid
            yield Place(
                "redis",
                server.url,
                lambda: int(server.info()["aof_current_size"]),
                lambda: cpu_seconds_of([pid] if pid else []),
            )

    # ── SQLite: a file each ──

    @contextlib.contextmanager
    def _file(self) -> Iterator[Place]:
        self.facts.setdefault("sqlite", {"version": sqlite3.sqlite_version, "settings": {"synchronous": "FULL"}})
        folder = Path(tempfile.mkdtemp(prefix="ropeway-bench-"))
        try:
            yield Place("sqlite", f"sqlite:///{folder / 'bench.db'}", lambda: None, lambda: None)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def ask(url: str, statement: str) -> Any:
    """The first value of what a statement answers; None if it answers nothing."""
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def server_processes(server: PrivatePostgres) -> list[int]:
    """The postmaster and all that it started."""
    parent = str(server.pid)
    found = [int(parent)]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[1] == parent:
                found.append(int(stat.parent.name))
    return found
