"""Submitting: new jobs, all or none, with the keys that keep duplicates out."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ropeway.core.errors import IdempotencyMismatch
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.states import EventName, State
from ropeway.core.unique import KeyKind, key_until, unique_key
from ropeway.engines.batching import Held, check_batch, known_by_keys
from ropeway.engines.memory.rows import JobRow, KeyRow
from ropeway.engines.memory.store import MemoryStore, later
from ropeway.engines.protocol import Enqueued
from ropeway.runtime.ids import uuid7s


class MemorySubmitting(MemoryStore):
    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        check_batch(jobs, self.clock.now(), self.rules.max_payload_bytes)
        return self.enqueue_all(jobs, tenant)

    async def kept_out(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[bool]:
        return [self._is_kept_out(job, tenant) for job in jobs]

    def _is_kept_out(self, job: NewJob, tenant: str) -> bool:
        try:
            return self._known(job, tenant) is not None
        except IdempotencyMismatch:
            return True

    def enqueue_all(self, jobs: Sequence[NewJob], tenant: str) -> list[Enqueued]:
        """Store every job that no key keeps out. What was stored is taken back when a later one is refused."""
        answers: list[Enqueued] = []
        undo: list[tuple[JobRow, list[tuple[tuple[str, str, str], KeyRow | None]]]] = []
        for index, (job, id) in enumerate(zip(jobs, uuid7s(len(jobs)), strict=True)):
            try:
                known = self._known(job, tenant)
            except IdempotencyMismatch as error:
                self._take_back(undo)
                error.index = index
                raise
            if known is not None:
                answers.append(known)
                continue
            row, keys = self._store(job, id, tenant)
            undo.append((row, keys))
            state = row.state(row.created_at)
            answers.append(Enqueued(id, state, created_at=row.created_at, run_at=row.run_at))
        for row, _ in undo:
            self.write_event(row, EventName.ENQUEUED, run_at=row.run_at)
            self.queue_up(row)
        return answers

    def _known(self, job: NewJob, tenant: str) -> Enqueued | None:
        """The earlier job that answers for this one, if a key says so."""
        if job.idempotency_key is None and job.unique is None:
            return None
        return known_by_keys(
            job,
            job.body_fingerprint(),
            self.clock.now(),
            self._held(tenant, KeyKind.IDEMPOTENCY, job.idempotency_key),
            self._held(tenant, KeyKind.UNIQUE, unique_key(job)),
        )

    def _held(self, tenant: str, kind: KeyKind, key: str | None) -> Held | None:
        row = None if key is None else self.job_keys.get((tenant, kind, key))
        if row is None:
            return None
        return Held(row.job_id, row.fingerprint, row.until, row.enqueued_at, self._state(row.job_id))

    def _state(self, id: UUID) -> State | None:
        row = self.jobs.get(id)
        return None if row is None else row.state(self.clock.now())

    def _store(
        self, job: NewJob, id: UUID, tenant: str
    ) -> tuple[JobRow, list[tuple[tuple[str, str, str], KeyRow | None]]]:
        now = self.clock.now()
        asked = job.run_at if job.delay is None else later(now, job.delay)
        row = JobRow(
            id=id,
            tenant=tenant,
            new=job,
            queue=job.queue,
            priority=job.priority,
            run_at=now if asked is None else max(asked, now),
            place=next(self.places),
            created_at=now,
            updated_at=now,
            expires_at=job.expires_at if job.expires_in is None else later(now, job.expires_in),
        )
        self.jobs[id] = row
        replaced = []
        for name, key in self._keys(job, id, tenant):
            replaced.append((name, self.job_keys.get(name)))
            self.job_keys[name] = key
        return row, replaced

    def _keys(self, job: NewJob, id: UUID, tenant: str) -> list[tuple[tuple[str, str, str], KeyRow]]:
        now = self.clock.now()
        keys = []
        if job.idempotency_key is not None:
            window = self.rules.idempotency_window if job.key_window is None else job.key_window
            name = (tenant, KeyKind.IDEMPOTENCY.value, job.idempotency_key)
            keys.append((name, KeyRow(id, job.body_fingerprint(), key_until(now, window), now)))
        if job.unique is not None:
            name = (tenant, KeyKind.UNIQUE.value, unique_key(job) or "")
            keys.append((name, KeyRow(id, b"", later(now, job.unique.within or 0.0), now)))
        return keys

    def _take_back(self, undo: list[tuple[JobRow, list[tuple[tuple[str, str, str], KeyRow | None]]]]) -> None:
        for row, keys in reversed(undo):
            del self.jobs[row.id]
            for name, before in keys:
                if before is None:
                    del self.job_keys[name]
                else:
                    self.job_keys[name] = before
