"""The event log under late commits: nothing is skipped, nothing comes twice, each job's events in order (E20)."""

from __future__ import annotations

import asyncio
import base64
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from devtools.postgres import PrivatePostgres
from devtools.private import NotAvailable
from ropeway.core.errors import BadCursor, PositionExpired
from ropeway.core.events import Event
from ropeway.engines.postgres import PostgresEngine, tailing
from ropeway.testing.conformance.kit import ack, check_log, enqueue_many, lease_some, new_job
from tests.engines.pg_kit import connected, eventually, migrated, opened, pages_read

WRITERS = 3


class Reader:
    """Follows the log page by page, as a relay does."""

    def __init__(self, engine: PostgresEngine, position: str | None) -> None:
        self._engine = engine
        self._position = position
        self.events: list[Event] = []

    async def read(self, limit: int) -> int:
        page = await self._engine.tail(self._position, limit=limit)
        assert len(page.events) <= limit
        self.events += page.events
        self._position = page.position
        return len(page.events)

    async def read_all(self, limit: int) -> None:
        """To the end: an empty page says so."""
        while await self.read(limit):
            pass

    def check(self, expected: Counter[UUID]) -> None:
        assert Counter(event.job_id for event in self.events) == expected
        for id in expected:
            seqs = [event.seq for event in self.events if event.job_id == id]
            assert seqs == sorted(seqs), f"the events of {id} came in the order {seqs}"


class TestSignedPositions:
    async def test_a_changed_position_is_refused(self, database: str) -> None:
        async with opened(database) as engine:
            await enqueue_many(engine, 3)
            position = (await engine.tail(limit=2)).position
            body, _, signature = position.partition(".")
            at = msgspec.json.decode(base64.urlsafe_b64decode(body + "=="))
            at[-1] += 7  # pass over some, or anything else: the work of others
            forged = base64.urlsafe_b64encode(msgspec.json.encode(at)).decode().rstrip("=")
            end = await engine.tail_position()
            for bad in (
                f"{forged}.{signature}",
                f"{forged}.",
                forged,
                f"{body}.{end.partition('.')[2]}",
                f"{body}.{signature[:-1]}",
                f"{body}.{signature}0",
                f"{body}.{signature.upper()}" if signature.upper() != signature else f"{body}.",
            ):
                with pytest.raises(BadCursor):
                    await engine.tail(bad)
            assert len((await engine.tail(position)).events) == 1

    async def test_the_secret_is_the_stores(self, fresh_database: str) -> None:
        """Every process of one store takes the positions of the others; another store refuses them."""
        other = PostgresEngine(fresh_database, schema="my_jobs", days_ahead=1)
        await other.migrations.up()
        async with opened(fresh_database) as engine, opened(fresh_database) as again, other:
            await enqueue_many(engine, 2)
            position = (await engine.tail(limit=1)).position
            assert len((await again.tail(position)).events) == 1
            with pytest.raises(BadCursor):
                await other.tail(position)


@pytest.mark.parametrize("limit", [1, 2, 500])
async def test_the_only_open_transaction_is_waited_for(database: str, limit: int) -> None:
    """Its xid is not below the snapshot's xmax, so the snapshot does not name it among the open ones."""
    async with opened(database) as engine, connected(database) as writer:
        reader = Reader(engine, None)
        late = writer.transaction()
        await late.start()
        id = await writer.fetchval("SELECT ropeway.enqueue('late', '1')")
        await reader.read_all(limit)
        await late.commit()
        await reader.read_all(limit)
        reader.check(Counter([id]))


@pytest.mark.parametrize("limit", [1, 2, 3, 500])
async def test_a_low_id_that_commits_late_is_delivered(database: str, limit: int) -> None:
    async with opened(database) as engine, connected(database) as writer:
        reader = Reader(engine, None)
        late = writer.transaction()
        await late.start()
        id = await writer.fetchval("SELECT ropeway.enqueue('late', '1')")
        ids = await enqueue_many(engine, 7)
        await reader.read_all(limit)
        reader.check(Counter(ids))
        await late.commit()
        await reader.read_all(limit)
        reader.check(Counter([*ids, id]))


