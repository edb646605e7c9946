-- Upkeeping: for all tenants, safe when many run at once.

-- name: expired_grants
-- Grants whose time is over, locked so that no heartbeat can revive them while their jobs are taken back.
SELECT token, cardinality(job_ids) AS jobs FROM {schema}.grants
WHERE expires_at <= {now} ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED

-- name: owned_grants
SELECT token, cardinality(job_ids) AS jobs FROM {schema}.grants
WHERE tenant = $1 AND owner = $2 AND ($3::uuid[] IS NULL OR token = ANY ($3)) LIMIT 1000 FOR UPDATE

-- name: other_grants
SELECT token FROM {schema}.grants WHERE tenant = $1 AND owner = $2 AND token <> ALL ($3::uuid[])

-- name: given_grants
-- Grants by their tokens.
SELECT token, cardinality(job_ids) AS jobs FROM {schema}.grants WHERE token = ANY ($1::uuid[]) FOR UPDATE

-- name: held_jobs
SELECT * FROM {schema}.held_jobs($1)

-- name: delete_grants
SELECT {schema}.delete_grants($1)

-- name: orphans
-- Jobs that carry a token without a grant, looked for in one bounded stretch of the table.
SELECT j.tenant, j.id, j.attempt, j.lease_token, j.attempts, j.max_attempts, j.failures, j.lost, j.retry
FROM (
    SELECT c.* FROM {schema}.jobs c WHERE (c.tenant, c.id) > ($1, $2) ORDER BY c.tenant, c.id LIMIT $3
) j
WHERE j.lease_token IS NOT NULL
  AND NOT EXISTS (SELECT FROM {schema}.grants g WHERE g.token = j.lease_token)

-- name: stretch_end
-- Where that stretch ended; nothing when it was the last one.
SELECT c.tenant, c.id FROM {schema}.jobs c
WHERE (c.tenant, c.id) > ($1, $2) ORDER BY c.tenant, c.id OFFSET $3 - 1 LIMIT 1

-- name: overdue
SELECT * FROM {schema}.overdue($1)

-- name: cancel_overdue
SELECT * FROM {schema}.cancel_jobs($1, $2, 'expired', true, false) ORDER BY item

-- name: old_keys
-- Keys whose window is over, locked: no one can take one over until the next statement has looked at its job.
SELECT o.tenant, o.kind, o.key FROM {schema}.keys o
WHERE o.until IS NOT NULL AND o.until <= {now}
  AND NOT EXISTS (SELECT FROM {schema}.jobs j WHERE j.tenant = o.tenant AND j.id = o.job_id)
  AND (o.kind = 'idempotency'
       OR NOT EXISTS (SELECT FROM {schema}.archive a WHERE a.tenant = o.tenant AND a.id = o.job_id))
LIMIT $1 FOR UPDATE SKIP LOCKED

-- name: prune_keys
-- Delete those of these keys whose job has ended; unique keys stay as long as their job can be found.
DELETE FROM {schema}.keys o
USING unnest($1::text[], $2::text[], $3::text[]) AS n (tenant, kind, key)
WHERE o.tenant = n.tenant AND o.kind = n.kind AND o.key = n.key AND o.until <= {now}
  AND NOT EXISTS (SELECT FROM {schema}.jobs j WHERE j.tenant = o.tenant AND j.id = o.job_id)
  AND (o.kind = 'idempotency'
       OR NOT EXISTS (SELECT FROM {schema}.archive a WHERE a.tenant = o.tenant AND a.id = o.job_id))
RETURNING 1

-- name: partitions_before
SELECT * FROM {schema}.partitions_before($1, $2)

-- name: note_events_pruned
-- Remember, before a partition of events goes, how far the log then no longer reaches.
UPDATE {schema}.meta SET value = greatest(value::bigint, $1)::text WHERE name = 'events_pruned_through'
