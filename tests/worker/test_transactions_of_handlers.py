"""`ctx.transaction()`: the handler's writes and the completion happen together or not at all."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from uuid import UUID

import asyncpg
import pytest

from ropeway.core.retry import RetryPolicy
from ropeway.core.states import EventName, State
from tests.engines.pg_kit import connected
from tests.worker.facts import Facts
from tests.worker.kit import StartWorker, Store, opened, until

#: Kills make suspects of innocents; here they may be killed as often as chance has it.
NO_CRASH_LIMIT = {"ROPEWAY_CRASH_LIMIT": "1000"}
SOON = {"retry": RetryPolicy(base=0.05, cap=0.1), "max_attempts": 25}


@pytest.fixture
def database(postgres_url: str) -> str:
    """A store with the table that handlers write to; no key on it, so that a second effect would be seen."""

    async def create() -> None:
        async with connected(postgres_url) as connection:
            await connection.execute("CREATE TABLE effects (job_id uuid, attempt integer)")

    asyncio.run(create())
    return postgres_url


async def effects(url: str) -> list[tuple[UUID, int]]:
    async with connected(url) as connection:
        return [(row["job_id"], row["attempt"]) for row in await connection.fetch("SELECT * FROM effects")]


async def test_writes_and_completion_are_one(database: str, start_worker: StartWorker) -> None:
    async with opened(database) as store:
        start_worker("-c", "10", url=database)
        ids = await store.add("writes", 30, n=4)
        for job in await store.reach(ids, State.SUCCEEDED):
            assert job.result is not None
            assert json.loads(job.result) == {"n": 4}
            assert await store.story(job.id) == ["enqueued", "started", "completed"]
        assert sorted(await effects(database)) == sorted((id, 1) for id in ids)


async def test_what_is_raised_inside_rolls_back_and_is_retried(database: str, start_worker: StartWorker) -> None:
    async with opened(database) as store:
        start_worker("-c", "10", url=database)
        (id,) = await store.add("fails_in_its_transaction", options=SOON)
        await store.reach([id], State.SUCCEEDED)
        assert await store.outcomes(id) == ["failed", "succeeded"]
        assert await effects(database) == [(id, 2)]


async def test_what_is_raised_after_it_is_logged_and_not_retried(database: str, start_worker: StartWorker) -> None:
    async with opened(database) as store:
        worker = start_worker("-c", "10", url=database)
        (after,) = await store.add("fails_after_its_transaction")
        (twice,) = await store.add("opens_two_transactions")
        jobs = await store.reach([after, twice], State.SUCCEEDED)
        assert [job.result for job in jobs] == [b'"kept"', None]
        told = await worker.says("job_failed", job_id=str(after))
        assert "ValueError: after" in told["error"]
        assert "UsageError" in (await worker.says("job_failed", job_id=str(twice)))["error"]
        assert sorted(await effects(database)) == sorted([(after, 1), (twice, 1)])
        for id in (after, twice):
            assert await store.story(id) == ["enqueued", "started", "completed"]


async def test_a_lost_lease_rolls_back(database: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(database) as store:
        # Its next heartbeat is far away: the fence in the commit is what refuses it.
        worker = start_worker("-c", "10", "--lease-seconds", "600", url=database)
        (id,) = await store.add("writes_and_waits", gate="go")
        await until(lambda: facts.notes("written"), "it has written")
        await store.engine.cancel([id])
        facts.open_gate("go")
        await until(lambda: facts.notes("LeaseLost"), "its commit was refused")
        await worker.says("lease_lost", job_id=str(id))
        assert (await store.job(id)).state is State.CANCELLED
        assert await effects(database) == []


async def test_a_cancel_and_a_shutdown_roll_back(database: str, start_worker: StartWorker, facts: Facts) -> None:
    async with opened(database) as store:
        worker = start_worker("-c", "10", "--drain-seconds", "1", url=database)
        (cancelled,) = await store.add("writes_and_waits", gate="never")
        (released,) = await store.add("writes_and_waits", gate="never")
        await until(lambda: len(facts.notes("written")) == 2, "both have written")
        await store.engine.cancel([cancelled])
        await until(lambda: len(facts.notes("CancelledError")) == 1, "the cancelled one was stopped")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
        job = await store.job(released)
        assert (job.state, job.attempts) == (State.QUEUED, 0)
        assert await effects(database) == []


async def test_an_open_transaction_outlives_its_lease(
    database: str, start_worker: StartWorker, facts: Facts
) -> None:
    """Heartbeats do not touch the row that the transaction will complete."""
    async with opened(database) as store:
        start_worker("-c", "10", "--lease-seconds", "1", url=database)
        (id,) = await store.add("writes_and_waits", gate="go")
        await until(lambda: facts.notes("written"), "it has written")
        began = await store.job(id)
        assert began.locked_until is not None

        async def extended() -> bool:
            now = await store.job(id)
            return now.locked_until is not None and (now.locked_until - began.locked_until).total_seconds() > 3

        await until(extended, "three leases have passed")
        facts.open_gate("go")
        (job,) = await store.reach([id], State.SUCCEEDED)
        assert job.attempt == 1
        assert await effects(database) == [(id, 1)]


@pytest.mark.slow
async def test_a_few_kills_leave_one_effect_per_job(
    database: str, start_worker: StartWorker, facts: Facts
) -> None:
    await kill_at_random_points(database, start_worker, facts, kills=5, seed=20)


@pytest.mark.slow
async def test_two_hundred_kills_leave_one_effect_per_job(
    database: str, start_worker: StartWorker, facts: Facts
) -> None:
    await kill_at_random_points(database, start_worker, facts, kills=200, seed=200)


async def kill_at_random_points(
    database: str, start_worker: StartWorker, facts: Facts, *, kills: int, seed: int
) -> None:
    """Children of the worker are killed after a drawn number of further steps, of a drawn kind."""
    chance = random.Random(seed)
    async with opened(database) as store:
        worker = start_worker(
            "-c", "4", "--processes", "3", "--lease-seconds", "60", env=NO_CRASH_LIMIT, url=database
        )
        ids: list[UUID] = []
        for _ in range(kills):
            word = chance.choice(["began", "inside", "written", "committed"])
            await further(store, ids, facts, word, steps=chance.randint(1, 8))
            victims = await until(worker.children, "a child is there")
            worker.signal(signal.SIGKILL, [chance.choice(victims)])
        await check_effects(store, database, ids)
        assert len(worker.lines("child_died")) >= kills * 0.9, "a child may be hit twice before it is gone"


@pytest.mark.slow
async def test_lost_connections_leave_one_effect_per_job(
    database: str, start_worker: StartWorker, facts: Facts
) -> None:
    """The server ends sessions at random points: some commits have no answer, and the fence settles them."""
    chance = random.Random(50)
    async with opened(database) as store, connected(database) as killer:
        worker = start_worker("-c", "8", "--lease-seconds", "60", env=NO_CRASH_LIMIT, url=database)
        ids: list[UUID] = []
        for _ in range(50):
            word = chance.choice(["inside", "written", "committed"])
            await further(store, ids, facts, word, steps=chance.randint(1, 8))
            await end_a_session(killer, chance)
        await check_effects(store, database, ids)
        assert not worker.lines("child_died", "loop_failed")


async def end_a_session(killer: asyncpg.Connection, chance: random.Random) -> None:
    """One of those that are in a transaction now, if there is one."""
    pids = await killer.fetch(
        """SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
           AND (state = 'idle in transaction' OR query ILIKE 'commit%' OR query LIKE '%complete_one%')"""
    )
    if pids:
        await killer.execute("SELECT pg_terminate_backend($1)", chance.choice(pids)["pid"])


async def further(store: Store, ids: list[UUID], facts: Facts, word: str, *, steps: int) -> None:
    """Wait for so many more steps of this kind. Thirty jobs may be done before anybody looks: more are added."""
    wanted = len(facts.notes(word)) + steps

    async def there() -> bool:
        await keep_busy(store, ids)
        return len(facts.notes(word)) >= wanted

    await until(there, f"{wanted} {word}")


async def keep_busy(store: Store, ids: list[UUID]) -> None:
    """There is always something to run."""
    live = sum(job.finished_at is None for job in await store.jobs(ids[-100:]))
    if live < 30:
        ids += await store.add("writes", 60, options=SOON)


async def check_effects(store: Store, database: str, ids: list[UUID]) -> None:
    await store.reach(ids, State.SUCCEEDED, within=90)
    found = await effects(database)
    assert Counter(id for id, _ in found) == dict.fromkeys(ids, 1)
    attempts = dict(found)
    for id in ids:
        (completed,) = await store.events(id, EventName.COMPLETED)
        assert completed.attempt == attempts[id], "the effect is that of the attempt that succeeded"


async def test_a_job_whose_row_was_locked_when_its_process_died_runs_again(
    database: str, start_worker: StartWorker, facts: Facts
) -> None:
    """As by the transaction of the dead process itself, which the server ends a moment later."""
    async with opened(database) as store, connected(database) as other:
        worker = start_worker("-c", "2", "--lease-seconds", "600", url=database)
        (id,) = await store.add("wait", gate="go")
        await until(lambda: facts.notes("started"), "it runs")
        lock = other.transaction()
        await lock.start()
        await other.execute("SELECT FROM ropeway.jobs WHERE id = $1 FOR UPDATE", id)
        worker.signal(signal.SIGKILL, worker.children())
        await worker.says("child_started", times=2)
        assert (await store.job(id)).attempt == 1
        await lock.rollback()
        await until(lambda: len(facts.notes("started")) == 2, "it runs again long before its lease is over")
        facts.open_gate("go")
        await store.reach([id], State.SUCCEEDED)
        assert await store.outcomes(id) == ["crashed", "succeeded"]
