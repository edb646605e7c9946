-- What a service over the store needs: tenants and their keys, buckets of tokens, what operators did, and what queues
-- are set to.

-- `limits` is a JSON object of those that are set.
CREATE TABLE tenants (
    id              TEXT    PRIMARY KEY,
    name            TEXT    NOT NULL UNIQUE,
    email           TEXT,
    is_active       INTEGER NOT NULL CHECK (is_active IN (0, 1)),
    limits          TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    last_seen_at    INTEGER
) WITHOUT ROWID;

-- The tenant of everything that names none.
INSERT INTO tenants (id, name, is_active, limits, created_at)
VALUES ('default', 'default', 1, '{}', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000);

-- Keys of tenants. `digest` is of the secret, which only its holder has; `scopes` is a JSON array.
CREATE TABLE api_keys (
    id              TEXT    PRIMARY KEY,
    tenant          TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    scopes          TEXT    NOT NULL,
    digest          BLOB    NOT NULL,
    created_at      INTEGER NOT NULL,
    expires_at      INTEGER,
    last_used_at    INTEGER,
    revoked_at      INTEGER
) WITHOUT ROWID;

CREATE INDEX api_keys_of_tenant ON api_keys (tenant, created_at);

-- How much was in each bucket, and when.
CREATE TABLE buckets (
    tenant          TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    tokens          REAL    NOT NULL,
    at              INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

-- What operators did. AUTOINCREMENT: a number is never given twice, even after all were pruned.
CREATE TABLE actions (
    n               INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant          TEXT    NOT NULL,
    at              INTEGER NOT NULL,
    actor           TEXT    NOT NULL,
    action          TEXT    NOT NULL,
    target          TEXT    NOT NULL,
    count           INTEGER,
    request_id      TEXT
);

-- The actions of a tenant in order (the number is the end of every index).
CREATE INDEX actions_of_tenant ON actions (tenant);

-- Queues that were set to something. Apart from `queues`, whose rows go when a queue is resumed.
CREATE TABLE queue_settings (
    tenant          TEXT    NOT NULL,
    queue           TEXT    NOT NULL,
    depth_limit     INTEGER,
    require_key     INTEGER NOT NULL CHECK (require_key IN (0, 1)),
    lease_seconds   REAL,
    PRIMARY KEY (tenant, queue)
) WITHOUT ROWID;
