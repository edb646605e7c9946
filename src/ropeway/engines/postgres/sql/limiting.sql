-- Limiting. The function is in migrations/0009.

-- name: take_tokens
SELECT {schema}.take_tokens($1, $2, $3, $4, $5)

-- name: forget_buckets
-- A bucket that nobody took from for so long; one that someone is just taking from is not.
DELETE FROM {schema}.buckets b WHERE (b.tenant, b.name) IN (
    SELECT f.tenant, f.name FROM {schema}.buckets f
    WHERE f.at <= {now} - $1::double precision * interval '1 second' FOR UPDATE SKIP LOCKED
)
