-- Leasing. The functions are in migrations/0003 and 0004.

-- name: claim
SELECT * FROM {schema}.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: waits
-- How long the oldest due job of each lane and priority has waited; from the cursor, like the claim.
SELECT lane.queue, lane.priority, extract(epoch FROM {now} - x.run_at)::double precision AS waited
FROM unnest($2::text[], $3::smallint[], $4::timestamptz[], $5::bigint[]) AS lane (queue, priority, at, seq)
CROSS JOIN LATERAL (
    SELECT c.run_at FROM {schema}.jobs c
    WHERE c.tenant = $1 AND c.queue = lane.queue AND c.queue <> '' AND c.priority = lane.priority
      AND (c.run_at, c.seq) >= (lane.at, lane.seq) AND c.run_at <= (SELECT {now})
      AND c.lease_token IS NULL AND (c.expires_at IS NULL OR c.expires_at > {now} OR c.attempts > 0)
    ORDER BY c.run_at, c.seq LIMIT 1
) x

-- name: next_due
-- Seconds until the next free job of these queues is due; NULL when none is known.
SELECT CASE WHEN min(x.run_at) IS NOT NULL
       THEN greatest(0, extract(epoch FROM min(x.run_at) - {now}))::double precision END
FROM unnest($2::text[]) AS lane (queue)
CROSS JOIN generate_series(1, 9) AS p (priority)
CROSS JOIN LATERAL (
    SELECT c.run_at FROM {schema}.jobs c
    WHERE c.tenant = $1 AND c.queue = lane.queue AND c.queue <> '' AND c.priority = p.priority::smallint
      AND c.run_at > (SELECT {now}) AND c.lease_token IS NULL
    ORDER BY c.run_at, c.seq LIMIT 1
) x
WHERE NOT EXISTS (SELECT FROM {schema}.queues q WHERE q.tenant = $1 AND q.queue = lane.queue AND q.paused)

-- name: complete
SELECT {schema}.complete($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: complete_one
SELECT {schema}.complete_one($1, $2, $3, $4, $5, $6, $7)

-- name: facts
-- What decisions need of each running job whose ticket is current.
SELECT x.* FROM unnest($2::uuid[], $3::integer[], $4::uuid[]) AS t (id, attempt, token)
CROSS JOIN LATERAL (
    SELECT c.id, c.attempts, c.max_attempts, c.failures, c.lost, c.retry FROM {schema}.jobs c
    WHERE c.tenant = $1 AND c.id = t.id AND c.lease_token = t.token AND c.attempt = t.attempt LIMIT 1
) x

-- name: apply_transitions
SELECT * FROM {schema}.apply_transitions($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: last_tickets
-- The newest spent ticket of each job, live or ended.
SELECT x.* FROM unnest($2::uuid[]) AS t (id)
CROSS JOIN LATERAL (
    SELECT c.id, c.attempt, c.spent_token, c.spent_verb, {schema}.job_state(c.tenant, c.id) AS state
    FROM {schema}.jobs c WHERE c.tenant = $1 AND c.id = t.id
    UNION ALL
    SELECT a.id, a.attempt, a.spent_token, a.spent_verb, a.state
    FROM {schema}.archive a WHERE a.tenant = $1 AND a.id = t.id
    LIMIT 1
) x

-- name: progress
-- Note how far running jobs are; answers which of the tickets were current.
SELECT x.item FROM {schema}.note_progress($1, $2, $3, $4, $5) AS x (item)

-- name: heartbeat
SELECT * FROM {schema}.heartbeat($1, $2, $3, $4, $5)

-- name: heartbeat_owner
-- Extend every grant of one worker process, and delete those whose jobs all have a known answer ($3). A grant that
-- only has revoked jobs to tell of is not extended, or it would be told of for ever.
WITH ended AS (
    DELETE FROM {schema}.grants WHERE token = ANY ($3::uuid[])
)
UPDATE {schema}.grants g
SET expires_at = CASE WHEN g.job_ids <@ g.revoked THEN g.expires_at
                      ELSE greatest(g.expires_at, {now} + g.lease_seconds * interval '1 second') END
WHERE g.owner = $2 AND g.tenant = $1 AND g.token <> ALL ($3::uuid[])
RETURNING g.token, extract(epoch FROM g.expires_at - {now})::double precision AS expires_in, g.revoked,
          g.job_ids <@ g.revoked AS done
