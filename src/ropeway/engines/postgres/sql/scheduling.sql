-- Scheduling.

-- name: lock_schedule
SELECT tenant, name, spec, definition, paused, next_run_at, last_run_at, last_job_id
FROM {schema}.schedules WHERE tenant = $1 AND name = $2 FOR UPDATE

-- name: insert_schedule
-- A new schedule; nothing when someone else was faster.
INSERT INTO {schema}.schedules (tenant, name, spec, definition, paused, next_run_at)
VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant, name) DO NOTHING

-- name: update_schedule
UPDATE {schema}.schedules SET spec = $3, definition = $4, paused = $5, next_run_at = $6
WHERE tenant = $1 AND name = $2

-- name: list_schedules
SELECT tenant, name, spec, definition, paused, next_run_at, last_run_at, last_job_id
FROM {schema}.schedules WHERE tenant = $1 ORDER BY name

-- name: find_schedule
SELECT tenant, name, spec, definition, paused, next_run_at, last_run_at, last_job_id
FROM {schema}.schedules WHERE tenant = $1 AND name = $2

-- name: pause_schedule
UPDATE {schema}.schedules SET paused = $3 WHERE tenant = $1 AND name = $2
RETURNING spec, definition, paused, next_run_at, last_run_at, last_job_id

-- name: delete_schedule
DELETE FROM {schema}.schedules WHERE tenant = $1 AND name = $2 RETURNING name

-- name: due_schedules
SELECT tenant, name, spec, definition, paused, next_run_at, last_run_at, last_job_id
FROM {schema}.schedules WHERE NOT paused AND next_run_at <= {now} ORDER BY next_run_at LIMIT $1

-- name: advance
-- Move a schedule on, if no one else has: this is what makes any number of schedulers fire an instant once.
UPDATE {schema}.schedules SET next_run_at = $4
WHERE tenant = $1 AND name = $2 AND next_run_at = $3 AND NOT paused
RETURNING name

-- name: note_run
-- What a schedule made last.
UPDATE {schema}.schedules SET last_run_at = {now}, last_job_id = $3 WHERE tenant = $1 AND name = $2
