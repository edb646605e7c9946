"""Inspecting: jobs, lists and their pages, counts, queues, progress."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import inf, nan
from typing import Any
from uuid import UUID

import pytest

from ropeway.core.errors import BadCursor, FieldError, JobEnded, LeaseLost
from ropeway.core.job import Job, Progress
from ropeway.core.payload import JobError
from ropeway.core.query import Count, JobFilter, Order, QueueStats
from ropeway.core.states import DeadReason, State
from ropeway.engines.protocol import Engine
from ropeway.runtime import ids
from ropeway.testing.conformance.kit import (
    DAY,
    HOUR,
    OTHER_TENANT,
    REACHABLE,
    ack,
    changed,
    drive_to,
    enqueue_many,
    enqueue_one,
    forged,
    job_of,
    lease_one,
    lease_some,
    nack,
    nothing_changes,
    refused,
    release,
    snooze,
    worker,
)
from ropeway.testing.conformance.subject import Harness


async def found(engine: Engine, tenant: str = "default", **where: Any) -> set[UUID]:
    """The ids that a filter finds; `find` and `count` must agree on them."""
    page = await engine.find(JobFilter(**where), limit=500, tenant=tenant)
    number = await engine.count(JobFilter(**where), tenant=tenant)
    assert number == Count(len(page.jobs)), "find and count disagree"
    return {job.id for job in page.jobs}


class TestGet:
    async def test_jobs_come_in_the_order_asked_for(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            live = await enqueue_one(engine, queue="a")
            ended = (await drive_to(subject, State.SUCCEEDED)).id
            theirs = await enqueue_one(engine, tenant=OTHER_TENANT)
            asked = [ended, ids.uuid7(), live, theirs, ended]
            jobs = await engine.get(asked)
            assert [job and job.id for job in jobs] == [ended, None, live, None, ended]

    async def test_a_list_shows_the_same_job_as_a_look_at_it(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            for state in REACHABLE:
                await drive_to(subject, state, queue=state.value, tags=("t",), headers={"h": "v"})
            jobs = (await engine.find()).jobs
            assert {job.state for job in jobs} == set(REACHABLE)
            assert await engine.get([job.id for job in jobs]) == jobs

    async def test_who_holds_a_job_and_until_when(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            now = await engine.now()
            leased = await lease_one(engine, by=worker("host-1/77"), lease_seconds=40)
            job = await job_of(engine, id)
            assert (job.locked_by, job.locked_until) == ("host-1/77", now + timedelta(seconds=40))
            await release(engine, leased)
            job = await job_of(engine, id)
            assert (job.locked_by, job.locked_until) == (None, None)


class TestFind:
    async def test_by_state(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            driven = {state: (await drive_to(subject, state, queue=state.value)).id for state in REACHABLE}
            for state in REACHABLE:
                assert await found(engine, states=frozenset({state})) == {driven[state]}
                pair = frozenset({state, State.SUCCEEDED})
                assert await found(engine, states=pair) == {driven[one] for one in pair}
            assert await found(engine, states=frozenset({State.WAITING})) == set()

    async def test_a_job_that_became_due_is_found_as_queued(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            scheduled = await enqueue_one(engine, delay=10)
            retrying = await enqueue_one(engine)
            await nack(engine, await lease_one(engine), retry_after=10.0)
            assert await found(engine, states=frozenset({State.QUEUED})) == set()
            await subject.advance(10)
            assert await found(engine, states=frozenset({State.QUEUED})) == {scheduled, retrying}
            assert await found(engine, states=frozenset({State.SCHEDULED, State.RETRYING})) == set()

    async def test_by_queue_type_and_key(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            a = await enqueue_one(engine, queue="a", type="x", idempotency_key="k1")
            b = await enqueue_one(engine, queue="b", type="x", idempotency_key="k2")
            c = await enqueue_one(engine, queue="b", type="y")
            await ack(engine, await lease_one(engine, "a"))
            assert await found(engine) == {a, b, c}
            assert await found(engine, queue="b") == {b, c}
            assert await found(engine, type="x") == {a, b}
            assert await found(engine, queue="b", type="x") == {b}
            assert await found(engine, idempotency_key="k1") == {a}
            assert await found(engine, idempotency_key="k") == set()
            assert await found(engine, queue="nowhere") == set()

    async def test_by_a_key_also_those_that_had_it_before(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            made: list[UUID] = []
            for _ in range(3):
                made.append(await enqueue_one(engine, idempotency_key="k", key_window=DAY))
                await enqueue_one(engine, queue="other", idempotency_key=f"k{len(made)}")
                await ack(engine, await lease_one(engine))
                await subject.advance(2 * DAY)
            assert await found(engine, idempotency_key="k") == set(made)
            assert await found(engine, idempotency_key="k2") != set()
            both: list[tuple[Order, list[UUID]]] = [("newest", made[::-1]), ("oldest", made)]
            for order, expected in both:
                page = await engine.find(JobFilter(idempotency_key="k"), order=order, limit=2)
                assert [job.id for job in page.jobs] == expected[:2]
                page = await engine.find(JobFilter(idempotency_key="k"), order=order, limit=2, after=page.next)
                assert [job.id for job in page.jobs] == expected[2:]

    async def test_by_priority_of_live_and_ended_jobs(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            urgent = await enqueue_one(engine, queue="a", priority=1)
            usual = await enqueue_one(engine, queue="a", priority=5)
            await drive_to(subject, State.DEAD, queue="b", priority=1)
            assert await found(engine, priority=1, queue="a") == {urgent}
            assert await found(engine, priority=5) == {usual}
            assert len(await found(engine, priority=1, states=frozenset({State.DEAD}))) == 1
            assert await found(engine, priority=9) == set()

    async def test_by_tag_of_live_and_ended_jobs(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            a = await enqueue_one(engine, queue="a", tags=("nightly", "it's"))
            b = await enqueue_one(engine, queue="b", tags=("nightly",))
            await enqueue_one(engine, queue="b")
            await ack(engine, await lease_one(engine, "a"))
            assert await found(engine, tag="nightly") == {a, b}
            assert await found(engine, tag="it's") == {a}
            assert await found(engine, tag="nightly", queue="b") == {b}
            assert await found(engine, tag="night") == set()

    async def test_by_worker(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 3)
            await lease_one(engine, by=worker("w1"))
            second = await lease_one(engine, by=worker("w2"))
            assert await found(engine, worker_id="w1") == {wanted[0]}
            assert await found(engine, worker_id="w2") == {wanted[1]}
            await release(engine, second)
            assert await found(engine, worker_id="w2") == set()

    async def test_by_error_a_part_of_message_or_type_taken_literally(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            texts = ["100% full", "100x full", "a_b \\ c", "aXb", "Timeout 'here'"]
            wanted = await enqueue_many(engine, len(texts))
            for number, (leased, text) in enumerate(zip(await lease_some(engine), texts, strict=True)):
                error = JobError(f"app.E{number}", text)
                await nack(engine, leased, error=error, retry=number % 2 == 0, retry_after=HOUR)
            for part, hits in {
                "100%": {0},
                "100": {0, 1},
                "a_b": {2},
                "\\": {2},
                "Timeout": {4},
                "timeout": set(),
                "'here'": {4},
                "app.E1": {1},
                "app.": {0, 1, 2, 3, 4},
                "%": {0},
                "*": set(),
            }.items():
                assert await found(engine, error=part) == {wanted[n] for n in hits}, part

    async def test_by_reason_of_death(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 2, max_attempts=1)
            first, second = await lease_some(engine)
            await nack(engine, first)
            await nack(engine, second, retry=False)
            assert await found(engine, reason=DeadReason.MAX_ATTEMPTS) == {wanted[0]}
            assert await found(engine, reason=DeadReason.REJECTED) == {wanted[1]}
            assert await found(engine, reason=DeadReason.CRASH_LIMIT) == set()

    async def test_by_times_after_is_included_before_is_not(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            begin = await engine.now()
            wanted = []
            for _ in range(3):
                wanted.append(await enqueue_one(engine))
                await subject.advance(10)
                await ack(engine, await lease_one(engine))
            unfinished = await enqueue_one(engine)

            def at(seconds: float) -> datetime:
                return begin + timedelta(seconds=seconds)

            assert await found(engine, created_after=at(10)) == {*wanted[1:], unfinished}
            assert await found(engine, created_before=at(10)) == {wanted[0]}
            assert await found(engine, created_after=at(10), created_before=at(20)) == {wanted[1]}
            assert await found(engine, finished_after=at(20)) == set(wanted[1:])
            assert await found(engine, finished_before=at(20)) == {wanted[0]}
            assert await found(engine, finished_after=at(10), finished_before=at(30)) == set(wanted[:2])

    async def test_tenants_see_their_own(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            mine = await enqueue_one(engine)
            theirs = await enqueue_one(engine, tenant=OTHER_TENANT)
            await ack_theirs(engine)
            assert await found(engine) == {mine}
            assert await found(engine, OTHER_TENANT) == {theirs}
            assert await found(engine, "third") == set()
            assert await engine.queue_stats(tenant="third") == []
            assert await engine.get([mine], tenant=OTHER_TENANT) == [None]

    async def test_what_is_not_on_the_list_of_filters_is_refused(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            for limit in (0, -1, 501, True):
                with pytest.raises(FieldError):
                    await engine.find(limit=limit)
            bad: list[dict[str, Any]] = [
                {"queue": "a b"},
                {"type": "' OR 1=1"},
                {"error": "a\0b"},
                {"worker_id": ""},
                {"created_after": datetime(2026, 1, 1)},  # noqa: DTZ001 - that is what is wrong with it
            ]
            for where in bad:
                with pytest.raises(FieldError):
                    await engine.find(JobFilter(**where))


async def ack_theirs(engine: Engine) -> None:
    leased = await lease_one(engine, tenant=OTHER_TENANT)
    assert leased.job.tenant == OTHER_TENANT


class TestPages:
    @pytest.mark.parametrize("order", ["newest", "oldest"])
    async def test_pages_have_no_gaps_and_no_doubles_while_jobs_come(self, harness: Harness, order: Order) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 25)
            for leased in await lease_some(engine, 10):
                await ack(engine, leased)  # some have ended: a list reads both kinds as one
            seen: list[Job] = []
            after: str | None = None
            pages = 0
            while True:
                page = await engine.find(order=order, limit=7, after=after)
                seen += page.jobs
                pages += 1
                assert len(page.jobs) == 7 or page.next is None, "a page in the middle is full"
                if page.next is None:
                    break
                after = page.next
                if pages < 3:
                    await enqueue_many(engine, 2)
                    await ack(engine, await lease_one(engine))
            listed = [job.id for job in seen]
            assert listed == sorted(listed, reverse=order == "newest")
            assert len(set(listed)) == len(listed), "a job was listed twice"
            assert set(wanted) <= set(listed), "a job was left out"

    async def test_pages_by_death_newest_first_and_only_the_dead(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            dead = []
            for number in range(10):
                dead.append((await drive_to(subject, State.DEAD)).id)
                if number % 3:
                    await subject.advance(1)  # some die in the same instant
            await drive_to(subject, State.CANCELLED)
            await drive_to(subject, State.SUCCEEDED)
            seen: list[Job] = []
            after: str | None = None
            while True:
                page = await engine.find(order="died", limit=3, after=after)
                seen += page.jobs
                if page.next is None:
                    break
                after = page.next
                await drive_to(subject, State.DEAD)  # comes before everything already seen
                await subject.advance(1)
            deaths = [(job.dead_at, job.id) for job in seen]
            assert deaths == sorted(deaths, reverse=True)
            assert sorted(job.id for job in seen) == sorted(dead)

    async def test_a_page_that_ends_exactly_is_the_last(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_many(engine, 4)
            first = await engine.find(limit=2)
            assert first.next is not None
            second = await engine.find(limit=2, after=first.next)
            assert (len(second.jobs), second.next) == (2, None)
            assert (await engine.find(limit=4)).next is None

    async def test_a_filter_goes_on_over_pages(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            mail: list[UUID] = []
            for _ in range(5):
                mail += await enqueue_many(engine, 1, queue="mail")
                await enqueue_many(engine, 2, queue="noise")
            listed: list[UUID] = []
            after: str | None = None
            while True:
                page = await engine.find(JobFilter(queue="mail"), order="oldest", limit=2, after=after)
                listed += [job.id for job in page.jobs]
                if page.next is None:
                    break
                after = page.next
            assert sorted(listed) == sorted(mail)

    @pytest.mark.parametrize("order", ["newest", "oldest", "died"])
    async def test_a_made_up_position_is_refused(self, harness: Harness, order: Order) -> None:
        async with harness.subject() as subject:
            await drive_to(subject, State.DEAD)
            for position in ("", "x", "-1", "' OR 1=1 --", "\0", "9" * 100, "0-" + "g" * 32):
                with pytest.raises(BadCursor):
                    await subject.engine.find(order=order, after=position)


class TestCounts:
    async def test_a_count_stops_at_its_cap(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_many(engine, 3)
            assert await engine.count() == Count(3)
            assert await engine.count(cap=3) == Count(3)
            assert await engine.count(cap=2) == Count(2, capped=True)
            assert await engine.count(JobFilter(queue="other"), cap=2) == Count(0)

    async def test_queues_by_name_with_their_states(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            for state in REACHABLE:
                if state is not State.QUEUED:
                    await drive_to(subject, state, queue="all")
            await enqueue_many(engine, 3, queue="all")
            await enqueue_one(engine, queue="b")
            await enqueue_one(engine, queue="hidden", tenant=OTHER_TENANT)
            await engine.pause("b")
            await engine.pause("empty")
            await engine.pause("theirs", tenant=OTHER_TENANT)
            every = dict.fromkeys(REACHABLE, 1) | {State.QUEUED: 3}
            stats = await engine.queue_stats()
            assert [(one.queue, one.paused) for one in stats] == [("all", False), ("b", True), ("empty", True)]
            assert [_counted(one) for one in stats] == [every, {State.QUEUED: 1}, {}]
            assert [one.queue for one in await engine.queue_stats(["b", "nowhere"])] == ["b"]

    async def test_the_sum_over_states_is_what_was_accepted(self, harness: Harness) -> None:
        """C16."""
        async with harness.subject() as subject:
            engine = subject.engine
            for state in REACHABLE:
                await drive_to(subject, state, queue=state.value)
            stats = await engine.queue_stats()
            assert sum(sum(one.counts.values()) for one in stats) == len(REACHABLE)
            assert (await engine.count()).number == len(REACHABLE)

    async def test_stats_stop_at_their_cap(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_many(engine, 5)
            (stats,) = await engine.queue_stats(cap=3)
            assert (stats.counts[State.QUEUED], stats.counts_capped) == (3, True)
            assert stats.capped == {State.QUEUED}
            (stats,) = await engine.queue_stats(cap=5)
            assert (stats.counts[State.QUEUED], stats.counts_capped) == (5, False)

    async def test_only_the_states_beyond_the_cap_are_capped(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            for state in (State.RUNNING, State.SCHEDULED, State.RETRYING, State.SUCCEEDED, State.DEAD):
                await drive_to(subject, state)
            await enqueue_many(engine, 5)
            (stats,) = await engine.queue_stats(cap=2)
            exact = dict.fromkeys(REACHABLE, 1)
            del exact[State.CANCELLED]
            assert _counted(stats) == exact | {State.QUEUED: 2}
            assert stats.capped == {State.QUEUED}
            for _ in range(2):
                await drive_to(subject, State.DEAD, queue="b")
            await drive_to(subject, State.CANCELLED, queue="b")
            (stats,) = await engine.queue_stats(["b"], cap=1)
            assert _counted(stats) == {State.DEAD: 1, State.CANCELLED: 1}
            assert stats.capped == {State.DEAD}
            (stats,) = await engine.queue_stats(["b"], cap=2)
            assert _counted(stats) == {State.DEAD: 2, State.CANCELLED: 1}
            assert not stats.capped

    async def test_neither_what_is_due_nor_what_is_not_hides_the_other(self, harness: Harness) -> None:
        """More jobs than are looked at stand before them in line."""
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_many(engine, 9, priority=1, queue="later", delay=HOUR)
            await enqueue_one(engine, queue="later")
            await enqueue_many(engine, 9, priority=1, queue="now")
            await enqueue_one(engine, queue="now", delay=HOUR)
            later, now = await engine.queue_stats(cap=2)
            assert _counted(later) == {State.SCHEDULED: 2, State.QUEUED: 1}
            assert State.SCHEDULED in later.capped
            assert State.QUEUED not in later.capped
            assert _counted(now) == {State.SCHEDULED: 1, State.QUEUED: 2}
            assert now.capped == {State.QUEUED}

    async def test_the_oldest_age_is_of_jobs_that_could_run_now(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine, delay=HOUR)
            assert await _oldest_age(engine) is None
            await subject.advance(10)
            await enqueue_one(engine, priority=1)
            await subject.advance(10)
            await enqueue_one(engine)
            assert await _oldest_age(engine) == pytest.approx(10)
            await lease_one(engine)
            assert await _oldest_age(engine) == pytest.approx(0)
            await lease_one(engine)
            assert await _oldest_age(engine) is None

    async def test_the_oldest_age_counts_from_when_a_job_became_due(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, delay=HOUR)
            await subject.advance(HOUR + 7)
            assert await _oldest_age(engine) == pytest.approx(7)
            await nack(engine, await lease_one(engine), retry_after=2 * HOUR)
            await subject.advance(2 * HOUR - 1)
            assert await _oldest_age(engine) is None
            await subject.advance(4)
            assert await _oldest_age(engine) == pytest.approx(3)
            await snooze(engine, await lease_one(engine), HOUR)
            await subject.advance(HOUR + 2)
            assert await _oldest_age(engine) == pytest.approx(2)
            await nack(engine, await lease_one(engine), retry=False)
            await subject.advance(HOUR)
            changed((await engine.redrive([id]))[0])
            await subject.advance(5)
            assert await _oldest_age(engine) == pytest.approx(5)
            await engine.reschedule(id, delay=10.0)
            await subject.advance(11)
            assert await _oldest_age(engine) == pytest.approx(1)

    async def test_a_job_that_was_given_back_goes_on_waiting(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine)
            leased = await lease_one(engine)
            await subject.advance(10)
            await release(engine, leased)
            assert await _oldest_age(engine) == pytest.approx(10)

    async def test_the_oldest_is_found_behind_more_than_are_counted(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine, priority=9)
            await subject.advance(10)
            await enqueue_many(engine, 9, priority=1)
            await subject.advance(1)
            (stats,) = await engine.queue_stats(cap=2)
            assert stats.oldest_age_seconds == pytest.approx(11)


def _counted(stats: QueueStats) -> dict[State, int]:
    """States without jobs may be absent or 0."""
    return {state: number for state, number in stats.counts.items() if number}


async def _oldest_age(engine: Engine) -> float | None:
    (stats,) = await engine.queue_stats()
    return stats.oldest_age_seconds


class TestProgress:
    async def test_a_running_job_tells_how_far_it_is(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            events = await engine.events_of(id)
            await subject.advance(3)
            now = await engine.now()
            assert await engine.progress([(leased.lease, Progress(3, 10, "é third"))]) == [None]
            assert (await job_of(engine, id)).progress == Progress(3, 10, "é third", now)
            assert await engine.progress([(leased.lease, Progress(done=0.5))]) == [None]
            assert (await job_of(engine, id)).progress == Progress(0.5, None, None, now)
            assert await engine.events_of(id) == events, "progress is not a transition"

    async def test_a_bad_note_is_cleaned_not_refused(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            bad = Progress(nan, inf, "a\0\ud800" + "x" * 100_000)
            assert await engine.progress([(leased.lease, bad)]) == [None]
            kept = (await job_of(engine, id)).progress
            assert kept is not None
            assert (kept.done, kept.total) == (None, None)
            assert kept.message is not None
            assert kept.message.startswith("a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}x")
            assert len(kept.message) == 1_024

    async def test_only_the_current_ticket_may_tell(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 2)
            first, second = await lease_some(engine)
            await ack(engine, first)
            async with nothing_changes(engine, wanted[0]):
                answers = await engine.progress(
                    [(first.lease, Progress(1)), (second.lease, Progress(2)), (forged(second.lease), Progress(3))]
                )
            refused(answers[0], JobEnded)
            assert answers[1] is None
            refused(answers[2], LeaseLost)
            progress = (await job_of(engine, wanted[1])).progress
            assert progress is not None
            assert progress.done == 2

    async def test_progress_belongs_to_one_run(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            await engine.progress([(leased.lease, Progress(9, 10))])
            await nack(engine, leased, retry_after=0.0)
            assert (await job_of(engine, id)).progress is None
            leased = await lease_one(engine)
            assert leased.job.progress is None
            await engine.progress([(leased.lease, Progress(1, 10))])
            await ack(engine, leased)
            assert (await job_of(engine, id)).progress is None
