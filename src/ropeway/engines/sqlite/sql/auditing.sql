-- name: note_action
-- An operator did something.
INSERT INTO actions (tenant, at, actor, action, target, count, request_id)
VALUES (:tenant, :now, :actor, :action, :target, :count, :request_id)

-- name: actions
-- What a filter takes of a tenant's actions, newest first; what each part means is said by `matches` in
-- core/auditlog.py.
SELECT n, at, actor, action, target, count, request_id
FROM actions
WHERE tenant = :tenant AND n < :before_n
  AND (:actor IS NULL OR actor = :actor)
  AND (:action IS NULL OR action = :action)
  AND (:after IS NULL OR at >= :after)
  AND (:before IS NULL OR at < :before)
ORDER BY n DESC
LIMIT :limit

-- name: old_actions
-- The oldest actions.
SELECT n, at FROM actions ORDER BY n LIMIT :limit

-- name: delete_actions
-- The oldest go.
DELETE FROM actions WHERE n <= :n
