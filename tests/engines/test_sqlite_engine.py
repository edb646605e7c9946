"""What is SQLite's own: settings, refusals, two handles on a file, schema, broken transactions, killed writers."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from devtools.waiting import wait_until
from ropeway.core.errors import ConfigurationError, Indeterminate, Unavailable
from ropeway.core.job import NewJob
from ropeway.core.joblog import LogLine
from ropeway.core.outcome import Done, Failed
from ropeway.core.payload import JobError
from ropeway.core.states import TERMINAL_STATES, CancelReason, DeadReason, EventName, State
from ropeway.core.unique import KeyKind
from ropeway.engines import migrate
from ropeway.engines.protocol import Settled, Settlement, WorkerRef
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite import SqliteEngine, opening, turnstile, upkeeping
from ropeway.engines.sqlite.migrating import MIGRATIONS
from ropeway.engines.sqlite.opening import Database
from ropeway.engines.sqlite.writer import Transaction, Writer, one_by_one
from ropeway.runtime import ids
from ropeway.runtime.clock import ManualClock

JOB = NewJob("task", b'{"n":1}')


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ropeway.db"


def worker(name: str = "w1") -> WorkerRef:
    return WorkerRef(name, ids.token())


NOTES = b"These are my notes, please do not touch them."


def put(file: Path, content: bytes, mode: int = 0o600) -> None:
    file.write_bytes(content)
    file.chmod(mode)


def contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def move(file: Path, to: Path) -> None:
    file.rename(to)


async def refused(file: Path | str, **options: Any) -> str:
    """Why a file cannot be opened."""
    with pytest.raises(ConfigurationError) as refusal:
        async with SqliteEngine(file, **options):
            pass
    return str(refusal.value)


async def in_transaction(engine: SqliteEngine, *statements: str) -> None:
    """Run statements on the writer's own connection."""

    def run(tx: Transaction, _: None) -> None:
        for statement in statements:
            tx.db.execute(statement)

    await engine.write(one_by_one(run), None)


