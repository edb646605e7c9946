"""Lines: what handlers say while they run, kept with the job and gone with it."""

from __future__ import annotations

import pytest

from ropeway.core.errors import FieldError, JobEnded, LeaseLost
from ropeway.core.joblog import MAX_LINES, MAX_LOG_BYTES, MAX_MESSAGE, LogLine
from ropeway.core.lease import Lease
from ropeway.engines.protocol import Engine, Leased
from ropeway.runtime import ids
from ropeway.testing.conformance.kit import (
    DAY,
    OTHER_TENANT,
    ack,
    enqueue_many,
    enqueue_one,
    forged,
    lease_one,
    lease_some,
    nack,
    nothing_changes,
    refused,
)
from ropeway.testing.conformance.retention import keeping
from ropeway.testing.conformance.subject import Harness


async def say(engine: Engine, ticket: Leased | Lease, *messages: str) -> None:
    """Append lines to one job's log; fails if one is refused."""
    lease = ticket.lease if isinstance(ticket, Leased) else ticket
    assert await engine.log([(lease, LogLine(message)) for message in messages]) == [None] * len(messages)


async def said(engine: Engine, leased: Leased) -> list[tuple[int, str]]:
    """Number and text of every kept line."""
    return [(line.n, line.message) for line in await engine.log_of(leased.job.id, limit=MAX_LINES)]


