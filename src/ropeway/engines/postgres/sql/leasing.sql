-- Leasing. The functions are in migrations/0004, 0013 and 0020.

-- name: claim
-- Times as seconds: the driver needs 1.2 us to make a timestamp of what it gets, Python 0.3 us to make one of a number.
SELECT c.id, c.type, c.queue, c.priority, c.payload, c.attempt, c.attempts, c.max_attempts,
       date_part('epoch', c.run_at), c.seq, date_part('epoch', c.created_at), date_part('epoch', c.started_at),
       c.failures, c.lost, c.timeout, c.retry, c.expires_at, c.tags, c.headers, c.idempotency_key, c.last_error,
       c.unchecked, c.spot
FROM {schema}.claim_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) c

-- name: waits
SELECT * FROM {schema}.waits($1, $2, $3, $4, $5)

-- name: next_due
SELECT {schema}.next_due($1, $2)

-- name: complete
SELECT {schema}.complete_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: complete_one
SELECT {schema}.complete_one($1, $2, $3, $4, $5, $6, $7)

-- name: facts
SELECT * FROM {schema}.facts($1, $2, $3, $4)

-- name: apply_transitions
SELECT * FROM {schema}.apply_transitions($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ORDER BY item

-- name: last_tickets
SELECT * FROM {schema}.last_tickets($1, $2)

-- name: progress
-- Note how far running jobs are; answers which of the tickets were current.
SELECT x.item FROM {schema}.note_progress($1, $2, $3, $4, $5) AS x (item)

-- name: heartbeat
SELECT * FROM {schema}.heartbeat($1, $2, $3, $4, $5)

-- name: heartbeat_owner
SELECT * FROM {schema}.heartbeat_owner($1, $2, $3)
