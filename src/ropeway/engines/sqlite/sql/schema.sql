-- name: create_migrations
-- The table that says which migrations were applied, and with which text.
CREATE TABLE IF NOT EXISTS migrations (
    number     INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    checksum   TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
)

-- name: tables
-- What the file holds: nothing, Ropeway's tables, or somebody else's.
SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'

-- name: applied
-- The migrations that the file has seen.
SELECT number, checksum FROM migrations

-- name: note_applied
-- A migration was applied.
INSERT INTO migrations (number, name, checksum, applied_at) VALUES (:number, :name, :checksum, :now)
