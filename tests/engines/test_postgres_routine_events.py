"""The log of routine steps can be turned off: nothing else changes, and whoever works meanwhile follows."""

from __future__ import annotations

import subprocess
import sys
from uuid import UUID, uuid4

import pytest

from ropeway.core.job import NewJob
from ropeway.core.outcome import Done, Failed, Outcome
from ropeway.core.payload import JobError
from ropeway.core.states import EventName, State
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.protocol import Settlement, WorkerRef
from tests.engines.pg_kit import migrated, opened

WORKER = WorkerRef("w", uuid4())


async def run_one(engine: PostgresEngine, outcome: Outcome, **fields: object) -> UUID:
    """One job through its life; the first is enqueued alone, the others by the batch's statement."""
    (stored,) = await engine.enqueue([NewJob("noop", **fields)])  # type: ignore[arg-type]
    (leased,) = (await engine.lease(["default"], 1, WORKER)).leases
    assert leased.job.id == stored.id
    await engine.settle([Settlement(leased.lease, outcome)])
    return stored.id


async def told(engine: PostgresEngine, id: UUID) -> list[EventName]:
    return [event.event for event in await engine.events_of(id)]


@pytest.fixture
def url(postgres_database: str) -> str:
    return migrated(postgres_database)


async def test_off_logs_what_goes_wrong_only_and_on_logs_all(url: str) -> None:
    async with opened(url) as engine:
        every_step = [EventName.ENQUEUED, EventName.STARTED, EventName.COMPLETED]
        # Often enough for the server to have kept its plans.
        for _ in range(8):
            assert await told(engine, await run_one(engine, Done())) == every_step
        assert await engine.migrations.logs_routine()
        await engine.migrations.log_routine(False)
        assert not await engine.migrations.logs_routine()
        for tags in ((), ("a",)):
            id = await run_one(engine, Done(b"7"), tags=tags)
            assert await told(engine, id) == []
            (job,) = await engine.get([id])
            assert job is not None
            assert (job.state, job.result, job.attempt) == (State.SUCCEEDED, b"7", 1)
        failed = await run_one(engine, Failed(JobError("Oops", "no"), retry=False))
        assert await told(engine, failed) == [EventName.DLQ]
        await engine.migrations.log_routine(True)
        assert await told(engine, await run_one(engine, Done())) == every_step


def test_the_command_says_and_sets_it(url: str) -> None:
    def ropeway(*arguments: str) -> str:
        command = [sys.executable, "-m", "ropeway", "migrate", "events", *arguments, "--url", url]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    assert "every step" in ropeway()
    assert "only what goes wrong" in ropeway("off")
    assert "only what goes wrong" in ropeway()
    assert "every step" in ropeway("on")
