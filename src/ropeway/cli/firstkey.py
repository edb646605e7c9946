"""The way in after a first start: a key for a store that has none, in a file that only its owner can read."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ropeway.core.errors import ConfigurationError

if TYPE_CHECKING:
    from ropeway.settings import Settings

#: What makes the key: it and its text, or None when there are keys already.
Make = Callable[[], Awaitable[tuple[Any, str] | None]]


def place_of(settings: Settings) -> Path:
    """Where the first key of a store is put: beside a SQLite file, otherwise among the user's own settings."""
    parts = urlsplit(settings.url)
    if parts.scheme == "sqlite":
        from ropeway.engines.open import sqlite_path

        path = Path(sqlite_path(settings.url))
        return path.with_name(f"{path.name}.token")
    config = os.environ.get("XDG_CONFIG_HOME")
    folder = Path(config) if config else Path.home() / ".config"
    store = "-".join(part for part in (parts.hostname or "", parts.path.strip("/"), settings.schema) if part)
    name = "memory" if parts.scheme == "memory" else re.sub(r"[^A-Za-z0-9._-]+", "-", store)
    return folder / "ropeway" / f"{name}.token"


async def write_first_key(place: Path, make: Make) -> bool:
    """Make a key if the store has none, and put its text into `place`. Whether it was made.

    The file is there, and ours alone, before there is a key: one that nobody can read is worth nothing.
    """
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        put_secret(draft, "")
    except OSError as error:
        raise ConfigurationError(
            f"the first key cannot be written to {place}: {error.strerror or error}",
            hint="make a key yourself with `ropeway keys create NAME --scope ...`, or start from another folder",
        ) from error
    try:
        made = await make()
        if made is None:
            return False
        draft.write_text(made[1] + "\n", encoding="ascii")
        draft.replace(place)
        return True
    finally:
        draft.unlink(missing_ok=True)


def put_secret(file: Path, text: str) -> None:
    """A new file that only its owner can read: nobody can have opened it before, or made it lead elsewhere."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as handle:
        handle.write(text)
