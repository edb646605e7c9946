"""Chores in small steps, and what they look at again before they remove it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from ropeway.core.errors import KeyInFlight
from ropeway.core.joblog import LogLine
from ropeway.core.states import State
from ropeway.engines.postgres import PostgresEngine, takeback, upkeeping
from ropeway.testing.conformance.kit import (
    ack,
    enqueue_many,
    enqueue_one,
    lease_one,
    lease_some,
    nack,
    new_job,
    state_of,
    worker,
)
from tests.engines.pg_kit import connected, opened

EXPIRE_ALL = "UPDATE ropeway.grants SET expires_at = '-infinity'"


class TestTakingBackInSteps:
    """One transaction for everything a dead fleet held would outlast any statement timeout, and then never end."""

    GRANTS, JOBS, STEP = 8, 4, 10

    @asynccontextmanager
    async def a_dead_fleet(self, url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
        monkeypatch.setattr(takeback, "STEP", self.STEP)
        async with opened(url) as engine, connected(url) as admin:
            by = worker()
            await enqueue_many(engine, self.GRANTS * self.JOBS)
            for _ in range(self.GRANTS):
                assert len(await lease_some(engine, self.JOBS, by=by)) == self.JOBS
            yield engine, admin, by

    async def steps(self, admin: Any) -> list[int]:
        """Jobs taken back per transaction."""
        rows = await admin.fetch(
            "SELECT count(*) AS jobs FROM ropeway.events WHERE event = 'job.reclaimed' GROUP BY xid"
        )
        return [row["jobs"] for row in rows]

    @pytest.mark.parametrize("verb", ["rescue", "end_grants"])
    async def test_no_transaction_takes_more_than_a_step(
        self, database: str, monkeypatch: pytest.MonkeyPatch, verb: str
    ) -> None:
        async with self.a_dead_fleet(database, monkeypatch) as (engine, admin, by):
            await admin.execute(EXPIRE_ALL)
            rescued = await (engine.rescue() if verb == "rescue" else engine.end_grants(by.owner))
            assert len(rescued) == self.GRANTS * self.JOBS
            steps = await self.steps(admin)
            assert sum(steps) == self.GRANTS * self.JOBS
            assert max(steps) < self.STEP + self.JOBS, "a step ends with the grant that fills it"
            assert len(steps) == 3

    async def test_a_limit_leaves_the_rest_for_the_next_call(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with self.a_dead_fleet(database, monkeypatch) as (engine, admin, _):
            await admin.execute(EXPIRE_ALL)
            taken = []
            while rescued := await engine.rescue(limit=6):
                taken.append(len(rescued))
            assert taken == [8, 8, 8, 8], "two grants make up for six jobs"


class TestPruningKeys:
    async def test_a_job_that_lives_again_keeps_its_key(self, database: str) -> None:
        """It was redriven after its key was found to be over, and before the key was removed."""
        async with opened(database) as engine, opened(database) as other:
            job = new_job(idempotency_key="k", key_window=0.001)
            (first,) = await engine.enqueue([job])
            await nack(engine, await lease_one(engine), retry=False)

            async def redrive() -> None:
                await other.redrive([first.id])
                assert await state_of(other, first.id) is State.QUEUED

            hooked = _before(engine, "DELETE FROM ropeway.keys", redrive)
            assert (await engine.prune()).keys == 0
            assert hooked, "the hook was not called: this test showed nothing"
            (again,) = await engine.enqueue([job])
            assert (again.id, again.deduplicated) == (first.id, True)

    async def test_a_key_that_is_being_removed_cannot_be_taken_over(self, database: str) -> None:
        """Or the new job's key would be removed with the old one's."""
        async with opened(database) as engine, opened(database) as other:
            job = new_job(idempotency_key="k", key_window=0.001)
            await engine.enqueue([job])
            await ack(engine, await lease_one(engine))
            later = new_job(idempotency_key="k", key_window=1_000)
            taken: list[Any] = []

            async def take_over() -> None:
                with pytest.raises(KeyInFlight):
                    await other.enqueue([later])
                taken.append(True)

            _before(engine, "DELETE FROM ropeway.keys", take_over)
            assert (await engine.prune()).keys == 1
            assert taken
            (fresh,) = await other.enqueue([later])
            assert not fresh.deduplicated
            assert (await engine.prune()).keys == 0
            assert (await other.enqueue([later]))[0].deduplicated


def _before(engine: PostgresEngine, statement: str, call: Callable[[], Awaitable[None]]) -> list[bool]:
    """Do something right before the engine's chores run a statement, once; the list says whether it was done."""
    transaction, done = engine.chores.transaction, []

    class Hooked:
        def __init__(self, connection: Any) -> None:
            self._connection = connection

        async def fetch(self, text: str, *arguments: Any) -> Any:
            if statement in text and not done:
                done.append(True)
                await call()
            return await self._connection.fetch(text, *arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

    @asynccontextmanager
    async def hooked() -> AsyncIterator[Any]:
        async with transaction() as connection:
            yield Hooked(connection)

    engine.chores.transaction = hooked  # type: ignore[method-assign]
    return done


class TestPruningLines:
    async def test_no_line_is_left_of_jobs_that_are_gone(
        self, fresh_database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In steps, of jobs with lines and without."""
        monkeypatch.setattr(upkeeping, "LINES_STEP", 3)
        async with opened(fresh_database) as engine, connected(fresh_database) as admin:
            await enqueue_many(engine, 20)
            leased = await lease_some(engine, 20)
            talked = [(each.lease, LogLine("hello")) for each in leased[::2] * 2]
            assert await engine.log(talked) == [None] * 20
            for n, each in enumerate(leased[:-2]):
                await (ack(engine, each) if n % 4 < 2 else nack(engine, each, retry=False))
            ended = (await engine.now() - timedelta(days=50)).date()
            await admin.execute(f"SELECT ropeway.ensure_partitions('{ended}', '{ended}')")
            await admin.execute("UPDATE ropeway.archive SET finished_at = $1", ended)
            assert (await engine.prune()).jobs == 18
            rows = await admin.fetch("SELECT job_id, count(*) AS lines FROM ropeway.lines GROUP BY job_id")
            assert [tuple(row) for row in rows] == [(leased[-2].job.id, 2)]

    async def test_a_deleted_job_leaves_none(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as admin:
            await enqueue_one(engine)
            leased = await lease_one(engine)
            await engine.log([(leased.lease, LogLine("hello"))])
            await ack(engine, leased)
            await engine.delete([leased.job.id])
            assert await admin.fetchval("SELECT count(*) FROM ropeway.lines") == 0
