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
-- Waits and runs of a few of the jobs that ended within a time.
SELECT e.tenant, e.queue, max(0, j.started_at - max(j.run_at, j.created_at)), max(0, e.at - j.started_at)
FROM (
    SELECT job_id, tenant, queue, at
    FROM (SELECT job_id, tenant, queue, event, at FROM events ORDER BY position DESC LIMIT :most)
    WHERE at >= :since AND at < :until AND (event = 'job.completed' OR event = 'job.dlq')
    LIMIT :few
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
SELECT tenant, queue, at, step, enqueued, succeeded, failed, dead, cancelled, waiting, running, oldest, waits, runs
FROM history
WHERE tenant = :tenant AND step = :step AND at >= :since AND (:until IS NULL OR at < :until)
  AND (:queue IS NULL OR queue = :queue)
ORDER BY at, queue

-- name: forget_samples
DELETE FROM history WHERE (tenant, step, at, queue) IN (
    SELECT tenant, step, at, queue FROM history WHERE step = :step AND at < :before LIMIT :limit
)
