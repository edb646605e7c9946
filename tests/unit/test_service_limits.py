"""What a tenant may use: the shared rate, quotas and depth limits, and how little asking they take."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from ropeway.core.access import Limits, Scope
from ropeway.core.errors import (
    FieldError,
    LimitError,
    PayloadError,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    Unavailable,
)
from ropeway.core.job import NewJob
from ropeway.core.query import Count, QueueSettings
from ropeway.core.unique import Unique
from ropeway.engines.protocol import Engine
from ropeway.service.access import Principal
from ropeway.service.buckets import HOLD_SECONDS, Bucket, Purpose
from ropeway.service.gauges import QUICK, SHORTEST, Gauge
from ropeway.service.limits import SETTINGS_SECONDS, Admission
from ropeway.testing.conformance.kit import ack, enqueue_many, lease_some
from tests.unit.service_kit import CountingEngine, Time, counting


def holder(tenant: str = "default", **limits: float) -> Principal:
    return Principal(tenant, "k", "key", frozenset(Scope), Limits(**limits))  # type: ignore[arg-type]


def some(number: int, queue: str = "default", **fields: object) -> list[NewJob]:
    return [NewJob("t", queue=queue, **fields) for _ in range(number)]  # type: ignore[arg-type]


def gate(engine: Engine, time: Time, **defaults: float) -> Admission:
    return Admission(engine, Limits(**defaults), clock=time.monotonic)  # type: ignore[arg-type]


async def passes(admission: Admission, who: Principal, tries: int, cost: float = 1.0) -> int:
    """How many of so many requests at one moment are let through."""
    passed = 0
    for _ in range(tries):
        try:
            await admission.request(who, cost)
            passed += 1
        except RateLimited:
            pass
    return passed


# ── the rate ──


async def test_the_burst_passes_and_then_the_rate() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time), holder(rate_per_second=10, burst=20)
        assert await passes(admission, who, 100) == 20
        passed = 0
        for _ in range(100):
            time.advance(0.1)
            passed += await passes(admission, who, 5)
        # Ten seconds at ten per second, up to what was in hand at the ends.
        assert 98 <= passed <= 100


async def test_a_refusal_says_when_to_come_back_and_then_it_is_true() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time), holder(rate_per_second=2, burst=4)
        await passes(admission, who, 4)
        for _ in range(10):
            with pytest.raises(RateLimited) as refusal:
                await admission.request(who)
            assert refusal.value.code == "rate_limited"
            assert refusal.value.retry_in is not None
            assert 0 < refusal.value.retry_in <= 0.6
            time.advance(refusal.value.retry_in)
            await admission.request(who)


async def test_the_headers_tell_what_is_left_and_when_all_of_it_is_back() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time), holder(rate_per_second=10, burst=20)
        state = await admission.request(who, 5)
        assert state is not None
        assert (state.limit, state.remaining, state.reset) == (20, 15, pytest.approx(0.5))
        await passes(admission, who, 100)
        state = admission.state(who)
        assert state is not None
        assert (state.limit, state.remaining, state.reset) == (20, 0, pytest.approx(2.0))
        time.advance(100)
        state = admission.state(who)
        assert state is not None
        assert (state.remaining, state.reset) == (20, 0)


async def test_no_limit_no_asking() -> None:
    async with counting() as (engine, time):
        admission = gate(engine, time)
        assert await admission.request(holder()) is None
        assert admission.state(holder()) is None
        assert engine.asked["take_tokens"] == 0


async def test_a_tenant_s_own_limits_go_before_the_defaults() -> None:
    async with counting() as (engine, time):
        admission = gate(engine, time, rate_per_second=1_000, burst=5)
        assert await passes(admission, holder("a"), 100) == 5
        assert await passes(admission, holder("b", burst=7), 100) == 7
        # A rate of one's own comes with a burst of one's own: two seconds' worth.
        assert await passes(admission, holder("c", rate_per_second=20), 100) == 40
        assert await passes(admission, holder("d", rate_per_second=0.1), 100) == 1


async def test_tenants_do_not_share_a_bucket() -> None:
    async with counting() as (engine, time):
        admission = gate(engine, time, rate_per_second=10, burst=10)
        assert await passes(admission, holder("a"), 100) == 10
        assert await passes(admission, holder("b"), 100) == 10


async def test_limits_that_were_changed_hold_at_once() -> None:
    async with counting() as (engine, time):
        admission = gate(engine, time)
        assert await passes(admission, holder(rate_per_second=1, burst=2), 10) == 2
        time.advance(1_000)
        assert await passes(admission, holder(rate_per_second=100, burst=50), 100) <= 50
        time.advance(1)
        assert await passes(admission, holder(rate_per_second=100, burst=50), 100) == 50


async def test_many_requests_ask_the_engine_seldom() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time), holder(rate_per_second=10_000, burst=20_000)
        for _ in range(100):
            assert await passes(admission, who, 80) == 80
            time.advance(0.01)
        # 8,000 requests in a second, a thousand taken ahead each time.
        assert engine.asked["take_tokens"] <= 12


async def test_a_tenant_beyond_its_rate_costs_next_to_nothing() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time), holder(rate_per_second=10_000, burst=10_000)
        passed = 0
        for _ in range(1_000):
            passed += await passes(admission, who, 100)
            time.advance(0.001)
        # 100,000 requests in a second: burst and rate passed, the engine was asked fifty times or so.
        assert 19_000 <= passed <= 20_000
        assert engine.asked["take_tokens"] <= 80


@pytest.mark.parametrize("processes", [2, 5])
async def test_processes_share_one_rate_and_share_it_fairly(processes: int) -> None:
    random.seed(processes)
    async with counting() as (engine, time):
        who = holder(rate_per_second=1_000, burst=1_000)
        admissions = [gate(engine, time) for _ in range(processes)]
        passed = [0] * processes
        for _ in range(20_000):
            for number, admission in enumerate(admissions):
                passed[number] += await passes(admission, who, 1)
            time.advance(0.001)
        # 20 s of a thousand each second, and the burst; a little is forfeited in hands.
        assert 19_000 <= sum(passed) <= 21_000
        share = sum(passed) / processes
        assert all(0.7 * share <= one <= 1.3 * share for one in passed), passed


async def test_a_slow_rate_is_not_lost_in_pieces() -> None:
    """Two processes that are asked all the time: what one has taken in part is not forfeited for ever."""
    async with counting() as (engine, time):
        who = holder(rate_per_second=0.05, burst=1)
        admissions = [gate(engine, time) for _ in range(2)]
        passed = 0
        for _ in range(4_000):
            for admission in admissions:
                passed += await passes(admission, who, 1)
            time.advance(0.1)
        # 400 s at one in 20 s, and the first.
        assert 18 <= passed <= 21


async def test_tokens_in_hand_are_forfeited_soon() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time), holder(rate_per_second=100, burst=100)
        await admission.request(who)
        assert engine.asked["take_tokens"] == 1
        time.advance(HOLD_SECONDS)
        await admission.request(who)
        assert engine.asked["take_tokens"] == 2


async def test_a_batch_costs_its_number_and_waits_for_all_of_it() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time), holder(rate_per_second=100, burst=500)
        await admission.request(who, 450)
        with pytest.raises(RateLimited) as refusal:
            await admission.request(who, 150)
        assert refusal.value.retry_in == pytest.approx(1.0)
        # A single one still passes: the batch took nothing.
        assert await passes(admission, who, 50) == 50


async def test_a_batch_that_finds_too_little_leaves_it_to_the_others() -> None:
    async with counting() as (engine, time):
        here, there, who = gate(engine, time), gate(engine, time), holder(rate_per_second=1, burst=500)
        await here.request(who, 300)
        await there.request(who, 160)
        # As far as it knows there might be 200; there are 40.
        with pytest.raises(RateLimited) as refusal:
            await here.request(who, 150)
        assert refusal.value.retry_in == pytest.approx(110)
        assert await passes(there, who, 100) == 40


async def test_a_part_that_was_taken_all_the_same_is_kept_until_the_rest_has_come() -> None:
    async with counting() as (engine, time):
        here, there, who = gate(engine, time), gate(engine, time), holder(rate_per_second=1, burst=500)
        await here.request(who)
        await there.request(who, 400)
        # It has no reason to think that there is so little, and takes it.
        with pytest.raises(RateLimited) as refusal:
            await here.request(who, 150)
        assert refusal.value.retry_in == pytest.approx(51)
        time.advance(51)
        await here.request(who, 150)


async def test_a_call_that_can_never_pass_says_so() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time), holder(rate_per_second=100, burst=500)
        with pytest.raises(QuotaExceeded, match="counts for 501; the tenant may send 500 at once") as refusal:
            await admission.request(who, 501)
        assert refusal.value.retry_in is None
        assert engine.asked["take_tokens"] == 0


async def test_callers_at_once_share_one_question() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time), holder(rate_per_second=10_000, burst=10_000)
        await asyncio.gather(*(admission.request(who) for _ in range(500)))
        assert engine.asked["take_tokens"] == 1


async def test_a_store_that_is_away_is_no_refusal_of_rate() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time), holder(rate_per_second=10, burst=10)
        engine.away = Unavailable("away")
        with pytest.raises(Unavailable):
            await admission.request(who)
        engine.away = None
        await admission.request(who)


async def test_buckets_of_tenants_who_are_gone_are_dropped() -> None:
    async with counting() as (engine, time):
        admission = gate(engine, time, rate_per_second=10, burst=10)
        for number in range(2_000):
            await admission.request(holder(f"t{number}"))
        time.advance(1_000)
        await admission.request(holder("new"))
        assert len(admission._buckets) == 1
        assert isinstance(admission._buckets["new", Purpose.REQUESTS], Bucket)


async def test_a_flood_of_requests_leaves_workers_and_operators_their_own_rate() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time, rate_per_second=10, burst=10), holder()
        await admission.request(who, 10)
        with pytest.raises(RateLimited):
            await admission.request(who)
        for purpose in (Purpose.WORK, Purpose.OPERATE):
            state = await admission.request(who, 9, purpose)
            assert state is not None
            assert state.remaining == 1
            with pytest.raises(RateLimited):
                await admission.request(who, 2, purpose)


# ── jobs ──


async def submit(
    admission: Admission, engine: Engine, who: Principal, jobs: Sequence[NewJob]
) -> LimitError | FieldError | None:
    try:
        await admission.enqueue(who, jobs)
    except (LimitError, FieldError) as error:
        return error
    await engine.enqueue(jobs, tenant=who.tenant)
    return None


async def test_a_quota_of_queued_jobs_is_exact_for_one_process() -> None:
    async with counting() as (engine, time):
        await enqueue_many(engine, 3)
        admission, who = gate(engine, time, max_queued=10), holder()
        for _ in range(7):
            assert await submit(admission, engine, who, some(1)) is None
        error = await submit(admission, engine, who, some(1))
        assert isinstance(error, QuotaExceeded)
        assert error.retry_in is not None
        assert "10 jobs" in str(error)
        # What ended makes room at once.
        for leased in await lease_some(engine, 2):
            await ack(engine, leased)
        assert isinstance(await submit(admission, engine, who, some(3)), QuotaExceeded)
        assert await submit(admission, engine, who, some(2)) is None
        assert isinstance(await submit(admission, engine, who, some(1)), QuotaExceeded)
        # Another tenant has its own.
        assert await submit(admission, engine, holder("other"), some(10)) is None


async def test_running_and_scheduled_jobs_count() -> None:
    async with counting() as (engine, time):
        await enqueue_many(engine, 5, delay=1_000.0)
        await enqueue_many(engine, 5)
        await lease_some(engine, 5)
        admission = gate(engine, time, max_queued=10)
        assert isinstance(await submit(admission, engine, holder(), some(1)), QuotaExceeded)


async def test_a_depth_limit_is_exact_for_one_process() -> None:
    async with counting() as (engine, time):
        await engine.set_queue("mail", QueueSettings(depth_limit=5))
        admission, who = gate(engine, time), holder()
        assert await submit(admission, engine, who, some(3, "mail")) is None
        assert await submit(admission, engine, who, some(2, "mail") + some(50)) is None
        error = await submit(admission, engine, who, some(9) + some(1, "mail"))
        assert isinstance(error, QueueFull)
        assert error.code == "queue_full"
        assert "mail is full: it takes 5 jobs" in str(error)
        # The refused call counts for nothing.
        await ack(engine, (await lease_some(engine, 1, "mail"))[0])
        assert await submit(admission, engine, who, some(1, "mail")) is None
        assert isinstance(await submit(admission, engine, who, some(1, "mail")), QueueFull)


async def test_a_batch_that_can_never_fit_says_so() -> None:
    async with counting() as (engine, time):
        await engine.set_queue("mail", QueueSettings(depth_limit=5))
        admission = gate(engine, time, max_queued=8)
        full = await submit(admission, engine, holder(), some(6, "mail"))
        quota = await submit(admission, engine, holder(), some(9))
        assert isinstance(full, QueueFull)
        assert isinstance(quota, QuotaExceeded)
        assert (full.retry_in, quota.retry_in) == (None, None)
        assert "smaller batches" in str(full)
        assert "smaller batches" in str(quota)


async def test_a_refusal_by_the_quota_gives_back_the_queue_s_room() -> None:
    async with counting() as (engine, time):
        await engine.set_queue("mail", QueueSettings(depth_limit=5))
        admission = gate(engine, time, max_queued=6)
        assert await submit(admission, engine, holder(), some(4)) is None
        for _ in range(10):
            assert isinstance(await submit(admission, engine, holder(), some(3, "mail")), QuotaExceeded)
        assert await submit(admission, engine, holder(), some(2, "mail")) is None


async def test_limits_hold_while_many_are_under_way() -> None:
    """Those who store in company: nobody sees the others' jobs yet, and still no more than the limit get in."""
    async with counting() as (engine, time):
        await engine.set_queue("mail", QueueSettings(depth_limit=25))
        admission = gate(engine, time)
        go = asyncio.Event()

        async def one() -> bool:
            try:
                async with admission.admitted(holder(), some(1, "mail")):
                    await go.wait()
                    await engine.enqueue(some(1, "mail"))
                    return True
            except QueueFull:
                return False

        tasks = [asyncio.create_task(one()) for _ in range(100)]
        await asyncio.sleep(0)
        go.set()
        assert sum(await asyncio.gather(*tasks)) == 25


