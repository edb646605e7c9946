"""Handlers that never wait share a task: none of them sees what another left behind, and nobody waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ropeway.core.outcome import Done, Outcome
from ropeway.engines.protocol import Leased
from ropeway.observability.metrics import Tally
from ropeway.worker import runner as running
from ropeway.worker.ledger import Ledger
from ropeway.worker.leftovers import Leftovers
from ropeway.worker.run import Run, StopReason
from ropeway.worker.runner import Runner
from tests.engines.pg_kit import eventually
from tests.unit.test_worker_runner import _answer, app, ids, leased, turn

colour: contextvars.ContextVar[Any] = contextvars.ContextVar("colour")
Handler = Callable[[Run], Awaitable[None]]


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


class Calls:
    """Performs each run by a function that the test gives; interruptible meanwhile, as with the executor."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.began: list[Leased] = []
        self.tasks: list[int] = []

    async def perform(self, run: Run) -> Outcome | None:
        self.began.append(run.leased)
        self.tasks.append(id(this_task()))
        assert run.task is this_task()
        run.interruptible = True
        try:
            await self.handler(run)
        except asyncio.CancelledError:
            return None
        finally:
            run.interruptible = False
        return Done()


class House:
    def __init__(self, slots: int, handler: Handler) -> None:
        self.calls = Calls(handler)
        self.ledger = Ledger.create(slots)
        self.ended: list[Run] = []
        self.runner = Runner(
            self.calls,
            None,
            app.registry,
            self.ledger,
            Tally(),
            on_end=self.ended.extend,
            on_room=lambda: None,
            count_queues=True,
        )

    async def run(self, jobs: list[Leased]) -> None:
        self.runner.take(jobs)
        await asyncio.wait_for(self.runner.wait_idle(), 10)

    def cancelled(self) -> list[Leased]:
        return [run.leased for run in self.ended if run.outcome is None]


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes, so that nobody has to give way."""
    monkeypatch.setattr(running, "time", FrozenTime(itertools.repeat(time.monotonic())))


class FrozenTime:
    def __init__(self, times: Any) -> None:
        self._times = times

    def monotonic(self) -> float:
        return float(next(self._times))


pytestmark = pytest.mark.usefixtures("still")


async def nothing(_: Run) -> None: ...


async def test_where_somebody_wants_to_know_of_every_task_each_job_has_one() -> None:
    """A tracing library, say, whose factory opens a scope for each task."""
    made: list[asyncio.Task[Any]] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> asyncio.Task[Any]:
        made.append(asyncio.Task(work, loop=loop, **how))
        return made[-1]

    at = House(3, nothing)
    jobs = [leased() for _ in range(20)]
    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        at.runner.take(jobs)
        await at.runner.wait_idle()
    finally:
        loop.set_task_factory(None)
    assert at.calls.began == jobs
    assert len(made) == 20


async def test_jobs_that_are_started_together_each_have_their_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who started last is to blame when the interpreter stands still: it must be one."""
    monkeypatch.setattr(running, "time", FrozenTime(itertools.count(time.monotonic())))
    gate = asyncio.Event()

    async def wait(_: Run) -> None:
        await gate.wait()

    at = House(10, wait)
    at.runner.take([leased() for _ in range(10)])
    await eventually(_answer(lambda: at.runner.running == 10))
    assert len({run.started for run in at.runner.runs()}) == 10
    gate.set()
    await asyncio.wait_for(at.runner.wait_idle(), 10)


async def test_handlers_that_never_wait_share_a_task_and_keep_their_order() -> None:
    at = House(3, nothing)
    jobs = [leased() for _ in range(20)]
    await at.run(jobs)
    assert at.calls.began == jobs
    assert [run.leased for run in at.ended] == jobs
    assert len(set(at.calls.tasks)) == 1
    assert (at.runner.finished, at.runner.running, at.runner.held_of("default")) == (20, 0, 0)
    assert at.ledger.running() == []


async def test_each_start_is_noted_when_it_begins_and_its_end_when_it_ends() -> None:
    noted: list[list[Any]] = []

    async def look(_: Run) -> None:
        noted.append([one.job_id for one in at.ledger.running()])

    at = House(3, look)
    jobs = [leased() for _ in range(6)]
    await at.run(jobs)
    assert noted == [[id] for id in ids(jobs)]


async def test_a_context_variable_does_not_reach_the_next_job() -> None:
    seen: list[Any] = []

    async def paint(run: Run) -> None:
        seen.append(colour.get(None))
        colour.set(run.leased.job.id)

    at = House(3, paint)
    await at.run([leased() for _ in range(20)])
    assert seen == [None] * 20


async def test_nor_one_that_waited_before_it_ended() -> None:
    seen: list[Any] = []

    async def paint(run: Run) -> None:
        seen.append(colour.get(None))
        colour.set(run.leased.job.id)
        await asyncio.sleep(0)

    at = House(2, paint)
    await at.run([leased() for _ in range(20)])
    assert seen == [None] * 20


