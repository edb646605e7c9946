"""Slots and the buffer before them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from ropeway import Ropeway
from ropeway.core.job import Job
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Outcome
from ropeway.core.states import State
from ropeway.engines.protocol import Leased
from ropeway.observability.metrics import Tally
from ropeway.worker.ledger import Ledger
from ropeway.worker.run import Run, StopReason
from ropeway.worker.runner import Runner
from tests.engines.pg_kit import eventually

app = Ropeway("memory://")


@app.task
async def task() -> None: ...


@app.task(process=True)
def heavy() -> None: ...


class Performer:
    """Runs are open until the test ends them."""

    def __init__(self) -> None:
        self.runs: dict[UUID, tuple[Run, asyncio.Future[Outcome | None]]] = {}

    async def perform(self, run: Run) -> Outcome | None:
        run.interruptible = True
        future: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self.runs[run.leased.job.id] = run, future
        try:
            return await future
        except asyncio.CancelledError:
            return None

    def end(self, id: UUID, outcome: Outcome | None = Done()) -> None:  # noqa: B008 - frozen
        self.runs[id][1].set_result(outcome)

    def fail(self, id: UUID, error: BaseException) -> None:
        self.runs[id][1].set_exception(error)


def leased(**fields: Any) -> Leased:
    now = datetime.now(UTC)
    id = uuid4()
    values: dict[str, Any] = {
        "id": id,
        "tenant": "default",
        "type": "task",
        "queue": "default",
        "state": State.RUNNING,
        "priority": 5,
        "payload": b"{}",
        "attempt": 1,
        "attempts": 1,
        "max_attempts": 5,
        "run_at": now,
        "created_at": now,
        "updated_at": now,
        **fields,
    }
    return Leased(Job(**values), Lease(id, 1, uuid4()))


class House:
    def __init__(self, slots: int) -> None:
        self.shared, self.apart = Performer(), Performer()
        self.ledger = Ledger.create(slots)
        self.ended: list[Run] = []
        self.runner = Runner(
            self.shared,
            self.apart,
            app.registry,
            self.ledger,
            Tally(),
            on_end=self.ended.extend,
            on_room=lambda: None,
            count_queues=True,
        )

    @property
    def started(self) -> list[UUID]:
        return list(self.shared.runs)


@asynccontextmanager
async def house(slots: int) -> AsyncIterator[House]:
    made = House(slots)
    yield made
    made.runner.interrupt_all(StopReason.SHUTDOWN)
    await asyncio.sleep(0.01)
    made.ledger.close()


def _answer(fact: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def ask() -> Any:
        return fact()

    return ask


async def turn() -> None:
    """Let every task that can move do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def ids(jobs: list[Leased]) -> list[UUID]:
    return [one.job.id for one in jobs]


async def test_slots_are_filled_in_order_and_the_rest_waits() -> None:
    async with house(2) as at:
        jobs = [leased() for _ in range(4)]
        at.runner.take(jobs)
        await turn()
        assert at.started == ids(jobs[:2])
        assert (at.runner.running, at.runner.buffered) == (2, 2)
        at.shared.end(jobs[1].job.id)
        await turn()
        assert at.started == ids(jobs[:3])
        assert [run.leased for run in at.ended] == [jobs[1]]
        assert at.runner.finished == 1


async def test_the_most_urgent_overtake_what_waits_and_nobody_else() -> None:
    async with house(1) as at:
        first, waiting = leased(), [leased(), leased(priority=9)]
        at.runner.take([first, *waiting])
        urgent, high = [leased(priority=1), leased(priority=1)], leased(priority=2)
        at.runner.take([high, *urgent])
        order = ids([first, *urgent, *waiting, high])
        for id in order:
            await turn()
            assert at.started[-1] == id
            at.shared.end(id)


