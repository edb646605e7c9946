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
