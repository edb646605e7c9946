-- The samples of one queue, or of all together, without those of the others in between.
CREATE INDEX history_of_queue ON {schema}.history (tenant, step, queue, at);

-- What of each queue of a tenant waits and runs, looked at no further than a bound, and how long the first in line has
-- been due. Only what is due can do either. (10,000 jobs: 4 ms; compiled just in time it would be 60 more.)
CREATE FUNCTION {schema}.depths(p_tenant text, p_bound bigint)
RETURNS TABLE (queue text, seen bigint, waiting bigint, running bigint, oldest double precision)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE walk AS (
        (SELECT j.queue FROM {schema}.jobs j WHERE j.tenant = p_tenant AND j.queue <> '' ORDER BY j.queue LIMIT 1)
        UNION ALL
        SELECT (SELECT j.queue FROM {schema}.jobs j
                WHERE j.tenant = p_tenant AND j.queue > walk.queue AND j.queue <> '' ORDER BY j.queue LIMIT 1)
        FROM walk WHERE walk.queue IS NOT NULL
    )
    SELECT walk.queue, x.seen, x.waiting, x.running,
           extract(epoch FROM {now} - line.due_since)::double precision
    FROM walk
    CROSS JOIN LATERAL (
        SELECT count(*) AS seen, count(*) FILTER (WHERE y.running) AS running,
               count(*) FILTER (WHERE y.waiting) AS waiting
        FROM (
            SELECT due.* FROM generate_series(1, 9) AS p (priority) CROSS JOIN LATERAL (
                SELECT j.lease_token IS NOT NULL AS running, j.lease_token IS NULL AND j.blockers = 0 AS waiting
                FROM {schema}.jobs j
                WHERE j.tenant = p_tenant AND j.queue = walk.queue AND j.queue <> ''
                  AND j.priority = p.priority::smallint AND j.run_at <= (SELECT {now})
                ORDER BY j.run_at, j.seq LIMIT p_bound
            ) due
            LIMIT p_bound
        ) y
    ) x
    CROSS JOIN LATERAL (
        -- The first of each priority: the most urgent ones may be all that was counted.
        SELECT min(first.run_at) AS due_since FROM generate_series(1, 9) AS p (priority) CROSS JOIN LATERAL (
            SELECT j.run_at FROM {schema}.jobs j
            WHERE j.tenant = p_tenant AND j.queue = walk.queue AND j.queue <> ''
              AND j.priority = p.priority::smallint AND j.run_at <= (SELECT {now})
              AND j.lease_token IS NULL AND j.blockers = 0
            ORDER BY j.run_at, j.seq LIMIT 1
        ) first
    ) line
    WHERE walk.queue IS NOT NULL AND x.waiting + x.running > 0
    ORDER BY walk.queue;
END $$;
