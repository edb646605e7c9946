-- name: jobs
-- Whole jobs, to be narrowed by a WHERE. Results and grants are looked up only for jobs that can have them.
SELECT j.*, b.payload, b.max_attempts, b.timeout, b.retry, b.tags, b.headers,
       r.result, r.sanitized, r.too_large, g.expires_at AS locked_until
FROM {few} jobs AS j
JOIN bodies AS b ON b.number = j.body
LEFT JOIN results AS r ON j.stage = 'succeeded' AND r.body = j.body
LEFT JOIN grants AS g ON j.stage = 'leased' AND g.token = j.token
WHERE j.tenant = :tenant

-- name: places
-- The same jobs, only to be counted or changed.
SELECT j.place, j.id
FROM {few} jobs AS j
WHERE j.tenant = :tenant

-- The pieces below narrow `jobs` and `places`; finding.py puts them together. What each filter means is said by
-- `matches` in core/query.py.

-- name: where_ids
j.id IN (SELECT substr(:ids, 16 * asked.key + 1, 16) FROM json_each(:numbers) AS asked)

-- name: where_queue
j.queue = :queue

-- name: where_type
j.type = :type

-- name: where_idempotency_key
j.idempotency_key = :idempotency_key

-- name: where_worker_id
j.stage = 'leased' AND j.worker = :worker_id

-- name: where_error
(instr(json_extract(j.last_error, '$.message'), :error) OR instr(json_extract(j.last_error, '$.type'), :error))

-- name: where_reason
j.dead_reason = :reason

-- name: where_tag
EXISTS (SELECT 1 FROM bodies AS t, json_each(t.tags) AS tag WHERE t.number = j.body AND tag.value = :tag)

-- name: where_priority
j.priority = :priority

-- name: where_created_after
j.created_at >= :created_after

-- name: where_created_before
j.created_at < :created_before

-- name: where_finished_after
j.finished_at >= :finished_after

-- name: where_finished_before
j.finished_at < :finished_before

-- name: where_scheduled
(j.stage = 'free' AND j.blockers = 0 AND j.run_at > :now AND j.failures = 0)

-- name: where_queued
(j.stage = 'free' AND j.blockers = 0 AND j.run_at <= :now)

-- name: where_running
(j.stage = 'leased')

-- name: where_retrying
(j.stage = 'free' AND j.blockers = 0 AND j.run_at > :now AND j.failures > 0)

-- name: where_waiting
(j.stage = 'free' AND j.blockers > 0)

-- name: where_succeeded
(j.stage = 'succeeded')

-- name: where_dead
(j.stage = 'dead')

-- name: where_cancelled
(j.stage = 'cancelled')

-- name: few
-- In place of all jobs: a few, found by an index of their own and then sorted.
({found}) AS few CROSS JOIN

-- name: few_with_key
SELECT place FROM jobs INDEXED BY jobs_by_key WHERE tenant = :tenant AND idempotency_key = :idempotency_key

-- name: few_free
SELECT place FROM jobs INDEXED BY jobs_free WHERE tenant = :tenant AND stage = 'free'

-- name: few_leased
SELECT place FROM jobs INDEXED BY jobs_leased WHERE tenant = :tenant AND stage = 'leased'

-- name: few_succeeded
SELECT place FROM jobs INDEXED BY jobs_ended
WHERE tenant = :tenant AND stage = 'succeeded' AND finished_at IS NOT NULL

-- name: few_dead
SELECT place FROM jobs INDEXED BY jobs_ended
WHERE tenant = :tenant AND stage = 'dead' AND finished_at IS NOT NULL

-- name: few_cancelled
SELECT place FROM jobs INDEXED BY jobs_ended
WHERE tenant = :tenant AND stage = 'cancelled' AND finished_at IS NOT NULL

-- name: where_few
j.place = few.place

-- name: before_id
j.id < :edge

-- name: after_id
j.id > :edge

-- name: died_before
(j.finished_at, j.id) < (:edge_at, :edge)

-- name: newest
ORDER BY j.id DESC LIMIT :limit

-- name: oldest
ORDER BY j.id LIMIT :limit

-- name: died
ORDER BY j.finished_at DESC, j.id DESC LIMIT :limit

-- name: counted
-- How many, but no more than asked for.
SELECT count(*) FROM ({found} LIMIT :limit)

-- name: queues
-- The queues of a tenant that hold jobs, are paused or have settings. Each index is skipped through, not scanned.
WITH RECURSIVE
free (queue) AS (
    SELECT min(queue) FROM jobs WHERE stage = 'free' AND tenant = :tenant
    UNION ALL
    SELECT (SELECT min(j.queue) FROM jobs AS j
            WHERE j.stage = 'free' AND j.tenant = :tenant AND j.queue > free.queue)
    FROM free WHERE free.queue IS NOT NULL
),
ended (stage, queue) AS (
    SELECT s.column1, (SELECT min(j.queue) FROM jobs AS j
                       WHERE j.tenant = :tenant AND j.stage = s.column1 AND j.finished_at IS NOT NULL)
    FROM (VALUES ('succeeded'), ('dead'), ('cancelled')) AS s
    UNION ALL
    SELECT ended.stage, (SELECT min(j.queue) FROM jobs AS j
                         WHERE j.tenant = :tenant AND j.stage = ended.stage AND j.finished_at IS NOT NULL
                           AND j.queue > ended.queue)
    FROM ended WHERE ended.queue IS NOT NULL
)
SELECT queue FROM free WHERE queue IS NOT NULL
UNION SELECT queue FROM ended WHERE queue IS NOT NULL
UNION SELECT queue FROM jobs INDEXED BY jobs_leased WHERE stage = 'leased' AND tenant = :tenant
UNION SELECT queue FROM queues WHERE tenant = :tenant AND paused
UNION SELECT queue FROM queue_settings WHERE tenant = :tenant
ORDER BY 1

