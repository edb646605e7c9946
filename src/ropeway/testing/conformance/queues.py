"""Queues: what they are set to, and how fast jobs come and go."""

from __future__ import annotations

import pytest

from ropeway.core.errors import FieldError
from ropeway.core.query import QueueSettings, QueueStats
from ropeway.core.states import State
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Engine
from ropeway.testing.conformance.kit import (
    OTHER_TENANT,
    QUEUE,
    drive_to,
    enqueue_many,
    enqueue_one,
    handles,
    lease_one,
    leased_ids,
    nack,
    new_job,
    release,
)
from ropeway.testing.conformance.subject import Harness

STRICT = QueueSettings(depth_limit=2**53, require_key=True, lease_seconds=1.5)


async def stats_of(engine: Engine, queue: str = QUEUE) -> QueueStats:
    (stats,) = await engine.queue_stats([queue])
    return stats


async def rates(engine: Engine, queue: str = QUEUE) -> tuple[float, float]:
    stats = await stats_of(engine, queue)
    return stats.enqueued_per_minute, stats.finished_per_minute


class TestQueueSettings:
    async def test_they_are_kept_as_they_were_given(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            assert await engine.queue_settings() == {}
            given = {
                "b": STRICT,
                "a": QueueSettings(depth_limit=1),
                "c": QueueSettings(require_key=True),
                "d": QueueSettings(lease_seconds=43_200),
            }
            for queue, settings in given.items():
                await engine.set_queue(queue, settings)
            assert await engine.queue_settings() == given

    async def test_they_are_replaced_as_a_whole_and_taken_away_by_the_defaults(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.set_queue("a", STRICT)
            await engine.set_queue("a", QueueSettings(depth_limit=5))
            assert await engine.queue_settings() == {"a": QueueSettings(depth_limit=5)}
            await engine.set_queue("a", QueueSettings())
            await engine.set_queue("never-set", QueueSettings())
            assert await engine.queue_settings() == {}
            assert await engine.queue_stats() == []

    async def test_settings_and_pause_are_apart(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine)
            await engine.set_queue(QUEUE, STRICT)
            assert not (await stats_of(engine)).paused
            await engine.pause(QUEUE)
            await engine.set_queue(QUEUE, QueueSettings(depth_limit=5))
            stats = await stats_of(engine)
            assert (stats.paused, stats.settings) == (True, QueueSettings(depth_limit=5))
            assert await leased_ids(engine) == []
            await engine.set_queue(QUEUE, QueueSettings())
            assert await leased_ids(engine) == [], "whether it is paused stays as it is"
            await engine.set_queue(QUEUE, STRICT)
            await engine.resume(QUEUE)
            assert await engine.queue_settings() == {QUEUE: STRICT}
            assert not (await stats_of(engine)).paused
            assert len(await leased_ids(engine)) == 1

    async def test_the_list_of_queues_shows_them(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine, queue="b")
            await engine.set_queue("b", STRICT)
            await engine.set_queue("a", QueueSettings(require_key=True))
            await enqueue_one(engine, queue="c")
            shown = [(stats.queue, stats.settings) for stats in await engine.queue_stats()]
            assert shown == [("a", QueueSettings(require_key=True)), ("b", STRICT), ("c", QueueSettings())]
            empty = await stats_of(engine, "a")
            assert (sum(empty.counts.values()), empty.paused, empty.oldest_age_seconds) == (0, False, None)

    async def test_an_engine_keeps_them_and_heeds_none(self, harness: Harness) -> None:
        if Capability.TENANCY not in harness.capabilities:
            pytest.skip("whoever admits jobs heeds them, and a server admits")
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.set_queue(QUEUE, QueueSettings(depth_limit=1, require_key=True, lease_seconds=1))
            wanted = await enqueue_many(engine, 3)
            assert await leased_ids(engine) == wanted

    async def test_tenants_set_their_own_queues(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await engine.set_queue("a", STRICT)
            assert await engine.queue_settings(tenant=OTHER_TENANT) == {}
            await engine.set_queue("a", QueueSettings(depth_limit=1), tenant=OTHER_TENANT)
            await engine.set_queue("a", QueueSettings(), tenant=OTHER_TENANT)
            assert await engine.queue_settings() == {"a": STRICT}

    async def test_every_process_sees_them(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            one, two = await handles(harness, subject, 2)
            await one.set_queue("a", STRICT)
            assert await two.queue_settings() == {"a": STRICT}

    async def test_a_queue_has_a_name(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            for name in ("", "a b", "q" * 129, "a\0"):
                with pytest.raises(FieldError):
                    await subject.engine.set_queue(name, STRICT)
            assert await subject.engine.queue_settings() == {}


class TestRates:
    async def test_they_are_of_the_last_minute(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_many(engine, 3)
            assert await rates(engine) == (3, 0)
            await subject.advance(30)
            await enqueue_many(engine, 2)
            assert await rates(engine) == (5, 0)
            await subject.advance(29.999999)
            assert await rates(engine) == (5, 0)
            await subject.advance(0.000001)
            assert await rates(engine) == (2, 0)
            await subject.advance(30)
            assert await rates(engine) == (0, 0)

    async def test_every_end_counts_and_nothing_else(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            for number, state in enumerate((State.SUCCEEDED, State.DEAD, State.CANCELLED), 1):
                await drive_to(subject, state)
                assert await rates(engine) == (number, number)
            await enqueue_one(engine)
            await nack(engine, await lease_one(engine), retry_after=0.0)
            await release(engine, await lease_one(engine))
            assert await rates(engine) == (4, 3)

    async def test_a_duplicate_and_a_redrive_are_no_new_jobs(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            driven = await drive_to(subject, State.DEAD, idempotency_key="k")
            await engine.redrive([driven.id])
            await engine.enqueue([new_job(idempotency_key="k")])
            assert await rates(engine) == (1, 1)

    async def test_queues_and_tenants_are_apart(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_many(engine, 2, queue="a")
            await drive_to(subject, State.SUCCEEDED, queue="b")
            await enqueue_many(engine, 5, queue="a", tenant=OTHER_TENANT)
            assert await rates(engine, "a") == (2, 0)
            assert await rates(engine, "b") == (1, 1)
