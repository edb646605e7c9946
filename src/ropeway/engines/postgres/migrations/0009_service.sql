-- What a server in front of the store needs: tenants and their keys, shared limits, what operators did, and answers
-- to an enqueue that say when the job was taken and where it stands in line.

-- Append jobs, and their first events. An array of one value stands for the same value in every job; one that may
-- be NULL (times, delays, keys, options) is empty when no job has it. Most of the cost of a call is its arrays.
-- Answers the engine's time, which is the jobs' `created_at`, and the `run_at` of each job, in order.
CREATE FUNCTION {schema}.add_jobs(
    p_tenants text[], p_ids uuid[], p_types text[], p_queues text[], p_priorities smallint[],
    p_max_attempts smallint[], p_payloads text[], p_run_at timestamptz[], p_delays double precision[],
    p_keys text[], p_options jsonb[], p_unchecked boolean,
    OUT taken_at timestamptz, OUT places timestamptz[]
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now timestamptz := {now};
    v_xid bigint := pg_current_xact_id()::text::bigint;
    v_tenant text := p_tenants[1];
    v_type text := p_types[1];
    v_queue text := p_queues[1];
    v_priority smallint := p_priorities[1];
    v_max_attempts smallint := p_max_attempts[1];
BEGIN
    taken_at := v_now;
    WITH made AS (
        INSERT INTO {schema}.jobs (
            tenant, id, queue, type, priority, max_attempts, run_at, created_at, updated_at, expires_at,
            timeout, retry, tags, headers, idempotency_key, payload, unchecked
        )
        SELECT
            coalesce(n.tenant, v_tenant), n.id, coalesce(n.queue, v_queue), coalesce(n.type, v_type),
            coalesce(n.priority, v_priority), coalesce(n.max_attempts, v_max_attempts),
            -- Row by row: a batch of one single time would be one single place in line.
            CASE WHEN n.delay IS NULL THEN greatest(n.run_at, {now})
                 ELSE v_now + n.delay * interval '1 second' END,
            v_now, v_now,
            CASE WHEN n.options ? 'expires_in'
                 THEN v_now + (n.options ->> 'expires_in')::double precision * interval '1 second'
                 ELSE (n.options ->> 'expires_at')::timestamptz END,
            (n.options ->> 'timeout')::double precision,
            n.options ->> 'retry',
            CASE WHEN n.options ? 'tags'
                 THEN ARRAY(SELECT jsonb_array_elements_text(n.options -> 'tags')) END,
            n.options ->> 'headers',
            n.key, n.payload, p_unchecked
        FROM unnest(
            p_tenants, p_ids, p_types, p_queues, p_priorities, p_max_attempts, p_payloads, p_run_at, p_delays,
            p_keys, p_options
        ) AS n (tenant, id, type, queue, priority, max_attempts, payload, run_at, delay, key, options)
        RETURNING tenant, id, queue, type, priority, run_at
    ), logged AS (
        INSERT INTO {schema}.events (xid, at, job_id, seq, attempt, event, priority, tenant, queue, type, run_at)
        SELECT v_xid, v_now, id, 1, 0, 'job.enqueued', priority, tenant, queue, type, run_at FROM made
    )
    -- Rows come back from an insert in the order in which they went in, which is that of the arrays.
    SELECT array_agg(made.run_at) INTO places FROM made;
END $$;

-- Enqueue jobs with keys in one transaction: keys first, then the jobs that no key keeps out. With `p_all_or_none`
-- a mismatch undoes everything (SQLSTATE RW422, the job's id as detail). One row per job that was not stored, and
-- one (without a job_id) for those that were: when they were taken, and the `run_at` of each, in order.
-- `p_lock_timeout` (NULL: the session's) bounds, for the rest of the transaction, the wait for a held key.
CREATE FUNCTION {schema}.add_keyed_jobs(
    p_tenants text[], p_ids uuid[], p_types text[], p_queues text[], p_priorities smallint[],
    p_max_attempts smallint[], p_payloads text[], p_run_at timestamptz[], p_delays double precision[],
    p_idempotency_keys text[], p_options jsonb[], p_unchecked boolean,
    k_tenants text[], k_kinds text[], k_keys text[], k_job_ids uuid[], k_fingerprints bytea[],
    k_windows double precision[], k_states text[], p_all_or_none boolean, p_lock_timeout text
) RETURNS TABLE (
    taken_at timestamptz, places timestamptz[], job_id uuid, known_id uuid, known_state text, mismatch boolean
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    known uuid[];
    answer record;
    keep integer[];
BEGIN
    IF p_lock_timeout IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_timeout, true);
    END IF;
    FOR answer IN
        -- One answer per job: an idempotency key goes before a unique one.
        SELECT DISTINCT ON (t.job_id) t.*
        FROM {schema}.take_keys(k_tenants, k_kinds, k_keys, k_job_ids, k_fingerprints, k_windows, k_states) t
        ORDER BY t.job_id, t.kind
    LOOP
        IF answer.mismatch AND p_all_or_none THEN
            RAISE EXCEPTION 'this idempotency key was used before with another body'
                USING ERRCODE = 'RW422', DETAIL = answer.job_id::text;
        END IF;
        known := known || answer.job_id;
        job_id := answer.job_id; known_id := answer.known_id; known_state := answer.known_state;
        mismatch := answer.mismatch;
        RETURN NEXT;
    END LOOP;
    job_id := NULL; known_id := NULL; known_state := NULL; mismatch := NULL;
    IF known IS NULL THEN
        SELECT a.taken_at, a.places INTO taken_at, places
        FROM {schema}.add_jobs(p_tenants, p_ids, p_types, p_queues, p_priorities, p_max_attempts, p_payloads,
                               p_run_at, p_delays, p_idempotency_keys, p_options, p_unchecked) a;
        RETURN NEXT;
        RETURN;
    END IF;
    -- A job that another key keeps out leaves no key of its own behind.
    DELETE FROM {schema}.keys k
    USING unnest(k_tenants, k_kinds, k_keys, k_job_ids) AS n (tenant, kind, key, job_id)
    WHERE n.job_id = ANY (known) AND k.tenant = coalesce(n.tenant, k_tenants[1])
      AND k.kind = coalesce(n.kind, k_kinds[1]) AND k.key = n.key AND k.job_id = n.job_id;
    SELECT array_agg(i) INTO keep FROM generate_series(1, cardinality(p_ids)) i WHERE p_ids[i] <> ALL (known);
    IF keep IS NOT NULL THEN
        SELECT a.taken_at, a.places INTO taken_at, places
        FROM (
            SELECT array_agg(coalesce(p_tenants[i], p_tenants[1])) AS tenants, array_agg(p_ids[i]) AS ids,
                   array_agg(coalesce(p_types[i], p_types[1])) AS types,
                   array_agg(coalesce(p_queues[i], p_queues[1])) AS queues,
                   array_agg(coalesce(p_priorities[i], p_priorities[1])) AS priorities,
                   array_agg(coalesce(p_max_attempts[i], p_max_attempts[1])) AS max_attempts,
                   array_agg(p_payloads[i]) AS payloads, array_agg(p_run_at[i]) AS run_at,
                   array_agg(p_delays[i]) AS delays, array_agg(p_idempotency_keys[i]) AS keys,
                   array_agg(p_options[i]) AS options
            FROM unnest(keep) i
        ) n
        CROSS JOIN LATERAL {schema}.add_jobs(n.tenants, n.ids, n.types, n.queues, n.priorities, n.max_attempts,
                                             n.payloads, n.run_at, n.delays, n.keys, n.options, p_unchecked) a;
        RETURN NEXT;
    END IF;
END $$;

-- The two that earlier versions call, and the SQL function `enqueue` through them: the same bodies, shorter answers.
CREATE OR REPLACE FUNCTION {schema}.insert_jobs(
    p_tenants text[], p_ids uuid[], p_types text[], p_queues text[], p_priorities smallint[],
    p_max_attempts smallint[], p_payloads text[], p_run_at timestamptz[], p_delays double precision[],
    p_keys text[], p_options jsonb[], p_unchecked boolean
) RETURNS timestamptz
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN (
        SELECT a.taken_at
        FROM {schema}.add_jobs(p_tenants, p_ids, p_types, p_queues, p_priorities, p_max_attempts, p_payloads,
                               p_run_at, p_delays, p_keys, p_options, p_unchecked) a
    );
END $$;

CREATE OR REPLACE FUNCTION {schema}.insert_keyed_jobs(
    p_tenants text[], p_ids uuid[], p_types text[], p_queues text[], p_priorities smallint[],
    p_max_attempts smallint[], p_payloads text[], p_run_at timestamptz[], p_delays double precision[],
    p_idempotency_keys text[], p_options jsonb[], p_unchecked boolean,
    k_tenants text[], k_kinds text[], k_keys text[], k_job_ids uuid[], k_fingerprints bytea[],
    k_windows double precision[], k_states text[], p_all_or_none boolean, p_lock_timeout text
) RETURNS TABLE (at timestamptz, job_id uuid, known_id uuid, known_state text, mismatch boolean)
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN QUERY
    SELECT a.taken_at, a.job_id, a.known_id, a.known_state, a.mismatch
    FROM {schema}.add_keyed_jobs(p_tenants, p_ids, p_types, p_queues, p_priorities, p_max_attempts, p_payloads,
                                 p_run_at, p_delays, p_idempotency_keys, p_options, p_unchecked, k_tenants,
                                 k_kinds, k_keys, k_job_ids, k_fingerprints, k_windows, k_states, p_all_or_none,
                                 p_lock_timeout) a;
END $$;

-- How many due jobs of its queue are in line before a job, counted no further than p_cap; NULL unless the job is due
-- and not leased. Each priority up to its own is walked by the claim's index: the more urgent ones up to now, its own
-- up to its place.
CREATE FUNCTION {schema}.place(p_tenant text, p_id uuid, p_cap bigint) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now timestamptz := {now};
    mine record;
BEGIN
    SELECT j.queue, j.priority, j.run_at, j.seq INTO mine FROM {schema}.jobs j
    WHERE j.tenant = p_tenant AND j.id = p_id AND j.lease_token IS NULL AND j.blockers = 0 AND j.run_at <= v_now;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN (
        SELECT count(*) FROM (
            SELECT FROM (
                SELECT p.priority::smallint AS priority,
                       CASE WHEN p.priority = mine.priority THEN mine.run_at ELSE v_now END AS at,
                       CASE WHEN p.priority = mine.priority THEN mine.seq ELSE 9223372036854775807 END AS seq
                FROM generate_series(1, mine.priority) AS p (priority)
            ) lane
            CROSS JOIN LATERAL (
                SELECT FROM {schema}.jobs c
                WHERE c.tenant = p_tenant AND c.queue = mine.queue AND c.queue <> '' AND c.priority = lane.priority
                  AND (c.run_at, c.seq) < (lane.at, lane.seq) AND c.lease_token IS NULL AND c.blockers = 0
                ORDER BY c.run_at, c.seq
                LIMIT p_cap
            ) x
            LIMIT p_cap
        ) ahead
    );
END $$;

-- Jobs of a tenant that came and that ended within the last p_seconds, by queue, from the newest p_pages pages of the
-- event log. Events are appended and never changed, so the end of the day's partition is where the newest are: no
-- index is needed, and a day of many millions is not walked. `seconds` is the time that these pages reach back, at
-- most p_seconds.
CREATE FUNCTION {schema}.queue_rates(p_tenant text, p_seconds double precision, p_pages bigint)
RETURNS TABLE (queue text, enqueued bigint, finished bigint, seconds double precision)
LANGUAGE plpgsql
-- A new partition has no statistics: the planner takes it for a handful of rows, and would sort them by queue.
SET enable_sort = off SET max_parallel_workers_per_gather = 0 SET jit = off
AS $$
DECLARE
    v_now timestamptz := {now};
    v_seconds double precision := p_seconds;
    v_since timestamptz := v_now - p_seconds * interval '1 second' + interval '1 microsecond';
    v_first timestamptz;
    v_days date[] := ARRAY[(v_now AT TIME ZONE 'UTC')::date];
    v_day date;
    v_part regclass;
    v_parts regclass[] := '{}';
    v_pages bigint;
    v_page bigint;
    v_starts tid[] := '{}';
BEGIN
    IF (v_since AT TIME ZONE 'UTC')::date < v_days[1] THEN
        v_days := v_days || (v_days[1] - 1);
    END IF;
    FOREACH v_day IN ARRAY v_days LOOP
        v_part := to_regclass(format('%I.%I', '{schema}', 'events' || to_char(v_day, '_YYYYMMDD')));
        CONTINUE WHEN v_part IS NULL;
        v_pages := pg_relation_size(v_part) / current_setting('block_size')::integer;
        v_page := greatest(0, v_pages - p_pages);
        v_parts := v_parts || v_part;
        v_starts := v_starts || format('(%s,0)', v_page)::tid;
        IF v_page > 0 THEN
            EXECUTE format('SELECT min(at) FROM %s WHERE ctid >= %L AND ctid < %L', v_part,
                           format('(%s,0)', v_page), format('(%s,0)', v_page + 16))
            INTO v_first;
            IF v_first > v_since THEN
                v_since := v_first;
                v_seconds := extract(epoch FROM v_now - v_first);
                EXIT;
            END IF;
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(v_parts) LOOP
        RETURN QUERY EXECUTE format($q$
            SELECT e.queue, count(*) FILTER (WHERE e.event = 'job.enqueued'),
                   count(*) FILTER (WHERE e.event IN ('job.completed', 'job.dlq', 'job.cancelled')),
                   $1
            FROM %s e WHERE e.ctid >= %L AND e.at >= $2 AND e.tenant = $3 GROUP BY e.queue
            $q$, v_parts[i], v_starts[i])
        USING v_seconds, v_since, p_tenant;
    END LOOP;
END $$;

-- Tenants and the keys that speak for them. A key's secret is not here, only its digest.
CREATE TABLE {schema}.tenants (
    id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    email text,
    is_active boolean NOT NULL DEFAULT true,
    -- A JSON object of the limits that are set.
    limits text NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL,
    last_seen_at timestamptz
) WITH (fillfactor = 50);
INSERT INTO {schema}.tenants (id, name, created_at) VALUES ('default', 'default', {now});

CREATE TABLE {schema}.api_keys (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL REFERENCES {schema}.tenants (id),
    name text NOT NULL,
    -- A JSON array of words.
    scopes text NOT NULL,
    digest bytea NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    last_used_at timestamptz,
    revoked_at timestamptz
) WITH (fillfactor = 50);
CREATE INDEX api_keys_of_tenant ON {schema}.api_keys (tenant, created_at, id);

-- A key with its tenant: what every request with a new token starts with.
CREATE FUNCTION {schema}.find_key(p_id text) RETURNS TABLE (
    id text, tenant text, name text, scopes text, digest bytea, created_at timestamptz, expires_at timestamptz,
    last_used_at timestamptz, revoked_at timestamptz, tenant_name text, tenant_email text, tenant_is_active boolean,
    tenant_limits text, tenant_created_at timestamptz, tenant_last_seen_at timestamptz
)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    SELECT k.id, k.tenant, k.name, k.scopes, k.digest, k.created_at, k.expires_at, k.last_used_at, k.revoked_at,
           t.name, t.email, t.is_active, t.limits, t.created_at, t.last_seen_at
    FROM {schema}.api_keys k JOIN {schema}.tenants t ON t.id = k.tenant WHERE k.id = p_id;
END $$;

-- Buckets of tokens that all processes share. Not logged: taking from one then waits for no disk and no standby. A
-- crash of the server forgets them, and a forgotten bucket is a full one.
CREATE UNLOGGED TABLE {schema}.buckets (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    tokens double precision NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (tenant, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);

-- Take up to p_wanted tokens. Answers what was in the bucket before that, refilled up to now (core/limits.py: take).
CREATE FUNCTION {schema}.take_tokens(
    p_tenant text, p_name text, p_wanted double precision, p_rate double precision, p_burst double precision
) RETURNS double precision
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    held record;
    v_now timestamptz;
    v_tokens double precision;
BEGIN
    LOOP
        SELECT b.tokens, b.at INTO held FROM {schema}.buckets b
        WHERE b.tenant = p_tenant AND b.name = p_name FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {schema}.buckets (tenant, name, tokens, at) VALUES (p_tenant, p_name, p_burst, {now})
        ON CONFLICT (tenant, name) DO NOTHING;
    END LOOP;
    -- The time at which it is our turn, not the one at which we began to wait for it.
    v_now := {now};
    v_tokens := least(p_burst, held.tokens
        + greatest(0, extract(epoch FROM v_now - held.at)::double precision) * p_rate);
    UPDATE {schema}.buckets b SET tokens = v_tokens - greatest(0, least(p_wanted, v_tokens)), at = v_now
    WHERE b.tenant = p_tenant AND b.name = p_name;
    RETURN v_tokens;
END $$;

-- What operators did, in the order in which it was written down.
CREATE TABLE {schema}.actions (
    tenant text COLLATE "C" NOT NULL,
    n bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    action text COLLATE "C" NOT NULL,
    target text NOT NULL,
    count bigint,
    request_id text,
    PRIMARY KEY (tenant, n)
);
-- For a stretch of time, and for retention: rows arrive in the order of time.
CREATE INDEX actions_at ON {schema}.actions USING brin (at) WITH (pages_per_range = 16, autosummarize = on);

-- What signs that which is handed out, such as cursors: the same for all processes of this store.
INSERT INTO {schema}.meta VALUES ('secret', encode(sha256(
    uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 'hex'));

-- What a queue was set to. Last, because every claim reads this table: it is locked for a moment only.
ALTER TABLE {schema}.queues
    ADD COLUMN depth_limit bigint,
    ADD COLUMN require_key boolean NOT NULL DEFAULT false,
    ADD COLUMN lease_seconds double precision;
