"""Submitting: the new jobs of all calls of a flush, in a few statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from ropeway.core import retry
from ropeway.core.errors import IdempotencyMismatch, RopewayError
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.states import State
from ropeway.engines.batching import check_batch
from ropeway.engines.protocol import Enqueued
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.keys import KeyRing, Keys, Taken, kept_out, keys_of
from ropeway.engines.sqlite.rows import micros, moment, seconds, text
from ropeway.engines.sqlite.store import SqliteStore
from ropeway.engines.sqlite.writer import Transaction
from ropeway.runtime.faultpoints import fault
from ropeway.runtime.ids import uuid7s

SQL = statements("ropeway.engines.sqlite", "sql/submitting.sql")

#: A group of jobs is written when its payloads are this long together; SQLite takes values of up to 10^9 bytes.
GROUP_BYTES = 67_108_864


class Submission(NamedTuple):
    """The jobs of one call, and the keys of each; None when no job has any."""

    tenant: str
    jobs: Sequence[NewJob]
    keys: Sequence[Keys | None] | None


def submission(tenant: str, jobs: Sequence[NewJob], window: float) -> Submission:
    keys = [keys_of(job, tenant, window) for job in jobs]
    return Submission(tenant, jobs, keys if any(keys) else None)


class SqliteSubmitting(SqliteStore):
    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        if not jobs:
            return []
        check_batch(jobs, self.clock.now(), self.rules.max_payload_bytes)
        asked = submission(tenant, jobs, self.rules.idempotency_window)
        answers = await self.write(enqueue_all, asked, len(jobs))
        fault("enqueue.committed")
        return answers

    async def kept_out(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[bool]:
        now = micros(self.clock.now())
        return await self.read(lambda db: kept_out(db, now, jobs, tenant))


def enqueue_all(tx: Transaction, calls: Sequence[Submission]) -> list[list[Enqueued] | RopewayError]:
    """Store the jobs of all calls that are not refused, in the order of the calls."""
    keyed = [keys for call in calls if call.keys is not None for keys in call.keys if keys is not None]
    batch = _Batch(tx, KeyRing(tx.db, tx.now, keyed))
    ids = iter(uuid7s(sum([len(call.jobs) for call in calls])))
    answers: list[list[Enqueued] | RopewayError] = []
    for call in calls:
        if call.keys is None:
            answers.append([batch.add(call.tenant, job, next(ids)) for job in call.jobs])
            continue
        try:
            answers.append(batch.add_keyed(call, call.keys, [next(ids) for _ in call.jobs]))
        except IdempotencyMismatch as error:
            answers.append(error)
    batch.write()
    return answers


class _Batch:
    """The rows of a flush, gathered before they are written."""

    def __init__(self, tx: Transaction, ring: KeyRing) -> None:
        self._tx = tx
        self._ring = ring
        (self._last_place,) = tx.db.execute(SQL["last_place"]).fetchone()
        self._place: int = self._last_place
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._noted: list[tuple[str, int]] = []
        self._now = moment(tx.now)

    def add_keyed(self, call: Submission, keys: Sequence[Keys | None], ids: Sequence[UUID]) -> list[Enqueued]:
        """Add what no key keeps out. Everything is decided before anything is added: all or none."""
        mine: Taken = {}
        known: list[Enqueued | None] = []
        for index, (job, of_job) in enumerate(zip(call.jobs, keys, strict=True)):
            try:
                known.append(None if of_job is None else self._ring.known(job, of_job, mine))
            except IdempotencyMismatch as error:
                error.index = index
                raise
            if of_job is not None and known[-1] is None:
                self._ring.take(job, of_job, ids[index], self._state(job), mine)
        self._ring.keep(mine)
        return [
            answer or self.add(call.tenant, job, id) for answer, job, id in zip(known, call.jobs, ids, strict=True)
        ]

    def _state(self, job: NewJob) -> State:
        return State.SCHEDULED if self._run_at(job) > self._tx.now else State.QUEUED

    def _run_at(self, job: NewJob) -> int:
        if job.delay is not None:
            return self._tx.now + seconds(job.delay)
        if job.run_at is not None:
            return max(self._tx.now, micros(job.run_at))
        return self._tx.now

    def add(self, tenant: str, job: NewJob, id: UUID) -> Enqueued:
        now = self._tx.now
        run_at = self._run_at(job)
        expires_at = None
        if job.expires_in is not None:
            expires_at = now + seconds(job.expires_in)
        elif job.expires_at is not None:
            expires_at = micros(job.expires_at)
        shape = (
            tenant,
            job.type,
            job.queue,
            job.priority,
            run_at,
            expires_at,
            job.max_attempts,
            job.timeout,
            None if job.retry is None else retry.encode(job.retry),
            text(job.tags) if job.tags else None,
            text(job.headers) if job.headers else None,
        )
        group = self._groups.get(shape)
        if group is None:
            group = self._groups[shape] = _Group(shape)
        self._place += 1
        group.places.append(self._place)
        group.ids.append(id.bytes)
        group.payloads.append(job.payload)
        group.bytes += len(job.payload)
        if group.bytes > GROUP_BYTES:
            self._groups.pop(shape).write(self._tx)
        if job.idempotency_key is not None:
            self._noted.append((job.idempotency_key, self._place))
        if run_at == now:
            return Enqueued(id, State.QUEUED, False, self._now, self._now)
        return Enqueued(id, State.SCHEDULED, False, self._now, moment(run_at))

    def write(self) -> None:
        """Everything that was added, and the events that tell of it."""
        if self._place == self._last_place:
            return
        db = self._tx.db
        for group in self._groups.values():
            group.write(self._tx)
        db.execute(SQL["log_enqueued"], {"last_place": self._last_place})
        if self._noted:
            db.executemany(SQL["note_key"], self._noted)
        if keys := self._ring.rows():
            db.executemany(SQL["take_key"], keys)


class _Group:
    """Jobs that differ in nothing but places, ids and payloads: most jobs of most flushes."""

    __slots__ = ("bytes", "ids", "payloads", "places", "shape")

    def __init__(self, shape: tuple[Any, ...]) -> None:
        self.shape = dict(zip(_SHAPE, shape, strict=True))
        self.places: list[int] = []
        self.ids: list[bytes] = []
        self.payloads: list[bytes] = []
        self.bytes = 0

    def write(self, tx: Transaction) -> None:
        cuts, start = [], 1
        for place, payload in zip(self.places, self.payloads, strict=True):
            cuts.append((place, start, len(payload)))
            start += len(payload)
        tx.db.execute(
            SQL["insert_bodies"], {**self.shape, "cuts": text(cuts), "payloads": b"".join(self.payloads)}
        )
        tx.db.execute(
            SQL["insert_jobs"],
            {**self.shape, "places": text(self.places), "ids": b"".join(self.ids), "now": tx.now},
        )
        tx.woken.add((self.shape["tenant"], self.shape["queue"]))


_SHAPE = (
    "tenant",
    "type",
    "queue",
    "priority",
    "run_at",
    "expires_at",
    "max_attempts",
    "timeout",
    "retry",
    "tags",
    "headers",
)
