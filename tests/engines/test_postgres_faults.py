"""When the server is not what it should be, goes away, or says no: clear errors, and calls that work again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from devtools.postgres import PostgresServer, PrivatePostgres
from devtools.private import NotAvailable
from devtools.waiting import wait_until
from ropeway.core.errors import (
    ConfigurationError,
    EngineError,
    Indeterminate,
    RopewayError,
    Unavailable,
)
from ropeway.core.outcome import Done
from ropeway.core.states import State
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.protocol import Settlement
from ropeway.testing.conformance.kit import (
    ack,
    enqueue_many,
    enqueue_one,
    lease_one,
    lease_some,
    new_job,
    nothing_changes,
    state_of,
)
from tests.engines.pg_kit import (
    INSERT,
    connected,
    eventually,
    migrated,
    opened,
    telling_otherwise,
    waiting_for_lock,
)


@pytest.fixture(scope="module")
def own_server() -> Iterator[PrivatePostgres]:
    """A server that these tests may stop."""
    try:
        server = PrivatePostgres(shared_buffers="32MB")
    except NotAvailable as error:
        pytest.skip(f"NOT RUN: postgres: {error}")
    with server:
        yield server


@pytest.fixture
def own_database(own_server: PrivatePostgres) -> str:
    """A migrated database on that server."""
    return migrated(own_server.create_database(f"t{uuid.uuid4().hex[:12]}"))


async def refusal_of(url: str, **options: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        async with opened(url, **options):
            pass
    return caught.value


class TestWhatIsRefusedAtTheStart:
    async def test_commits_that_do_not_wait(self, fresh_database: str, postgres_server: PostgresServer) -> None:
        name = fresh_database.rpartition("/")[2]
        for value in ("off", "local", "remote_write"):
            postgres_server._execute(f"ALTER DATABASE {name} SET synchronous_commit = {value}")
            assert f"synchronous_commit={value}" in str(await refusal_of(fresh_database))
        async with opened(fresh_database, durability="relaxed") as engine:
            assert engine.durability == "relaxed"
            await enqueue_one(engine)
        postgres_server._execute(f"ALTER DATABASE {name} SET synchronous_commit = remote_apply")
        async with opened(fresh_database) as engine:
            assert engine.durability == "full"

    async def test_a_disk_that_is_not_waited_for(self) -> None:
        with PrivatePostgres(fsync=False, shared_buffers="32MB") as server:
            error = await refusal_of(server.url)
            assert "fsync=off" in str(error)
            assert "ROPEWAY_DURABILITY" in str(error)
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET full_page_writes = off")
                connection.execute("SELECT pg_reload_conf()")
            async with connected(server.url) as other:
                await eventually(lambda: other.fetchval("SELECT current_setting('full_page_writes') = 'off'"))
            assert "full_page_writes=off" in str(await refusal_of(server.url))
            engine = PostgresEngine(server.url, durability="relaxed", days_ahead=1)
            await engine.migrations.up()
            async with engine:
                await ack(engine, await _work(engine))

    @pytest.mark.slow
    async def test_another_encoding(self, postgres_server: PostgresServer) -> None:
        name = f"ropeway_latin_{os.getpid()}"
        postgres_server._execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        try:
            error = await refusal_of(postgres_server.url_for(name))
            assert "LATIN1" in str(error)
            assert "UTF8" in (error.hint or "")
        finally:
            postgres_server.drop_database(name)

    async def test_a_missing_schema(self, postgres_database: str) -> None:
        error = await refusal_of(postgres_database)
        assert "ropeway migrate up" in (error.hint or "")

    async def test_a_schema_that_lacks_a_part(self, fresh_database: str) -> None:
        """Someone dropped a function behind our back: said when it is met."""
        async with opened(fresh_database) as engine, connected(fresh_database) as other:
            await other.execute("DROP FUNCTION ropeway.claim_jobs")
            with pytest.raises(ConfigurationError, match="ropeway migrate up"):
                await lease_one(engine)

    async def test_a_database_that_is_not_there(self, postgres_server: PostgresServer) -> None:
        error = await refusal_of(postgres_server.url_for("nowhere"))
        assert "nowhere" in str(error)
        assert "ROPEWAY_URL" in (error.hint or "")

    async def test_a_user_that_is_not_there(self, database: str) -> None:
        error = await refusal_of(database.replace("ropeway@", "nobody_here:secret@", 1))
        assert "refused the user or password" in str(error)
        assert "secret" not in str(error)

    async def test_a_wrong_password(self, own_server: PrivatePostgres) -> None:
        rules = own_server.folder / "data" / "pg_hba.conf"
        _replace(rules, "trust", "scram-sha-256", own_server)
        try:
            error = await refusal_of(own_server.url.replace("ropeway@", "ropeway:secret@"))
            assert "refused the user or password" in str(error)
            assert "secret" not in str(error)
        finally:
            _replace(rules, "scram-sha-256", "trust", own_server)

    async def test_nobody_listens_there(self) -> None:
        with pytest.raises(Unavailable) as caught:
            async with opened("postgresql://ropeway:secret@127.0.0.1:1/x"):
                pass
        assert "127.0.0.1:1" in str(caught.value)
        assert "secret" not in str(caught.value)

    async def test_a_host_that_does_not_exist(self) -> None:
        with pytest.raises(Unavailable, match=r"no connection to postgresql://nowhere\.invalid"):
            async with opened("postgresql://ropeway@nowhere.invalid/x"):
                pass

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://ropeway@127.0.0.1:99999/x",
            "postgresql://ropeway@127.0.0.1:port/x",
            "postgresql://[::1/x",
            "postgresql://ropeway:secret@127.0.0.1/x?sslmode=perhaps",
            "postgresql://ropeway@127.0.0.1/x?pooled=yes",
        ],
    )
    async def test_a_url_that_makes_no_sense(self, url: str) -> None:
        error = await refusal_of(url)
        assert "secret" not in str(error)

    @pytest.mark.parametrize("schema", ["", "Jobs", "a-b", 'x"; DROP TABLE y; --', "1st", "x" * 49, "jobs\n", "ü"])
    def test_a_schema_name_that_would_need_quotes(self, schema: str) -> None:
        with pytest.raises(ConfigurationError, match="schema name"):
            PostgresEngine("postgresql://127.0.0.1/x", schema=schema)


def _replace(file: Path, old: str, new: str, server: PrivatePostgres) -> None:
    """Change how the server lets clients in, and wait until it does."""
    file.write_text(file.read_text().replace(old, new))
    os.kill(server.pid or 0, signal.SIGHUP)

    def applied() -> bool:
        try:
            psycopg.connect(server.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return new != "trust"
        return new == "trust"

    wait_until(applied, what=f"the server asks for {new}")


class TestTheServerGoesAway:
    @pytest.mark.parametrize("how", ["restart", "kill -9 of a backend"])
    async def test_calls_fail_clearly_and_work_again(
        self, own_server: PrivatePostgres, own_database: str, how: str
    ) -> None:
        async with opened(own_database) as engine:
            accepted: list[Any] = []
            errors: list[EngineError] = []
            broken, mended = asyncio.Event(), asyncio.Event()

            async def keep(call: Callable[[], Awaitable[Any]]) -> None:
                """Call until the server was away and 5 calls have worked again."""
                again = 0
                while again < 5:
                    try:
                        answer = await call()
                    except (Unavailable, Indeterminate) as error:
                        errors.append(error)
                        broken.set()
                        again = 0
                        await asyncio.sleep(0.01)
                        continue
                    accepted.extend(answer)
                    again += mended.is_set()

            async def work() -> list[Any]:
                leased = await lease_some(engine, 5, "worked")
                await engine.settle([Settlement(each.lease, Done()) for each in leased])
                return []

            callers = [
                lambda: engine.enqueue([new_job()]),
                lambda: engine.enqueue([new_job(queue="worked"), new_job()]),
                lambda: engine.enqueue([new_job(idempotency_key=os.urandom(8).hex())]),
                work,
                lambda: _nothing(engine.count()),
                lambda: _nothing(engine.rescue()),
                lambda: _nothing(engine.tail(limit=10)),
            ]
            tasks = [asyncio.create_task(keep(call)) for call in callers]
            await eventually(lambda: _true(len(accepted) > 50))
            if how == "restart":
                await asyncio.to_thread(own_server.restart, "immediate")
            else:
                pid = await engine.claims.value("SELECT pg_backend_pid()")
                os.kill(pid, signal.SIGKILL)
                await asyncio.wait_for(broken.wait(), 20)
            mended.set()
            async with asyncio.timeout(40):
                await asyncio.gather(*tasks)
            assert errors, "nobody noticed"
            assert {type(error) for error in errors} <= {Unavailable, Indeterminate}
            found = await engine.get([each.id for each in accepted][:9_000])
            assert None not in found, "an accepted job is gone"

    async def test_listeners_come_back(self, own_server: PrivatePostgres, own_database: str) -> None:
        async with opened(own_database) as engine, opened(own_database) as other:
            subscription = await engine.subscribe(["default"])
            await enqueue_one(other)
            assert await subscription.wait(10)
            await asyncio.to_thread(own_server.restart, "immediate")
            assert await subscription.wait(20), "whoever listens is woken: signals may have been missed"
            while await subscription.wait(0.1):
                pass
            await _until_it_works(lambda: enqueue_one(other))
            assert await subscription.wait(10), "heard by the new connection"

    async def test_one_terminated_listener_comes_back(self, database: str) -> None:
        async with opened(database) as engine, opened(database) as other, connected(database) as admin:
            subscription = await engine.subscribe(["default"])
            while await subscription.wait(0.05):
                pass
            ended = await admin.fetchval(
                """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                   WHERE datname = current_database() AND query ILIKE 'LISTEN %'"""
            )
            assert ended == 1
            assert await subscription.wait(10)
            await enqueue_one(other)
            assert await subscription.wait(10)


class TestTheServerSaysNo:
    async def test_a_cancelled_statement_stored_nothing(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as other:
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            async with other.transaction():
                await other.execute("SELECT FROM ropeway.jobs FOR UPDATE")
                for call in (engine.cancel([id]), engine.settle([Settlement(leased.lease, Done())])):
                    task = asyncio.create_task(call)
                    (pid,) = await waiting_for_lock(other, "ropeway.")
                    await other.execute("SELECT pg_cancel_backend($1)", pid)
                    with pytest.raises(Unavailable):
                        await task
            assert await state_of(engine, id) is State.RUNNING
            await ack(engine, leased)

    async def test_the_victim_of_a_deadlock_stored_nothing(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as other:
            first, second = await enqueue_many(engine, 2)
            # The other side is patient, so the engine is the victim.
            await other.execute("SET deadlock_timeout = '60s'")
            holding = other.transaction()
            await holding.start()
            await other.execute("SELECT FROM ropeway.jobs WHERE id = $1 FOR UPDATE", first)
            async with nothing_changes(engine, first, second):
                task = asyncio.create_task(engine.cancel([second, first]))
                await waiting_for_lock(other, "ropeway.cancel_jobs(")
                await other.execute("SELECT FROM ropeway.jobs WHERE id = $1 FOR UPDATE", second)
                with pytest.raises(Unavailable):
                    await task
                await holding.rollback()
            assert len(await engine.cancel([second, first])) == 2

    @pytest.mark.parametrize("number", [1, 1000])
    async def test_a_batch_that_takes_too_long_is_all_or_none(
        self, fresh_database: str, postgres_server: PostgresServer, number: int
    ) -> None:
        """E11: a timeout in the middle of it, at any place."""
        name = fresh_database.rpartition("/")[2]
        async with opened(fresh_database) as engine:
            stored = 0
            for milliseconds in (1, 2, 3, 5, 10, 20, 50):
                postgres_server._execute(f"ALTER DATABASE {name} SET statement_timeout = {milliseconds}")
                await engine.inserts.close()  # the next connection has the new setting
                with contextlib.suppress(Unavailable):
                    stored += len(await engine.enqueue([new_job()] * number))
                assert (await engine.count(cap=100_000)).number == stored
            postgres_server._execute(f"ALTER DATABASE {name} RESET statement_timeout")

    async def test_a_read_only_server_stores_nothing(
        self, fresh_database: str, postgres_server: PostgresServer
    ) -> None:
        name = fresh_database.rpartition("/")[2]
        async with opened(fresh_database) as engine:
            postgres_server._execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            await engine.inserts.close()
            with pytest.raises(Unavailable):
                await enqueue_one(engine)
            assert (await engine.count()).number == 0

    async def test_too_many_connections(self, fresh_database: str, postgres_server: PostgresServer) -> None:
        name = fresh_database.rpartition("/")[2]
        async with opened(fresh_database) as engine:
            postgres_server._execute(f"ALTER DATABASE {name} CONNECTION LIMIT 1")
            await engine.claims.close()
            role = f"plain_{os.getpid()}"
            postgres_server._execute(f"CREATE ROLE {role} LOGIN")
            try:
                plain = PostgresEngine(fresh_database.replace("ropeway@", f"{role}@", 1))
                with pytest.raises(Unavailable, match="too many connections"):
                    await plain.now()
            finally:
                postgres_server._execute(f"DROP ROLE {role}")

    @pytest.mark.parametrize("keyed", [False, True])
    async def test_a_commit_that_no_standby_confirmed_is_indeterminate(
        self, own_server: PrivatePostgres, own_database: str, keyed: bool
    ) -> None:
        """The server tells it as a mere warning: stored here, perhaps nowhere else."""
        job = new_job(idempotency_key="k") if keyed else new_job()
        async with opened(own_database) as engine, connected(own_database) as admin:
            await enqueue_one(engine)
            await _synchronous_standbys(admin, "'nobody'")
            await _until_commits_wait(own_database, admin)
            try:
                task = asyncio.create_task(engine.enqueue([job]))
                await admin.execute("SELECT pg_cancel_backend($1)", await _someone_who_waits(admin))
                with pytest.raises(Indeterminate):
                    await task
            finally:
                await _synchronous_standbys(admin, "''")
            assert (await engine.count()).number == 2, "the commit was made here"
            await enqueue_one(engine)

    async def test_also_when_telling_of_the_job_fails_after_that(self, own_database: str) -> None:
        async with opened(own_database) as engine, connected(own_database) as admin:
            await telling_otherwise(admin, f"{INSERT} COMMIT; RAISE 'not told' USING ERRCODE = '55P03';")
            await _synchronous_standbys(admin, "'nobody'")
            await _until_commits_wait(own_database, admin)
            try:
                task = asyncio.create_task(enqueue_one(engine))
                await admin.execute("SELECT pg_cancel_backend($1)", await _someone_who_waits(admin))
                with pytest.raises(Indeterminate, match="standby"):
                    await task
            finally:
                await _synchronous_standbys(admin, "''")
            assert (await engine.count()).number == 1, "the commit was made here"

    async def test_a_job_is_accepted_while_another_that_notifies_waits_for_a_standby(
        self, own_database: str
    ) -> None:
        """That one holds a lock which each commit that notifies needs, of the whole server."""
        async with opened(own_database) as engine, connected(own_database, times=2) as (admin, other):
            await enqueue_one(engine)
            await engine.inserts.value("SELECT set_config('synchronous_commit', 'local', false)", writes=False)
            await eventually(lambda: _true(engine.wakeups._sending is None))
            await _synchronous_standbys(admin, "'nobody'")
            await _until_commits_wait(own_database, admin)
            write = "SELECT pg_logical_emit_message(true, 'probe', '')"
            holds = asyncio.create_task(other.execute(f"BEGIN; {write}; NOTIFY elsewhere; COMMIT"))
            pid = await _someone_who_waits(admin)
            try:
                id = await enqueue_one(engine)
                assert not holds.done()
                assert await state_of(engine, id) is State.QUEUED
            finally:
                await admin.execute("SELECT pg_cancel_backend($1)", pid)
                await holds
                await _synchronous_standbys(admin, "''")

    async def test_nor_is_a_handlers_own_commit_that_none_confirmed(self, own_database: str) -> None:
        async with opened(own_database) as engine, connected(own_database) as admin:
            leased = await _work(engine)

            async def handle() -> None:
                async with engine.transaction(leased.lease, lambda: None):
                    pass

            await _synchronous_standbys(admin, "'nobody'")
            await _until_commits_wait(own_database, admin)
            try:
                task = asyncio.create_task(handle())
                await admin.execute("SELECT pg_cancel_backend($1)", await _someone_who_waits(admin))
                with pytest.raises(Indeterminate):
                    await task
            finally:
                await _synchronous_standbys(admin, "''")
            assert await state_of(engine, leased.job.id) is State.SUCCEEDED, "the commit was made here"


async def _someone_who_waits(admin: asyncpg.Connection) -> int:
    """The backend that waits for a standby."""
    return await eventually(
        lambda: admin.fetchval("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    )


async def _until_commits_wait(url: str, admin: asyncpg.Connection) -> None:
    """The new setting is in force when the checkpointer has read it, which nothing tells: a commit shows it."""
    async with connected(url) as other:
        for _ in range(1_000):
            probe = asyncio.create_task(other.execute("SELECT pg_logical_emit_message(true, 'probe', '')"))
            pid = await eventually(lambda probe=probe: _waiting_or_over(admin, probe))
            if pid is not True:
                await admin.execute("SELECT pg_cancel_backend($1)", pid)
                await probe
                return
    raise AssertionError("no commit waits for a standby")


async def _waiting_or_over(admin: asyncpg.Connection, probe: asyncio.Task[str]) -> int | bool:
    """Who waits for a standby; True when the commit went through without that."""
    pid = await admin.fetchval("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    return pid or probe.done()


async def _synchronous_standbys(admin: asyncpg.Connection, names: str) -> None:
    await admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = {names}")
    await admin.execute("SELECT pg_reload_conf()")
    await eventually(lambda: admin.fetchval(f"SELECT current_setting('synchronous_standby_names') = {names}"))


async def _work(engine: PostgresEngine) -> Any:
    await enqueue_one(engine)
    return await lease_one(engine)


async def _nothing(call: Awaitable[Any]) -> list[Any]:
    await call
    return []


async def _true(fact: bool) -> bool:
    return fact


async def _until_it_works(call: Callable[[], Awaitable[Any]]) -> None:
    async def worked() -> bool:
        try:
            await call()
        except RopewayError:
            return False
        return True

    await eventually(worked)
