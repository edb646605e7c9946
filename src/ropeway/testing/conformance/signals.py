"""Signals: hints that wake a waiting worker. They may come too often; in a healthy store they do come.

A wait that is expected to end by a signal has a generous timeout, which costs nothing when the signal comes. Only
the silence before it is waited for, a few milliseconds at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ropeway.core.schedule import NewSchedule
from ropeway.core.states import State
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Engine, Subscription
from ropeway.testing.conformance.kit import (
    OTHER_TENANT,
    QUEUE,
    advance_to,
    drive_to,
    enqueue_one,
    lease_one,
    leased_ids,
    lose,
    release,
    worker,
)
from ropeway.testing.conformance.subject import Harness, Subject

SOON = 10.0
A_MOMENT = 0.02


async def silence(subscription: Subscription) -> None:
    """Wait until earlier signals have been heard."""
    for _ in range(100):
        if not await subscription.wait(A_MOMENT):
            return
    raise AssertionError("a subscription that never falls silent is a busy loop")


async def _enqueue(subject: Subject) -> Callable[[], Awaitable[object]]:
    return lambda: enqueue_one(subject.engine)


async def _release(subject: Subject) -> Callable[[], Awaitable[object]]:
    await enqueue_one(subject.engine)
    leased = await lease_one(subject.engine)
    return lambda: release(subject.engine, leased)


async def _lose(subject: Subject) -> Callable[[], Awaitable[object]]:
    await enqueue_one(subject.engine)
    leased = await lease_one(subject.engine)
    return lambda: lose(subject.engine, leased)


async def _rescue(subject: Subject) -> Callable[[], Awaitable[object]]:
    await enqueue_one(subject.engine)
    await lease_one(subject.engine, lease_seconds=30)
    await subject.advance(31)
    return subject.engine.rescue


async def _end_of_owner(subject: Subject) -> Callable[[], Awaitable[object]]:
    by = worker()
    await enqueue_one(subject.engine)
    await lease_one(subject.engine, by=by)
    return lambda: subject.engine.end_grants(by.owner)


async def _redrive(subject: Subject) -> Callable[[], Awaitable[object]]:
    driven = await drive_to(subject, State.DEAD)
    return lambda: subject.engine.redrive([driven.id])


async def _reschedule(subject: Subject) -> Callable[[], Awaitable[object]]:
    id = await enqueue_one(subject.engine, delay=3_600)
    return lambda: subject.engine.reschedule(id, delay=0)


async def _resume(subject: Subject) -> Callable[[], Awaitable[object]]:
    await enqueue_one(subject.engine)
    await subject.engine.pause(QUEUE)
    return lambda: subject.engine.resume(QUEUE)


async def _fire(subject: Subject) -> Callable[[], Awaitable[object]]:
    schedule = await subject.engine.put_schedule(NewSchedule("s", "0 * * * *", "t"))
    await advance_to(subject, schedule.next_run_at)
    return subject.engine.fire_due


_WAKING = {
    "enqueue": _enqueue,
    "release": _release,
    "lose": _lose,
    "rescue": _rescue,
    "end_grants": _end_of_owner,
    "redrive": _redrive,
    "reschedule": _reschedule,
    "resume": _resume,
    "fire_due": _fire,
}


class TestSignals:
    @pytest.mark.parametrize("prepare", _WAKING.values(), ids=_WAKING.keys())
    async def test_work_that_becomes_free_wakes_its_lane(
        self, harness: Harness, prepare: Callable[[Subject], Awaitable[Callable[[], Awaitable[object]]]]
    ) -> None:
        async with harness.subject() as subject:
            act = await prepare(subject)
            subscription = await subject.engine.subscribe([QUEUE, "other"])
            await silence(subscription)
            waiting = asyncio.create_task(subscription.wait(SOON))
            await act()
            assert await waiting, "nothing woke the listener"
            assert len(await leased_ids(subject.engine)) == 1
            await subscription.close()

    async def test_a_signal_between_a_lease_and_the_wait_is_not_missed(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            subscription = await engine.subscribe([QUEUE])
            await silence(subscription)
            for _ in range(3):
                assert await leased_ids(engine) == []
                id = await enqueue_one(engine)
                assert await subscription.wait(SOON), "the signal came before the wait and was lost"
                assert await leased_ids(engine) == [id]
                await silence(subscription)
            await subscription.close()

    async def test_every_listener_is_woken(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            listeners = [await engine.subscribe([QUEUE]) for _ in range(3)]
            for listener in listeners:
                await silence(listener)
            await enqueue_one(engine)
            assert all(await asyncio.gather(*(listener.wait(SOON) for listener in listeners)))
            for listener in listeners:
                await listener.close()

    async def test_noise_of_other_lanes_hides_nothing(self, harness: Harness) -> None:
        """A signal may be spurious, so being woken by others proves nothing; being deaf after them would."""
        async with harness.subject() as subject:
            engine = subject.engine
            subscription = await engine.subscribe([QUEUE])
            for _ in range(5):
                await enqueue_one(engine, queue="other")
                await enqueue_one(engine, tenant=OTHER_TENANT)
            await silence(subscription)
            await enqueue_one(engine)
            assert await subscription.wait(SOON)
            await subscription.close()

    async def test_a_wait_ends_with_its_timeout(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            subscription = await subject.engine.subscribe([QUEUE])
            await silence(subscription)
            await subscription.close()

    async def test_closing_one_listener_leaves_the_others(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            first, second = await engine.subscribe([QUEUE]), await engine.subscribe([QUEUE])
            await first.close()
            await silence(second)
            await enqueue_one(engine)
            assert await second.wait(SOON)
            await second.close()

    async def test_work_from_another_process_wakes_too(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine: Engine = subject.engine
            other = await subject.another() if Capability.SHARED in harness.capabilities else engine
            subscription = await engine.subscribe([QUEUE])
            await silence(subscription)
            await enqueue_one(other)
            assert await subscription.wait(SOON)
            await subscription.close()
