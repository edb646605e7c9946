-- Leasing. The functions are in migrations/0003 and 0004.

-- name: claim
SELECT * FROM {schema}.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: waits
SELECT * FROM {schema}.waits($1, $2, $3, $4, $5)

-- name: next_due
SELECT {schema}.next_due($1, $2)

-- name: complete
SELECT {schema}.complete($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: complete_one
SELECT {schema}.complete_one($1, $2, $3, $4, $5, $6, $7)

-- name: facts
SELECT * FROM {schema}.facts($1, $2, $3, $4)

-- name: apply_transitions
SELECT * FROM {schema}.apply_transitions($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: last_tickets
SELECT * FROM {schema}.last_tickets($1, $2)

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
