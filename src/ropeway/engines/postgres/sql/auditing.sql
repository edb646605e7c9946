-- Auditing: what operators did.

-- name: note_actions
INSERT INTO {schema}.actions (tenant, at, actor, action, target, count, request_id)
SELECT $1, clock.now, a.actor, a.action, a.target, a.count, a.request_id
FROM (SELECT {now} AS now) clock
CROSS JOIN unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[]) WITH ORDINALITY
    AS a (actor, action, target, count, request_id, place)
ORDER BY a.place

-- name: actions
-- Conditions, order and limit are added.
SELECT j.n, j.at, j.actor, j.action, j.target, j.count, j.request_id FROM {schema}.actions j

-- name: prune_actions
-- Old ones, no more than a bound.
DELETE FROM {schema}.actions a WHERE (a.tenant, a.n) IN (
    SELECT o.tenant, o.n FROM {schema}.actions o WHERE o.at < $1 LIMIT $2 FOR UPDATE SKIP LOCKED
)
RETURNING 1
