"""Submitting: single calls coalesced, batches in one statement, keyed jobs on a connection of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg

from ropeway.core.errors import EngineError, Indeterminate, KeyInFlight, RopewayError, Unavailable
from ropeway.core.job import DEFAULT_TENANT, Alike, NewJob
from ropeway.core.states import State
from ropeway.core.unique import KeyKind, unique_key
from ropeway.engines.batching import check_batch, mismatch
from ropeway.engines.postgres import transactional
from ropeway.engines.postgres.connection import Channel
from ropeway.engines.postgres.fields import (
    Submission,
    alike_arrays,
    folded,
    insert_arrays,
    insert_values,
    is_bare,
    sparse,
    times_of_array,
)
from ropeway.engines.postgres.signalling import Wakeup
from ropeway.engines.postgres.store import PostgresStore
from ropeway.engines.protocol import Enqueued, EnqueuedAlike
from ropeway.runtime.coalesce import Coalescer
from ropeway.runtime.faultpoints import fault
from ropeway.runtime.ids import uuid7s

#: Jobs per flush of coalesced single calls.
FLUSH = 500

#: How long a flush of many callers waits for a key that someone else's open transaction holds.
FLUSH_LOCK_TIMEOUT = 0.1

#: The same, for each caller's job when the flush is repeated job by job.
ALONE_LOCK_TIMEOUT = 0.02

#: How long one caller waits for such a key, by itself, before it is told that the key is in flight.
CALLER_LOCK_TIMEOUT = 2.0

#: How many callers of one engine do so at once, each on a connection of its own.
WAITERS = 4


#: One caller's single job, before it has an id.
Call = tuple[str, NewJob]

#: For jobs that name no time, whose horizon need not be checked.
NO_TIME = datetime.min.replace(tzinfo=UTC)


def _submissions(calls: Sequence[Call]) -> list[Submission]:
    return [Submission(tenant, job, id) for (tenant, job), id in zip(calls, uuid7s(len(calls)), strict=True)]


class PostgresSubmitting(PostgresStore):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._plain_calls: Coalescer[Call, Enqueued] = Coalescer(self._flush_plain, limit=FLUSH)
        self._keyed_calls: Coalescer[Call, Enqueued] = Coalescer(self._flush_keyed, limit=FLUSH)
        self._waiters = asyncio.Semaphore(WAITERS)

    async def close(self) -> None:
        """Wait for what was submitted, then close."""
        await self._plain_calls.close()
        await self._keyed_calls.close()
        await super().close()

    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> Sequence[Enqueued]:
        if not jobs:
            return []
        kinds = [jobs.model] if isinstance(jobs, Alike) else jobs
        times = [time for job in kinds for time in (job.run_at, job.expires_at) if time is not None]
        check_batch(jobs, await self.clock_for(*times) if times else NO_TIME, self.rules.max_payload_bytes)
        keyed = any(job.idempotency_key is not None or job.unique is not None for job in kinds)
        if not keyed:
            if len(jobs) == 1:
                return [await self._plain_calls.submit((tenant, jobs[0]))]
            if isinstance(jobs, Alike):
                return await self._insert_alike(tenant, jobs)
            return await self._insert_plain(_submissions([(tenant, job) for job in jobs]))
        try:
            if len(jobs) == 1:
                return [await self._keyed_calls.submit((tenant, jobs[0]))]
            batch = _submissions([(tenant, job) for job in jobs])
            answers = await self._insert_keyed(batch, all_or_none=True, lock_timeout=FLUSH_LOCK_TIMEOUT)
        except KeyInFlight:
            answers = await self._wait_for_keys(_submissions([(tenant, job) for job in jobs]))
        return [_raised(answer) for answer in answers]

    async def kept_out(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[bool]:
        batch = _submissions([(tenant, job) for job in jobs])
        _, kinds, keys, ids, _, spans, states = self._keys(batch)
        if not keys:
            return [False] * len(batch)
        statement = self.sql("submitting", "kept_out")
        rows = await self.reads.fetch(statement, tenant, kinds, keys, ids, spans, states, writes=False)
        known = {row["job_id"] for row in rows}
        return [submission.id in known for submission in batch]

    async def enqueue_in(
        self, connection: Any, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        times = [time for job in jobs for time in (job.run_at, job.expires_at) if time is not None]
        check_batch(jobs, await self.clock_for(*times), self.rules.max_payload_bytes)
        await self.expect_partitions()
        return await transactional.enqueue(connection, self.schema, jobs, tenant, self.rules.idempotency_window)

    def enqueue_in_sync(
        self, connection: Any, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        # The host's clock may be a little off at a horizon of ten years.
        check_batch(jobs, datetime.now(UTC), self.rules.max_payload_bytes)
        return transactional.enqueue_sync(connection, self.schema, jobs, tenant, self.rules.idempotency_window)

    async def _flush_plain(self, calls: Sequence[Call]) -> Sequence[Enqueued | Exception]:
        batch = _submissions(calls)
        try:
            return await self._insert_plain(batch)
        except Unavailable:
            raise
        except asyncpg.PostgresError:
            # A row that the database refuses costs only its own caller: again, one by one.
            if len(batch) == 1:
                raise
        return [await _alone(self._insert_plain([submission])) for submission in batch]

    async def _insert_plain(self, batch: Sequence[Submission]) -> list[Enqueued]:
        if len(batch) == 1 and is_bare(batch[0].job):
            answers = [await self._insert_bare(batch[0])]
        else:
            answers = taken(batch, await self._add_jobs("add_jobs", insert_arrays(batch)))
            self.wakeups.signal({(s.tenant, s.job.queue) for s in batch})
        fault("enqueue.committed")
        return answers

    async def _insert_alike(self, tenant: str, jobs: Alike) -> Sequence[Enqueued]:
        ids = uuid7s(len(jobs))
        arguments = alike_arrays(tenant, jobs, ids)
        if arguments is None:
            return await self._insert_plain(_submissions([(tenant, job) for job in jobs]))
        at, places = await self._add_jobs("add_lines", arguments)
        self.wakeups.signal({(tenant, jobs.model.queue)})
        fault("enqueue.committed")
        return EnqueuedAlike(ids, _state(jobs.model, at), at, partial(times_of_array, places))

    async def _add_jobs(self, statement: str, arguments: tuple[Any, ...]) -> asyncpg.Record:
        """When jobs were taken, and the place of each."""
        text = self.sql("submitting", statement)
        (row,) = await self.with_retries(lambda: self.inserts.fetch(text, *arguments, False))
        return row

    async def _insert_bare(self, submission: Submission) -> Enqueued:
        lane = submission.tenant, submission.job.queue
        wakeup = self.wakeups.to_take_along(lane)
        if wakeup is None:
            statement, arguments = self.sql("submitting", "insert_job"), insert_values(submission)
            now: datetime = await self.with_retries(lambda: self.inserts.value(statement, *arguments))
            self.wakeups.signal([lane])
        else:
            now, told = await self.with_retries(lambda: self._insert_and_tell(submission, wakeup))
            self.wakeups.signal([lane], told=told)
        return Enqueued(submission.id, State.QUEUED, created_at=now, run_at=now)

    async def _insert_and_tell(self, submission: Submission, wakeup: Wakeup) -> tuple[datetime, bool]:
        """When the job was taken, and whether others were told of it."""
        statement = self.sql("submitting", "insert_job_and_tell")
        try:
            return await self.inserts.value(statement, *insert_values(submission), *wakeup), True
        except (Unavailable, asyncpg.PostgresError) as error:
            if not self.inserts.is_open or inserting(_context(error)):
                raise
            # Either of two transactions may be what failed; only the first one matters.
            try:
                now = await self.inserts.value(
                    self.sql("submitting", "taken_at"), submission.tenant, submission.id, writes=False
                )
            except (EngineError, asyncpg.PostgresError):
                raise Indeterminate("it is not known whether the job was stored") from error
            if now is None:
                raise
            return now, False

    async def _flush_keyed(self, calls: Sequence[Call]) -> Sequence[Enqueued | Exception]:
        """One flush for all callers; if a key is held by someone's open transaction, one by one.

        Whoever asked for that key waits elsewhere (`_wait_for_keys`), not in everybody's flush.
        """
        batch = _submissions(calls)
        if len(batch) > 1:
            try:
                return await self._insert_keyed(batch, all_or_none=False, lock_timeout=FLUSH_LOCK_TIMEOUT)
            except (KeyInFlight, asyncpg.PostgresError):
                pass
        answers: list[Enqueued | Exception] = []
        for submission in batch:
            alone = self._insert_keyed([submission], all_or_none=False, lock_timeout=ALONE_LOCK_TIMEOUT)
            answers.append(await _alone(alone))
        return answers

    async def _wait_for_keys(self, batch: Sequence[Submission]) -> list[Enqueued | Exception]:
        """One caller's wait for keys that someone's open transaction holds; raises KeyInFlight in the end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CALLER_LOCK_TIMEOUT
        try:
            async with asyncio.timeout_at(deadline):
                await self._waiters.acquire()
        except TimeoutError:
            raise in_flight() from None
        channel = Channel(self.address, self.bounds)
        try:
            left = max(deadline - loop.time(), ALONE_LOCK_TIMEOUT)
            return await self._insert_keyed(batch, all_or_none=len(batch) > 1, lock_timeout=left, channel=channel)
        finally:
            self._waiters.release()
            await channel.close()

    async def _insert_keyed(
        self,
        batch: Sequence[Submission],
        *,
        all_or_none: bool,
        lock_timeout: float,
        channel: Channel | None = None,
    ) -> list[Enqueued | Exception]:
        answers = await self.with_retries(
            lambda: self._keyed_transaction(channel or self.keyed, batch, lock_timeout, all_or_none)
        )
        stored = {answer.id for answer in answers if isinstance(answer, Enqueued) and not answer.deduplicated}
        self.wakeups.signal({(s.tenant, s.job.queue) for s in batch if s.id in stored})
        fault("enqueue.committed")
        return answers

    async def _keyed_transaction(
        self, channel: Channel, batch: Sequence[Submission], lock_timeout: float, all_or_none: bool
    ) -> list[Enqueued | Exception]:
        """An answer per job, in order; with `all_or_none` a mismatch undoes all."""
        statement = self.sql("submitting", "add_keyed_jobs")
        try:
            if len(_rounds(batch)) == 1:
                # The usual case, in one round trip: the function itself refuses the whole for one mismatch.
                rows = await channel.fetch(statement, *self._keyed_arguments(batch, all_or_none, lock_timeout))
                known = _answers(batch, rows)
                return [known[submission.id] for submission in batch]
            async with channel.transaction() as connection:
                answers = await self._insert_rounds(connection, batch, lock_timeout)
                refused = next((i for i, answer in enumerate(answers) if isinstance(answer, Exception)), None)
                if all_or_none and refused is not None:
                    raise mismatch(refused)
        except Unavailable as error:
            if is_held(error):
                raise in_flight() from error
            raise
        except asyncpg.PostgresError as error:
            if error.sqlstate == "RW422":
                raise mismatch([str(submission.id) for submission in batch].index(str(error.detail))) from None
            raise
        return answers

    async def insert_unique_in(
        self, connection: asyncpg.Connection[asyncpg.Record], batch: Sequence[Submission]
    ) -> list[Enqueued]:
        """Store unique jobs in the caller's transaction."""
        return [_raised(answer) for answer in await self._insert_rounds(connection, batch, FLUSH_LOCK_TIMEOUT)]

    async def _insert_rounds(
        self, connection: asyncpg.Connection[asyncpg.Record], batch: Sequence[Submission], lock_timeout: float
    ) -> list[Enqueued | Exception]:
        statement = self.sql("submitting", "add_keyed_jobs")
        answers: dict[UUID, Enqueued | Exception] = {}
        for part in _rounds(batch):
            rows = await connection.fetch(statement, *self._keyed_arguments(part, False, lock_timeout))
            answers.update(_answers(part, rows))
        return [answers[submission.id] for submission in batch]

    def _keyed_arguments(
        self, batch: Sequence[Submission], all_or_none: bool, lock_timeout: float
    ) -> tuple[Any, ...]:
        limit = f"{lock_timeout * 1000:.0f}ms"
        return (*insert_arrays(batch), False, *self._keys(batch), all_or_none, limit)

    def _keys(self, batch: Sequence[Submission]) -> tuple[list[Any], ...]:
        """The keys of a batch as arrays: tenant, kind, key, job, fingerprint, window, states."""
        rows: list[tuple[Any, ...]] = []
        for tenant, job, id in batch:
            if job.idempotency_key is not None:
                window = self.rules.idempotency_window if job.key_window is None else job.key_window
                kind = KeyKind.IDEMPOTENCY.value
                rows.append((tenant, kind, job.idempotency_key, id, job.body_fingerprint(), window, None))
            if job.unique is not None:
                states = ",".join(sorted(job.unique.blocking_states))
                kind = KeyKind.UNIQUE.value
                rows.append((tenant, kind, unique_key(job), id, b"", job.unique.within, states))
        if not rows:
            return ([],) * 7
        columns = [list(column) for column in zip(*rows, strict=True)]
        return (folded(columns[0]), folded(columns[1]), *columns[2:6], sparse(columns[6]))