async def test_what_was_not_stored_does_not_count() -> None:
    async with counting() as (engine, time):
        await engine.set_queue("mail", QueueSettings(depth_limit=2))
        admission = gate(engine, time, max_queued=100)
        for _ in range(10):
            with pytest.raises(Unavailable):
                async with admission.admitted(holder(), some(2, "mail")):
                    raise Unavailable("away")
        async with admission.admitted(holder(), some(2, "mail")):
            await engine.enqueue(some(2, "mail"))
        with pytest.raises(QueueFull):
            async with admission.admitted(holder(), some(1, "mail")):
                raise AssertionError("it was let in")


async def test_far_from_the_limit_nothing_is_counted_per_call() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time, max_queued=1_000_000, rate_per_second=1_000), holder()
        for _ in range(300):
            assert await submit(admission, engine, who, some(2)) is None
            time.advance(0.01)
        assert engine.asked["count"] == 1
        assert engine.asked["queue_settings"] == 2


async def test_two_processes_pass_a_limit_by_no_more_than_a_second_s_worth() -> None:
    async with counting() as (engine, time):
        await engine.set_queue("mail", QueueSettings(depth_limit=200))
        admissions = [gate(engine, time, rate_per_second=1_000), gate(engine, time, rate_per_second=1_000)]
        stored = 0
        for _ in range(1_000):
            for admission in admissions:
                stored += await submit(admission, engine, holder(), some(1, "mail")) is None
                # Counts are made in the background.
                await asyncio.sleep(0)
            time.advance(0.01)
        await asyncio.gather(*(admission.close() for admission in admissions))
        # Each admits a hundred in a second here.
        assert 200 <= stored <= 300


