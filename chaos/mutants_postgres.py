"""The mutants on PostgreSQL: the flaws of `mutants`, as changed functions wherever a function can have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from unittest import mock

from chaos.mutants import MUTANTS as IN_MEMORY
from chaos.mutants_statements import Alteration, one_token, popped
from chaos.mutants_still_postgres import PostgresStage
from chaos.simulation import EngineMaker
from ropeway.core.errors import Indeterminate
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.engines import sqlfile
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.fields import Submission
from ropeway.engines.protocol import Enqueued, LeaseBatch, Rescued
from ropeway.runtime import ids

#: Every so many enqueues only the key is stored; every so many are forgotten after they were answered.
KEYS_ALONE = 10
FORGOTTEN = 15

_TAKE_KEYS = "SELECT * FROM {schema}.take_keys($1, $2, $3, $4, $5, $6, $7)"

_FORGET = """
WITH job AS (DELETE FROM {schema}.jobs WHERE id = $1), key AS (DELETE FROM {schema}.keys WHERE job_id = $1)
DELETE FROM {schema}.events WHERE job_id = $1
"""

#: What was completed a moment ago waits in line again, and the log says that it was taken back.
_TAKE_BACK = """
WITH gone AS (
    DELETE FROM {schema}.archive WHERE state = 'succeeded' AND finished_at > {now} - interval '0.1 seconds'
    RETURNING *
), back AS (
    INSERT INTO {schema}.jobs (
        tenant, id, run_at, created_at, updated_at, attempt, attempts, event_seq, priority, max_attempts, queue,
        type, retry, idempotency_key, started_at, payload
    )
    SELECT tenant, id, {now}, created_at, {now}, attempt, attempts, event_seq + 1, priority, max_attempts, queue,
           type, retry, idempotency_key, started_at, payload
    FROM gone
)
INSERT INTO {schema}.events (xid, at, job_id, seq, attempt, event, tenant, queue, type, detail)
SELECT pg_current_xact_id()::text::bigint, {now}, id, event_seq + 1, attempt, 'job.reclaimed', tenant, queue, type,
       '{"cause": "crashed"}'
FROM gone
"""


# ── what no function can have ──


class KeyBeforeJob(PostgresEngine):
    """The key is stored by itself first; now and then the job does not follow."""

    _calls = 0

    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> Sequence[Enqueued]:
        self._calls += 1
        if self._calls % KEYS_ALONE == 0:
            keys = self._keys([Submission(tenant, job, ids.uuid7()) for job in jobs])
            await self.keyed.fetch(sqlfile.fill(_TAKE_KEYS, self.holes), *keys)
            raise Indeterminate("the store went away")
        return await super().enqueue(jobs, tenant=tenant)


class CommitLost(PostgresEngine):
    """What was answered was not on the disk yet, and now and then it never gets there."""

    _calls = 0

    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> Sequence[Enqueued]:
        answers = await super().enqueue(jobs, tenant=tenant)
        self._calls += not answers[0].deduplicated
        if self._calls % FORGOTTEN == 0 and not answers[0].deduplicated:
            await self.keyed.fetch(sqlfile.fill(_FORGET, self.holes), answers[0].id)
        return answers


class ReaperOverwritesCompleted(PostgresEngine):
    """What was completed between the reaper's look and its write is put back."""

    async def rescue(self, *, limit: int = 1_000) -> list[Rescued]:
        await self.chores.fetch(sqlfile.fill(_TAKE_BACK, self.holes))
        return await super().rescue(limit=limit)


class TokenReused(PostgresEngine):
    """There is one token for all leases."""

    async def lease(self, *args: Any, **options: Any) -> LeaseBatch:
        with mock.patch.object(ids, "token", one_token):
            return await super().lease(*args, **options)


class PopWithoutLease(PostgresEngine):
    """Taking a job from the queue is the end of it."""

    async def lease(self, *args: Any, **options: Any) -> LeaseBatch:
        return await popped(self, await super().lease(*args, **options))


class WorkersClockInLease(PostgresEngine):
    """Leases are judged by a clock that is two seconds ahead."""

    def sql(self, file: str, name: str) -> str:
        text = super().sql(file, name)
        return text.replace("expires_at <=", "expires_at - interval '2 seconds' <=") if _rescues(name) else text


class RunningNeverReclaimed(PostgresEngine):
    def sql(self, file: str, name: str) -> str:
        text = super().sql(file, name)
        return text.replace("WHERE", "WHERE false AND") if _rescues(name) else text


def _rescues(name: str) -> bool:
    return name == "expired_grants"


# ── all of them ──


class PostgresMutant(NamedTuple):
    """The functions that are changed, and the engine over them."""

    changes: tuple[Alteration, ...] = ()
    engine: type[PostgresEngine] = PostgresEngine


def _mutant(*changes: tuple[str, str, str]) -> PostgresMutant:
    return PostgresMutant(tuple(Alteration(*change) for change in changes))


_GRANTED = "interval '1 second', v_ids)"
_ONE_GRANT = f"""{_GRANTED}
    ON CONFLICT (token) DO UPDATE
    SET owner = excluded.owner, expires_at = excluded.expires_at, job_ids = grants.job_ids || excluded.job_ids"""