async def test_a_position_in_the_middle_of_a_step_survives_a_restart(database: str) -> None:
    """What lies between two snapshots is read page by page; the position says where, and what has come since."""
    async with opened(database) as engine, connected(database) as writer:
        first = await enqueue_many(engine, 5)
        reader = Reader(engine, None)
        await reader.read(2)
        late = writer.transaction()
        await late.start()
        id = await writer.fetchval("SELECT ropeway.enqueue('late', '1')")
        second = await enqueue_many(engine, 5)
        async with opened(database) as other:
            reader = Reader(other, reader._position)
            await reader.read(2)
            await late.commit()
            await reader.read_all(2)
            reader.check(Counter([*first[2:], *second, id]))


async def test_the_end_of_the_log_leaves_out_nothing_that_commits_later(database: str) -> None:
    async with opened(database) as engine, connected(database) as writer:
        await enqueue_many(engine, 3)
        late = writer.transaction()
        await late.start()
        id = await writer.fetchval("SELECT ropeway.enqueue('late', '1')")
        reader = Reader(engine, await engine.tail_position())
        await late.commit()
        await reader.read_all(10)
        reader.check(Counter([id]))


@given(
    xmax=st.integers(10_000, 20_000),
    ages=st.sets(st.one_of(st.integers(1, 30), st.integers(1, 9_999)), max_size=20),
)
def test_no_open_transaction_is_outside_the_ranges(xmax: int, ages: set[int]) -> None:
    open_then = [xmax - age for age in ages]
    froms, tos = tailing._unseen(f"1:{xmax}:{','.join(map(str, open_then))}")
    ranges = list(zip(froms, tos, strict=True))
    for xid in (*open_then, xmax, xmax + 1, 2**62):
        assert len([1 for first, last in ranges if first <= xid <= last]) == 1, "looked for once"
    assert all(last == 2**63 - 1 or last - first <= 20 * tailing.SAME_RANGE for first, last in ranges)
    assert {first for first, _ in ranges} <= {*open_then, xmax}, "no further back than one that was open"