async def test_a_queue_that_requires_a_key() -> None:
    async with counting() as (engine, time):
        await engine.set_queue("pay", QueueSettings(require_key=True))
        admission = gate(engine, time)
        error = await submit(admission, engine, holder(), [*some(1), *some(1, "pay", idempotency_key="k")])
        assert error is None
        error = await submit(admission, engine, holder(), [*some(1), *some(1, "pay")])
        assert isinstance(error, FieldError)
        assert (error.code, error.pointer, error.index) == ("key_required", "/idempotency_key", 1)


async def test_settings_reach_other_processes_in_seconds_and_this_one_at_once() -> None:
    async with counting() as (engine, time):
        here, there = gate(engine, time), gate(engine, time)
        for admission in (here, there):
            assert await submit(admission, engine, holder(), some(1, "pay")) is None
        await engine.set_queue("pay", QueueSettings(require_key=True, lease_seconds=90))
        here.forget_settings("default")
        assert isinstance(await submit(here, engine, holder(), some(1, "pay")), FieldError)
        assert await submit(there, engine, holder(), some(1, "pay")) is None
        assert await there.lease_seconds(holder(), "pay") is None
        time.advance(SETTINGS_SECONDS)
        assert isinstance(await submit(there, engine, holder(), some(1, "pay")), FieldError)
        assert await there.lease_seconds(holder(), "pay") == 90
        assert await there.lease_seconds(holder(), "other") is None


