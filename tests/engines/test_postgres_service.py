"""What PostgreSQL alone can get wrong of the server's part: real clocks, real locks, real plans, two versions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ropeway.core.access import NewKey, NewTenant, Scope
from ropeway.core.auditlog import NewAction
from ropeway.core.job import NewJob
from ropeway.core.query import QueueSettings
from ropeway.core.schedule import NewSchedule
from ropeway.core.states import State
from ropeway.core.unique import Unique
from ropeway.engines import migrate
from ropeway.engines.postgres import PostgresEngine, inspecting
from ropeway.engines.postgres.fields import Submission, insert_arrays
from ropeway.engines.postgres.migrating import PACKAGE
from ropeway.engines.protocol import Enqueued
from ropeway.runtime.ids import uuid7s
from ropeway.testing.conformance.kit import ack, enqueue_many, lease_one, lease_some, new_job
from tests.engines.pg_kit import connected, opened, pages_read, waiting_for_lock

AHEAD = timedelta(hours=1)


async def check_told(engine: PostgresEngine, answers: Sequence[Enqueued]) -> None:
    """Every answer is what `get` shows."""
    jobs = await engine.get([answer.id for answer in answers])
    assert [(job.created_at, job.run_at) for job in jobs if job] == [(a.created_at, a.run_at) for a in answers]
    assert [job.state for job in jobs if job] == [answer.state for answer in answers]


class TestTheAnswerToAnEnqueue:
    """By the real clock: each row has a time of its own, and nothing is read a second time to tell it."""

    async def test_one_bare_job(self, database: str) -> None:
        async with opened(database) as engine:
            await check_told(engine, await engine.enqueue([new_job()]))

    @pytest.mark.parametrize(
        "fields",
        [
            {"delay": 60.1234567},
            {"delay": 86_400 * 365.25},
            {"delay": 0.0},
            {"run_at": datetime(2001, 1, 1, tzinfo=UTC)},
            {"tags": ("a",)},
            {"idempotency_key": "k"},
            {"idempotency_key": "k", "delay": 33.3333333},
            {"unique": Unique(by="args")},
        ],
        ids=str,
    )
    async def test_one_job_with_something_rare(self, database: str, fields: dict[str, Any]) -> None:
        async with opened(database) as engine:
            await check_told(engine, await engine.enqueue([new_job(**fields)]))

    async def test_a_time_ahead_is_kept_as_it_was_asked_for(self, database: str) -> None:
        async with opened(database) as engine:
            asked = await engine.now() + AHEAD
            (answer,) = await engine.enqueue([new_job(run_at=asked)])
            assert (answer.run_at, answer.state) == (asked, State.SCHEDULED)
            await check_told(engine, [answer])

    @pytest.mark.parametrize("keyed", [False, True])
    async def test_a_batch_of_all_kinds(self, database: str, keyed: bool) -> None:
        async with opened(database) as engine:
            ahead = await engine.now() + AHEAD
            times: list[dict[str, Any]] = [{}, {"delay": 1.5}, {"run_at": ahead}, {"run_at": ahead - 2 * AHEAD}]
            jobs = [
                new_job(**times[n % 4], **({"idempotency_key": f"k{n}"} if keyed and n % 3 else {}))
                for n in range(200)
            ]
            answers = await engine.enqueue(jobs)
            await check_told(engine, answers)
            assert len({answer.created_at for answer in answers}) == 1

    async def test_coalesced_callers(self, database: str) -> None:
        async with opened(database) as engine:
            calls = [engine.enqueue([new_job(delay=n / 7 if n % 2 else None)]) for n in range(100)]
            calls += [engine.enqueue([new_job(idempotency_key=f"k{n}")]) for n in range(100)]
            answers = [answer for (answer,) in await asyncio.gather(*calls)]
            await check_told(engine, answers)

    async def test_a_batch_of_which_some_are_known(self, database: str) -> None:
        """What was stored is counted without what a key kept out; a repeated key makes it two steps."""
        async with opened(database) as engine:
            await engine.enqueue([new_job(idempotency_key=f"k{n}") for n in range(0, 20, 3)])
            jobs = [new_job(idempotency_key=f"k{n}") for n in (*range(20), 4, 5)]
            answers = await engine.enqueue(jobs)
            repeated = [answer for answer in answers if answer.deduplicated]
            assert len(repeated) == 7 + 2
            assert all(answer.created_at is None and answer.run_at is None for answer in repeated)
            await check_told(engine, [answer for answer in answers if not answer.deduplicated])

    async def test_a_batch_is_first_in_first_out(self, database: str) -> None:
        async with opened(database) as engine:
            first = await engine.enqueue([new_job() for _ in range(300)])
            second = await engine.enqueue([new_job() for _ in range(300)])
            places = [answer.run_at for answer in (*first, *second) if answer.run_at]
            assert places == sorted(places)
            # A batch of one time would be walked as a whole by every claim that the cursor sends there.
            assert len(set(places)) > 300
            leased = await lease_some(engine, 600)
            assert [each.job.id for each in leased] == [answer.id for answer in (*first, *second)]

    async def test_what_a_schedule_makes(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            await engine.put_schedule(NewSchedule("s", "* * * * *", "t"))
            await connection.execute("UPDATE ropeway.schedules SET next_run_at = clock_timestamp()")
            ((_, schedule),) = await engine.due_schedules(1)
            for jobs in ([new_job(), new_job()], [new_job(unique=Unique(by="args"))]):
                due = schedule.next_run_at if jobs[0].unique is None else schedule.next_run_at + AHEAD
                answers = await engine.advance("default", "s", due, due + AHEAD, jobs)
                assert answers is not None
                await check_told(engine, answers)


class TestTheVersionBefore:
    """G13: what it calls is still there, takes what it took and answers what it answered."""

    async def test_its_inserts(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            batch = [Submission("default", new_job(delay=n), id) for n, id in enumerate(uuid7s(3))]
            taken_at = await connection.fetchval(
                "SELECT ropeway.insert_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
                *insert_arrays(batch),
                False,
            )
            jobs = [job for job in await engine.get([submission.id for submission in batch]) if job]
            assert [job.run_at - taken_at for job in jobs] == [timedelta(seconds=n) for n in range(3)]
            assert {job.created_at for job in jobs} == {taken_at}

    async def test_its_inserts_with_keys(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            (known,) = await engine.enqueue([new_job(idempotency_key="a")])
            jobs = [new_job(idempotency_key="a"), new_job(idempotency_key="b")]
            batch = [Submission("default", job, id) for job, id in zip(jobs, uuid7s(2), strict=True)]
            marks = ", ".join(f"${n}" for n in range(1, 22))
            rows = await connection.fetch(
                f"SELECT * FROM ropeway.insert_keyed_jobs({marks})", *engine._keyed_arguments(batch, False, 1.0)
            )
            assert [tuple(row.keys()) for row in rows] == [
                ("at", "job_id", "known_id", "known_state", "mismatch")
            ] * 2
            assert tuple(rows[0])[1:] == (batch[0].id, known.id, "queued", False)
            assert tuple(rows[1])[1:] == (None, None, None, None)
            missing, stored = await engine.get([submission.id for submission in batch])
            assert missing is None
            assert stored is not None
            assert stored.created_at == rows[1]["at"]

    async def test_a_queue_that_it_paused_and_resumed(self, database: str) -> None:
        """Its statements name the columns they know; settings stay."""
        async with opened(database) as engine, connected(database) as connection:
            await engine.set_queue("mail", QueueSettings(depth_limit=5))
            for paused in (True, False):
                await connection.execute(
                    """INSERT INTO ropeway.queues (tenant, queue, paused) VALUES ('default', 'mail', $1)
                       ON CONFLICT (tenant, queue) DO UPDATE SET paused = excluded.paused""",
                    paused,
                )
                (stats,) = await engine.queue_stats()
                assert (stats.paused, stats.settings) == (paused, QueueSettings(depth_limit=5))

    async def test_its_store_is_taken_over(self, postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        everything = migrate.shipped(PACKAGE)
        engine = PostgresEngine(postgres_database, days_ahead=1)
        with monkeypatch.context() as patch:
            patch.setattr(migrate, "shipped", lambda _: everything[:8])
            await engine.migrations.up()
            await engine.pause("mail")
            async with connected(postgres_database) as connection:
                id = await connection.fetchval("SELECT ropeway.enqueue('t', '1', '{\"idempotency_key\": \"k\"}')")
        assert (await engine.migrations.up())[0] == "0009_service"
        async with engine:
            (stats,) = await engine.queue_stats(["mail"])
            assert (stats.paused, stats.settings) == (True, QueueSettings())
            assert [tenant.id for tenant in await engine.tenants()] == ["default"]
            leased = await lease_one(engine)
            assert leased.job.id == id
            await ack(engine, leased)
            assert len(await engine.secret()) == 32


class TestLongLog:
    @pytest.mark.slow
    async def test_a_day_of_events_is_not_walked(self, fresh_database: str) -> None:
        """300,000 events of one day: no more pages are looked at than the newest few."""
        async with opened(fresh_database) as engine, connected(fresh_database) as connection:
            await engine.enqueue([new_job() for _ in range(1_000)])
            day = f"ropeway.events_{await engine.now():%Y%m%d}"
            for _ in range(300):
                await connection.execute(
                    f"""INSERT INTO {day} (xid, at, job_id, seq, attempt, event, tenant, queue, type)
                        SELECT xid, clock_timestamp(), job_id, seq, attempt, event, tenant, 'busy', type FROM {day}
                        WHERE queue = 'default'"""
                )
            size = await connection.fetchval(f"SELECT pg_relation_size('{day}') / 8192")
            assert size > 3_000
            statement = "SELECT * FROM ropeway.queue_rates('default', 60, $1::bigint)"
            for bound in (100, inspecting.RATE_PAGES):
                assert await pages_read(connection, statement, bound) < bound + 100
            (row,) = await connection.fetch(statement, inspecting.RATE_PAGES)
            assert row["queue"] == "busy"
            assert 0 < row["seconds"] < 60
            # As many as there really were in that time, but for the page at its edge.
            real = await connection.fetchval(
                f"""SELECT count(*) FROM {day}
                    WHERE at > (SELECT max(at) FROM {day}) - make_interval(secs => $1)""",
                row["seconds"],
            )
            assert 0.5 < row["enqueued"] / real <= 1.0

    async def test_a_rate_of_part_of_a_minute_is_told_per_minute(
        self, fresh_database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inspecting, "RATE_PAGES", 2)
        async with opened(fresh_database) as engine:
            for _ in range(10):
                await engine.enqueue([new_job() for _ in range(100)])
            (stats,) = await engine.queue_stats()
            assert stats.enqueued_per_minute > 1_000, "1,000 came in much less than a minute"

    async def test_the_minute_before_midnight_counts(self, fresh_database: str) -> None:
        """By a clock that can be set: the last minute lies in two partitions."""
        from ropeway.testing.postgres import PostgresHarness

        harness = PostgresHarness(fresh_database)
        async with harness.subject() as subject:
            now = subject.clock.now()
            midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
            await subject.advance((midnight - now).total_seconds() - 20)
            await enqueue_many(subject.engine, 3)
            await subject.advance(30)
            await enqueue_many(subject.engine, 2)
            await ack(subject.engine, await lease_one(subject.engine))
            (stats,) = await subject.engine.queue_stats()
            assert (stats.enqueued_per_minute, stats.finished_per_minute) == (5.0, 1.0)
            await subject.advance(31)
            (stats,) = await subject.engine.queue_stats()
            assert (stats.enqueued_per_minute, stats.finished_per_minute) == (2.0, 1.0)


class TestPlace:
    async def test_it_looks_no_further_than_its_cap(self, fresh_database: str) -> None:
        """20,000 jobs, planned for an empty table: the first of them looks at one entry, the last at its cap."""
        async with opened(fresh_database) as engine, connected(fresh_database) as connection:
            statement = "SELECT ropeway.place('default', $1, $2)"
            for _ in range(7):
                await connection.fetch(statement, uuid7s(1)[0], 101)
            answers = await engine.enqueue([new_job(priority=9) for _ in range(10_000)])
            answers += await engine.enqueue([new_job() for _ in range(10_000)])
            assert await pages_read(connection, statement, answers[10_000].id, 101) < 40
            assert await pages_read(connection, statement, answers[-1].id, 101) < 150
            place = await engine.place(answers[0].id, cap=100)
            assert place is not None
            assert (place.number, place.capped) == (100, True)
            place = await engine.place(answers[3].id, cap=20_000)
            assert place is not None
            assert (place.number, place.capped) == (10_003, False)


def key(id: str, **fields: Any) -> NewKey:
    return NewKey(**{"id": id, "name": id, "scopes": frozenset({Scope.READ}), "digest": b"d" * 32, **fields})


class TestKeys:
    async def test_a_key_is_looked_up_by_its_index(self, database: str) -> None:
        """Planned while there was none, asked when there are very many."""
        async with opened(database) as engine, connected(database) as connection:
            assert await engine.find_key("k1") is None
            await connection.execute(
                """INSERT INTO ropeway.api_keys (id, tenant, name, scopes, digest, created_at)
                   SELECT 'k' || n, 'default', 'x', '["read","brew:coffee"]', '\\x00', clock_timestamp()
                   FROM generate_series(1, 20000) n"""
            )
            assert await pages_read(connection, "SELECT * FROM ropeway.find_key('k777')") < 20
            found = await engine.find_key("k777")
            assert found is not None
            assert found[0].scopes == {Scope.READ}, "a word of a newer version allows nothing"
            assert found[1].id == "default"

    async def test_use_is_noted_around_whoever_holds_a_row(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            for id in ("k1", "k2"):
                await engine.create_key(key(id))
            async with connection.transaction():
                await connection.execute("UPDATE ropeway.api_keys SET name = 'held' WHERE id = 'k1'")
                await asyncio.wait_for(engine.note_use(["k1", "k2", "nobody"]), 10)
            used = {each.id: each.last_used_at is not None for each in await engine.keys()}
            assert used == {"k1": False, "k2": True}
            (tenant,) = await engine.tenants()
            assert tenant.last_seen_at is not None

    async def test_many_note_the_same_keys_at_once(self, database: str) -> None:
        """In any order: none waits for another that waits for it."""
        async with opened(database) as engine, opened(database) as other:
            names = [f"k{n}" for n in range(50)]
            for name in names:
                await engine.create_key(key(name))
            for _ in range(10):
                await asyncio.gather(engine.note_use(names), other.note_use(names[::-1]))
            assert all(each.last_used_at for each in await engine.keys())

    async def test_of_two_rotations_at_once_each_is_whole(self, database: str) -> None:
        async with opened(database) as engine, opened(database) as other:
            await engine.create_key(key("old"))
            both = await asyncio.gather(
                engine.rotate_key("old", key("new1"), overlap=0),
                other.rotate_key("old", key("new2"), overlap=0),
                return_exceptions=True,
            )
            stored = {each.id for each in await engine.keys()} - {"old"}
            assert stored == {each.id for each in both if not isinstance(each, BaseException)}
            assert len(stored) == 1, "the second one found it ended"

    async def test_of_two_tenants_of_one_name_one_is_made(self, database: str) -> None:
        async with opened(database) as engine, opened(database) as other:
            both = await asyncio.gather(
                engine.create_tenant(NewTenant("a", "Acme")),
                other.create_tenant(NewTenant("b", "Acme")),
                return_exceptions=True,
            )
            assert [getattr(each, "code", "stored") for each in both].count("name_taken") == 1
            assert len(await engine.tenants()) == 2


class TestBuckets:
    async def test_processes_share_one(self, database: str) -> None:
        async with opened(database) as engine, opened(database) as other:
            taken = await asyncio.gather(
                *(
                    each.take_tokens("requests", 3.0, rate=0.001, burst=100.0)
                    for _ in range(30)
                    for each in (engine, other)
                )
            )
            assert 100.0 <= sum(each.granted for each in taken) < 100.1
            assert min(each.left for each in taken) < 1
            assert (await other.take_tokens("requests", 1.0, rate=0.001, burst=100.0)).retry_in > 100

    async def test_the_time_is_that_of_its_turn(self, database: str) -> None:
        """Who waited for the row must not set its clock back: the time between would be refilled twice."""
        async with opened(database) as engine, connected(database, times=2) as (connection, watcher):
            await engine.take_tokens("b", 1.0, rate=1.0, burst=10.0)
            async with connection.transaction():
                await connection.execute("UPDATE ropeway.buckets SET at = clock_timestamp()")
                waiting = asyncio.create_task(engine.take_tokens("b", 1.0, rate=1.0, burst=10.0))
                await waiting_for_lock(watcher, "ropeway.take_tokens(")
                await connection.execute("UPDATE ropeway.buckets SET at = clock_timestamp()")
                held = await connection.fetchval("SELECT at FROM ropeway.buckets")
            await waiting
            assert await connection.fetchval("SELECT at FROM ropeway.buckets") > held

    async def test_taking_waits_for_no_disk(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            await engine.take_tokens("b", 1.0, rate=1.0, burst=10.0)
            kind = await connection.fetchval(
                "SELECT relpersistence FROM pg_class WHERE oid = 'ropeway.buckets'::regclass"
            )
            assert kind == b"u", "an unlogged table's commit is not flushed"

    async def test_a_bucket_in_use_is_not_forgotten(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            await engine.take_tokens("b", 10.0, rate=0.001, burst=10.0)
            await connection.execute("UPDATE ropeway.buckets SET at = at - interval '25 hours'")
            async with connection.transaction():
                await connection.execute("UPDATE ropeway.buckets SET at = clock_timestamp()")
                await asyncio.wait_for(engine.forget_buckets(), 10)
            assert (await engine.take_tokens("b", 10.0, rate=0.001, burst=10.0)).granted < 1
            await connection.execute("UPDATE ropeway.buckets SET at = at - interval '25 hours'")
            await engine.forget_buckets()
            assert (await engine.take_tokens("b", 10.0, rate=0.001, burst=10.0)).granted == 10.0


async def test_very_many_old_actions_go_in_steps(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ropeway.engines.postgres import auditing

    monkeypatch.setattr(auditing, "PRUNE_STEP", 10)
    async with opened(database) as engine, connected(database) as connection:
        await engine.note_actions([NewAction("me", "job.cancel", str(n)) for n in range(55)])
        await connection.execute("UPDATE ropeway.actions SET at = at - interval '92 days' WHERE n % 2 = 0")
        left = await connection.fetchval("SELECT count(*) FROM ropeway.actions WHERE n % 2 = 1")
        await engine.prune()
        assert len(await engine.actions(limit=100)) == left


async def test_a_secret_is_of_the_store(make_postgres_database: Any, database: str) -> None:
    async with opened(database) as engine, opened(database) as other:
        secret = await engine.secret()
        assert len(secret) == 32
        assert await other.secret() == secret
        assert secret.hex().encode() != await engine._secret(), "positions are signed by another one"


async def test_an_admission_waits_for_no_report(database: str) -> None:
    """Each has its own connection: a look at everything holds up no request."""
    async with opened(database) as engine:
        await engine.create_key(key("k1"))
        report = asyncio.create_task(engine.reads.value("SELECT pg_sleep(60)", writes=False))
        chore = asyncio.create_task(engine.chores.value("SELECT pg_sleep(60)", writes=False))
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert await engine.find_key("k1")
            await engine.take_tokens("b", 1.0, rate=1.0, burst=10.0)
            await engine.queue_settings()
            await engine.note_use(["k1"])
        for task in (report, chore):
            task.cancel()
        await asyncio.wait({report, chore})


async def test_a_batch_of_new_jobs_is_one_round_trip(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(database) as engine:
        sent: list[str] = []
        for channel in (engine.inserts, engine.keyed, engine.reads):
            fetch = channel.fetch

            async def counted(statement: str, *arguments: Any, _fetch: Any = fetch, **how: Any) -> Any:
                sent.append(statement)
                return await _fetch(statement, *arguments, **how)

            monkeypatch.setattr(channel, "fetch", counted)
        jobs: list[NewJob] = [new_job(delay=n) for n in range(5)]
        await engine.enqueue(jobs)
        await engine.enqueue([new_job(idempotency_key=f"k{n}") for n in range(5)])
        assert len(sent) == 2
