-- name: oldest_due
-- For each priority of a queue, since when its first startable job is due (the ageing of priorities).
SELECT p.column1 AS priority,
       (SELECT j.run_at
        FROM jobs AS j
        WHERE j.stage = 'free' AND j.tenant = :tenant AND j.queue = :queue AND j.priority = p.column1
          AND j.run_at <= :now AND (j.expires_at IS NULL OR j.attempts > 0 OR j.expires_at > :now)
        ORDER BY j.run_at
        LIMIT 1) AS due
FROM (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS p

-- name: claim
-- The next startable jobs. `lanes` is a JSON array of [queue, priority] in the order to walk them. CROSS JOIN keeps
-- the loops in that order, the index gives each lane's jobs in theirs, and the limit ends the walk; an ORDER BY
-- over all lanes would sort the whole backlog.
SELECT j.place, j.id, j.type, j.queue, j.priority, b.payload, j.attempt, j.attempts, b.max_attempts, j.run_at,
       j.created_at, j.failures, j.lost, b.timeout, b.retry, j.last_error, j.idempotency_key, j.expires_at, b.tags,
       b.headers
FROM json_each(:lanes) AS lane
CROSS JOIN jobs AS j INDEXED BY jobs_free
  ON j.stage = 'free'
 AND j.tenant = :tenant
 AND j.queue = json_extract(lane.value, '$[0]')
 AND j.priority = json_extract(lane.value, '$[1]')
 AND j.run_at <= :now
 AND (j.expires_at IS NULL OR j.attempts > 0 OR j.expires_at > :now)
CROSS JOIN bodies AS b ON b.number = j.body
WHERE NOT EXISTS (SELECT 1 FROM queues AS q
                  WHERE q.tenant = :tenant AND q.queue = json_extract(lane.value, '$[0]') AND q.paused)
LIMIT :count

-- name: next_due
-- When the next free job of each lane ([tenant, queue]) is due, now or later. Nothing for a paused queue; jobs that
-- were to start before now do not count.
SELECT lane.key,
       min((SELECT j.run_at
            FROM jobs AS j
            WHERE j.stage = 'free' AND j.tenant = json_extract(lane.value, '$[0]')
              AND j.queue = json_extract(lane.value, '$[1]') AND j.priority = p.column1
              AND (j.run_at > :now OR j.expires_at IS NULL OR j.attempts > 0 OR j.expires_at > :now)
            ORDER BY j.run_at
            LIMIT 1)) AS due
FROM json_each(:lanes) AS lane
CROSS JOIN (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS p
WHERE NOT EXISTS (SELECT 1 FROM queues AS q
                  WHERE q.tenant = json_extract(lane.value, '$[0]')
                    AND q.queue = json_extract(lane.value, '$[1]') AND q.paused)
GROUP BY lane.key

-- name: start
-- The claimed jobs run.
UPDATE jobs
SET stage = 'leased', attempt = attempt + 1, attempts = attempts + 1, token = :token, spent_verb = NULL,
    worker = :worker, started_at = :now, updated_at = :now, progress = NULL, event_seq = event_seq + 1
WHERE place IN (SELECT value FROM json_each(:places))

-- name: log_started
-- The events of the jobs that were started.
INSERT INTO events (job_id, seq, event, state, tenant, type, queue, at, attempt, worker)
SELECT j.id, j.event_seq, 'job.started', 'running', j.tenant, j.type, j.queue, j.updated_at, j.attempt, j.worker
FROM json_each(:places) AS started
CROSS JOIN jobs AS j ON j.place = started.value

-- name: insert_grant
-- One lease call holds its jobs.
INSERT INTO grants (token, tenant, owner, expires_at, lease_seconds)
VALUES (:token, :tenant, :owner, :expires_at, :lease_seconds)

-- name: held_grant
-- The grant of a lease, if the lease is current: the fence of a heartbeat.
SELECT g.expires_at, g.lease_seconds, g.revoked, j.started_at, b.timeout
FROM jobs AS j
JOIN grants AS g ON g.token = j.token
JOIN bodies AS b ON b.number = j.body
WHERE j.tenant = :tenant AND j.id = :id AND j.stage = 'leased' AND j.token = :token AND j.attempt = :attempt

-- name: extend_grant
-- A heartbeat: the grant lives longer, never shorter.
UPDATE grants SET expires_at = max(expires_at, :until) WHERE token = :token

-- name: owned_grants
-- The grants of one worker process, and whether each still holds a job.
SELECT token, expires_at, lease_seconds, revoked,
       EXISTS (SELECT 1 FROM jobs WHERE jobs.stage = 'leased' AND jobs.token = grants.token) AS open
FROM grants
WHERE owner = :owner AND tenant = :tenant

-- name: end_grant
-- A grant is over, whatever it held.
DELETE FROM grants WHERE token = :token

-- name: end_settled_grant
-- A grant whose last job was settled is over, unless its worker still has to hear that jobs were revoked.
DELETE FROM grants
WHERE token = ? AND revoked IS NULL
  AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.stage = 'leased' AND jobs.token = grants.token)

-- name: revoke
-- The worker learns at its next heartbeat that it must stop these jobs.
UPDATE grants SET revoked = CAST(coalesce(revoked, x'') || :id AS BLOB) WHERE token = :token

-- name: held_jobs
-- The jobs that a grant still holds, in their order.
SELECT j.place, j.id, j.tenant, j.queue, j.token, j.worker, j.attempts, b.max_attempts, j.failures, j.lost, b.retry,
       j.run_at
FROM jobs AS j
JOIN bodies AS b ON b.number = j.body
WHERE j.stage = 'leased' AND j.token = :token
ORDER BY j.place
