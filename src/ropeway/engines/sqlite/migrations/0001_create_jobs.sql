-- The schema of a Ropeway database file. Times are microseconds since 1970 (UTC), ids and tokens are 16 bytes,
-- payloads and results are the bytes that came.
--
-- A job is three rows at most, so that what is large is written once and never again: `bodies` holds what it was
-- enqueued with, `jobs` what changes (a small row), `results` what an ack brought, if it brought something.
-- (Measured, lease and ack of jobs with 10 KB of payload, batch 100: 65 µs of CPU in one row, 21 µs like this.)
--
-- Ended jobs stay in `jobs`. Every index that a claim, a grant or a chore walks is partial, so they slow nothing
-- down; moving each job to an archive table costs four more changes of B-trees (20 to 25 µs against 18 to 19 µs).
--
-- Checks are written with OR: for a list after IN of more than two values SQLite builds a table at each execution
-- (an insert into `jobs` took 9.2 µs instead of 4.0, one into `events` 2.7 instead of 0.6).

-- What a job was enqueued with. Never updated.
CREATE TABLE bodies (
    number          INTEGER PRIMARY KEY,
    payload         BLOB    NOT NULL,
    max_attempts    INTEGER NOT NULL,
    timeout         REAL    NOT NULL,
    retry           TEXT,
    tags            TEXT,
    headers         TEXT,
    -- Reserved for ordering and limits per key.
    group_key       TEXT
);

CREATE TABLE jobs (
    -- The order of acceptance: the tie-breaker of run_at. A redriven job gets a new place, its body stays.
    place           INTEGER PRIMARY KEY,
    body            INTEGER NOT NULL,
    id              BLOB    NOT NULL,
    tenant          TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    queue           TEXT    NOT NULL,
    priority        INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 9),
    -- A free job is scheduled, queued, retrying or waiting: that depends on the clock and is never stored.
    stage           TEXT    NOT NULL DEFAULT 'free'
                    CHECK (stage = 'free' OR stage = 'leased' OR stage = 'succeeded' OR stage = 'dead'
                           OR stage = 'cancelled'),
    run_at          INTEGER NOT NULL,
    attempt         INTEGER NOT NULL DEFAULT 0,
    attempts        INTEGER NOT NULL DEFAULT 0,
    failures        INTEGER NOT NULL DEFAULT 0,
    lost            INTEGER NOT NULL DEFAULT 0,
    blockers        INTEGER NOT NULL DEFAULT 0,
    -- The number of the job's newest event.
    event_seq       INTEGER NOT NULL DEFAULT 1,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    expires_at      INTEGER,
    started_at      INTEGER,
    finished_at     INTEGER,
    -- The newest ticket's token. It stays when the ticket is spent, with the verb that spent it, so that the same
    -- call again can be answered; NULL when the ticket is void. Current only while the stage is 'leased'.
    token           BLOB,
    spent_verb      TEXT,
    -- Who has the job, or had it last.
    worker          TEXT,
    dead_reason     TEXT    CHECK (dead_reason = 'max_attempts' OR dead_reason = 'rejected'
                           OR dead_reason = 'crash_limit' OR dead_reason = 'bad_payload'),
    idempotency_key TEXT,
    cancel_reason   TEXT    CHECK (cancel_reason = 'requested' OR cancel_reason = 'expired'),
    progress        TEXT,
    last_error      TEXT,
    CHECK ((finished_at IS NULL) = (stage = 'free' OR stage = 'leased'))
);

-- One job; and all jobs of a tenant by age.
CREATE UNIQUE INDEX jobs_by_id ON jobs (tenant, id);

-- The line that claims walk: first in, first out inside a priority (the place is the end of every index).
CREATE INDEX jobs_free ON jobs (tenant, queue, priority, run_at) WHERE stage = 'free';

-- The jobs of a grant; and what runs, per queue.
CREATE INDEX jobs_leased ON jobs (token, tenant, queue) WHERE stage = 'leased';

-- Ended jobs per end and queue: lists, counts, and retention.
CREATE INDEX jobs_ended ON jobs (tenant, stage, queue, finished_at) WHERE finished_at IS NOT NULL;

-- The dead by time of death.
CREATE INDEX jobs_dead ON jobs (tenant, finished_at, id) WHERE stage = 'dead';