async def test_a_payload_larger_than_the_tenant_may_send() -> None:
    async with counting() as (engine, time):
        admission = gate(engine, time, max_payload_bytes=100)
        await admission.enqueue(holder(), [NewJob("t", payload=b'"' + b"x" * 98 + b'"')])
        with pytest.raises(PayloadError) as refusal:
            await admission.enqueue(holder(), [*some(2), NewJob("t", payload=b'"' + b"x" * 99 + b'"')])
        assert (refusal.value.code, refusal.value.index) == ("payload_too_large", 2)
        await admission.enqueue(holder(max_payload_bytes=101), [NewJob("t", payload=b'"' + b"x" * 99 + b'"')])


# ── leases ──


async def test_a_tenant_holds_no_more_leases_than_it_may() -> None:
    async with counting() as (engine, time):
        await enqueue_many(engine, 20)
        admission, who = gate(engine, time), holder(max_leases=5)
        room = await admission.lease(who, 3)
        assert room.number == 3
        first = await lease_some(engine, 3)
        room.used(3)
        room = await admission.lease(who, 10)
        assert room.number == 2
        await lease_some(engine, 2)
        room.used(2)
        with pytest.raises(QuotaExceeded, match="5 leases") as refusal:
            await admission.lease(who, 1)
        assert refusal.value.retry_in is not None
        await ack(engine, first[0])
        assert (await admission.lease(who, 10)).number == 1


