"""The mutants on SQLite: the flaws of `mutants`, as changed statements wherever a statement can have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from chaos.mutants import MUTANTS as IN_MEMORY
from chaos.mutants_statements import Alteration, altered, one_token, popped
from chaos.mutants_still_sqlite import StillSqlite, WriterAtOnce
from chaos.simulation import EngineMaker
from ropeway.core.errors import Indeterminate
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.states import State
from ropeway.engines.protocol import Enqueued, LeaseBatch
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.keys import KeyRing, Taken
from ropeway.engines.sqlite.submitting import Submission, submission
from ropeway.engines.sqlite.writer import Transaction, one_by_one
from ropeway.runtime import ids

PACKAGE = "ropeway.engines.sqlite"
SUBMITTING = statements(PACKAGE, "sql/submitting.sql")

#: Every so many enqueues only the key is stored; every so many transactions that changed something are forgotten.
KEYS_ALONE = 10
FORGOTTEN = 15


# ── what no statement can have ──


def _take_keys(tx: Transaction, call: Submission) -> None:
    for job, keys in zip(call.jobs, call.keys or (), strict=False):
        mine: Taken = {}
        if keys is not None:
            ring = KeyRing(tx.db, tx.now, [keys])
            if ring.known(job, keys, mine) is None:
                ring.take(job, keys, ids.uuid7(), State.QUEUED, mine)
                ring.keep(mine)
                tx.db.executemany(SUBMITTING["take_key"], ring.rows())


_keys_alone = one_by_one(_take_keys)


class KeyBeforeJob(StillSqlite):
    """The key is stored by itself first; now and then the job does not follow."""

    _calls = 0

    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        self._calls += 1
        if self._calls % KEYS_ALONE == 0:
            await self.write(_keys_alone, submission(tenant, jobs, self.rules.idempotency_window))
            raise Indeterminate("the store went away")
        return await super().enqueue(jobs, tenant=tenant)


class _ForgetfulWriter(WriterAtOnce):
    _changes = 0
    _commits = 0

    def _commit(self) -> None:
        changes, self._changes = self._changes, self._db.total_changes
        self._commits += changes != self._changes
        if changes != self._changes and self._commits % FORGOTTEN == 0:
            self._roll_back()
        else:
            super()._commit()


class CommitLost(StillSqlite):
    """What was answered was not on the disk yet, and now and then it never gets there."""

    writer = _ForgetfulWriter


class TokenReused(StillSqlite):
    """There is one token for all leases."""

    async def lease(self, *args: Any, **options: Any) -> LeaseBatch:
        with mock.patch.object(ids, "token", one_token):
            return await super().lease(*args, **options)


class PopWithoutLease(StillSqlite):
    """Taking a job from the queue is the end of it."""

    async def lease(self, *args: Any, **options: Any) -> LeaseBatch:
        return await popped(self, await super().lease(*args, **options))


# ── all of them ──


class SqliteMutant(NamedTuple):
    """What is changed, and in which engine."""

    changes: tuple[Alteration, ...] = ()
    engine: type[StillSqlite] = StillSqlite


def _leasing(statement: str, old: str, new: str = "") -> Alteration:
    return Alteration(statement, old, new, "leasing")


def _settling(statement: str, old: str, new: str = "") -> Alteration:
    return Alteration(statement, old, new, "settling")


_FENCE = "\n  AND j.token = substr(:tokens, 16 * lease.key + 1, 16)\n  AND j.attempt = lease.value"
_RECLAIMED = "CASE :event WHEN 'job.reclaimed' THEN"

MUTANTS: Mapping[str, SqliteMutant] = {
    "AckUnfenced": SqliteMutant((_settling("current_places", _FENCE),)),
    "NackUnfenced": SqliteMutant((_settling("current_jobs", _FENCE),)),
    "HeartbeatUnfenced": SqliteMutant((_leasing("held_grant", " AND j.token = :token AND j.attempt = :attempt"),)),
    "AttemptsNotCounted": SqliteMutant(
        (_leasing("start", "attempts = attempts + 1", "attempts = max(attempts, 1)"),)
    ),
    "AttemptNotRaised": SqliteMutant((_leasing("start", "attempt = attempt + 1", "attempt = max(attempt, 1)"),)),
    "KeyBeforeJob": SqliteMutant(engine=KeyBeforeJob),
    "NoIdempotency": SqliteMutant(
        (Alteration("held_keys", "k.tenant = :tenant\n", "k.tenant = :tenant AND 0\n", "submitting"),)
    ),
    # The jobs of one lease call share a token: what one of them has come to is forgotten when the others expire.
    "ReaperOverwritesCompleted": SqliteMutant(
        (
            _leasing("held_jobs", "j.stage = 'leased'", "j.stage IN ('leased', 'succeeded')"),
            _settling("put_back", "stage = 'free'", "stage = 'free', finished_at = NULL"),
        )
    ),
    "CommitLost": SqliteMutant(engine=CommitLost),
    "DoubleLease": SqliteMutant(
        (
            _leasing(
                "claim",
                "INDEXED BY jobs_free\n  ON j.stage = 'free'",
                "ON (j.stage = 'free' OR (j.stage = 'leased' AND j.attempt = 1 AND j.place % 4 = 0"
                " AND j.started_at < :now - 500000))",
            ),
        )
    ),
    "EventLost": SqliteMutant((_settling("log", "WHERE place", "WHERE :event <> 'job.failed' AND place"),)),
    "EventNumberSkipped": SqliteMutant((_settling("complete", "event_seq + 1", "event_seq + 2"),)),
    "EventsReordered": SqliteMutant(
        (Alteration("tail", "ORDER BY position", "ORDER BY position / 5, position DESC", "inspecting"),)
    ),
    "StartedEarly": SqliteMutant((_leasing("claim", "j.run_at <= :now", "j.run_at <= :now + 300000"),)),
    "WorkersClockInLease": SqliteMutant(
        (Alteration("expired_grants", "<= :now", "<= :now + 2000000", "upkeeping"),)
    ),
    "RedeliverySkipped": SqliteMutant(
        (
            _settling(
                "put_back",
                "stage = 'free'",
                "stage = CASE WHEN :lost THEN 'succeeded' ELSE 'free' END,"
                " finished_at = CASE WHEN :lost THEN :now END",
            ),
            _settling(
                "log",
                ":event, :state,",
                f"{_RECLAIMED} 'job.completed' ELSE :event END, {_RECLAIMED} 'succeeded' ELSE :state END,",
            ),
        )
    ),
    "TokenReused": SqliteMutant(
        (_leasing("insert_grant", "INSERT INTO", "INSERT OR REPLACE INTO"),), engine=TokenReused
    ),
    "NoMaxAttempts": SqliteMutant(
        (_settling("current_jobs", "b.max_attempts", "1000"), _leasing("held_jobs", "b.max_attempts", "1000"))
    ),
    "NoCrashLimit": SqliteMutant((_leasing("held_jobs", "j.lost", "0"),)),
    "RunningNeverReclaimed": SqliteMutant((Alteration("expired_grants", "expires_at <= :now", "0", "upkeeping"),)),
    "PopWithoutLease": SqliteMutant(engine=PopWithoutLease),
    "CancelKeepsTheLease": SqliteMutant(
        (
            Alteration("cancel", "token = NULL", "token = token", "operating"),
            _settling("current_places", "j.stage = 'leased'", "j.stage IN ('leased', 'cancelled')"),
        )
    ),
    "RedriveOfSucceeded": SqliteMutant(
        (Alteration("job", " stage,", " CASE stage WHEN 'succeeded' THEN 'dead' ELSE stage END,", "operating"),)
    ),
}

#: By name: the rules that are meant to catch it.
RULES: Mapping[str, frozenset[str]] = {
    **{name: rules for name, (_, rules) in IN_MEMORY.items()},
    # Anything may be forgotten here, not only enqueues.
    "CommitLost": frozenset({"C1", "C2", "C6", "C8", "C20"}),
}


@contextmanager
def broken(name: str | None) -> Iterator[EngineMaker]:
    """What makes engines with that flaw, or right ones, while the block runs."""
    if name is None:
        yield StillSqlite
        return
    mutant = MUTANTS[name]
    with altered(PACKAGE, mutant.changes):
        yield mutant.engine
