-- What reads packs (migrations/0017) reads fewer of them.

-- As it was, and told p_high, the highest id drawn when p_seen was taken. Packs with ids beyond it are found by id, a
-- stride of them; among the others only those that committed late are wanted, which the ranges of transactions find.
-- Before, the first page of a reader who is far behind, and every page once a log was restored, read all packs there
-- were. Adding 0 keeps the index by id, which would be walked from its beginning, out of that. The function without
-- p_high stays for processes of the version before.
CREATE FUNCTION {schema}.tail_events(
    p_seen text, p_upto text, p_high bigint, p_after bigint, p_within bigint, p_last bigint,
    p_froms bigint[], p_tos bigint[], p_limit bigint, p_tenant text
) RETURNS SETOF {schema}.told_event
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET max_parallel_workers_per_gather = 0 SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_seen pg_snapshot := p_seen;
    v_upto pg_snapshot := p_upto;
    v_from bigint := CASE WHEN p_within > 0 THEN p_after ELSE p_after + 1 END;
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
        (SELECT p.* FROM {schema}.event_packs p
         WHERE p.id > p_high AND p.id >= v_from AND p.id <= p_last AND (p_tenant IS NULL OR p.tenant = p_tenant)
           AND NOT pg_visible_in_snapshot(p.xid::text::xid8, v_seen)
           AND pg_visible_in_snapshot(p.xid::text::xid8, v_upto)
         ORDER BY p.id LIMIT p_limit)
        UNION ALL
        SELECT p.* FROM unnest(p_froms, p_tos) AS r (first, last)
        JOIN {schema}.event_packs p ON p.xid >= r.first AND p.xid <= r.last
        WHERE p_high > 0 AND v_from <= p_high
          AND p.id + 0 >= v_from AND p.id + 0 <= least(p_high, p_last) AND (p_tenant IS NULL OR p.tenant = p_tenant)
          AND NOT pg_visible_in_snapshot(p.xid::text::xid8, v_seen)
          AND pg_visible_in_snapshot(p.xid::text::xid8, v_upto)
    ), pack AS (
        SELECT p.* FROM reached p ORDER BY p.id LIMIT p_limit
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

-- As it was; packs that are looked at for want of the job's own times are now at least of its type.
CREATE OR REPLACE FUNCTION {schema}.events_of(p_tenant text, p_id uuid) RETURNS SETOF {schema}.told_event
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET max_parallel_workers_per_gather = 0 SET jit = off
AS $$
DECLARE
    v_times timestamptz[];
    v_is_kept boolean;
    v_created timestamptz;
    v_type text;
BEGIN
    RETURN QUERY
    SELECT e.id, 0::bigint, 0::bigint, e.tenant, e.job_id, e.seq, e.at, e.type, e.queue, e.attempt, e.event, e.worker,
           e.priority, e.failed, e.run_at, e.millis, e.error, e.detail
    FROM {schema}.events e WHERE e.job_id = p_id AND e.tenant = p_tenant;
    SELECT array_remove(array_agg(DISTINCT x.at), NULL), coalesce(bool_or(x.is_job), false), min(x.created),
           min(x.type)
    INTO v_times, v_is_kept, v_created, v_type
    FROM (
        SELECT j.started_at AS at, true AS is_job, NULL::timestamptz AS created, j.type
        FROM {schema}.jobs j WHERE j.tenant = p_tenant AND j.id = p_id
        UNION ALL
        SELECT unnest(ARRAY[a.started_at, a.finished_at]), true, NULL, a.type
        FROM {schema}.archive a WHERE a.tenant = p_tenant AND a.id = p_id
        UNION ALL
        SELECT e.started_at, false, CASE WHEN e.event = 'job.enqueued' THEN e.at END, e.type
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
        WHERE tstzrange(p.oldest, p.newest, '[]') @> v_created AND p.tenant = p_tenant AND p.type = v_type
          AND p.at <> ALL (v_times) AND n.n IS NOT NULL;
    END IF;
END $$;
