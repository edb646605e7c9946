"""The caller's own transaction: through every driver, from plain SQL, and from a handler (G4)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import msgspec
import psycopg
import psycopg.rows
import pytest
import sqlalchemy
from sqlalchemy.ext import asyncio as sqlalchemy_async
from sqlalchemy.orm import Session

from ropeway.core.errors import FieldError, IdempotencyMismatch, InputError, LeaseLost, NotSupported
from ropeway.core.job import Job, NewJob
from ropeway.core.outcome import Done
from ropeway.core.retry import RetryPolicy
from ropeway.core.states import DeadReason, EventName, State
from ropeway.core.unique import Unique
from ropeway.engines.postgres import transactional
from ropeway.testing.conformance.kit import (
    ack,
    answer_to,
    check_log,
    enqueue_one,
    job_of,
    lease_one,
    leased_ids,
    new_job,
    refused,
    state_of,
)
from tests.engines.pg_kit import connected, opened

DAY = 86_400.0


class Caller(NamedTuple):
    """Somebody's connection with a transaction open on it."""

    connection: Any
    execute: Callable[[str], Awaitable[Any]]
    commit: Callable[[], Awaitable[Any]]
    rollback: Callable[[], Awaitable[Any]]


# ── every driver ──


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Caller]:
    async with connected(url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Caller(connection, connection.execute, transaction.commit, transaction.rollback)


@asynccontextmanager
async def by_asyncpg_with_a_json_codec(url: str) -> AsyncIterator[Caller]:
    """As its documentation recommends for those who want dicts."""
    async with by_asyncpg(url) as caller:
        for kind in ("json", "jsonb"):
            await caller.connection.set_type_codec(
                kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
            )
        await caller.connection.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")
        yield caller


@asynccontextmanager
async def by_asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Caller(connection, connection.execute, transaction.commit, transaction.rollback)


@asynccontextmanager
async def by_psycopg(url: str, **options: Any) -> AsyncIterator[Caller]:
    with psycopg.connect(url, **options) as connection:
        yield Caller(
            connection, _later(connection.execute), _later(connection.commit), _later(connection.rollback)
        )


@asynccontextmanager
async def by_psycopg_with_dict_rows(url: str) -> AsyncIterator[Caller]:
    async with by_psycopg(url, row_factory=psycopg.rows.dict_row) as caller:
        yield caller


@asynccontextmanager
async def by_psycopg_async(url: str, **options: Any) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url, **options) as connection:
        yield Caller(connection, connection.execute, connection.commit, connection.rollback)


@asynccontextmanager
async def by_psycopg_async_with_dict_rows(url: str) -> AsyncIterator[Caller]:
    async with by_psycopg_async(url, row_factory=psycopg.rows.dict_row) as caller:
        yield caller


@asynccontextmanager
async def by_sqlalchemy_connection(url: str) -> AsyncIterator[Caller]:
    with _engine(url) as engine, engine.connect() as connection:
        yield _sqlalchemy(connection)


@asynccontextmanager
async def by_sqlalchemy_session(url: str) -> AsyncIterator[Caller]:
    with _engine(url) as engine, Session(engine) as session:
        yield _sqlalchemy(session)


@asynccontextmanager
async def by_sqlalchemy_async(url: str, driver: str, kind: str) -> AsyncIterator[Caller]:
    engine = sqlalchemy_async.create_async_engine(_dialect(url, driver))
    try:
        opening: Any = engine.connect() if kind == "connection" else sqlalchemy_async.AsyncSession(engine)
        async with opening as connection:
            yield Caller(
                connection,
                lambda text: connection.execute(sqlalchemy.text(text)),
                connection.commit,
                connection.rollback,
            )
    finally:
        await engine.dispose()