async def test_transactions_that_are_far_apart(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is looked for in a range of its own; what was read in between does not come again."""
    monkeypatch.setattr(tailing, "SAME_RANGE", 0)
    async with opened(database) as engine, connected(database, times=3) as writers:
        reader = Reader(engine, None)
        expected: Counter[UUID] = Counter()
        open_ones = []
        for writer in writers:
            late = writer.transaction()
            await late.start()
            id = await writer.fetchval("SELECT ropeway.enqueue('late', '1')")
            expected.update([*await enqueue_many(engine, 2), id])
            open_ones.append((late, id))
        await reader.read_all(2)
        assert len(reader.events) == 6
        for late, _ in reversed(open_ones):
            await late.commit()
            await reader.read_all(1)
        reader.check(expected)


async def test_a_long_log_is_not_walked(fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 events of today and yesterday, neither vacuumed nor analysed: a reader at its end reads its end."""
    monkeypatch.setattr(tailing, "SUMMARISE_EVERY", 1_000)
    async with opened(fresh_database) as engine, connected(fresh_database) as connection:
        now = await engine.now()
        days = [f"ropeway.events_{now - timedelta(days=ago):%Y%m%d}" for ago in (1, 0)]
        for ago, day in zip((1, 0), days, strict=True):
            await connection.execute(f"ALTER TABLE {day} SET (autovacuum_enabled = off)")
            await connection.execute(
                """INSERT INTO ropeway.events (xid, at, job_id, seq, attempt, event, tenant, queue, type)
                   SELECT pg_current_xact_id()::text::bigint, $1::timestamptz - make_interval(days => $2),
                          gen_random_uuid(), 1, 0, 'job.enqueued', 'default', 'q', 't'
                   FROM generate_series(1, 50000)""",
                now,
                ago,
            )
        reader = Reader(engine, await engine.tail_position())
        await reader.read_all(500)
        await eventually(lambda: _done(engine))
        expected = Counter(await enqueue_many(engine, 3))
        await reader.read_all(500)
        reader.check(expected)
        # Taken with nobody writing: a transaction of someone else in the cluster, open since before the 50,000 of
        # today, is rightly looked for among them, and they are all of one transaction.
        next_xid = await connection.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        end = f"{next_xid}:{next_xid}:"
        arguments = (end, end, 0, 0, 0, 2**40, *tailing._unseen(end), 500, None)
        statement = "SELECT * FROM ropeway.tail_events($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
        read = await pages_read(connection, statement, *arguments)
        size = await connection.fetchval(
            "SELECT sum(pg_relation_size(t::regclass)) / 8192 FROM unnest($1::text[]) t", days
        )
        assert read < 120 < size / 5, f"{read} of {size} pages"


async def _done(engine: PostgresEngine) -> bool:
    return engine._summarised_to > 0 and not engine._summarising


async def test_a_log_that_cannot_be_summarised_is_read_all_the_same(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailing, "SUMMARISE_EVERY", 1)
    async with opened(database) as engine, connected(database) as vacuum, vacuum.transaction():
        # What a vacuum takes.
        await vacuum.execute("LOCK TABLE ropeway.events IN SHARE UPDATE EXCLUSIVE MODE")
        expected = Counter(await enqueue_many(engine, 3))
        reader = Reader(engine, None)
        await reader.read_all(2)
        reader.check(expected)
        await eventually(lambda: _done(engine))


class TestOneTenantAmongOthers:
    async def test_events_of_others_are_passed_over_in_the_store(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However few events are asked for, one statement passes over a stride of what others did."""
        async with opened(database) as engine:
            position = await engine.tail_position()
            await enqueue_many(engine, 300, tenant="loud")
            (mine,) = await enqueue_many(engine, 1)
            steps = []
            step = engine._step

            async def counted(*given: Any) -> Any:
                steps.append(given)
                return await step(*given)

            monkeypatch.setattr(engine, "_step", counted)
            page = await engine.tail(position, limit=1, tenant="default")
            assert [event.job_id for event in page.events] == [mine]
            assert len(steps) == 1
            page = await engine.tail(page.position, limit=1, tenant="default")
            assert (page.events, page.whole) == ([], True)

    async def test_a_long_search_breaks_off_and_goes_on(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tailing, "STRIDE", 10)
        monkeypatch.setattr(tailing, "MOST_STRIDES", 3)
        async with opened(database) as engine:
            position = await engine.tail_position()
            await enqueue_many(engine, 100, tenant="loud")
            (mine,) = await enqueue_many(engine, 1)
            pages = [await engine.tail(position, limit=5, tenant="default")]
            while not pages[-1].whole:
                pages.append(await engine.tail(pages[-1].position, limit=5, tenant="default"))
            assert len(pages) >= 3, "no call looks at more than its strides"
            assert [event.job_id for page in pages for event in page.events] == [mine]
            assert all(page.events == [] for page in pages[:-2])


writers = st.integers(0, WRITERS - 1)
steps = st.one_of(
    st.tuples(st.just("write"), writers),
    st.tuples(st.just("commit"), writers),
    st.tuples(st.just("rollback"), writers),
    st.tuples(st.just("read"), st.integers(1, 3)),
    st.tuples(st.just("enqueue"), st.integers(1, 3)),
    st.tuples(st.just("work"), st.integers(1, 3)),
)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=st.lists(steps, min_size=3, max_size=30), limit=st.integers(1, 3))
@example(plan=[("write", 0), ("write", 1), ("commit", 1), ("read", 1), ("commit", 0)], limit=1)
@example(plan=[("write", 0), ("read", 1), ("write", 1), ("read", 1), ("commit", 0), ("read", 1)], limit=1)
@example(plan=[("write", 1), ("write", 0), ("write", 1), ("commit", 1), ("read", 1), ("write", 2)], limit=2)
async def test_any_order_of_commits_and_reads(database: str, plan: list[tuple[str, int]], limit: int) -> None:
    async with opened(database) as engine, connected(database, times=WRITERS) as connections:
        expected: Counter[UUID] = Counter()
        open_now: dict[int, tuple[Any, list[UUID]]] = {}
        reader = Reader(engine, await engine.tail_position())

        async def end(number: int, verb: str) -> None:
            if number in open_now:
                transaction, ids = open_now.pop(number)
                await getattr(transaction, verb)()
                expected.update(ids if verb == "commit" else [])

        for step, number in plan:
            if step == "write":
                if number not in open_now:
                    open_now[number] = (connections[number].transaction(), [])
                    await open_now[number][0].start()
                open_now[number][1].append(
                    await connections[number].fetchval("SELECT ropeway.enqueue('t', '1', '{\"queue\": \"tail\"}')")
                )
            elif step in ("commit", "rollback"):
                await end(number, step)
            elif step == "read":
                await reader.read(number)
            elif step == "enqueue":
                answers = await engine.enqueue([new_job(queue="tail")] * number)
                expected.update(answer.id for answer in answers)
            else:
                for leased in await lease_some(engine, number, "tail"):
                    await ack(engine, leased)
                    expected.update({leased.job.id: 2})
        for number in range(WRITERS):
            await end(number, "commit")
        await reader.read_all(limit)
        reader.check(expected)
        # Leave an empty queue to the next example.
        while leased_jobs := await lease_some(engine, 100, "tail"):
            for leased in leased_jobs:
                await ack(engine, leased)


@pytest.fixture(scope="module")
def copied() -> Iterator[tuple[str, str, str]]:
    """The URL of a copy, a position in the middle of the log it was made of, and one at its end."""
    try:
        here, there = PrivatePostgres(shared_buffers="32MB"), PrivatePostgres(shared_buffers="32MB")
    except NotAvailable as error:
        pytest.skip(f"NOT RUN: postgres: {error}")
    with here, there:
        source, target = migrated(here.create_database("source")), there.create_database("target")
        _use_up_ids(source, 20_000)
        positions = asyncio.run(_positions(source))
        dump = subprocess.run([here.bindir / "pg_dump", source], capture_output=True, check=True)
        restore = [there.bindir / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", target]
        subprocess.run(restore, input=dump.stdout, capture_output=True, check=True)
        yield target, *positions


def _use_up_ids(url: str, number: int) -> None:
    """Let that many transactions come and go."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"DO $$ BEGIN FOR i IN 1 .. {number} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
        )


async def _positions(url: str) -> tuple[str, str]:
    async with opened(url) as engine:
        await enqueue_many(engine, 5)
        return (await engine.tail(limit=2)).position, await engine.tail_position()


class TestACopyInAnotherCluster:
    """After a logical dump and restore: the transaction ids in the log are another cluster's, ahead of ours."""

    async def test_positions_of_before_have_expired(self, copied: tuple[str, str, str]) -> None:
        url, *positions = copied
        async with opened(url) as engine:
            for position in positions:
                with pytest.raises(PositionExpired):
                    await engine.tail(position)

    async def test_what_happens_from_now_on_is_told(self, copied: tuple[str, str, str]) -> None:
        url, *_ = copied
        async with opened(url) as engine, opened(url) as other:
            reader = Reader(engine, None)
            await reader.read_all(2)
            late = Reader(other, await other.tail_position())
            fresh = await enqueue_many(engine, 3)
            for each in (reader, late):
                await each.read_all(2)
                assert [event.job_id for event in each.events][-3:] == fresh
            assert len(late.events) == len(reader.events) == 3
            await asyncio.to_thread(_use_up_ids, url, 40_000)
            await enqueue_many(engine, 1)
            await reader.read_all(2)
            assert len(reader.events) == 4, "what is history does not become news when our ids reach theirs"
            again = Reader(engine, None)
            await again.read_all(500)
            assert again.events == reader.events
            (leased,) = await lease_some(engine, 1)
            assert len(await check_log(engine, leased.job.id)) == 2, "the history of a job came with it"
