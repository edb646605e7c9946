"""`ropeway migrate status|up|sql|events`: the schema of a PostgreSQL engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console

from ropeway.core.errors import ConfigurationError
from ropeway.engines.open import engine_for
from ropeway.settings import Settings

if TYPE_CHECKING:
    from ropeway.engines.postgres.migrating import PostgresMigrations

T = TypeVar("T")

app = typer.Typer(help="Make and update the tables of a PostgreSQL engine.", no_args_is_help=True)
console = Console(highlight=False)


class Routine(StrEnum):
    """Whether the steps that go well are logged."""

    ON = "on"
    OFF = "off"


Url = Annotated[str | None, typer.Option("--url", help="The engine's URL; default ROPEWAY_URL.")]
Schema = Annotated[str | None, typer.Option("--schema", help="The schema; default ROPEWAY_SCHEMA or ropeway.")]


@app.command()
def status(url: Url = None, schema: Schema = None) -> None:
    """Say which migrations are applied. Exits 1 when some are missing."""
    found = _with_migrations(url, schema, lambda migrations: migrations.status())
    for name in found.applied:
        console.print(f"applied  {name}")
    for name in found.pending:
        console.print(f"missing  {name}")
    if found.pending:
        console.print("Run: ropeway migrate up")
        raise typer.Exit(1)


@app.command()
def up(url: Url = None, schema: Schema = None) -> None:
    """Apply what is missing. Safe to run at any time, also while an older version is at work."""
    done = _with_migrations(
        url, schema, lambda migrations: migrations.up(lambda name: console.print(f"applying {name}"))
    )
    console.print(f"Applied {len(done)} migration(s)." if done else "Nothing to do: the schema is up to date.")


@app.command()
def sql(url: Url = None, schema: Schema = None) -> None:
    """Print the SQL of all migrations, for those who apply it by hand."""

    async def text(migrations: PostgresMigrations) -> str:
        return migrations.text()

    typer.echo(_with_migrations(url, schema, text), nl=False)


@app.command()
def events(
    routine: Annotated[Routine | None, typer.Argument(help="on or off; left out: say which it is.")] = None,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Log every step of every job (on, the default), or only what goes wrong and what operators do (off).

    Off makes each job cheaper. Histories, streams and rates then know nothing of jobs that went well; their states
    and results are kept as ever. All processes on the store follow at once.
    """

    async def turn(migrations: PostgresMigrations) -> bool:
        if routine is not None:
            await migrations.log_routine(routine is Routine.ON)
        return await migrations.logs_routine()

    if _with_migrations(url, schema, turn):
        console.print("Events: every step of every job is logged.")
    else:
        console.print("Events: only what goes wrong is logged, and what operators do.")


def _with_migrations(url: str | None, schema: str | None, use: Callable[[PostgresMigrations], Awaitable[T]]) -> T:
    flags = {name: value for name, value in (("url", url), ("schema", schema)) if value is not None}
    engine = engine_for(Settings.load(flags))
    if engine.name != "postgres":
        why = "the server looks after its own store" if engine.name == "remote" else "it makes its tables itself"
        raise ConfigurationError(
            f"the {engine.name} engine needs no migrations: {why}",
            hint="migrate is for a postgresql:// URL",
        )

    async def run() -> T:
        from ropeway.engines.postgres import PostgresEngine

        assert isinstance(engine, PostgresEngine)  # noqa: S101 - its name says so
        try:
            return await use(engine.migrations)
        finally:
            await engine.close()

    return asyncio.run(run())
