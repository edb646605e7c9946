"""The way of calls into the store: window, trace, middleware, then one enqueue for all of them."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from ropeway.client.engines import Engines
from ropeway.core.job import Alike, NewJob
from ropeway.core.window import Window
from ropeway.engines.protocol import Engine, Enqueued, EnqueuedAlike
from ropeway.observability import metrics, tracing
from ropeway.observability.logs import logger
from ropeway.observability.names import JOB_CREATED
from ropeway.task.middleware import Middleware, enqueue_middlewares, wrap_enqueue

log = logger("ropeway.client")

#: Stores jobs together and answers each.
Store = Callable[[Sequence[NewJob]], Awaitable[Sequence[Enqueued]]]

#: The window of each job's task, if any; None when no task has one.
Windows = Sequence[Window | None] | None


class Producer:
    """Takes the jobs of one app to its engines. All jobs of one call are stored, or none."""

    def __init__(self, engines: Engines, middlewares: Sequence[Middleware]) -> None:
        self.engines = engines
        self._middlewares = middlewares

    async def submit(
        self, jobs: Sequence[NewJob], windows: Windows, *, tenant: str, connection: Any = None
    ) -> Sequence[Enqueued]:
        engine = self.engines.ready() or await self.engines.here()
        if connection is None:
            return await self._submit(jobs, windows, engine, lambda jobs: engine.enqueue(jobs, tenant=tenant))

        async def inside(jobs: Sequence[NewJob]) -> Sequence[Enqueued]:
            return [Enqueued(id, None) for id in await engine.enqueue_in(connection, jobs, tenant=tenant)]

        return await self._submit(jobs, windows, engine, inside)

    def submit_sync(
        self, jobs: Sequence[NewJob], windows: Windows, *, tenant: str, connection: Any = None
    ) -> Sequence[Enqueued]:
        if connection is None:
            return self.engines.run(lambda: self.submit(jobs, windows, tenant=tenant), instead="aenqueue()")
        return self._submit_in_callers_thread(jobs, windows, tenant, connection)

    def _submit_in_callers_thread(
        self, jobs: Sequence[NewJob], windows: Windows, tenant: str, connection: Any
    ) -> Sequence[Enqueued]:
        """Everything but the statement itself runs in the background thread: a connection may be used only in the
        thread that it belongs to."""
        asked: concurrent.futures.Future[tuple[Engine, Sequence[NewJob]]] = concurrent.futures.Future()
        stored: concurrent.futures.Future[Sequence[Enqueued]] = concurrent.futures.Future()

        async def submit() -> Sequence[Enqueued]:
            engine = await self.engines.here()

            def store(jobs: Sequence[NewJob]) -> Awaitable[Sequence[Enqueued]]:
                asked.set_result((engine, jobs))
                return asyncio.wrap_future(stored)

            return await self._submit(jobs, windows, engine, store)

        whole = self.engines.start(submit, instead="aenqueue()")
        either: tuple[concurrent.futures.Future[Any], ...] = (whole, asked)
        concurrent.futures.wait(either, return_when=concurrent.futures.FIRST_COMPLETED)
        if asked.done():
            engine, asked_for = asked.result()
            try:
                ids = engine.enqueue_in_sync(connection, asked_for, tenant=tenant)
                stored.set_result([Enqueued(id, None) for id in ids])
            except BaseException as error:  # noqa: BLE001 - raised below, to the middleware first
                stored.set_exception(error)
        return whole.result()

    async def _submit(
        self, jobs: Sequence[NewJob], windows: Windows, engine: Engine, store: Store
    ) -> Sequence[Enqueued]:
        middlewares = enqueue_middlewares(self._middlewares) if self._middlewares else ()
        traced = tracing.active()
        if not (middlewares or windows or traced):
            answers = await store(jobs)
        else:
            # What tells a repeated call from another one is what the caller asked for, not what is added here.
            jobs = [_with_fingerprint(job) for job in jobs]
            if windows:
                jobs = _moved(jobs, windows, await engine.now())
            first = jobs[0]
            with tracing.enqueue_span(first.type, first.queue, count=len(jobs)):
                if traced:
                    jobs = [msgspec.structs.replace(job, headers=tracing.inject(job.headers)) for job in jobs]
                answers = await _through(middlewares, jobs, store)
        _tell(jobs, answers)
        return answers


def _with_fingerprint(job: NewJob) -> NewJob:
    if job.idempotency_key is None or job.fingerprint is not None:
        return job
    return msgspec.structs.replace(job, fingerprint=job.body_fingerprint())


def _moved(jobs: Sequence[NewJob], windows: Sequence[Window | None], now: datetime) -> list[NewJob]:
    return [
        job if window is None else in_window(job, window, now) for job, window in zip(jobs, windows, strict=True)
    ]


def in_window(job: NewJob, window: Window, now: datetime) -> NewJob:
    """The job, moved to when its task's window is open. `now` is the engine's."""
    asked = now if job.delay is None else now + timedelta(seconds=job.delay)
    if job.run_at is not None:
        asked = max(asked, job.run_at)
    if window.contains(asked):
        return job
    return msgspec.structs.replace(job, run_at=window.next_start(asked), delay=None)


def _tell(jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> None:
    """Count and log what was stored. Never payloads."""
    if len(jobs) == 1:
        count = metrics.deduplicated if answers[0].deduplicated else metrics.enqueued
        count(jobs[0].queue, jobs[0].type, 1)
    else:
        for (queue, type, deduplicated), number in _numbers(jobs, answers).items():
            if number:
                (metrics.deduplicated if deduplicated else metrics.enqueued)(queue, type, number)
    if not log.debug_is_heard():
        return
    for job, answer in zip(jobs, answers, strict=True):
        if not answer.deduplicated:
            log.debug(JOB_CREATED, job_id=answer.id, type=job.type, queue=job.queue)


def _numbers(jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> Counter[tuple[str, str, bool]]:
    """How many jobs of each queue and type were stored, and how many were there already."""
    if isinstance(jobs, Alike):
        queue, type = jobs.model.queue, jobs.model.type
        known = 0 if isinstance(answers, EnqueuedAlike) else sum([answer.deduplicated for answer in answers])
        return Counter({(queue, type, True): known, (queue, type, False): len(answers) - known})
    return Counter((job.queue, job.type, answer.deduplicated) for job, answer in zip(jobs, answers, strict=True))


# ── Middleware round a batch ──


async def _through(middlewares: Sequence[Middleware], jobs: Sequence[NewJob], store: Store) -> Sequence[Enqueued]:
    """Each job goes through its own middleware; those that get through are stored together."""
    if not middlewares:
        return await store(jobs)
    meeting = _Meeting(len(jobs), store)
    passing = [asyncio.ensure_future(meeting.lead(index, middlewares, job)) for index, job in enumerate(jobs)]
    try:
        return await asyncio.gather(*passing)
    except BaseException:
        for task in passing:
            task.cancel()
        await asyncio.wait(passing)
        raise


class _Meeting:
    """Where the jobs of a batch wait for one another."""

    def __init__(self, expected: int, store: Store) -> None:
        self._expected = expected
        self._store = store
        self._arrived: dict[int, tuple[NewJob, asyncio.Future[Enqueued]]] = {}
        self._storing: asyncio.Task[None] | None = None

    async def lead(self, index: int, middlewares: Sequence[Middleware], job: NewJob) -> Enqueued:
        async def arrive(job: NewJob) -> Enqueued:
            if self._storing is not None:  # the middleware tries again
                return (await self._store([job]))[0]
            future: asyncio.Future[Enqueued] = asyncio.get_running_loop().create_future()
            self._arrived[index] = (job, future)
            self._store_if_complete()
            return await future

        answer: Enqueued = await wrap_enqueue(middlewares, arrive)(job)
        if index not in self._arrived:
            # The middleware has answered by itself: nothing of this job is stored.
            self._expected -= 1
            self._store_if_complete()
        return answer

    def _store_if_complete(self) -> None:
        if self._arrived and len(self._arrived) == self._expected and self._storing is None:
            self._storing = asyncio.ensure_future(self._store_all())

    async def _store_all(self) -> None:
        arrived = [self._arrived[index] for index in sorted(self._arrived)]
        try:
            answers = await self._store([job for job, _ in arrived])
        except BaseException as error:  # noqa: BLE001 - raised through each job's middleware
            for _, future in arrived:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(arrived, answers, strict=True):
            if not future.done():
                future.set_result(answer)
