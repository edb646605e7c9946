"""Upkeep on real engines: what each chore does, what it says, and that any number of them do it once."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from devtools.postgres import PrivatePostgres
from devtools.private import NotAvailable, free_port
from devtools.waiting import wait_until
from ropeway.core.errors import Unavailable
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.query import JobFilter
from ropeway.core.schedule import NewSchedule
from ropeway.core.states import CancelReason, DeadReason, State
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine
from ropeway.engines.sqlite import SqliteEngine
from ropeway.observability import logs, names
from ropeway.observability.metrics import WorkerMetrics
from ropeway.observability.tally import Produced
from ropeway.settings import Settings
from ropeway.testing.conformance.kit import ack, enqueue_one, job_of, lease_one, lease_some, midnight, state_of
from ropeway.testing.conformance.subject import Harness, Subject
from ropeway.testing.harness import MemoryHarness, SqliteHarness
from ropeway.testing.postgres import PostgresHarness
from ropeway.upkeep import Upkeep
from ropeway.upkeep.auditor import Auditor
from ropeway.upkeep.expirer import Expirer
from ropeway.upkeep.recurrer import Recurrer
from ropeway.upkeep.rescuer import Rescuer
from tests.engines.pg_kit import connected, eventually, migrated, opened
from tests.unit.test_metrics import value

RUN = [sys.executable, "-c", "from ropeway.cli.main import main; main()"]

#: Often enough to watch.
QUICK = {"reaper_interval": 0.01, "dispatcher_interval": 0.01}

EVERY_MINUTE = NewSchedule("minutely", "* * * * *", "report", queue="reports")


@pytest.fixture(scope="module")
def postgres_harness(postgres_module_database: str) -> PostgresHarness:
    return PostgresHarness(postgres_module_database)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def harness(request: pytest.FixtureRequest) -> Harness:
    if request.param == "postgres":
        found: PostgresHarness = request.getfixturevalue("postgres_harness")
        return found
    return MemoryHarness() if request.param == "memory" else SqliteHarness()


@pytest.fixture
def own_database(postgres_database: str) -> str:
    return migrated(postgres_database)


class Output(io.BytesIO):
    def told(self, event: str | None = None) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.getvalue().splitlines()]
        return [line for line in lines if event is None or line["event"] == event]


@pytest.fixture
def output() -> Iterator[Output]:
    output = Output()
    logs.configure("DEBUG", "json", output)
    yield output
    logs.unconfigure()


log = logs.logger("ropeway.upkeep")


async def lose_one(subject: Subject) -> UUID:
    """A job whose worker was not heard of for longer than its lease."""
    wanted = await enqueue_one(subject.engine)
    await lease_one(subject.engine, lease_seconds=30)
    await subject.advance(31)
    return wanted


async def other_handle(harness: Harness, subject: Subject) -> Engine:
    return subject.engine if harness.name == "memory" else await subject.another()


class TestReaper:
    async def test_a_lost_job_runs_again(self, harness: Harness, output: Output) -> None:
        metrics = WorkerMetrics(Produced())
        async with harness.subject() as subject:
            lost = await lose_one(subject)
            async with Upkeep(subject.engine, Settings(**QUICK), metrics):
                await eventually(lambda: is_in(subject.engine, lost, State.QUEUED))
                await eventually(lambda: true(output.told(names.JOB_LOST)))
            assert (await lease_one(subject.engine)).job.id == lost
        (line,) = output.told(names.JOB_LOST)
        assert (line["job_id"], line["level"], line["state"]) == (str(lost), "warning", "queued")
        assert value(metrics.render(), "ropeway_leases_reclaimed_total") == 1

    async def test_a_sweep_is_told_and_one_that_found_nothing_only_to_those_who_debug(
        self, harness: Harness, output: Output
    ) -> None:
        async with harness.subject() as subject:
            await lose_one(subject)
            async with Upkeep(subject.engine, Settings(**QUICK)):
                await eventually(lambda: true(len(sweeps(output, "rescue")) >= 2))
        first, *rest = sweeps(output, "rescue")
        assert (first["level"], first["rescued"], first["dead"]) == ("info", 1, 0)
        assert {(line["level"], line["rescued"]) for line in rest} == {("debug", 0)}

    async def test_the_third_loss_is_told_as_a_death(self, harness: Harness, output: Output) -> None:
        metrics = WorkerMetrics(Produced())
        async with harness.subject() as subject:
            engine = subject.engine
            rescuer = Rescuer(engine, log, metrics)
            wanted = await enqueue_one(engine, type="pill", queue="default", max_attempts=10)
            for _ in range(3):
                await lease_one(engine, lease_seconds=30)
                await subject.advance(31)
                assert await rescuer.run_once()
            assert not await rescuer.run_once()
            assert (await job_of(engine, wanted)).dead_reason is DeadReason.CRASH_LIMIT
        (line,) = output.told(names.JOB_DEAD)
        assert (line["job_id"], line["level"], line["type"]) == (str(wanted), "error", "pill")
        assert (line["queue"], line["reason"], line["attempt"]) == ("default", "crash_limit", 3)
        assert len(output.told(names.JOB_LOST)) == 2
        assert value(metrics.render(), "ropeway_jobs_dead_total", queue="default", type="pill") == 1
        assert value(metrics.render(), "ropeway_leases_reclaimed_total") == 3

    async def test_many_lost_jobs_are_taken_back_in_batches_without_a_pause(
        self, harness: Harness, output: Output
    ) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = [await enqueue_one(engine) for _ in range(7)]
            for _ in wanted:
                await lease_one(engine, lease_seconds=30)
            await subject.advance(31)
            rescuer = Rescuer(engine, log, batch=3)
            turns = 1
            while await rescuer.run_once():
                turns += 1
            assert 3 <= turns <= 8
            assert {await state_of(engine, id) for id in wanted} == {State.QUEUED}
        assert sum(line["rescued"] for line in sweeps(output, "rescue")) == 7

    async def test_a_job_that_was_not_started_in_time_is_cancelled(self, harness: Harness, output: Output) -> None:
        async with harness.subject() as subject:
            late = await enqueue_one(subject.engine, expires_in=60)
            kept = await enqueue_one(subject.engine, expires_in=600)
            await subject.advance(61)
            async with Upkeep(subject.engine, Settings(**QUICK)):
                await eventually(lambda: is_in(subject.engine, late, State.CANCELLED))
            assert (await job_of(subject.engine, late)).cancel_reason is CancelReason.EXPIRED
            assert await state_of(subject.engine, kept) is State.QUEUED
        assert sum(line["expired"] for line in sweeps(output, "expire")) == 1

    async def test_a_full_batch_of_late_jobs_means_more(self, harness: Harness, output: Output) -> None:
        async with harness.subject() as subject:
            for _ in range(5):
                await enqueue_one(subject.engine, expires_in=60)
            await subject.advance(61)
            expirer = Expirer(subject.engine, log, batch=2)
            assert [await expirer.run_once() for _ in range(3)] == [True, True, False]

    async def test_what_is_no_longer_kept_is_removed(self, harness: Harness, output: Output) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            old = await enqueue_one(engine)
            await ack(engine, await lease_one(engine))
            await subject.advance(((await midnight(engine, 3)) - await engine.now()).total_seconds())
            new = await enqueue_one(engine)
            await ack(engine, await lease_one(engine))
            async with Upkeep(engine, Settings()):
                await eventually(lambda: is_gone(engine, old))
                await eventually(lambda: true(sweeps(output, "prune")))
            assert await state_of(engine, new) is State.SUCCEEDED
        (line,) = sweeps(output, "prune")
        assert (line["level"], line["jobs"]) == ("info", 1)

    async def test_a_lease_that_nobody_granted_is_taken_back(self, tmp_path: Path, output: Output) -> None:
        async with SqliteEngine(tmp_path / "r.db") as engine:
            orphan = await enqueue_one(engine)
            await lease_one(engine)
            with contextlib.closing(sqlite3.connect(tmp_path / "r.db", isolation_level=None)) as other:
                other.execute("DELETE FROM grants")
            metrics = WorkerMetrics(Produced())
            assert not await Auditor(engine, log, metrics).run_once()
            assert await state_of(engine, orphan) is State.QUEUED
        assert sweeps(output, "audit")[0]["rescued"] == 1
        assert value(metrics.render(), "ropeway_leases_reclaimed_total") == 1


class TestDispatcher:
    async def test_two_of_them_fire_each_instant_once(self, harness: Harness, output: Output) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.put_schedule(EVERY_MINUTE)
            other = await other_handle(harness, subject)
            async with Upkeep(engine, Settings(**QUICK)), Upkeep(other, Settings(**QUICK)):
                for number in range(1, 9):
                    await subject.advance(60)
                    await eventually(lambda number=number: has_jobs(engine, "report", number))
                    # Both have looked again, and there is still only that one.
                    seen = len(sweeps(output, "expire"))
                    await eventually(lambda seen=seen: true(len(sweeps(output, "expire")) > seen + 4))
                    assert await number_of(engine, "report") == number
        fired = output.told(names.SCHEDULE_FIRED)
        assert len(fired) == 8
        assert len({line["scheduled_for"] for line in fired}) == 8
        assert len({line["job_id"] for line in fired}) == 8
        assert {(line["level"], line["schedule"], line["type"], line["queue"]) for line in fired} == {
            ("info", "minutely", "report", "reports")
        }

    async def test_fired_jobs_are_counted_and_a_full_batch_means_more(
        self, harness: Harness, output: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        produced = Produced()
        monkeypatch.setattr("ropeway.observability.metrics.produced", produced)
        async with harness.subject() as subject:
            for name in ("a", "b", "c"):
                await subject.engine.put_schedule(NewSchedule(name, "* * * * *", "report", queue="reports"))
            await subject.advance(60)
            recurrer = Recurrer(subject.engine, log, batch=2)
            assert [await recurrer.run_once() for _ in range(3)] == [True, False, False]
        page = WorkerMetrics(produced).render()
        assert value(page, "ropeway_jobs_enqueued_total", queue="reports", type="report") == 3


class TestSwitches:
    async def test_no_reaper_leaves_lost_jobs_alone(self, harness: Harness, output: Output) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.put_schedule(EVERY_MINUTE)
            lost = await lose_one(subject)
            upkeep = Upkeep(engine, Settings(**QUICK, reaper=False))
            assert list(upkeep.chores) == ["schedules"]
            async with upkeep:
                await subject.advance(60)
                await eventually(lambda: has_jobs(engine, "report", 1))
            assert await state_of(engine, lost) is State.RUNNING

    async def test_no_dispatcher_fires_nothing(self, harness: Harness, output: Output) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.put_schedule(EVERY_MINUTE)
            lost = await lose_one(subject)
            upkeep = Upkeep(engine, Settings(**QUICK, dispatcher=False))
            assert list(upkeep.chores) == ["rescue", "expire", "audit", "prune", "history"]
            async with upkeep:
                await subject.advance(60)
                await eventually(lambda: is_in(engine, lost, State.QUEUED))
            assert await number_of(engine, "report") == 0

    async def test_both_off_is_nothing_at_all(self, harness: Harness) -> None:
        async with (
            harness.subject() as subject,
            Upkeep(subject.engine, Settings(reaper=False, dispatcher=False)) as upkeep,
        ):
            assert upkeep.loops == []

    def test_the_intervals_are_the_settings(self) -> None:
        settings = Settings(reaper_interval=0.5, dispatcher_interval=7.0)
        upkeep = Upkeep(None, settings, WorkerMetrics(), survey=True)  # type: ignore[arg-type]
        assert upkeep.chores == {
            "rescue": 0.5,
            "expire": 0.5,
            "audit": 60.0,
            "prune": 3600.0,
            "history": 5.0,
            "schedules": 7.0,
            "survey": 15.0,
        }

    def test_what_nobody_waits_for_may_begin_later(self) -> None:
        upkeep = Upkeep(None, Settings(), WorkerMetrics(), survey=True)  # type: ignore[arg-type]
        patient = {loop.name: loop.first_within for loop in upkeep.loops if loop.first_within > 1}
        assert patient == {"audit": 60.0, "history": 5.0}


class Flaky:
    """A real engine behind a connection that can be cut."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.away = False
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        if not self.away:
            return getattr(self._engine, name)

        async def refuse(*_: object, **__: object) -> None:
            self.refused += 1
            raise Unavailable("cannot connect to postgresql://bob:hunter2@db/x")

        return refuse


