"""Numbered migrations: what there is, what is applied, what is missing. Knows no SQL and no database."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec

from ropeway.core.errors import ConfigurationError

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql\Z")

#: A first line that says: this file's statements must each run outside a transaction (CREATE INDEX CONCURRENTLY).
OUTSIDE_TRANSACTION = "-- outside a transaction"


class Migration(msgspec.Struct, frozen=True):
    """One numbered file. The checksum is of the text as shipped, before its holes are filled."""

    number: int
    name: str
    text: str
    checksum: str

    @property
    def in_transaction(self) -> bool:
        return not self.text.startswith(OUTSIDE_TRANSACTION)


@cache
def shipped(package: str) -> tuple[Migration, ...]:
    """The migrations of one engine, in order, numbered 1, 2, 3 ... without gaps."""
    found = []
    for entry in files(package).iterdir():
        match = _FILE.match(entry.name)
        if match:
            text = entry.read_text(encoding="utf-8")
            checksum = hashlib.sha256(text.encode()).hexdigest()[:16]
            found.append(Migration(int(match[1]), match[2], text, checksum))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"{package}: migrations must be numbered 1, 2, 3 ... without gaps")
    return tuple(found)


def pending(migrations: tuple[Migration, ...], applied: Mapping[int, str]) -> list[Migration]:
    """What is still to be applied, given the checksums of what is.

    A newer schema than this version knows is fine (versions N and N-1 share one schema); a file that was changed
    after it was applied is not.
    """
    for migration in migrations:
        checksum = applied.get(migration.number)
        if checksum is not None and checksum != migration.checksum:
            raise ConfigurationError(
                f"migration {migration.number:04} ({migration.name}) was applied with another text",
                hint="the schema was made by another build of Ropeway; install that build, or start a new schema",
            )
    return [migration for migration in migrations if migration.number not in applied]
