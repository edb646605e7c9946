-- Tenancy: tenants and the keys that speak for them. `find_key` is in migrations/0009.

-- name: create_tenant
INSERT INTO {schema}.tenants (id, name, email, is_active, limits, created_at) VALUES ($1, $2, $3, $4, $5, {now})
RETURNING id, name, email, is_active, limits, created_at, last_seen_at

-- name: tenants
SELECT id, name, email, is_active, limits, created_at, last_seen_at FROM {schema}.tenants ORDER BY id

-- name: change_tenant
-- NULL leaves a column as it is; an empty email removes it.
UPDATE {schema}.tenants
SET name = coalesce($2, name), email = CASE WHEN $3::text IS NULL THEN email ELSE nullif($3, '') END,
    is_active = coalesce($4, is_active), limits = coalesce($5, limits)
WHERE id = $1
RETURNING id, name, email, is_active, limits, created_at, last_seen_at

-- name: create_key
INSERT INTO {schema}.api_keys (tenant, id, name, scopes, digest, expires_at, created_at)
VALUES ($1, $2, $3, $4, $5, $6, {now})
RETURNING id, tenant, name, scopes, digest, created_at, expires_at, last_used_at, revoked_at

-- name: keys
SELECT id, tenant, name, scopes, digest, created_at, expires_at, last_used_at, revoked_at
FROM {schema}.api_keys WHERE tenant = $1 ORDER BY created_at DESC, id DESC

-- name: find_key
SELECT * FROM {schema}.find_key($1)

-- name: rotate_key
-- A successor for a key that is still good, and the old one's end, in one step; nothing when it is good no more.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
), old AS (
    UPDATE {schema}.api_keys k SET expires_at = least(k.expires_at, clock.now + $3::double precision * interval '1 second')
    FROM clock
    WHERE k.tenant = $1 AND k.id = $2 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock.now)
    RETURNING k.tenant, clock.now
)
INSERT INTO {schema}.api_keys (tenant, id, name, scopes, digest, expires_at, created_at)
SELECT old.tenant, $4, $5, $6, $7, $8, old.now FROM old
RETURNING id, tenant, name, scopes, digest, created_at, expires_at, last_used_at, revoked_at

-- name: revoke_key
UPDATE {schema}.api_keys SET revoked_at = coalesce(revoked_at, {now}) WHERE tenant = $1 AND id = $2
RETURNING id, tenant, name, scopes, digest, created_at, expires_at, last_used_at, revoked_at

-- name: note_use
-- These keys and their tenants were used. A row that someone else is just writing is left alone: most likely they
-- note the same, and no two who do can wait for each other.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
), used AS (
    UPDATE {schema}.api_keys k SET last_used_at = clock.now FROM clock
    WHERE k.id IN (
        SELECT f.id FROM {schema}.api_keys f WHERE f.id = ANY ($1::text[]) FOR NO KEY UPDATE SKIP LOCKED
    )
    RETURNING k.tenant
)
UPDATE {schema}.tenants t SET last_seen_at = clock.now FROM clock
WHERE t.id IN (
    SELECT f.id FROM {schema}.tenants f WHERE f.id IN (SELECT used.tenant FROM used) FOR NO KEY UPDATE SKIP LOCKED
)