def _rounds(batch: Sequence[Submission]) -> list[list[Submission]]:
    """The jobs of a batch in groups that name each key once, so that one after the other keeps their order: what a
    repeated key is told depends on what became of the job before it."""
    rounds: list[list[Submission]] = []
    used: dict[tuple[str, str, str], int] = {}
    for submission in batch:
        names = _key_names(submission)
        number = max((used.get(name, 0) for name in names), default=0)
        for name in names:
            used[name] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(submission)
    return rounds


def _key_names(submission: Submission) -> list[tuple[str, str, str]]:
    tenant, job, _ = submission
    names = []
    if job.idempotency_key is not None:
        names.append((tenant, KeyKind.IDEMPOTENCY.value, job.idempotency_key))
    if job.unique is not None:
        names.append((tenant, KeyKind.UNIQUE.value, unique_key(job) or ""))
    return names


def _answers(batch: Sequence[Submission], rows: Sequence[asyncpg.Record]) -> dict[UUID, Enqueued | Exception]:
    """What the rows of `add_keyed_jobs` say to each job of the batch, by its id."""
    answers: dict[UUID, Enqueued | Exception] = {
        row["job_id"]: _known_answer(row) for row in rows if row["job_id"] is not None
    }
    new = [submission for submission in batch if submission.id not in answers]
    for row in rows:
        if row["job_id"] is None:
            answers.update((answer.id, answer) for answer in taken(new, row))
    return answers