async def test_calls_at_the_same_time_do_not_pass_the_limit_together() -> None:
    async with counting() as (engine, time):
        await enqueue_many(engine, 100)
        admission, who = gate(engine, time), holder(max_leases=10)

        async def worker() -> int:
            room = await admission.lease(who, 4)
            leased = await lease_some(engine, room.number)
            room.used(len(leased))
            return len(leased)

        got = await asyncio.gather(*(worker() for _ in range(20)), return_exceptions=True)
        assert sum(one for one in got if isinstance(one, int)) == 10
        refused = [one for one in got if not isinstance(one, int)]
        assert len(refused) == 17
        assert all(isinstance(one, QuotaExceeded) for one in refused)


async def test_room_that_others_hold_for_nothing_is_waited_for() -> None:
    async with counting() as (engine, time):
        admission, who = gate(engine, time), holder(max_leases=10)
        await enqueue_many(engine, 2)
        first = await admission.lease(who, 10)
        await lease_some(engine, 2)
        second = asyncio.create_task(admission.lease(who, 10))
        third = asyncio.create_task(admission.lease(who, 1))
        third_gone = asyncio.create_task(admission.lease(who, 1))
        await asyncio.sleep(0)
        third_gone.cancel()
        first.used(2)
        first.used(2)
        assert (await second).number == 8
        (await second).used(0)
        assert (await third).number == 1


