"""Schedules: recurring work, each instant fired once, whoever fires it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from ropeway.core import cron
from ropeway.core.errors import ConfigurationError, EngineError, FieldError, NameTaken, NotFound
from ropeway.core.retry import RetryPolicy
from ropeway.core.schedule import MAX_CATCH_UP, Fired, NewSchedule, Schedule
from ropeway.core.states import EventName, State
from ropeway.core.unique import Unique
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Engine
from ropeway.testing.conformance.kit import (
    HOUR,
    OTHER_TENANT,
    ack,
    advance_to,
    event_names,
    handles,
    job_of,
    lease_one,
    leased_ids,
)
from ropeway.testing.conformance.subject import Harness

#: What a schedule's jobs may be like, beyond the usual.
OPTIONS: dict[str, Any] = {
    "timeout": 90.5,
    "retry": RetryPolicy(base=1, cap=60.0, jitter=0.0),
    "unique": Unique(within=1800.0, states=frozenset({State.QUEUED, State.RUNNING})),
    "expires_in": 7200.0,
    "tags": ("nightly", "käse"),
    "headers": {"team": "billing", "x": ""},
}


def hourly(**fields: Any) -> NewSchedule:
    return NewSchedule(**{"name": "report", "cron": "0 * * * *", "type": "make-report", **fields})


async def the_schedule(engine: Engine, tenant: str = "default") -> Schedule:
    (schedule,) = await engine.schedules(tenant=tenant)
    return schedule


async def next_hour(engine: Engine) -> datetime:
    now = await engine.now()
    return now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)


class TestKeptSchedules:
    async def test_a_schedule_is_kept_as_declared(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            spec = hourly(
                tz="Europe/Paris",
                queue="reports",
                payload=b'{"n": 1.10, "x": []}',
                priority=2,
                max_attempts=7,
                missed="all",
                **OPTIONS,
            )
            put = await engine.put_schedule(spec)
            assert put == Schedule(spec, await next_hour(engine))
            assert await engine.schedules() == [put]
            assert await engine.schedules(tenant=OTHER_TENANT) == []

    async def test_schedules_are_listed_by_name(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            for name in ("b", "a", "c"):
                await engine.put_schedule(hourly(name=name))
            await engine.put_schedule(hourly(name="theirs"), tenant=OTHER_TENANT)
            assert [schedule.name for schedule in await engine.schedules()] == ["a", "b", "c"]

    async def test_a_name_is_taken_once(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            first = await engine.put_schedule(hourly(), replace=False)
            with pytest.raises(NameTaken):
                await engine.put_schedule(hourly(priority=1), replace=False)
            assert await engine.schedules() == [first]
            await engine.put_schedule(hourly(), replace=False, tenant=OTHER_TENANT)
            replaced = await engine.put_schedule(hourly(priority=1))
            assert replaced.spec.priority == 1
            assert await engine.schedules() == [replaced]

    async def test_a_replacement_keeps_the_next_time_unless_the_times_changed(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            first = await engine.put_schedule(hourly())
            await advance_to(subject, first.next_run_at + timedelta(seconds=5))
            same = await engine.put_schedule(hourly(priority=1))
            assert same.next_run_at == first.next_run_at, "a due instant must not be lost by a replacement"
            other = await engine.put_schedule(hourly(cron="30 * * * *"))
            assert other.next_run_at == first.next_run_at + timedelta(minutes=30)

    async def test_code_leaves_an_operators_change_alone_until_code_changes(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            declared = hourly(source="code")
            await engine.put_schedule(declared)
            operators = await engine.put_schedule(hourly(priority=1, paused=True))
            assert operators.spec.source == "code", "who declared it does not change"
            again = await engine.put_schedule(declared)
            assert (again.spec.priority, again.spec.paused) == (1, True)
            newer = await engine.put_schedule(hourly(source="code", queue="reports"))
            assert (newer.spec.priority, newer.spec.queue, newer.spec.paused) == (5, "reports", False)

    async def test_options_are_part_of_what_code_declares(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            declared = hourly(source="code", **OPTIONS)
            await engine.put_schedule(declared)
            await engine.put_schedule(hourly(timeout=5.0))
            assert (await engine.put_schedule(declared)).spec.timeout == 5.0, "code has not changed"
            newer = await engine.put_schedule(hourly(source="code", **{**OPTIONS, "timeout": 60.0}))
            assert newer.spec == hourly(source="code", **{**OPTIONS, "timeout": 60.0})
            assert await engine.schedules() == [newer]
            assert (await engine.pause_schedule("report", True)).spec.options() == newer.spec.options()

    async def test_code_leaves_an_operators_pause_alone(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.put_schedule(hourly(source="code"))
            await engine.pause_schedule("report", True)
            assert (await engine.put_schedule(hourly(source="code"))).spec.paused
            assert (await the_schedule(engine)).spec.paused

    async def test_what_does_not_exist_is_not_found(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.put_schedule(hourly(), tenant=OTHER_TENANT)
            for name in ("report", "nothing"):
                with pytest.raises(NotFound):
                    await engine.pause_schedule(name, True)
                with pytest.raises(NotFound):
                    await engine.delete_schedule(name)
                with pytest.raises(NotFound):
                    await engine.run_schedule(name)


class TestFiring:
    async def test_a_schedule_makes_its_job_when_it_is_due(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            due = (
                await engine.put_schedule(
                    hourly(queue="reports", payload=b"[1.10]", priority=3, max_attempts=2), tenant=OTHER_TENANT
                )
            ).next_run_at
            await advance_to(subject, due - timedelta(milliseconds=1))
            assert await engine.fire_due() == []
            await subject.advance(0.5)
            (fired,) = await engine.fire_due()
            assert fired == Fired(OTHER_TENANT, "report", due, fired.job_id)
            job = await job_of(engine, fired.job_id, tenant=OTHER_TENANT)
            assert (job.type, job.queue, job.priority, job.max_attempts) == ("make-report", "reports", 3, 2)
            assert (job.payload, job.state) == (b"[1.10]", State.QUEUED)
            assert job.headers["ropeway-schedule"] == "report"
            assert datetime.fromisoformat(job.headers["ropeway-scheduled-for"]) == due
            schedule = await the_schedule(engine, OTHER_TENANT)
            assert schedule.next_run_at == due + timedelta(hours=1)
            assert schedule.last_run_at == await engine.now()
            assert schedule.last_job_id == fired.job_id
            assert await engine.fire_due() == []
            assert await leased_ids(engine, 10, "reports", tenant=OTHER_TENANT) == [fired.job_id]

    async def test_its_jobs_are_as_it_says(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            due = (await engine.put_schedule(hourly(**OPTIONS))).next_run_at
            await advance_to(subject, due)
            (fired,) = await engine.fire_due()
            # The unique rule would answer with the first one.
            await engine.put_schedule(hourly(**{**OPTIONS, "unique": None}))
            now = await engine.now()
            for id in (fired.job_id, await engine.run_schedule("report")):
                job = await job_of(engine, id)
                assert (job.timeout, job.retry, job.tags) == (90.5, OPTIONS["retry"], OPTIONS["tags"])
                assert job.expires_at == now + timedelta(hours=2)
                assert OPTIONS["headers"].items() <= job.headers.items()
                assert job.headers["ropeway-schedule"] == "report"

    async def test_a_unique_schedule_makes_no_job_while_one_is_there(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            due = (await engine.put_schedule(hourly(unique=Unique(), missed="all"))).next_run_at
            await advance_to(subject, due + timedelta(hours=1))
            first, second = await engine.fire_due()
            assert second.job_id == first.job_id
            assert (first.deduplicated, second.deduplicated) == (False, True)
            assert (first.at, second.at) == (due, due + timedelta(hours=1))
            schedule = await the_schedule(engine)
            assert (schedule.next_run_at, schedule.last_job_id) == (due + timedelta(hours=2), first.job_id)
            assert await engine.run_schedule("report") == first.job_id
            assert (await engine.count()).number == 1
            assert await event_names(engine, first.job_id) == [EventName.ENQUEUED]
            await ack(engine, await lease_one(engine))
            await advance_to(subject, due + timedelta(hours=2))
            (third,) = await engine.fire_due()
            assert third.job_id != first.job_id
            assert not third.deduplicated
            assert await leased_ids(engine, 10, "default") == [third.job_id]

    async def test_many_schedulers_fire_an_instant_once(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engines = await handles(harness, subject, 4)
            for name in ("a", "b", "c"):
                due = (await subject.engine.put_schedule(hourly(name=name))).next_run_at
            for round in range(3):
                await advance_to(subject, due + timedelta(hours=round))
                answers = await asyncio.gather(*(engine.fire_due() for engine in engines * 2))
                fired = [one for answer in answers for one in answer]
                assert sorted(one.name for one in fired) == ["a", "b", "c"]
                assert (await subject.engine.count()).number == 3 * (round + 1)
                for one in fired:
                    assert await event_names(subject.engine, one.job_id) == [EventName.ENQUEUED]

    async def test_a_limit_leaves_the_rest_for_the_next_call(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            for name in ("a", "b", "c"):
                due = (await engine.put_schedule(hourly(name=name))).next_run_at
            await advance_to(subject, due)
            first, second = await engine.fire_due(limit=2), await engine.fire_due(limit=2)
            assert (len(first), len(second)) == (2, 1)
            assert {one.name for one in first + second} == {"a", "b", "c"}

    async def test_a_paused_schedule_waits_and_a_deleted_one_is_gone(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            due = (await engine.put_schedule(hourly())).next_run_at
            assert (await engine.pause_schedule("report", True)).spec.paused
            await advance_to(subject, due)
            assert await engine.fire_due() == []
            assert not (await engine.pause_schedule("report", False)).spec.paused
            assert [one.at for one in await engine.fire_due()] == [due]
            await engine.delete_schedule("report")
            await subject.advance(2 * HOUR)
            assert await engine.fire_due() == []
            assert await engine.schedules() == []
            assert (await engine.count()).number == 1, "its jobs stay"

    async def test_a_run_now_is_besides_its_times(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            before = await engine.put_schedule(hourly(payload=b"[1]", paused=True))
            id = await engine.run_schedule("report")
            job = await job_of(engine, id)
            assert (job.type, job.payload, job.state) == ("make-report", b"[1]", State.QUEUED)
            assert job.headers["ropeway-schedule"] == "report"
            assert "ropeway-scheduled-for" not in job.headers
            assert (await the_schedule(engine)).next_run_at == before.next_run_at


class TestUnreadableSchedules:
    async def test_one_that_this_host_cannot_plan_does_not_stop_the_others(
        self, harness: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its time zone was known where it was declared, and is not known here."""
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.put_schedule(hourly(name="bad", cron="0 * * * *", tz="Europe/Paris"))
            for name in ("good", "worse"):
                await engine.put_schedule(hourly(name=name))
            await engine.pause_schedule("worse", True)
            await advance_to(subject, await next_hour(engine))
            with _without_zone("Europe/Paris"), caplog.at_level(logging.ERROR, logger="ropeway.schedules"):
                assert [fired.name for fired in await engine.fire_due()] == ["good"]
                assert [await engine.fire_due() for _ in range(3)] == [[], [], []]
                assert {"good", "worse"} <= {schedule.name for schedule in await engine.schedules()}
            told = [record for record in caplog.records if record.name == "ropeway.schedules"]
            assert len(told) == 1, "it is told once, however often it is looked at"
            assert told[0].exc_info is None
            assert told[0].getMessage() == (
                "schedule bad of tenant default makes no jobs here: unknown time zone 'Europe/Paris' "
                "(install the time zone database here, the package tzdata; or replace or delete the schedule)"
            )
            assert [fired.name for fired in await engine.fire_due()] == ["bad"], "it fires where it can be planned"

    async def test_what_is_done_to_it_works_or_is_refused_in_one_line(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.put_schedule(hourly(tz="Europe/Paris"))
            with _without_zone("Europe/Paris"):
                answers: list[Any] = [
                    *await asyncio.gather(engine.run_schedule("report"), return_exceptions=True),
                    *await asyncio.gather(engine.pause_schedule("report", True), return_exceptions=True),
                    *await asyncio.gather(engine.get_schedule("report"), return_exceptions=True),
                ]
                refused = [answer for answer in answers if isinstance(answer, BaseException)]
                # A server's clients cannot put its host right: to them it is unavailable.
                kind = ConfigurationError if Capability.UPKEEP in harness.capabilities else EngineError
                for error in refused:
                    assert isinstance(error, kind), error
                    assert str(error) == (
                        "the schedule 'report' cannot be read here: unknown time zone 'Europe/Paris' "
                        "(install the time zone database here, the package tzdata; or replace or delete the "
                        "schedule)"
                    )
            paused = not isinstance(answers[1], BaseException)
            assert (await the_schedule(engine)).spec.paused is paused, "a refusal changes nothing"
            assert await engine.get_schedule("report") == await the_schedule(engine)
            with pytest.raises(NotFound):
                await engine.get_schedule("report", tenant="other")
            with pytest.raises(NotFound):
                await engine.get_schedule("reports")
            with _without_zone("Europe/Paris"):
                await engine.delete_schedule("report")
                with pytest.raises(NotFound):
                    await engine.pause_schedule("report", True)
            assert await engine.schedules() == []

    async def test_it_can_be_replaced(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.put_schedule(hourly(tz="Europe/Paris"))
            with _without_zone("Europe/Paris"):
                put = await engine.put_schedule(hourly(tz="UTC"))
                assert await engine.schedules() == [put]
                assert put.next_run_at == await next_hour(engine)


@contextmanager
def _without_zone(name: str) -> Iterator[None]:
    """As on a host whose time zone database lacks one zone."""
    known = cron.time_zone

    def time_zone(tz: str) -> tzinfo:
        if tz == name:
            raise FieldError(f"unknown time zone {tz!r}", pointer="/tz")
        return known(tz)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cron, "time_zone", time_zone)
        yield


class TestMissedInstants:
    async def _after_missing_three(
        self, harness: Harness, **fields: Any
    ) -> tuple[list[Fired], Schedule, datetime]:
        async with harness.subject() as subject:
            engine = subject.engine
            due = (await engine.put_schedule(hourly(**fields))).next_run_at
            await advance_to(subject, due + timedelta(hours=2, minutes=10))
            fired = await engine.fire_due()
            assert await engine.fire_due() == []
            assert (await engine.count()).number == len(fired)
            return fired, await the_schedule(engine), due

    async def test_once_makes_one_job_for_the_newest(self, harness: Harness) -> None:
        fired, schedule, due = await self._after_missing_three(harness, missed="once")
        assert [one.at for one in fired] == [due + timedelta(hours=2)]
        assert schedule.next_run_at == due + timedelta(hours=3)
        assert schedule.last_job_id == fired[0].job_id

    async def test_all_makes_up_for_each_in_order(self, harness: Harness) -> None:
        fired, schedule, due = await self._after_missing_three(harness, missed="all")
        assert [one.at for one in fired] == [due + timedelta(hours=hours) for hours in range(3)]
        assert schedule.next_run_at == due + timedelta(hours=3)
        assert schedule.last_job_id == fired[-1].job_id

    async def test_skip_makes_none(self, harness: Harness) -> None:
        fired, schedule, due = await self._after_missing_three(harness, missed="skip")
        assert fired == []
        assert schedule.next_run_at == due + timedelta(hours=3)
        assert (schedule.last_run_at, schedule.last_job_id) == (None, None)

    async def test_skip_fires_what_is_on_time(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            due = (await engine.put_schedule(hourly(missed="skip"))).next_run_at
            await advance_to(subject, due + timedelta(seconds=2))
            assert [one.at for one in await engine.fire_due()] == [due]

    async def test_a_long_gap_is_made_up_for_in_pieces(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            due = (await engine.put_schedule(hourly(cron="* * * * *", missed="all"))).next_run_at
            await advance_to(subject, due + timedelta(minutes=MAX_CATCH_UP + 19))
            first, second, third = [await engine.fire_due() for _ in range(3)]
            assert (len(first), len(second), len(third)) == (MAX_CATCH_UP, 20, 0)
            instants = [one.at for one in first + second]
            assert instants == [due + timedelta(minutes=minutes) for minutes in range(MAX_CATCH_UP + 20)]


class TestChangesOfTheClock:
    """Daylight saving, through the engine: a named time of day fires once a day, whatever the clocks do."""

    async def test_in_spring_a_skipped_time_fires_when_the_gap_ends(self, harness: Harness) -> None:
        await self._one_fire_a_day(harness, spring=True, expected=[timedelta(hours=-23.5), timedelta(0)])

    async def test_in_autumn_a_repeated_time_fires_the_first_time_only(self, harness: Harness) -> None:
        await self._one_fire_a_day(harness, spring=False, expected=[timedelta(hours=-0.5)])

    async def _one_fire_a_day(self, harness: Harness, *, spring: bool, expected: list[timedelta]) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            change = _next_change(await engine.now(), spring=spring)
            await advance_to(subject, change - timedelta(days=1))
            await engine.put_schedule(hourly(cron="30 2 * * *", tz="Europe/Paris"))
            fired: list[tuple[datetime, UUID]] = []
            for _ in range(2 * 24 + 2 * 20):  # half hours: from a day before the change to 20 hours after it
                await subject.advance(HOUR / 2)
                fired += [(one.at, one.job_id) for one in await engine.fire_due()]
            assert [at - change for at, _ in fired] == expected
            assert len({id for _, id in fired}) == len(fired)


def _next_change(now: datetime, *, spring: bool) -> datetime:
    """The next instant at which clocks in Paris go forward, or back."""
    zone = ZoneInfo("Europe/Paris")
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(days=2)
    while True:
        before, after = (moment.astimezone(zone).utcoffset() for moment in (hour - timedelta(hours=1), hour))
        assert before is not None
        assert after is not None
        if (after > before) if spring else (after < before):
            return hour
        hour += timedelta(hours=1)
