"""What a worker shows of itself: its port, its log, its row in the engine; and the chores it does or leaves."""

from __future__ import annotations

import re
import signal

import httpx
import pytest

from ropeway.core.query import JobFilter
from ropeway.core.schedule import NewSchedule
from ropeway.core.states import State
from tests.worker.facts import Facts
from tests.worker.kit import SHORT_LEASE, RealWorker, StartWorker, opened, until


async def get(worker: RealWorker, path: str) -> httpx.Response:
    url = (await worker.says("http_started"))["url"]
    async with httpx.AsyncClient() as client:
        return await client.get(url + path)


def figure(page: str, name: str, **labels: str) -> float:
    """One sample of a Prometheus page; 0 if it is not there."""
    for line in page.splitlines():
        match = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
            return float(match[2])
    return 0.0


async def test_health_readiness_and_metrics(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "7", "--processes", "2", "--port", "0")
        assert (await get(worker, "/health")).json() == {"status": "ok", "children": 2}

        async def ready() -> bool:
            return (await get(worker, "/ready")).status_code == 200

        await until(ready, "it is ready")
        done = await store.add("noop", 9)
        failing = await store.add("calls_exit", 2, options={"max_attempts": 1})
        running = await store.add("wait", 3, gate="go")
        await store.reach(done, State.SUCCEEDED)
        await store.reach(failing, State.DEAD)

        async def counted() -> bool:
            page = (await get(worker, "/metrics")).text
            return (
                figure(page, "ropeway_jobs_succeeded_total", queue="default", type="noop") == 9
                and figure(page, "ropeway_jobs_dead_total", type="calls_exit") == 2
                and figure(page, "ropeway_worker_active_jobs") == 3
                and figure(page, "ropeway_worker_slots") == 14
                and figure(page, "ropeway_leases_acquired_total") == 14
                and figure(page, "ropeway_job_duration_seconds_count", type="noop", outcome="succeeded") == 9
                and figure(page, "ropeway_job_wait_seconds_count", queue="default") == 14
            )

        await until(counted, "the figures are right")
        # A child's death takes no figure along, and what it lost is counted.
        worker.signal(signal.SIGKILL, worker.children())

        async def reclaimed() -> bool:
            page = (await get(worker, "/metrics")).text
            # More, when what the first one lost was granted to the second as it died: then it is taken back again.
            return figure(page, "ropeway_leases_reclaimed_total") >= 3

        await until(reclaimed, "the losses are counted")
        page = (await get(worker, "/metrics")).text
        assert figure(page, "ropeway_jobs_succeeded_total", queue="default", type="noop") == 9
        facts.open_gate("go")
        await store.reach(running, State.SUCCEEDED)
        worker.signal(signal.SIGTSTP)

        async def quiet() -> bool:
            answer = await get(worker, "/ready")
            return answer.status_code == 503 and "quiet" in answer.json()["reasons"][0]

        await until(quiet, "a quiet worker is not ready")


async def test_the_log_is_json_with_the_promised_events(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "5", "--log-level", "DEBUG")
        (ok,) = await store.add("noop", n=41)
        (bad,) = await store.add("calls_exit", options={"max_attempts": 1})
        (late,) = await store.add("asks_for_retry")
        await store.reach([ok, late], State.SUCCEEDED)
        await store.reach([bad], State.DEAD)
        common = {"queue": "default", "logger": "ropeway.worker"}
        await worker.says("lease_acquired")
        await worker.says("handler_start", job_id=str(ok), type="noop", level="debug", attempt=1, **common)
        done = await worker.says("job_succeeded", job_id=str(ok), type="noop", level="info", attempt=1, **common)
        assert done["duration_ms"] >= 0
        await worker.says("job_failed", job_id=str(late), level="warning", error="retry: not yet", **common)
        await worker.says("job_dead", job_id=str(bad), level="error", type="calls_exit", **common)
        # A child may claim before its parent has said this.
        await worker.says("worker_started")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
        names = [line["event"] for line in worker.lines()]
        for name in ("child_started", "worker_started", "worker_stopping", "worker_stopped"):
            assert names.count(name) == 1
        assert all({"ts", "level", "event"} <= line.keys() for line in worker.lines())
        assert worker.other_output() == ""
        # What a job carries is nobody's business in a log.
        assert all("n" not in line and "payload" not in line for line in worker.lines())


async def test_a_worker_has_a_row_while_it_lives(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "7", "--processes", "2", "-q", "mail:5,default")
        await store.add("wait", 3, gate="go")

        async def rows() -> bool:
            return len(await store.engine.workers()) == 2

        await until(rows, "both children have reported")
        found = await store.engine.workers()
        assert {row.pid for row in found} == set(worker.children())
        for row in found:
            assert (row.queues, row.slots, row.state) == (("mail", "default"), 7, "running")
            assert {"noop", "wait"} <= set(row.types)
            assert row.rss_bytes is not None
            assert row.rss_bytes > 1 << 20
        victim = worker.children()[0]
        worker.signal(signal.SIGKILL, [victim])

        async def replaced() -> bool:
            pids = {row.pid for row in await store.engine.workers()}
            return victim not in pids

        await until(replaced, "the dead child's row is gone")
        facts.open_gate("go")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
        assert await store.engine.workers() == []


@pytest.mark.slow
async def test_upkeep_can_be_left_to_others(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        first = start_worker("-c", "2", *SHORT_LEASE)
        (id,) = await store.add("wait", gate="go")
        await until(lambda: facts.notes("started"), "it runs")
        first.signal(signal.SIGKILL, first.everyone())
        await first.exit_code()
        second = start_worker("-c", "2", "--no-upkeep")
        # Its lease is over, and this worker looks for work all the time, but taking back is not its business.
        lease = await store.job(id)
        assert lease.locked_until is not None

        async def over() -> bool:
            return await store.engine.now() > lease.locked_until  # type: ignore[operator]

        await until(over, "the lease is over")
        await store.reach(await store.add("noop", 3), State.SUCCEEDED)
        assert (await store.job(id)).attempt == 1
        assert not second.lines("sweep_complete")
        start_worker("-c", "2", "-q", "other")
        await until(lambda: len(facts.notes("started")) == 2, "it runs again")
        facts.open_gate("go")
        await store.reach([id], State.SUCCEEDED)


@pytest.mark.slow
async def test_two_workers_fire_a_schedule_once(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        workers = [start_worker("-c", "5"), start_worker("-c", "5")]
        for worker in workers:
            await worker.says("worker_started")
        declared = {schedule.name: schedule for schedule in await store.engine.schedules()}
        assert declared["yearly"].spec.source == "code"
        # Due every second from now on; each instant must come once, whoever is quicker.
        await store.engine.put_schedule(NewSchedule(name="often", cron="* * * * * *", type="noop", payload=b"{}"))
        await until(lambda: len(facts.notes("ran")) >= 4, "four instants have passed")
        await store.engine.delete_schedule("often")
        jobs = (await store.engine.find(JobFilter(type="noop"), limit=100)).jobs
        instants = [job.headers["ropeway-scheduled-for"] for job in jobs]
        assert len(instants) >= 4
        assert len(instants) == len(set(instants)), "an instant was fired twice"
        fired = [line for worker in workers for line in worker.lines("schedule_fired")]
        assert {line["job_id"] for line in fired} == {str(job.id) for job in jobs}
        await store.reach([job.id for job in jobs], State.SUCCEEDED)
        assert sorted(note.job_id for note in facts.notes("ran")) == sorted(str(job.id) for job in jobs)
