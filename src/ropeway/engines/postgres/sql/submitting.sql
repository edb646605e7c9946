-- Submitting. The functions are in migrations/0003, 0005 and 0008.

-- name: insert_job
SELECT {schema}.insert_job($1, $2, $3, $4, $5, $6, $7)

-- name: insert_jobs
SELECT {schema}.insert_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- name: insert_keyed_jobs
SELECT * FROM {schema}.insert_keyed_jobs(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