class TestLines:
    async def test_lines_are_numbered_and_stamped(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine)
            leased = await lease_one(engine)
            first = await engine.now()
            forged_facts = LogLine("one", attempt=9, n=77, at=first.replace(year=1999))
            assert await engine.log([(leased.lease, forged_facts)]) == [None]
            await subject.advance(2.5)
            second = await engine.now()
            both = [(leased.lease, LogLine("two", "warning")), (leased.lease, LogLine("three", "error"))]
            assert await engine.log(both) == [None, None]
            assert await engine.log_of(leased.job.id) == [
                LogLine("one", "info", 1, 1, first),
                LogLine("two", "warning", 1, 2, second),
                LogLine("three", "error", 1, 3, second),
            ]

    async def test_the_log_goes_on_over_attempts_and_redrives(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            await say(engine, leased, "first")
            await nack(engine, leased, retry_after=0)
            leased = await lease_one(engine)
            await say(engine, leased, "second")
            await nack(engine, leased, retry=False)
            await engine.redrive([id])
            leased = await lease_one(engine)
            await say(engine, leased, "third")
            await ack(engine, leased)
            lines = [(line.n, line.attempt, line.message) for line in await engine.log_of(id)]
            assert lines == [(1, 1, "first"), (2, 2, "second"), (3, 3, "third")]

    async def test_each_job_of_a_batch_has_its_own_numbers(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_many(engine, 3)
            a, b, c = await lease_some(engine, 3)
            lines = [(each.lease, LogLine(text)) for each, text in ((b, "b1"), (a, "a1"), (b, "b2"), (a, "a2"))]
            assert await engine.log(lines) == [None] * 4
            assert await engine.log([]) == []
            assert await said(engine, a) == [(1, "a1"), (2, "a2")]
            assert await said(engine, b) == [(1, "b1"), (2, "b2")]
            assert await said(engine, c) == []

    async def test_reading_goes_on_where_it_stopped(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            await say(engine, await lease_one(engine), *"abcde")
            assert [line.n for line in await engine.log_of(id, limit=2)] == [1, 2]
            assert [line.n for line in await engine.log_of(id, after=2, limit=2)] == [3, 4]
            assert [line.n for line in await engine.log_of(id, after=4, limit=2)] == [5]
            assert await engine.log_of(id, after=5) == []
            for after, limit in ((-1, 1), (0, 0), (0, MAX_LINES + 1)):
                with pytest.raises(FieldError):
                    await engine.log_of(id, after=after, limit=limit)

    async def test_the_oldest_lines_go_and_numbers_go_on(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_many(engine, 2)
            talker, quiet = await lease_some(engine, 2)
            await say(engine, quiet, "still here")
            await say(engine, talker, *map(str, range(1, MAX_LINES)))
            await say(engine, talker, str(MAX_LINES))
            assert [n for n, _ in await said(engine, talker)] == [*range(1, MAX_LINES + 1)]
            await say(engine, talker, *(str(MAX_LINES + n) for n in range(1, 6)))
            kept = await said(engine, talker)
            assert kept == [(n, str(n)) for n in range(6, MAX_LINES + 6)]
            assert await said(engine, quiet) == [(1, "still here")]

    async def test_a_log_that_becomes_too_large_loses_its_oldest_lines(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_many(engine, 2)
            talker, other = await lease_some(engine, 2)
            await say(engine, other, "mine")
            # Two bytes each: it is bytes that count. Eight such lines are exactly as much as is kept.
            long = "é" * MAX_MESSAGE
            full = MAX_LOG_BYTES // (2 * MAX_MESSAGE)
            await say(engine, talker, *([long] * full))
            assert [n for n, _ in await said(engine, talker)] == [*range(1, full + 1)]
            await say(engine, talker, "one more")
            assert [n for n, _ in await said(engine, talker)] == [*range(2, full + 2)]
            # In one call as well, and numbers are never given again.
            await say(engine, talker, *([long] * (2 * full)))
            assert [n for n, _ in await said(engine, talker)] == [*range(2 * full + 2, 3 * full + 2)]
            assert await said(engine, other) == [(1, "mine")]

    async def test_a_line_is_cut_and_cleaned_never_refused(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            bad = [
                LogLine("x" * (MAX_MESSAGE + 1)),
                LogLine("nul\0 and \ud800 lone"),
                LogLine("", ""),
                LogLine("line\nbreak €𝄞", "l" * 100),
            ]
            assert await engine.log([(leased.lease, line) for line in bad]) == [None] * 4
            lines = await engine.log_of(id)
            assert [line.message for line in lines] == [
                "x" * MAX_MESSAGE,
                "nul\ufffd and \ufffd lone",
                "",
                "line\nbreak €𝄞",
            ]
            assert [line.level for line in lines] == ["info", "info", "info", "l" * 16]

    async def test_only_the_current_ticket_may_write(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            old = await lease_one(engine)
            await nack(engine, old, retry_after=0)
            leased = await lease_one(engine)
            stale = Lease(id, 1, leased.lease.token)
            unknown = Lease(ids.token(), 1, leased.lease.token)
            lines = [
                (each, LogLine(str(n)))
                for n, each in enumerate((old.lease, leased.lease, forged(leased.lease), stale, unknown), 1)
            ]
            async with nothing_changes(engine, id):
                answers = await engine.log(lines)
            assert answers[1] is None
            for answer in (answers[0], *answers[2:]):
                refused(answer, LeaseLost)
            assert await said(engine, leased) == [(1, "2")]
            (foreign,) = await engine.log([(leased.lease, LogLine("theirs"))], tenant=OTHER_TENANT)
            refused(foreign, LeaseLost)
            await ack(engine, leased)
            (late,) = await engine.log([(leased.lease, LogLine("late"))])
            assert isinstance(late, LeaseLost | JobEnded)
            assert await said(engine, leased) == [(1, "2")]

    async def test_a_line_is_no_transition(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            await subject.advance(5)
            async with nothing_changes(engine, id):
                await say(engine, leased, "hello")

    async def test_tenants_do_not_read_each_others_logs(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            await say(engine, await lease_one(engine), "mine")
            assert await engine.log_of(id, tenant=OTHER_TENANT) == []
            assert await engine.log_of(ids.token()) == []

    async def test_they_go_with_a_deleted_job(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_many(engine, 3)
            ended, free, other = await lease_some(engine, 3)
            for each in (ended, free, other):
                await say(engine, each, "hello")
            await ack(engine, ended)
            await nack(engine, free, retry_after=DAY)
            await engine.delete([ended.job.id, free.job.id, other.job.id])
            assert await said(engine, ended) == []
            assert await said(engine, free) == []
            assert await said(engine, other) == [(1, "hello")], "a running job is not deleted, nor is its log"

    async def test_they_stay_and_go_with_a_pruned_job(self, harness: Harness) -> None:
        async with harness.subject(keeping(keep_succeeded=DAY, keep_dead=5 * DAY, keep_events=DAY)) as subject:
            engine = subject.engine
            await enqueue_many(engine, 3)
            short, long, live = await lease_some(engine, 3)
            for each in (short, long, live):
                await say(engine, each, "hello")
            await ack(engine, short)
            await nack(engine, long, retry=False)
            await nack(engine, live, retry_after=100 * DAY)
            await engine.prune()
            assert await said(engine, short) == [(1, "hello")]
            await subject.advance(3 * DAY)
            assert (await engine.prune()).jobs == 1
            assert await said(engine, short) == []
            assert await said(engine, long) == [(1, "hello")]
            await subject.advance(50 * DAY)
            assert (await engine.prune()).jobs == 1
            assert await said(engine, long) == []
            assert await said(engine, live) == [(1, "hello")], "a live job keeps its log however long it waits"
