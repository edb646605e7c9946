"""Submitting: new jobs of all calls of a flush in a few statements, with the keys that keep duplicates out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from ropeway.core import retry
from ropeway.core.errors import IdempotencyMismatch, RopewayError
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.states import State
from ropeway.core.unique import KeyKind, key_until, unique_key
from ropeway.engines.batching import Held, check_batch, known_by_keys
from ropeway.engines.protocol import Enqueued
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.rows import (
    micros,
    moment,
    optional_micros,
    optional_moment,
    seconds,
    state_of,
    text,
)
from ropeway.engines.sqlite.store import SqliteStore
from ropeway.engines.sqlite.writer import Transaction
from ropeway.runtime.ids import uuid7s, uuid_from_bytes

SQL = statements("ropeway.engines.sqlite", "sql/submitting.sql")

#: (kind, key)
KeyName = tuple[str, str]


class Keys(NamedTuple):
    """The keys of one job, and what tells a repeated body from another one."""

    names: list[KeyName]
    fingerprint: bytes


class Submission(NamedTuple):
    """The jobs of one call. `keys` holds those of each job that has some, by its position."""

    tenant: str
    jobs: Sequence[NewJob]
    keys: Mapping[int, Keys] | None
    window: float


def submission(tenant: str, jobs: Sequence[NewJob], window: float) -> Submission:
    """A call with its keys worked out, before anyone waits for it."""
    keys = None
    for index, job in enumerate(jobs):
        if job.idempotency_key is not None or job.unique is not None:
            keys = keys or {}
            keys[index] = _keys(job)
    return Submission(tenant, jobs, keys, window)


def _keys(job: NewJob) -> Keys:
    names, fingerprint = [], b""
    if job.idempotency_key is not None:
        names.append((KeyKind.IDEMPOTENCY.value, job.idempotency_key))
        fingerprint = job.body_fingerprint()
    if (unique := unique_key(job)) is not None:
        names.append((KeyKind.UNIQUE.value, unique))
    return Keys(names, fingerprint)


class SqliteSubmitting(SqliteStore):
    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        if not jobs:
            return []
        check_batch(jobs, self.clock.now())
        asked = submission(tenant, jobs, self.rules.idempotency_window)
        return await self.write(enqueue_all, asked, len(jobs))


def enqueue_all(tx: Transaction, calls: Sequence[Submission]) -> list[list[Enqueued] | RopewayError]:
    """Store the jobs of all calls that are not refused, in the order of the calls."""
    (last_place,) = tx.db.execute(SQL["last_place"]).fetchone()
    batch = _Batch(tx, last_place)
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

    def __init__(self, tx: Transaction, last_place: int) -> None:
        self._tx = tx
        self._last_place = last_place
        self._jobs: list[tuple[Any, ...]] = []
        self._bodies: list[tuple[Any, ...]] = []
        self._keys: list[tuple[Any, ...]] = []
        #: The keys that calls of this very flush have taken.
        self._taken: dict[tuple[str, KeyName], Held] = {}

    def add_keyed(
        self, call: Submission, keys: Mapping[int, list[KeyName]], ids: Sequence[UUID]
    ) -> list[Enqueued]:
        """Add what no key keeps out. Everything is decided before anything is added: all or none."""
        now = moment(self._tx.now)
        held = self._held(call.tenant, keys)
        known: dict[int, Enqueued] = {}
        for index, names in keys.items():
            job, id = call.jobs[index], ids[index]
            by_kind = {name[0]: held[name] for name in names if name in held}
            try:
                answer = known_by_keys(
                    job, now, by_kind.get(KeyKind.IDEMPOTENCY.value), by_kind.get(KeyKind.UNIQUE.value)
                )
            except IdempotencyMismatch as error:
                error.index = index
                raise
            if answer is not None:
                known[index] = answer
                continue
            for name in names:
                held[name] = _new_key(name[0], job, id, call.window, self._tx.now)
        answers = []
        for index, (job, id) in enumerate(zip(call.jobs, ids, strict=True)):
            if index in known:
                answers.append(known[index])
                continue
            answers.append(self.add(call.tenant, job, id))
            for name in keys.get(index, ()):
                self._take(call.tenant, name, held[name])
        return answers

    def _held(self, tenant: str, keys: Mapping[int, list[KeyName]]) -> dict[KeyName, Held]:
        """The keys of a call that are taken, in the database or by an earlier call of this flush."""
        names = list(dict.fromkeys(name for names in keys.values() for name in names))
        rows = self._tx.db.execute(SQL["held_keys"], {"names": text(names), "tenant": tenant})
        held = {}
        for position, job_id, fingerprint, until, enqueued_at, stage, blockers, run_at, failures in rows:
            state = None if stage is None else state_of(stage, blockers, run_at, failures, self._tx.now)
            held[names[position]] = Held(
                uuid_from_bytes(job_id), fingerprint, optional_moment(until), moment(enqueued_at), state
            )
        for name in names:
            if (taken := self._taken.get((tenant, name))) is not None:
                held[name] = taken
        return held

    def add(self, tenant: str, job: NewJob, id: UUID) -> Enqueued:
        now = self._tx.now
        run_at, expires_at = now, None
        if job.delay is not None:
            run_at = now + seconds(job.delay)
        elif job.run_at is not None:
            run_at = max(now, micros(job.run_at))
        if job.expires_in is not None:
            expires_at = now + seconds(job.expires_in)
        elif job.expires_at is not None:
            expires_at = micros(job.expires_at)
        place = self._last_place + len(self._jobs) + 1
        key = job.idempotency_key
        self._jobs.append(
            (place, id.bytes, tenant, job.type, job.queue, job.priority, run_at, now, expires_at, key)
        )
        self._bodies.append(
            (
                place,
                job.payload,
                job.max_attempts,
                job.timeout,
                None if job.retry is None else retry.encode(job.retry),
                text(job.tags) if job.tags else None,
                text(job.headers) if job.headers else None,
            )
        )
        return Enqueued(id, State.SCHEDULED if run_at > now else State.QUEUED)

    def _take(self, tenant: str, name: KeyName, key: Held) -> None:
        self._taken[tenant, name] = key
        self._keys.append(
            (
                tenant,
                *name,
                key.job_id.bytes,
                key.fingerprint,
                optional_micros(key.until),
                micros(key.enqueued_at),
            )
        )

    def write(self) -> None:
        if not self._jobs:
            return
        db = self._tx.db
        db.executemany(SQL["insert_body"], self._bodies)
        db.executemany(SQL["insert_job"], self._jobs)
        db.execute(SQL["log_enqueued"], {"last_place": self._last_place})
        if self._keys:
            db.executemany(SQL["take_key"], self._keys)
        self._tx.woken.update({(job[2], job[4]) for job in self._jobs})


def _new_key(kind: str, job: NewJob, id: UUID, window: float, now: int) -> Held:
    """A key as a new job takes it. The job is as good as stored: later jobs of the flush are answered with it."""
    state = State.QUEUED
    if (job.delay is not None and job.delay > 0) or (job.run_at is not None and micros(job.run_at) > now):
        state = State.SCHEDULED
    if kind == KeyKind.IDEMPOTENCY.value:
        until = key_until(moment(now), window if job.key_window is None else job.key_window)
        return Held(id, job.body_fingerprint(), until, moment(now), state)
    within = 0.0 if job.unique is None else job.unique.within or 0.0
    return Held(id, b"", moment(now + seconds(within)), moment(now), state)
