-- Inspecting: live jobs and ended ones under the same column names. Conditions are added from an allow-list
-- (filters.py); values only ever travel as parameters.

-- name: live
-- Jobs that still have to run, with their derived state.
SELECT j.tenant, j.id, j.type, j.queue,
       CASE WHEN j.lease_token IS NOT NULL THEN 'running' WHEN j.blockers > 0 THEN 'waiting'
            WHEN j.run_at > {now} THEN CASE WHEN j.failures > 0 THEN 'retrying' ELSE 'scheduled' END
            ELSE 'queued' END AS state,
       j.priority, j.payload, j.attempt, j.attempts, j.max_attempts, j.run_at, j.created_at, j.updated_at,
       j.failures, j.lost, j.timeout, j.retry, j.started_at, NULL::timestamptz AS finished_at, j.worker,
       (SELECT g.expires_at FROM {schema}.grants g WHERE g.token = j.lease_token) AS locked_until,
       j.last_error, NULL::text AS result, NULL::text AS reason, j.idempotency_key, j.expires_at, j.tags,
       j.headers, j.progress, false AS result_sanitized, false AS result_too_large
FROM {schema}.jobs j

-- name: ended
-- Jobs that have ended.
SELECT j.tenant, j.id, j.type, j.queue, j.state, j.priority, j.payload, j.attempt, j.attempts, j.max_attempts,
       j.run_at, j.created_at, j.finished_at AS updated_at, j.failures, j.lost, j.timeout, j.retry, j.started_at,
       j.finished_at, NULL::text AS worker, NULL::timestamptz AS locked_until, j.last_error, j.result, j.reason,
       j.idempotency_key, j.expires_at, j.tags, j.headers, NULL::text AS progress, j.result_sanitized,
       j.result_too_large
FROM {schema}.archive j

-- name: key_holder
-- The job that has an idempotency key, or had it last.
SELECT job_id FROM {schema}.keys WHERE tenant = $1 AND kind = 'idempotency' AND key = $2

-- name: live_queues
-- The queues of a tenant that hold live jobs: a walk from name to name, not a scan of the backlog.
WITH RECURSIVE walk AS (
    (SELECT j.queue FROM {schema}.jobs j WHERE j.tenant = $1 AND j.queue <> '' ORDER BY j.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue FROM {schema}.jobs j
            WHERE j.tenant = $1 AND j.queue > walk.queue AND j.queue <> '' ORDER BY j.queue LIMIT 1)
    FROM walk WHERE walk.queue IS NOT NULL
)
SELECT queue FROM walk WHERE queue IS NOT NULL

-- name: told_queues
-- The queues that are paused or were given settings.
SELECT queue, paused, depth_limit, require_key, lease_seconds FROM {schema}.queues
WHERE tenant = $1 AND (paused OR depth_limit IS NOT NULL OR require_key OR lease_seconds IS NOT NULL)

-- name: queue_rates
SELECT * FROM {schema}.queue_rates($1, $2, $3)

-- name: place
SELECT {schema}.place($1, $2, $3)

-- name: live_counts
-- Live jobs of one queue by state, and how long the first of each has been due, looked at no further than a bound.
SELECT x.state, count(*) AS number, extract(epoch FROM {now} - min(x.run_at))::double precision AS oldest
FROM (
    SELECT j.run_at, CASE WHEN j.lease_token IS NOT NULL THEN 'running' WHEN j.blockers > 0 THEN 'waiting'
                WHEN j.run_at > (SELECT {now}) THEN CASE WHEN j.failures > 0 THEN 'retrying' ELSE 'scheduled' END
                ELSE 'queued' END AS state
    FROM {schema}.jobs j WHERE j.tenant = $1 AND j.queue = $2 AND j.queue <> '' LIMIT $3
) x
GROUP BY x.state

-- name: long_counts
-- The same for a queue beyond that bound: those that could run now up to $3, then those that are not due up to $4. The
-- index by lane has both in order, so neither hides the other. Jobs that wait for others count only among the latter.
SELECT 'queued' AS state, count(*) AS number
FROM (
    SELECT 1
    FROM generate_series(1, 9) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT 1 FROM {schema}.jobs c
        WHERE c.tenant = $1 AND c.queue = $2 AND c.queue <> '' AND c.priority = p.priority::smallint
          AND c.run_at <= (SELECT {now}) AND c.lease_token IS NULL AND c.blockers = 0
        ORDER BY c.run_at, c.seq LIMIT $3
    ) y
    LIMIT $3
) x
UNION ALL
SELECT CASE WHEN x.blockers > 0 THEN 'waiting' WHEN x.failures > 0 THEN 'retrying' ELSE 'scheduled' END, count(*)
FROM (
    SELECT y.blockers, y.failures
    FROM generate_series(1, 9) AS p (priority)
    CROSS JOIN LATERAL (
        SELECT c.blockers, c.failures FROM {schema}.jobs c
        WHERE c.tenant = $1 AND c.queue = $2 AND c.queue <> '' AND c.priority = p.priority::smallint
          AND c.run_at > (SELECT {now}) AND c.lease_token IS NULL
        ORDER BY c.run_at, c.seq LIMIT $4
    ) y
    LIMIT $4
) x
GROUP BY 1