-- Jobs by the key they came with. Only jobs that have one pay for it.
CREATE INDEX jobs_by_key ON jobs (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Jobs that must start before a given time. Only jobs that say so pay for it.
CREATE INDEX jobs_expiring ON jobs (expires_at) WHERE stage = 'free' AND expires_at IS NOT NULL;

-- What an ack brought. `result` is NULL when it was too large to keep.
CREATE TABLE results (
    body            INTEGER PRIMARY KEY,
    result          BLOB,
    sanitized       INTEGER NOT NULL,
    too_large       INTEGER NOT NULL
);

-- One row per lease call: who holds its jobs, and until when. `revoked` is the ids of cancelled jobs, end to end.
CREATE TABLE grants (
    token           BLOB    PRIMARY KEY,
    tenant          TEXT    NOT NULL,
    owner           BLOB    NOT NULL,
    expires_at      INTEGER NOT NULL,
    lease_seconds   REAL    NOT NULL,
    revoked         BLOB
) WITHOUT ROWID;

CREATE INDEX grants_by_owner ON grants (owner);

-- Idempotency and unique keys; they outlive the jobs they stand for. `until` NULL is for ever.
CREATE TABLE keys (
    tenant          TEXT    NOT NULL,
    kind            TEXT    NOT NULL CHECK (kind = 'idempotency' OR kind = 'unique'),
    key             TEXT    NOT NULL,
    job_id          BLOB    NOT NULL,
    fingerprint     BLOB    NOT NULL,
    until           INTEGER,
    enqueued_at     INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, key)
) WITHOUT ROWID;

-- Every transition, in the order of commits: writers are serial, so nothing can appear before what was read.
-- AUTOINCREMENT: a position is never given twice, even after the whole log was pruned.
CREATE TABLE events (
    position        INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id          BLOB    NOT NULL,
    seq             INTEGER NOT NULL,
    event           TEXT    NOT NULL
                    CHECK (event = 'job.enqueued' OR event = 'job.started' OR event = 'job.completed'
                           OR event = 'job.failed' OR event = 'job.dlq' OR event = 'job.snoozed'
                           OR event = 'job.released' OR event = 'job.reclaimed' OR event = 'job.cancelled'
                           OR event = 'job.retried' OR event = 'job.rescheduled'),
    state           TEXT    NOT NULL
                    CHECK (state = 'running' OR state = 'succeeded' OR state = 'queued' OR state = 'scheduled'
                           OR state = 'retrying' OR state = 'waiting' OR state = 'dead'
                           OR state = 'cancelled'),
    tenant          TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    queue           TEXT    NOT NULL,
    at              INTEGER NOT NULL,
    attempt         INTEGER NOT NULL,
    worker          TEXT,
    run_at          INTEGER,
    priority        INTEGER,
    millis          INTEGER,
    error           TEXT,
    detail          TEXT
);

CREATE INDEX events_by_job ON events (job_id);

-- Queues that are paused. A queue without a row is not.
CREATE TABLE queues (
    tenant          TEXT    NOT NULL,
    queue           TEXT    NOT NULL,
    paused          INTEGER NOT NULL CHECK (paused IN (0, 1)),
    PRIMARY KEY (tenant, queue)
) WITHOUT ROWID;

CREATE TABLE schedules (
    tenant          TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    cron            TEXT    NOT NULL,
    tz              TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    queue           TEXT    NOT NULL,
    payload         BLOB    NOT NULL,
    priority        INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 9),
    max_attempts    INTEGER NOT NULL,
    missed          TEXT    NOT NULL CHECK (missed = 'skip' OR missed = 'once' OR missed = 'all'),
    paused          INTEGER NOT NULL CHECK (paused IN (0, 1)),
    source          TEXT    NOT NULL CHECK (source IN ('code', 'api')),
    -- What code last declared, as text; NULL for a schedule that no code declares.
    definition      TEXT,
    next_run_at     INTEGER NOT NULL,
    last_run_at     INTEGER,
    last_job_id     BLOB,
    PRIMARY KEY (tenant, name)
);

CREATE INDEX schedules_due ON schedules (next_run_at) WHERE paused = 0;

-- Small facts about the database itself.
CREATE TABLE meta (
    name            TEXT    PRIMARY KEY,
    value           TEXT    NOT NULL
) WITHOUT ROWID;
