"""An app on every engine: enqueueing, handles, results, options, middleware, schedules, loops and threads."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import asyncpg
import msgspec
import psycopg
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ropeway import (
    ConfigurationError,
    Done,
    Engine,
    Failed,
    FieldError,
    IdempotencyMismatch,
    JobCancelled,
    JobContext,
    JobEnded,
    JobError,
    JobFailed,
    JobHandle,
    Middleware,
    NewJob,
    NewSchedule,
    NotFound,
    NotSupported,
    ResultUnavailable,
    RetryPolicy,
    Ropeway,
    Settlement,
    State,
    SyncJobHandle,
    Unavailable,
    UnknownTask,
    UsageError,
    WorkerRef,
)
from ropeway.client.results import FIRST_LOOK, GROWTH, Results
from ropeway.core.job import Job
from ropeway.engines.memory import MemoryEngine
from ropeway.observability import tracing
from ropeway.observability.tally import produced
from ropeway.worker.inprocess import InProcessWorker
from tests.engines.pg_kit import eventually, migrated


@dataclasses.dataclass
class Letter:
    to: str
    sent_at: datetime


@pytest.fixture(scope="module")
def migrated_database(make_postgres_database: Any) -> str:
    return migrated(make_postgres_database())


@pytest.fixture
def postgres_url(migrated_database: str, make_postgres_database: Any) -> str:
    """URL of a migrated database of this test's own."""
    return make_postgres_database(template=urlsplit(migrated_database).path.lstrip("/"))


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ropeway.db"
    return request.getfixturevalue("postgres_url")


