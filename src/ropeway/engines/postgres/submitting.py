"""Submitting: single calls coalesced, batches in one statement, keyed jobs on a connection of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from ropeway.core.errors import KeyInFlight, RopewayError, Unavailable
from ropeway.core.job import DEFAULT_TENANT, DEFAULT_TIMEOUT, NewJob
from ropeway.core.states import State
from ropeway.core.unique import KeyKind, unique_key
from ropeway.engines.batching import check_batch, mismatch
from ropeway.engines.postgres import transactional
from ropeway.engines.postgres.connection import Channel
from ropeway.engines.postgres.fields import folded, rare_fields
from ropeway.engines.postgres.store import PostgresStore
from ropeway.engines.protocol import Enqueued
from ropeway.runtime.coalesce import Coalescer
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


class Submission(NamedTuple):
    """One job on its way in."""

    tenant: str
    job: NewJob
    id: UUID


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

    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        if not jobs:
            return []
        times = [time for job in jobs for time in (job.run_at, job.expires_at) if time is not None]
        check_batch(jobs, await self.clock_for(*times) if times else NO_TIME, self.rules.max_payload_bytes)
        keyed = any(job.idempotency_key is not None or job.unique is not None for job in jobs)
        if not keyed:
            if len(jobs) == 1:
                return [await self._plain_calls.submit((tenant, jobs[0]))]
            return await self._insert_plain(_submissions([(tenant, job) for job in jobs]))
        try:
            if len(jobs) == 1:
                return [await self._keyed_calls.submit((tenant, jobs[0]))]
            batch = _submissions([(tenant, job) for job in jobs])
            answers = await self._insert_keyed(batch, all_or_none=True, lock_timeout=FLUSH_LOCK_TIMEOUT)
        except KeyInFlight:
            answers = await self._wait_for_keys(_submissions([(tenant, job) for job in jobs]))
        return [_raised(answer) for answer in answers]

    async def enqueue_in(
        self, connection: Any, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        times = [time for job in jobs for time in (job.run_at, job.expires_at) if time is not None]
        check_batch(jobs, await self.clock_for(*times), self.rules.max_payload_bytes)
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
        if len(batch) == 1 and _is_bare(batch[0].job):
            statement, arguments = "insert_job", _values(batch[0])
        else:
            statement, arguments = "insert_jobs", (*insert_arrays(batch), False)
        now: datetime = await self.with_partitions(
            lambda: self.inserts.value(self.sql("submitting", statement), *arguments)
        )
        self.wakeups.signal({(s.tenant, s.job.queue) for s in batch})
        return [Enqueued(s.id, _state(s.job, now)) for s in batch]

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
        channel = Channel(self.address)
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
        rows = await self.with_partitions(
            lambda: self._keyed_transaction(channel or self.keyed, batch, lock_timeout, all_or_none)
        )
        now = next((row["at"] for row in rows if row["job_id"] is None), None)
        known = {row["job_id"]: row for row in rows if row["job_id"] is not None}
        self.wakeups.signal({(s.tenant, s.job.queue) for s in batch if s.id not in known})
        return [_keyed_answer(submission, known.get(submission.id), now) for submission in batch]

    async def _keyed_transaction(
        self, channel: Channel, batch: Sequence[Submission], lock_timeout: float, all_or_none: bool
    ) -> list[asyncpg.Record]:
        """A row per job that a key keeps out, and one with the time; with `all_or_none` a mismatch undoes all."""
        statement = self.sql("submitting", "insert_keyed_jobs")
        try:
            if len(_rounds(batch)) == 1:
                # The usual case, in one round trip: the function itself refuses the whole for one mismatch.
                return await channel.fetch(statement, *self._keyed_arguments(batch, all_or_none, lock_timeout))
            async with channel.transaction() as connection:
                rows = await self._insert_rounds(connection, batch, lock_timeout)
                refused = {row["job_id"] for row in rows if row["mismatch"]} if all_or_none else set()
                if refused:
                    raise mismatch(next(i for i, submission in enumerate(batch) if submission.id in refused))
        except Unavailable as error:
            if is_held(error):
                raise in_flight() from error
            raise
        except asyncpg.PostgresError as error:
            if error.sqlstate == "RW422":
                raise mismatch([str(submission.id) for submission in batch].index(str(error.detail))) from None
            raise
        return rows

    async def insert_unique_in(
        self, connection: asyncpg.Connection[asyncpg.Record], batch: Sequence[Submission]
    ) -> list[Enqueued]:
        """Store unique jobs that are due now, in the caller's transaction."""
        rows = await self._insert_rounds(connection, batch, FLUSH_LOCK_TIMEOUT)
        known = {row["job_id"]: row for row in rows if row["job_id"] is not None}
        return [_raised(_keyed_answer(submission, known.get(submission.id), None)) for submission in batch]

    async def _insert_rounds(
        self, connection: asyncpg.Connection[asyncpg.Record], batch: Sequence[Submission], lock_timeout: float
    ) -> list[asyncpg.Record]:
        statement = self.sql("submitting", "insert_keyed_jobs")
        rows: list[asyncpg.Record] = []
        for part in _rounds(batch):
            rows += await connection.fetch(statement, *self._keyed_arguments(part, False, lock_timeout))
        return rows

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
        return (folded(columns[0]), folded(columns[1]), *columns[2:6], _sparse(columns[6]))


