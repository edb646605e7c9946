-- Packs: the same step of many jobs, taken at once, as one row of the event log. A claim of 500 jobs and their
-- completion used to write 1,000 rows and as many index entries, a quarter of what PostgreSQL had to do for a drained
-- job; the bytes written per drained job fall from 1,144 to 745.
--
-- Only the steps that go well come in such numbers: started and completed. Few of a queue and type at a time, all
-- enqueued jobs and everything that goes wrong stay rows of `events`, which an index finds by job. For a job in a pack
-- no index has an entry: the pack is found by its time, which is that of the step, and the job and the events around it
-- know that.

CREATE TABLE {schema}.event_packs (
    id bigint NOT NULL DEFAULT nextval('{schema}.events_id_seq'),
    xid bigint NOT NULL,
    at timestamptz NOT NULL,
    event {schema}.event NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    worker text,
    number integer NOT NULL,
    -- When the first and the last of its jobs were created: narrows the search for a job that is itself gone.
    oldest timestamptz NOT NULL,
    newest timestamptz NOT NULL,
    job_ids uuid[] NOT NULL,
    seqs integer[] NOT NULL,
    attempts integer[] NOT NULL,
    millis bigint[]
) PARTITION BY RANGE (at);
-- Ids do not compress, and trying takes time.
ALTER TABLE {schema}.event_packs
    ALTER job_ids SET STORAGE EXTERNAL, ALTER seqs SET STORAGE EXTERNAL, ALTER attempts SET STORAGE EXTERNAL,
    ALTER millis SET STORAGE EXTERNAL;
CREATE INDEX event_packs_at ON {schema}.event_packs (at);
CREATE INDEX event_packs_id ON {schema}.event_packs (id);
CREATE INDEX event_packs_tail ON {schema}.event_packs (xid, id);
CREATE INDEX event_packs_age ON {schema}.event_packs USING gist (tstzrange(oldest, newest, '[]'));

CREATE OR REPLACE FUNCTION {schema}.partitioned() RETURNS text[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY['archive_succeeded', 'archive_dead', 'archive_cancelled', 'events', 'event_packs']
$$;

-- The index of events by job needs no room any more (migrations/0016): a job has one entry there, and seldom others. It
-- took 8.7 MB instead of 3.3 for 100,000 jobs, and 7 % of the WAL of an enqueue. As it was in migrations/0002:
CREATE OR REPLACE FUNCTION {schema}.ensure_partitions(first date, last date) RETURNS integer
LANGUAGE plpgsql
SET lock_timeout = '2s'
AS $$
DECLARE
    parent text;
    day date;
    child text;
    known regclass;
    made integer := 0;
BEGIN
    FOREACH parent IN ARRAY {schema}.partitioned() LOOP
        FOR day IN SELECT generate_series(first, last, interval '1 day')::date LOOP
            child := parent || to_char(day, '_YYYYMMDD');
            known := to_regclass(format('%I.%I', '{schema}', child));
            IF EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = known) THEN
                CONTINUE;
            END IF;
            BEGIN
                IF known IS NULL THEN  -- else it was detached: then it only has to be attached again
                    EXECUTE format(
                        'CREATE TABLE %I.%I (LIKE %I.%I INCLUDING ALL)', '{schema}', child, '{schema}', parent
                    );
                END IF;
                EXECUTE format(
                    'ALTER TABLE %I.%I ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)',
                    '{schema}', parent, '{schema}', child,
                    day::text || ' 00:00:00+00', (day + 1)::text || ' 00:00:00+00'
                );
                made := made + 1;
            EXCEPTION WHEN duplicate_table OR unique_violation OR wrong_object_type THEN
                NULL;  -- another process was faster
            END;
        END LOOP;
    END LOOP;
    RETURN made;
END $$;

DROP FUNCTION {schema}.leave_room(regclass);

DO $$
DECLARE
    v_index regclass;
BEGIN
    FOR v_index IN
        SELECT i.indexrelid FROM pg_inherits h
        JOIN pg_index i ON i.indrelid = h.inhrelid
        JOIN pg_class c ON c.oid = i.indexrelid
        WHERE h.inhparent = '{schema}.events'::regclass AND 'fillfactor=33' = ANY (c.reloptions)
    LOOP
        EXECUTE format('ALTER INDEX %s RESET (fillfactor)', v_index);
    END LOOP;