async def test_idle_polls_count_nothing() -> None:
    async with counting() as (engine, time):
        admission = gate(engine, time, max_leases=100)
        for _ in range(50):
            room = await admission.lease(holder(), 100)
            assert room.number == 100
            room.used(0)
            time.advance(0.01)
        assert engine.asked["count"] == 1
        assert (await gate(engine, time).lease(holder(), 1_000)).number == 1_000


# ── the gauge itself ──


class Number:
    """Something to count, slowly, and what was asked for."""

    def __init__(self, time: Time, value: int = 0, takes: float = 0.0) -> None:
        self.time, self.value, self.takes = time, value, takes
        self.caps: list[int] = []

    async def count(self, cap: int) -> Count:
        self.caps.append(cap)
        self.time.advance(self.takes)
        await asyncio.sleep(0)
        return Count(min(self.value, cap), capped=self.value > cap)


async def test_a_limit_of_millions_is_first_looked_at_quickly() -> None:
    time = Time()
    number = Number(time, 5_000_000)
    gauge = Gauge(number.count, clock=time.monotonic)
    assert await gauge.room(1, 10_000_000, growth=10_000) == 10_000_000 - QUICK
    await gauge.close()
    assert number.caps == [QUICK, 10_000_000]
    assert await gauge.room(1, 10_000_000, growth=10_000) == 5_000_000


async def test_a_full_store_is_never_taken_for_one_that_has_room() -> None:
    time = Time()
    number = Number(time, 0)
    gauge = Gauge(number.count, clock=time.monotonic)
    assert await gauge.room(1, 50_000, growth=1) == 50_000
    gauge.admit(50_000)
    gauge.arrived(50_000)
    number.value = 50_000
    assert await gauge.room(1, 50_000, growth=1) == 0


async def test_a_slow_count_is_made_seldom() -> None:
    time = Time()
    number = Number(time, 100, takes=0.5)
    gauge = Gauge(number.count, clock=time.monotonic)
    assert await gauge.room(1, 100, growth=10) == 0
    asked = len(number.caps)
    for _ in range(80):
        assert await gauge.room(1, 100, growth=10) == 0
        time.advance(0.1)
    await gauge.close()
    # Full, and asked all the time: not counted again for ten seconds.
    assert len(number.caps) == asked
    number.value = 50
    time.advance(5)
    assert await gauge.room(1, 100, growth=10) == 50


@pytest.mark.parametrize(("used", "seconds"), [(0, 60.0), (9_000, 10.0), (9_990, SHORTEST)])
async def test_the_nearer_the_limit_the_more_often_it_is_counted(used: int, seconds: float) -> None:
    time = Time()
    number = Number(time, used)
    gauge = Gauge(number.count, clock=time.monotonic)

    async def asked(after: float) -> int:
        time.advance(after)
        await gauge.room(1, 10_000, growth=100)
        await gauge.close()
        return len(number.caps)

    assert await asked(0) == 1
    assert await asked(seconds - 0.01) == 1
    assert await asked(0.01) == 2


async def test_what_is_on_its_way_counts_though_no_count_sees_it() -> None:
    time = Time()
    number = Number(time, 0)
    gauge = Gauge(number.count, clock=time.monotonic)
    assert await gauge.room(10, 100, growth=100) == 100
    gauge.admit(10)
    time.advance(2 * SHORTEST)
    assert await gauge.room(1, 100, growth=100) == 90
    assert len(number.caps) == 2
    gauge.arrived(6)
    gauge.failed(4)
    assert gauge.used == 6
    number.value = 6
    time.advance(2 * SHORTEST)
    assert await gauge.room(1, 100, growth=100) == 94


async def test_after_a_while_without_calls_the_first_one_waits_for_a_count() -> None:
    """What others did meanwhile is not found out only after the call."""
    time = Time()
    number = Number(time, 10)
    gauge = Gauge(number.count, clock=time.monotonic)
    assert await gauge.room(1, 100, growth=100) == 90
    number.value = 99
    time.advance(1.5 * SHORTEST)
    assert await gauge.room(1, 100, growth=100) == 90
    await gauge.close()
    number.value = 40
    time.advance(2 * SHORTEST)
    assert await gauge.room(1, 100, growth=100) == 60