_SKIPPED = """IF FOUND AND p_events[i] = 'job.reclaimed' THEN
            j.event_seq := j.event_seq + 1;
            DELETE FROM {schema}.jobs t WHERE t.tenant = j.tenant AND t.id = j.id;
            PERFORM {schema}.archive_job(j, 'succeeded', NULL, p_tokens[i], 'ack', NULL, false, false);
            PERFORM {schema}.log_event(j, 'job.completed', j.event_seq, j.worker, NULL, 0, NULL, NULL);
            state := 'succeeded'; attempts := j.attempts; run_at := j.run_at; queue := j.queue;
        ELSIF FOUND THEN"""

_CANCELLED = "PERFORM {schema}.archive_job(j, 'cancelled', p_reason, NULL, NULL, NULL, false, false);"
_STILL_LEASED = """
            IF j.lease_token IS NOT NULL THEN
                INSERT INTO {schema}.jobs OVERRIDING SYSTEM VALUE SELECT (j).*;
            END IF;"""

_TICKET = "c.lease_token = t.token AND c.attempt = t.attempt"

MUTANTS: Mapping[str, PostgresMutant] = {
    "AckUnfenced": _mutant(
        ("complete_jobs", _TICKET, "c.lease_token IS NOT NULL"),
        ("complete_jobs", ")) AND j.lease_token = ANY (p_tokens)", "))"),
        ("complete_jobs", " AND t.token = f.lease_token AND t.attempt = f.attempt", ""),
    ),
    "NackUnfenced": _mutant(
        ("facts", _TICKET, "c.lease_token IS NOT NULL"),
        (
            "apply_transitions",
            "t.lease_token = p_tokens[i] AND t.attempt = p_attempts[i]",
            "t.lease_token IS NOT NULL",
        ),
    ),
    "HeartbeatUnfenced": _mutant(
        ("heartbeat", " AND j.lease_token = p_tokens[i] AND j.attempt = p_attempts[i]", ""),
        ("heartbeat", "g.token = p_tokens[i]", "g.token = j.lease_token"),
    ),
    "AttemptsNotCounted": _mutant(
        ("claim_jobs", "attempts = j.attempts + 1", "attempts = greatest(j.attempts, 1)")
    ),
    "AttemptNotRaised": _mutant(
        ("claim_jobs", "attempt = j.attempt + 1", "attempt = greatest(j.attempt, 1)"),
        ("claim_jobs", "x.attempt + 1", "greatest(x.attempt, 1)"),
    ),
    "KeyBeforeJob": PostgresMutant(engine=KeyBeforeJob),
    "NoIdempotency": _mutant(("take_keys", "IF k.kind = 'idempotency' THEN", "IF false THEN")),
    "ReaperOverwritesCompleted": PostgresMutant(engine=ReaperOverwritesCompleted),
    "CommitLost": PostgresMutant(engine=CommitLost),
    "DoubleLease": _mutant(
        (
            "claim_jobs",
            "c.lease_token IS NULL",
            "(c.lease_token IS NULL OR c.attempt = 1 AND c.seq % 4 = 0 AND v_now > c.started_at + interval '1 s')",
        )
    ),
    "EventLost": _mutant(
        (
            "apply_transitions",
            "p_errors[i], p_details[i]);",
            "p_errors[i], p_details[i]) WHERE p_events[i] <> 'job.failed';",
        )
    ),
    "EventNumberSkipped": _mutant(("complete_jobs", "array_agg(f.event_seq + 1)", "array_agg(f.event_seq + 2)")),
    "EventsReordered": _mutant(
        ("tail_events", "ORDER BY t.id, t.n LIMIT", "ORDER BY t.id / 5, t.id DESC, t.n LIMIT")
    ),
    "StartedEarly": _mutant(("claim_jobs", "c.run_at <= v_now", "c.run_at <= v_now + interval '0.3 seconds'")),
    "WorkersClockInLease": PostgresMutant(engine=WorkersClockInLease),
    "RedeliverySkipped": _mutant(("apply_transitions", "IF FOUND THEN", _SKIPPED)),
    "TokenReused": PostgresMutant((Alteration("claim_jobs", _GRANTED, _ONE_GRANT),), TokenReused),
    "NoMaxAttempts": _mutant(
        ("facts", "c.max_attempts", "1000::smallint"), ("held_jobs", "j.max_attempts", "1000::smallint")
    ),
    "NoCrashLimit": _mutant(("held_jobs", "j.lost", "0::smallint")),
    "RunningNeverReclaimed": PostgresMutant(engine=RunningNeverReclaimed),
    "PopWithoutLease": PostgresMutant(engine=PopWithoutLease),
    # A job that is cancelled and still there can be redriven: that must not be what gives it away.
    "CancelKeepsTheLease": _mutant(
        ("cancel_jobs", _CANCELLED, _CANCELLED + _STILL_LEASED),
        (
            "redrive_jobs",
            "coalesce(a.reason = 'bad_payload', false)\n            );",
            "coalesce(a.reason = 'bad_payload', false)\n            ) ON CONFLICT DO NOTHING;",
        ),
    ),
    "RedriveOfSucceeded": _mutant(
        ("redrive_jobs", "IN ('dead', 'cancelled')", "IN ('dead', 'cancelled', 'succeeded')")
    ),
}

#: By name: the rules that are meant to catch it.
RULES: Mapping[str, frozenset[str]] = {name: rules for name, (_, rules) in IN_MEMORY.items()}


def broken(stage: PostgresStage, name: str | None) -> AbstractContextManager[EngineMaker]:
    """What makes engines with that flaw, or right ones, while the block runs."""
    mutant = PostgresMutant() if name is None else MUTANTS[name]
    return stage.broken(mutant.engine, mutant.changes)
