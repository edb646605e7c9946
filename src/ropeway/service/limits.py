"""Admission: whether a tenant may do what it asks for, now. Refusals are `rate_limited`, `quota_exceeded`,
`queue_full` and `key_required`; none of them changes anything.

How exact: a rate is shared by all processes through the engine and kept to within a tenth of a second's worth per
process. Quotas and depth limits are exact as long as one process admits; several may pass them together by what
they admit within a second (`gauges`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from ropeway.core.access import Limits
from ropeway.core.errors import FieldError, PayloadError, QueueFull, QuotaExceeded, RopewayError
from ropeway.core.job import NewJob
from ropeway.core.query import Count, JobFilter, QueueSettings
from ropeway.core.states import LIVE_STATES, State
from ropeway.engines.protocol import Engine
from ropeway.service.access import Principal
from ropeway.service.buckets import Bucket, Purpose, RateState
from ropeway.service.gauges import Gauge

__all__ = ["NO_LIMITS", "Admission", "Purpose", "RateState", "Reservation"]

#: Seconds for which the settings of a tenant's queues are believed.
SETTINGS_SECONDS = 2.0

#: Buckets and gauges that were not used for so many seconds are dropped; looked at when there are many.
IDLE_SECONDS = 120.0
MANY = 1_024

#: Leases are expected to be used up no faster than in so many seconds: no rate says how many a call may take.
FILL_SECONDS = 10.0

NO_LIMITS = Limits()

_NO_SETTINGS = QueueSettings()
_Settings = dict[str, QueueSettings]


class Admission:
    """What one process admits. `defaults` are for what a tenant's own limits leave open; None there: no limit."""

    def __init__(
        self, engine: Engine, defaults: Limits = NO_LIMITS, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._defaults = defaults
        self._clock = clock
        self._buckets: dict[tuple[str, Purpose], Bucket] = {}
        #: By tenant and what is counted: a queue's name, or one of the two signs below, which no queue is called.
        self._gauges: dict[tuple[str, str], Gauge] = {}
        self._settings: dict[str, tuple[float, _Settings]] = {}

    # ── Rate ──

    async def request(
        self, principal: Principal, cost: float = 1.0, purpose: Purpose = Purpose.REQUESTS
    ) -> RateState | None:
        """Take `cost` from the tenant's rate for this purpose. Raises RateLimited. None: it has no rate limit."""
        bucket = self._bucket(principal, purpose)
        if bucket is None:
            return None
        await bucket.spend(cost)
        return bucket.state()

    def state(self, principal: Principal, purpose: Purpose = Purpose.REQUESTS) -> RateState | None:
        """How the tenant stands, for the headers of a refusal."""
        bucket = self._bucket(principal, purpose)
        return None if bucket is None else bucket.state()

    def burst(self, principal: Principal) -> float:
        """The most that one call may cost."""
        rate, burst = self._rate(principal)
        return math.inf if rate is None else burst

    def _bucket(self, principal: Principal, purpose: Purpose) -> Bucket | None:
        rate, burst = self._rate(principal)
        if rate is None:
            return None
        bucket = self._buckets.get((principal.tenant, purpose))
        if bucket is None:
            self._drop_idle()
            bucket = Bucket(self._engine, principal.tenant, purpose, clock=self._clock)
            self._buckets[principal.tenant, purpose] = bucket
        bucket.follow(rate, burst)
        return bucket

    def _rate(self, principal: Principal) -> tuple[float | None, float]:
        """A rate without a burst may be sent two seconds' worth at once, and at least one request."""
        rate = principal.limits.rate_per_second or self._defaults.rate_per_second
        if rate is None:
            return None, 0.0
        burst = principal.limits.burst
        if burst is None and principal.limits.rate_per_second is None:
            burst = self._defaults.burst
        return rate, float(burst) if burst is not None else max(1.0, 2 * rate)

    # ── Jobs ──

    async def enqueue(self, principal: Principal, jobs: Sequence[NewJob]) -> None:
        """Whether these jobs may be stored. Raises PayloadError, FieldError, QueueFull or QuotaExceeded.

        It takes for granted that they are stored right after. `admitted` is for those who store them in company.
        """
        for gauge, number in await self._admit(principal, jobs):
            gauge.arrived(number)

    def admitted(self, principal: Principal, jobs: Sequence[NewJob]) -> AbstractAsyncContextManager[None]:
        """As `enqueue`, round the call that stores the jobs: limits hold exactly also while many are under way,
        and what was not stored is not counted."""
        return _Admitted(self._admit(principal, jobs))

    async def _admit(self, principal: Principal, jobs: Sequence[NewJob]) -> list[tuple[Gauge, int]]:
        """Where there is no room, a job that a key or a unique rule keeps out needs none: the store answers with
        the first one."""
        try:
            return await self._admit_new(principal, jobs)
        except (QueueFull, QuotaExceeded):
            if all(job.idempotency_key is None and job.unique is None for job in jobs):
                raise
            kept_out = await self._engine.kept_out(jobs, tenant=principal.tenant)
            if not any(kept_out):
                raise
        new = [job for job, out in zip(jobs, kept_out, strict=True) if not out]
        return await self._admit_new(principal, new) if new else []

    async def _admit_new(self, principal: Principal, jobs: Sequence[NewJob]) -> list[tuple[Gauge, int]]:
        most_bytes = principal.limits.max_payload_bytes or self._defaults.max_payload_bytes
        if most_bytes is not None:
            _check_payloads(jobs, most_bytes)
        settings = await self._settings_of(principal.tenant)
        taken: list[tuple[Gauge, int]] = []
        try:
            if settings:
                await self._admit_to_queues(principal, jobs, settings, taken)
            limit = principal.limits.max_queued or self._defaults.max_queued
            if limit is not None:
                gauge = self._gauge(principal.tenant, _ALL)
                await self._admit_by(gauge, len(jobs), limit, self._growth(principal), taken, _quota)
        except RopewayError:
            for gauge, number in taken:
                gauge.failed(number)
            raise
        return taken

    async def _admit_to_queues(
        self, principal: Principal, jobs: Sequence[NewJob], settings: _Settings, taken: list[tuple[Gauge, int]]
    ) -> None:
        wanted: Counter[str] = Counter()
        for index, job in enumerate(jobs):
            rule = settings.get(job.queue, _NO_SETTINGS)
            if rule.require_key and job.idempotency_key is None:
                raise FieldError(
                    f"the queue {job.queue} takes only jobs with an idempotency key",
                    code="key_required",
                    pointer="/idempotency_key",
                    hint="send the header Idempotency-Key, or the field idempotency_key",
                    index=index,
                )
            if rule.depth_limit is not None:
                wanted[job.queue] += 1
        for queue, number in wanted.items():
            limit = settings[queue].depth_limit
            if limit is not None:
                gauge = self._gauge(principal.tenant, queue)
                growth = self._growth(principal)
                await self._admit_by(gauge, number, limit, growth, taken, partial(_full, queue))

    async def _admit_by(
        self,
        gauge: Gauge,
        number: int,
        limit: int,
        growth: float,
        taken: list[tuple[Gauge, int]],
        refusal: Callable[[int, int, float | None], RopewayError],
    ) -> None:
        if number > limit:
            raise refusal(number, limit, None)
        # Nothing may come between the look and the admission.
        if await gauge.room(number, limit, growth=growth) < number:
            raise refusal(number, limit, gauge.retry_in())
        gauge.admit(number)
        taken.append((gauge, number))

    def _growth(self, principal: Principal) -> float:
        rate, _ = self._rate(principal)
        return math.inf if rate is None else rate

    # ── Leases ──

    async def lease(self, principal: Principal, count: int) -> Reservation:
        """Room for as many of `count` as may be leased now. Raises QuotaExceeded when none may.

        It is held for the caller until it says how many it got: calls at the same time share what there is.
        """
        limit = principal.limits.max_leases or self._defaults.max_leases
        if limit is None:
            return Reservation(count)
        gauge = self._gauge(principal.tenant, _HELD)
        while (room := await gauge.room(1, limit, growth=limit / FILL_SECONDS)) < 1:
            if not gauge.in_flight:
                raise QuotaExceeded(
                    f"this tenant holds all the {limit:,} leases it may",
                    retry_in=gauge.retry_in(),
                    hint="finish or release jobs first, or have the tenant's max_leases raised",
                )
            # Others look for jobs just now, and most find fewer than they have room for.
            await gauge.settled()
        number = min(count, room)
        gauge.admit(number)
        return Reservation(number, gauge)

    async def lease_seconds(self, principal: Principal, queue: str) -> float | None:
        """How long leases of a queue were set to be; None: nobody set it."""
        settings = await self._settings_of(principal.tenant)
        return settings.get(queue, _NO_SETTINGS).lease_seconds

    # ── What is kept ──

    async def close(self) -> None:
        """Wait for what is under way."""
        for gauge in list(self._gauges.values()):
            await gauge.close()

    def forget_settings(self, tenant: str) -> None:
        """This process changed a queue's settings: they hold from its next call on."""
        self._settings.pop(tenant, None)

    async def _settings_of(self, tenant: str) -> _Settings:
        now = self._clock()
        known = self._settings.get(tenant)
        if known is None or now - known[0] >= SETTINGS_SECONDS:
            self._drop_idle()
            # The old ones serve whoever comes while these are read.
            if known is not None:
                self._settings[tenant] = (now, known[1])
            known = self._settings[tenant] = (now, await self._engine.queue_settings(tenant=tenant))
        return known[1]

    def _gauge(self, tenant: str, what: str) -> Gauge:
        gauge = self._gauges.get((tenant, what))
        if gauge is None:
            self._drop_idle()
            gauge = self._gauges[tenant, what] = Gauge(self._counter(tenant, what), clock=self._clock)
        return gauge

    def _counter(self, tenant: str, what: str) -> Callable[[int], Awaitable[Count]]:
        if what == _HELD:
            where = JobFilter(states=frozenset({State.RUNNING}))
        else:
            where = JobFilter(queue=None if what == _ALL else what, states=LIVE_STATES)
        return lambda cap: self._engine.count(where, cap=cap, tenant=tenant)

    def _drop_idle(self) -> None:
        """Tenants that are gone leave nothing behind."""
        edge = self._clock() - IDLE_SECONDS
        if len(self._buckets) >= MANY:
            self._buckets = {key: one for key, one in self._buckets.items() if one.used_at >= edge}
        if len(self._gauges) >= MANY:
            self._gauges = {key: one for key, one in self._gauges.items() if one.used_at >= edge}
        if len(self._settings) >= MANY:
            self._settings = {key: known for key, known in self._settings.items() if known[0] >= edge}


class Reservation:
    """Room for `number` leases, until `used` says how many there are."""

    __slots__ = ("_gauge", "number")

    def __init__(self, number: int, gauge: Gauge | None = None) -> None:
        self.number = number
        self._gauge = gauge

    def used(self, number: int) -> None:
        """So many were leased: they count before the next look at the store. The rest is given back. Once."""
        gauge, self._gauge = self._gauge, None
        if gauge is not None:
            gauge.arrived(min(number, self.number))
            gauge.failed(max(0, self.number - number))


class _Admitted:
    """Jobs on their way into the store. Each request has one, so it is no generator, which would cost more."""

    __slots__ = ("_admission", "_taken")

    def __init__(self, admission: Awaitable[list[tuple[Gauge, int]]]) -> None:
        self._admission = admission

    async def __aenter__(self) -> None:
        self._taken = await self._admission

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for gauge, number in self._taken:
            if error is None:
                gauge.arrived(number)
            else:
                gauge.failed(number)


#: What a gauge counts besides queues; no queue can be called so.
_ALL, _HELD = "/all", "/held"


def _check_payloads(jobs: Sequence[NewJob], most: int) -> None:
    for index, job in enumerate(jobs):
        if len(job.payload) > most:
            raise PayloadError(
                f"the payload has {len(job.payload):,} bytes; this tenant may send {most:,}",
                code="payload_too_large",
                hint="store the data elsewhere and send a reference",
                index=index,
            )


def _full(queue: str, number: int, limit: int, retry_in: float | None) -> QueueFull:
    if retry_in is None:
        return QueueFull(
            f"the queue {queue} takes {limit:,} jobs; {number:,} in one call are more than it ever has room for",
            hint="send smaller batches",
        )
    return QueueFull(
        f"the queue {queue} is full: it takes {limit:,} jobs that have not ended",
        retry_in=retry_in,
        hint="wait until workers have caught up, or raise its limit: ropeway queues set",
    )


def _quota(number: int, limit: int, retry_in: float | None) -> QuotaExceeded:
    if retry_in is None:
        return QuotaExceeded(
            f"this tenant may have {limit:,} jobs that have not ended; {number:,} in one call are more than that",
            hint="send smaller batches",
        )
    return QuotaExceeded(
        f"this tenant has all the {limit:,} jobs it may that have not ended",
        retry_in=retry_in,
        hint="wait until workers have caught up, or have the tenant's max_queued raised",
    )
