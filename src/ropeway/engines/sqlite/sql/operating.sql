-- name: job
-- What an operator's verb needs to know of a job.
SELECT place, id, tenant, queue, stage, blockers, run_at, failures, priority, token, worker, body
FROM jobs
WHERE tenant = :tenant AND id = :id

-- name: cancel
-- End a live job. A ticket that is out is void: the worker did not spend it.
UPDATE jobs
SET stage = 'cancelled', finished_at = :now, updated_at = :now, cancel_reason = :reason, token = NULL,
    spent_verb = NULL, progress = NULL, event_seq = event_seq + 1
WHERE place = :place

-- name: redrive
-- An ended job runs again: a fresh budget, at the end of the line.
UPDATE jobs
SET place = (SELECT max(place) + 1 FROM jobs), stage = 'free', finished_at = NULL, dead_reason = NULL,
    cancel_reason = NULL, attempts = 0, failures = 0, lost = 0, expires_at = NULL, run_at = :now,
    updated_at = :now, token = NULL, spent_verb = NULL, event_seq = event_seq + 1
WHERE place = :place
RETURNING place, tenant, queue

-- name: reschedule
-- Another time, priority or queue; the place among equals stays.
UPDATE jobs
SET run_at = :run_at, priority = :priority, queue = :queue, updated_at = :now, event_seq = event_seq + 1
WHERE place = :place

-- name: delete_lines
-- Jobs go with everything they have: first what their handlers said ...
DELETE FROM lines WHERE body IN (SELECT body FROM jobs WHERE place IN (SELECT value FROM json_each(:places)))

-- name: delete_bodies
-- ... then what they were enqueued with ...
DELETE FROM bodies WHERE number IN (SELECT body FROM jobs WHERE place IN (SELECT value FROM json_each(:places)))

-- name: delete_results
-- ... then what they brought ...
DELETE FROM results WHERE body IN (SELECT body FROM jobs WHERE place IN (SELECT value FROM json_each(:places)))

-- name: delete_jobs
-- ... then the jobs themselves; their events stay.
DELETE FROM jobs WHERE place IN (SELECT value FROM json_each(:places))

-- name: pause
-- Claims pass a paused queue by.
INSERT INTO queues (tenant, queue, paused) VALUES (:tenant, :queue, 1)
ON CONFLICT (tenant, queue) DO UPDATE SET paused = 1

-- name: resume
-- A queue without a row is not paused.
DELETE FROM queues WHERE tenant = :tenant AND queue = :queue

-- name: settings
-- The queues of a tenant that were given settings.
SELECT queue, depth_limit, require_key, lease_seconds FROM queue_settings WHERE tenant = :tenant ORDER BY queue

-- name: keep_settings
-- A queue is set to something.
INSERT INTO queue_settings (tenant, queue, depth_limit, require_key, lease_seconds)
VALUES (:tenant, :queue, :depth_limit, :require_key, :lease_seconds)
ON CONFLICT (tenant, queue) DO UPDATE SET
    depth_limit = excluded.depth_limit, require_key = excluded.require_key, lease_seconds = excluded.lease_seconds

-- name: clear_settings
-- A queue without a row has the defaults.
DELETE FROM queue_settings WHERE tenant = :tenant AND queue = :queue
