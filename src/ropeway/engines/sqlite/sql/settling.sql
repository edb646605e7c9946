-- name: current_places
-- The fence, for a whole batch: position and place of every lease that is its job's current one. `ids` and
-- `tokens` are 16 bytes each, end to end; `attempts` is a JSON array.
SELECT json_group_array(lease.key), json_group_array(j.place)
FROM json_each(:attempts) AS lease
CROSS JOIN jobs AS j
  ON j.tenant = :tenant AND j.id = substr(:ids, 16 * lease.key + 1, 16)
WHERE j.stage = 'leased'
  AND j.token = substr(:tokens, 16 * lease.key + 1, 16)
  AND j.attempt = lease.value

-- name: current_jobs
-- The same fence, with what a decision and its event need to know.
SELECT lease.key, j.place, j.id, j.tenant, j.queue, j.token, j.worker, j.attempts, b.max_attempts, j.failures,
       j.lost, b.retry, j.run_at
FROM json_each(:attempts) AS lease
CROSS JOIN jobs AS j
  ON j.tenant = :tenant AND j.id = substr(:ids, 16 * lease.key + 1, 16)
CROSS JOIN bodies AS b ON b.number = j.body
WHERE j.stage = 'leased'
  AND j.token = substr(:tokens, 16 * lease.key + 1, 16)
  AND j.attempt = lease.value

-- name: complete
-- Acked jobs have succeeded. Called with places that passed the fence in the same transaction.
UPDATE jobs
SET stage = 'succeeded', finished_at = :now, updated_at = :now, spent_verb = 'ack', progress = NULL,
    event_seq = event_seq + 1
WHERE place IN (SELECT value FROM json_each(:places))

-- name: log_completed
-- The events of the acked jobs. Milliseconds are rounded half to even, as Python rounds them.
INSERT INTO events (job_id, seq, event, state, tenant, type, queue, at, attempt, worker, millis)
SELECT j.id, j.event_seq, 'job.completed', 'succeeded', j.tenant, j.type, j.queue, j.finished_at, j.attempt,
       j.worker,
       max(0, (j.finished_at - j.started_at + 499 + ((j.finished_at - j.started_at) / 1000) % 2) / 1000)
FROM json_each(:places) AS acked
CROSS JOIN jobs AS j ON j.place = acked.value

-- name: insert_result
-- What an ack brought.
INSERT INTO results (body, result, sanitized, too_large)
SELECT body, ?2, ?3, ?4 FROM jobs WHERE place = ?1

-- name: put_back
-- A run ended and the job goes on: retried, snoozed, released or lost.
UPDATE jobs
SET stage = 'free', attempts = attempts - :refund, failures = failures + :failed, lost = lost + :lost,
    run_at = :run_at, updated_at = :now, spent_verb = :verb, progress = NULL,
    last_error = coalesce(:error, last_error), event_seq = event_seq + 1
WHERE place = :place

-- name: bury
-- A run ended and the job is dead.
UPDATE jobs
SET stage = 'dead', attempts = attempts - :refund, failures = failures + :failed, lost = lost + :lost,
    updated_at = :now, finished_at = :now, spent_verb = :verb, progress = NULL,
    last_error = coalesce(:error, last_error), dead_reason = :dead_reason, event_seq = event_seq + 1
WHERE place = :place

-- name: log
-- One event of one job, after its row was changed.
INSERT INTO events (job_id, seq, event, state, tenant, type, queue, at, attempt, worker, run_at, millis, error,
                    detail)
SELECT id, event_seq, :event, :state, tenant, type, queue, :now, attempt, :worker, :run_at, :millis, :error,
       :detail
FROM jobs
WHERE place = :place

-- name: last_tickets
-- The newest spent ticket of each job that has one; a ticket in use is not spent.
SELECT j.id, j.attempt, CASE WHEN j.stage = 'leased' THEN NULL ELSE j.token END, j.spent_verb,
       j.stage, j.blockers, j.run_at, j.failures
FROM json_each(:numbers) AS asked
CROSS JOIN jobs AS j
  ON j.tenant = :tenant AND j.id = substr(:ids, 16 * asked.key + 1, 16)

-- name: set_progress
-- How far a running job is; under the fence, without an event.
UPDATE jobs
SET progress = :progress
WHERE tenant = :tenant AND id = :id AND stage = 'leased' AND token = :token AND attempt = :attempt
