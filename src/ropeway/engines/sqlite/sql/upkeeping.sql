-- name: expired_grants
-- Grants whose owners were not heard of in time.
SELECT token FROM grants WHERE expires_at <= :now ORDER BY expires_at

-- name: orphaned_tokens
-- Tokens that running jobs carry although there is no grant for them.
SELECT DISTINCT j.token
FROM jobs AS j
WHERE j.stage = 'leased' AND NOT EXISTS (SELECT 1 FROM grants AS g WHERE g.token = j.token)
LIMIT :limit

-- name: overdue
-- Jobs that were to start by now and did not.
SELECT place, id, tenant, queue, stage, blockers, run_at, failures, priority, token, worker, body
FROM jobs
WHERE stage = 'free' AND expires_at IS NOT NULL AND expires_at <= :now AND attempts = 0
ORDER BY expires_at, place
LIMIT :limit

-- name: next_ended
-- The next tenant, end and queue that hold ended jobs.
SELECT tenant, stage, queue
FROM jobs INDEXED BY jobs_ended
WHERE finished_at IS NOT NULL AND (tenant, stage, queue) > (:tenant, :stage, :queue)
ORDER BY tenant, stage, queue
LIMIT 1

-- name: old_places
-- Jobs of a queue that ended in one way before a day.
SELECT place
FROM jobs
WHERE tenant = :tenant AND queue = :queue AND stage = :stage AND finished_at < :before
ORDER BY finished_at
LIMIT :limit

-- name: old_events
-- The oldest events of the log.
SELECT position, at FROM events ORDER BY position LIMIT :limit

-- name: delete_events
-- The head of the log goes.
DELETE FROM events WHERE position <= :position

-- name: old_keys
-- Keys behind a given one that hold nothing out any more: their window is over, and their job is gone or (an
-- idempotency key) has ended.
SELECT k.tenant, k.kind, k.key
FROM keys AS k
LEFT JOIN jobs AS j ON j.tenant = k.tenant AND j.id = k.job_id
WHERE (k.tenant, k.kind, k.key) > (:tenant, :kind, :key) AND k.until <= :now
  AND (j.place IS NULL OR (k.kind = 'idempotency' AND j.finished_at IS NOT NULL))
ORDER BY k.tenant, k.kind, k.key
LIMIT :limit

-- name: delete_key
-- The same conditions again: the key may have been taken over since it was found.
DELETE FROM keys
WHERE tenant = :tenant AND kind = :kind AND key = :key AND until <= :now
  AND NOT EXISTS (SELECT 1 FROM jobs AS j
                  WHERE j.tenant = keys.tenant AND j.id = keys.job_id
                    AND NOT (keys.kind = 'idempotency' AND j.finished_at IS NOT NULL))
