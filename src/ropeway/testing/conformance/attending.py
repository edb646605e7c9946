"""Attendance: who is at work, by the engine's clock."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from ropeway.core.errors import FieldError
from ropeway.core.fleet import WorkerInfo
from ropeway.testing.conformance.kit import DAY, OTHER_TENANT
from ropeway.testing.conformance.subject import Harness


def report(id: str = "w1", **fields: Any) -> WorkerInfo:
    known = {
        "host": "h", "pid": 7, "version": "1.0", "queues": ("mail", "default"), "types": ("send",), "slots": 10,
        "running": 3,
    }  # fmt: skip
    return WorkerInfo(id=id, **{**known, **fields})


def untimed(info: WorkerInfo) -> WorkerInfo:
    return msgspec.structs.replace(info, started_at=None, seen_at=None)


class TestAttendance:
    async def test_a_report_is_kept_as_it_came_with_the_engines_times(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            now = await engine.now()
            told = report(rss_bytes=5_000_000_000, state="quiet", started_at=now - timedelta(1), seen_at=now)
            await engine.report_worker(told)
            (worker,) = await engine.workers()
            assert untimed(worker) == untimed(told)
            assert (worker.started_at, worker.seen_at) == (now, now)

    async def test_a_report_renews_the_one_before(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            started = await engine.now()
            await engine.report_worker(report(rss_bytes=1))
            await subject.advance(10)
            newer = report(
                version="1.1", queues=(), types=("a", "b"), slots=20, running=0, rss_bytes=None, state="draining"
            )
            await engine.report_worker(newer)
            (worker,) = await engine.workers()
            assert untimed(worker) == newer
            assert (worker.started_at, worker.seen_at) == (started, await engine.now())

    @pytest.mark.parametrize("other", [{"pid": 8}, {"host": "h2"}], ids=str)
    async def test_another_process_of_that_name_starts_its_own_time(
        self, harness: Harness, other: dict[str, Any]
    ) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.report_worker(report())
            await subject.advance(10)
            await engine.report_worker(report(**other))
            (worker,) = await engine.workers()
            assert worker.started_at == await engine.now()

    async def test_only_those_seen_of_late_are_listed_by_id(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.report_worker(report("c"))
            await subject.advance(30)
            for id in ("b", "a", "B", "é"):
                await engine.report_worker(report(id))
            assert [worker.id for worker in await engine.workers()] == ["B", "a", "b", "c", "é"]
            await subject.advance(30)
            assert len(await engine.workers()) == 5, "a minute ago is not longer than a minute ago"
            await subject.advance(0.5)
            assert [worker.id for worker in await engine.workers()] == ["B", "a", "b", "é"]
            assert len(await engine.workers(seen_within=61)) == 5
            assert await engine.workers(seen_within=1) == []

    async def test_a_worker_that_leaves_is_forgotten_at_once(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.report_worker(report("a"))
            await engine.report_worker(report("b"))
            await engine.forget_worker("a")
            await engine.forget_worker("a")
            await engine.forget_worker("never there")
            assert [worker.id for worker in await engine.workers()] == ["b"]

    async def test_tenants_do_not_see_each_others_workers(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.report_worker(report(slots=1))
            await engine.report_worker(report(slots=2), tenant=OTHER_TENANT)
            assert [worker.slots for worker in await engine.workers()] == [1]
            await engine.forget_worker("w1")
            assert await engine.workers() == []
            assert [worker.slots for worker in await engine.workers(tenant=OTHER_TENANT)] == [2]

    async def test_prune_forgets_who_was_not_seen_for_a_day(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.report_worker(report("gone"))
            await engine.report_worker(report("gone"), tenant=OTHER_TENANT)
            await subject.advance(1)
            await engine.report_worker(report("late"))
            await subject.advance(DAY - 2)
            await engine.prune()
            assert [worker.id for worker in await engine.workers(seen_within=DAY)] == ["gone", "late"]
            await subject.advance(1)
            await engine.prune()
            assert [worker.id for worker in await engine.workers(seen_within=10 * DAY)] == ["late"]
            assert await engine.workers(seen_within=10 * DAY, tenant=OTHER_TENANT) == []

    @pytest.mark.parametrize("seconds", [-1, float("nan"), True], ids=str)
    async def test_a_time_that_is_none_is_refused(self, harness: Harness, seconds: float) -> None:
        async with harness.subject() as subject:
            with pytest.raises(FieldError):
                await subject.engine.workers(seen_within=seconds)