class Tasks:
    """An app and the tasks that these tests enqueue."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.app = app = Ropeway(url, **settings)

        @app.task(queue="mail", max_attempts=1)
        async def send(to: str, at: datetime | None = None) -> Letter:
            return Letter(to, at or datetime.now(UTC))

        @app.task
        def add(a: int, b: int = 1) -> int:
            return a + b

        self.send = send
        self.add = add


@pytest.fixture
def tasks(url: str) -> Iterator[Tasks]:
    tasks = Tasks(url)
    yield tasks
    tasks.app.close()


async def run_one(engine: Engine, outcome: Any, queue: str = "default") -> Job:
    """Be the worker for one job."""
    batch = await engine.lease([queue], 1, WorkerRef("w", uuid4()))
    (leased,) = batch.leases
    (answer,) = await engine.settle([Settlement(leased.lease, outcome)])
    assert not isinstance(answer, Exception), answer
    return leased.job


# ── Enqueueing ──


async def test_async_code_enqueues(tasks: Tasks) -> None:
    async with tasks.app:
        at = datetime(2026, 1, 1, 12, tzinfo=UTC)
        handle = await tasks.send.aenqueue("a@example.com", at=at)
        assert isinstance(handle, JobHandle)
        assert (handle.status, handle.deduplicated, handle.job) == (State.QUEUED, False, None)
        job = await handle.refresh()
        assert job.payload == b'{"to":"a@example.com","at":"2026-01-01T12:00:00Z"}'
        assert (job.type, job.queue, job.max_attempts, job.timeout) == ("send", "mail", 1, 3600.0)
        assert handle.job == job
        # The function is still a function.
        assert await tasks.send("b") != await tasks.send("c")
        assert tasks.add(1, 2) == 3
        assert tasks.add.__name__ == "add"


def test_sync_code_enqueues(tasks: Tasks) -> None:
    handle = tasks.add.enqueue(1, b=2)
    assert isinstance(handle, SyncJobHandle)
    assert handle.refresh().payload == b'{"a":1,"b":2}'
    assert [h.refresh().payload for h in tasks.add.enqueue_many([(1,), {"a": 2}])] == [b'{"a":1}', b'{"a":2}']
    assert tasks.add.enqueue_many([]) == []
    with pytest.raises(TimeoutError, match=f"job {handle.id} has not ended within 0.05 s"):
        handle.result(timeout=0.05)
    handle.cancel()
    assert handle.status is State.CANCELLED
    with pytest.raises(JobCancelled):
        handle.result()
    with pytest.raises(JobEnded):
        handle.cancel()
    again = tasks.app.sync.job(str(handle.id))
    assert (again.status, again.job and again.job.type) == (State.CANCELLED, "add")
    with pytest.raises(NotFound):
        tasks.app.sync.job(uuid4())


async def test_many_are_stored_or_none(tasks: Tasks) -> None:
    async with tasks.app as app:
        handles = await tasks.add.aenqueue_many({"a": n} for n in range(50))
        assert len({handle.id for handle in handles}) == 50
        with pytest.raises(FieldError, match=r"item 2: .*'a' does not fit: expected int, got str"):
            await tasks.add.aenqueue_many([(1,), {"a": 2}, ("3",)])
        with pytest.raises(FieldError, match=r"item 0: add: int is not a call \(give a dict"):
            await tasks.add.aenqueue_many([7])  # type: ignore[list-item]
        assert (await (await app.engine()).count()).number == 50
        mixed = await app.aenqueue_many([tasks.add.call(1), tasks.send.options(queue="b").call("x")])
        assert [(await handle.refresh()).queue for handle in mixed] == ["default", "b"]
        assert await app.aenqueue_many([]) == []
        with pytest.raises(FieldError, match="item 1: all calls of a batch need the same tenant"):
            await app.aenqueue_many([tasks.add.call(1), tasks.add.options(tenant="t").call(1)])


async def test_many_calls_by_position_are_told_apart_by_their_handles(tasks: Tasks) -> None:
    async with tasks.app:
        handles = await tasks.add.aenqueue_many([(n, 1) for n in range(30)])
        assert [handle.job for handle in handles] == [None] * 30
        assert {(handle.status, handle.deduplicated, handle.tenant) for handle in handles} == {
            (State.QUEUED, False, "default")
        }
        jobs = [await handle.refresh() for handle in handles]
        assert [job.id for job in jobs] == [handle.id for handle in handles]
        assert [msgspec.json.decode(job.payload or b"")["a"] for job in jobs] == list(range(30))
        assert (len(set(handles)), handles[0] == handles[0], handles[0] == handles[1]) == (30, True, False)
        assert repr(handles[0]) == f"<JobHandle {handles[0].id} queued>"
        assert await tasks.add.aenqueue_many([]) == []


@pytest.mark.parametrize(("level", "told"), [(logging.DEBUG, 3), (logging.INFO, 0)])
async def test_each_of_many_is_told_to_a_program_that_wants_to_hear_it(
    tasks: Tasks, caplog: pytest.LogCaptureFixture, level: int, told: int
) -> None:
    async with tasks.app:
        with caplog.at_level(level, "ropeway.client"):
            handles = await tasks.add.aenqueue_many([(n, 1) for n in range(3)])
    lines = [record.getMessage() for record in caplog.records if record.name == "ropeway.client"]
    assert len(lines) == told
    assert all(str(handle.id) in line for handle, line in zip(handles, lines, strict=False))


def test_sync_code_enqueues_many_of_several_tasks(tasks: Tasks) -> None:
    handles = tasks.app.enqueue_many([tasks.add.call(1), tasks.send.call("x")])
    assert [handle.refresh().type for handle in handles] == ["add", "send"]


async def test_a_wrong_argument_fails_at_the_call(tasks: Tasks) -> None:
    async with tasks.app as app:
        with pytest.raises(FieldError, match="'a' does not fit: expected int, got str"):
            await tasks.add.aenqueue("7")  # type: ignore[arg-type]
        with pytest.raises(FieldError, match="'to' is missing"):
            await tasks.send.aenqueue()  # type: ignore[call-arg]
        assert (await (await app.engine()).count()).number == 0


async def test_settings_are_the_defaults_of_tasks(url: str) -> None:
    tasks = Tasks(url, retry_max_attempts=7, job_timeout=99)
    async with tasks.app:
        job = await (await tasks.add.aenqueue(1)).refresh()
        assert (job.max_attempts, job.timeout) == (7, 99.0)
        assert (await (await tasks.send.aenqueue("a")).refresh()).max_attempts == 1


# ── Options ──


async def test_options_of_one_call(tasks: Tasks) -> None:
    async with tasks.app as app:
        bound = tasks.add.options(
            queue="slow",
            priority="low",
            delay=timedelta(minutes=5),
            max_attempts=2,
            timeout=30,
            headers={"h": "1"},
            tags=["t"],
            retry={"base": 1},
            expires_in=3600,
        )
        job = await (await bound.aenqueue(1)).refresh()
        assert (job.queue, job.priority, job.state, job.max_attempts) == ("slow", 7, State.SCHEDULED, 2)
        assert (job.timeout, job.headers, job.tags) == (30.0, {"h": "1"}, ("t",))
        assert job.retry is not None
        assert job.retry.base == 1
        assert job.expires_at is not None
        now = await (await app.engine()).now()
        assert timedelta(minutes=4) < job.run_at - now <= timedelta(minutes=5)
        # Options add up; a new time takes the place of the old one.
        later = now + timedelta(days=1)
        job = await (await bound.options(run_at=later).options(tags=["u"]).aenqueue(1)).refresh()
        assert (job.run_at, job.queue, job.tags) == (later, "slow", ("u",))
        # The task itself is as it was.
        assert (await (await tasks.add.aenqueue(1)).refresh()).queue == "default"
        with pytest.raises(FieldError, match="give delay or run_at, not both"):
            tasks.add.options(delay=1, run_at=later)


async def test_keys_and_unique_jobs(tasks: Tasks) -> None:
    async with tasks.app:
        first = await tasks.add.options(key="k").aenqueue(1)
        again = await tasks.add.options(key="k").aenqueue(1)
        assert (again.id, again.deduplicated) == (first.id, True)
        with pytest.raises(IdempotencyMismatch):
            await tasks.add.options(key="k").aenqueue(2)
        only = await tasks.add.options(unique=True).aenqueue(3)
        assert (await tasks.add.options(unique=True).aenqueue(3)).id == only.id
        assert (await tasks.add.options(unique=True).aenqueue(4)).id != only.id


async def test_tenants_do_not_see_each_other(tasks: Tasks) -> None:
    async with tasks.app as app:
        handle = await tasks.add.options(tenant="acme").aenqueue(1)
        assert (await handle.refresh()).tenant == "acme"
        assert (await app.job(handle.id, tenant="acme")).status is State.QUEUED
        with pytest.raises(NotFound):
            await app.job(handle.id)
        with pytest.raises(FieldError, match="a job id is"):
            await app.job("7")


# ── Results ──


async def test_a_result_comes_back_as_the_task_announces(tasks: Tasks) -> None:
    async with tasks.app as app:
        handle = await tasks.send.aenqueue("a")
        waiting = asyncio.ensure_future(handle.result(timeout=20))
        letter = Letter("a", datetime(2026, 1, 1, tzinfo=UTC))
        await run_one(await app.engine(), Done(tasks.send.spec.encode_result(letter)), "mail")
        assert await waiting == letter
        assert handle.status is State.SUCCEEDED
        # Looked up by its id, and by an app that does not know the task.
        assert await (await app.job(handle.id)).result() == letter
        stranger = Ropeway(app.settings.url)
        stranger.program.adopt(await app.engine())
        assert await (await stranger.job(handle.id)).result() == {"to": "a", "sent_at": "2026-01-01T00:00:00Z"}


async def test_a_dead_job_raises_what_it_said(tasks: Tasks) -> None:
    async with tasks.app as app:
        handle = await tasks.send.aenqueue("a")
        await run_one(await app.engine(), Failed(JobError("ValueError", "no such address")), "mail")
        with pytest.raises(
            JobFailed, match=r"\(send\) is dead, max_attempts: ValueError: no such address"
        ) as error:
            await handle.result(timeout=20)
        assert error.value.job.last_error == JobError("ValueError", "no such address")
        assert handle.status is State.DEAD


async def test_a_cancelled_job_raises(tasks: Tasks) -> None:
    async with tasks.app:
        handle = await tasks.send.aenqueue("a")
        waiting = asyncio.ensure_future(handle.result(timeout=20))
        await handle.cancel()
        with pytest.raises(JobCancelled, match=r"\(send\) was cancelled"):
            await waiting


async def test_a_result_of_another_type_and_a_result_too_large(url: str) -> None:
    tasks = Tasks(url, max_payload_bytes=1000)
    async with tasks.app as app:
        handle = await tasks.add.aenqueue(1)
        await run_one(await app.engine(), Done(b'"three"'))
        with pytest.raises(ResultUnavailable, match="not what add announces: Expected `int`, got `str`"):
            await handle.result(timeout=20)
        assert handle.job is not None
        assert handle.job.result == b'"three"'
        handle = await tasks.add.aenqueue(1)
        await run_one(await app.engine(), Done(b'"' + b"x" * 2000 + b'"'))
        with pytest.raises(ResultUnavailable, match="too large to keep"):
            await handle.result(timeout=20)


async def test_a_job_that_is_gone_is_not_waited_for(tasks: Tasks) -> None:
    async with tasks.app as app:
        handle = await tasks.add.aenqueue(1)
        await (await app.engine()).delete([handle.id])
        with pytest.raises(NotFound, match=f"there is no job {handle.id}"):
            await handle.result(timeout=20)
        with pytest.raises(NotFound):
            await handle.refresh()


class Counting:
    """An engine's `get`, counted."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.calls: list[int] = []
        self.fail: Exception | None = None

    async def asked(self, *, times: int) -> None:
        async def fact() -> bool:
            return len(self.calls) >= times

        await eventually(fact, what=f"asked {times} times")

    async def get(self, ids: Any, **options: Any) -> Any:
        self.calls.append(len(ids))
        if self.fail is not None:
            raise self.fail
        return await self.engine.get(ids, **options)


