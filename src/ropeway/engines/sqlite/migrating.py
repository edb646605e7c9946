"""The schema: numbered files, applied under the write lock when the database is opened."""

from __future__ import annotations

import sqlite3

from ropeway.core.errors import ConfigurationError
from ropeway.engines import migrate
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.opening import Database

SQL = statements("ropeway.engines.sqlite", "sql/schema.sql")
MIGRATIONS = "ropeway.engines.sqlite.migrations"


def bring_up_to_date(db: sqlite3.Connection, database: Database, now: int) -> None:
    """Apply what is missing, in one transaction. Refuses files of others and schemas of newer versions."""
    db.execute("BEGIN IMMEDIATE")
    try:
        for migration in _missing(db, database):
            for statement in _statements(migration.text):
                db.execute(statement)
            db.execute(
                SQL["note_applied"],
                {
                    "number": migration.number,
                    "name": migration.name,
                    "checksum": migration.checksum,
                    "now": now,
                },
            )
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _missing(db: sqlite3.Connection, database: Database) -> list[migrate.Migration]:
    shipped = migrate.shipped(MIGRATIONS)
    tables = {name for (name,) in db.execute(SQL["tables"])}
    if tables and "migrations" not in tables:
        raise ConfigurationError(
            f"{database.path} is a database of another program", hint="give Ropeway a file of its own"
        )
    db.execute(SQL["create_migrations"])
    applied: dict[int, str] = dict(db.execute(SQL["applied"]).fetchall())
    newest = max(applied, default=0)
    if newest > len(shipped):
        raise ConfigurationError(
            f"{database.path} was written by a newer version of Ropeway (schema {newest}, known here: "
            f"{len(shipped)})",
            hint="upgrade this installation, or use another file",
        )
    return migrate.pending(shipped, applied)


def _statements(text: str) -> list[str]:
    """The statements of a file, one by one: `executescript` would commit the transaction first."""
    found, start = [], 0
    for end, character in enumerate(text, 1):
        if character == ";" and sqlite3.complete_statement(text[start:end]):
            found.append(text[start:end])
            start = end
    return found
