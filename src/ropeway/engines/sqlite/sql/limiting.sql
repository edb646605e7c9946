-- name: bucket
-- What was in a bucket, and when.
SELECT tokens, at FROM buckets WHERE tenant = :tenant AND name = :name

-- name: keep_bucket
-- What is in it now.
INSERT INTO buckets (tenant, name, tokens, at) VALUES (:tenant, :name, :tokens, :at)
ON CONFLICT (tenant, name) DO UPDATE SET tokens = excluded.tokens, at = excluded.at

-- name: any_unused
-- Whether there is a bucket that nobody took from since a time; tickets have another one.
SELECT 1 FROM buckets WHERE at <= :before OR (at <= :tickets_before AND substr(name, 1, length(:tickets)) = :tickets) LIMIT 1

-- name: forget_unused
-- The buckets that nobody took from since then.
DELETE FROM buckets WHERE at <= :before OR (at <= :tickets_before AND substr(name, 1, length(:tickets)) = :tickets)