def insert_arrays(batch: Sequence[Submission]) -> tuple[list[Any], ...]:
    """A batch as the arrays of `insert_jobs`."""
    jobs = [submission.job for submission in batch]
    return (
        folded([submission.tenant for submission in batch]),
        [submission.id for submission in batch],
        folded([job.type for job in jobs]),
        folded([job.queue for job in jobs]),
        folded([job.priority for job in jobs]),
        folded([job.max_attempts for job in jobs]),
        [job.payload.decode() for job in jobs],
        _sparse([job.run_at for job in jobs]),
        _sparse([job.delay for job in jobs]),
        _sparse([job.idempotency_key for job in jobs]),
        _sparse([_options(job) for job in jobs]),
    )


def _values(submission: Submission) -> tuple[Any, ...]:
    """A bare job as the arguments of `insert_job`."""
    tenant, job, id = submission
    return (tenant, id, job.type, job.queue, job.priority, job.max_attempts, job.payload.decode())


def _is_bare(job: NewJob) -> bool:
    """Whether a job without keys is due at once and sets nothing that few jobs set."""
    return job.run_at is None and job.delay is None and _options(job) is None


def _sparse(values: list[Any]) -> list[Any]:
    """A column that may be NULL; nothing at all when it is NULL throughout."""
    return [] if values.count(None) == len(values) else values


def _options(job: NewJob) -> str | None:
    """The rare fields of a job as JSON; None for most jobs."""
    if (
        job.timeout == DEFAULT_TIMEOUT
        and job.retry is None
        and job.expires_at is None
        and job.expires_in is None
        and not job.tags
        and not job.headers
    ):
        return None
    return msgspec.json.encode(rare_fields(job)).decode()


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


def _keyed_answer(
    submission: Submission, known: asyncpg.Record | None, now: datetime | None
) -> Enqueued | Exception:
    if known is None:
        return Enqueued(submission.id, _state(submission.job, now))
    if known["mismatch"]:
        return mismatch(0)
    state = known["known_state"]
    return Enqueued(known["known_id"], None if state is None else State(state), deduplicated=True)


def _state(job: NewJob, now: datetime | None) -> State:
    """The state of a job that was just stored, by the engine's clock."""
    if job.delay is not None:
        return State.SCHEDULED if timedelta(seconds=job.delay) > timedelta() else State.QUEUED
    ahead = job.run_at is not None and now is not None and job.run_at > now
    return State.SCHEDULED if ahead else State.QUEUED


async def _alone(call: Awaitable[Sequence[Enqueued | Exception]]) -> Enqueued | Exception:
    """The answer to one caller's own insert, or its error as a value."""
    try:
        return (await call)[0]
    except (RopewayError, asyncpg.PostgresError) as error:
        return error


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
