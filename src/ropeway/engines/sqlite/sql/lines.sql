-- name: current_body
-- The fence: the body of the job whose current lease this is, and the number of its newest line.
SELECT j.body, coalesce((SELECT max(l.n) FROM lines AS l WHERE l.body = j.body), 0)
FROM jobs AS j
WHERE j.tenant = :tenant AND j.id = :id AND j.stage = 'leased' AND j.token = :token AND j.attempt = :attempt

-- name: append
-- One more line.
INSERT INTO lines (body, n, at, attempt, level, message) VALUES (:body, :n, :now, :attempt, :level, :message)

-- name: trim
-- Of a log that has become too long or too large the oldest lines go.
DELETE FROM lines WHERE body = :body AND n <= (
    SELECT max(k.n) FROM (
        SELECT l.n, sum(length(CAST(l.message AS BLOB))) OVER newest AS size, row_number() OVER newest AS place
        FROM lines AS l WHERE l.body = :body WINDOW newest AS (ORDER BY l.n DESC)
    ) AS k
    WHERE k.size > :bytes OR k.place > :lines
)

-- name: lines_of
-- The lines of one job beyond a number, in order.
SELECT l.message, l.level, l.attempt, l.n, l.at
FROM jobs AS j
CROSS JOIN lines AS l ON l.body = j.body AND l.n > :after
WHERE j.tenant = :tenant AND j.id = :id
ORDER BY l.n
LIMIT :limit
