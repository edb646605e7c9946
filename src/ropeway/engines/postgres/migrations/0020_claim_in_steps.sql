-- Claims and completions with less work for PostgreSQL: 10.9 us of its processor instead of 12.8 for a job that is
-- claimed and completed in batches of 300, 33.3 instead of 37.3 in batches of 20, 330 instead of 363 alone (in turns).
--
--   * A claim first locks its jobs and gathers what the grant and the log need of them, then hands the rows over from
--     the UPDATE itself. As one statement it kept every row, of 32 columns, in memory and read it four times.
--   * A completion finds a row where the claim has left it instead of by its key. Where that is, is only a hint.
--   * What is logged is gathered into arrays on the way; jobs of one kind, nearly always all of them, are not grouped.

-- Log the same step of many jobs, taken now: each kind of them (queue, type and worker) in one row if there are enough
-- of it (migrations/0017). An array of one worker stands for the same in every job; starts have no milliseconds. The
-- settings that keep its plans are those of its callers.
CREATE FUNCTION {schema}.log_steps(
    p_event {schema}.event, p_tenant text, p_at timestamptz, p_queues text[], p_types text[], p_workers text[],
    p_ids uuid[], p_seqs integer[], p_attempts integer[], p_created timestamptz[], p_millis bigint[],
    p_started timestamptz[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_xid bigint := pg_current_xact_id()::text::bigint;
    v_worker text := p_workers[1];
    v_number integer := cardinality(p_ids);
BEGIN
    IF v_number < {schema}.pack_size() THEN
        INSERT INTO {schema}.events
            (xid, at, job_id, seq, attempt, event, tenant, queue, type, worker, millis, started_at)
        SELECT v_xid, p_at, s.id, s.seq, s.attempt, p_event, p_tenant, s.queue, s.type, coalesce(s.worker, v_worker),
               s.millis, s.started
        FROM unnest(p_queues, p_types, p_workers, p_ids, p_seqs, p_attempts, p_millis, p_started)
            AS s (queue, type, worker, id, seq, attempt, millis, started);
    ELSIF p_queues[1] = ALL (p_queues) AND p_types[1] = ALL (p_types) AND v_worker = ALL (p_workers) THEN
        INSERT INTO {schema}.event_packs
            (xid, at, event, tenant, queue, type, worker, number, oldest, newest, job_ids, seqs, attempts, millis)
        SELECT v_xid, p_at, p_event, p_tenant, p_queues[1], p_types[1], v_worker, v_number, min(c.at), max(c.at),
               p_ids, p_seqs, p_attempts, p_millis
        FROM unnest(p_created) AS c (at);
    ELSE
        WITH step AS (
            SELECT s.queue, s.type, coalesce(s.worker, v_worker) AS worker, s.id, s.seq, s.attempt, s.created,
                   s.millis, s.started,
                   count(*) OVER (PARTITION BY s.queue, s.type, coalesce(s.worker, v_worker)) AS alike
            FROM unnest(p_queues, p_types, p_workers, p_ids, p_seqs, p_attempts, p_created, p_millis, p_started)
                AS s (queue, type, worker, id, seq, attempt, created, millis, started)
        ), packed AS (
            INSERT INTO {schema}.event_packs
                (xid, at, event, tenant, queue, type, worker, number, oldest, newest, job_ids, seqs, attempts, millis)
            SELECT v_xid, p_at, p_event, p_tenant, s.queue, s.type, s.worker, count(*), min(s.created),
                   max(s.created), array_agg(s.id), array_agg(s.seq), array_agg(s.attempt),
                   CASE WHEN p_millis IS NOT NULL THEN array_agg(s.millis) END
            FROM step s WHERE s.alike >= {schema}.pack_size() GROUP BY s.queue, s.type, s.worker
        )
        INSERT INTO {schema}.events
            (xid, at, job_id, seq, attempt, event, tenant, queue, type, worker, millis, started_at)
        SELECT v_xid, p_at, s.id, s.seq, s.attempt, p_event, p_tenant, s.queue, s.type, s.worker, s.millis, s.started
        FROM step s WHERE s.alike < {schema}.pack_size();
    END IF;
END $$;

-- Claim up to p_count due jobs under one new grant. The lanes are walked in the order given, each from its cursor.
-- `spot` is where the row lies now.
CREATE FUNCTION {schema}.claim_jobs(
    p_tenant text, p_queues text[], p_priorities smallint[], p_at timestamptz[], p_seq bigint[],
    p_count integer, p_token uuid, p_owner uuid, p_worker text, p_lease_seconds double precision
) RETURNS TABLE (
    id uuid, type text, queue text, priority smallint, payload text, attempt integer, attempts smallint,
    max_attempts smallint, run_at timestamptz, seq bigint, created_at timestamptz, started_at timestamptz,
    failures smallint, lost smallint, timeout double precision, retry text, expires_at timestamptz, tags text[],
    headers text, idempotency_key text, last_error text, unchecked boolean, spot tid
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := {now};
    v_rows tid[];
    v_ids uuid[];
    v_queues text[];
    v_types text[];
    v_seqs integer[];
    v_attempts integer[];
    v_created timestamptz[];
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
    SELECT array_agg(x.ctid), array_agg(x.id), array_agg(x.queue), array_agg(x.type), array_agg(x.event_seq + 1),
           array_agg(x.attempt + 1), array_agg(x.created_at)
    INTO v_rows, v_ids, v_queues, v_types, v_seqs, v_attempts, v_created
    FROM (
        SELECT x.*
        FROM unnest(p_queues, p_priorities, p_at, p_seq) AS lane (queue, priority, at, seq)
        CROSS JOIN LATERAL (
            SELECT c.ctid, c.id, c.queue, c.type, c.event_seq, c.attempt, c.created_at FROM {schema}.jobs c
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
    ) x;
    IF v_rows IS NULL THEN
        RETURN;
    END IF;
    -- They are locked: what was just looked at is what is changed.
    RETURN QUERY
    UPDATE {schema}.jobs j
    SET attempt = j.attempt + 1, attempts = j.attempts + 1, event_seq = j.event_seq + 1,
        lease_token = p_token, worker = p_worker, started_at = v_now, updated_at = v_now, progress = NULL,
        spent_token = NULL, spent_verb = NULL
    WHERE j.ctid = ANY (v_rows)
    RETURNING j.id, j.type, j.queue, j.priority, j.payload, j.attempt, j.attempts, j.max_attempts, j.run_at, j.seq,
              j.created_at, v_now, j.failures, j.lost, j.timeout, j.retry, j.expires_at, j.tags, j.headers,
              j.idempotency_key, j.last_error, j.unchecked, j.ctid;
    INSERT INTO {schema}.grants (token, tenant, owner, worker, lease_seconds, expires_at, job_ids)
    VALUES (p_token, p_tenant, p_owner, p_worker, p_lease_seconds,
            v_now + p_lease_seconds * interval '1 second', v_ids);
    IF {schema}.logs_routine() THEN
        PERFORM {schema}.log_steps('job.started', p_tenant, v_now, v_queues, v_types, ARRAY[p_worker], v_ids, v_seqs,
                                   v_attempts, v_created, NULL, NULL);
    END IF;
END $$;

-- A row lies where one of the tickets' rows lay, and is none of them: everything is undone.
CREATE FUNCTION {schema}.refuse_stranger(p_id uuid) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'another job lies at a spot that was given for a ticket'
        USING ERRCODE = 'RW409', DETAIL = p_id::text;
END $$;

-- Complete the jobs of these tickets; answers NULL when all were current, or else the ids of those that were. An array of
-- one attempt or token stands for all tickets; p_tokens are the different ones: the fence, repeated where rows are
-- changed, for a row may change while this waits for it. Such a row is not among the answers.
-- p_spots says where rows were seen last, NULL for a ticket whose row is to be found by its key; it may be empty. A row
-- that has moved since is not among the answers either: ask again without its spot.
CREATE FUNCTION {schema}.complete_jobs(
    p_tenant text, p_ids uuid[], p_spots tid[], p_attempts integer[], p_ticket_tokens uuid[], p_tokens uuid[],
    p_results text[], p_sanitized boolean[], p_too_large boolean[], p_ended_grants uuid[]
) RETURNS uuid[]
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now timestamptz := {now};
    v_attempt integer := p_attempts[1];
    v_token uuid := p_ticket_tokens[1];
    v_done uuid[];
    v_queues text[];
    v_types text[];
    v_workers text[];
    v_seqs integer[];
    v_attempts integer[];
    v_created timestamptz[];
    v_millis bigint[];
    v_started timestamptz[];
BEGIN
    WITH ticket AS MATERIALIZED (
        SELECT t.id, t.spot, coalesce(t.attempt, v_attempt) AS attempt, coalesce(t.token, v_token) AS token,
               t.result, t.sanitized, t.too_large
        FROM unnest(p_ids, p_spots, p_attempts, p_ticket_tokens, p_results, p_sanitized, p_too_large)
            AS t (id, spot, attempt, token, result, sanitized, too_large)
    ), finished AS (
        -- Not by tenant: an empty table's statistics would make a walk through the key of it.
        DELETE FROM {schema}.jobs j
        WHERE j.ctid = ANY (p_spots || ARRAY(
            SELECT x.ctid FROM ticket t
            CROSS JOIN LATERAL (
                SELECT c.ctid FROM {schema}.jobs c
                WHERE c.tenant = p_tenant AND c.id = t.id AND c.lease_token = t.token AND c.attempt = t.attempt
                LIMIT 1
            ) x
            WHERE t.spot IS NULL
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
               coalesce(t.sanitized, false), coalesce(t.too_large, false),
               CASE WHEN t.id IS NULL THEN {schema}.refuse_stranger(f.id) ELSE 'succeeded' END, f.queue, f.type,
               f.lease_token, 'ack', f.timeout, f.retry, f.tags, f.headers, f.idempotency_key, f.group_key,
               f.last_error, t.result, f.payload
        FROM finished f
        LEFT JOIN ticket t
            ON t.id = f.id AND t.token = f.lease_token AND t.attempt = f.attempt AND f.tenant = p_tenant
    ), ended AS (
        DELETE FROM {schema}.grants g WHERE g.token = ANY (p_ended_grants)
    )
    SELECT array_agg(f.id), array_agg(f.queue), array_agg(f.type), array_agg(f.worker), array_agg(f.event_seq + 1),
           array_agg(f.attempt), array_agg(f.created_at),
           array_agg((greatest(0, date_part('epoch', v_now - f.started_at)) * 1000)::bigint), array_agg(f.started_at)
    INTO v_done, v_queues, v_types, v_workers, v_seqs, v_attempts, v_created, v_millis, v_started
    FROM finished f;
    IF v_done IS NOT NULL AND {schema}.logs_routine() THEN
        PERFORM {schema}.log_steps('job.completed', p_tenant, v_now, v_queues, v_types, v_workers, v_done, v_seqs,
                                   v_attempts, v_created, v_millis, v_started);
    END IF;
    RETURN CASE WHEN cardinality(v_done) = cardinality(p_ids) THEN NULL ELSE coalesce(v_done, '{}') END;
END $$;

-- As servers and workers of the version before call them.
CREATE OR REPLACE FUNCTION {schema}.claim(
    p_tenant text, p_queues text[], p_priorities smallint[], p_at timestamptz[], p_seq bigint[],
    p_count integer, p_token uuid, p_owner uuid, p_worker text, p_lease_seconds double precision
) RETURNS TABLE (
    id uuid, type text, queue text, priority smallint, payload text, attempt integer, attempts smallint,
    max_attempts smallint, run_at timestamptz, seq bigint, created_at timestamptz, started_at timestamptz,
    failures smallint, lost smallint, timeout double precision, retry text, expires_at timestamptz, tags text[],
    headers text, idempotency_key text, last_error text, unchecked boolean
)
LANGUAGE sql AS $$
    SELECT c.id, c.type, c.queue, c.priority, c.payload, c.attempt, c.attempts, c.max_attempts, c.run_at, c.seq,
           c.created_at, c.started_at, c.failures, c.lost, c.timeout, c.retry, c.expires_at, c.tags, c.headers,
           c.idempotency_key, c.last_error, c.unchecked
    FROM {schema}.claim_jobs(
        p_tenant, p_queues, p_priorities, p_at, p_seq, p_count, p_token, p_owner, p_worker, p_lease_seconds
    ) c
$$;

CREATE OR REPLACE FUNCTION {schema}.complete(
    p_tenant text, p_ids uuid[], p_attempts integer[], p_ticket_tokens uuid[], p_tokens uuid[], p_results text[],
    p_sanitized boolean[], p_too_large boolean[], p_ended_grants uuid[]
) RETURNS uuid[]
LANGUAGE sql AS $$
    SELECT {schema}.complete_jobs(
        p_tenant, p_ids, '{}', p_attempts, p_ticket_tokens, p_tokens, p_results, p_sanitized, p_too_large,
        p_ended_grants
    )
$$;
