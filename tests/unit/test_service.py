"""Use cases over an open engine, on the memory engine with a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from ropeway.core.errors import BadCursor, ConfigurationError, FieldError, JobEnded, NotFound, Unavailable
from ropeway.core.events import EventPage
from ropeway.core.fleet import WorkerInfo
from ropeway.core.job import NewJob, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.query import JobFilter, QueueStats
from ropeway.core.schedule import NewSchedule
from ropeway.core.states import EventName, State
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Changed
from ropeway.runtime import ids
from ropeway.runtime.clock import ManualClock
from ropeway.service import names
from ropeway.service.dead import DeadJobs, Retried
from ropeway.service.events import Events
from ropeway.service.fleet import Fleet
from ropeway.service.jobs import Jobs
from ropeway.service.names import Names
from ropeway.service.queues import Queues
from ropeway.service.schedules import Schedules
from ropeway.testing.conformance.kit import ack, enqueue_many, enqueue_one, lease_one, lease_some, nack, state_of


@asynccontextmanager
async def memory() -> AsyncIterator[tuple[MemoryEngine, ManualClock]]:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        yield engine, clock


async def die(engine: MemoryEngine, number: int = 1, **fields: Any) -> list[UUID]:
    """Dead jobs."""
    made = await enqueue_many(engine, number, max_attempts=1, **fields)
    for leased in await lease_some(engine, number, fields.get("queue", "default")):
        await nack(engine, leased)
    return made


# ── jobs ──


async def test_a_job_goes_in_and_is_looked_at() -> None:
    async with memory() as (engine, _):
        jobs = Jobs(engine)
        answer = await jobs.enqueue(NewJob("t", idempotency_key="k"))
        again = await jobs.enqueue(NewJob("t", idempotency_key="k"))
        assert (again.id, again.deduplicated) == (answer.id, True)
        assert (await jobs.get(answer.id)).type == "t"
        with pytest.raises(NotFound, match="no job"):
            await Jobs(engine, tenant="other").get(answer.id)


async def test_the_detail_has_attempts_events_and_every_log_line() -> None:
    async with memory() as (engine, _):
        id = await enqueue_one(engine)
        leased = await lease_one(engine)
        for start in range(0, 700, 100):
            await engine.log([(leased.lease, LogLine(f"line {start + n}")) for n in range(100)])
        await nack(engine, leased, retry_after=0.0)
        await ack(engine, await lease_one(engine), b"1")
        detail = await Jobs(engine).detail(id)
        assert [attempt.outcome for attempt in detail.attempts] == ["failed", "succeeded"]
        assert [event.seq for event in detail.events] == [1, 2, 3, 4, 5]
        assert [line.n for line in detail.logs] == list(range(1, 701))
        assert detail.logs[-1].message == "line 699"
        assert [line.n for line in await Jobs(engine).logs(id, after=698)] == [699, 700]


async def test_pages_stop_at_the_limit_or_at_the_end() -> None:
    async with memory() as (engine, _):
        made = [*await enqueue_many(engine, 600), *await enqueue_many(engine, 600)]
        jobs = Jobs(engine)
        for limit in (1, 500, 501, 1200, 1201, None):
            found = [job.id async for page in jobs.pages(order="oldest", limit=limit) for job in page.jobs]
            assert found == made[:limit], limit
        pages = [page async for page in jobs.pages(JobFilter(queue="nowhere"))]
        assert [(page.jobs, page.next) for page in pages] == [([], None)]
        last = [page async for page in jobs.pages(order="oldest", limit=700)][-1]
        rest = [job.id async for page in jobs.pages(order="oldest", after=last.next) for job in page.jobs]
        assert rest == made[700:]


async def test_a_job_is_found_by_the_beginning_of_its_id() -> None:
    async with memory() as (engine, _):
        jobs = Jobs(engine)
        first, second = await enqueue_many(engine, 2)
        theirs = await enqueue_one(engine, tenant="other")
        for id in (first, second):
            text = str(id)
            for start in (text, text[:-1], text[:18], text.replace("-", "")[:20], text[:19].upper()):
                assert await jobs.starting_with(start) == id, start
        with pytest.raises(NotFound, match="no job whose id starts with"):
            await jobs.starting_with(str(theirs)[:30])
        with pytest.raises(FieldError, match=f"more than one job's id starts with {str(first)[:13]}") as caught:
            await jobs.starting_with(str(first)[:13])
        assert str(first) in str(caught.value)
        assert str(second) in str(caught.value)


async def test_a_whole_id_is_taken_as_it_is() -> None:
    async with memory() as (engine, _):
        unknown = ids.uuid7()
        assert await Jobs(engine).starting_with(str(unknown)) == unknown


@pytest.mark.parametrize("text", ["", "xyz", "019", "0" * 33, "01a1-", "../etc", "0198c0de 1"])
async def test_what_cannot_begin_an_id(text: str) -> None:
    async with memory() as (engine, _):
        with pytest.raises(FieldError) as caught:
            await Jobs(engine).starting_with(text)
        assert caught.value.code == "invalid_id"


async def test_the_lowest_and_the_highest_beginnings_are_no_edge() -> None:
    async with memory() as (engine, _):
        await enqueue_one(engine)
        for start in ("000000", "ffffff"):
            with pytest.raises(NotFound):
                await Jobs(engine).starting_with(start)


async def test_each_of_several_jobs_has_its_own_answer() -> None:
    async with memory() as (engine, _):
        live, ended = await enqueue_many(engine, 2)
        await engine.cancel([ended])
        unknown = ids.uuid7()
        first, second, third = await Jobs(engine).cancel([live, ended, unknown])
        assert first == Changed(live, State.QUEUED, State.CANCELLED)
        assert isinstance(second, JobEnded)
        assert isinstance(third, NotFound)
        (again,) = await Jobs(engine).retry([live], by="someone")
        assert again == Changed(live, State.CANCELLED, State.QUEUED)
        assert (await engine.events_of(live))[-1].data["by"] == "someone"


async def test_waiting_ends_with_the_job_or_with_patience() -> None:
    async with memory() as (engine, _):
        jobs = Jobs(engine)
        id = await enqueue_one(engine)
        assert (await jobs.until_ended(id, timeout=0)).state is State.QUEUED
        waiting = asyncio.create_task(jobs.until_ended(id))
        await ack(engine, await lease_one(engine), b"42")
        ended = await waiting
        assert (ended.state, ended.result) == (State.SUCCEEDED, b"42")
        with pytest.raises(NotFound):
            await jobs.until_ended(ids.uuid7(), timeout=1)


# ── events ──


def not_away(error: Exception) -> None:
    raise AssertionError(f"the store was never away: {error}")


async def test_the_log_is_followed_from_a_position_on() -> None:
    async with memory() as (engine, _):
        events = Events(engine, pause=0.001)
        await enqueue_one(engine)
        position = await events.now()
        second = await enqueue_one(engine)
        await enqueue_one(engine, tenant="other")
        pages = events.follow(position, away=not_away)
        page = await anext(pages)
        assert [event.job_id for event in page.events] == [second]
        assert (await anext(pages)).events == []
        third = await enqueue_one(engine)
        async for page in pages:
            if page.events:
                assert [event.job_id for event in page.events] == [third]
                break
        await pages.aclose()
        everything = await anext(events.follow(None, away=not_away))
        assert len(everything.events) == 3


class Flickering:
    """A store that is away now and then."""

    def __init__(self, engine: MemoryEngine, outages: list[Exception | None]) -> None:
        self._engine = engine
        self._outages = outages

    async def tail(self, position: str | None, **how: Any) -> EventPage:
        if self._outages and (error := self._outages.pop(0)) is not None:
            raise error
        return await self._engine.tail(position, **how)


async def test_a_store_that_goes_away_is_waited_for_and_told_once_per_outage() -> None:
    async with memory() as (engine, _):
        id = await enqueue_one(engine)
        away, told = Unavailable("gone"), []
        events = Events(Flickering(engine, [away, away, None, away]), pause=0.001)  # type: ignore[arg-type]
        pages = events.follow(None, away=told.append)
        assert [event.job_id for event in (await anext(pages)).events] == [id]
        assert told == [away]
        assert (await anext(pages)).events == []
        assert told == [away, away]


async def test_a_store_that_is_set_up_wrongly_is_not_waited_for() -> None:
    async with memory() as (engine, _):
        wrong = ConfigurationError("no such schema")
        events = Events(Flickering(engine, [wrong]), pause=0.001)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="no such schema"):
            await anext(events.follow(None, away=not_away))
        with pytest.raises(BadCursor):
            await anext(Events(engine).follow("nonsense", away=not_away))


async def test_a_job_is_followed_to_its_end() -> None:
    async with memory() as (engine, _):
        id = await enqueue_one(engine)
        await enqueue_one(engine, queue="other")
        news = Events(engine, pause=0.001).follow_job(id, away=not_away)
        first = await anext(news)
        assert [event.event for event in first.events] == [EventName.ENQUEUED]
        leased = await lease_one(engine)
        await engine.log([(leased.lease, LogLine("a")), (leased.lease, LogLine("b"))])
        await engine.progress([(leased.lease, Progress(1, 2))])
        second = await anext(news)
        assert [event.event for event in second.events] == [EventName.STARTED]
        assert [line.message for line in second.logs] == ["a", "b"]
        assert second.progress is not None
        assert (second.progress.done, second.ended) == (1, False)
        await engine.log([(leased.lease, LogLine("c"))])
        await ack(engine, leased)
        third = await anext(news)
        assert [line.message for line in third.logs] == ["c"]
        assert ([event.event for event in third.events], third.ended) == ([EventName.COMPLETED], True)
        with pytest.raises(StopAsyncIteration):
            await anext(news)


# ── queues, dead jobs, schedules, workers ──


async def test_a_queue_is_paused_and_resumed() -> None:
    async with memory() as (engine, _):
        queues = Queues(engine)
        await enqueue_one(engine, queue="mail")
        await queues.pause("mail")
        assert (await queues.get("mail")).paused
        assert await lease_some(engine, 1, "mail") == []
        await queues.resume("mail")
        stats = await queues.get("mail")
        assert (stats.paused, stats.counts) == (False, {State.QUEUED: 1})
        assert [stats.queue for stats in await queues.all()] == ["mail"]


async def test_a_queue_nobody_has_heard_of_is_paused_only_on_purpose() -> None:
    async with memory() as (engine, _):
        queues = Queues(engine)
        await enqueue_one(engine, queue="mail")
        with pytest.raises(NotFound) as caught:
            await queues.pause("mial")
        assert str(caught.value) == "no queue 'mial' (did you mean mail?)"
        await queues.pause("mial", unknown=True)
        assert (await queues.stats("mial")).paused
        await queues.resume("mial")
        assert await queues.stats("mial") == QueueStats("mial", False, {})
        with pytest.raises(NotFound, match="queues list shows them"):
            await queues.resume("zzz")
        with pytest.raises(FieldError):
            await queues.pause("not a name", unknown=True)


async def test_dead_jobs_are_retried_by_filter_in_steps() -> None:
    async with memory() as (engine, clock):
        dead = DeadJobs(engine)
        mail = await die(engine, 1000, queue="mail") + await die(engine, 500, queue="mail")
        (other,) = await die(engine, queue="other")
        clock.advance(1)
        where = JobFilter(queue="mail")
        assert (await dead.count(where)).number == 1500
        assert await dead.retry_where(where, dry_run=True) == Retried(1500, 0, dry_run=True)
        assert await dead.retry_where(where, limit=5, dry_run=True) == Retried(5, 0, more=True, dry_run=True)
        assert await dead.retry_where(where, limit=5, by="me") == Retried(5, 5, more=True)
        assert await dead.retry_where(where) == Retried(1495, 1495)
        assert {await state_of(engine, id) for id in mail} == {State.QUEUED}
        assert await state_of(engine, other) is State.DEAD
        assert await dead.retry_where(where) == Retried(0, 0)
        with pytest.raises(FieldError):
            await dead.retry_where(where, limit=0)


async def test_only_the_dead_are_retried_whatever_the_filter_says() -> None:
    async with memory() as (engine, _):
        (dead_one,) = await die(engine)
        cancelled = await enqueue_one(engine)
        await engine.cancel([cancelled])
        where = JobFilter(states=frozenset({State.CANCELLED, State.DEAD}))
        assert (await DeadJobs(engine).retry_where(where)).retried == 1
        assert await state_of(engine, dead_one) is State.QUEUED
        assert await state_of(engine, cancelled) is State.CANCELLED


async def test_a_schedule_is_paused_resumed_and_run() -> None:
    async with memory() as (engine, _):
        schedules = Schedules(engine)
        await engine.put_schedule(NewSchedule("nightly", "0 3 * * *", "report", payload=b'{"a":1}'))
        assert (await schedules.pause("nightly")).spec.paused
        assert schedules.coming(await schedules.get("nightly"), 3) == []
        resumed = await schedules.resume("nightly")
        first, second, third = schedules.coming(resumed, 3)
        assert first == resumed.next_run_at
        assert (second - first, third - second) == (timedelta(days=1), timedelta(days=1))
        job = await schedules.run("nightly")
        assert (job.type, job.payload) == ("report", b'{"a":1}')
        for verb in (schedules.get, schedules.pause, schedules.resume, schedules.run):
            with pytest.raises(NotFound) as caught:
                await verb("nigthly")
            assert str(caught.value) == "no schedule 'nigthly' (did you mean nightly?)"


async def test_names_come_from_jobs_and_from_workers() -> None:
    async with memory() as (engine, _):
        await enqueue_one(engine, type="email.send", queue="mail")
        await enqueue_one(engine, type="hidden", queue="hidden", tenant="other")
        await engine.report_worker(WorkerInfo("w", "h", 1, "0", ("default",), ("report",), 1, 0))
        known = Names(engine)
        assert await known.queues() == ["default", "mail"]
        assert await known.types() == ["email.send", "report"]
        assert [worker.id for worker in await Fleet(engine).workers()] == ["w"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("emial.send", "email.send"),
        ("send", "email.send"),
        ("email.send", None),
        ("se", None),
        ("quite-other", None),
        ("e", None),
    ],
)
def test_the_name_that_was_meant(word: str, meant: str | None) -> None:
    assert names.near(word, ["email.send", "report"]) == meant
