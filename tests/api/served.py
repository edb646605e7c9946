"""A real `ropeway server` on a store of its own, requests to it byte by byte, and what the store holds."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg
import pytest

from devtools.private import free_port
from devtools.waiting import wait_until
from ropeway.core.access import Limits, NewTenant, Scope
from ropeway.core.errors import NameTaken
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine
from ropeway.service.keys import Keys
from ropeway.settings import Settings
from tests.engines.pg_kit import migrated

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
#: How long a reply may take on a machine that is busy with other things.
PATIENCE = 45.0
#: So much that no test meets a limit it did not ask for.
GENEROUS = Limits(rate_per_second=1e6, burst=1_000_000, max_queued=10_000_000, max_leases=1_000_000)
#: What changes without a request changing anything: marks of use, and the state of limits.
MARKS = {"last_used_at", "last_seen_at", "seen_at"}
UNCOUNTED_TABLES = {"buckets", "meta", "migrations", "migration_lock", "schema_migrations"}


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The code of a problem; None for an answer that is none."""
        if self.headers.get("content-type", "").partition(";")[0] != "application/problem+json":
            return None
        return str(self.json["code"])

    def without_marks(self, *names: str) -> tuple[int, dict[str, str], bytes]:
        """All that a caller sees but the request's own id, the clock and `names` (ids, as text)."""
        body = self.body.replace(self.headers.get("x-request-id", "\0").encode(), b"<request>")
        headers = {k: v for k, v in self.headers.items() if k not in {"date", "x-request-id"} | RATE_HEADERS}
        for name in names:
            body = body.replace(name.encode(), b"<name>")
        headers["content-length"] = str(len(body))
        return self.status, headers, body


RATE_HEADERS = {"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"}


def request_bytes(
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    token: str | None = None,
    headers: Mapping[str, str | None] | None = None,
    host: str = "127.0.0.1",
) -> bytes:
    """One HTTP/1.1 request as it goes over the wire; a header whose value is None is left out."""
    lines: dict[str, str | None] = {"Host": host, "Connection": "close"}
    if token is not None:
        lines["Authorization"] = f"Bearer {token}"
    if body is not None:
        lines |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines |= headers or {}
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items() if v is not None)
    return head.encode("latin-1") + b"\r\n" + (body or b"")


def exchange(port: int, sent: bytes, *, method: str = "GET", timeout: float = PATIENCE) -> Answer:
    """Send these bytes on a connection of their own; the first answer on it."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        # A server that has refused may stop reading while we write: its answer is on the way all the same.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(sent)
        return read_answer(connection, method)


def read_answer(connection: socket.socket, method: str = "GET") -> Answer:
    with http.client.HTTPResponse(connection, method=method) as response:
        response.begin()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


class Served:
    """A server in its own process. The engine is the test's own way to the same store."""

    def __init__(self, url: str, folder: Path, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        self.url = url
        self.folder = folder
        self.log_path = folder / "server.log"
        self.port = free_port()
        self._arguments = list(arguments)
        self._env = dict(env)
        self._runner = asyncio.Runner()
        self._engine: Engine | None = None
        self._tenants: set[str] = {"default"}
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ropeway", "server", "--port", str(self.port), *self._arguments]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_the_test,
                env={
                    **{name: value for name, value in os.environ.items() if not name.startswith("ROPEWAY_")},
                    "PYTHONPATH": os.pathsep.join(
                        [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
                    ),
                    "ROPEWAY_URL": self.url,
                    "ROPEWAY_LOG_FORMAT": "json",
                    **self._env,
                },
            )

    def wait_until_up(self) -> None:
        wait_until(self._is_up, within=PATIENCE, what="the server answers /ready")

    def _is_up(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()[-4000:]}")
        try:
            return self.ask("GET", "/ready").status == 200
        except OSError:
            return False

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    # ── requests ──

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str | None] | None = None,
        timeout: float = PATIENCE,
    ) -> Answer:
        """One request. `body` is bytes as they are, or anything else as JSON; None is no body."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = request_bytes(method, path, data, token=token, headers=headers)
        return exchange(self.port, sent, method=method, timeout=timeout)

    # ── the store behind it ──

    def on_engine(self, work: Callable[[Engine], Awaitable[T]]) -> T:
        """Do something with the store itself."""

        async def use() -> T:
            if self._engine is None:
                self._engine = await engine_for(Settings(url=self.url)).__aenter__()
            return await work(self._engine)

        return self._runner.run(use())

    def key(self, *scopes: str, tenant: str = "default", limits: Limits = GENEROUS) -> str:
        """A new key's token; its tenant is made when it is not there yet."""

        async def make(engine: Engine) -> str:
            if tenant not in self._tenants:
                with contextlib.suppress(NameTaken):
                    await engine.create_tenant(NewTenant(tenant, f"Tenant {tenant}", limits=limits))
                self._tenants.add(tenant)
            made = await Keys(engine, tenant=tenant).create("a test", frozenset(map(Scope, scopes)))
            return made[1]

        return self.on_engine(make)

    def holds(self, tenant: str) -> dict[str, list[str]]:
        """Every row of a tenant, table by table, read past the engine; tables that know no tenant in full."""
        rows = (
            _sqlite_rows(self.url, tenant) if self.url.startswith("sqlite") else _postgres_rows(self.url, tenant)
        )
        # A grant that covers no job any more is swept away when there is time; until then it means nothing.
        held = {value for job in rows["jobs"] for value in job.values() if isinstance(value, bytes | UUID)}
        rows["grants"] = [grant for grant in rows["grants"] if grant["token"] in held]
        return {table: sorted(map(repr, found)) for table, found in rows.items() if found}

    # ── the process ──

    def rss_mib(self, field: str = "VmRSS") -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1024

    def stop(self) -> None:
        if self._engine is not None:
            self._runner.run(self._engine.__aexit__(None, None, None))
        self._runner.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def a_store(request: pytest.FixtureRequest, engine: str, folder: Path) -> str:
    """The URL of an empty store of that engine."""
    if engine == "sqlite":
        return sqlite_url(folder)
    return migrated(request.getfixturevalue("make_postgres_database")())


