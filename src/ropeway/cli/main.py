"""`ropeway`: the commands, and one-line errors for people."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console

from ropeway.cli import demo, migrate
from ropeway.core.errors import ConfigurationError, EngineError, RopewayError

#: Exit codes: 0 done, 1 it failed, 2 it was called wrongly or set up wrongly, 3 the store is away.
FAILED, CALLED_WRONGLY, STORE_AWAY = 1, 2, 3

app = typer.Typer(
    name="ropeway",
    help="Durable background jobs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(migrate.app, name="migrate")
app.command("demo")(demo.demo)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"ropeway {version('ropeway')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable background jobs."""


def main() -> None:
    """Run a command. What goes wrong is told in one line, with what to do; never as a traceback."""
    try:
        app()
    except RopewayError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"ropeway: {error}", markup=False)
        sys.exit(_exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _exit_code(error: RopewayError) -> int:
    if isinstance(error, ConfigurationError):
        return CALLED_WRONGLY
    return STORE_AWAY if isinstance(error, EngineError) else FAILED
