"""URL → engine, loaded by name so that drivers stay optional."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ropeway.core.decide import Rules
from ropeway.core.errors import ConfigurationError
from ropeway.core.retry import retry_policy
from ropeway.engines.protocol import Engine, EngineRules

if TYPE_CHECKING:
    from ropeway.settings import Settings

KNOWN = "sqlite:///file.db, postgresql://user@host/database, http://server:8000, memory://"


def engine_rules(settings: Settings) -> EngineRules:
    """The rules that engines follow, from the settings."""
    policy = retry_policy(
        base=settings.retry_base,
        factor=settings.retry_factor,
        cap=settings.retry_cap,
        jitter=settings.retry_jitter,
    )
    return EngineRules(
        decisions=Rules(crash_limit=settings.crash_limit, retry=policy),
        ageing_seconds=settings.ageing_seconds,
        idempotency_window=settings.idempotency_ttl,
        keep_succeeded=settings.keep_succeeded,
        keep_cancelled=settings.keep_cancelled,
        keep_dead=settings.keep_dead,
        keep_events=settings.keep_events,
        keep_actions=settings.keep_actions,
        max_payload_bytes=settings.max_payload_bytes,
    )


def engine_for(settings: Settings, *, serving: bool = False) -> Engine:
    """The engine that the settings name, not yet opened.

    `serving`: behind each call somebody waits for the answer to a request. A store that others can hold up ends
    such a call after a few seconds.
    """
    rules = engine_rules(settings)
    scheme = urlsplit(settings.url).scheme
    match scheme:
        case "memory":
            memory: Engine = _load("memory").MemoryEngine(rules)
            return memory
        case "sqlite":
            sqlite: Engine = _load("sqlite").SqliteEngine(
                sqlite_path(settings.url), rules, durability=settings.durability
            )
            return sqlite
        case "postgresql" | "postgres":
            room = _load("postgres")
            postgres: Engine = room.PostgresEngine(
                settings.url,
                rules,
                schema=settings.schema,
                listen_url=settings.listen_url,
                durability=settings.durability,
                bounds=room.REQUESTS if serving else None,
            )
            return postgres
        case "http" | "https":
            remote: Engine = _load("remote").RemoteEngine(settings.url, settings.token)
            return remote
    raise ConfigurationError(
        f"no engine for a URL that starts with {scheme or 'nothing'!r}", hint=f"use one of {KNOWN}"
    )


def sqlite_path(url: str) -> str:
    """The file of a `sqlite:///` URL: three slashes and a relative path, four and an absolute one."""
    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if parts.netloc or not path:
        raise ConfigurationError(
            "a SQLite URL names a file after three slashes", hint="for example sqlite:///ropeway.db"
        )
    return path


def _load(room: str) -> Any:
    try:
        return import_module(f"ropeway.engines.{room}")
    except ModuleNotFoundError as error:
        if error.name == "asyncpg":
            raise ConfigurationError(
                "the PostgreSQL driver is not installed", hint="pip install 'ropeway[postgres]'"
            ) from None
        raise
