-- The tables. Only jobs that still have to run are in `jobs`; a job that ends moves to `archive` in the same
-- statement. Both logs (archive, events) are partitioned by day, so that retention drops whole partitions.

CREATE TYPE {schema}.event AS ENUM (
    'job.enqueued', 'job.started', 'job.completed', 'job.failed', 'job.dlq', 'job.snoozed', 'job.released',
    'job.reclaimed', 'job.cancelled', 'job.retried', 'job.rescheduled'
);

-- No column that a lease changes is in an index or an index predicate, and the pages are less than half full, so
-- a lease is a HOT update: a third less WAL and a quarter less CPU than with a status column in an index.
-- The state of a live job is derived (core/states.py: live_state), never stored.
CREATE TABLE {schema}.jobs (
    tenant text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    run_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    started_at timestamptz,
    expires_at timestamptz,
    attempt integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    event_seq integer NOT NULL DEFAULT 1 CHECK (event_seq >= 1),
    blockers integer NOT NULL DEFAULT 0 CHECK (blockers >= 0),
    priority smallint NOT NULL CHECK (priority BETWEEN 1 AND 9),
    attempts smallint NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    max_attempts smallint NOT NULL CHECK (max_attempts BETWEEN 1 AND 25),
    failures smallint NOT NULL DEFAULT 0 CHECK (failures >= 0),
    lost smallint NOT NULL DEFAULT 0 CHECK (lost >= 0),
    -- True until a job that came through the SQL function has been checked by Python, at its lease.
    unchecked boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL CHECK (length(queue) BETWEEN 1 AND 128),
    type text COLLATE "C" NOT NULL CHECK (length(type) BETWEEN 1 AND 128),
    lease_token uuid,
    worker text,
    -- The newest ticket that was used up on this job, and by which verb: enough to answer the same call again.
    spent_token uuid,
    spent_verb text,
    timeout double precision,
    retry text,
    tags text[],
    headers text,
    idempotency_key text,
    -- Room for ordering and limits by key; in no index.
    group_key text,
    progress text,
    last_error text,
    payload text NOT NULL,
    PRIMARY KEY (tenant, id)
) WITH (
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.1
);

-- The claim's order. Its predicate is always true; only the claim repeats it, so that the planner cannot take this
-- index for a lookup by id when it believes the table to be empty (a lookup then walked every dead entry).
CREATE INDEX jobs_ready ON {schema}.jobs (tenant, queue, priority, run_at, seq) WHERE queue <> '';

CREATE INDEX jobs_expiring ON {schema}.jobs (expires_at) WHERE expires_at IS NOT NULL;

-- One row per lease call, never one per job: heartbeats touch only this.
CREATE TABLE {schema}.grants (
    token uuid PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    owner uuid NOT NULL,
    worker text NOT NULL,
    lease_seconds double precision NOT NULL,
    expires_at timestamptz NOT NULL,
    job_ids uuid[] NOT NULL,
    revoked uuid[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX grants_owner ON {schema}.grants (owner);
-- Random ids do not compress; do not try.
ALTER TABLE {schema}.grants ALTER COLUMN job_ids SET STORAGE EXTERNAL;

CREATE TABLE {schema}.archive (
    tenant text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    finished_at timestamptz NOT NULL,
    run_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    expires_at timestamptz,
    attempt integer NOT NULL,
    event_seq integer NOT NULL,
    priority smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    failures smallint NOT NULL,
    lost smallint NOT NULL,
    result_sanitized boolean NOT NULL DEFAULT false,
    result_too_large boolean NOT NULL DEFAULT false,
    state text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    spent_token uuid,
    spent_verb text,
    reason text,
    timeout double precision,
    retry text,
    tags text[],
    headers text,
    idempotency_key text,
    group_key text,
    last_error text,
    result text,
    payload text NOT NULL
) PARTITION BY LIST (state);

CREATE TABLE {schema}.archive_succeeded PARTITION OF {schema}.archive FOR VALUES IN ('succeeded')
    PARTITION BY RANGE (finished_at);
CREATE TABLE {schema}.archive_dead PARTITION OF {schema}.archive (
    CHECK (reason IS NOT NULL AND reason IN ('max_attempts', 'rejected', 'crash_limit', 'bad_payload'))
) FOR VALUES IN ('dead') PARTITION BY RANGE (finished_at);
CREATE TABLE {schema}.archive_cancelled PARTITION OF {schema}.archive (
    CHECK (reason IS NOT NULL AND reason IN ('requested', 'expired'))
) FOR VALUES IN ('cancelled') PARTITION BY RANGE (finished_at);

CREATE INDEX archive_id ON {schema}.archive (tenant, id);
CREATE INDEX archive_dead_by_queue ON {schema}.archive_dead (tenant, queue, finished_at, id);
CREATE INDEX archive_dead_by_time ON {schema}.archive_dead (tenant, finished_at, id);

CREATE SEQUENCE {schema}.events_id_seq;

-- `xid` is the writer's transaction: a reader's position is a snapshot, so a late commit is never skipped.
CREATE TABLE {schema}.events (
    id bigint NOT NULL DEFAULT nextval('{schema}.events_id_seq'),
    xid bigint NOT NULL,
    at timestamptz NOT NULL,
    job_id uuid NOT NULL,
    seq integer NOT NULL,
    attempt integer NOT NULL,
    event {schema}.event NOT NULL,
    priority smallint,
    failed boolean,
    tenant text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    worker text,
    run_at timestamptz,
    millis bigint,
    error text,
    detail text
) PARTITION BY RANGE (at);
CREATE INDEX events_job ON {schema}.events (job_id);
-- Rows arrive almost in the order of both, so block ranges find the tail at next to no cost per insert.
CREATE INDEX events_tail ON {schema}.events USING brin (id, xid) WITH (pages_per_range = 16, autosummarize = on);

CREATE TABLE {schema}.keys (
    tenant text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('idempotency', 'unique')),
    key text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 1024),
    job_id uuid NOT NULL,
    fingerprint bytea NOT NULL,
    enqueued_at timestamptz NOT NULL,
    -- NULL: for ever.
    until timestamptz,
    PRIMARY KEY (tenant, kind, key)
);
-- Keys arrive almost in the order in which they run out: block ranges find the old ones at no cost per insert.
CREATE INDEX keys_until ON {schema}.keys USING brin (until) WITH (pages_per_range = 16, autosummarize = on);

CREATE TABLE {schema}.queues (
    tenant text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, queue)
);

CREATE TABLE {schema}.schedules (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    spec text NOT NULL,
    definition text,
    paused boolean NOT NULL,
    next_run_at timestamptz NOT NULL,
    last_run_at timestamptz,
    last_job_id uuid,
    PRIMARY KEY (tenant, name)
);
CREATE INDEX schedules_due ON {schema}.schedules (next_run_at) WHERE NOT paused;

-- Small facts about the store itself: the secret that signs positions, how far the event log was pruned.
CREATE TABLE {schema}.meta (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO {schema}.meta VALUES
    ('position_secret', encode(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), 'hex')),
    ('events_pruned_through', '0');
