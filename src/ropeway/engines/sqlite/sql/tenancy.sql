-- name: tenant
-- One tenant.
SELECT id, name, created_at, email, is_active, limits, last_seen_at FROM tenants WHERE id = :id

-- name: tenants
-- All tenants.
SELECT id, name, created_at, email, is_active, limits, last_seen_at FROM tenants ORDER BY id

-- name: same_tenant
-- Whether another tenant has that id or that name.
SELECT 1 FROM tenants WHERE id = :id OR name = :name

-- name: same_name
-- Whether another tenant has that name.
SELECT 1 FROM tenants WHERE name = :name AND id <> :id

-- name: insert_tenant
-- A new tenant.
INSERT INTO tenants (id, name, email, is_active, limits, created_at)
VALUES (:id, :name, :email, :is_active, :limits, :created_at)

-- name: change_tenant
-- A tenant, changed.
UPDATE tenants SET name = :name, email = :email, is_active = :is_active, limits = :limits WHERE id = :id

-- name: key
-- One key, of any tenant.
SELECT id, tenant, name, scopes, digest, created_at, expires_at, last_used_at, revoked_at
FROM api_keys
WHERE id = :id

-- name: keys
-- The keys of a tenant, newest first.
SELECT id, tenant, name, scopes, digest, created_at, expires_at, last_used_at, revoked_at
FROM api_keys
WHERE tenant = :tenant
ORDER BY created_at DESC, id DESC

-- name: insert_key
-- A new key.
INSERT INTO api_keys (id, tenant, name, scopes, digest, created_at, expires_at)
VALUES (:id, :tenant, :name, :scopes, :digest, :created_at, :expires_at)

-- name: end_key
-- A key ends at a time.
UPDATE api_keys SET expires_at = :expires_at WHERE id = :id

-- name: revoke_key
-- A key is good no more, since the first time this was said.
UPDATE api_keys SET revoked_at = coalesce(revoked_at, :now) WHERE id = :id

-- name: note_keys
-- Keys were used ...
UPDATE api_keys SET last_used_at = :now WHERE id IN (SELECT value FROM json_each(:ids))

-- name: note_tenants
-- ... and with them their tenants.
UPDATE tenants SET last_seen_at = :now
WHERE id IN (SELECT tenant FROM api_keys WHERE id IN (SELECT value FROM json_each(:ids)))

-- name: secret
-- The secret of the store, in hexadecimal.
SELECT value FROM meta WHERE name = 'secret'

-- name: keep_secret
-- Whoever asks first makes it.
INSERT INTO meta (name, value) VALUES ('secret', :secret) ON CONFLICT (name) DO NOTHING
