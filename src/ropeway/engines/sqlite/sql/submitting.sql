-- name: last_place
-- The newest place in line; new jobs go behind it.
SELECT coalesce(max(place), 0) FROM jobs

-- name: insert_bodies
-- The bodies of jobs that differ in nothing but their payloads. `payloads` is all of them end to end, `cuts` a JSON
-- array of [number, start, length]. (Row by row it takes 2.2 µs, like this 0.9: binding a value costs more than
-- storing it, and every execution opens the table and its indexes anew.)
INSERT INTO bodies (number, payload, max_attempts, timeout, retry, tags, headers)
SELECT json_extract(cut.value, '$[0]'),
       substr(:payloads, json_extract(cut.value, '$[1]'), json_extract(cut.value, '$[2]')),
       :max_attempts, :timeout, :retry, :tags, :headers
FROM json_each(:cuts) AS cut

-- name: insert_jobs
-- New jobs that differ in nothing but their places and ids (16 bytes each, end to end). A body has the number of
-- its job's first place. (Row by row 4.4 µs, like this 1.1.)
INSERT INTO jobs (place, body, id, tenant, type, queue, priority, run_at, created_at, updated_at, expires_at)
SELECT line.value, line.value, substr(:ids, 16 * line.key + 1, 16), :tenant, :type, :queue, :priority, :run_at,
       :now, :now, :expires_at
FROM json_each(:places) AS line

-- name: note_key
-- A job that came with an idempotency key can be found by it.
UPDATE jobs SET idempotency_key = ? WHERE place = ?

-- name: log_enqueued
-- The first event of every job of a flush, in one go.
INSERT INTO events (job_id, seq, event, state, tenant, type, queue, at, attempt, run_at, priority)
SELECT id, event_seq, 'job.enqueued', CASE WHEN run_at > created_at THEN 'scheduled' ELSE 'queued' END,
       tenant, type, queue, created_at, attempt, run_at, priority
FROM jobs
WHERE place > :last_place
ORDER BY place

-- name: held_keys
-- The keys of a call that are taken, with what is needed to know the state of the job that has each.
SELECT asked.key AS position, k.job_id, k.fingerprint, k.until, k.enqueued_at,
       j.stage, j.blockers, j.run_at, j.failures
FROM json_each(:names) AS asked
CROSS JOIN keys AS k
  ON k.tenant = :tenant
 AND k.kind = json_extract(asked.value, '$[0]')
 AND k.key = json_extract(asked.value, '$[1]')
LEFT JOIN jobs AS j ON j.tenant = :tenant AND j.id = k.job_id

-- name: take_key
-- A key for a new job; an earlier one that no longer holds is taken over.
INSERT INTO keys (tenant, kind, key, job_id, fingerprint, until, enqueued_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, kind, key) DO UPDATE
SET job_id = excluded.job_id, fingerprint = excluded.fingerprint, until = excluded.until,
    enqueued_at = excluded.enqueued_at
