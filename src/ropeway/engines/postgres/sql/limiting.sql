-- Limiting. The function is in migrations/0009.

-- name: take_tokens
SELECT {schema}.take_tokens($1, $2, $3, $4, $5)

-- name: held_keys
-- Those of a tenant's idempotency keys that keep a new job out, as take_keys (migrations/0005) has it.
SELECT k.key
FROM {schema}.keys k
WHERE k.tenant = $1 AND k.kind = 'idempotency' AND k.key = ANY ($2::text[])
  AND (k.until IS NULL OR k.until > {now}
       OR {schema}.job_state(k.tenant, k.job_id) IN ('scheduled', 'queued', 'running', 'retrying', 'waiting'))

-- name: forget_buckets
-- A bucket that nobody took from for so long, for tickets another time; one that someone is just taking from is not.
DELETE FROM {schema}.buckets b WHERE (b.tenant, b.name) IN (
    SELECT f.tenant, f.name FROM {schema}.buckets f
    WHERE f.at <= {now} - interval '1 second'
          * CASE WHEN starts_with(f.name, $2) THEN $3::double precision ELSE $1::double precision END
    FOR UPDATE SKIP LOCKED
)
