-- The other verbs: a row at a time by primary key, under the fence, in one transaction per call. Plain lookups see
-- a row that changed while they waited for it, so these answers are final.

-- The state of a job, live or ended; NULL when there is none.
CREATE FUNCTION {schema}.job_state(p_tenant text, p_id uuid) RETURNS text
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    v_state text;
    v_now timestamptz := {now};
BEGIN
    SELECT CASE WHEN lease_token IS NOT NULL THEN 'running'
                WHEN blockers > 0 THEN 'waiting'
                WHEN run_at > v_now THEN CASE WHEN failures > 0 THEN 'retrying' ELSE 'scheduled' END
                ELSE 'queued' END
    INTO v_state FROM {schema}.jobs WHERE tenant = p_tenant AND id = p_id;
    IF v_state IS NULL THEN
        SELECT state INTO v_state FROM {schema}.archive WHERE tenant = p_tenant AND id = p_id LIMIT 1;
    END IF;
    RETURN v_state;
END $$;

-- Write an event of a job that was read into `j`.
CREATE FUNCTION {schema}.log_event(
    j {schema}.jobs, p_event text, p_seq integer, p_worker text, p_run_at timestamptz, p_millis bigint,
    p_error text, p_detail text
) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO {schema}.events
        (xid, at, job_id, seq, attempt, event, failed, tenant, queue, type, worker, run_at, millis, error, detail)
    VALUES
        (pg_current_xact_id()::text::bigint, {now}, j.id, p_seq, j.attempt, p_event::{schema}.event,
         j.failures > 0, j.tenant, j.queue, j.type, p_worker, p_run_at, p_millis, p_error, p_detail)
$$;

-- Move a job that was deleted from `jobs` to the archive.
CREATE FUNCTION {schema}.archive_job(
    j {schema}.jobs, p_state text, p_reason text, p_token uuid, p_verb text, p_result text, p_sanitized boolean,
    p_too_large boolean
) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO {schema}.archive (
        tenant, id, finished_at, run_at, created_at, started_at, expires_at, attempt, event_seq, priority,
        attempts, max_attempts, failures, lost, result_sanitized, result_too_large, state, queue, type,
        spent_token, spent_verb, reason, timeout, retry, tags, headers, idempotency_key, group_key, last_error,
        result, payload
    ) VALUES (
        j.tenant, j.id, {now}, j.run_at, j.created_at, j.started_at, j.expires_at, j.attempt, j.event_seq,
        j.priority, j.attempts, j.max_attempts, j.failures, j.lost, p_sanitized, p_too_large, p_state, j.queue,
        j.type, p_token, p_verb, p_reason, j.timeout, j.retry, j.tags, j.headers, j.idempotency_key, j.group_key,
        j.last_error, p_result, j.payload
    )
$$;