class TestSettings:
    async def test_a_full_database_is_in_wal_and_synced_at_every_commit(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            assert engine.durability == "full"
            assert await _pragmas(engine, "journal_mode", "synchronous") == ["wal", 2]

    async def test_a_relaxed_one_says_so(self, file: Path) -> None:
        async with SqliteEngine(file, durability="relaxed") as engine:
            assert engine.durability == "relaxed"
            assert await _pragmas(engine, "journal_mode", "synchronous") == ["wal", 1]

    async def test_readers_cannot_write(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            with pytest.raises(Unavailable, match="readonly"):
                await engine.read(lambda db: db.execute("DELETE FROM jobs"))

    async def test_a_setting_that_does_not_hold_is_refused(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(opening._SYNCHRONOUS, "full", 7)
        assert "would not set synchronous" in await refused(file)


async def _pragmas(engine: SqliteEngine, *names: str) -> list[Any]:
    def ask(tx: Transaction, _: None) -> list[Any]:
        return [tx.db.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    return await engine.write(one_by_one(ask), None)


class TestRefusals:
    async def test_a_missing_folder(self, tmp_path: Path) -> None:
        assert "does not exist" in await refused(tmp_path / "nowhere" / "ropeway.db")

    async def test_a_folder_instead_of_a_file(self, tmp_path: Path) -> None:
        assert "is a folder" in await refused(tmp_path)

    @pytest.mark.parametrize("path", ["", ":memory:"])
    async def test_no_file_at_all(self, path: str) -> None:
        with pytest.raises(ConfigurationError, match="needs a file"):
            SqliteEngine(path)

    async def test_a_file_that_is_no_database(self, file: Path) -> None:
        put(file, NOTES)
        assert "not a SQLite database" in await refused(file)
        assert contents(file.parent) == {file.name: NOTES}, "nothing was touched, nothing was left"

    async def test_a_damaged_database(self, file: Path) -> None:
        put(file, b"SQLite format 3\0" + b"\xff" * 8_192)
        assert "not a SQLite database" in await refused(file)

    async def test_another_programs_database(self, file: Path) -> None:
        with sqlite3.connect(file) as db:
            db.execute("CREATE TABLE invoices (number INTEGER)")
        db.close()
        assert "another program" in await refused(file)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
    async def test_a_file_that_cannot_be_written(self, file: Path) -> None:
        put(file, b"", mode=0o400)
        assert "cannot be read and written" in await refused(file)

    async def test_a_newer_schema(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            await in_transaction(engine, "INSERT INTO migrations VALUES (99, 'from_the_future', 'x', 0)")
        assert "newer version of Ropeway (schema 99" in await refused(file)

    async def test_a_schema_that_was_made_with_another_text(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            await in_transaction(engine, "UPDATE migrations SET checksum = 'x' WHERE number = 1")
        assert "applied with another text" in await refused(file)

    async def test_an_old_sqlite(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 7, 17))
        assert "needs 3.35" in await refused(file)

    async def test_an_unknown_durability(self, file: Path) -> None:
        assert "durability must be" in await refused(file, durability="hopeful")

    @pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "lustre", "afs"])
    def test_network_file_systems(self, kind: str) -> None:
        mounts = [("/", "ext4"), ("/srv", "ext4"), ("/srv/share", kind)]
        with pytest.raises(ConfigurationError, match=rf"network file system \({re.escape(kind)} at /srv/share\)"):
            Database(Path("/srv/share/jobs/ropeway.db"), "full").check_file_system(mounts)

    def test_local_file_systems(self) -> None:
        mounts = [("/", "nfs"), ("/srv", "ext4"), ("/srv/share", "nfs"), ("/srv/share", "xfs"), ("/srvx", "nfs")]
        for folder in ("/srv", "/srv/sharepoint", "/srv/share/deep/er"):
            Database(Path(folder) / "ropeway.db", "full").check_file_system(mounts)
        Database(Path("/srv/ropeway.db"), "full").check_file_system([])

    async def test_an_engine_that_is_not_open_or_closed(self, file: Path) -> None:
        engine = SqliteEngine(file)
        with pytest.raises(Unavailable, match="not open"):
            await engine.enqueue([JOB])
        async with engine:
            await engine.enqueue([JOB])
        with pytest.raises(Unavailable, match="not open"):
            await engine.get([ids.uuid7()])


class TestSchema:
    async def test_the_constraints_are_those_of_core(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            tables = dict(
                await engine.read(lambda db: db.execute("SELECT name, sql FROM sqlite_master").fetchall())
            )

        def allowed(table: str, column: str) -> set[str]:
            (check,) = re.findall(rf"\b{column} +TEXT\b[^(]*CHECK \(([^)]*)\)", tables[table])
            return set(re.findall(rf"\b{column} = '([^']+)'", check))

        assert allowed("jobs", "stage") == {"free", "leased"} | {state.value for state in TERMINAL_STATES}
        assert allowed("jobs", "dead_reason") == {reason.value for reason in DeadReason}
        assert allowed("jobs", "cancel_reason") == {reason.value for reason in CancelReason}
        assert allowed("events", "event") == {event.value for event in EventName}
        assert allowed("events", "state") == {state.value for state in State}
        assert allowed("keys", "kind") == {kind.value for kind in KeyKind}

    @pytest.mark.parametrize(
        "column",
        ["priority = 0", "priority = 10", "stage = 'queued'", "finished_at = 1", "dead_reason = 'bored'"],
    )
    async def test_what_core_does_not_know_cannot_be_stored(self, file: Path, column: str) -> None:
        async with SqliteEngine(file) as engine:
            await engine.enqueue([JOB])
            with pytest.raises(sqlite3.IntegrityError):
                await in_transaction(engine, f"UPDATE jobs SET {column}")

    async def test_opening_again_changes_nothing(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            (answer,) = await engine.enqueue([JOB])
            before = await engine.read(lambda db: db.execute("SELECT * FROM migrations").fetchall())
        async with SqliteEngine(file) as engine:
            assert await engine.read(lambda db: db.execute("SELECT * FROM migrations").fetchall()) == before
            (job,) = await engine.get([answer.id])
            assert job is not None
            assert job.payload == JOB.payload

    async def test_a_file_of_the_first_version_is_brought_up_to_date(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        everything = migrate.shipped(MIGRATIONS)
        with monkeypatch.context() as patch:
            patch.setattr(migrate, "shipped", lambda _: everything[:1])
            async with SqliteEngine(file) as engine:
                (old,) = await engine.enqueue([JOB])
        async with SqliteEngine(file) as engine:
            applied = await engine.read(lambda db: db.execute("SELECT number FROM migrations").fetchall())
            assert [number for (number,) in applied] == [migration.number for migration in everything]
            assert await engine.read(_schema) == await _new_schema(file.with_name("new.db"))
            (leased,) = (await engine.lease(["default"], 1, worker())).leases
            assert leased.job.id == old.id
            assert await engine.log([(leased.lease, LogLine("hello"))]) == [None]

    async def test_nothing_is_left_of_a_deleted_job(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            await engine.enqueue([JOB])
            (leased,) = (await engine.lease(["default"], 1, worker())).leases
            await engine.log([(leased.lease, LogLine("hello"))])
            await engine.settle([Settlement(leased.lease, Done(b"1"))])
            await engine.delete([leased.job.id])
            for table in ("jobs", "bodies", "results", "lines"):
                count = f"SELECT count(*) FROM {table}"
                assert (await engine.read(lambda db, count=count: db.execute(count).fetchone()))[0] == 0, table

    async def test_a_claim_walks_the_line_and_sorts_nothing(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            await engine.enqueue([JOB] * 2_000)
            for statement in ("claim", "next_due"):
                plan = await _plan(engine, statements("ropeway.engines.sqlite", "sql/leasing.sql")[statement])
                assert any("jobs_free" in step for step in plan), plan
                assert not any("TEMP B-TREE FOR ORDER BY" in step or "SCAN j" in step for step in plan), plan


def _schema(db: sqlite3.Connection) -> list[tuple[str, str]]:
    return db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()


async def _new_schema(file: Path) -> list[tuple[str, str]]:
    async with SqliteEngine(file) as engine:
        return await engine.read(_schema)


async def _plan(engine: SqliteEngine, statement: str) -> list[str]:
    names = dict.fromkeys(re.findall(r":([a-z_]+)", statement), 1) | {"lanes": '[["default",5]]'}
    return await engine.read(
        lambda db: [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", names).fetchall()]
    )


class TestTwoHandles:
    async def test_work_goes_from_one_to_the_other(self, file: Path) -> None:
        async with SqliteEngine(file) as producer, SqliteEngine(file) as consumer:
            (answer,) = await producer.enqueue([JOB])
            (leased,) = (await consumer.lease(["default"], 10, worker())).leases
            assert leased.job.id == answer.id
            (settled,) = await consumer.settle([Settlement(leased.lease, Done(b"1"))])
            assert isinstance(settled, Settled)
            (job,) = await producer.get([answer.id])
            assert job is not None
            assert (job.state, job.result) == (State.SUCCEEDED, b"1")

    async def test_a_listener_hears_of_another_handles_jobs(self, file: Path) -> None:
        async with SqliteEngine(file) as producer, SqliteEngine(file) as consumer:
            here = await consumer.subscribe(["default"])
            elsewhere = await consumer.subscribe(["elsewhere"])
            waiting = asyncio.create_task(here.wait(30))
            await asyncio.sleep(0)
            await producer.enqueue([JOB])
            assert await waiting
            assert not await elsewhere.wait(0.05)

    async def test_a_signal_between_two_waits_is_kept(self, file: Path) -> None:
        async with SqliteEngine(file) as producer, SqliteEngine(file) as consumer:
            listener = await consumer.subscribe(["default"])
            assert not await listener.wait(0.02)
            await producer.enqueue([JOB])
            assert await listener.wait(30)

    async def test_a_job_that_becomes_due_sooner_is_told(self, file: Path) -> None:
        async with SqliteEngine(file) as producer, SqliteEngine(file) as consumer:
            await producer.enqueue([NewJob("task", delay=900)])
            listener = await consumer.subscribe(["default"])
            assert not await listener.wait(0.05), "it is not due"
            await producer.enqueue([NewJob("task", delay=600)])
            assert await listener.wait(30)

    async def test_nobody_looks_while_nobody_waits(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            listener = await engine.subscribe(["default"])
            assert engine.signals._thread is None
            await listener.wait(0.01)
            assert not engine.signals._someone_waits.is_set()

    async def test_many_open_a_new_file_at_once(self, file: Path) -> None:
        engines = [SqliteEngine(file) for _ in range(6)]
        await asyncio.gather(*(engine.open() for engine in engines))
        await asyncio.gather(*(engine.enqueue([JOB]) for engine in engines))
        assert (await engines[0].count()).number == 6
        await asyncio.gather(*(engine.close() for engine in engines))


class TestPruningKeys:
    async def test_a_job_that_lives_again_keeps_its_key(self, file: Path) -> None:
        """It was redriven after its key was found to be over, and before the key was removed."""
        async with SqliteEngine(file) as engine:
            job = NewJob("task", idempotency_key="k", key_window=0.001)
            (first,) = await engine.enqueue([job])
            (leased,) = (await engine.lease(["default"], 1, worker())).leases
            await engine.settle([Settlement(leased.lease, Failed(JobError("E", "no", ""), retry=False))])
            read, found = engine.read, []

            async def hooked(question: Any) -> Any:
                answer = await read(question)
                if answer == [("default", "idempotency", "k")]:
                    found.append(answer)
                    await engine.redrive([first.id])
                return answer

            engine.read = hooked  # type: ignore[method-assign,assignment]
            assert (await engine.prune()).keys == 0
            assert len(found) == 1, "the key was not found: this test showed nothing"
            (again,) = await engine.enqueue([job])
            assert (again.id, again.deduplicated) == (first.id, True)


class TestGrants:
    async def test_a_grant_ends_with_its_last_job(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            await engine.enqueue([JOB] * 3)
            leases = (await engine.lease(["default"], 3, worker())).leases
            for left, leased in zip((1, 1, 0), leases, strict=True):
                await engine.settle([Settlement(leased.lease, Done())])
                assert await _number(engine, "grants") == left

    async def test_the_audit_finds_jobs_without_a_grant(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            (held, orphan) = await engine.enqueue([JOB] * 2)
            await engine.lease(["default"], 1, worker())
            (lost,) = (await engine.lease(["default"], 1, worker())).leases
            assert await engine.audit() == []
            await in_transaction(engine, f"DELETE FROM grants WHERE token = x'{lost.lease.token.hex}'")
            assert [rescued.id for rescued in await engine.audit()] == [orphan.id]
            (first, second) = await engine.get([held.id, orphan.id])
            assert first is not None
            assert second is not None
            assert (first.state, second.state) == (State.RUNNING, State.QUEUED)
            assert second.lease_lost_count == 1
            assert await engine.audit() == []

    async def test_jobs_claimed_for_a_caller_that_went_away_are_released(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            (answer,) = await engine.enqueue([JOB])
            begun, go_on = asyncio.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()

            def block(_tx: Transaction, _: None) -> None:
                loop.call_soon_threadsafe(begun.set)
                asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

            blocked = engine.write(one_by_one(block), None)
            await begun.wait()
            call = asyncio.create_task(engine.lease(["default"], 1, worker()))
            await asyncio.sleep(0)
            # The call is in the writer's queue now, and not yet begun: the caller leaves.
            call.cancel()
            go_on.set()
            await blocked
            with pytest.raises(asyncio.CancelledError):
                await call
            # The first comes behind the claim, the second behind the release.
            await in_transaction(engine)
            await in_transaction(engine)
            (job,) = await engine.get([answer.id])
            assert job is not None
            assert (job.state, job.attempt, job.attempts) == (State.QUEUED, 1, 0)
            assert await _number(engine, "grants") == 0


async def _number(engine: SqliteEngine, table: str) -> int:
    return await engine.read(lambda db: int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]))


class TestBrokenTransactions:
    async def test_only_the_culprit_of_a_flush_fails(self, file: Path) -> None:
        def break_it(tx: Transaction, _: None) -> None:
            tx.db.execute("DELETE FROM bodies")
            raise ZeroDivisionError

        async with SqliteEngine(file) as engine:
            await engine.enqueue([JOB])
            good, bad, also_good = await asyncio.gather(
                engine.enqueue([JOB]),
                engine.write(one_by_one(break_it), None),
                engine.enqueue([JOB]),
                return_exceptions=True,
            )
            assert isinstance(bad, ZeroDivisionError)
            assert not isinstance(good, BaseException)
            assert not isinstance(also_good, BaseException)
            assert await _number(engine, "bodies") == await _number(engine, "jobs") == 3
            log = [event for answer in (good[0], also_good[0]) for event in await engine.events_of(answer.id)]
            assert [event.seq for event in log] == [1, 1]

    async def test_a_full_disk_is_told_and_nothing_is_stored(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            (pages,) = await _pragmas(engine, "page_count")
            await in_transaction(engine, f"PRAGMA max_page_count = {pages + 5}")
            with pytest.raises(Unavailable, match="disk is full"):
                await engine.enqueue([NewJob("task", b'"' + b"x" * 100_000 + b'"')])
            assert await _number(engine, "jobs") == 0
            await in_transaction(engine, "PRAGMA max_page_count = 1000000")
            await engine.enqueue([JOB])
            assert await _number(engine, "events") == 1

    async def test_a_disk_that_fails_during_the_commit_leaves_it_open(self, file: Path) -> None:
        class Failing:
            """A connection whose commit cannot be synced."""

            def __init__(self, db: sqlite3.Connection) -> None:
                self._db = db

            def __getattr__(self, name: str) -> Any:
                return getattr(self._db, name)

            def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
                if statement != "COMMIT":
                    return self._db.execute(statement, *parameters)
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
                raise error

        async with SqliteEngine(file) as engine:
            writer = engine._writer
            assert writer is not None
            whole, writer._db = writer._db, Failing(writer._db)  # type: ignore[assignment]
            with pytest.raises(Indeterminate, match="disk failed during the commit"):
                await engine.enqueue([JOB])
            writer._db = whole
            await engine.enqueue([JOB])
            assert await _number(engine, "jobs") == 1

    async def test_another_programs_lock_is_told(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            await in_transaction(engine, "PRAGMA busy_timeout = 20")
            foreign = sqlite3.connect(file, isolation_level=None)
            foreign.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="locked by another program"):
                await engine.enqueue([JOB])
            foreign.execute("ROLLBACK")
            foreign.close()
            await engine.enqueue([JOB])

    async def test_a_turn_that_nobody_gives_up_is_told(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(turnstile, "PATIENCE_SECONDS", 0.05)
        async with SqliteEngine(file) as engine:
            stuck = os.open(f"{file}.turn", os.O_RDWR)
            fcntl.flock(stuck, fcntl.LOCK_EX)
            with pytest.raises(Unavailable, match="another process has kept the database"):
                await engine.enqueue([JOB])
            os.close(stuck)
            await engine.enqueue([JOB])

    async def test_a_file_that_was_deleted_takes_nothing_more(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            await engine.enqueue([JOB])
            move(file, file.with_suffix(".moved"))
            with pytest.raises(Unavailable, match="removed or replaced"):
                await engine.enqueue([JOB])
            move(file.with_suffix(".moved"), file)
            await engine.enqueue([JOB])

    async def test_calls_at_once_share_a_commit(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        commits = []
        commit = Writer._commit
        monkeypatch.setattr(Writer, "_commit", lambda self: commits.append(1) or commit(self))
        async with SqliteEngine(file) as engine:
            await asyncio.gather(*(engine.enqueue([JOB]) for _ in range(300)))
            assert await _number(engine, "jobs") == 300
        assert len(commits) < 30


class TestFork:
    async def test_an_open_engine_cannot_be_used_in_a_forked_process(self, file: Path) -> None:
        async with SqliteEngine(file) as engine:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                code = 1
                try:
                    await engine.enqueue([JOB])
                except ConfigurationError as refusal:
                    code = 0 if "after a fork" in str(refusal) else 2
                finally:
                    os._exit(code)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            await engine.enqueue([JOB])
            assert await _number(engine, "jobs") == 1


ENQUEUE_FOR_EVER = """
import asyncio, sys
from ropeway.core.job import NewJob
from ropeway.engines.sqlite import SqliteEngine

async def caller(engine):
    while True:
        (answer,) = await engine.enqueue([NewJob("task")])
        sys.stdout.write(answer.id.hex + "\\n")

async def main():
    async with SqliteEngine(sys.argv[1]) as engine:
        callers = [asyncio.create_task(caller(engine)) for _ in range(20)]
        while True:
            await asyncio.sleep(0.01)
            sys.stdout.flush()

asyncio.run(main())
"""


class TestKilledWriters:
    async def test_nothing_that_was_accepted_is_lost(self, file: Path, tmp_path: Path) -> None:
        accepted = [id for run in range(3) for id in enqueue_until_killed(file, tmp_path / f"accepted-{run}")]
        async with SqliteEngine(file) as engine:
            for start in range(0, len(accepted), 1_000):
                assert None not in await engine.get(accepted[start : start + 1_000])
            (check,) = await engine.read(lambda db: db.execute("PRAGMA integrity_check").fetchone())
            assert check == "ok"
            jobs, events = await _number(engine, "jobs"), await _number(engine, "events")
            assert jobs == events == await _number(engine, "bodies")
            assert len(accepted) <= jobs


def enqueue_until_killed(file: Path, told: Path) -> list[UUID]:
    """The ids that a process was told before kill -9 took it in the middle of its work."""
    with told.open("wb") as output:
        child = subprocess.Popen([sys.executable, "-c", ENQUEUE_FOR_EVER, str(file)], stdout=output)
    try:
        wait_until(lambda: told.stat().st_size > 33 * 500, within=30, what="500 jobs were accepted")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    return [UUID(hex=line) for line in told.read_text().split("\n")[:-1]]


async def test_a_look_for_lost_jobs_that_waited_long_leaves_the_first_turn_to_heartbeats(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stood still with the file in its hand has kept out the heartbeats for it as well."""
    clock = ManualClock()
    async with SqliteEngine(str(file), clock=clock) as engine:
        await engine.enqueue([NewJob("t")])
        holder = worker()
        (leased,) = (await engine.lease(["default"], 1, holder)).leases
        clock.advance(60)
        monkeypatch.setattr(upkeeping, "LONG_WAIT", -1.0)
        assert await engine.rescue() == []
        await engine.heartbeat_owner(holder.owner)
        monkeypatch.undo()
        assert await engine.rescue() == [], "it lives"
        clock.advance(60)
        assert [one.id for one in await engine.rescue()] == [leased.job.id]


async def test_a_file_that_was_kept_for_longer_than_a_lease_costs_nobody_his_lease(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look every second is on its way when the file is kept; it waits, and so is not made."""
    monkeypatch.setattr(upkeeping, "LONG_WAIT", 0.0)
    clock = ManualClock()
    async with SqliteEngine(str(file), clock=clock) as lives, SqliteEngine(str(file), clock=clock) as looks:
        await lives.enqueue([NewJob("t")])
        holder = worker()
        await lives.lease(["default"], 1, holder)
        kept = os.open(f"{file}.turn", os.O_RDWR)
        fcntl.flock(kept, fcntl.LOCK_EX)
        looking = asyncio.ensure_future(looks.rescue())
        # Nobody overtakes whoever waits for the turn: the look goes first.
        await asyncio.to_thread(wait_until, lambda: not _free(f"{file}.gate"), within=30, what="it waits")
        clock.advance(60)
        beating = asyncio.ensure_future(lives.heartbeat_owner(holder.owner))
        os.close(kept)
        assert await looking == []
        await beating
        monkeypatch.undo()
        assert await looks.rescue() == [], "it lives"


def _free(path: str) -> bool:
    lock = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
