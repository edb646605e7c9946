-- Operating. The functions are in migrations/0004.

-- name: cancel_jobs
SELECT * FROM {schema}.cancel_jobs($1, $2, $3, $4, $5) ORDER BY item

-- name: redrive_jobs
SELECT * FROM {schema}.redrive_jobs($1, $2, $3) ORDER BY item

-- name: reschedule_job
SELECT * FROM {schema}.reschedule_job($1, $2, $3, $4, $5, $6)

-- name: states
-- The state of each job, NULL for those that are not there.
SELECT t.id, {schema}.job_state($1, t.id) AS state FROM unnest($2::uuid[]) AS t (id)

-- name: delete_ended
-- Remove ended jobs; answers which, and how each had ended.
DELETE FROM {schema}.archive a WHERE a.tenant = $1 AND a.id = ANY ($2::uuid[]) RETURNING a.id, a.state

-- name: pause
INSERT INTO {schema}.queues (tenant, queue, paused) VALUES ($1, $2, $3)
ON CONFLICT (tenant, queue) DO UPDATE SET paused = excluded.paused

-- name: queue_settings
-- The queues that were given settings.
SELECT queue, depth_limit, require_key, lease_seconds FROM {schema}.queues
WHERE tenant = $1 AND (depth_limit IS NOT NULL OR require_key OR lease_seconds IS NOT NULL)
ORDER BY queue

-- name: set_queue
INSERT INTO {schema}.queues (tenant, queue, depth_limit, require_key, lease_seconds) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant, queue) DO UPDATE
SET depth_limit = excluded.depth_limit, require_key = excluded.require_key, lease_seconds = excluded.lease_seconds
