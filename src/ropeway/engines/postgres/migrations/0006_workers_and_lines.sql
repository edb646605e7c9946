-- Which workers are there, and what handlers say while they run. Neither is touched by a claim or a completion.

-- A worker's newest report. Half-full pages keep the renewals of every worker HOT.
CREATE TABLE {schema}.workers (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    queues text[] NOT NULL,
    types text[] NOT NULL,
    slots integer NOT NULL,
    running integer NOT NULL,
    rss_bytes bigint,
    state text NOT NULL CHECK (state IN ('running', 'quiet', 'draining')),
    started_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);

-- Lines of jobs' logs. One plain table, not a partition per day: the lines of one day belong to jobs that end on
-- other days and are kept for different times, so no day of lines goes as a whole; and a line must stay as long as its
-- job, however long that waits. They go with the partition of the archive that held their jobs, by the primary key:
-- ids are made in the order of time, so the lines of a day's jobs lie together there, and vacuum gets whole pages back.
CREATE TABLE {schema}.lines (
    tenant text COLLATE "C" NOT NULL,
    job_id uuid NOT NULL,
    n integer NOT NULL CHECK (n >= 1),
    attempt integer NOT NULL,
    at timestamptz NOT NULL,
    level text NOT NULL,
    message text NOT NULL,
    PRIMARY KEY (tenant, job_id, n)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2);

-- Append lines to the logs of running jobs. Answers the positions of the lines whose tickets were current. The job's
-- row is locked, not changed: that numbers the lines of two callers one after the other, and no line can come after
-- its job was deleted. Always in the order of ids: two batches over the same jobs then cannot deadlock.
CREATE FUNCTION {schema}.append_lines(
    p_tenant text, p_ids uuid[], p_attempts integer[], p_tokens uuid[], p_levels text[], p_messages text[],
    p_keep integer
) RETURNS SETOF integer
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    i integer;
    v_now timestamptz := {now};
    v_id uuid;
    v_last integer;
    v_long uuid[] := '{}';
BEGIN
    FOR i IN SELECT s FROM generate_subscripts(p_ids, 1) s ORDER BY p_ids[s], s LOOP
        PERFORM FROM {schema}.jobs j
        WHERE j.tenant = p_tenant AND j.id = p_ids[i] AND j.lease_token = p_tokens[i] AND j.attempt = p_attempts[i]
        FOR NO KEY UPDATE;
        CONTINUE WHEN NOT FOUND;
        IF v_id IS DISTINCT FROM p_ids[i] THEN
            v_id := p_ids[i];
            SELECT l.n INTO v_last FROM {schema}.lines l
            WHERE l.tenant = p_tenant AND l.job_id = v_id ORDER BY l.n DESC LIMIT 1;
        END IF;
        v_last := coalesce(v_last, 0) + 1;
        INSERT INTO {schema}.lines (tenant, job_id, n, attempt, at, level, message)
        VALUES (p_tenant, v_id, v_last, p_attempts[i], v_now, p_levels[i], p_messages[i]);
        IF v_last > p_keep AND v_long[1] IS DISTINCT FROM v_id THEN
            v_long := v_id || v_long;
        END IF;
        RETURN NEXT i;
    END LOOP;
    FOREACH v_id IN ARRAY v_long LOOP
        DELETE FROM {schema}.lines l
        WHERE l.tenant = p_tenant AND l.job_id = v_id AND l.n <= (
            SELECT max(x.n) FROM {schema}.lines x WHERE x.tenant = p_tenant AND x.job_id = v_id
        ) - p_keep;
    END LOOP;
END $$;

-- The lines of one job beyond a number, in order.
CREATE FUNCTION {schema}.lines_of(p_tenant text, p_id uuid, p_after integer, p_limit integer)
RETURNS TABLE (message text, level text, attempt integer, n integer, at timestamptz)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT l.message, l.level, l.attempt, l.n, l.at FROM {schema}.lines l
    WHERE l.tenant = p_tenant AND l.job_id = p_id AND l.n > p_after ORDER BY l.n LIMIT p_limit;
END $$;

-- Remove the lines of jobs that were removed; answers how many there were.
CREATE FUNCTION {schema}.delete_lines(p_tenants text[], p_ids uuid[]) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_gone bigint;
BEGIN
    DELETE FROM {schema}.lines l
    USING unnest(p_tenants, p_ids) AS t (tenant, id)
    WHERE l.tenant = t.tenant AND l.job_id = t.id;
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    RETURN v_gone;
END $$;
