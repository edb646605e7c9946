"""The private servers: they work, they come back after a crash, and they leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from devtools.pgbouncer import PrivatePgBouncer
from devtools.postgres import (
    PostgresServer,
    PrivatePostgres,
    Skipped,
    all_postgres,
    find_postgres,
    survey_postgres,
)
from devtools.private import NotAvailable, ServerFailed, free_port
from devtools.waiting import NeverCameTrue, wait_until

#: Real servers, seconds each.
pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

#: Starts a server, says where it is, then waits for a fate that the test decides.
OWNER = """
import json, os, signal, sys
from devtools.postgres import PrivatePostgres
# A run that was started in the background has SIGINT ignored, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
with PrivatePostgres(fsync=False) as server:
    match os.environ.get("FORKED_CHILD"):
        case "fork" if os.fork() == 0:
            sys.stdin.read()
            os._exit(0)
        case "exec" if os.fork() == 0:
            os.execvp("cat", ["cat"])
    print(json.dumps({"folder": str(server.folder), "port": server.port, "pid": server.pid}), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def programs(postgres_server: PostgresServer) -> Path:
    """PostgreSQL's programs. Asks for the shared server first, which installs them if they are missing."""
    try:
        bindir = find_postgres()
    except NotAvailable as error:
        pytest.skip(f"NOT RUN: postgres: {error}")
    if bindir is None:
        pytest.skip("NOT RUN: postgres: there is a server to use, but no programs to start one of our own")
    return bindir


@pytest.fixture
def own_server(programs: Path) -> Iterator[PrivatePostgres]:
    """A server this test may kill."""
    with PrivatePostgres(bindir=programs, fsync=False, shared_buffers="16MB") as server:
        yield server


def one(url: str, statement: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement).fetchone()  # type: ignore[call-overload]
        return row[0]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def alive(pid: int) -> bool:
    """Running, not merely a zombie that nobody collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_private_server_answers_with_its_settings(programs: Path) -> None:
    with PrivatePostgres(bindir=programs, max_connections=37, settings={"wal_level": "logical"}) as server:
        assert one(server.url, "SHOW max_connections") == "37"
        assert one(server.url, "SHOW wal_level") == "logical"
        assert one(server.url, "SHOW fsync") == "on", "durable unless asked otherwise"
        assert one(server.url, "SHOW listen_addresses") == "127.0.0.1"
        assert str(one(server.url, "SHOW server_version")).startswith(server.version)
        folder, port, pid = server.folder, server.port, server.pid
        assert pid is not None
    assert not folder.exists()
    assert not listens(port)
    assert not alive(pid)


def test_databases_are_created_copied_and_dropped(own_server: PrivatePostgres) -> None:
    url = own_server.create_database('an "odd" name')
    assert one(url, "SELECT current_database()") == 'an "odd" name'
    first = own_server.create_database("first")
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (7)")
    assert one(own_server.create_database("second", template="first"), "SELECT n FROM kept") == 7
    with contextlib.closing(psycopg.connect(first)):
        own_server.drop_database("first")  # a session in it does not save it
    own_server.drop_database("first")
    assert one(own_server.url, "SELECT count(*) FROM pg_database WHERE datname = 'first'") == 0


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
def test_committed_rows_are_there_after_a_stop_or_a_crash(own_server: PrivatePostgres, how: str) -> None:
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (7)")
    url = own_server.url
    with contextlib.closing(psycopg.connect(url)) as open_while_it_dies:
        open_while_it_dies.execute("SELECT 1")
        if how == "kill":
            own_server.kill(signal.SIGKILL)
        else:
            own_server.stop("fast" if how == "fast" else "immediate")
        assert own_server.pid is None
        assert not listens(own_server.port)
    own_server.start()
    assert own_server.url == url, "clients that reconnect must find it"
    assert one(url, "SELECT n FROM kept") == 7


def test_restart_gives_a_new_postmaster(own_server: PrivatePostgres) -> None:
    before = own_server.pid
    own_server.restart()
    assert own_server.pid not in (None, before)
    assert one(own_server.url, "SELECT 1") == 1


def test_a_server_killed_by_others_is_still_cleaned_up(own_server: PrivatePostgres) -> None:
    # By its id, never by a count: other test processes start and stop servers meanwhile.
    segment = (own_server.folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1]
    assert own_server.pid is not None
    os.kill(own_server.pid, signal.SIGKILL)
    wait_until(lambda: not own_server.running, what="the server is dead")
    assert segment in shared_memory(), "kill -9 leaves a segment"
    assert list((own_server.folder / "data" / "pg_dynshmem").iterdir()), "and dynamic ones, here and nowhere else"
    folder = own_server.folder
    own_server.close()
    assert not folder.exists()
    assert segment not in shared_memory()
    own_server.close()


def shared_memory() -> set[str]:
    """The ids of all System V segments."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_a_server_that_cannot_start_shows_its_log(programs: Path) -> None:
    with pytest.raises(ServerFailed, match="max_connectionz"):
        PrivatePostgres(bindir=programs, settings={"max_connectionz": 1})


def test_a_taken_port_is_not_the_end(own_server: PrivatePostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    offers = iter([own_server.port, free_port()])
    monkeypatch.setattr("devtools.postgres.free_port", lambda: next(offers))
    with PrivatePostgres(fsync=False) as second:
        assert second.port != own_server.port
        assert one(second.url, "SELECT 1") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_owner_dies(programs: Path, number: signal.Signals) -> None:
    assert_gone_after(number)


@pytest.mark.parametrize("child", ["fork", "exec"])
def test_a_child_of_the_owner_does_not_keep_the_server(programs: Path, child: str) -> None:
    assert_gone_after(signal.SIGKILL, FORKED_CHILD=child)


def assert_gone_after(number: signal.Signals, **environment: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True, env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert owner.stdin is not None
    assert owner.stdout is not None
    try:
        server = json.loads(owner.stdout.readline())
        assert listens(server["port"])
        os.kill(owner.pid, number)
        owner.wait(timeout=30)
        folder = Path(server["folder"])
        wait_until(lambda: not alive(server["pid"]), what="the server is dead", within=20)
        wait_until(lambda: not folder.exists(), what="the folder is deleted", within=20)
        assert not listens(server["port"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(owner.pid, signal.SIGKILL)
        owner.stdin.close()
        owner.stdout.close()
        owner.wait(timeout=30)


@pytest.mark.slow
def test_every_usable_version_runs(programs: Path) -> None:
    versions = all_postgres()
    assert [found.major for found in versions] == sorted({found.major for found in versions}, reverse=True)
    for found in versions:
        with PrivatePostgres(bindir=found.bindir, fsync=False) as server:
            assert str(one(server.url, "SHOW server_version")).startswith(found.version)


def test_programs_the_servers_user_cannot_read_are_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindir = tmp_path / "bin"
    bindir.mkdir()
    monkeypatch.setenv("ROPEWAY_TEST_PG_BIN", str(bindir))
    found, skipped = survey_postgres()
    assert found == []
    assert skipped == [Skipped(bindir, skipped[0].reason)]
    # pytest's folders are closed to other users, so as root it is the reading that fails.
    assert ("cannot be read by user" if os.geteuid() == 0 else "has no initdb") in skipped[0].reason
    with pytest.raises(NotAvailable, match="ROPEWAY_TEST_PG_BIN"):
        find_postgres()


async def test_pgbouncer_passes_queries_on(
    pgbouncer: PrivatePgBouncer, pgbouncer_database: str, postgres_database: str
) -> None:
    connection = await asyncpg.connect(pgbouncer_database, statement_cache_size=0)
    try:
        assert await connection.fetchval("SELECT current_database()") == urlsplit(postgres_database).path[1:]
    finally:
        await connection.close()
    with psycopg.connect(pgbouncer.admin_url, autocommit=True) as console:
        version = console.execute("SHOW VERSION").fetchone()
        assert version is not None
        assert pgbouncer.version in version[0]


def test_transaction_mode_lends_the_connection_only_for_a_transaction(
    postgres_server: PostgresServer, pgbouncer: PrivatePgBouncer
) -> None:
    with PrivatePgBouncer(postgres_server.url, default_pool_size=1) as narrow:
        with (
            psycopg.connect(narrow.url, autocommit=True) as one_client,
            psycopg.connect(narrow.url) as another,
        ):
            one_client.execute("SELECT 1")
            another.execute("SELECT 1")  # would wait for ever in session mode
        folder, port = narrow.folder, narrow.port
        narrow.stop()
        assert not listens(port)
        narrow.start()
        assert one(narrow.url, "SELECT 1") == 1
    assert not folder.exists()
    assert not listens(port)


def test_waiting_is_bounded() -> None:
    with pytest.raises(NeverCameTrue, match=r"not true within 0\.01 s: the moon is cheese"):
        wait_until(lambda: False, within=0.01, what="the moon is cheese")
