-- Limiting. The function is in migrations/0009.

-- name: take_tokens
SELECT {schema}.take_tokens($1, $2, $3, $4, $5)

-- name: forget_buckets
-- A bucket that nobody took from for so long, for tickets another time; one that someone is just taking from is not.
DELETE FROM {schema}.buckets b WHERE (b.tenant, b.name) IN (
    SELECT f.tenant, f.name FROM {schema}.buckets f
    WHERE f.at <= {now} - interval '1 second'
          * CASE WHEN starts_with(f.name, $2) THEN $3::double precision ELSE $1::double precision END
    FOR UPDATE SKIP LOCKED
)