-- name: running_counts
-- Running jobs of a tenant by queue. They are in no index; those that grants name are few, however long a backlog is.
SELECT j.queue, count(*) AS number FROM {schema}.jobs j
WHERE j.tenant = $1 AND j.lease_token IS NOT NULL
  AND j.id = ANY (ARRAY(SELECT unnest(g.job_ids) FROM {schema}.grants g WHERE g.tenant = $1))
GROUP BY j.queue

-- name: succeeded_counts
-- Jobs of a tenant that succeeded, by queue, counted no further than a bound. One statement per state: whoever waits for
-- the connection meanwhile waits for one of them at most.
SELECT x.queue, count(*) AS number
FROM (SELECT a.queue FROM {schema}.archive_succeeded a WHERE a.tenant = $1 LIMIT $2) x
GROUP BY x.queue

-- name: dead_counts
SELECT x.queue, count(*) AS number
FROM (SELECT a.queue FROM {schema}.archive_dead a WHERE a.tenant = $1 LIMIT $2) x
GROUP BY x.queue

-- name: cancelled_counts
SELECT x.queue, count(*) AS number
FROM (SELECT a.queue FROM {schema}.archive_cancelled a WHERE a.tenant = $1 LIMIT $2) x
GROUP BY x.queue

-- name: first_age
-- How long the first in line has been due, the first of each priority: for a queue beyond that bound.
SELECT extract(epoch FROM {now} - min(x.run_at))::double precision
FROM generate_series(1, 9) AS p (priority)
CROSS JOIN LATERAL (
    SELECT c.run_at FROM {schema}.jobs c
    WHERE c.tenant = $1 AND c.queue = $2 AND c.queue <> '' AND c.priority = p.priority::smallint
      AND c.run_at <= (SELECT {now}) AND c.lease_token IS NULL AND c.blockers = 0
    ORDER BY c.run_at, c.seq LIMIT 1
) x

-- name: events_of
SELECT e.tenant, e.job_id, e.seq, e.at, e.type, e.queue, e.attempt, e.event::text AS event, e.worker, e.priority,
       e.failed, e.run_at, e.millis, e.error, e.detail
FROM {schema}.events_of($1, $2) e ORDER BY e.seq

-- name: log_end
-- The end of the event log: a snapshot (a statement takes its own before it runs), then the highest id drawn. So no
-- event that the snapshot sees has a higher id.
WITH drawn AS MATERIALIZED (
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS high FROM {schema}.events_id_seq
)
SELECT high, pg_current_snapshot()::text AS snapshot FROM drawn

-- name: tail
SELECT e.id, e.n, e.rest, e.tenant, e.job_id, e.seq, e.at, e.type, e.queue, e.attempt, e.event::text AS event, e.worker,
       e.priority, e.failed, e.run_at, e.millis, e.error, e.detail
FROM {schema}.tail_events($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) e

-- name: before_newest_events
SELECT {schema}.before_newest_events($1, $2, $3, $4)

-- name: summarise
SELECT {schema}.summarise_events($1)

-- name: log_bounds
-- How far the log was pruned, how far it is only history, and whether this is the cluster that wrote it.
SELECT coalesce(max(m.value) FILTER (WHERE m.name = 'events_pruned_through'), '0')::bigint AS pruned,
       coalesce(max(m.value) FILTER (WHERE m.name = 'events_restored_through'), '0')::bigint AS restored,
       max(m.value) FILTER (WHERE m.name = 'cluster') AS written_by,
       (SELECT system_identifier::text FROM pg_control_system()) AS cluster
FROM {schema}.meta m

-- name: adopt_log
-- The store was copied into another cluster: what it brought is history. Only the first one who notices does it.
WITH moved AS (
    INSERT INTO {schema}.meta AS m SELECT 'cluster', system_identifier::text FROM pg_control_system()
    ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE m.value <> excluded.value
    RETURNING 1
)
UPDATE {schema}.meta m SET value = (
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {schema}.events_id_seq
)::text
WHERE m.name = 'events_restored_through' AND EXISTS (SELECT FROM moved)

-- name: secret
-- One of the store's secrets, by its name.
SELECT value FROM {schema}.meta WHERE name = $1