def _dialect(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


@contextmanager
def _engine(url: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(_dialect(url, "psycopg"))
    try:
        yield engine
    finally:
        engine.dispose()


def _sqlalchemy(connection: Any) -> Caller:
    return Caller(
        connection,
        _later(lambda text: connection.execute(sqlalchemy.text(text))),
        _later(connection.commit),
        _later(connection.rollback),
    )


def _later(call: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def run(*arguments: Any) -> Any:
        return call(*arguments)

    return run


WAYS: dict[str, Callable[[str], Any]] = {
    "asyncpg": by_asyncpg,
    "asyncpg-json-codec": by_asyncpg_with_a_json_codec,
    "asyncpg-pool": by_asyncpg_pool,
    "psycopg": by_psycopg,
    "psycopg-dict-rows": by_psycopg_with_dict_rows,
    "psycopg-async": by_psycopg_async,
    "psycopg-async-dict-rows": by_psycopg_async_with_dict_rows,
    "sqlalchemy-connection": by_sqlalchemy_connection,
    "sqlalchemy-session": by_sqlalchemy_session,
    **{
        f"sqlalchemy-async-{kind}-{driver}": lambda url, driver=driver, kind=kind: by_sqlalchemy_async(
            url, driver, kind
        )
        for driver in ("asyncpg", "psycopg")
        for kind in ("connection", "session")
    },
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    return WAYS[request.param]


#: One of each option, to be found again on the stored job.
FULL = NewJob(
    type="mail.send",
    payload=b'{"b": 1.50, "a": [1e2, "\\u00e9 \xc3\xa9 %s :x $1"], "n": 9007199254740993}',
    queue="mail",
    priority=2,
    max_attempts=7,
    delay=120.5,
    idempotency_key="key %s :a0 $1 'quoted' é",
    retry=RetryPolicy(base=1.5, factor=3.0, cap=60.0, jitter=0.5, shape="below"),
    timeout=77.5,
    expires_in=3_600.0,
    tags=("a", "tag b", "é"),
    headers={"traceparent": "00-1", "x": "é %s"},
)


def without_times(job: Job) -> Job:
    """A job as it would be if it were another one, stored at another moment."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return msgspec.structs.replace(
        job,
        id=UUID(int=0),
        created_at=moment,
        updated_at=moment,
        run_at=moment + timedelta(seconds=round((job.run_at - job.created_at).total_seconds(), 1)),
        expires_at=job.expires_at and moment + (job.expires_at - job.created_at),
        idempotency_key=None,
    )


class TestEveryDriver:
    async def test_commit_and_the_job_is_there(self, database: str, way: Callable[[str], Any]) -> None:
        async with opened(database) as engine:
            async with way(database) as caller:
                ids = await engine.enqueue_in(caller.connection, [new_job(payload=b"[1]"), new_job(type="second")])
                assert await engine.get(ids) == [None, None]
                await caller.commit()
            assert all(type(id) is UUID for id in ids)
            assert await leased_ids(engine) == ids
            assert (await job_of(engine, ids[0])).payload == b"[1]"
            assert [event.event for event in await check_log(engine, ids[0])] == [
                EventName.ENQUEUED,
                EventName.STARTED,
            ]

    async def test_rollback_and_it_never_was(self, database: str, way: Callable[[str], Any]) -> None:
        async with opened(database) as engine:
            async with way(database) as caller:
                await caller.execute("CREATE TABLE public.users (name text)")
                ids = await engine.enqueue_in(caller.connection, [new_job(idempotency_key="k")])
                await caller.rollback()
            assert await engine.get(ids) == [None]
            assert await engine.events_of(ids[0]) == []
            await enqueue_one(engine, idempotency_key="k", payload=b"2")

    async def test_every_option_is_kept(self, database: str, way: Callable[[str], Any]) -> None:
        async with opened(database) as engine:
            async with way(database) as caller:
                (id,) = await engine.enqueue_in(caller.connection, [FULL], tenant="acme")
                await caller.commit()
            (other,) = await engine.enqueue([msgspec.structs.replace(FULL, idempotency_key="2")], tenant="acme")
            mine, direct = await engine.get([id, other.id], tenant="acme")
            assert mine is not None
            assert direct is not None
            assert mine.idempotency_key == FULL.idempotency_key
            assert mine.payload == FULL.payload
            assert without_times(mine) == without_times(direct)

    async def test_a_key_is_the_same_key(self, database: str, way: Callable[[str], Any]) -> None:
        async with opened(database) as engine:
            first = await enqueue_one(engine, idempotency_key="k", payload=b'{"a": 1, "b": 2}')
            same = new_job(idempotency_key="k", payload=b'{"b":2,"a":1}')
            async with way(database) as caller:
                assert await engine.enqueue_in(caller.connection, [same]) == [first]
                await caller.commit()
            async with way(database) as caller:
                with pytest.raises(IdempotencyMismatch) as caught:
                    await engine.enqueue_in(
                        caller.connection, [new_job(), new_job(idempotency_key="k", payload=b"2")]
                    )
                assert caught.value.index == 1
                await caller.rollback()
            assert (await engine.count()).number == 1

    async def test_a_unique_job_is_the_same_job(self, database: str, way: Callable[[str], Any]) -> None:
        async with opened(database) as engine:
            async with way(database) as caller:
                ids = await engine.enqueue_in(caller.connection, [new_job(unique=Unique())] * 2)
                await caller.commit()
            assert ids[0] == ids[1]
            (answer,) = await engine.enqueue([new_job(unique=Unique())])
            assert (answer.id, answer.deduplicated) == (ids[0], True)

    async def test_a_refusal_is_ours(self, database: str, way: Callable[[str], Any]) -> None:
        """What only the database notices comes as our error too, with the job's index."""
        async with opened(database) as engine, way(database) as caller:
            far = datetime.now(UTC) + timedelta(days=3_652, hours=23)
            with pytest.raises(InputError) as caught:
                await engine.enqueue_in(caller.connection, [new_job(), new_job(run_at=far)], tenant="not a name")
            assert caught.value.index == 0
            await caller.rollback()

    async def test_a_handlers_writes_and_its_completion_are_one(
        self, database: str, way: Callable[[str], Any]
    ) -> None:
        """G4: both or neither."""
        async with opened(database) as engine, connected(database) as other:
            await other.execute("CREATE TABLE public.bills (name text)")
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            async with way(database) as caller:
                await caller.execute("INSERT INTO bills VALUES ('undone')")
                await engine.settle_in(caller.connection, leased.lease, b'{"x": 1}')
                await caller.rollback()
            assert await state_of(engine, id) is State.RUNNING
            assert await other.fetchval("SELECT count(*) FROM bills") == 0
            async with way(database) as caller:
                await caller.execute("INSERT INTO bills VALUES ('paid')")
                settled = await engine.settle_in(caller.connection, leased.lease, b'{"x": 1}')
                assert (settled.state, settled.id) == (State.SUCCEEDED, id)
                assert await state_of(engine, id) is State.RUNNING
                await caller.commit()
            assert await other.fetchval("SELECT string_agg(name, ' ') FROM bills") == "paid"
            assert (await job_of(engine, id)).result == b'{"x": 1}'
            assert (await check_log(engine, id))[-1].event is EventName.COMPLETED

    async def test_a_stale_ticket_undoes_the_writes(self, database: str, way: Callable[[str], Any]) -> None:
        async with opened(database) as engine, connected(database) as other:
            await other.execute("CREATE TABLE public.bills (name text)")
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            await engine.cancel([id])
            async with way(database) as caller:
                await caller.execute("INSERT INTO bills VALUES ('never')")
                with pytest.raises(LeaseLost):
                    await engine.settle_in(caller.connection, leased.lease)
                await caller.rollback()
            assert await other.fetchval("SELECT count(*) FROM bills") == 0
            assert await state_of(engine, id) is State.CANCELLED


class TestWithoutAnEventLoop:
    @pytest.mark.parametrize(
        "kind", ["psycopg", "psycopg-dict-rows", "sqlalchemy-connection", "sqlalchemy-session"]
    )
    def test_a_sync_connection(self, database: str, kind: str) -> None:
        with contextlib.ExitStack() as stack:
            if kind.startswith("psycopg"):
                rows = psycopg.rows.dict_row if kind.endswith("rows") else psycopg.rows.tuple_row
                connection: Any = stack.enter_context(psycopg.connect(database, row_factory=rows))
            else:
                engine = stack.enter_context(_engine(database))
                connection = stack.enter_context(engine.connect() if "connection" in kind else Session(engine))
            ids = transactional.enqueue_sync(connection, "ropeway", [FULL, new_job()], "default", DAY)
            connection.commit()
            changed = msgspec.structs.replace(FULL, payload=b"2")
            with pytest.raises(IdempotencyMismatch):
                transactional.enqueue_sync(connection, "ropeway", [changed], "default", DAY)
            connection.rollback()
            transactional.enqueue_sync(connection, "ropeway", [new_job()], "default", DAY)
            connection.rollback()
        assert asyncio.run(_all_ids(database)) == set(ids)

    def test_djangos_connection(self, database: str) -> None:
        with django_connection(database) as connection:
            for proxy in (connection, _django_proxy(connection)):
                connection.set_autocommit(False)
                ids = transactional.enqueue_sync(proxy, "ropeway", [FULL, new_job()], "default", DAY)
                connection.rollback()
                assert asyncio.run(_all_ids(database)) & set(ids) == set()
            ids = transactional.enqueue_sync(connection, "ropeway", [FULL, new_job()], "default", DAY)
            connection.commit()
            changed = msgspec.structs.replace(FULL, payload=b"2")
            with pytest.raises(IdempotencyMismatch):
                transactional.enqueue_sync(connection, "ropeway", [changed], "default", DAY)
            connection.rollback()
        assert asyncio.run(_all_ids(database)) == set(ids)

    def test_djangos_connection_completes_a_job(self, database: str) -> None:
        async def leased() -> Any:
            async with opened(database) as engine:
                await enqueue_one(engine)
                return await lease_one(engine)

        lease = asyncio.run(leased()).lease
        arguments = ["default", str(lease.job_id), lease.attempt, str(lease.token), None, False, False]
        with django_connection(database) as connection:
            connection.set_autocommit(False)
            assert transactional.scalar(connection, transactional._COMPLETE, "ropeway", arguments) is True
            assert transactional.scalar(connection, transactional._COMPLETE, "ropeway", arguments) is False
            connection.commit()

    def test_an_async_connection_is_refused(self, database: str) -> None:
        async def connect() -> Any:
            return await psycopg.AsyncConnection.connect(database)

        with asyncio.Runner() as runner:
            connection = runner.run(connect())
            with pytest.raises(NotSupported, match="async"):
                transactional.enqueue_sync(connection, "ropeway", [new_job()], "default", DAY)
            runner.run(connection.close())


class TestWhatIsNoConnection:
    @pytest.mark.parametrize("thing", [object(), None, "postgresql://127.0.0.1/x", 7, {}])
    async def test_other_things(self, database: str, thing: object) -> None:
        async with opened(database) as engine:
            with pytest.raises(FieldError) as caught:
                await engine.enqueue_in(thing, [new_job()])
            assert caught.value.pointer == "/connection"
            await enqueue_one(engine)
            leased = await lease_one(engine)
            with pytest.raises(FieldError):
                await engine.settle_in(thing, leased.lease)

    async def test_pools_and_engines(self, database: str) -> None:
        """Each statement would run on a connection of its own: nothing of the caller's transaction."""
        async with opened(database) as engine, asyncpg.create_pool(database, min_size=1) as pool:
            with _engine(database) as sync_engine:
                async_engine = sqlalchemy_async.create_async_engine(_dialect(database, "asyncpg"))
                for thing in (pool, sync_engine, async_engine, sqlalchemy_async.AsyncSession, Session):
                    with pytest.raises(FieldError):
                        await engine.enqueue_in(thing, [new_job()])
                await async_engine.dispose()
            assert (await engine.count()).number == 0


@contextmanager
def django_connection(url: str) -> Iterator[Any]:
    import django
    import django.conf
    from django.db.utils import ConnectionHandler

    if not django.conf.settings.configured:
        django.conf.settings.configure(USE_TZ=True)
        django.setup()
    parts = urlsplit(url)
    handler = ConnectionHandler(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts.path.lstrip("/"),
                "USER": parts.username,
                "HOST": parts.hostname,
                "PORT": parts.port,
            }
        }
    )
    connection = handler["default"]
    try:
        yield connection
    finally:
        connection.close()


def _django_proxy(connection: Any) -> Any:
    """What `django.db.connection` is."""
    from django.utils.connection import ConnectionProxy

    return ConnectionProxy({"default": connection}, "default")


async def _all_ids(url: str) -> set[UUID]:
    async with connected(url) as connection:
        return {row[0] for row in await connection.fetch("SELECT id FROM ropeway.jobs")}


# ── plain SQL ──


async def sql_enqueue(
    connection: asyncpg.Connection, payload: str = "{}", type: str = "t", **options: Any
) -> UUID:
    id: UUID = await connection.fetchval(
        "SELECT ropeway.enqueue($1, $2, $3::text::jsonb)", type, payload, json.dumps(options)
    )
    return id


class TestPlainSql:
    async def test_the_signature_is_promised(self, database: str) -> None:
        async with connected(database) as connection:
            rows = await connection.fetch(
                """SELECT pg_get_function_arguments(oid) AS arguments, pg_get_function_result(oid) AS result
                   FROM pg_proc WHERE pronamespace = 'ropeway'::regnamespace AND proname = 'enqueue'"""
            )
        assert [tuple(row) for row in rows] == [
            ("type text, payload text, options jsonb DEFAULT '{}'::jsonb", "uuid")
        ]

    async def test_defaults_are_those_of_core(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            id = await connection.fetchval("SELECT ropeway.enqueue('t', '{}')")
            named = await connection.fetchval("SELECT ropeway.enqueue(payload => '{}', type => 't')")
            job, again = await job_of(engine, id), await job_of(engine, named)
            assert without_times(job) == without_times(again)
            assert without_times(job) == without_times(await job_of(engine, await enqueue_one(engine, type="t")))
            assert id.version == 7

    async def test_options(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
            id = await sql_enqueue(
                connection, "[1, 2]", "mail", queue="q", priority="high", max_attempts=3, run_at=at.isoformat(),
                timeout=5, tags=["x"], headers={"h": "v"}, retry={"base": 2.0}, expires_at=at.isoformat(),
                tenant="acme",
            )  # fmt: skip
            (job,) = await engine.get([id], tenant="acme")
            assert job is not None
            assert (job.type, job.queue, job.priority, job.max_attempts, job.run_at) == ("mail", "q", 3, 3, at)
            assert (job.timeout, job.tags, job.headers, job.expires_at) == (5.0, ("x",), {"h": "v"}, at)
            assert job.retry == RetryPolicy(base=2.0)
            assert job.state is State.SCHEDULED

    @pytest.mark.parametrize(
        ("payload", "options"),
        [
            ("{}", {"colour": "red"}),
            ("{}", {"queue": "not a name"}),
            ("{}", {"queue": ""}),
            ("{}", {"tenant": "é"}),
            ("{}", {"priority": 0}),
            ("{}", {"priority": 10}),
            ("{}", {"priority": "urgent"}),
            ("{}", {"priority": 5.5}),
            ("{}", {"max_attempts": 0}),
            ("{}", {"max_attempts": 26}),
            ("{}", {"run_at": "2026-01-01T00:00:00Z", "delay": 1}),
            ("{}", {"run_at": "infinity"}),
            ("{}", {"run_at": "2999-01-01T00:00:00Z"}),
            ("{}", {"run_at": "soon"}),
            ("{}", {"delay": -1}),
            ("{}", {"delay": 1e10}),
            ("{}", {"delay": "NaN"}),
            ("{}", {"unique": {}}),
            ("{}", {"unique": {"key": "x" * 2000}}),
            ("{}", {"idempotency_key": ""}),
            ("{}", {"idempotency_key": None}),
            ("{}", {"tags": "one"}),
            ("{}", {"tags": [1]}),
            ("{}", {"headers": ["x"]}),
            ("{}", {"headers": {"a": 1}}),
            ("{}", {"expires_in": 0}),
            ("{}", {"timeout": -1}),
            ("{}", {"timeout": 1e9}),
            ("{}", {"expires_at": "never"}),
            ("not json", {}),
            ("", {}),
            ("{}}", {}),
            ('"' + "x" * 16_777_216 + '"', {}),
            ("{}", {"expires_at": "20000-01-01"}),
            ("{}", {"expires_at": "0044-03-15 BC"}),
            ("{}", {"expires_at": "infinity"}),
            ("{}", {"key_window": -5, "idempotency_key": "k"}),
            ("{}", {"idempotency_key": "k" * 513}),
            ("{}", {"unique": {"key": "k", "states": "nonsense"}}),
        ],
    )
    async def test_what_is_refused(self, database: str, payload: str, options: dict[str, Any]) -> None:
        async with connected(database) as connection:
            with pytest.raises(asyncpg.PostgresError):
                await sql_enqueue(connection, payload, **options)
            assert await connection.fetchval("SELECT count(*) FROM ropeway.jobs") == 0
            assert await connection.fetchval("SELECT count(*) FROM ropeway.keys") == 0

    @pytest.mark.parametrize("type_", ["", "a b", "é", "x" * 129, "semi;colon", None, "line\n"])
    async def test_types_that_are_refused(self, database: str, type_: str | None) -> None:
        async with connected(database) as connection:
            with pytest.raises(asyncpg.PostgresError):
                await connection.fetchval("SELECT ropeway.enqueue($1, '{}')", type_)

    @pytest.mark.parametrize("options", ["[]", '"x"', "7"])
    async def test_options_that_are_no_object(self, database: str, options: str) -> None:
        async with connected(database) as connection:
            with pytest.raises(asyncpg.PostgresError, match="options must be a JSON object"):
                await connection.fetchval("SELECT ropeway.enqueue('t', '{}', $1::text::jsonb)", options)

    @pytest.mark.parametrize(
        "payload",
        ['{"b":1,  "a":\t2}', "1.50", "1e131071", '"\\u00e9é"', "[]", "null", " [1] ", '{"n":9007199254740993}'],
    )
    async def test_payload_bytes_are_kept(self, database: str, payload: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            id = await sql_enqueue(connection, payload)
            leased = await engine.lease(["default"], 1, _worker())
            if leased.leases:
                assert leased.leases[0].job.payload == payload.encode()
            assert (await job_of(engine, id)).payload == payload.encode()

    @pytest.mark.parametrize(
        ("payload", "code"),
        [
            ('{"a": 1, "a": 2}', "duplicate_key"),
            ("[" * 65 + "]" * 65, "too_deep"),
            ("9223372036854775808", "number_range"),
            ("1e400", "number_range"),
            ('"\\u0000"', "nul_character"),
            ('"\\ud800"', "invalid_unicode"),
        ],
    )
    async def test_what_only_python_can_refuse_ends_dead(self, database: str, payload: str, code: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            id, good = await sql_enqueue(connection, payload), await sql_enqueue(connection, "1")
            assert await leased_ids(engine) == [good]
            job = await job_of(engine, id)
            assert (job.state, job.dead_reason) == (State.DEAD, DeadReason.BAD_PAYLOAD)
            assert job.last_error is not None
            assert job.last_error.message.startswith(code)
            assert job.payload == payload.encode()
            last = (await check_log(engine, id))[-1]
            assert (last.event, last.data["reason"]) == (EventName.DLQ, "bad_payload")
            assert await engine.audit() == []

    @pytest.mark.parametrize(
        "options",
        [
            {"retry": {"base": -1}},
            {"retry": {"base": 1e300}},
            {"retry": "often"},
            {"retry": 7},
            {"tags": ["x"] * 17},
            {"tags": [""]},
            {"headers": {"x": "y" * 9_000}},
        ],
    )
    async def test_options_that_only_python_can_refuse_end_dead(
        self, database: str, options: dict[str, Any]
    ) -> None:
        """Neither a claim nor a list may fail because of one bad row."""
        async with opened(database) as engine, connected(database) as connection:
            id, good = await sql_enqueue(connection, **options), await sql_enqueue(connection)
            (before,) = await engine.get([id])
            assert before is not None
            assert await leased_ids(engine) == [good]
            assert await leased_ids(engine) == []
            job = await job_of(engine, id)
            assert (job.state, job.dead_reason) == (State.DEAD, DeadReason.BAD_PAYLOAD)
            assert {job.id for job in (await engine.find()).jobs} == {id, good}

    async def test_what_was_refused_once_is_refused_again(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            for id in (await sql_enqueue(connection, '{"a": 1, "a": 2}'), await sql_enqueue(connection, retry=7)):
                assert await leased_ids(engine) == []
                await engine.redrive([id])
                assert await leased_ids(engine) == []
                assert (await job_of(engine, id)).dead_reason is DeadReason.BAD_PAYLOAD
                await check_log(engine, id)

    async def test_a_key_without_a_fingerprint(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            first = await sql_enqueue(connection, "1", idempotency_key="k")
            assert await sql_enqueue(connection, "1", idempotency_key="k") == first
            with pytest.raises(asyncpg.PostgresError) as caught:
                await sql_enqueue(connection, "2", idempotency_key="k")
            assert caught.value.sqlstate == "RW422"
            assert await sql_enqueue(connection, "1", idempotency_key="k", tenant="acme") != first
            assert (await job_of(engine, first)).idempotency_key == "k"

    async def test_a_key_in_a_bad_batch_leaves_nothing(self, database: str) -> None:
        async with connected(database) as connection:
            with pytest.raises(asyncpg.PostgresError):
                await connection.fetch(
                    """SELECT ropeway.enqueue('t', '1', '{"idempotency_key": "k"}'),
                              ropeway.enqueue('bad type', '1')"""
                )
            assert await connection.fetchval("SELECT count(*) FROM ropeway.keys") == 0

    async def test_from_a_trigger(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            await connection.execute(
                """CREATE TABLE public.users (name text);
                   CREATE FUNCTION public.welcome() RETURNS trigger LANGUAGE plpgsql AS $$
                   BEGIN
                       PERFORM ropeway.enqueue('welcome', json_build_object('name', NEW.name)::text);
                       RETURN NEW;
                   END $$;
                   CREATE TRIGGER welcome AFTER INSERT ON users FOR EACH ROW EXECUTE FUNCTION welcome()"""
            )
            await connection.execute("INSERT INTO users SELECT 'user ' || n FROM generate_series(1, 50) n")
            async with connected(database) as other:
                undone = other.transaction()
                await undone.start()
                await other.execute("INSERT INTO users VALUES ('nobody')")
                await undone.rollback()
            batch = await engine.lease(["default"], 100, _worker())
            names = [json.loads(leased.job.payload or b"")["name"] for leased in batch.leases]
            assert names == [f"user {number}" for number in range(1, 51)], "in the order of their statements"
            await ack(engine, batch.leases[0])

    async def test_wakes_only_when_asked(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            subscription = await engine.subscribe(["mail"])
            while await subscription.wait(0.05):
                pass
            await sql_enqueue(connection, queue="mail")
            await sql_enqueue(connection, queue="mail", wake=False)
            await sql_enqueue(connection, queue="other", wake=True)
            assert not await subscription.wait(0.1)
            await sql_enqueue(connection, queue="mail", wake=True)
            assert await subscription.wait(10)

    async def test_a_wake_up_comes_with_the_commit(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            subscription = await engine.subscribe(["default"])
            while await subscription.wait(0.05):
                pass
            late = connection.transaction()
            await late.start()
            await sql_enqueue(connection, wake=True)
            assert not await subscription.wait(0.1)
            await late.commit()
            assert await subscription.wait(10)

    async def test_a_missing_partition_is_said(self, fresh_database: str) -> None:
        """In someone else's transaction nothing can be repeated; the next call of an engine mends it."""
        async with opened(fresh_database) as engine, connected(fresh_database) as connection:
            today = (await engine.now()).date()
            await connection.execute(f"DROP TABLE ropeway.events_{today:%Y%m%d}")
            with pytest.raises(asyncpg.CheckViolationError, match="no partition"):
                await sql_enqueue(connection)
            await enqueue_one(engine)
            await sql_enqueue(connection)
            assert len(await leased_ids(engine)) == 2

    async def test_a_lost_answer_is_settled_by_the_fence(self, database: str) -> None:
        """The commit's answer was lost: a nack with the same ticket tells whether it was made."""
        async with opened(database) as engine, connected(database) as handler:
            await enqueue_one(engine)
            leased = await lease_one(engine)
            async with handler.transaction():
                await engine.settle_in(handler, leased.lease)
            answer = await answer_to(engine, leased, Done())
            assert getattr(answer, "already", False)
            with pytest.raises(LeaseLost):
                async with handler.transaction():
                    await engine.settle_in(handler, leased.lease)

    async def test_bad_results_are_kept_as_well_as_can_be(self, database: str) -> None:
        """G14 in the handler's own transaction."""
        async with opened(database) as engine, connected(database) as handler:
            for result in (b'"\\u0000"', b"\xff", b"NaN", b"[" * 100):
                await enqueue_one(engine)
                leased = await lease_one(engine)
                async with handler.transaction():
                    settled = await engine.settle_in(handler, leased.lease, result)
                assert settled.sanitized
                assert (await job_of(engine, leased.job.id)).result_sanitized
            refused(await answer_to(engine, msgspec.structs.replace(leased.lease, attempt=9), Done()), LeaseLost)


def _worker() -> Any:
    from ropeway.testing.conformance.kit import worker

    return worker()
