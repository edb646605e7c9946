"""Who blocks the loop is found, even if it has no deadline of its own and its neighbours do."""

from __future__ import annotations

import pytest

from ropeway.core.states import State
from tests.worker.facts import Facts
from tests.worker.kit import StartWorker, opened, until


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False], ids=["started_together", "started_later"])
async def test_neighbours_of_a_blocker_succeed_and_it_runs_apart(
    sqlite_url: str, start_worker: StartWorker, facts: Facts, together: bool
) -> None:
    async with opened(sqlite_url) as store:
        if together:
            neighbours = await store.add("wait", 3, gate="go", options={"timeout": 1.0})
            (blocker,) = await store.add("blocks_loop", seconds=600)
            worker = start_worker("-c", "10", "--lease-seconds", "60", url=sqlite_url)
        else:
            worker = start_worker("-c", "10", "--lease-seconds", "60", url=sqlite_url)
            neighbours = await store.add("wait", 3, gate="go", options={"timeout": 3.0})
            await until(lambda: len(facts.notes("started")) == 3, "the neighbours run")
            since = (await store.job(neighbours[0])).started_at
            assert since is not None

            async def a_second_later() -> bool:
                return (await store.engine.now() - since).total_seconds() > 1.0

            await until(a_second_later, "they have run for a while")
            (blocker,) = await store.add("blocks_loop", seconds=600)
        await until(lambda: any(note.job_id == str(blocker) for note in facts.notes("started")), "it blocks")
        facts.open_gate("go")
        await store.reach(neighbours, State.SUCCEEDED, within=20)

        def apart() -> bool:
            pids = [note.pid for note in facts.notes("started") if note.job_id == str(blocker)]
            return len(pids) == 2 and pids[1] not in worker.started_children()

        await until(apart, "the blocker runs in a process of its own")
        job = await store.job(blocker)
        assert (job.state, job.lease_lost_count) == (State.RUNNING, 1)
        assert len(worker.started_children()) == 2, "one child was killed for it, and no other"