class TestOutage:
    async def test_it_is_told_once_and_survived(self, harness: Harness, output: Output) -> None:
        async with harness.subject() as subject:
            lost = await lose_one(subject)
            flaky: Any = Flaky(subject.engine)
            flaky.away = True
            async with Upkeep(flaky, Settings(**QUICK)) as upkeep:
                await eventually(lambda: true(flaky.refused >= 8))
                assert upkeep.outage.away
                assert await state_of(subject.engine, lost) is State.RUNNING
                flaky.away = False
                await eventually(lambda: is_in(subject.engine, lost, State.QUEUED))
                await eventually(lambda: true(output.told(names.ENGINE_BACK)), within=20)
                assert not upkeep.outage.away
        (away,) = output.told(names.ENGINE_AWAY)
        assert away["error"] == "cannot connect to postgresql://bob:***@db/x"
        assert len(output.told(names.ENGINE_BACK)) == 1
        assert not [line for line in output.told() if "exception" in line or line["level"] == "error"]

    async def test_it_stops_while_the_engine_is_away(self, harness: Harness, output: Output) -> None:
        async with harness.subject() as subject:
            flaky: Any = Flaky(subject.engine)
            flaky.away = True
            upkeep = Upkeep(flaky, Settings(**QUICK))
            upkeep.start()
            await eventually(lambda: true(flaky.refused >= 1))
            async with asyncio.timeout(2):
                await upkeep.stop()
                await upkeep.stop()