async def test_a_count_that_fails_in_the_background_leaves_the_old_number() -> None:
    time = Time()
    number = Number(time, 10)
    fails: Callable[[int], object] = number.count

    async def count(cap: int) -> Count:
        answer = await fails(cap)  # type: ignore[misc]
        assert isinstance(answer, Count)
        return answer

    async def away(cap: int) -> Count:
        number.caps.append(cap)
        raise Unavailable("away")

    gauge = Gauge(count, clock=time.monotonic)
    assert await gauge.room(1, 100, growth=100) == 90
    fails = away
    time.advance(1.5 * SHORTEST)
    assert await gauge.room(1, 100, growth=100) == 90
    await gauge.close()
    assert await gauge.room(1, 100, growth=100) == 90
    assert len(number.caps) == 2
    with pytest.raises(Unavailable):
        await gauge.room(91, 100, growth=100)


async def test_gauges_and_settings_of_tenants_who_are_gone_are_dropped() -> None:
    async with counting() as (engine, time):
        assert isinstance(engine, CountingEngine)
        admission = gate(engine, time, max_queued=10)
        for number in range(2_000):
            await admission.enqueue(holder(f"t{number}"), some(1))
        time.advance(1_000)
        await admission.enqueue(holder("new"), some(1))
        assert (len(admission._gauges), len(admission._settings)) == (1, 1)


# ── jobs whose key is known ──


KNOWN = {
    "keys": [NewJob("t", idempotency_key="a"), NewJob("t", idempotency_key="b")],
    "unique": [NewJob("t", unique=Unique(by="key", key="a")), NewJob("t", b"[1]", unique=Unique(within=60.0))],
    "both": [NewJob("t", idempotency_key="a"), NewJob("t", unique=Unique())],
}


@pytest.mark.parametrize("first", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("by", ["queue", "quota"])
async def test_what_is_known_needs_no_room(by: str, first: list[NewJob]) -> None:
    async with counting() as (engine, time):
        who = holder() if by == "queue" else holder(max_queued=2)
        if by == "queue":
            await engine.set_queue("default", QueueSettings(depth_limit=2))
        admission = gate(engine, time)
        async with admission.admitted(who, first):
            await engine.enqueue(first)
        for again in (first, first[:1]):
            async with admission.admitted(who, again):
                assert all(answer.deduplicated for answer in await engine.enqueue(again))
        with pytest.raises(LimitError):
            await admission.enqueue(who, [NewJob("t", idempotency_key="c")])
        with pytest.raises(LimitError):
            await admission.enqueue(who, [NewJob("t", b"[2]", unique=Unique())])
        with pytest.raises(LimitError):
            await admission.enqueue(who, [*first, NewJob("t", idempotency_key="c")])
        with pytest.raises(LimitError):
            await admission.enqueue(who, [*first, NewJob("t")])


async def test_only_the_unknown_of_a_batch_are_counted() -> None:
    async with counting() as (engine, time):
        admission = gate(engine, time, max_queued=3)
        known = [NewJob("t", idempotency_key=key) for key in "ab"]
        async with admission.admitted(holder(), known):
            await engine.enqueue(known)
        more = [*known, NewJob("t", idempotency_key="c")]
        async with admission.admitted(holder(), more):
            await engine.enqueue(more)
        with pytest.raises(QuotaExceeded):
            await admission.enqueue(holder(), some(1))


async def test_keys_are_looked_for_only_where_there_is_no_room() -> None:
    async with counting() as (engine, time):
        admission = gate(engine, time, max_queued=3)
        await admission.enqueue(holder(), [NewJob("t", idempotency_key=key) for key in "abc"])
        await enqueue_many(engine, 3)
        assert engine.asked["kept_out"] == 0
        with pytest.raises(QuotaExceeded):
            await admission.enqueue(holder(), some(1))
        assert engine.asked["kept_out"] == 0, "it has no key"
        with pytest.raises(QuotaExceeded):
            await admission.enqueue(holder(), some(1, idempotency_key="k"))
        assert engine.asked["kept_out"] == 1
