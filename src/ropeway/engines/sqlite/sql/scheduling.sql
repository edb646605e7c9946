-- name: schedule
-- One schedule.
SELECT * FROM schedules WHERE tenant = :tenant AND name = :name

-- name: schedules
-- All schedules of a tenant.
SELECT * FROM schedules WHERE tenant = :tenant ORDER BY name

-- name: put_schedule
-- A new schedule, or a new definition of one; its last run stays known.
INSERT INTO schedules (tenant, name, cron, tz, type, queue, payload, priority, max_attempts, missed, paused, source,
                       options, definition, next_run_at)
VALUES (:tenant, :name, :cron, :tz, :type, :queue, :payload, :priority, :max_attempts, :missed, :paused, :source,
        :options, :definition, :next_run_at)
ON CONFLICT (tenant, name) DO UPDATE
SET cron = excluded.cron, tz = excluded.tz, type = excluded.type, queue = excluded.queue,
    payload = excluded.payload, priority = excluded.priority, max_attempts = excluded.max_attempts,
    missed = excluded.missed, paused = excluded.paused, source = excluded.source,
    options = excluded.options, definition = excluded.definition, next_run_at = excluded.next_run_at

-- name: pause_schedule
-- A paused schedule does not fire.
UPDATE schedules SET paused = :paused WHERE tenant = :tenant AND name = :name

-- name: delete_schedule
-- The jobs it made stay.
DELETE FROM schedules WHERE tenant = :tenant AND name = :name

-- name: due_schedules
-- What is to be fired, longest due first.
SELECT * FROM schedules WHERE paused = 0 AND next_run_at <= :now ORDER BY next_run_at LIMIT :limit

-- name: advance
-- Move a schedule on, if nobody else has: whoever changes the row fires the instant.
UPDATE schedules SET next_run_at = :next_at
WHERE tenant = :tenant AND name = :name AND next_run_at = :due AND paused = 0

-- name: note_run
-- What a schedule made last.
UPDATE schedules SET last_run_at = :now, last_job_id = :job_id WHERE tenant = :tenant AND name = :name