async def test_it_stops_while_a_statement_waits(own_database: str, output: Output) -> None:
    async with opened(own_database) as engine, connected(own_database) as somebody:
        transaction = somebody.transaction()
        await transaction.start()
        await somebody.execute("LOCK TABLE ropeway.grants IN ACCESS EXCLUSIVE MODE")
        upkeep = Upkeep(engine, Settings(**QUICK, dispatcher=False))
        upkeep.start()
        await eventually(lambda: waits(own_database))
        async with asyncio.timeout(10):
            await upkeep.stop(within=0.05)
        assert not any(loop.running for loop in upkeep.loops)
        await transaction.rollback()
        await enqueue_one(engine)
        assert await engine.rescue() == [], "the engine is as good as before"


async def test_the_queues_are_counted_for_the_metrics(harness: Harness, output: Output) -> None:
    metrics = WorkerMetrics(Produced())
    async with harness.subject() as subject:
        await enqueue_one(subject.engine, queue="mail")
        await enqueue_one(subject.engine, queue="mail")
        await lease_some(subject.engine, 1, "mail")
        await subject.advance(5)
        async with Upkeep(subject.engine, Settings(), metrics, survey=True):
            await eventually(
                lambda: true(value(metrics.render(), "ropeway_queue_depth", queue="mail", state="queued") == 1)
            )
        page = metrics.render()
        assert value(page, "ropeway_queue_depth", queue="mail", state="running") == 1
        assert (value(page, "ropeway_queue_oldest_age_seconds", queue="mail") or 0) >= 5


