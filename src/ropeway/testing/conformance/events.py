"""Events: one per transition, whole and in order, in each job's log and in the tail."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from ropeway.core.errors import BadCursor, PositionExpired
from ropeway.core.events import Attempt, Event, attempt_history
from ropeway.core.outcome import Lost, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.states import EventName, State
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Engine
from ropeway.testing.conformance.kit import (
    BOOM,
    DAY,
    OTHER_TENANT,
    ack,
    check_log,
    enqueue_many,
    enqueue_one,
    last_event,
    lease_one,
    lease_some,
    lose,
    nack,
    release,
    settle,
    snooze,
    worker,
)
from ropeway.testing.conformance.subject import TEST_RULES, Harness

_BOOM: Mapping[str, Any] = {
    "type": "ValueError",
    "message": "boom",
    "traceback": BOOM.traceback,
    "truncated": False,
    "sanitized": False,
}


class TestLog:
    async def test_an_event_tells_who_what_where_and_when(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, type="send", queue="mail", tenant=OTHER_TENANT)
            began = await engine.now()
            await subject.advance(2)
            await lease_one(engine, "mail", by=worker("w7"), tenant=OTHER_TENANT)
            first, second = await engine.events_of(id, tenant=OTHER_TENANT)
            assert msgspec.structs.replace(first, data={}) == Event(
                EventName.ENQUEUED, OTHER_TENANT, id, 1, began, "send", "mail", State.QUEUED, 0
            )
            assert second == Event(
                EventName.STARTED,
                OTHER_TENANT,
                id,
                2,
                began + timedelta(seconds=2),
                "send",
                "mail",
                State.RUNNING,
                1,
                "w7",
                {},
            )

    async def test_what_each_event_adds(self, harness: Harness) -> None:
        """`data` of every event, as http.md §6 promises it."""
        async with harness.subject() as subject:
            engine = subject.engine
            now = await engine.now()
            id = await enqueue_one(engine, delay=10, priority=3)
            assert await _last(engine, id) == (
                EventName.ENQUEUED,
                {"run_at": _z(now + timedelta(seconds=10)), "priority": 3},
            )
            await engine.reschedule(id, delay=0)
            assert await _last(engine, id) == (EventName.RESCHEDULED, {"run_at": _z(now)})
            leased = await lease_one(engine)
            assert await _last(engine, id) == (EventName.STARTED, {})
            await release(engine, leased)
            assert await _last(engine, id) == (EventName.RELEASED, {})
            await snooze(engine, await lease_one(engine), 5.0)
            assert await _last(engine, id) == (EventName.SNOOZED, {"run_at": _z(now + timedelta(seconds=5))})
            await subject.advance(5)
            await nack(engine, await lease_one(engine), retry_after=1.5)
            assert await _last(engine, id) == (EventName.FAILED, {"error": _BOOM, "retry_in_ms": 1_500})
            await subject.advance(1.5)
            await settle(engine, await lease_one(engine), Lost("crashed", exit_code=-11, signal=11))
            assert await _last(engine, id) == (
                EventName.RECLAIMED,
                {"cause": "crashed", "exit_code": -11, "signal": 11},
            )
            await nack(engine, await lease_one(engine), retry=False)
            assert await _last(engine, id) == (EventName.DLQ, {"error": _BOOM, "reason": "rejected"})
            await engine.redrive([id], by="ada")
            assert await _last(engine, id) == (EventName.RETRIED, {"by": "ada"})
            leased = await lease_one(engine)
            await engine.cancel([id])
            assert await _last(engine, id) == (EventName.CANCELLED, {"reason": "requested"})
            await engine.redrive([id])
            assert await _last(engine, id) == (EventName.RETRIED, {})
            leased = await lease_one(engine)
            await subject.advance(0.25)
            await ack(engine, leased, b"1")
            assert await _last(engine, id) == (EventName.COMPLETED, {"duration_ms": 250})
            await check_log(engine, id)

    async def test_a_death_by_loss_tells_its_cause(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, max_attempts=1)
            await lease_one(engine, lease_seconds=30)
            await subject.advance(30)
            await engine.rescue()
            assert await _last(engine, id) == (EventName.DLQ, {"reason": "max_attempts", "cause": "expired"})

    async def test_a_snooze_that_is_due_at_once_was_still_a_snooze(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            answer = await settle(engine, await lease_one(engine), Snoozed(delay=0.0))
            assert answer.state is (await last_event(engine, id)).state is State.SCHEDULED

    async def test_events_name_the_worker_of_the_run_they_end(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            await release(engine, await lease_one(engine, by=worker("w1")))
            await lose(engine, await lease_one(engine, by=worker("w2")))
            await ack(engine, await lease_one(engine, by=worker("w3")))
            told = [(event.event, event.attempt, event.worker_id) for event in await engine.events_of(id)]
            assert told == [
                (EventName.ENQUEUED, 0, None),
                (EventName.STARTED, 1, "w1"),
                (EventName.RELEASED, 1, "w1"),
                (EventName.STARTED, 2, "w2"),
                (EventName.RECLAIMED, 2, "w2"),
                (EventName.STARTED, 3, "w3"),
                (EventName.COMPLETED, 3, "w3"),
            ]

    async def test_an_error_in_the_log_is_whole(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            error = JobError("a.B", "é \\ \" ' 日本 \n", None)
            await nack(engine, await lease_one(engine), error=error)
            assert (await last_event(engine, id)).data["error"] == msgspec.to_builtins(error)

    async def test_an_unknown_job_has_no_events(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            assert await engine.events_of(id, tenant=OTHER_TENANT) == []


class TestHistory:
    async def test_the_log_gives_every_attempt_back(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            began = await engine.now()
            id = await enqueue_one(engine)

            async def run(name: str) -> Any:
                leased = await lease_one(engine, by=worker(name))
                await subject.advance(1)
                return leased

            await nack(engine, await run("w1"), retry_after=2.0)
            await subject.advance(2)
            await release(engine, await run("w2"))
            await settle(engine, await run("w3"), Lost("crashed", exit_code=137, signal=9))
            leased = await lease_one(engine, by=worker("w4"), lease_seconds=30)
            await subject.advance(30)
            await engine.rescue()
            await snooze(engine, await run("w5"), 0.0)
            await run("w6")
            await engine.cancel([id])
            await engine.redrive([id])
            await ack(engine, await run("w7"))

            def at(seconds: float) -> Any:
                return began + timedelta(seconds=seconds)

            assert leased.lease.attempt == 4
            assert attempt_history(await engine.events_of(id)) == [
                Attempt(1, at(0), "w1", at(1), "failed", BOOM, retry_in_ms=2_000),
                Attempt(2, at(3), "w2", at(4), "released"),
                Attempt(3, at(4), "w3", at(5), "crashed", exit_code=137, signal=9),
                Attempt(4, at(5), "w4", at(35), "lost"),
                Attempt(5, at(35), "w5", at(36), "snoozed"),
                Attempt(6, at(36), "w6", at(37), "cancelled"),
                Attempt(7, at(37), "w7", at(38), "succeeded"),
            ]


class TestTail:
    async def test_pages_tell_everything_once_and_in_order_per_job(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            seen: list[Event] = []
            position: str | None = None
            for round in range(6):
                await enqueue_many(engine, 4)
                for number, leased in enumerate(await lease_some(engine, 3)):
                    if number == round % 3:
                        await nack(engine, leased, retry=False)
                    else:
                        await ack(engine, leased)
                page = await engine.tail(position, limit=7)  # slower than the log grows
                assert len(page.events) <= 7
                seen += page.events
                position = page.position
            seen += await _rest(engine, position, limit=7)
            told = [(event.job_id, event.seq) for event in seen]
            assert len(set(told)) == len(told), "an event was told twice"
            by_job: dict[UUID, list[Event]] = {}
            for event in seen:
                by_job.setdefault(event.job_id, []).append(event)
            assert len(by_job) == 24
            for id, events in by_job.items():
                assert events == await engine.events_of(id), "the tail tells another story than the log"

    async def test_every_kind_of_event_is_told(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            ids = await enqueue_many(engine, 7)
            acked, failed, snoozed, released, lost, dead, cancelled = await lease_some(engine, 7)
            await ack(engine, acked)
            await nack(engine, failed)
            await snooze(engine, snoozed)
            await release(engine, released)
            await lose(engine, lost)
            await nack(engine, dead, retry=False)
            await engine.cancel([cancelled.job.id])
            await engine.redrive([dead.job.id])
            await engine.reschedule(snoozed.job.id, delay=1)
            seen = await _rest(engine, None, limit=5)
            assert {event.event for event in seen} == set(EventName)
            for id in ids:
                told = [event for event in seen if event.job_id == id]
                assert told == await engine.events_of(id), "the tail tells another story than the log"

    async def test_the_end_is_told_and_gone_on_from(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            assert (await engine.tail()).events == []
            await enqueue_one(engine)
            position = await engine.tail_position()
            assert (await engine.tail(position)).events == []
            id = await enqueue_one(engine)
            page = await engine.tail(position)
            assert [event.job_id for event in page.events] == [id]
            again = await engine.tail(position)
            assert [event.job_id for event in again.events] == [id], "a position can be read from again"
            assert (await engine.tail(page.position)).events == []

    async def test_the_newest_events_are_told_and_gone_on_from(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            nothing = await engine.newest_events()
            assert nothing.events == []
            ids = [await enqueue_one(engine) for _ in range(5)]
            assert [event.job_id for event in (await engine.tail(nothing.position)).events] == ids
            page = await engine.newest_events(limit=3)
            assert [event.job_id for event in page.events] == ids[-3:]
            assert (await engine.tail(page.position)).events == []
            later = await enqueue_one(engine)
            assert [event.job_id for event in (await engine.tail(page.position)).events] == [later]
            whole = await engine.newest_events(limit=100)
            assert whole.events == await _rest(engine, None, limit=100)

    async def test_the_newest_events_are_those_of_the_tenant(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            mine = await enqueue_one(engine)
            others = [await enqueue_one(engine, tenant=OTHER_TENANT) for _ in range(2)]
            assert [event.job_id for event in (await engine.newest_events(tenant="default")).events] == [mine]
            page = await engine.newest_events(limit=2, tenant=OTHER_TENANT)
            assert [event.job_id for event in page.events] == others

    async def test_a_tenant_sees_its_own_events_only(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            mine: list[UUID] = []
            for _ in range(5):
                mine.append(await enqueue_one(engine))
                await enqueue_many(engine, 3, tenant=OTHER_TENANT)
            seen: list[Event] = []
            position: str | None = None
            for _ in range(30):
                page = await engine.tail(position, limit=2, tenant="default")
                seen += page.events
                position = page.position
            assert sorted(event.job_id for event in seen) == sorted(mine)
            everyone = await _rest(engine, None, limit=7)
            if Capability.TENANCY in harness.capabilities:
                assert len(everyone) == 20
            else:
                assert len(everyone) == 5, "without a tenant it is all that may be seen"

    async def test_a_made_up_position_is_refused(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            await enqueue_one(subject.engine)
            for position in ("", "x", "-1", "' OR 1=1 --", "\0", "٣", "9" * 100):
                with pytest.raises(BadCursor):
                    await subject.engine.tail(position)

    async def test_a_position_before_the_oldest_kept_event_has_expired(self, harness: Harness) -> None:
        rules = msgspec.structs.replace(TEST_RULES, keep_dead=DAY, keep_cancelled=DAY, keep_events=DAY)
        async with harness.subject(rules) as subject:
            engine = subject.engine
            await enqueue_one(engine)
            position = (await engine.tail()).position
            await enqueue_one(engine)
            await subject.advance(10 * DAY)
            await engine.prune()
            kept = await enqueue_one(engine)
            with pytest.raises(PositionExpired):
                await engine.tail(position)
            page = await engine.tail()
            assert [event.job_id for event in page.events] == [kept], "from the oldest kept event it goes on"


async def _rest(engine: Engine, position: str | None, *, limit: int) -> list[Event]:
    """Everything after a position, page by page."""
    seen: list[Event] = []
    while True:
        page = await engine.tail(position, limit=limit)
        if not page.events:
            return seen
        seen += page.events
        position = page.position


async def _last(engine: Engine, id: UUID) -> tuple[EventName, dict[str, Any]]:
    event = await last_event(engine, id)
    return event.event, dict(event.data)


def _z(at: Any) -> str:
    """A time as every face writes it."""
    return str(at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