-- Complete one job: the last word on a ticket that the batch did not find, and the last statement of a handler's
-- own transaction (G4).
CREATE FUNCTION {schema}.complete_one(
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
    PERFORM {schema}.log_event(j, 'job.completed', j.event_seq, j.worker, NULL,
        greatest(0, round(extract(epoch FROM {now} - j.started_at) * 1000))::bigint, NULL, NULL);
    RETURN true;
END $$;

-- Write decided transitions other than acks. Answers one row per item, in order; `state` NULL: the ticket was not
-- current. Either p_delays or p_run_at says when the job is due again; neither: it keeps its place.
CREATE FUNCTION {schema}.apply_transitions(
    p_tenants text[], p_ids uuid[], p_attempts integer[], p_tokens uuid[], p_verbs text[], p_targets text[],
    p_events text[], p_delays double precision[], p_run_at timestamptz[], p_refunds boolean[], p_failed boolean[],
    p_lost boolean[], p_reasons text[], p_errors text[], p_details text[]
) RETURNS TABLE (item integer, state text, attempts smallint, run_at timestamptz, queue text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    i integer;
    j {schema}.jobs;
    v_now timestamptz := {now};
    v_worker text;
BEGIN
    -- Always in this order, whoever calls: two batches over the same jobs then cannot deadlock.
    FOR i IN SELECT s FROM generate_subscripts(p_ids, 1) s ORDER BY p_tenants[s], p_ids[s] LOOP
        item := i; state := NULL; attempts := NULL; run_at := NULL; queue := NULL;
        SELECT * INTO j FROM {schema}.jobs t
        WHERE t.tenant = p_tenants[i] AND t.id = p_ids[i] AND t.lease_token = p_tokens[i] AND t.attempt = p_attempts[i]
        FOR UPDATE;
        IF FOUND THEN
            v_worker := j.worker;
            j.event_seq := j.event_seq + 1;
            j.attempts := j.attempts - p_refunds[i]::integer;
            j.failures := j.failures + p_failed[i]::integer;
            j.lost := j.lost + p_lost[i]::integer;
            j.last_error := coalesce(p_errors[i], j.last_error);
            IF p_targets[i] = 'dead' THEN
                DELETE FROM {schema}.jobs t WHERE t.tenant = j.tenant AND t.id = j.id;
                PERFORM {schema}.archive_job(j, 'dead', p_reasons[i], p_tokens[i], p_verbs[i], NULL, false, false);
            ELSE
                IF p_delays[i] IS NOT NULL THEN
                    j.run_at := v_now + p_delays[i] * interval '1 second';
                ELSIF p_run_at[i] IS NOT NULL THEN
                    j.run_at := greatest(p_run_at[i], v_now);
                END IF;
                UPDATE {schema}.jobs t
                SET lease_token = NULL, worker = NULL, progress = NULL, updated_at = v_now, run_at = j.run_at,
                    attempts = j.attempts, failures = j.failures, lost = j.lost, last_error = j.last_error,
                    event_seq = j.event_seq, spent_token = p_tokens[i], spent_verb = p_verbs[i]
                WHERE t.tenant = j.tenant AND t.id = j.id;
            END IF;
            PERFORM {schema}.log_event(j, p_events[i], j.event_seq, v_worker,
                CASE WHEN p_verbs[i] = 'snooze' THEN j.run_at END,
                CASE WHEN p_events[i] = 'job.failed' THEN round(p_delays[i] * 1000)::bigint END,
                p_errors[i], p_details[i]);
            state := p_targets[i]; attempts := j.attempts; run_at := j.run_at; queue := j.queue;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Cancel jobs that have not ended. `p_only_overdue` re-checks, in the write, that they were not started in time.
-- `before` NULL: no live job of that id (any more). The grant is locked before the job, as a rescue does it: the
-- other way round a cancel and a rescue of the same job would deadlock.
CREATE FUNCTION {schema}.cancel_jobs(
    p_tenants text[], p_ids uuid[], p_reason text, p_only_overdue boolean, p_spare_running boolean
) RETURNS TABLE (item integer, before text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET lock_timeout = '2s'
AS $$
DECLARE
    i integer;
    j {schema}.jobs;
    v_now timestamptz := {now};
    v_revoked uuid[] := '{}';
    v_tokens uuid[] := '{}';
BEGIN
    FOR i IN SELECT s FROM generate_subscripts(p_ids, 1) s ORDER BY p_tenants[s], p_ids[s] LOOP
        item := i; before := NULL;
        DELETE FROM {schema}.jobs t
        WHERE t.tenant = p_tenants[i] AND t.id = p_ids[i]
          AND (NOT p_spare_running OR t.lease_token IS NULL)
          AND (NOT p_only_overdue OR (t.lease_token IS NULL AND t.attempts = 0 AND t.expires_at <= v_now))
        RETURNING * INTO j;
        IF FOUND THEN
            before := CASE WHEN j.lease_token IS NOT NULL THEN 'running' WHEN j.blockers > 0 THEN 'waiting'
                           WHEN j.run_at > v_now THEN CASE WHEN j.failures > 0 THEN 'retrying' ELSE 'scheduled' END
                           ELSE 'queued' END;
            j.event_seq := j.event_seq + 1;
            PERFORM {schema}.archive_job(j, 'cancelled', p_reason, NULL, NULL, NULL, false, false);
            PERFORM {schema}.log_event(j, 'job.cancelled', j.event_seq, j.worker, NULL, NULL, NULL,
                json_build_object('reason', p_reason)::text);
            IF j.lease_token IS NOT NULL THEN
                v_revoked := v_revoked || j.id;
                v_tokens := v_tokens || j.lease_token;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    -- Last, so that no grant is locked while this waits for a job: its worker's heartbeats must go on.
    FOR i IN SELECT s FROM generate_subscripts(v_tokens, 1) s ORDER BY v_tokens[s] LOOP
        UPDATE {schema}.grants g SET revoked = g.revoked || v_revoked[i] WHERE g.token = v_tokens[i];
    END LOOP;
END $$;

-- Bring ended jobs back with a fresh budget. `before` NULL: the job is not dead or cancelled (any more).
CREATE FUNCTION {schema}.redrive_jobs(p_tenant text, p_ids uuid[], p_detail text)
RETURNS TABLE (item integer, before text, queue text)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    i integer;
    a {schema}.archive;
    v_now timestamptz := {now};
BEGIN
    FOR i IN SELECT s FROM generate_subscripts(p_ids, 1) s ORDER BY p_ids[s] LOOP
        item := i; before := NULL; queue := NULL;
        DELETE FROM {schema}.archive t
        WHERE t.tenant = p_tenant AND t.id = p_ids[i] AND t.state IN ('dead', 'cancelled')
        RETURNING * INTO a;
        IF FOUND THEN
            INSERT INTO {schema}.jobs (
                tenant, id, run_at, created_at, updated_at, attempt, event_seq, priority, max_attempts, queue,
                type, timeout, retry, tags, headers, idempotency_key, group_key, last_error, started_at, payload,
                unchecked
            ) VALUES (
                a.tenant, a.id, v_now, a.created_at, v_now, a.attempt, a.event_seq + 1, a.priority,
                a.max_attempts, a.queue, a.type, a.timeout, a.retry, a.tags, a.headers, a.idempotency_key,
                a.group_key, a.last_error, a.started_at, a.payload,
                -- What Python refused once it looks at again.
                coalesce(a.reason = 'bad_payload', false)
            );
            INSERT INTO {schema}.events (xid, at, job_id, seq, attempt, event, tenant, queue, type, detail)
            VALUES (pg_current_xact_id()::text::bigint, v_now, a.id, a.event_seq + 1, a.attempt, 'job.retried',
                    a.tenant, a.queue, a.type, p_detail);
            before := a.state; queue := a.queue;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Move a free job to another time, priority or queue. `before` NULL: there is no free job of that id.
CREATE FUNCTION {schema}.reschedule_job(
    p_tenant text, p_id uuid, p_run_at timestamptz, p_delay double precision, p_priority smallint, p_queue text
) RETURNS TABLE (before text, state text, queue text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    j {schema}.jobs;
    v_now timestamptz := {now};
BEGIN
    SELECT * INTO j FROM {schema}.jobs t
    WHERE t.tenant = p_tenant AND t.id = p_id AND t.lease_token IS NULL AND t.blockers = 0 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    before := CASE WHEN j.run_at <= v_now THEN 'queued' WHEN j.failures > 0 THEN 'retrying' ELSE 'scheduled' END;
    j.run_at := CASE WHEN p_delay IS NOT NULL THEN v_now + p_delay * interval '1 second'
                     WHEN p_run_at IS NOT NULL THEN greatest(p_run_at, v_now) ELSE j.run_at END;
    j.priority := coalesce(p_priority, j.priority);
    j.queue := coalesce(p_queue, j.queue);
    j.event_seq := j.event_seq + 1;
    UPDATE {schema}.jobs t
    SET run_at = j.run_at, priority = j.priority, queue = j.queue, event_seq = j.event_seq, updated_at = v_now
    WHERE t.tenant = p_tenant AND t.id = p_id;
    PERFORM {schema}.log_event(j, 'job.rescheduled', j.event_seq, NULL, j.run_at, NULL, NULL, NULL);
    state := CASE WHEN j.run_at <= v_now THEN 'queued' WHEN j.failures > 0 THEN 'retrying' ELSE 'scheduled' END;
    queue := j.queue;
    RETURN NEXT;
END $$;

-- Note how far running jobs are. Answers the positions of the tickets that were current.
CREATE FUNCTION {schema}.note_progress(
    p_tenant text, p_ids uuid[], p_attempts integer[], p_tokens uuid[], p_notes text[]
) RETURNS SETOF integer
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    FOR i IN 1 .. cardinality(p_ids) LOOP
        UPDATE {schema}.jobs SET progress = p_notes[i]
        WHERE tenant = p_tenant AND id = p_ids[i] AND lease_token = p_tokens[i] AND attempt = p_attempts[i];
        IF FOUND THEN
            RETURN NEXT i;
        END IF;
    END LOOP;
END $$;

-- Extend the grants of these leases, each with all the jobs it covers: never beyond the beating job's timeout,
-- never shorter than it was. `expires_in` NULL: the ticket is not current. Touches no job row.
CREATE FUNCTION {schema}.heartbeat(
    p_tenant text, p_ids uuid[], p_attempts integer[], p_tokens uuid[], p_lease_seconds double precision
) RETURNS TABLE (item integer, expires_in double precision, revoked uuid[])
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := {now};
    v_expires timestamptz;
BEGIN
    FOR i IN 1 .. cardinality(p_ids) LOOP
        item := i; expires_in := NULL; revoked := NULL;
        UPDATE {schema}.grants g
        SET expires_at = greatest(g.expires_at, least(
            v_now + coalesce(p_lease_seconds, g.lease_seconds) * interval '1 second',
            CASE WHEN j.timeout = 0 THEN 'infinity'::timestamptz
                 ELSE j.started_at + coalesce(j.timeout, 3600) * interval '1 second' END))
        FROM {schema}.jobs j
        WHERE j.tenant = p_tenant AND j.id = p_ids[i] AND j.lease_token = p_tokens[i] AND j.attempt = p_attempts[i]
          AND g.token = p_tokens[i]
        RETURNING g.expires_at, g.revoked INTO v_expires, revoked;
        IF FOUND THEN
            expires_in := extract(epoch FROM v_expires - v_now);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- The questions that go with the verbs. They are functions for the same reason: a session that planned them as plain
-- statements while the table was empty and truncated kept a sequential scan for each job.

-- How long the oldest due job of each lane and priority has waited; from the cursor, like the claim.
CREATE FUNCTION {schema}.waits(
    p_tenant text, p_queues text[], p_priorities smallint[], p_at timestamptz[], p_seq bigint[]
) RETURNS TABLE (queue text, priority smallint, waited double precision)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := {now};
BEGIN
    RETURN QUERY
    SELECT lane.queue, lane.priority, extract(epoch FROM v_now - x.run_at)::double precision
    FROM unnest(p_queues, p_priorities, p_at, p_seq) AS lane (queue, priority, at, seq)
    CROSS JOIN LATERAL (
        SELECT c.run_at FROM {schema}.jobs c
        WHERE c.tenant = p_tenant AND c.queue = lane.queue AND c.queue <> '' AND c.priority = lane.priority
          AND (c.run_at, c.seq) >= (lane.at, lane.seq) AND c.run_at <= v_now
          AND c.lease_token IS NULL AND (c.expires_at IS NULL OR c.expires_at > v_now OR c.attempts > 0)
        ORDER BY c.run_at, c.seq LIMIT 1
    ) x;
END $$;

-- Seconds until the next free job of these queues is due; NULL when none is known.
CREATE FUNCTION {schema}.next_due(p_tenant text, p_queues text[]) RETURNS double precision
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now timestamptz := {now};
    v_next timestamptz;
BEGIN
    SELECT min(x.run_at) INTO v_next
    FROM unnest(p_queues) AS lane (queue)
    CROSS JOIN generate_series(1, 9) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT c.run_at FROM {schema}.jobs c
        WHERE c.tenant = p_tenant AND c.queue = lane.queue AND c.queue <> '' AND c.priority = p.priority::smallint
          AND c.run_at > v_now AND c.lease_token IS NULL
        ORDER BY c.run_at, c.seq LIMIT 1
    ) x
    WHERE NOT EXISTS (SELECT FROM {schema}.queues q WHERE q.tenant = p_tenant AND q.queue = lane.queue AND q.paused);
    RETURN CASE WHEN v_next IS NOT NULL THEN greatest(0, extract(epoch FROM v_next - v_now)) END;
END $$;

-- What decisions need of each running job whose ticket is current.
CREATE FUNCTION {schema}.facts(p_tenant text, p_ids uuid[], p_attempts integer[], p_tokens uuid[])
RETURNS TABLE (
    id uuid, attempts smallint, max_attempts smallint, failures smallint, lost smallint, retry text
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT x.* FROM unnest(p_ids, p_attempts, p_tokens) AS t (id, attempt, token)
    CROSS JOIN LATERAL (
        SELECT c.id, c.attempts, c.max_attempts, c.failures, c.lost, c.retry FROM {schema}.jobs c
        WHERE c.tenant = p_tenant AND c.id = t.id AND c.lease_token = t.token AND c.attempt = t.attempt LIMIT 1
    ) x;
END $$;

-- The newest spent ticket of each job, live or ended.
CREATE FUNCTION {schema}.last_tickets(p_tenant text, p_ids uuid[])
RETURNS TABLE (id uuid, attempt integer, spent_token uuid, spent_verb text, state text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT x.* FROM unnest(p_ids) AS t (id)
    CROSS JOIN LATERAL (
        SELECT c.id, c.attempt, c.spent_token, c.spent_verb, {schema}.job_state(c.tenant, c.id)
        FROM {schema}.jobs c WHERE c.tenant = p_tenant AND c.id = t.id
        UNION ALL
        SELECT a.id, a.attempt, a.spent_token, a.spent_verb, a.state
        FROM {schema}.archive a WHERE a.tenant = p_tenant AND a.id = t.id
        LIMIT 1
    ) x;
END $$;

-- The jobs that still carry the tokens of these grants, in the order in which they were accepted. One that is locked
-- (its handler's own transaction is about to complete it) is left alone, and its grant with it.
CREATE FUNCTION {schema}.held_jobs(p_tokens uuid[])
RETURNS TABLE (
    tenant text, id uuid, attempt integer, lease_token uuid, attempts smallint, max_attempts smallint,
    failures smallint, lost smallint, retry text, seq bigint
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT x.* FROM {schema}.grants g
    CROSS JOIN LATERAL unnest(g.job_ids) AS t (id)
    CROSS JOIN LATERAL (
        SELECT j.tenant, j.id, j.attempt, j.lease_token, j.attempts, j.max_attempts, j.failures, j.lost, j.retry,
               j.seq
        FROM {schema}.jobs j WHERE j.tenant = g.tenant AND j.id = t.id AND j.lease_token = g.token
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) x
    WHERE g.token = ANY (p_tokens)
    ORDER BY x.seq;
END $$;

-- Delete those of these grants that no job carries any more; answers how many.
CREATE FUNCTION {schema}.delete_grants(p_tokens uuid[]) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_gone bigint;
BEGIN
    DELETE FROM {schema}.grants g
    WHERE g.token = ANY (p_tokens)
      AND NOT EXISTS (
          SELECT FROM unnest(g.job_ids) AS t (id)
          CROSS JOIN LATERAL (
              SELECT FROM {schema}.jobs j
              WHERE j.tenant = g.tenant AND j.id = t.id AND j.lease_token = g.token LIMIT 1
          ) x
      );
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    RETURN v_gone;
END $$;

-- Jobs that were not started in time, the longest overdue first.
CREATE FUNCTION {schema}.overdue(p_limit integer) RETURNS TABLE (tenant text, id uuid)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := {now};
BEGIN
    RETURN QUERY
    SELECT j.tenant, j.id FROM {schema}.jobs j
    WHERE j.expires_at IS NOT NULL AND j.expires_at <= v_now AND j.lease_token IS NULL AND j.attempts = 0
    ORDER BY j.expires_at LIMIT p_limit;
END $$;

-- Extend the grants of one worker process of which some job still carries the token; the others (all settled, or only
-- revoked jobs to tell of) are left to expire. `done` says which those are. Deletes the grants in p_ended.
CREATE FUNCTION {schema}.heartbeat_owner(p_tenant text, p_owner uuid, p_ended uuid[])
RETURNS TABLE (token uuid, expires_in double precision, revoked uuid[], done boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := {now};
BEGIN
    DELETE FROM {schema}.grants g WHERE g.token = ANY (p_ended);
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT g.token, EXISTS (
            SELECT FROM unnest(g.job_ids) AS t (id)
            CROSS JOIN LATERAL (
                SELECT FROM {schema}.jobs j
                WHERE j.tenant = g.tenant AND j.id = t.id AND j.lease_token = g.token LIMIT 1
            ) x
        ) AS open
        FROM {schema}.grants g WHERE g.owner = p_owner AND g.tenant = p_tenant
    )
    UPDATE {schema}.grants g
    SET expires_at = CASE WHEN held.open
        THEN greatest(g.expires_at, v_now + g.lease_seconds * interval '1 second') ELSE g.expires_at END
    FROM held WHERE g.token = held.token
    RETURNING g.token, extract(epoch FROM g.expires_at - v_now)::double precision, g.revoked, NOT held.open;
END $$;