def _known_answer(row: asyncpg.Record) -> Enqueued | Exception:
    if row["mismatch"]:
        return mismatch(0)
    state = row["known_state"]
    return Enqueued(row["known_id"], None if state is None else State(state), deduplicated=True)


def taken(batch: Sequence[Submission], row: asyncpg.Record) -> list[Enqueued]:
    """The answers to jobs that were stored together: when, and the place of each."""
    at: datetime = row["taken_at"]
    return [
        Enqueued(submission.id, _state(submission.job, at), created_at=at, run_at=place)
        for submission, place in zip(batch, row["places"], strict=True)
    ]


def _state(job: NewJob, now: datetime) -> State:
    """The state of a job that was just stored, by the engine's clock."""
    if job.delay is not None:
        return State.SCHEDULED if timedelta(seconds=job.delay) > timedelta() else State.QUEUED
    return State.SCHEDULED if job.run_at is not None and job.run_at > now else State.QUEUED


async def _alone(call: Awaitable[Sequence[Enqueued | Exception]]) -> Enqueued | Exception:
    """The answer to one caller's own insert, or its error as a value."""
    try:
        return (await call)[0]
    except (RopewayError, asyncpg.PostgresError) as error:
        return error


def _context(error: Unavailable | asyncpg.PostgresError) -> str:
    """Where in the server it happened, the innermost function first, as PostgreSQL tells it."""
    cause = error.__cause__ if isinstance(error, Unavailable) else error
    return getattr(cause, "context", None) or ""


def inserting(context: str) -> bool:
    """Whether this happened while a job was inserted, so that it cannot have been committed.

    What comes after the procedure is not looked at: a server may be told to add the parameters of the call.
    """
    return "insert_job(" in context.partition("insert_job_and_tell(")[0]


def is_held(error: Unavailable) -> bool:
    """Whether the statement gave up because someone's open transaction holds what it needs."""
    return isinstance(error.__cause__, asyncpg.LockNotAvailableError)


def in_flight() -> KeyInFlight:
    return KeyInFlight(
        "another transaction holds the same key and has not committed yet", hint="try again shortly"
    )


def _raised(answer: Enqueued | Exception) -> Enqueued:
    if isinstance(answer, Exception):
        raise answer
    return answer