async def test_what_waits_is_given_back_and_what_runs_is_not() -> None:
    async with house(1) as at:
        jobs = [leased(queue="mail"), leased(queue="mail"), leased()]
        at.runner.take(jobs)
        assert at.runner.held_of("mail") == 2
        assert at.runner.give_back() == jobs[1:]
        assert (at.runner.held_of("mail"), at.runner.held_of("default")) == (1, 0)
        await turn()
        at.shared.end(jobs[0].job.id)
        await at.runner.wait_idle()
        assert at.runner.held_of("mail") == 0
        assert at.started == ids(jobs[:1])


async def test_what_was_taken_away_is_stopped_or_forgotten() -> None:
    async with house(1) as at:
        jobs = [leased(), leased(), leased()]
        at.runner.take(jobs)
        await turn()
        at.runner.drop([jobs[0].lease, jobs[1].lease, leased().lease])
        await turn()
        (ended,) = at.ended
        assert (ended.leased, ended.outcome, ended.stop) == (jobs[0], None, StopReason.REVOKED)
        assert at.started == ids([jobs[0], jobs[2]])
        assert at.runner.held_of("default") == 1


async def test_a_start_is_noted_when_it_begins_to_run_and_not_before() -> None:
    """The parent counts what is noted as running in a process that died: it must not be too early."""
    async with house(2) as at:
        job = leased(timeout=10.0)
        at.runner.take([job])
        assert at.ledger.running() == []
        await turn()
        (noted,) = at.ledger.running()
        assert (noted.job_id, noted.isolated) == (job.job.id, False)
        assert noted.hard_deadline - noted.started == pytest.approx(15.0)
        at.shared.end(job.job.id)
        await turn()
        assert at.ledger.running() == []


async def test_suspects_and_heavy_jobs_run_apart() -> None:
    async with house(4) as at:
        suspect, heavy_one, innocent = leased(lease_lost_count=1), leased(type="heavy"), leased()
        unknown = leased(type="nobody_knows", lease_lost_count=1)
        at.runner.take([suspect, heavy_one, innocent, unknown])
        await turn()
        assert set(at.apart.runs) == {suspect.job.id, heavy_one.job.id}
        assert at.started == ids([innocent, unknown])
        noted = {one.job_id: one for one in at.ledger.running()}
        assert noted[suspect.job.id].isolated
        assert noted[suspect.job.id].hard_deadline == 0.0, "its own process is killed, not this one"
        for id in at.apart.runs:
            at.apart.end(id)


async def test_the_timeout_of_each_job_is_its_own() -> None:
    async with house(3) as at:
        soon, later, never = leased(timeout=0.05), leased(timeout=60.0), leased(timeout=0.0)
        at.runner.take([later, soon, never])
        await turn()
        await eventually(_answer(lambda: at.ended), what="one has ended")
        assert [(run.leased, run.stop) for run in at.ended] == [(soon, StopReason.TIMEOUT)]
        assert at.runner.running == 2


async def test_a_defect_costs_no_slot() -> None:
    async with house(1) as at:
        jobs = [leased(), leased()]
        at.runner.take(jobs)
        await turn()
        at.shared.fail(jobs[0].job.id, OSError("no more processes"))
        await turn()
        (ended,) = at.ended
        assert isinstance(ended.outcome, Failed)
        assert "no more processes" in ended.outcome.error.message
        assert at.started == ids(jobs)


async def test_what_was_abandoned_has_no_outcome_and_stays_noted() -> None:
    async with house(1) as at:
        job = leased()
        at.runner.take([job])
        await turn()
        at.runner.abandon()
        at.shared.end(job.job.id)
        await turn()
        assert at.ended == []
        assert [noted.job_id for noted in at.ledger.running()] == [job.job.id]


async def test_room_follows_the_rate() -> None:
    async with house(10) as at:
        assert at.runner.room(0.0) == 10
        assert at.runner.room(1_000.0) == 60
        assert at.runner.room(1e9) == 1_010
        at.runner.take([leased() for _ in range(12)])
        assert at.runner.room(0.0) == -2
