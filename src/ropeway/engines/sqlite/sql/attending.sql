-- name: report
-- A worker is there. Another process under the same name starts its own time.
INSERT INTO workers (tenant, id, host, pid, version, queues, types, slots, running, rss_bytes, state, started_at,
                     seen_at)
VALUES (:tenant, :id, :host, :pid, :version, :queues, :types, :slots, :running, :rss_bytes, :state, :now, :now)
ON CONFLICT (tenant, id) DO UPDATE SET
    started_at = CASE WHEN host = excluded.host AND pid = excluded.pid THEN started_at ELSE excluded.started_at END,
    host = excluded.host, pid = excluded.pid, version = excluded.version, queues = excluded.queues,
    types = excluded.types, slots = excluded.slots, running = excluded.running, rss_bytes = excluded.rss_bytes,
    state = excluded.state, seen_at = excluded.seen_at

-- name: workers
-- The workers that were seen at or after a time.
SELECT id, host, pid, version, queues, types, slots, running, rss_bytes, state, started_at, seen_at
FROM workers
WHERE tenant = :tenant AND seen_at >= :since
ORDER BY id

-- name: forget
-- A worker is gone.
DELETE FROM workers WHERE tenant = :tenant AND id = :id

-- name: any_absent
-- Whether anyone was not heard of since a time.
SELECT 1 FROM workers WHERE seen_at <= :before LIMIT 1

-- name: forget_absent
-- Whoever was not heard of since then.
DELETE FROM workers WHERE seen_at <= :before