async def test_all_awaited_results_are_one_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = MemoryEngine()
    counting = Counting(engine)
    results = Results(counting)  # type: ignore[arg-type]
    answers = await engine.enqueue([NewJob("t") for _ in range(300)])
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as time_stands_still:  # they arrive at one instant, however busy the machine is
        now = loop.time()
        time_stands_still.setattr(loop, "time", lambda: now)
        waiting = [asyncio.ensure_future(results.ended(answer.id, "default")) for answer in answers]
        waiting.append(asyncio.ensure_future(results.ended(answers[0].id, "default")))
        await asyncio.sleep(0)
    await counting.asked(times=6)
    # Looked at after 20, 50, 95, 163, 264 and 416 ms: each wait is half as long again.
    assert [one.delay for one in results._awaited.values()] == pytest.approx([FIRST_LOOK * GROWTH**6] * 300)
    await engine.cancel([answer.id for answer in answers])
    jobs = await asyncio.gather(*waiting)
    assert {job.state for job in jobs} == {State.CANCELLED}
    assert len(counting.calls) == 7
    assert set(counting.calls) == {300}


async def test_a_newcomer_does_not_wait_until_the_others_are_due() -> None:
    engine = MemoryEngine()
    counting = Counting(engine)
    results = Results(counting)  # type: ignore[arg-type]
    old, new = await engine.enqueue([NewJob("t"), NewJob("t")])
    waiting = asyncio.ensure_future(results.ended(old.id, "default"))
    await counting.asked(times=9)  # the next look is more than half a second away
    await engine.cancel([new.id])
    await results.ended(new.id, "default")
    assert counting.calls == [1] * 10
    # When nobody waits any more, nobody asks.
    waiting.cancel()
    await asyncio.wait({waiting})
    await results.close()
    assert results._task is not None
    assert results._task.done()


