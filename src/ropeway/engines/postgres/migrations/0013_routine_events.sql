-- Whether the steps that go well are logged: enqueued, started, completed. What goes wrong, and what operators do, is
-- logged always. `ropeway migrate events off` puts another answer here. Being immutable it is part of the plans, which
-- the server makes anew when it is replaced: asking costs nothing per job.
CREATE FUNCTION {schema}.logs_routine() RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT true';

-- The functions below are as they were, but for that question.

CREATE OR REPLACE FUNCTION {schema}.add_jobs(
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
        WHERE {schema}.logs_routine()
    )
    -- Rows come back from an insert in the order in which they went in, which is that of the arrays.
    SELECT array_agg(made.run_at) INTO places FROM made;
END $$;

CREATE OR REPLACE FUNCTION {schema}.insert_job(
    p_tenant text, p_id uuid, p_type text, p_queue text, p_priority smallint, p_max_attempts smallint, p_payload text
) RETURNS timestamptz
LANGUAGE plpgsql
AS $$
DECLARE
    v_now timestamptz := {now};
BEGIN
    INSERT INTO {schema}.jobs (
        tenant, id, queue, type, priority, max_attempts, run_at, created_at, updated_at, payload, unchecked
    ) VALUES (
        p_tenant, p_id, p_queue, p_type, p_priority, p_max_attempts, v_now, v_now, v_now, p_payload, false
    );
    INSERT INTO {schema}.events (xid, at, job_id, seq, attempt, event, priority, tenant, queue, type, run_at)
    SELECT pg_current_xact_id()::text::bigint, v_now, p_id, 1, 0, 'job.enqueued', p_priority, p_tenant, p_queue, p_type,
           v_now
    WHERE {schema}.logs_routine();
    RETURN v_now;
END $$;