-- name: paused
-- The queues of a tenant that are paused.
SELECT queue FROM queues WHERE tenant = :tenant AND paused

-- name: count_running
-- How many jobs of each queue run. The planner would rather walk all jobs of the tenant than all running ones.
SELECT queue, count(*) FROM jobs INDEXED BY jobs_leased WHERE stage = 'leased' AND tenant = :tenant GROUP BY queue

-- name: count_ended
-- One way to end, in one queue.
SELECT count(*) FROM (SELECT 1 FROM jobs
                      WHERE tenant = :tenant AND queue = :queue AND stage = :stage AND finished_at IS NOT NULL
                      LIMIT :limit)

-- name: count_queued
-- The jobs of one queue that could run now.
SELECT count(*)
FROM (SELECT 1
      FROM (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS p
      CROSS JOIN jobs AS j
        ON j.stage = 'free' AND j.tenant = :tenant AND j.queue = :queue AND j.priority = p.column1
       AND j.run_at <= :now
      WHERE j.blockers = 0
      LIMIT :limit)

-- name: first_due
-- Since when the first job in line of a queue is due: the first of each priority, however long the line is.
SELECT min((SELECT j.run_at
            FROM jobs AS j
            WHERE j.stage = 'free' AND j.tenant = :tenant AND j.queue = :queue AND j.priority = p.column1
              AND j.run_at <= :now AND j.blockers = 0
            ORDER BY j.run_at
            LIMIT 1))
FROM (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS p

-- name: count_ahead
-- The free jobs of one queue that are not due.
SELECT CASE WHEN blockers > 0 THEN 'waiting' WHEN failures > 0 THEN 'retrying' ELSE 'scheduled' END, count(*)
FROM (SELECT j.blockers, j.failures
      FROM (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS p
      CROSS JOIN jobs AS j
        ON j.stage = 'free' AND j.tenant = :tenant AND j.queue = :queue AND j.priority = p.column1
       AND j.run_at > :now
      LIMIT :limit)
GROUP BY 1

-- name: newest_events
-- How many events the newest are, no more than asked for, and since when.
SELECT count(*), min(at) FROM (SELECT at FROM events ORDER BY position DESC LIMIT :limit)

-- name: come_and_gone
-- How many jobs of each queue of a tenant came and ended since a time, of the newest events. (Reading 10,000 rows at
-- the end of the table takes a few milliseconds; an index by time would cost every transition.)
SELECT queue, sum(event = 'job.enqueued'), sum(event <> 'job.enqueued')
FROM (SELECT tenant, queue, event, at FROM events ORDER BY position DESC LIMIT :limit)
WHERE tenant = :tenant AND at > :since
  AND (event = 'job.enqueued' OR event = 'job.completed' OR event = 'job.dlq' OR event = 'job.cancelled')
GROUP BY queue

-- name: queued_job
-- Where a job stands in line, if it does.
SELECT queue, priority, run_at, place
FROM jobs
WHERE tenant = :tenant AND id = :id AND stage = 'free' AND blockers = 0 AND run_at <= :now

-- name: ahead
-- How many stand before it: those that are more urgent, then those of its own priority.
SELECT count(*)
FROM (SELECT 1
      FROM (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS p
      CROSS JOIN jobs AS j
        ON j.stage = 'free' AND j.tenant = :tenant AND j.queue = :queue AND j.priority = p.column1
       AND j.run_at <= :now
      WHERE p.column1 < :priority AND j.blockers = 0
      UNION ALL
      SELECT 1
      FROM jobs AS j
      WHERE j.stage = 'free' AND j.tenant = :tenant AND j.queue = :queue AND j.priority = :priority
        AND j.run_at <= :run_at AND (j.run_at < :run_at OR j.place < :place) AND j.blockers = 0
      LIMIT :limit)

-- name: events_of
-- The log of one job.
SELECT job_id, seq, event, state, tenant, type, queue, at, attempt, worker, run_at, priority, millis, error, detail
FROM events
WHERE job_id = :id AND tenant = :tenant
ORDER BY position

-- name: tail
-- The log of all jobs, from a position on.
SELECT job_id, seq, event, state, tenant, type, queue, at, attempt, worker, run_at, priority, millis, error, detail,
       position
FROM events
WHERE position > :position
ORDER BY position
LIMIT :limit

-- name: tail_of_tenant
-- The log of one tenant's jobs, from a position on.
SELECT job_id, seq, event, state, tenant, type, queue, at, attempt, worker, run_at, priority, millis, error, detail,
       position
FROM events
WHERE position > :position AND tenant = :tenant
ORDER BY position
LIMIT :limit

-- name: log_end
-- The newest position ever given.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)

-- name: log_start
-- The oldest position that is kept.
SELECT min(position) FROM events

-- name: where_places
j.place IN (SELECT value FROM json_each(:places))
