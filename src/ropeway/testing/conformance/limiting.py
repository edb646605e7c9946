"""Limiting: buckets that all processes take from, and which jobs keys keep out. What a bucket gives is said by
`ropeway.core.limits.take`."""

from __future__ import annotations

from typing import Any

import pytest

from ropeway.core.errors import IdempotencyMismatch
from ropeway.core.limits import FORGET_TICKETS_AFTER, Taken
from ropeway.core.query import JobFilter
from ropeway.core.states import State
from ropeway.core.unique import Unique
from ropeway.engines.protocol import Engine
from ropeway.testing.conformance.kit import DAY, HOUR, OTHER_TENANT, ack, handles, lease_some, new_job
from ropeway.testing.conformance.subject import Harness
from ropeway.testing.conformance.tenancy import with_tenants


async def take(
    engine: Engine,
    wanted: float,
    name: str = "b",
    *,
    rate: float = 2.0,
    burst: float = 10.0,
    tenant: str = "default",
) -> Taken:
    return await engine.take_tokens(name, wanted, rate=rate, burst=burst, tenant=tenant)


def told(taken: Taken) -> Any:
    return pytest.approx((taken.granted, taken.left, taken.retry_in))


class TestBuckets:
    async def test_a_new_bucket_is_full_and_gives_what_is_there(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            assert told(await take(engine, 4)) == (4, 6, 0)
            assert told(await take(engine, 5.5)) == (5.5, 0.5, 0.25)
            assert told(await take(engine, 3)) == (0.5, 0, 0.5), "less than was wanted, and when the next is there"
            assert told(await take(engine, 1)) == (0, 0, 0.5)

    async def test_it_fills_at_its_rate_and_not_beyond_the_burst(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await take(engine, 10)
            await subject.advance(1.25)
            assert told(await take(engine, 0)) == (0, 2.5, 0), "to look costs nothing"
            await subject.advance(0.25)
            assert told(await take(engine, 10)) == (3, 0, 0.5)
            await subject.advance(1_000)
            assert told(await take(engine, 1)) == (1, 9, 0)

    async def test_no_drop_is_lost_when_it_is_asked_often(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await take(engine, 10)
            given = 0.0
            for _ in range(40):
                await subject.advance(0.125)
                given += (await take(engine, 1)).granted
            assert given == pytest.approx(10)

    async def test_another_rate_and_burst_hold_from_now_on(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await take(engine, 2)
            assert told(await take(engine, 0, burst=5)) == (0, 5, 0), "what is above the new brim is gone"
            assert told(await take(engine, 5, burst=100)) == (5, 0, 0.5)
            await subject.advance(1)
            assert told(await take(engine, 50, rate=40, burst=100)) == (40, 0, 0.025)

    async def test_a_wish_below_nothing_gives_and_adds_nothing(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            assert told(await take(subject.engine, -5)) == (0, 10, 0)
            assert told(await take(subject.engine, 10)) == (10, 0, 0.5)

    async def test_names_and_tenants_are_apart(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await take(engine, 10)
            assert (await take(engine, 10, "B")).granted == 10
            assert (await take(engine, 10, tenant=OTHER_TENANT)).granted == 10
            assert (await take(engine, 10)).granted == 0

    async def test_every_process_takes_from_the_same(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            one, two = await handles(harness, subject, 2)
            await take(one, 7)
            assert told(await take(two, 7)) == (3, 0, 0.5)
            await subject.advance(1)
            assert told(await take(one, 7)) == (2, 0, 0.5)

    async def test_prune_forgets_tickets_sooner(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            for name in ("ticket:a", "ticket", "other:a"):
                await take(engine, 10, name, rate=0)
            await subject.advance(FORGET_TICKETS_AFTER - 1)
            await engine.prune()
            assert (await take(engine, 0, "ticket:a", rate=0)).left == 0
            await subject.advance(FORGET_TICKETS_AFTER)
            await engine.prune()
            assert (await take(engine, 0, "ticket:a", rate=0)).left == 10
            assert [(await take(engine, 0, name, rate=0)).left for name in ("ticket", "other:a")] == [0, 0]

    async def test_prune_forgets_what_was_not_used_for_a_day(self, harness: Harness) -> None:
        # So slow that a day changes nothing, and so small that a forgotten bucket is told from a kept one.
        slow: dict[str, Any] = {"rate": 1e-6, "burst": 10.0}
        async with with_tenants(harness) as subject:
            engine = subject.engine
            for tenant in ("default", OTHER_TENANT):
                await take(engine, 10, "old", tenant=tenant, **slow)
            await subject.advance(1)
            await take(engine, 10, "young", **slow)
            await subject.advance(DAY - 1)
            await engine.prune()
            assert (await take(engine, 10, "young", **slow)).granted == pytest.approx(0, abs=0.2)
            assert (await take(engine, 10, "old", **slow)).granted == 10
            assert (await take(engine, 10, "old", tenant=OTHER_TENANT, **slow)).granted == 10
            await subject.advance(DAY - 1)
            await engine.prune()
            assert (await take(engine, 10, "old", **slow)).granted == pytest.approx(0, abs=0.2)


class TestKeptOut:
    """What `kept_out` says is what `enqueue` would do, and changes nothing."""

    async def test_an_idempotency_key_holds_as_long_as_enqueue_finds_it(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            asked = {key: new_job(idempotency_key=key) for key in ("short", "live", "ever", "free")}

            async def held() -> set[str]:
                answers = await engine.kept_out(list(asked.values()))
                return {key for key, out in zip(asked, answers, strict=True) if out}

            assert await held() == set()
            await engine.enqueue([new_job(idempotency_key="short", key_window=DAY)])
            await engine.enqueue([new_job(idempotency_key="ever", key_window=0)])
            for leased in await lease_some(engine, 2):
                await ack(engine, leased)
            await engine.enqueue([new_job(idempotency_key="live", key_window=DAY, delay=10 * DAY)])
            await subject.advance(DAY - 1)
            assert await held() == {"short", "live", "ever"}
            await subject.advance(1)
            assert await held() == {"live", "ever"}, "its window and its job have ended"
            await subject.advance(30 * DAY)
            await engine.prune()
            assert await held() == {"live", "ever"}, "a pruned job's key may outlive it"
            assert await engine.kept_out([]) == []

    async def test_so_does_one_that_came_with_another_body(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await engine.enqueue([new_job(idempotency_key="k")])
            other = new_job(idempotency_key="k", payload=b'{"other":1}')
            assert await engine.kept_out([other, new_job()]) == [True, False]
            with pytest.raises(IdempotencyMismatch):
                await engine.enqueue([other])

    @pytest.mark.parametrize(
        "rule",
        [
            Unique(),
            Unique(by="key", key="k"),
            Unique(within=HOUR),
            Unique(by="key", key="k", within=HOUR, states=frozenset({State.DEAD, State.CANCELLED})),
            Unique(states=frozenset({State.RUNNING, State.SUCCEEDED})),
        ],
        ids=["args", "key", "within", "within_of_ended", "of_some_states"],
    )
    async def test_a_unique_rule_does_as_long_as_enqueue_finds_a_job(self, harness: Harness, rule: Unique) -> None:
        """Through the life of the first job; the answer is compared with what `enqueue` then does."""
        async with with_tenants(harness) as subject:
            engine = subject.engine
            kinds = set()
            for steps in (0, 1, 2, 3):
                for passed in (0.0, HOUR - 1, HOUR):
                    # Another type each time: a life of its own.
                    job = new_job(type=f"t{steps}-{passed:.0f}", queue=f"q{steps}-{passed:.0f}", unique=rule)
                    await engine.enqueue([job])
                    if steps == 1:
                        await lease_some(engine, 1, job.queue)
                    elif steps == 2:
                        (leased,) = await lease_some(engine, 1, job.queue)
                        await ack(engine, leased)
                    elif steps == 3:
                        (found,) = (await engine.find(JobFilter(type=job.type))).jobs
                        await engine.cancel([found.id])
                    await subject.advance(passed)
                    (out,) = await engine.kept_out([job])
                    assert await engine.kept_out([job, new_job(), job]) == [out, False, out], "asking takes no key"
                    (answer,) = await engine.enqueue([job])
                    assert answer.deduplicated is out, (steps, passed)
                    kinds.add(out)
            assert kinds == {True, False}, "the rule was seen both ways"

    async def test_other_tenants_other_kinds_and_other_jobs_do_not(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engine = subject.engine
            await engine.enqueue([new_job(idempotency_key="k")], tenant=OTHER_TENANT)
            by_key = new_job(unique=Unique(by="key", key="k"))
            await engine.enqueue([by_key])
            both = [new_job(idempotency_key="k"), new_job(idempotency_key=f"key:{by_key.type}:k"), by_key]
            assert await engine.kept_out(both) == [False, False, True]
            assert await engine.kept_out(both, tenant=OTHER_TENANT) == [True, False, False]
            assert await engine.kept_out([new_job(unique=Unique()), new_job()]) == [False, False]