END $$;

-- From how many jobs on a step is a pack. A function, so that it is part of the plans and tests can change it.
CREATE FUNCTION {schema}.pack_size() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 16';

-- When the attempt began that an event belongs to: the time of the pack that tells of its start.
ALTER TABLE {schema}.events ADD COLUMN started_at timestamptz;

CREATE OR REPLACE FUNCTION {schema}.log_event(
    j {schema}.jobs, p_event text, p_seq integer, p_worker text, p_run_at timestamptz, p_millis bigint,
    p_error text, p_detail text
) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO {schema}.events
        (xid, at, job_id, seq, attempt, event, failed, tenant, queue, type, worker, run_at, millis, error, detail,
         started_at)
    VALUES
        (pg_current_xact_id()::text::bigint, {now}, j.id, p_seq, j.attempt, p_event::{schema}.event,
         j.failures > 0, j.tenant, j.queue, j.type, p_worker, p_run_at, p_millis, p_error, p_detail, j.started_at)
$$;

-- Claim and complete are as they were, but for what they log.

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
    ), packed AS (
        INSERT INTO {schema}.event_packs
            (xid, at, event, tenant, queue, type, worker, number, oldest, newest, job_ids, seqs, attempts)
        SELECT v_xid, v_now, 'job.started', p_tenant, c.queue, c.type, p_worker, count(*), min(c.created_at),
               max(c.created_at), array_agg(c.id), array_agg(c.event_seq), array_agg(c.attempt)
        FROM claimed c WHERE {schema}.logs_routine()
        GROUP BY c.queue, c.type HAVING count(*) >= {schema}.pack_size()
        RETURNING queue, type
    ), logged AS (
        INSERT INTO {schema}.events (xid, at, job_id, seq, attempt, event, tenant, queue, type, worker)
        SELECT v_xid, v_now, c.id, c.event_seq, c.attempt, 'job.started', c.tenant, c.queue, c.type, p_worker
        FROM claimed c
        WHERE {schema}.logs_routine()
          AND NOT EXISTS (SELECT FROM packed p WHERE p.queue = c.queue AND p.type = c.type)
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
    ), packed AS (
        INSERT INTO {schema}.event_packs
            (xid, at, event, tenant, queue, type, worker, number, oldest, newest, job_ids, seqs, attempts, millis)
        SELECT v_xid, v_now, 'job.completed', p_tenant, f.queue, f.type, f.worker, count(*), min(f.created_at),
               max(f.created_at), array_agg(f.id), array_agg(f.event_seq + 1), array_agg(f.attempt),
               array_agg((greatest(0, date_part('epoch', v_now - f.started_at)) * 1000)::bigint)
        FROM finished f WHERE {schema}.logs_routine()
        GROUP BY f.queue, f.type, f.worker HAVING count(*) >= {schema}.pack_size()
        RETURNING queue, type, worker
    ), logged AS (
        INSERT INTO {schema}.events
            (xid, at, job_id, seq, attempt, event, tenant, queue, type, worker, millis, started_at)
        SELECT v_xid, v_now, f.id, f.event_seq + 1, f.attempt, 'job.completed', f.tenant, f.queue, f.type, f.worker,
               (greatest(0, date_part('epoch', v_now - f.started_at)) * 1000)::bigint, f.started_at
        FROM finished f
        WHERE {schema}.logs_routine() AND NOT EXISTS (
            SELECT FROM packed p
            WHERE p.queue = f.queue AND p.type = f.type AND coalesce(p.worker, '') = coalesce(f.worker, '')
        )
    ), ended AS (
        DELETE FROM {schema}.grants g WHERE g.token = ANY (p_ended_grants)
    )
    SELECT array_agg(f.id) INTO v_done FROM finished f;
    RETURN CASE WHEN cardinality(v_done) = cardinality(p_ids) THEN NULL ELSE coalesce(v_done, '{}') END;
END $$;

-- An event as it is told, wherever it was kept. `n` is its place in its pack, with `rest` more after it; both are 0 for
-- one that is a row by itself.
CREATE TYPE {schema}.told_event AS (
    id bigint, n bigint, rest bigint, tenant text, job_id uuid, seq integer, at timestamptz, type text, queue text,
    attempt integer, event {schema}.event, worker text, priority smallint, failed boolean, run_at timestamptz,
    millis bigint, error text, detail text
);