def _die_with_the_test() -> None:
    """A test that hangs is ended without a clean-up; its server must not be left behind. (PR_SET_PDEATHSIG)"""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _python_path() -> list[str]:
    return [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []


@contextlib.contextmanager
def server(url: str, folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Served]:
    """A `ropeway server` that answers."""
    served = Served(url, folder, arguments, env or {})
    try:
        served.wait_until_up()
        yield served
    finally:
        served.stop()


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder}/store.db"


def connected_to(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE)


def bodies_until(connection: socket.socket, mark: bytes, *, within: float = PATIENCE) -> bytes:
    """What comes over a connection until `mark` is in it."""
    connection.settimeout(within)
    got = b""
    deadline = time.monotonic() + within
    while mark not in got:
        piece = connection.recv(65_536)
        if not piece or time.monotonic() > deadline:
            raise AssertionError(f"{mark!r} did not come; got {got[-500:]!r}")
        got += piece
    return got


Rows = dict[str, list[dict[str, Any]]]


def _sqlite_rows(url: str, tenant: str) -> Rows:
    path = url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        store.row_factory = sqlite3.Row
        tables = [row[0] for row in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found: Rows = {}
        for table in tables:
            if table in UNCOUNTED_TABLES or table.startswith("sqlite_"):
                continue
            columns = [row["name"] for row in store.execute(f"PRAGMA table_info({table})")]
            where, values = _of_tenant(table, columns, tenant, "?")
            if "body" in columns or table == "bodies":
                key = "number" if table == "bodies" else "body"
                where, values = f"WHERE {key} IN (SELECT body FROM jobs WHERE tenant = ?)", (tenant,)
            read = store.execute(f"SELECT * FROM {table} {where}", values)
            found[table] = [{k: row[k] for k in row.keys() if k not in MARKS} for row in read]  # noqa: SIM118
    return found


def _postgres_rows(url: str, tenant: str) -> Rows:
    with psycopg.connect(url, autocommit=True) as store:
        tables = store.execute(
            """SELECT c.relname, array_agg(a.attname ORDER BY a.attnum) FROM pg_class c
               JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'ropeway'
               JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition GROUP BY c.relname"""
        ).fetchall()
        found: Rows = {}
        for table, columns in tables:
            if table in UNCOUNTED_TABLES:
                continue
            kept = ", ".join(column for column in columns if column not in MARKS)
            where, values = _of_tenant(table, columns, tenant, "%s")
            read = store.execute(f"SELECT {kept} FROM ropeway.{table} {where}", values)
            names = [column.name for column in read.description or ()]
            found[table] = [dict(zip(names, row, strict=True)) for row in read.fetchall()]
    return found


def _of_tenant(table: str, columns: Sequence[str], tenant: str, mark: str) -> tuple[str, tuple[str, ...]]:
    if table == "tenants":
        return f"WHERE id = {mark}", (tenant,)
    if "tenant" in columns:
        return f"WHERE tenant = {mark}", (tenant,)
    return "", ()


# ── Many at once ──


async def all_at_once(port: int, requests: Sequence[bytes]) -> list[Answer]:
    """Open a connection for each, then send all of them in one go; the answers in order."""
    connections = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in requests))
    try:
        for (_, writer), sent in zip(connections, requests, strict=True):
            writer.write(sent)
        return await asyncio.gather(*(_answer(reader) for reader, _ in connections))
    finally:
        for _, writer in connections:
            writer.close()


async def _answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    status = int(head[0].split()[1])
    length = int(headers.get("content-length", "0"))
    return Answer(status, headers, await reader.readexactly(length))
