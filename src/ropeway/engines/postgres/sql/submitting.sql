-- Submitting. The functions are in migrations/0005, 0008 and 0009.

-- name: insert_job
SELECT {schema}.insert_job($1, $2, $3, $4, $5, $6, $7)

-- name: add_jobs
SELECT * FROM {schema}.add_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- name: add_keyed_jobs
SELECT * FROM {schema}.add_keyed_jobs(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