-- All events of one job. One snapshot for all of it, as the function is stable.
CREATE FUNCTION {schema}.events_of(p_tenant text, p_id uuid) RETURNS SETOF {schema}.told_event
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET max_parallel_workers_per_gather = 0 SET jit = off
AS $$
DECLARE
    v_times timestamptz[];
    v_is_kept boolean;
    v_created timestamptz;
BEGIN
    RETURN QUERY
    SELECT e.id, 0::bigint, 0::bigint, e.tenant, e.job_id, e.seq, e.at, e.type, e.queue, e.attempt, e.event, e.worker,
           e.priority, e.failed, e.run_at, e.millis, e.error, e.detail
    FROM {schema}.events e WHERE e.job_id = p_id AND e.tenant = p_tenant;
    SELECT array_remove(array_agg(DISTINCT x.at), NULL), coalesce(bool_or(x.is_job), false), min(x.created)
    INTO v_times, v_is_kept, v_created
    FROM (
        SELECT j.started_at AS at, true AS is_job, NULL::timestamptz AS created
        FROM {schema}.jobs j WHERE j.tenant = p_tenant AND j.id = p_id
        UNION ALL
        SELECT unnest(ARRAY[a.started_at, a.finished_at]), true, NULL
        FROM {schema}.archive a WHERE a.tenant = p_tenant AND a.id = p_id
        UNION ALL
        SELECT e.started_at, false, CASE WHEN e.event = 'job.enqueued' THEN e.at END
        FROM {schema}.events e WHERE e.job_id = p_id AND e.tenant = p_tenant
    ) x;
    RETURN QUERY
    SELECT p.id, n.n::bigint, p.number - n.n::bigint, p.tenant, p_id, p.seqs[n.n], p.at, p.type, p.queue,
           p.attempts[n.n], p.event, p.worker, NULL::smallint, NULL::boolean, NULL::timestamptz, p.millis[n.n],
           NULL::text, NULL::text
    FROM {schema}.event_packs p CROSS JOIN LATERAL array_position(p.job_ids, p_id) AS n (n)
    WHERE p.at = ANY (v_times) AND p.tenant = p_tenant AND n.n IS NOT NULL;
    -- The job is gone, and some of its times with it: the packs of jobs of its age are looked at. Without the event
    -- that tells when it was enqueued there is nothing to tell them by.
    IF NOT v_is_kept AND v_created IS NOT NULL THEN
        RETURN QUERY
        SELECT p.id, n.n::bigint, p.number - n.n::bigint, p.tenant, p_id, p.seqs[n.n], p.at, p.type, p.queue,
               p.attempts[n.n], p.event, p.worker, NULL::smallint, NULL::boolean, NULL::timestamptz, p.millis[n.n],
               NULL::text, NULL::text
        FROM {schema}.event_packs p CROSS JOIN LATERAL array_position(p.job_ids, p_id) AS n (n)
        WHERE tstzrange(p.oldest, p.newest, '[]') @> v_created AND p.tenant = p_tenant AND p.at <> ALL (v_times)
          AND n.n IS NOT NULL;
    END IF;
END $$;

-- The tail, now also out of packs. Events that the snapshot p_seen did not see and p_upto sees, of one tenant or (NULL)
-- of all, up to the id p_last and after p_after; if p_within is not 0, p_after is a pack that was read up to that place.
-- What the ranges of transactions are for is told in migrations/0010: without p_after they find the packs, and adding 0
-- keeps the index by id, which would be walked from its beginning, out of that.
DROP FUNCTION {schema}.tail_events(text, text, bigint, bigint, bigint[], bigint[], bigint);
DROP FUNCTION {schema}.tail_events(text, text, bigint, bigint, bigint[], bigint[], bigint, text);

CREATE FUNCTION {schema}.tail_events(
    p_seen text, p_upto text, p_after bigint, p_within bigint, p_last bigint, p_froms bigint[], p_tos bigint[],
    p_limit bigint, p_tenant text
) RETURNS SETOF {schema}.told_event
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_seen pg_snapshot := p_seen;
    v_upto pg_snapshot := p_upto;
