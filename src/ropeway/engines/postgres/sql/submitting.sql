-- Submitting. The functions are in migrations/0005, 0008, 0009 and 0021.

-- name: insert_job
SELECT {schema}.insert_job($1, $2, $3, $4, $5, $6, $7)

-- name: insert_job_and_tell
CALL {schema}.insert_job_and_tell($1, $2, $3, $4, $5, $6, $7, $8, $9, NULL)

-- name: taken_at
-- When this job was taken; no row when it was not.
SELECT j.created_at FROM {schema}.jobs j WHERE j.tenant = $1 AND j.id = $2
UNION ALL
SELECT a.created_at FROM {schema}.archive a WHERE a.tenant = $1 AND a.id = $2

-- name: add_jobs
SELECT * FROM {schema}.add_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- name: add_lines
-- The same with the payloads as the lines of one text. The places come as one value, for few callers look at them.
SELECT taken_at, array_send(places) FROM {schema}.add_jobs($1, $2, $3, $4, $5, $6, string_to_array($7, E'\n'), $8, $9, $10, $11, $12)

-- name: add_keyed_jobs
SELECT * FROM {schema}.add_keyed_jobs(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)

-- name: kept_out
-- Those of a tenant's jobs that a key keeps out, as take_keys (migrations/0005) has it.
SELECT n.job_id
FROM unnest($2::text[], $3::text[], $4::uuid[], $5::double precision[], $6::text[])
    AS n (kind, key, job_id, span, states)
JOIN {schema}.keys k ON k.tenant = $1 AND k.kind = coalesce(n.kind, ($2::text[])[1]) AND k.key = n.key
CROSS JOIN LATERAL (SELECT {schema}.job_state(k.tenant, k.job_id) AS state) AS j
WHERE CASE k.kind
      WHEN 'idempotency' THEN
          k.until IS NULL OR k.until > {now}
          OR j.state IN ('scheduled', 'queued', 'running', 'retrying', 'waiting')
      ELSE
          j.state = ANY (string_to_array(n.states, ','))
          AND (n.span IS NULL OR {now} - k.enqueued_at < n.span * interval '1 second')
      END
