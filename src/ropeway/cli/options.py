"""The options that every command about a store has, and how it is opened for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import urlsplit

import typer

from ropeway.core import fields
from ropeway.core.errors import ConfigurationError
from ropeway.core.job import DEFAULT_TENANT
from ropeway.settings import Settings

if TYPE_CHECKING:
    from ropeway.cli.services import Services

T = TypeVar("T")

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Where jobs are kept; default ROPEWAY_URL or ./ropeway.db."),
]
Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose jobs.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def use(url: str | None, tenant: str, work: Callable[[Services], Awaitable[T]], *, makes_store: bool = False) -> T:
    """Open the store that the settings name, do `work` with it, close it.

    Only a command that puts something in may make a store (`makes_store`); one that looks says that there is none.
    """
    settings = Settings.load({"url": url})
    fields.check_name(tenant, "tenant")
    check_place(settings, makes_store=makes_store)

    async def run() -> T:
        # Late: an engine and its driver are a good part of the time that a command takes to start.
        from ropeway.cli.services import Services
        from ropeway.engines.open import engine_for

        async with engine_for(settings) as engine:
            return await work(Services(engine, tenant))

    return asyncio.run(run())


def check_place(settings: Settings, *, makes_store: bool) -> None:
    """Refuse a store that a command cannot see, and one that is not there."""
    scheme = urlsplit(settings.url).scheme
    if scheme == "memory":
        raise ConfigurationError(
            "memory:// lives inside one process, so no command can see it",
            hint="use sqlite:///ropeway.db to share jobs between processes",
        )
    if scheme == "sqlite" and not makes_store:
        from ropeway.engines.open import sqlite_path

        path = Path(sqlite_path(settings.url))
        if not path.exists():
            raise ConfigurationError(
                f"there is no store at {settings.url}",
                hint=f"the first `ropeway enqueue` or `ropeway worker` makes it; {_says(settings)}",
            )


def _says(settings: Settings) -> str:
    source = settings.sources.get("url", "default")
    if source == "default":
        return "if your jobs are elsewhere, say so with --url or ROPEWAY_URL"
    return f"that URL comes from {source}"


DEFAULT = DEFAULT_TENANT