BEGIN
    RETURN QUERY
    WITH alone AS (
        SELECT x.* FROM unnest(p_froms, p_tos) AS r (first, last) CROSS JOIN LATERAL (
            SELECT e.* FROM {schema}.events e
            WHERE e.xid >= r.first AND e.xid <= r.last AND e.id > p_after AND e.id <= p_last
              AND (p_tenant IS NULL OR e.tenant = p_tenant)
              AND NOT pg_visible_in_snapshot(e.xid::text::xid8, v_seen)
              AND pg_visible_in_snapshot(e.xid::text::xid8, v_upto)
            ORDER BY e.id LIMIT p_limit
        ) x
    ), reached AS (
        SELECT p.* FROM {schema}.event_packs p WHERE p_after > 0 AND p.id >= p_after AND p.id <= p_last
        UNION ALL
        SELECT p.* FROM unnest(p_froms, p_tos) AS r (first, last)
        JOIN {schema}.event_packs p ON p.xid >= r.first AND p.xid <= r.last
        WHERE p_after = 0 AND p.id + 0 <= p_last
    ), pack AS (
        SELECT p.* FROM reached p
        WHERE (p.id > p_after OR p_within > 0) AND (p_tenant IS NULL OR p.tenant = p_tenant)
          AND NOT pg_visible_in_snapshot(p.xid::text::xid8, v_seen)
          AND pg_visible_in_snapshot(p.xid::text::xid8, v_upto)
        ORDER BY p.id LIMIT p_limit
    ), enough AS (
        -- The first packs that have as many events as were asked for: no others need be taken apart.
        SELECT * FROM (SELECT p.*, sum(p.number) OVER (ORDER BY p.id) - p.number AS before FROM pack p) p
        WHERE p.before < p_limit + p_within
    )
    SELECT t.* FROM (
        SELECT e.id, 0::bigint AS n, 0::bigint, e.tenant, e.job_id, e.seq, e.at, e.type, e.queue, e.attempt, e.event,
               e.worker, e.priority, e.failed, e.run_at, e.millis, e.error, e.detail
        FROM alone e
        UNION ALL
        SELECT p.id, u.n, p.number - u.n, p.tenant, u.job_id, u.seq, p.at, p.type, p.queue, u.attempt, p.event,
               p.worker, NULL, NULL, NULL, u.millis, NULL, NULL
        FROM enough p
        CROSS JOIN LATERAL unnest(p.job_ids, p.seqs, p.attempts, p.millis) WITH ORDINALITY
            AS u (job_id, seq, attempt, millis, n)
        WHERE p.id > p_after OR u.n > p_within
    ) t
    ORDER BY t.id, t.n LIMIT p_limit;
END $$;

-- The id before the newest events of the log that the snapshot p_upto sees, p_number of them or a few more; looks at
-- none before the id p_after nor after p_last.
CREATE FUNCTION {schema}.before_newest_events(
    p_upto text, p_number bigint, p_after bigint, p_last bigint
) RETURNS bigint
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_upto pg_snapshot := p_upto;
BEGIN
    RETURN coalesce((
        SELECT max(x.id) - 1 FROM (
            SELECT y.id, sum(y.number) OVER (ORDER BY y.id DESC) AS total FROM (
                SELECT e.id, 1 AS number FROM {schema}.events e
                WHERE e.id > p_after AND e.id <= p_last AND pg_visible_in_snapshot(e.xid::text::xid8, v_upto)
                UNION ALL
                SELECT p.id, p.number FROM {schema}.event_packs p
                WHERE p.id > p_after AND p.id <= p_last AND pg_visible_in_snapshot(p.xid::text::xid8, v_upto)
            ) y
        ) x
        WHERE x.total >= p_number
    ), p_after);
END $$;

-- From when on packs are counted that were written in a time: the newest of them, twenty for each page of the log that
-- is looked at beside them. NULL when there are no more than that.
CREATE FUNCTION {schema}.reach_of_packs(p_since timestamptz, p_until timestamptz, p_pages bigint) RETURNS timestamptz
LANGUAGE sql STABLE
SET enable_seqscan = off SET jit = off
AS $$
    SELECT min(x.at) FROM (
        SELECT p.at FROM {schema}.event_packs p WHERE p.at >= p_since AND p.at < p_until
        ORDER BY p.at DESC LIMIT 20 * p_pages
    ) x
    HAVING count(*) = 20 * p_pages
$$;

