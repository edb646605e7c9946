"""The clock of a test: delays, retries, schedules, windows and expiry, in no time at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ropeway import FieldError, JobContext, NewSchedule, Ropeway, UsageError
from ropeway.testing import Kit
from ropeway.testing.store import at_once

MONDAY = datetime(2026, 3, 2, 8, 30, tzinfo=UTC)


class Broken(Exception):
    pass


def test_it_starts_at_the_time_of_day_and_stands_still(ropeway: Kit, app: Ropeway) -> None:
    start = ropeway.clock.now()
    assert abs(start - datetime.now(UTC)) < timedelta(minutes=1)
    assert ropeway.clock.now() == start
    assert ropeway.clock.advance(90) == start + timedelta(seconds=90)
    assert ropeway.clock.advance(timedelta(minutes=1), hours=1, days=1) == start + timedelta(
        days=1, hours=1, minutes=2, seconds=30
    )
    assert repr(ropeway.clock) == f"<clock at {ropeway.clock.now():%Y-%m-%d %H:%M:%S} UTC>"


def test_it_cannot_be_misunderstood(ropeway: Kit) -> None:
    with pytest.raises(UsageError, match="move_to"):
        ropeway.clock.advance(-1)
    with pytest.raises(FieldError, match="zone"):
        ropeway.clock.move_to(datetime(2026, 3, 2))  # noqa: DTZ001


def test_a_delayed_job_runs_when_its_time_has_come(ropeway: Kit, app: Ropeway) -> None:
    ran: list[datetime] = []

    @app.task
    def remind(ctx: JobContext) -> None:
        ran.append(ropeway.clock.now())

    remind.options(delay=3600).enqueue()
    remind.options(run_at=ropeway.clock.now() + timedelta(hours=3)).enqueue()
    assert len(ropeway.drain()) == 0
    ropeway.clock.advance(minutes=59)
    assert len(ropeway.drain()) == 0
    ropeway.clock.advance(minutes=1)
    assert len(ropeway.drain()) == 1
    ropeway.clock.advance(days=1)
    assert len(ropeway.drain()) == 1


def test_retries_come_after_the_middle_of_what_their_policy_allows(ropeway: Kit, app: Ropeway) -> None:
    attempts: list[tuple[int, float]] = []
    start = ropeway.clock.now()

    @app.task(max_attempts=4, retry={"policy": "default", "base": 10, "factor": 2, "jitter": 0.5})
    def flaky(ctx: JobContext) -> None:
        attempts.append((ctx.attempt, (ropeway.clock.now() - start).total_seconds()))
        if ctx.attempt < 4:
            raise Broken

    job = flaky.enqueue()
    assert ropeway.drain(raise_errors=False).failed == 1
    ropeway.clock.advance(seconds=9.9)
    assert len(ropeway.drain()) == 0
    ropeway.clock.advance(seconds=0.1)
    assert ropeway.drain(raise_errors=False).failed == 1
    drained = ropeway.run_for(hours=1, raise_errors=False)
    assert (drained.failed, drained.succeeded) == (1, 1)
    assert attempts == [(1, 0), (2, 10), (3, 30), (4, 70)]
    assert job.refresh().attempts == 4
    assert ropeway.clock.now() == start + timedelta(seconds=10) + timedelta(hours=1)


async def test_the_same_in_an_async_test(ropeway: Kit, app: Ropeway) -> None:
    @app.task(max_attempts=3)
    async def flaky() -> None:
        raise Broken

    job = await flaky.aenqueue()
    drained = await ropeway.arun_for(days=1, raise_errors=False)
    assert (drained.failed, drained.dead) == (2, 1)
    assert (await job.refresh()).state == "dead"


def test_run_for_raises_at_the_moment_it_happens(ropeway: Kit, app: Ropeway) -> None:
    start = ropeway.clock.now()

    @app.task
    def broken() -> None:
        raise Broken

    broken.options(delay=600).enqueue()
    with pytest.raises(Broken):
        ropeway.run_for(hours=1)
    assert ropeway.clock.now() == start + timedelta(minutes=10)


# ── Schedules ──


def test_a_schedule_fires_when_the_clock_passes_its_time(ropeway: Kit, app: Ropeway) -> None:
    ropeway.clock.move_to(MONDAY)
    ran: list[datetime] = []

    @app.cron("0 9 * * 1-5", tz="Europe/Paris")  # 8:00 UTC in winter
    def report() -> None:
        ran.append(ropeway.clock.now())

    assert len(ropeway.drain()) == 0
    ropeway.clock.advance(hours=23)
    assert len(ropeway.drain()) == 0
    ropeway.clock.advance(minutes=30)
    assert len(ropeway.drain()) == 1
    assert len(ropeway.drain()) == 0
    ropeway.run_for(days=7)
    weekdays = [datetime(2026, 3, day, 8, tzinfo=UTC) for day in (3, 4, 5, 6, 9, 10)]
    assert ran == weekdays


def test_a_worker_that_was_away_makes_up_for_it_as_the_schedule_says(ropeway: Kit, app: Ropeway) -> None:
    ran: list[str] = []

    @app.cron("0 * * * *", missed="once")
    def once() -> None:
        ran.append("once")

    @app.cron("0 * * * *", missed="all")
    def each() -> None:
        ran.append("all")

    ropeway.clock.move_to(MONDAY)
    ropeway.fire_schedules()
    ropeway.clock.advance(hours=3)
    ropeway.drain()
    assert sorted(ran) == ["all", "all", "all", "once"]


def test_schedules_can_be_fired_without_running_and_left_out(ropeway: Kit, app: Ropeway) -> None:
    ropeway.clock.move_to(MONDAY)

    @app.cron("0 9 * * *", args={"kind": "daily"})
    def report(kind: str) -> None: ...

    ropeway.drain()
    ropeway.clock.advance(hours=1)
    assert len(ropeway.drain(schedules=False)) == 0
    assert len(ropeway.run_for(minutes=1, schedules=False)) == 0
    (fired,) = ropeway.fire_schedules()
    assert fired.name == "report"
    assert ropeway.assert_enqueued(report, kind="daily").state == "queued"


def test_a_clock_that_is_turned_back_plans_anew(ropeway: Kit, app: Ropeway) -> None:
    @app.cron("0 9 * * *")
    def report() -> None: ...

    ropeway.drain()
    ropeway.clock.move_to(MONDAY)  # the fixture started at the time of day, long after
    ropeway.clock.advance(hours=1)
    assert len(ropeway.drain()) == 1


def test_stored_schedules_fire_as_well_and_paused_ones_do_not(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def report() -> None: ...

    ropeway.clock.move_to(MONDAY)
    app.sync.schedules.put(NewSchedule("mine", "0 9 * * *", "report"))
    assert len(ropeway.run_for(days=1)) == 1
    app.sync.schedules.pause("mine")
    assert len(ropeway.run_for(days=1)) == 0
    app.sync.schedules.run("mine")
    assert len(ropeway.drain()) == 1


# ── Windows, expiry, pauses ──


def test_a_window_holds(ropeway: Kit, app: Ropeway) -> None:
    ropeway.clock.move_to(MONDAY)
    ran: list[datetime] = []

    @app.task(window="22:00-06:00")
    def backup() -> None:
        ran.append(ropeway.clock.now())

    backup.enqueue()
    assert len(ropeway.drain()) == 0
    ropeway.run_for(days=1)
    assert ran == [MONDAY.replace(hour=22, minute=0)]


def test_a_job_that_was_not_started_in_time_is_cancelled(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def offer() -> None: ...

    job = offer.options(expires_in=60).enqueue()
    ropeway.clock.advance(61)
    assert len(ropeway.drain()) == 0
    assert job.refresh().state == "cancelled"


def test_running_for_a_while_does_not_wait_for_a_paused_queue(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def note() -> None: ...

    note.options(delay=60).enqueue()
    at_once(ropeway.engine.pause("default"))
    assert len(ropeway.run_for(hours=1)) == 0
