"""Packs, one row of the event log for the same step of many jobs: nobody who reads the log can tell."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from ropeway.core.errors import PositionExpired
from ropeway.core.events import attempt_history
from ropeway.core.job import NewJob
from ropeway.core.outcome import Done, Failed, Outcome, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.states import EventName
from ropeway.engines.postgres import PostgresEngine, tailing
from ropeway.engines.protocol import Settlement
from ropeway.testing.conformance import (  # noqa: F401
    TestCancel,
    TestDelete,
    TestEndOfAnOwner,
    TestHandlersTransaction,
    TestHistory,
    TestLog,
    TestObserving,
    TestOneLife,
    TestPrune,
    TestPrunedEvents,
    TestRates,
    TestRedrive,
    TestRescue,
    TestSnoozeAndRelease,
    TestTable,
    TestTail,
    TestTransactionalCompletion,
    TestUpkeepRaces,
)
from ropeway.testing.conformance.kit import (
    check_log,
    enqueue_many,
    event_names,
    lease_some,
    worker,
)
from ropeway.testing.postgres import PostgresHarness
from tests.engines.pg_kit import connected, opened, pages_read
from tests.engines.test_postgres_tail import Reader


@pytest.fixture(scope="module")
def harness(postgres_module_database: str) -> PostgresHarness:
    """Even a single job makes a pack here."""
    return PostgresHarness(postgres_module_database, pack_size=1)


async def _run(engine: PostgresEngine, number: int, *outcomes: Outcome) -> list[UUID]:
    """So many jobs at once through their lives, with one attempt for each outcome."""
    ids = await enqueue_many(engine, number)
    for outcome in outcomes:
        leased = await lease_some(engine, number)
        await engine.settle([Settlement(each.lease, outcome) for each in leased])
    return ids


async def _packs(database: str) -> list[tuple[str, int]]:
    async with connected(database) as connection:
        rows = await connection.fetch("SELECT event::text, number FROM ropeway.event_packs ORDER BY id")
    return [(row["event"], row["number"]) for row in rows]


class TestManyAtOnce:
    async def test_are_packs_and_few_are_not(self, database: str) -> None:
        async with opened(database) as engine:
            for number in (15, 16):
                await _run(engine, number, Done())
        assert await _packs(database) == [("job.started", 16), ("job.completed", 16)]

    async def test_a_pack_is_of_one_queue_and_type(self, database: str) -> None:
        """And those of whom there are few stay rows."""
        async with opened(database) as engine:
            jobs = [NewJob(type, queue=queue) for queue in ("a", "b") for type in ("x", "y")] * 16
            jobs += [NewJob("z", queue="a")] * 15
            ids = [answer.id for answer in await engine.enqueue(jobs)]
            leased = (await engine.lease(["a", "b"], len(jobs), worker())).leases
            await engine.settle([Settlement(each.lease, Done()) for each in leased])
            for id, job in zip(ids, jobs, strict=True):
                told = await check_log(engine, id)
                assert {(event.queue, event.type) for event in told} == {(job.queue, job.type)}
                assert len(told) == 3
        assert [number for _, number in await _packs(database)] == [16] * 8

    async def test_every_attempt_is_told(self, database: str) -> None:
        """Only the events of what went wrong know when the attempts before the last one began."""
        async with opened(database) as engine:
            ids = await _run(engine, 20, Snoozed(0), Failed(JobError("E", "no"), retry_after=0), Done(b"7"))
            for id in ids:
                assert await event_names(engine, id) == [
                    EventName.ENQUEUED,
                    EventName.STARTED,
                    EventName.SNOOZED,
                    EventName.STARTED,
                    EventName.FAILED,
                    EventName.STARTED,
                    EventName.COMPLETED,
                ]
                history = attempt_history(await check_log(engine, id))
                assert [attempt.outcome for attempt in history] == ["snoozed", "failed", "succeeded"]
                assert all(attempt.worker_id and attempt.started_at for attempt in history)

    async def test_pages_may_end_within_a_pack(self, database: str) -> None:
        async with opened(database) as engine:
            first = await _run(engine, 40, Done())
            for limit in (1, 7, 40, 119, 120, 121, 500):
                reader = Reader(engine, None)
                await reader.read_all(limit)
                reader.check(Counter(first * 3))
            # And goes on from there.
            second = await _run(engine, 20, Done())
            await reader.read_all(9)
            reader.check(Counter((first + second) * 3))
            for id in (*first, *second):
                assert [event for event in reader.events if event.job_id == id] == await engine.events_of(id)

    async def test_a_late_commit_is_not_skipped(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as slow:
            ids = await enqueue_many(engine, 20)
            reader = Reader(engine, None)
            late = slow.transaction()
            await late.start()
            await slow.execute(
                """SELECT FROM ropeway.claim_jobs('default', '{default}', '{5}', '{-infinity}', '{0}', 20,
                                              gen_random_uuid(), gen_random_uuid(), 'w', 30)"""
            )
            others = await enqueue_many(engine, 3)
            await reader.read_all(5)
            reader.check(Counter([*ids, *others]))
            await late.commit()
            await reader.read_all(5)
            reader.check(Counter([*ids, *ids, *others]))

    async def test_the_newest_are_the_last_of_the_last_pack(self, database: str) -> None:
        async with opened(database) as engine:
            ids = await _run(engine, 40, Done())
            page = await engine.newest_events(limit=5)
            assert [event.event for event in page.events] == [EventName.COMPLETED] * 5
            assert len({event.job_id for event in page.events} & set(ids)) == 5
            (late,) = await enqueue_many(engine, 1)
            assert [event.job_id for event in (await engine.tail(page.position)).events] == [late]

    async def test_the_newest_are_told_while_others_write(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What comes after the end that was looked at is not counted among them."""
        async with opened(database) as engine, opened(database) as other:
            before = await _run(engine, 40, Done())
            asked = engine.reads.value

            async def late(*arguments: Any, **options: Any) -> Any:
                if "newest" in arguments[0]:
                    await _run(other, 20, Done())
                return await asked(*arguments, **options)

            monkeypatch.setattr(engine.reads, "value", late)
            page = await engine.newest_events(limit=5)
            assert len(page.events) == 5
            assert {event.job_id for event in page.events} <= set(before)

    async def test_a_pack_that_is_half_read_and_gone_is_told(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as connection:
            await _run(engine, 20, Done())
            half = (await engine.tail(limit=20 + 20 + 7)).position
            whole = (await engine.tail(limit=20 + 20 + 20)).position
            last = await connection.fetchval("SELECT max(id) FROM ropeway.event_packs")
            await connection.execute(
                "UPDATE ropeway.meta SET value = $1 WHERE name = 'events_pruned_through'", str(last)
            )
            with pytest.raises(PositionExpired):
                await engine.tail(half)
            assert (await engine.tail(whole)).events == []


async def _fill(connection: asyncpg.Connection[asyncpg.Record], now: datetime, number: int) -> str:
    """Packs of jobs that are not there any more, neither vacuumed nor analysed; their table."""
    day = f"ropeway.event_packs_{now:%Y%m%d}"
    await connection.execute(f"ALTER TABLE {day} SET (autovacuum_enabled = off)")
    await connection.execute(
        """INSERT INTO ropeway.event_packs
               (xid, at, event, tenant, queue, type, number, oldest, newest, job_ids, seqs, attempts)
           SELECT pg_current_xact_id()::text::bigint, made.at, 'job.started', 'default', 'q', 't', 1, made.at,
                  made.at, ARRAY[gen_random_uuid()], '{2}', '{1}'
           FROM generate_series(1, $2::integer) n
           CROSS JOIN LATERAL (SELECT $1::timestamptz - n * interval '1 microsecond') AS made (at)""",
        now,
        number,
    )
    return day


async def test_a_long_log_of_packs_is_not_walked(fresh_database: str) -> None:
    async with opened(fresh_database) as engine, connected(fresh_database) as connection:
        day = await _fill(connection, await engine.now(), 20_000)
        (id, *_) = await _run(engine, 20, Done())
        size = await connection.fetchval("SELECT pg_relation_size($1::regclass) / 8192", day)
        few = 120
        assert few < size / 2

        of_one_job = "SELECT * FROM ropeway.events_of('default', $1)"
        assert await pages_read(connection, of_one_job, id) < few, "of a job"
        await connection.execute("DELETE FROM ropeway.archive")
        assert len(await engine.events_of(id)) == 3
        assert await pages_read(connection, of_one_job, id) < few, "of a job that is gone"

        tail = "SELECT * FROM ropeway.tail_events($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
        next_xid = await connection.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        end = f"{next_xid}:{next_xid}:"
        last = await connection.fetchval("SELECT max(id) FROM ropeway.event_packs")

        async def pages(seen: str, high: int, after: int, limit: int = 500) -> int:
            asked = (seen, end, high, after, 0, 2**40, *tailing._unseen(seen), limit, None)
            return await pages_read(connection, tail, *asked)

        nothing = "1:1:"
        assert await pages(end, last, 0) < few, "the end of the log"
        assert await pages(end, last, 1) < few, "the end of a log that was restored"
        # A page of events has as many packs here, as each is of one job.
        assert await pages(nothing, 0, 0, limit=10) < few, "the first page of someone who reads all of it"
        assert await pages(nothing, 0, 1, limit=10) < few, "the first page of a log that was restored"
        assert await pages(nothing, 0, last // 2, limit=10) < few, "a page in the middle"
        assert await pages(nothing, 0, last - 1) < few, "the last page"
