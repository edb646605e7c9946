"""Where a measurement runs: a fresh store per engine, opened by any number of processes."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg

from devtools.postgres import PrivatePostgres, all_postgres
from devtools.private import NotAvailable
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Engine, EngineRules

#: More than a pool of any peer, also when all wait side by side.
MAX_CONNECTIONS = 500

#: Files of its log that a server keeps to write into them again, of 16 MB each.
LOG_FILES = 128

#: As a production server of this size would be set; durability is PostgreSQL's own default: everything on.
POSTGRES_SETTINGS = {
    "max_wal_size": "4GB",
    "min_wal_size": f"{16 * LOG_FILES}MB",
    "checkpoint_timeout": "15min",
    "synchronous_commit": "on",
    "full_page_writes": "on",
}


class Store(NamedTuple):
    """What another process needs to open the same store."""

    kind: str
    address: str
    version: str

    def engine(self, rules: EngineRules = EngineRules()) -> Engine:
        if self.kind == "postgres":
            from ropeway.engines.postgres import PostgresEngine

            return PostgresEngine(self.address, rules)
        if self.kind == "sqlite":
            from ropeway.engines.sqlite import SqliteEngine

            return SqliteEngine(self.address, rules)
        return MemoryEngine(rules)

    @property
    def shared(self) -> bool:
        return self.kind != "memory"


class Stores:
    """Makes empty stores of one kind, one after the other, on one server where there is a server."""

    def __init__(self, kind: str, server: PrivatePostgres | None, folder: Path) -> None:
        self.kind = kind
        self._server = server
        self._folder = folder
        self._made = 0

    @property
    def version(self) -> str:
        if self._server is not None:
            return f"PostgreSQL {self._server.version}"
        return f"SQLite {sqlite3.sqlite_version}" if self.kind == "sqlite" else "memory"

    @property
    def durability(self) -> str:
        """What an accepted job survives here."""
        return "nothing survives the process" if self.kind == "memory" else "every commit synced to disk"

    async def fresh(self) -> Store:
        """An empty, migrated store."""
        self._made += 1
        name = f"bench_{self._made}"
        if self._server is not None:
            from ropeway.engines.postgres import PostgresEngine

            url = self._server.create_database(name)
            engine = PostgresEngine(url)
            try:
                await engine.migrations.up()
            finally:
                await engine.close()
            return Store("postgres", url, self.version)
        return Store(self.kind, str(self._folder / f"{name}.db"), self.version)

    def drop(self, store: Store) -> None:
        """Give the space back; the next measurement must not pay for this one."""
        if self._server is not None:
            self._server.drop_database(store.address.rsplit("/", 1)[-1].split("?")[0])
        elif store.kind == "sqlite":
            for file in self._folder.glob(Path(store.address).name + "*"):
                file.unlink()


@contextlib.contextmanager
def postgres_server(version: int | None = None) -> Iterator[PrivatePostgres]:
    """The newest PostgreSQL found, or the one asked for, set as all that is measured here."""
    found = sorted(all_postgres(), key=lambda installation: installation.major)
    wanted = [each for each in found if version in (None, each.major)]
    if version is not None and not wanted:
        raise NotAvailable(f"there is no PostgreSQL {version} on this machine")
    with PrivatePostgres(
        bindir=wanted[-1].bindir if wanted else None,
        shared_buffers="512MB",
        max_connections=MAX_CONNECTIONS,
        settings=POSTGRES_SETTINGS,
    ) as server:
        _use_its_log(server)
        yield server


def _use_its_log(server: PrivatePostgres) -> None:
    """Let it have files to write its log into again, as one has that has been up for a while.

    A new server makes each file when it comes to it, 16 MB of zeros, and all commits wait: for 40 ms in each
    second at 9,000 jobs a second, once the kernel has as much to write as it lets wait.
    """
    with psycopg.connect(server.url, autocommit=True) as connection:
        for _ in range(LOG_FILES):
            connection.execute("SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()")
        connection.execute("CHECKPOINT")


@contextlib.contextmanager
def stores(kind: str, *, postgres_version: int | None = None) -> Iterator[Stores]:
    """Stores of one kind: on the newest PostgreSQL found (or the one asked for), or in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="ropeway-bench-") as folder, contextlib.ExitStack() as stack:
        server = None
        if kind == "postgres":
            server = stack.enter_context(postgres_server(postgres_version))
        yield Stores(kind, server, Path(folder))
