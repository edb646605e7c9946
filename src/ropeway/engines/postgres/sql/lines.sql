-- The logs of jobs. The functions are in migrations/0006.

-- name: append
SELECT x.item FROM {schema}.append_lines($1, $2, $3, $4, $5, $6, $7) AS x (item)

-- name: lines_of
SELECT * FROM {schema}.lines_of($1, $2, $3, $4)

-- name: delete_lines
SELECT {schema}.delete_lines($1, $2)

-- name: any_line
SELECT EXISTS (SELECT FROM {schema}.lines)
