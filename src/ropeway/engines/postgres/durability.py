"""Checked at start: a server that could forget what it accepted is refused unless that was asked for (G1)."""

from __future__ import annotations

from ropeway.core.errors import ConfigurationError
from ropeway.engines.postgres.connection import Channel

OLDEST_VERSION = 15

_SETTINGS = """
SELECT current_setting('server_version_num')::integer / 10000 AS version,
       current_setting('server_encoding') AS encoding, current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit
"""
_DURABLE = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "remote_apply"),
}


async def check_server(channel: Channel, *, relaxed: bool) -> None:
    """Raise ConfigurationError, saying what to change, unless version, encoding and settings will do."""
    (row,) = await channel.fetch(_SETTINGS, writes=False)
    if row["version"] < OLDEST_VERSION:
        raise ConfigurationError(f"PostgreSQL {row['version']} is too old", hint="use 15 or later")
    if row["encoding"] != "UTF8":
        raise ConfigurationError(
            f"the database's encoding is {row['encoding']}", hint="create it with ENCODING 'UTF8'"
        )
    weak = [f"{name}={row[name]}" for name, good in _DURABLE.items() if row[name] not in good]
    if weak and not relaxed:
        raise ConfigurationError(
            f"the server may forget accepted jobs: {', '.join(weak)}",
            hint="put that right, or ask for ROPEWAY_DURABILITY=relaxed",
        )