async def test_handlers_have_the_context_in_which_the_runner_was_made() -> None:
    """Not that of whoever took the jobs, or of the job that ended before."""
    before = ["before"]
    colour.set(before)
    seen: list[Any] = []

    async def paint(_: Run) -> None:
        seen.append(colour.get(None))
        colour.set(["before"])  # equal, and not the same

    at = House(1, paint)
    colour.set("later")
    await at.run([leased() for _ in range(5)])
    assert all(one is before for one in seen)
    assert len(seen) == 5


async def test_a_variable_that_was_put_back_is_no_reason_for_another_task() -> None:
    async def paint(_: Run) -> None:
        token = colour.set("red")
        colour.reset(token)

    at = House(3, paint)
    await at.run([leased() for _ in range(10)])
    assert len(set(at.calls.tasks)) == 1


async def _cancel_itself(_: Run) -> None:
    this_task().cancel()


async def _cancel_itself_and_take_it_back(_: Run) -> None:
    this_task().cancel()
    this_task().uncancel()


async def _be_cancelled_later(_: Run) -> None:
    task = this_task()
    asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(task.cancel))


async def _swallow(_: Run) -> None:
    this_task().cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return
    raise AssertionError("it was not cancelled")


@pytest.mark.parametrize(
    "leaves", [_cancel_itself, _cancel_itself_and_take_it_back, _be_cancelled_later, _swallow]
)
async def test_a_cancellation_that_a_handler_leaves_behind_hits_no_other(leaves: Handler) -> None:
    async def handle(run: Run) -> None:
        if run.leased in first:
            await leaves(run)
        else:
            for _ in range(5):
                await asyncio.sleep(0)

    at = House(1, handle)
    jobs = [leased() for _ in range(6)]
    first = jobs[::2]
    await at.run(jobs)
    assert at.cancelled() == []
    assert len(at.ended) == 6


async def test_what_hangs_on_a_task_is_not_there_for_the_next_job() -> None:
    kept: list[asyncio.Task[Any]] = []
    by_task: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
    called: list[int] = []
    found: list[Any] = []

    def keep() -> None:
        found.append(this_task() in kept)
        kept.append(this_task())

    def keep_weakly() -> None:
        found.append(this_task() in by_task)
        by_task[this_task()] = "a session"

    def name() -> None:
        found.append(this_task().get_name() == "mine")
        this_task().set_name("mine")

    def call_me() -> None:
        number = len(found)
        found.append(len(called) < number)
        this_task().add_done_callback(lambda _: called.append(number))

    for leave in (keep, keep_weakly, name, call_me):

        async def handle(_: Run, leave: Callable[[], None] = leave) -> None:
            leave()

        found.clear()
        await House(1, handle).run([leased() for _ in range(5)])
        assert found == [False] * 5, leave


async def test_a_cancellation_that_was_swallowed_stays_on_its_task() -> None:
    told: list[bool] = []

    async def swallow() -> None:
        left = Leftovers()
        told.append(left.none())
        this_task().cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        told.append(left.none())

    asyncio.get_running_loop().call_soon(asyncio.ensure_future, swallow())  # nobody waits for it: that would tell
    await turn()
    assert told == [True, False]


async def test_an_interruption_reaches_its_own_job_and_no_other() -> None:
    """One that waits, begun by the task that ran others before it."""
    waiting = asyncio.Event()

    async def handle(run: Run) -> None:
        if run.leased is jobs[3]:
            waiting.set()
            await asyncio.Event().wait()

    at = House(1, handle)
    jobs = [leased() for _ in range(8)]
    at.runner.take(jobs)
    await asyncio.wait_for(waiting.wait(), 10)
    assert [run.leased for run in at.runner.runs()] == [jobs[3]]
    at.runner.drop([jobs[3].lease])
    await asyncio.wait_for(at.runner.wait_idle(), 10)
    assert at.cancelled() == [jobs[3]]
    assert at.calls.began == jobs
    assert [run.stop for run in at.ended] == [StopReason.REVOKED if one is jobs[3] else None for one in jobs]


async def test_a_timeout_hits_the_job_whose_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "time", time)

    async def handle(run: Run) -> None:
        if run.leased in (jobs[2], jobs[4]):
            await asyncio.Event().wait()

    at = House(2, handle)
    # The earlier ones would have been the first whose time is over.
    jobs = [leased(timeout=0.01), leased(timeout=0.01), leased(timeout=0.05), leased(timeout=0.01), leased()]
    at.runner.take(jobs)
    await eventually(_answer(lambda: len(at.ended) == 4), what="all but one have ended")
    assert [run.stop for run in at.ended if run.leased is jobs[2]] == [StopReason.TIMEOUT]
    assert at.cancelled() == [jobs[2]]
    assert [run.leased for run in at.runner.runs()] == [jobs[4]]
    at.runner.interrupt_all(StopReason.SHUTDOWN)
    await asyncio.wait_for(at.runner.wait_idle(), 10)


async def test_a_run_that_has_ended_cannot_be_interrupted() -> None:
    ran: list[Run] = []

    async def handle(run: Run) -> None:
        for earlier in ran:
            earlier.interrupt(StopReason.TIMEOUT)
        ran.append(run)

    at = House(1, handle)
    await at.run([leased() for _ in range(6)])
    assert at.cancelled() == []


