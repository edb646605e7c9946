-- Remembering: samples of how it was.

-- name: observe
-- What happened in a time, counted, and the waits and runs of a few of the jobs that ended in it: of each queue one,
-- then of each a second one, and so on, so that a loud one leaves room for the others.
WITH e AS MATERIALIZED (SELECT * FROM {schema}.events_between($1, $2, $3)),
few AS (
    SELECT * FROM (
        SELECT e.tenant, e.queue, job_id, row_number() OVER (PARTITION BY e.tenant, e.queue) AS nth
        FROM e CROSS JOIN unnest(e.job_ids) AS job_id WHERE e.event IN ('job.completed', 'job.dlq')
    ) ended
    ORDER BY ended.nth LIMIT $4
)
SELECT e.tenant, e.queue, e.event::text AS event, sum(e.number) AS number, min(e.reach) AS reach, max(e.at) AS newest,
       NULL::double precision AS wait, NULL::double precision AS run
FROM e GROUP BY e.tenant, e.queue, e.event
UNION ALL
SELECT few.tenant, few.queue, NULL, NULL, NULL, NULL,
       extract(epoch FROM greatest(a.started_at - greatest(a.run_at, a.created_at), interval '0'))::double precision,
       extract(epoch FROM greatest(a.finished_at - a.started_at, interval '0'))::double precision
FROM few CROSS JOIN LATERAL (
    SELECT x.started_at, x.run_at, x.created_at, x.finished_at FROM {schema}.archive x
    WHERE x.tenant = few.tenant AND x.id = few.job_id AND x.finished_at >= $1 - interval '1 minute'
      AND x.started_at IS NOT NULL
    LIMIT 1
) a

-- name: remember
INSERT INTO {schema}.history (
    tenant, queue, at, step, enqueued, succeeded, failed, dead, cancelled, waiting, running, oldest, waits, runs
)
SELECT s.tenant, s.queue, s.at, s.step, s.enqueued, s.succeeded, s.failed, s.dead, s.cancelled, s.waiting, s.running,
       s.oldest, s.waits::integer[], s.runs::integer[]
FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::integer[], $5::float8[], $6::float8[], $7::float8[],
            $8::float8[], $9::float8[], $10::bigint[], $11::bigint[], $12::float8[], $13::text[], $14::text[])
    AS s (tenant, queue, at, step, enqueued, succeeded, failed, dead, cancelled, waiting, running, oldest, waits, runs)
ON CONFLICT DO NOTHING

-- name: history
-- Of every queue of a tenant.
SELECT tenant, queue, at, step, enqueued, succeeded, failed, dead, cancelled, waiting, running, oldest, waits, runs
FROM {schema}.history
WHERE tenant = $1 AND step = $2 AND at >= $3 AND ($4::timestamptz IS NULL OR at < $4)
ORDER BY at, queue

-- name: history_of_queue
-- Of one queue, or of all together: they have an index, so that those of the others are not walked through.
SELECT tenant, queue, at, step, enqueued, succeeded, failed, dead, cancelled, waiting, running, oldest, waits, runs
FROM {schema}.history
WHERE tenant = $1 AND step = $2 AND at >= $3 AND ($4::timestamptz IS NULL OR at < $4) AND queue = $5
ORDER BY at

-- name: latest
-- Of each tenant the newest sample of all its queues in a time. Tenants are walked from name to name.
WITH RECURSIVE walk AS (
    (SELECT h.tenant FROM {schema}.history h ORDER BY h.tenant LIMIT 1)
    UNION ALL
    SELECT (SELECT h.tenant FROM {schema}.history h WHERE h.tenant > walk.tenant ORDER BY h.tenant LIMIT 1)
    FROM walk WHERE walk.tenant IS NOT NULL
)
SELECT newest.* FROM walk CROSS JOIN LATERAL (
    SELECT h.tenant, h.queue, h.at, h.step, h.enqueued, h.succeeded, h.failed, h.dead, h.cancelled, h.waiting,
           h.running, h.oldest, h.waits, h.runs
    FROM {schema}.history h
    WHERE h.tenant = walk.tenant AND h.step = $1 AND h.queue = '' AND h.at >= $2 AND h.at < $3
      AND (NOT $4::boolean OR h.enqueued + h.succeeded + h.failed + h.dead + h.cancelled + h.waiting + h.running > 0)
    ORDER BY h.at DESC LIMIT 1
) newest
ORDER BY newest.tenant

-- name: depths
SELECT * FROM {schema}.depths($1, $2)

-- name: sampled_tenants
WITH RECURSIVE walk AS (
    (SELECT h.tenant FROM {schema}.history h ORDER BY h.tenant LIMIT 1)
    UNION ALL
    SELECT (SELECT h.tenant FROM {schema}.history h WHERE h.tenant > walk.tenant ORDER BY h.tenant LIMIT 1)
    FROM walk WHERE walk.tenant IS NOT NULL
)
SELECT tenant FROM walk WHERE tenant IS NOT NULL

-- name: forget_samples
-- By the primary key: short and long steps lie on the same pages, so a range of time alone is most of the table.
DELETE FROM {schema}.history WHERE tenant = ANY ($1::text[]) AND step = $2 AND at < $3
