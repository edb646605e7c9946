-- Attending: which workers are there.

-- name: report
-- A worker is there. Another process under the same name starts its own time.
INSERT INTO {schema}.workers AS w
    (tenant, id, host, pid, version, queues, types, slots, running, rss_bytes, state, started_at, seen_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, c.now, c.now FROM (SELECT {now} AS now) c
ON CONFLICT (tenant, id) DO UPDATE SET
    started_at = CASE WHEN w.host = excluded.host AND w.pid = excluded.pid THEN w.started_at
                      ELSE excluded.started_at END,
    host = excluded.host, pid = excluded.pid, version = excluded.version, queues = excluded.queues,
    types = excluded.types, slots = excluded.slots, running = excluded.running, rss_bytes = excluded.rss_bytes,
    state = excluded.state, seen_at = excluded.seen_at

-- name: workers
SELECT id, host, pid, version, queues, types, slots, running, rss_bytes, state, started_at, seen_at
FROM {schema}.workers
WHERE tenant = $1 AND seen_at >= {now} - $2::double precision * interval '1 second'
ORDER BY id

-- name: forget
DELETE FROM {schema}.workers WHERE tenant = $1 AND id = $2

-- name: forget_absent
DELETE FROM {schema}.workers WHERE seen_at <= {now} - $1::double precision * interval '1 second'