async def test_a_store_that_is_away_is_waited_for_and_other_errors_are_told() -> None:
    engine = MemoryEngine()
    counting = Counting(engine)
    results = Results(counting)  # type: ignore[arg-type]
    (answer,) = await engine.enqueue([NewJob("t")])
    await engine.cancel([answer.id])
    counting.fail = Unavailable("away")
    waiting = asyncio.ensure_future(results.ended(answer.id, "default"))
    await counting.asked(times=2)
    counting.fail = None
    assert (await waiting).state is State.CANCELLED
    counting.fail = ConfigurationError("wrong schema")
    with pytest.raises(ConfigurationError):
        await results.ended(answer.id, "default")


async def test_closing_ends_the_waiting() -> None:
    app = Ropeway("memory://")

    @app.task
    def task() -> None: ...

    await app.engine()
    waiting = asyncio.ensure_future((await task.aenqueue()).result())
    await asyncio.sleep(0)
    await app.aclose()
    with pytest.raises(Unavailable, match="closed while a result was awaited"):
        await waiting


# ── The caller's own transaction ──


async def test_an_async_transaction_carries_the_job(postgres_url: str) -> None:
    tasks = Tasks(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        async with tasks.app as app:
            transaction = connection.transaction()
            await transaction.start()
            handle = await tasks.add.options(connection=connection, key="k").aenqueue(1)
            assert handle.status is None
            with pytest.raises(NotFound):
                await handle.refresh()
            await transaction.commit()
            assert (await handle.refresh()).idempotency_key == "k"
            transaction = connection.transaction()
            await transaction.start()
            await tasks.add.options(connection=connection).aenqueue_many([(2,), (3,)])
            await transaction.rollback()
            assert (await (await app.engine()).count()).number == 1
    finally:
        connection.terminate()


def test_a_sync_transaction_carries_the_job(postgres_url: str) -> None:
    tasks = Tasks(postgres_url)
    used: list[int] = []

    class Watched(psycopg.Connection[Any]):
        def cursor(self, *args: Any, **kwargs: Any) -> Any:
            used.append(threading.get_ident())
            return super().cursor(*args, **kwargs)

    class Tagging(Middleware):
        async def enqueue(self, job: NewJob, call_next: Any) -> Any:
            return await call_next(msgspec.structs.replace(job, tags=("seen",)))

    tasks.app.add_middleware(Tagging())
    with Watched.connect(postgres_url) as connection:
        handle = tasks.add.options(connection=connection).enqueue(1)
        with pytest.raises(NotFound):
            handle.refresh()
        connection.commit()
        assert handle.refresh().tags == ("seen",)
        tasks.add.options(connection=connection).enqueue(2)
        connection.rollback()
        with pytest.raises(FieldError, match="is not a connection Ropeway knows"):
            tasks.add.options(connection=object()).enqueue(2)
    # In the caller's thread: some drivers allow no other.
    assert set(used) == {threading.get_ident()}
    assert [job.payload for job in found(tasks.app)] == [b'{"a":1}']
    tasks.app.close()


def found(app: Ropeway) -> list[Job]:
    async def find() -> list[Job]:
        async with app:
            return (await (await app.engine()).find()).jobs

    return asyncio.run(find())


async def test_an_async_connection_in_a_sync_call_is_refused(postgres_url: str) -> None:
    tasks = Tasks(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        with pytest.raises(NotSupported, match=r"this connection is async \(await the async call instead\)"):
            await asyncio.to_thread(tasks.add.options(connection=connection).enqueue, 1)
    finally:
        connection.terminate()
        await tasks.app.aclose()


def test_engines_without_transactions_say_so(tmp_path: Path) -> None:
    for url in ("memory://", f"sqlite:///{tmp_path}/r.db"):
        tasks = Tasks(url)
        with pytest.raises(NotSupported, match="needs the PostgreSQL engine"):
            tasks.add.options(connection=object()).enqueue(1)
        tasks.app.close()


# ── Windows ──


async def test_a_window_moves_the_start(tasks: Tasks) -> None:
    app = tasks.app
    async with app:
        now = (await (await app.engine()).now()).replace(second=0, microsecond=0)
        opens = now + timedelta(hours=2)
        window = f"{opens:%H:%M}-{opens + timedelta(hours=1):%H:%M}"

        @app.task(window=window)
        def heavy(n: int) -> None: ...

        handle = await heavy.aenqueue(1)
        assert handle.status is State.SCHEDULED
        assert (await handle.refresh()).run_at == opens
        inside = opens + timedelta(minutes=7)
        assert (await (await heavy.options(run_at=inside).aenqueue(1)).refresh()).run_at == inside
        tomorrow = await (await heavy.options(delay=timedelta(hours=4)).aenqueue(1)).refresh()
        assert tomorrow.run_at == opens + timedelta(days=1)
        # The same call is the same call, whenever it is made.
        first = await heavy.options(key="k").aenqueue(2)
        assert (await heavy.options(key="k").aenqueue(2)).id == first.id

        open_now = f"{now - timedelta(hours=1):%H:%M}-{now + timedelta(hours=1):%H:%M}"

        @app.task(window=open_now)
        def light() -> None: ...

        assert (await light.aenqueue()).status is State.QUEUED


# ── Middleware, traces, counts and lines ──


class Stamping(Middleware):
    def __init__(self) -> None:
        self.refuse: bytes | None = None
        self.answered: list[Any] = []

    async def enqueue(self, job: NewJob, call_next: Callable[[NewJob], Any]) -> Any:
        if job.payload == self.refuse:
            raise PermissionError("not this one")
        answer = await call_next(
            msgspec.structs.replace(job, tags=(*job.tags, "stamped"), headers={"at": str(uuid4())})
        )
        self.answered.append(answer)
        return answer


async def test_middleware_goes_round_every_enqueue(tasks: Tasks) -> None:
    stamping = Stamping()
    tasks.app.add_middleware(stamping)
    with pytest.raises(ConfigurationError, match="is not a middleware"):
        tasks.app.add_middleware(Stamping)  # type: ignore[arg-type]
    async with tasks.app as app:
        handle = await tasks.add.aenqueue(1)
        assert (await handle.refresh()).tags == ("stamped",)
        many = await tasks.add.aenqueue_many([(2,), (3,), (4,)])
        assert [(await each.refresh()).payload for each in many] == [b'{"a":2}', b'{"a":3}', b'{"a":4}']
        assert [answer.id for answer in stamping.answered] == [handle.id, *(each.id for each in many)]
        # A key stands for what the caller asked, not for what middleware made of it.
        first = await tasks.add.options(key="k").aenqueue(5)
        assert (await tasks.add.options(key="k").aenqueue(5)).id == first.id
        with pytest.raises(IdempotencyMismatch):
            await tasks.add.options(key="k").aenqueue(6)
        before = (await (await app.engine()).count()).number
        stamping.refuse = b'{"a":8}'
        with pytest.raises(PermissionError):
            await tasks.add.aenqueue_many([(7,), (8,), (9,)])
        assert (await (await app.engine()).count()).number == before


async def test_middleware_may_answer_by_itself(tasks: Tasks) -> None:
    class Skipping(Middleware):
        async def enqueue(self, job: NewJob, call_next: Any) -> Any:
            return first if job.payload == b'{"a":2}' else await call_next(job)

    async with tasks.app as app:
        engine = await app.engine()
        (first,) = await engine.enqueue([NewJob("other")])
        app.add_middleware(Skipping())
        handles = await tasks.add.aenqueue_many([(1,), (2,), (3,)])
        assert handles[1].id == first.id
        assert (await engine.count()).number == 3


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_provider", lambda: provider)
    return exporter


async def test_a_trace_travels_in_the_headers(tasks: Tasks, spans: InMemorySpanExporter) -> None:
    async with tasks.app:
        job = await (await tasks.send.options(headers={"h": "1"}, key="k").aenqueue("a")).refresh()
        assert job.headers["h"] == "1"
        (span,) = spans.get_finished_spans()
        assert span.name == "enqueue send"
        assert span.context is not None
        assert f"{span.context.trace_id:032x}-{span.context.span_id:016x}" in job.headers["traceparent"]
        # Another trace, but the same call.
        assert (await tasks.send.options(headers={"h": "1"}, key="k").aenqueue("a")).id == job.id
        await tasks.send.aenqueue_many([("a",), ("b",)])
        assert len(spans.get_finished_spans()) == 3


def test_a_sync_call_belongs_to_the_callers_trace(tasks: Tasks, spans: InMemorySpanExporter) -> None:
    tracer = tracing._tracer()
    assert tracer is not None
    with tracer.start_as_current_span("request") as parent:
        job = tasks.send.enqueue("a").refresh()
    assert f"{parent.get_span_context().trace_id:032x}" in job.headers["traceparent"]


async def test_enqueues_are_counted_and_logged(tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    def counts() -> list[dict[tuple[str, str], int]]:
        return [{(each.queue, each.type): each.number for each in kind} for kind in produced.untaken()]

    def number(kind: int) -> int:
        return counts()[kind].get(("mail", "send"), 0)

    caplog.set_level(logging.DEBUG, "ropeway.client")
    async with tasks.app:
        before = number(0), number(1)
        handle = await tasks.send.options(key="secret-key").aenqueue("secret-payload")
        await tasks.send.options(key="secret-key").aenqueue("secret-payload")
        await tasks.send.aenqueue_many([("a",), ("b",)])
        assert (number(0) - before[0], number(1) - before[1]) == (3, 1)
    lines = [record.getMessage() for record in caplog.records if record.name == "ropeway.client"]
    assert len([line for line in lines if "job_created" in line]) == 3
    assert str(handle.id) in lines[0]
    assert not any("secret" in line for line in lines)


# ── Declaring ──


def test_an_unknown_task_name_says_what_may_have_been_meant(tasks: Tasks) -> None:
    assert tasks.app.get_task("send") is tasks.send
    with pytest.raises(UnknownTask, match=r"no task is named 'snd' \(did you mean send\?\)"):
        tasks.app.get_task("snd")


def test_one_name_one_task() -> None:
    app = Ropeway("memory://")

    @app.task
    def job() -> None: ...

    with pytest.raises(ConfigurationError, match="two tasks are named 'job'"):

        @app.task(name="job")
        def other() -> None: ...

    with pytest.raises(ConfigurationError, match="is a task already"):
        app.task(job)


def test_annotations_may_name_local_classes() -> None:
    app = Ropeway("memory://")

    @dataclasses.dataclass
    class Here:
        x: int

    @app.task
    def bare(here: Here) -> None: ...

    @app.task(queue="q")
    def with_options(here: Here) -> None: ...

    assert bare.spec.new_job((Here(1),), {}).payload == b'{"here":{"x":1}}'
    assert with_options.spec.new_job((Here(1),), {}).payload == b'{"here":{"x":1}}'


def test_a_function_of_another_module_keeps_its_own_names() -> None:
    app = Ropeway("memory://")
    elsewhere: dict[str, Any] = {}
    exec("def task(x: 'Here'): ...\nHere = int", elsewhere)

    class Here:
        """Not the one that is meant."""

    assert app.task(elsewhere["task"]).spec.new_job((7,), {}).payload == b'{"x":7}'
    assert Here is not elsewhere["Here"]


def test_cron_declares_schedules() -> None:
    app = Ropeway("memory://", retry_max_attempts=4)

    @app.cron("0 9 * * 1-5", tz="Europe/Paris")
    @app.task(queue="reports", priority=2, max_attempts=3)
    async def report(days: int = 7) -> None: ...

    @app.cron("*/5 * * * *", name="every-five", args={"user_id": 7}, queue="q", missed="skip")
    async def poke(ctx: JobContext, user_id: int) -> None: ...

    assert app.program.schedules() == [
        NewSchedule(
            "report", "0 9 * * 1-5", "report", "Europe/Paris", "reports", b"{}", 2, 3, missed="once", source="code"
        ),
        NewSchedule(
            "every-five", "*/5 * * * *", "poke", "UTC", "q", b'{"user_id":7}', 5, 4, missed="skip", source="code"
        ),
    ]
    assert app.registry.names() == ["poke", "report"]
    with pytest.raises(ConfigurationError, match="poke cannot be called by the clock: it needs user_id"):
        app.cron("* * * * *", name="x")(poke)
    with pytest.raises(FieldError, match="'user' is not one it takes"):
        app.cron("* * * * *", name="x", args={"user": 1, "user_id": 2})(poke)
    with pytest.raises(ConfigurationError, match="two schedules are named 'report'"):
        app.cron("* * * * *")(report)
    with pytest.raises(FieldError, match="not a cron expression"):
        app.cron("often", name="x")(report)
    with pytest.raises(FieldError, match="unknown time zone"):
        app.cron("* * * * *", tz="Mars", name="x")(report)


async def test_a_job_of_a_schedule_is_like_a_plain_one(url: str) -> None:
    app = Ropeway(url, job_timeout=77.0, retry_max_attempts=4)
    retry = RetryPolicy(base=1.0, cap=9.0)

    @app.cron("* * * * * *")
    @app.task(
        queue="q", timeout=12, retry=retry, tags=["nightly"], headers={"team": "x"}, expires_in=timedelta(hours=1),
        unique=True, key="not-for-instants",
    )  # fmt: skip
    async def special() -> None: ...

    @app.cron("* * * * * *")
    async def plain() -> None: ...

    async with app:
        engine = await app.engine()
        for schedule in app.program.schedules():
            await engine.put_schedule(schedule)
        assert await engine.schedules() == await app.schedules.list()
        fired: dict[str, Job] = {}

        async def both_fired() -> bool:
            for one in await engine.fire_due():
                (job,) = await engine.get([one.job_id])
                assert job is not None
                fired.setdefault(one.name, job)
            return len(fired) == 2

        await eventually(both_fired, what="both schedules have fired")
        enqueued = {
            "special": await (await special.options(unique=False).aenqueue()).refresh(),
            "plain": await (await plain.aenqueue()).refresh(),
        }
        for name, job in fired.items():
            assert job.headers["ropeway-schedule"] == name
            assert _declared_part(job) == _declared_part(enqueued[name])
        made = fired["special"]
        assert (made.timeout, made.retry, made.tags, made.max_attempts) == (12.0, retry, ("nightly",), 4)
        assert made.headers["team"] == "x"
        assert made.idempotency_key is None
        assert fired["plain"].timeout == 77.0, "as the settings say"
        assert {schedule.name: schedule.spec.timeout for schedule in await app.schedules.list()} == {
            "plain": 77.0,
            "special": 12.0,
        }
        # Its unique rule is in force.
        assert (await special.options(key="other").aenqueue()).id == made.id


def _declared_part(job: Job) -> tuple[Any, ...]:
    headers = {name: text for name, text in job.headers.items() if not name.startswith("ropeway-")}
    lives = None if job.expires_at is None else job.expires_at - job.created_at
    return (job.type, job.queue, job.priority, job.payload, job.max_attempts, job.timeout, job.retry, job.tags,
            headers, lives)  # fmt: skip


async def test_a_job_of_a_schedule_waits_for_its_tasks_window(url: str) -> None:
    app = Ropeway(url)
    ran: list[str] = []
    engine_now = datetime.now(UTC)
    opening = (engine_now + timedelta(hours=2)).replace(minute=0, second=0, microsecond=0)
    window = f"{opening:%H:%M}-{opening + timedelta(hours=1):%H:%M}"

    @app.cron("0 0 1 1 *", name="rarely")
    @app.task(window=window)
    async def nightly() -> None:
        ran.append("nightly")

    @app.task
    async def other() -> None:
        ran.append("other")

    async with app:
        engine = await app.engine()
        for schedule in app.program.schedules():
            await engine.put_schedule(schedule)
        handle = await app.job(await app.schedules.run("rarely"))
        assert handle.status is State.QUEUED
        await other.aenqueue()
        async with InProcessWorker(app.program, engine) as worker:
            await worker.drain()
        job = await handle.refresh()
        assert ran == ["other"]
        assert (job.state, job.run_at, job.attempts) == (State.SCHEDULED, opening, 0)


async def test_stored_schedules(tasks: Tasks) -> None:
    async with tasks.app as app:
        await app.schedules.put(NewSchedule("nightly", "0 3 * * *", "add", payload=b'{"a":1}'))
        assert [schedule.name for schedule in await app.schedules.list()] == ["nightly"]
        assert (await app.schedules.pause("nightly")).spec.paused
        assert not (await app.schedules.resume("nightly")).spec.paused
        job = await (await app.job(await app.schedules.run("nightly"))).refresh()
        assert (job.type, job.payload) == ("add", b'{"a":1}')
        await app.schedules.delete("nightly")
        assert await app.schedules.list() == []
        with pytest.raises(NotFound):
            await app.schedules.pause("nightly")


def test_stored_schedules_from_sync_code(tasks: Tasks) -> None:
    schedules = tasks.app.sync.schedules
    schedules.put(NewSchedule("nightly", "0 3 * * *", "add", payload=b'{"a":1}'))
    assert schedules.pause("nightly").spec.paused
    assert not schedules.resume("nightly").spec.paused
    assert isinstance(schedules.run("nightly"), UUID)
    schedules.delete("nightly")
    assert schedules.list() == []


async def test_lifespan_hooks_surround_a_worker() -> None:
    app = Ropeway("memory://")
    seen: list[str] = []

    @app.lifespan
    async def pool(app: Ropeway) -> AsyncIterator[None]:
        app.state.pool = "pool"
        try:
            yield
        finally:
            seen.append("pool closed")

    @app.lifespan
    @asynccontextmanager
    async def client() -> AsyncIterator[None]:
        seen.append(f"client on {app.state.pool}")
        try:
            yield
        finally:
            seen.append("client closed")

    async with app.program.lifespan():
        assert app.program.state.pool == "pool"
        seen.append("work")
    assert seen == ["client on pool", "work", "client closed", "pool closed"]

    @app.lifespan
    def wrong() -> None: ...

    with pytest.raises(ConfigurationError, match=r"the lifespan hook wrong\(\) is not one"):
        async with app.program.lifespan():
            pass
    assert seen[-2:] == ["client closed", "pool closed"]


# ── Loops and threads ──


async def test_a_sync_call_in_an_event_loop_says_what_to_do(tasks: Tasks) -> None:
    async with tasks.app:
        with pytest.raises(UsageError, match=r"would block the event loop.*\(await aenqueue\(\)\)"):
            tasks.add.enqueue(1)
        handle = await asyncio.to_thread(tasks.add.enqueue, 1)
        with pytest.raises(UsageError, match=r"await JobHandle.result\(\)"):
            handle.result()


def test_one_app_in_several_loops_and_threads(tasks: Tasks) -> None:
    async def enqueue(n: int) -> UUID:
        return (await tasks.add.aenqueue(n)).id

    ids = [tasks.add.enqueue(0).id, asyncio.run(enqueue(1)), asyncio.run(enqueue(2)), tasks.add.enqueue(3).id]

    def in_thread(n: int) -> None:
        ids.append(asyncio.run(enqueue(n)) if n % 2 else tasks.add.enqueue(n).id)

    threads = [threading.Thread(target=in_thread, args=(n,)) for n in range(4, 12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 12
    # Whatever loop it was, it is one store.
    assert {tasks.app.sync.job(id).status for id in ids} == {State.QUEUED}
    assert not [loop for loop in tasks.app._engines._places if loop.is_closed()]


async def test_memory_is_one_store_while_its_home_is_busy() -> None:
    tasks = Tasks("memory://")
    async with tasks.app as app:
        engine = await app.engine()
        subscription = await engine.subscribe(["default"])
        handle = await asyncio.to_thread(tasks.add.enqueue, 1)
        assert await subscription.wait(5)
        job = await run_one(engine, Done(b"2"))
        assert job.id == handle.id
        assert await asyncio.to_thread(handle.result) == 2

        def elsewhere() -> State | None:
            async def look() -> State | None:
                there = await app.engine()
                waiting = await there.subscribe(["default"])
                await tasks.add.aenqueue(5)
                assert await waiting.wait(5)
                await waiting.close()
                return (await app.job(handle.id)).status

            return asyncio.run(look())

        assert await asyncio.to_thread(elsewhere) is State.SUCCEEDED
        await subscription.close()


async def test_an_adopted_engine_is_used_and_left_open(url: str) -> None:
    from ropeway import Settings, engine_for

    tasks = Tasks(url)
    async with engine_for(Settings.load({"url": url})) as engine:
        tasks.app.program.adopt(engine)
        if url != "memory://":
            assert await tasks.app.engine() is engine
        handle = await tasks.add.aenqueue(1)
        assert (await engine.get([handle.id]))[0] is not None
        # From a thread: memory:// is the same store, the others connect for themselves.
        other = await asyncio.to_thread(tasks.add.enqueue, 2)
        assert (await engine.get([other.id]))[0] is not None
        await tasks.app.aclose()
        assert (await engine.count()).number == 2


async def test_an_app_may_adopt_its_own_engine(tasks: Tasks) -> None:
    async with tasks.app as app:
        engine = await app.engine()
        app.program.adopt(engine)
        await asyncio.sleep(0)
        assert await app.engine() is engine
        assert (await (await tasks.add.aenqueue(1)).refresh()).state is State.QUEUED
    assert not app._engines._places


async def test_an_engine_of_its_own_is_closed_when_another_is_adopted(tmp_path: Path) -> None:
    from ropeway import Settings, engine_for

    tasks = Tasks(f"sqlite:///{tmp_path}/r.db")
    before = await tasks.app.engine()
    async with engine_for(Settings.load({"url": tasks.app.settings.url})) as engine:
        tasks.app.program.adopt(engine)
        assert await tasks.app.engine() is engine
        await tasks.app.aclose()
    with pytest.raises(Unavailable, match="not open"):
        await before.count()


async def test_concurrent_first_calls_open_one_engine(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Engine] = []
    make = tasks.app._engines._make

    def counted() -> Engine:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(tasks.app._engines, "_make", counted)
    first = asyncio.ensure_future(tasks.add.aenqueue(0))
    others = [asyncio.ensure_future(tasks.add.aenqueue(n)) for n in range(20)]
    await asyncio.sleep(0)
    first.cancel()  # one caller's change of mind is not the others'
    await asyncio.gather(*others)
    assert len(made) == 1
    await tasks.app.aclose()


async def test_it_opens_again_after_it_was_closed(tasks: Tasks) -> None:
    first = await tasks.add.aenqueue(1)
    await tasks.app.aclose()
    await tasks.app.aclose()
    second = await tasks.add.aenqueue(2)
    assert (await second.refresh()).id != first.id
    await tasks.app.aclose()


def test_an_engine_is_closed_with_its_loop(url: str) -> None:
    tasks = Tasks(url)

    async def use() -> None:
        await tasks.add.aenqueue(1)

    before = set(threading.enumerate())
    asyncio.run(use())
    assert not tasks.app._engines._places
    assert not [one for one in threading.enumerate() if one.name.startswith("ropeway") and one not in before]


# ── What is not there ──


async def test_a_missing_migration_is_told_in_one_line(postgres_database: str) -> None:
    tasks = Tasks(postgres_database)
    for _ in range(2):  # it is no worse the second time
        with pytest.raises(ConfigurationError, match="ropeway migrate up") as error:
            await tasks.add.aenqueue(1)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigurationError, match="ropeway migrate up"):
        await asyncio.to_thread(tasks.add.enqueue, 1)
    await tasks.app.aclose()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgres", "url: "),
        ("mysql://localhost/x", "no engine for a URL that starts with 'mysql'"),
        ("sqlite:///no/such/folder/r.db", "no/such/folder does not exist"),
    ],
)
def test_a_wrong_url_is_told_in_one_line(url: str, words: str) -> None:
    tasks = Tasks(url)
    with pytest.raises(ConfigurationError) as error:
        tasks.add.enqueue(1)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    tasks.app.close()


async def test_a_store_that_is_away_is_tried_again_at_the_next_call(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    tasks = Tasks(f"sqlite:///{folder}/r.db")
    with pytest.raises(ConfigurationError, match="does not exist"):
        await tasks.add.aenqueue(1)
    folder.mkdir()
    assert (await tasks.add.aenqueue(1)).status is State.QUEUED
    await tasks.app.aclose()