async def test_an_interruption_that_is_swallowed_costs_no_other_job_anything() -> None:
    waiting = asyncio.Event()

    async def handle(run: Run) -> None:
        if run.leased is jobs[0]:
            waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return
        await asyncio.sleep(0)

    at = House(1, handle)
    jobs = [leased() for _ in range(4)]
    at.runner.take(jobs)
    await asyncio.wait_for(waiting.wait(), 10)
    at.runner.drop([jobs[0].lease])
    await asyncio.wait_for(at.runner.wait_idle(), 10)
    assert at.cancelled() == []
    assert at.calls.began == jobs


async def test_handlers_that_wait_fill_all_slots_within_three_turns() -> None:
    async def handle(_: Run) -> None:
        await asyncio.Event().wait()

    at = House(50, handle)
    jobs = [leased() for _ in range(80)]
    at.runner.take(jobs)
    for _ in range(3):
        await asyncio.sleep(0)
    assert at.calls.began == jobs[:50]
    assert (at.runner.running, at.runner.buffered) == (50, 30)
    assert {one.job_id for one in at.ledger.running()} == set(ids(jobs[:50]))
    assert len({id(run.task) for run in at.runner.runs()}) == 50
    at.runner.interrupt_all(StopReason.SHUTDOWN)
    at.runner.give_back()
    await asyncio.wait_for(at.runner.wait_idle(), 10)


async def test_so_do_those_that_leave_something_behind() -> None:
    """As many as slots in two turns, not one in each turn."""

    async def handle(_: Run) -> None:
        colour.set("red")

    at = House(50, handle)
    at.runner.take([leased() for _ in range(200)])
    turns = 0
    while at.runner.buffered or at.runner.running:
        await asyncio.sleep(0)
        turns += 1
    assert turns <= 16


async def test_others_on_the_loop_have_their_turn_between_handlers_that_never_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each look at the clock is a tenth of what they may take in one turn.
    monkeypatch.setattr(running, "time", FrozenTime(itertools.count(100.0, running.TURN_SECONDS / 10)))
    between: list[int] = []

    async def other() -> None:
        while True:
            between.append(len(at.calls.began))
            await asyncio.sleep(0)

    at = House(100, nothing)
    beside = asyncio.create_task(other())
    await at.run([leased() for _ in range(500)])
    beside.cancel()
    most = max(after - before for before, after in itertools.pairwise(between))
    assert 2 <= most <= 11
    assert at.calls.began == [run.leased for run in at.ended]
    assert len(at.ended) == 500


async def test_a_handler_that_waits_has_its_task_for_itself() -> None:
    """Whatever it has hung on it is gone with it: those that wait are the ones that do such things."""
    tasks: list[asyncio.Task[Any]] = []

    async def handle(_: Run) -> None:
        await asyncio.sleep(0)

    at = House(2, handle)
    perform = at.calls.perform

    async def remember(run: Run) -> Outcome | None:
        tasks.append(this_task())
        return await perform(run)

    at.calls.perform = remember  # type: ignore[method-assign]
    await at.run([leased() for _ in range(10)])
    assert len(set(tasks)) == 10


async def test_what_came_while_the_starter_was_at_work_is_started_too() -> None:
    async def handle(run: Run) -> None:
        if run.leased is jobs[0]:
            at.runner.take(more)

    at = House(2, handle)
    jobs, more = [leased() for _ in range(3)], [leased() for _ in range(3)]
    await at.run(jobs)
    assert at.calls.began == [*jobs, *more]


async def test_what_is_abandoned_starts_nothing_more() -> None:
    waiting = asyncio.Event()

    async def handle(_: Run) -> None:
        waiting.set()
        await go_on.wait()

    go_on = asyncio.Event()
    at = House(1, handle)
    jobs = [leased(), leased()]
    at.runner.take(jobs)
    await asyncio.wait_for(waiting.wait(), 10)
    at.runner.give_back()
    at.runner.abandon()
    go_on.set()
    await turn()
    assert at.ended == []
    assert [one.job_id for one in at.ledger.running()] == ids(jobs[:1])


async def test_where_handlers_hold_the_loop_for_long_no_job_is_claimed_for_idle_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such jobs would be given back after a while, and claimed again, over and over."""
    clock = [0.0]
    monkeypatch.setattr(running, "time", FrozenTime(iter(lambda: clock[0], None)))

    async def hold(_: Run) -> None:
        clock[0] += 2 * running.HELD_SECONDS

    async def wait(_: Run) -> None:
        await asyncio.sleep(0)

    house = House(10, hold)
    assert house.runner.room(0) == 10
    await house.run([leased(), leased()])
    assert house.runner.room(0) == 1
    house.calls.handler = nothing
    await house.run([leased()])
    assert house.runner.room(0) == 10, "the next one was quick"
    house.calls.handler = hold
    await house.run([leased()])
    house.calls.handler = wait
    await house.run([leased()])
    assert house.runner.room(0) == 10, "the next one waited, and others can run meanwhile"
