"""The keys of new jobs: what is asked for, what is held, what is taken."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from ropeway.core.errors import IdempotencyMismatch
from ropeway.core.job import NewJob
from ropeway.core.states import State
from ropeway.core.unique import KeyKind, key_until, unique_key
from ropeway.engines.batching import Held, known_by_keys
from ropeway.engines.protocol import Enqueued
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.rows import micros, moment, optional_micros, optional_moment, seconds, state_of, text
from ropeway.runtime.ids import uuid_from_bytes

SQL = statements("ropeway.engines.sqlite", "sql/submitting.sql")


class KeyName(NamedTuple):
    tenant: str
    kind: str
    key: str


class Keys(NamedTuple):
    """The keys of one job, and what tells a repeated body from another one."""

    idempotency: KeyName | None
    unique: KeyName | None
    fingerprint: bytes
    #: Seconds that the idempotency key holds; 0 is for ever.
    window: float


Taken = dict[KeyName, Held]


def keys_of(job: NewJob, tenant: str, window: float) -> Keys | None:
    """Worked out before anyone waits for the job; None for most jobs."""
    if job.idempotency_key is None and job.unique is None:
        return None
    idempotency = unique = None
    fingerprint = b""
    if job.idempotency_key is not None:
        idempotency = KeyName(tenant, KeyKind.IDEMPOTENCY.value, job.idempotency_key)
        fingerprint = job.body_fingerprint()
    if (name := unique_key(job)) is not None:
        unique = KeyName(tenant, KeyKind.UNIQUE.value, name)
    return Keys(idempotency, unique, fingerprint, window if job.key_window is None else job.key_window)


def kept_out(db: sqlite3.Connection, now: int, jobs: Sequence[NewJob], tenant: str) -> list[bool]:
    """Which of a tenant's new jobs a key keeps out now."""
    asked = [keys_of(job, tenant, 0.0) for job in jobs]
    ring = KeyRing(db, now, [keys for keys in asked if keys is not None])
    return [keys is not None and ring.keeps_out(job, keys, {}) for job, keys in zip(jobs, asked, strict=True)]


def _look_up(db: sqlite3.Connection, now: int, names: Sequence[KeyName]) -> Iterator[tuple[KeyName, Held]]:
    """Who has these keys, all of one tenant, whether or not they still hold."""
    asked = {"names": text([name[1:] for name in names]), "tenant": names[0].tenant}
    for row in db.execute(SQL["held_keys"], asked):
        position, job_id, fingerprint, until, since, stage, blockers, run_at, failures = row
        state = None if stage is None else state_of(stage, blockers, run_at, failures, now)
        owner = Held(uuid_from_bytes(job_id), fingerprint, optional_moment(until), moment(since), state)
        yield names[position], owner


class KeyRing:
    """The keys that the jobs of a flush ask for: those held already, and those taken meanwhile."""

    def __init__(self, db: sqlite3.Connection, now: int, asked: Iterable[Keys]) -> None:
        self._now = now
        self._held: Taken = {}
        self._taken: Taken = {}
        by_tenant: dict[str, list[KeyName]] = {}
        for keys in asked:
            for name in (keys.idempotency, keys.unique):
                if name is not None:
                    by_tenant.setdefault(name.tenant, []).append(name)
        for names in by_tenant.values():
            self._held.update(_look_up(db, now, names))

    def known(self, job: NewJob, keys: Keys, mine: Taken) -> Enqueued | None:
        """The earlier job that answers for this one: stored, of another call, or of `mine`. Raises
        IdempotencyMismatch."""
        now = moment(self._now)
        return known_by_keys(
            job, keys.fingerprint, now, self._holder(keys.idempotency, mine), self._holder(keys.unique, mine)
        )

    def keeps_out(self, job: NewJob, keys: Keys, mine: Taken) -> bool:
        """Whether no job would be made of this one."""
        try:
            return self.known(job, keys, mine) is not None
        except IdempotencyMismatch:
            return True

    def _holder(self, name: KeyName | None, mine: Taken) -> Held | None:
        return None if name is None else mine.get(name) or self._taken.get(name) or self._held.get(name)

    def take(self, job: NewJob, keys: Keys, id: UUID, state: State, mine: Taken) -> None:
        """The keys stand for a new job; for other calls only once `mine` is kept, as a refused call has none."""
        now = moment(self._now)
        if keys.idempotency is not None:
            mine[keys.idempotency] = Held(id, keys.fingerprint, key_until(now, keys.window), now, state)
        if keys.unique is not None and job.unique is not None:
            until = moment(self._now + seconds(job.unique.within or 0.0))
            mine[keys.unique] = Held(id, b"", until, now, state)

    def keep(self, mine: Taken) -> None:
        """What a call took is the flush's: its later calls are answered with it."""
        self._taken |= mine

    def rows(self) -> list[tuple[Any, ...]]:
        """What to write."""
        return [
            (*name, held.job_id.bytes, held.fingerprint, optional_micros(held.until), micros(held.enqueued_at))
            for name, held in self._taken.items()
        ]