# ── The command ──


@contextlib.contextmanager
def process(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """`ropeway upkeep` with its log in a file."""
    with (cwd / "log").open("w") as log_file:
        running = subprocess.Popen([*RUN, "upkeep", *arguments], cwd=cwd, stderr=log_file, text=True)
        try:
            yield running
        finally:
            running.kill()
            running.wait()


def told_by(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "log").read_text()
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def heard(folder: Path, event: str) -> Callable[[], list[dict[str, Any]]]:
    return lambda: [line for line in told_by(folder) if line["event"] == event]


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes can use."""
    if request.param == "postgres":
        return migrated(request.getfixturevalue("postgres_database"))
    return f"sqlite:///{tmp_path / 'ropeway.db'}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_command_works_until_it_is_asked_to_stop(
    shared_url: str, number: signal.Signals, tmp_path: Path
) -> None:
    async with engine_for(Settings(url=shared_url)) as engine:
        lost = await enqueue_one(engine)
        await lease_one(engine, lease_seconds=1)
        await engine.put_schedule(NewSchedule("often", "* * * * *", "report"))
        with process("--url", shared_url, cwd=tmp_path) as running:
            (started,) = await asyncio.to_thread(wait_until, heard(tmp_path, names.UPKEEP_STARTED), within=30)
            assert started["engine"] in ("sqlite", "postgres")
            assert started["every"][0] == "rescue 1 s"
            await eventually(lambda: is_in(engine, lost, State.QUEUED), within=20)
            running.send_signal(number)
            assert await asyncio.to_thread(running.wait, 20) == 0
    assert told_by(tmp_path)[-1]["event"] == names.UPKEEP_STOPPED
    assert not [line for line in told_by(tmp_path) if line["level"] == "error"]


def test_the_command_serves_health_and_metrics_when_asked(tmp_path: Path) -> None:
    with process("--metrics-port", "0", "--no-dispatcher", cwd=tmp_path) as running:
        (line,) = wait_until(heard(tmp_path, names.HTTP_STARTED), within=30)
        wait_until(heard(tmp_path, names.UPKEEP_STARTED), within=30)
        url = line["url"]
        health = json.loads(urllib.request.urlopen(f"{url}/health").read())
        assert health == {"status": "ok", "chores": ["rescue", "expire", "audit", "prune", "history", "survey"]}
        assert json.loads(urllib.request.urlopen(f"{url}/ready").read()) == {"status": "ready"}
        urllib.request.urlopen(f"{url}/metrics").read()
        page = urllib.request.urlopen(f"{url}/metrics").read()
        asked = {"method": "GET", "path_template": "/metrics", "status_code": "200"}
        assert value(page, "ropeway_http_requests_total", **asked) == 1
        running.terminate()
        assert running.wait(20) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--no-reaper", "--no-dispatcher"], "nothing to do"),
        (["--url", "memory://"], "memory:// lives inside one process"),
        (["--url", "sqlite:///missing/folder/r.db"], "missing"),
        (["--log-level", "loud"], "log_level"),
        (["--metrics-port", "70000"], "metrics_port"),
    ],
)
def test_the_command_says_what_it_cannot_do(arguments: list[str], told: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*RUN, "upkeep", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_command_waits_for_a_store_that_is_not_there_yet(tmp_path: Path) -> None:
    url = f"postgresql://bob:hunter2@127.0.0.1:{free_port()}/x"
    with process("--url", url, "--metrics-port", "0", cwd=tmp_path) as running:
        wait_until(heard(tmp_path, names.ENGINE_AWAY), within=30)
        (line,) = wait_until(heard(tmp_path, names.HTTP_STARTED), within=30)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{line['url']}/ready")
        with refused.value as answer:
            assert answer.code == 503
            assert "the store has been away" in json.loads(answer.read())["reasons"][0]
        running.terminate()
        assert running.wait(20) == 0
    assert "hunter2" not in (tmp_path / "log").read_text()
    assert len(heard(tmp_path, names.ENGINE_AWAY)()) == 1


@pytest.mark.slow
async def test_the_command_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    try:
        server = PrivatePostgres(shared_buffers="32MB")
    except NotAvailable as error:
        pytest.skip(f"NOT RUN: postgres: {error}")
    with server:
        url = await asyncio.to_thread(migrated, server.create_database(f"t{uuid4().hex[:12]}"))
        with process("--url", url, cwd=tmp_path) as running:
            await asyncio.to_thread(wait_until, heard(tmp_path, names.UPKEEP_STARTED), within=30)
            await asyncio.to_thread(server.stop, "immediate")
            await asyncio.to_thread(wait_until, heard(tmp_path, names.ENGINE_AWAY), within=30)
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(wait_until, heard(tmp_path, names.ENGINE_BACK), within=40)
            async with engine_for(Settings(url=url)) as engine:
                lost = await enqueue_one(engine)
                await lease_one(engine, lease_seconds=1)
                await eventually(lambda: is_in(engine, lost, State.QUEUED), within=20)
            running.terminate()
            assert await asyncio.to_thread(running.wait, 20) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert not [line for line in told_by(tmp_path) if line["level"] == "error"]


# ── Facts ──


async def true(fact: object) -> object:
    return fact


async def is_in(engine: Engine, id: UUID, state: State) -> bool:
    return await state_of(engine, id) is state


async def is_gone(engine: Engine, id: UUID) -> bool:
    return await engine.get([id], tenant=DEFAULT_TENANT) == [None]


async def number_of(engine: Engine, type: str) -> int:
    return (await engine.count(JobFilter(type=type))).number


async def has_jobs(engine: Engine, type: str, number: int) -> bool:
    return await number_of(engine, type) >= number


async def waits(database: str) -> bool:
    async with connected(database) as connection:
        found: int = await connection.fetchval(
            """SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"""
        )
        return found > 0


def sweeps(output: Output, sweep: str) -> list[dict[str, Any]]:
    return [line for line in output.told(names.SWEEP_COMPLETE) if line["sweep"] == sweep]