-- As it was (migrations/0009), and what packs tell of.
CREATE OR REPLACE FUNCTION {schema}.queue_rates(p_tenant text, p_seconds double precision, p_pages bigint)
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
    v_first := {schema}.reach_of_packs(v_since, v_now, p_pages);
    IF v_first > v_since THEN
        v_since := v_first;
        v_seconds := extract(epoch FROM v_now - v_first);
    END IF;
    FOR i IN 1 .. cardinality(v_parts) LOOP
        RETURN QUERY EXECUTE format($q$
            SELECT e.queue, count(*) FILTER (WHERE e.event = 'job.enqueued'),
                   count(*) FILTER (WHERE e.event IN ('job.completed', 'job.dlq', 'job.cancelled')),
                   $1
            FROM %s e WHERE e.ctid >= %L AND e.at >= $2 AND e.tenant = $3 GROUP BY e.queue
            $q$, v_parts[i], v_starts[i])
        USING v_seconds, v_since, p_tenant;
    END LOOP;
    RETURN QUERY
    SELECT p.queue, 0::bigint, sum(p.number), v_seconds FROM {schema}.event_packs p
    WHERE p.at >= v_since AND p.tenant = p_tenant AND p.event = 'job.completed' GROUP BY p.queue;
END $$;

-- As it was (migrations/0014), and what packs tell of: how many events there are, and a few of their jobs.
DROP FUNCTION {schema}.events_between(timestamptz, timestamptz, bigint);

CREATE FUNCTION {schema}.events_between(p_since timestamptz, p_until timestamptz, p_pages bigint)
RETURNS TABLE (
    tenant text, queue text, event {schema}.event, at timestamptz, number integer, job_ids uuid[], reach timestamptz
)
LANGUAGE plpgsql
SET enable_sort = off SET max_parallel_workers_per_gather = 0 SET jit = off
AS $$
DECLARE
    v_since timestamptz := p_since;
    v_until timestamptz := p_until;
    v_first timestamptz;
    v_days date[] := ARRAY[((p_until - interval '1 microsecond') AT TIME ZONE 'UTC')::date];
    v_day date;
    v_part regclass;
    v_parts regclass[] := '{}';
    v_page bigint;
    v_starts tid[] := '{}';
BEGIN
    IF (p_since AT TIME ZONE 'UTC')::date < v_days[1] THEN
        v_days := v_days || (v_days[1] - 1);
    END IF;
    FOREACH v_day IN ARRAY v_days LOOP
        v_part := to_regclass(format('%I.%I', '{schema}', 'events' || to_char(v_day, '_YYYYMMDD')));
        CONTINUE WHEN v_part IS NULL;
        v_page := greatest(0, pg_relation_size(v_part) / current_setting('block_size')::integer - p_pages);
        v_parts := v_parts || v_part;
        v_starts := v_starts || format('(%s,0)', v_page)::tid;
        IF v_page > 0 THEN
            EXECUTE format('SELECT min(at) FROM %s WHERE ctid >= %L AND ctid < %L', v_part,
                           format('(%s,0)', v_page), format('(%s,0)', v_page + 16))
            INTO v_first;
            IF v_first > v_since THEN
                v_since := v_first;
                EXIT;
            END IF;
        END IF;
    END LOOP;
    v_since := greatest(v_since, {schema}.reach_of_packs(v_since, p_until, p_pages));
    IF v_since > p_since AND v_since > p_until - interval '1 second' THEN
        v_until := 'infinity';
        v_since := greatest(v_since, {schema}.reach_of_packs(v_since, v_until, p_pages));
    END IF;
    FOR i IN 1 .. cardinality(v_parts) LOOP
        RETURN QUERY EXECUTE format($q$
            SELECT e.tenant, e.queue, e.event, e.at, 1, ARRAY[e.job_id], $1
            FROM %s e WHERE e.ctid >= %L AND e.at >= $1 AND e.at < $2
            $q$, v_parts[i], v_starts[i])
        USING v_since, v_until;
    END LOOP;
    RETURN QUERY
    SELECT p.tenant, p.queue, p.event, p.at, p.number, CASE WHEN p.event = 'job.completed' THEN p.job_ids[:10] END,
           v_since
    FROM {schema}.event_packs p
    WHERE p.at >= v_since AND p.at < v_until;
END $$;
