"""`ropeway`: the commands, and one-line errors for people."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ropeway.cli import (
    audit,
    dead,
    demo,
    enqueue,
    init,
    jobs,
    keys,
    migrate,
    output,
    queues,
    schedules,
    server,
    settings,
    tenants,
    upkeep,
    worker,
    workers,
)
from ropeway.core.errors import (
    ConfigurationError,
    EngineError,
    InputError,
    NotSupported,
    PayloadError,
    RopewayError,
)

#: What a command's exit code means; docs/cli.md and --help say the same.
DONE, FAILED, CALLED_WRONGLY, STORE_AWAY, INTERRUPTED = 0, 1, 2, 3, 130

_CODES = (
    "Exit codes: 0 done; 1 it failed, or what was named is not there; 2 called or set up wrongly; "
    "3 the store is away; 130 Ctrl-C."
)

app = typer.Typer(
    name="ropeway",
    help="Durable background jobs.",
    epilog=_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init")(init.init)
app.command("dev")(worker.dev)
app.command("worker")(worker.worker)
app.command("server")(server.server)
app.command("enqueue", cls=enqueue.EnqueueCommand)(enqueue.enqueue)
app.add_typer(jobs.app, name="jobs")
app.add_typer(queues.app, name="queues")
app.add_typer(dead.app, name="dead")
app.add_typer(schedules.app, name="schedules")
app.add_typer(workers.app, name="workers")
app.add_typer(tenants.app, name="tenants")
app.add_typer(keys.app, name="keys")
app.command("audit")(audit.audit)
app.add_typer(migrate.app, name="migrate")
app.command("settings")(settings.settings)
app.command("upkeep")(upkeep.upkeep)
app.command("demo")(demo.demo)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        output.say(f"ropeway {version('ropeway')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable background jobs."""


#: Typer brings its own copy of click or uses the installed one, as its version has it; this is the right one's.
_ClickError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main() -> None:
    """Run a command as its own process."""
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            # A terminal that cannot show a character shows a ? instead of ending the command.
            reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def _open_missing_streams() -> None:
    """A caller may have closed stdout or stderr; what is printed then goes nowhere, and no other file takes their
    numbers."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(number)
        except OSError:
            if (opened := os.open(os.devnull, os.O_RDWR)) != number:
                os.dup2(opened, number)
                os.close(opened)
            # `open` takes the lowest free number, mostly this one, and closes it for whatever we start.
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. What goes wrong is told in one line, never as a traceback."""
    try:
        code = app(list(arguments), prog_name="ropeway", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except (output.ReaderGone, BrokenPipeError):
        return _reader_gone()
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Abort:
        output.note("Nothing was changed.")
        return INTERRUPTED
    except typer.Exit as exit:
        return exit.exit_code
    except RopewayError as error:
        output.complain(_told(error))
        return _exit_code(error)
    except OSError as error:
        # A full disk, a folder that may not be read: what the system says is what there is to say.
        where = f"{error.filename}: " if error.filename else ""
        output.complain(f"{where}{error.strerror or error}")
        return FAILED
    except _ClickError as error:
        return _called_wrongly(error)
    except Exception as error:
        # The last door: a person gets a sentence, not a stack.
        if os.environ.get("ROPEWAY_DEBUG"):
            raise
        output.complain(f"this is a bug in Ropeway: {type(error).__name__}: {error} (ROPEWAY_DEBUG=1 shows where)")
        return FAILED


def _told(error: RopewayError) -> str:
    if isinstance(error, PayloadError):
        return f"payload{f' at {error.pointer}' if error.pointer else ''}: {error}"
    return str(error)


def _exit_code(error: RopewayError) -> int:
    if isinstance(error, ConfigurationError | InputError | NotSupported):
        return CALLED_WRONGLY
    return STORE_AWAY if isinstance(error, EngineError) else FAILED


def _called_wrongly(error: Any) -> int:
    """What the parser refused: one line, and where to read on."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return CALLED_WRONGLY
    command = "ropeway" if context is None else context.command_path
    told = re.sub(r" ?\(Possible options: (.*)\)", r". Did you mean \1?", error.format_message())
    output.complain(f"{told.rstrip('.')} (see {command} --help)")
    return CALLED_WRONGLY


def _reader_gone() -> int:
    """Whoever read has seen enough. Python would complain once more when it closes stdout."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    return DONE