CREATE OR REPLACE FUNCTION {schema}.claim(
    p_tenant text, p_queues text[], p_priorities smallint[], p_at timestamptz[], p_seq bigint[],
    p_count integer, p_token uuid, p_owner uuid, p_worker text, p_lease_seconds double precision
) RETURNS TABLE (
    id uuid, type text, queue text, priority smallint, payload text, attempt integer, attempts smallint,
    max_attempts smallint, run_at timestamptz, seq bigint, created_at timestamptz, started_at timestamptz,
    failures smallint, lost smallint, timeout double precision, retry text, expires_at timestamptz, tags text[],
    headers text, idempotency_key text, last_error text, unchecked boolean
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := {now};
    v_xid bigint;
BEGIN
    IF EXISTS (SELECT FROM {schema}.queues q WHERE q.tenant = p_tenant AND q.paused AND q.queue = ANY (p_queues)) THEN
        SELECT array_agg(l.queue ORDER BY l.n), array_agg(l.priority ORDER BY l.n),
               array_agg(l.at ORDER BY l.n), array_agg(l.seq ORDER BY l.n)
        INTO p_queues, p_priorities, p_at, p_seq
        FROM unnest(p_queues, p_priorities, p_at, p_seq) WITH ORDINALITY AS l (queue, priority, at, seq, n)
        WHERE NOT EXISTS (
            SELECT FROM {schema}.queues q WHERE q.tenant = p_tenant AND q.paused AND q.queue = l.queue
        );
    END IF;
    v_xid := pg_current_xact_id()::text::bigint;
    RETURN QUERY
    WITH claimed AS (
        UPDATE {schema}.jobs j
        SET attempt = j.attempt + 1, attempts = j.attempts + 1, event_seq = j.event_seq + 1,
            lease_token = p_token, worker = p_worker, started_at = v_now, updated_at = v_now, progress = NULL,
            spent_token = NULL, spent_verb = NULL
        WHERE j.ctid = ANY (ARRAY(
            SELECT x.ctid
            FROM unnest(p_queues, p_priorities, p_at, p_seq) AS lane (queue, priority, at, seq)
            CROSS JOIN LATERAL (
                SELECT c.ctid FROM {schema}.jobs c
                WHERE c.tenant = p_tenant AND c.queue = lane.queue AND c.queue <> ''
                  AND c.priority = lane.priority
                  AND (c.run_at, c.seq) >= (lane.at, lane.seq) AND c.run_at <= v_now
                  AND c.lease_token IS NULL
                  AND (c.expires_at IS NULL OR c.expires_at > v_now OR c.attempts > 0)
                ORDER BY c.run_at, c.seq
                LIMIT p_count
                FOR NO KEY UPDATE SKIP LOCKED
            ) x
            LIMIT p_count
        ))
        RETURNING j.*
    ), granted AS (
        INSERT INTO {schema}.grants (token, tenant, owner, worker, lease_seconds, expires_at, job_ids)
        SELECT p_token, p_tenant, p_owner, p_worker, p_lease_seconds,
               v_now + p_lease_seconds * interval '1 second', array_agg(c.id)
        FROM claimed c HAVING count(*) > 0
    ), logged AS (
        INSERT INTO {schema}.events (xid, at, job_id, seq, attempt, event, tenant, queue, type, worker)
        SELECT v_xid, v_now, c.id, c.event_seq, c.attempt, 'job.started', c.tenant, c.queue, c.type, p_worker
        FROM claimed c WHERE {schema}.logs_routine()
    )
    SELECT c.id, c.type, c.queue, c.priority, c.payload, c.attempt, c.attempts, c.max_attempts, c.run_at, c.seq,
           c.created_at, v_now, c.failures, c.lost, c.timeout, c.retry, c.expires_at, c.tags, c.headers,
           c.idempotency_key, c.last_error, c.unchecked
    FROM claimed c;
END $$;

CREATE OR REPLACE FUNCTION {schema}.complete(
    p_tenant text, p_ids uuid[], p_attempts integer[], p_ticket_tokens uuid[], p_tokens uuid[], p_results text[],
    p_sanitized boolean[], p_too_large boolean[], p_ended_grants uuid[]
) RETURNS uuid[]
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now timestamptz := {now};
    v_xid bigint := pg_current_xact_id()::text::bigint;
    v_attempt integer := p_attempts[1];
    v_token uuid := p_ticket_tokens[1];
    v_done uuid[];
BEGIN
    WITH ticket AS MATERIALIZED (
        SELECT t.id, coalesce(t.attempt, v_attempt) AS attempt, coalesce(t.token, v_token) AS token, t.result,
               t.sanitized, t.too_large
        FROM unnest(p_ids, p_attempts, p_ticket_tokens, p_results, p_sanitized, p_too_large)
            AS t (id, attempt, token, result, sanitized, too_large)
    ), finished AS (
        DELETE FROM {schema}.jobs j
        WHERE j.ctid = ANY (ARRAY(
            SELECT x.ctid FROM ticket t
            CROSS JOIN LATERAL (
                SELECT c.ctid FROM {schema}.jobs c
                WHERE c.tenant = p_tenant AND c.id = t.id AND c.lease_token = t.token AND c.attempt = t.attempt
                LIMIT 1
            ) x
        )) AND j.lease_token = ANY (p_tokens)
        RETURNING j.*
    ), kept AS (
        INSERT INTO {schema}.archive_succeeded (
            tenant, id, finished_at, run_at, created_at, started_at, expires_at, attempt, event_seq, priority,
            attempts, max_attempts, failures, lost, result_sanitized, result_too_large, state, queue, type,
            spent_token, spent_verb, timeout, retry, tags, headers, idempotency_key, group_key, last_error,
            result, payload
        )
        SELECT f.tenant, f.id, v_now, f.run_at, f.created_at, f.started_at, f.expires_at, f.attempt,
               f.event_seq + 1, f.priority, f.attempts, f.max_attempts, f.failures, f.lost,
               coalesce(t.sanitized, false), coalesce(t.too_large, false), 'succeeded', f.queue, f.type,
               f.lease_token, 'ack', f.timeout, f.retry, f.tags, f.headers, f.idempotency_key, f.group_key,
               f.last_error, t.result, f.payload
        FROM finished f JOIN ticket t ON t.id = f.id
    ), logged AS (
        INSERT INTO {schema}.events (xid, at, job_id, seq, attempt, event, tenant, queue, type, worker, millis)
        SELECT v_xid, v_now, f.id, f.event_seq + 1, f.attempt, 'job.completed', f.tenant, f.queue, f.type, f.worker,
               greatest(0, round(extract(epoch FROM v_now - f.started_at) * 1000))
        FROM finished f WHERE {schema}.logs_routine()
    ), ended AS (
        DELETE FROM {schema}.grants g WHERE g.token = ANY (p_ended_grants)
    )
    SELECT array_agg(f.id) INTO v_done FROM finished f;
    RETURN CASE WHEN cardinality(v_done) = cardinality(p_ids) THEN NULL ELSE coalesce(v_done, '{}') END;
END $$;

CREATE OR REPLACE FUNCTION {schema}.complete_one(
    p_tenant text, p_id uuid, p_attempt integer, p_token uuid, p_result text, p_sanitized boolean,
    p_too_large boolean
) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    j {schema}.jobs;
BEGIN
    DELETE FROM {schema}.jobs
    WHERE tenant = p_tenant AND id = p_id AND lease_token = p_token AND attempt = p_attempt
    RETURNING * INTO j;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    j.event_seq := j.event_seq + 1;
    PERFORM {schema}.archive_job(j, 'succeeded', NULL, p_token, 'ack', p_result, p_sanitized, p_too_large);
    IF {schema}.logs_routine() THEN
        PERFORM {schema}.log_event(j, 'job.completed', j.event_seq, j.worker, NULL,
            greatest(0, round(extract(epoch FROM {now} - j.started_at) * 1000))::bigint, NULL, NULL);
    END IF;
    RETURN true;
END $$;
