"""Workers that know no store, only a server and a key that may do nothing but work. What other workers are put
through runs here too, with the slow tests: test_crashes_through_a_server.py and its neighbours.

What a test asks of the jobs it asks of the store behind the server. The chores are the server's.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ropeway.core.schedule import NewSchedule
from ropeway.core.states import EventName, State
from tests.api.served import Served, server
from tests.worker.facts import Facts
from tests.worker.kit import SHORT_LEASE, TASKS, RealWorker, StartWorker, opened, until
from tests.worker.test_crashes import (  # noqa: F401
    test_a_killed_childs_jobs_run_again_and_unstarted_ones_keep_their_attempt,
)

#: Real processes, seconds each: other files of this room show the main things sooner.
pytestmark = pytest.mark.slow


@pytest.fixture
def served(sqlite_url: str, tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "server"
    folder.mkdir()
    env = {"ROPEWAY_REAPER_INTERVAL": "0.2", "ROPEWAY_DISPATCHER_INTERVAL": "0.2"}
    with server(sqlite_url, folder, env=env) as served:
        yield served


@pytest.fixture
def url(sqlite_url: str, served: Served) -> str:
    """The store behind the server."""
    return sqlite_url


@pytest.fixture
def postgres_url(url: str) -> str:
    """Tests that choose their store have no choice here."""
    return url


@pytest.fixture
def start_worker(start_worker: StartWorker, served: Served) -> StartWorker:
    """Workers get the server's URL instead of the store's."""
    token = served.key("work")

    def start(
        *arguments: str, env: Mapping[str, str] | None = None, url: str | None = None, target: str = TASKS
    ) -> RealWorker:
        del url
        remote = f"http://127.0.0.1:{served.port}"
        return start_worker(*arguments, env={"ROPEWAY_TOKEN": token, **(env or {})}, url=remote, target=target)

    return start


@pytest.mark.slow
async def test_a_killed_worker_loses_its_jobs_when_the_lease_is_over(
    url: str, start_worker: StartWorker, facts: Facts, served: Served
) -> None:
    """The server takes them back: the workers run no chores."""
    async with opened(url) as store:
        first = start_worker("-c", "3", *SHORT_LEASE)
        ids = await store.add("wait", 3, gate="go")
        await until(lambda: len(facts.notes("started")) == 3, "all three run")
        first.signal(signal.SIGKILL, first.everyone())
        await first.exit_code()
        second = start_worker("-c", "3", *SHORT_LEASE)
        await until(lambda: len(facts.notes("started")) == 6, "all three run again")
        facts.open_gate("go")
        for job in await store.reach(ids, State.SUCCEEDED):
            assert [a.outcome for a in await store.history(job.id)] == ["lost", "succeeded"]
            (reclaimed,) = await store.events(job.id, EventName.RECLAIMED)
            assert reclaimed.data["cause"] == "expired"
        assert not second.lines("sweep_complete")
        assert "sweep_complete" in served.log()


async def test_work_is_picked_up_by_a_wake_up_not_by_looking(
    url: str, start_worker: StartWorker, facts: Facts, record_property: pytest.RecordProperty
) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "2", env={"ROPEWAY_POLL_SECONDS": "3600"})
        await worker.says("worker_started")
        for number in range(1, 6):
            began = time.monotonic()
            ids = await store.add("noop")
            await store.reach(ids, State.SUCCEEDED, within=20)
            record_property(f"seconds {number}", round(time.monotonic() - began, 3))


async def test_a_server_that_goes_away_and_comes_back(
    url: str, start_worker: StartWorker, facts: Facts, served: Served
) -> None:
    """What runs meanwhile is not lost, and its outcome is written once the server is there again."""
    async with opened(url) as store:
        worker = start_worker("-c", "2", "--lease-seconds", "60")
        ids = await store.add("wait", 2, gate="go")
        await until(lambda: len(facts.notes("started")) == 2, "both run")
        served.process.send_signal(signal.SIGKILL)
        served.process.wait()
        facts.open_gate("go")
        await worker.says("engine_away")
        served.process = served._start()
        served.wait_until_up()
        for job in await store.reach(ids, State.SUCCEEDED):
            assert (job.attempt, job.lease_lost_count) == (1, 0)
        after = await store.add("noop", 5)
        await store.reach(after, State.SUCCEEDED)
        assert not [line for line in worker.lines() if line.get("event") == "loop_failed"]


async def test_what_code_declares_is_fired_by_the_server(
    url: str, start_worker: StartWorker, facts: Facts, served: Served
) -> None:
    async with opened(url) as store:
        token = await asyncio.to_thread(served.key, "work", "enqueue")
        worker = start_worker("-c", "5", env={"ROPEWAY_TOKEN": token})
        await worker.says("worker_started")
        declared = {schedule.name: schedule.spec.source for schedule in await store.engine.schedules()}
        assert declared["yearly"] == "code"
        await store.engine.put_schedule(NewSchedule(name="often", cron="* * * * * *", type="noop", payload=b"{}"))
        await until(lambda: len(facts.notes("ran")) >= 2, "two instants have passed")
        await store.engine.delete_schedule("often")
        assert not worker.lines("schedule_fired")
        assert "schedule_fired" in served.log()


async def test_a_key_that_may_not_declare_schedules_works_all_the_same(
    url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "5")
        await worker.says("schedules_refused")
        await store.reach(await store.add("noop", 3), State.SUCCEEDED)
        assert await store.engine.schedules() == []


@pytest.mark.parametrize("token", ["", "rw_live_firstkey2222_" + "x" * 43 + "_000000"], ids=["none", "bad"])
async def test_without_a_good_key_it_says_so_and_ends(start_worker: StartWorker, token: str) -> None:
    worker = start_worker(env={"ROPEWAY_TOKEN": token})
    assert await worker.exit_code() == 2
    assert "ROPEWAY_TOKEN" in worker.tail() or "key" in worker.tail()
    assert "Traceback" not in worker.tail()
    assert "x" * 43 not in worker.tail()
