-- name: happened
-- The newest events within a time, counted. The log's own number is in the order of time.
SELECT e.tenant, e.queue, e.event, count(*)
FROM (SELECT tenant, queue, event, at FROM events ORDER BY position DESC LIMIT :most) AS e
WHERE e.at >= :since AND e.at < :until
GROUP BY e.tenant, e.queue, e.event

-- name: looked_at
-- How many a look reaches, and the oldest and the newest of them.
SELECT count(*), min(at), max(at) FROM (SELECT at FROM events ORDER BY position DESC LIMIT :most)

-- name: ended
-- Waits and runs of a few of the jobs that ended within a time: of each queue one, then of each a second one, and so
-- on, so that a loud one leaves room for the others.
SELECT e.tenant, e.queue, max(0, j.started_at - max(j.run_at, j.created_at)), max(0, e.at - j.started_at)
FROM (
    SELECT job_id, tenant, queue, at
    FROM (
        SELECT job_id, tenant, queue, at, row_number() OVER (PARTITION BY tenant, queue) AS nth
        FROM (SELECT job_id, tenant, queue, event, at FROM events ORDER BY position DESC LIMIT :most)
        WHERE at >= :since AND at < :until AND (event = 'job.completed' OR event = 'job.dlq')
    )
    ORDER BY nth LIMIT :few
) AS e
JOIN jobs AS j ON j.tenant = e.tenant AND j.id = e.job_id
WHERE j.started_at IS NOT NULL

-- name: remember
INSERT INTO history (tenant, step, at, queue, enqueued, succeeded, failed, dead, cancelled, waiting, running, oldest,
                     waits, runs)
VALUES (:tenant, :step, :at, :queue, :enqueued, :succeeded, :failed, :dead, :cancelled, :waiting, :running, :oldest,
        :waits, :runs)
ON CONFLICT DO NOTHING

-- name: history
-- Of every queue of a tenant.
SELECT tenant, queue, at, step, enqueued, succeeded, failed, dead, cancelled, waiting, running, oldest, waits, runs
FROM history
WHERE tenant = :tenant AND step = :step AND at >= :since AND (:until IS NULL OR at < :until)
ORDER BY at, queue

-- name: history_of_queue
-- Of one queue, or of all together: they have an index, so that those of the others are not walked through.
SELECT tenant, queue, at, step, enqueued, succeeded, failed, dead, cancelled, waiting, running, oldest, waits, runs
FROM history INDEXED BY history_of_queue
WHERE tenant = :tenant AND step = :step AND queue = :queue AND at >= :since AND (:until IS NULL OR at < :until)
ORDER BY at

-- name: latest
-- Of each tenant the newest sample of all its queues in a time.
WITH RECURSIVE walk (tenant) AS (
    SELECT min(tenant) FROM history
    UNION ALL
    SELECT (SELECT min(h.tenant) FROM history AS h WHERE h.tenant > walk.tenant) FROM walk WHERE walk.tenant IS NOT NULL
)
SELECT h.tenant, h.queue, h.at, h.step, h.enqueued, h.succeeded, h.failed, h.dead, h.cancelled, h.waiting, h.running,
       h.oldest, h.waits, h.runs
FROM walk
CROSS JOIN history AS h
  ON h.tenant = walk.tenant AND h.step = :step AND h.queue = '' AND h.at = (
    SELECT b.at FROM history AS b INDEXED BY history_of_queue
    WHERE b.tenant = walk.tenant AND b.step = :step AND b.queue = '' AND b.at >= :since AND b.at < :until
      AND (NOT :busy OR b.enqueued + b.succeeded + b.failed + b.dead + b.cancelled + b.waiting + b.running > 0)
    ORDER BY b.at DESC LIMIT 1
  )
ORDER BY h.tenant

-- name: free_queues
-- The queues of a tenant with jobs that are neither leased nor ended: the index is skipped through, not scanned.
WITH RECURSIVE free (queue) AS (
    SELECT min(queue) FROM jobs WHERE stage = 'free' AND tenant = :tenant
    UNION ALL
    SELECT (SELECT min(j.queue) FROM jobs AS j
            WHERE j.stage = 'free' AND j.tenant = :tenant AND j.queue > free.queue)
    FROM free WHERE free.queue IS NOT NULL
)
SELECT queue FROM free WHERE queue IS NOT NULL

-- name: running
-- How many jobs of each queue run. The planner would rather walk all jobs of the tenant than all running ones.
SELECT queue, count(*) FROM jobs INDEXED BY jobs_leased WHERE stage = 'leased' AND tenant = :tenant GROUP BY queue

-- name: waiting
-- How many jobs of one queue could run now, no more than asked for, and since when the first in line has been due.
SELECT (
    SELECT count(*) FROM (
        SELECT 1 FROM (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS p
        CROSS JOIN jobs AS j
          ON j.stage = 'free' AND j.tenant = :tenant AND j.queue = :queue AND j.priority = p.column1
         AND j.run_at <= :now
        WHERE j.blockers = 0
        LIMIT :limit)
), (
    SELECT min((
        SELECT j.run_at FROM jobs AS j
        WHERE j.stage = 'free' AND j.tenant = :tenant AND j.queue = :queue AND j.priority = p.column1
          AND j.run_at <= :now AND j.blockers = 0
        ORDER BY j.run_at LIMIT 1))
    FROM (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS p
)

-- name: sampled_tenants
WITH RECURSIVE walk (tenant) AS (
    SELECT min(tenant) FROM history
    UNION ALL
    SELECT (SELECT min(h.tenant) FROM history AS h WHERE h.tenant > walk.tenant) FROM walk WHERE walk.tenant IS NOT NULL
)
SELECT tenant FROM walk WHERE tenant IS NOT NULL

-- name: old_samples
-- Whether samples of a tenant and a step have had their time.
SELECT 1 FROM history WHERE tenant = :tenant AND step = :step AND at < :before LIMIT 1

-- name: forget_samples
DELETE FROM history WHERE (tenant, step, at, queue) IN (
    SELECT tenant, step, at, queue FROM history
    WHERE tenant = :tenant AND step = :step AND at < :before
    ORDER BY at, queue LIMIT :limit
)
