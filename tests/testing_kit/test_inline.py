"""Inline mode: an enqueue runs its job at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ropeway import JobContext, NewJob, Ropeway
from ropeway.testing import Kit


class Broken(Exception):
    pass


def test_an_enqueue_returns_a_finished_job(ropeway: Kit, app: Ropeway) -> None:
    threads: list[threading.Thread] = []

    @app.task
    def double(n: int) -> int:
        threads.append(threading.current_thread())
        return 2 * n

    @app.task
    async def triple(n: int) -> int:
        await asyncio.sleep(0)
        threads.append(threading.current_thread())
        return 3 * n

    with ropeway.inline():
        first, second = double.enqueue(4), triple.enqueue(4)
        assert (first.status, second.status) == ("succeeded", "succeeded")
        assert (first.result(), second.result()) == (8, 12)
        assert [job.result() for job in double.enqueue_many([(1,), (2,)])] == [2, 4]
    assert set(threads) == {threading.current_thread()}
    assert double.enqueue(5).status == "queued"


async def test_in_an_async_test(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    @app.task
    async def quadruple(n: int) -> int:
        return 2 * await (await double.aenqueue(n)).result()

    with ropeway.inline():
        job = await quadruple.aenqueue(4)
        assert job.status == "succeeded"
        assert await job.result() == 16
        pair = await asyncio.gather(double.aenqueue(1), double.aenqueue(2))
        assert [await one.result() for one in pair] == [2, 4]


async def test_the_answer_has_the_times_of_the_job_that_ran(ropeway: Kit, app: Ropeway) -> None:
    @app.task(max_attempts=2)
    async def fail() -> None:
        raise Broken

    with ropeway.inline(raise_errors=False):
        (answer,) = await ropeway.engine.enqueue([NewJob("fail", delay=60)])
    (job,) = await ropeway.engine.get([answer.id])
    assert job is not None
    assert (answer.state, answer.created_at, answer.run_at) == (job.state, job.created_at, job.run_at)


async def test_a_plain_handler_of_an_async_test_may_enqueue_too(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    @app.task
    def quadruple(n: int) -> int:
        return 2 * double.enqueue(n).result()

    with ropeway.inline():
        assert await (await quadruple.aenqueue(4)).result() == 16


def test_a_sync_handler_may_enqueue_and_wait(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    @app.task
    def quadruple(n: int) -> int:
        return 2 * double.enqueue(n).result()

    @app.task
    async def both(n: int) -> int:
        jobs = await asyncio.gather(double.aenqueue(n), quadruple.aenqueue(n))
        return sum([await job.result() for job in jobs])

    with ropeway.inline():
        assert both.enqueue(3).result() == 18


def test_a_loop_inside_a_plain_handler(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def plain() -> int:
        return 1

    @app.task
    def outer() -> int:
        async def inside() -> int:
            return await (await plain.aenqueue()).result()

        return asyncio.run(inside())

    with ropeway.inline():
        assert outer.enqueue().result() == 1


def test_what_was_to_run_later_runs_at_once(ropeway: Kit, app: Ropeway) -> None:
    @app.task(window="22:00-22:01")
    def backup() -> None: ...

    with ropeway.inline():
        job = backup.options(delay=86_400).enqueue()
    assert job.status == "succeeded"
    assert len(ropeway.drain()) == 0


def test_errors_are_raised_to_whoever_enqueues(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def broken() -> None:
        raise Broken

    @app.task
    def outer() -> None:
        broken.enqueue()

    with ropeway.inline(), pytest.raises(Broken):
        outer.enqueue()
    assert [job.state for job in ropeway.enqueued()] == ["retrying", "retrying"]


def test_errors_can_be_left_to_the_job(ropeway: Kit, app: Ropeway) -> None:
    @app.task
    def broken() -> None:
        raise Broken

    @app.task
    def snoozes(ctx: JobContext) -> None:
        ctx.snooze(60)

    with ropeway.inline(raise_errors=False):
        assert broken.enqueue().status == "retrying"
        assert snoozes.enqueue().status == "scheduled"


def test_a_duplicate_does_not_run_again(ropeway: Kit, app: Ropeway) -> None:
    ran: list[int] = []

    @app.task
    def note() -> None:
        ran.append(1)

    with ropeway.inline():
        note.options(key="k").enqueue()
        again = note.options(key="k").enqueue()
    assert again.deduplicated
    assert again.status == "succeeded"
    assert ran == [1]


def test_in_a_transaction_of_your_own(ropeway: Kit, app: Ropeway) -> None:
    here = threading.current_thread()
    threads: list[threading.Thread] = []

    @app.task
    def note() -> None:
        threads.append(threading.current_thread())

    with ropeway.inline():
        note.options(connection=object()).enqueue()
    assert threads == [here]
