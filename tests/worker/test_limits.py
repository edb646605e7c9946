"""How much, in which order, and for how long: recycling, caps, queues, priorities, the buffer."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from ropeway.core.states import State
from tests.worker.facts import Facts
from tests.worker.kit import StartWorker, opened, until

#: Real processes, seconds each: other files of this room show the main things sooner.
pytestmark = pytest.mark.slow


async def test_a_child_is_replaced_after_so_many_jobs(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "2", "--max-jobs", "25")
        for _ in range(3):
            for job in await store.reach(await store.add("noop", 25), State.SUCCEEDED):
                assert job.attempts == 1
        await worker.says("child_recycled", reason="25 jobs")
        assert len({note.pid for note in facts.notes("ran")}) >= 2
        first = worker.started_children()[0]
        await until(lambda: first not in worker.children(), "the first child has exited")
        assert not worker.lines("child_died", "job_lost")


async def test_a_recycled_child_finishes_what_it_runs(
    sqlite_url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(sqlite_url) as store:
        worker = start_worker("-c", "2", "--max-jobs", "3", "--drain-seconds", "1", url=sqlite_url)
        (long,) = await store.add("wait", gate="go")
        await until(lambda: facts.notes("started"), "it runs")
        await store.reach(await store.add("noop", 10), State.SUCCEEDED)
        await worker.says("child_recycled")
        await worker.says("child_started", times=2)
        facts.open_gate("go")
        (job,) = await store.reach([long], State.SUCCEEDED)
        assert job.attempt == 1


async def test_a_child_is_replaced_when_it_holds_too_much(
    url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "2", "--max-memory", "300")
        ids = await store.add("grows", 2, mebibytes=200)
        await store.reach(ids, State.SUCCEEDED)
        recycled = await worker.says("child_recycled")
        assert recycled["reason"].endswith(" MiB")
        assert int(recycled["reason"].split()[0]) >= 300, "told as a whole number"
        first = worker.started_children()[0]
        await until(lambda: first not in worker.children(), "the first child has exited")
        await store.reach(await store.add("noop", 5), State.SUCCEEDED)
        assert len(worker.started_children()) == 2
        assert not worker.lines("child_died", "job_lost")


async def test_max_caps_the_slots_of_a_queue(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        start_worker("-c", "6", "-q", "mail,default", "--max", "mail=2")
        mail = await store.add("wait", 6, gate="mail", options={"queue": "mail"})
        await until(lambda: len(facts.notes("started")) == 2, "two of mail run")
        default = await store.add("wait", 6, gate="default")
        await until(lambda: len(facts.notes("started")) == 6, "all slots are taken")
        assert Counter(note.job_id in {str(id) for id in mail} for note in facts.notes("started")) == {
            True: 2,
            False: 4,
        }
        assert (await store.states(mail))[State.RUNNING] == 2
        facts.open_gate("default")
        await store.reach(default, State.SUCCEEDED)
        assert (await store.states(mail))[State.RUNNING] == 2
        facts.open_gate("mail")
        await store.reach(mail, State.SUCCEEDED)


async def order_of(facts: Facts, *groups: list[object]) -> list[int]:
    """Which group each run belonged to, in order."""
    place = {str(id): number for number, ids in enumerate(groups) for id in ids}
    return [place[note.job_id] for note in facts.notes("ran", "started") if note.job_id in place]


async def test_queues_are_served_in_strict_order(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        second = await store.add("noop", 20, options={"queue": "second"})
        first = await store.add("noop", 20, options={"queue": "first"})
        start_worker("-c", "1", "-q", "first,second")
        await store.reach(first + second, State.SUCCEEDED)
        assert await order_of(facts, first, second) == [0] * 20 + [1] * 20


@pytest.mark.slow
async def test_weights_share_between_queues(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        # Slow enough for claims of a few jobs each: every claim draws once which queue goes first.
        often = await store.add("blocks_loop", 300, options={"queue": "often"}, seconds=0.005)
        seldom = await store.add("blocks_loop", 300, options={"queue": "seldom"}, seconds=0.005)
        start_worker("-c", "1", "-q", "often:3,seldom")
        await store.reach(often + seldom, State.SUCCEEDED)
        order = await order_of(facts, often, seldom)
        # The lighter queue is neither first nor starved: its runs come on average after the heavier one's, and
        # its first run comes before the heavier one's last.
        places = [[place for place, group in enumerate(order) if group == number] for number in (0, 1)]
        assert sum(places[0]) < sum(places[1])
        assert places[1][0] < places[0][-1]


async def test_urgent_jobs_go_first(url: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(url) as store:
        low = await store.add("noop", 10, options={"priority": 9})
        default = await store.add("noop", 10)
        critical = await store.add("noop", 10, options={"priority": 1})
        start_worker("-c", "1")
        await store.reach(low + default + critical, State.SUCCEEDED)
        assert await order_of(facts, critical, default, low) == [0] * 10 + [1] * 10 + [2] * 10


@pytest.mark.slow
async def test_the_buffer_is_given_back_when_handlers_become_slow_and_at_the_end(
    url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(url) as store:
        worker = start_worker("-c", "2", "--drain-seconds", "1")
        quick = await store.add("noop", 800)
        slow = await store.add("wait", 400, gate="never")

        async def only_slots_are_taken() -> bool:
            return (await store.states(slow))[State.RUNNING] == 2 and len(facts.notes("started")) == 2

        await store.reach(quick, State.SUCCEEDED)
        await until(only_slots_are_taken, "no more is held than runs")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
        for job in await store.jobs(slow):
            assert (job.state, job.attempts, job.lease_lost_count) == (State.QUEUED, 0, 0)
        assert len(facts.notes("started")) == 2
