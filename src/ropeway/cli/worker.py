"""`ropeway worker`: run the tasks of an app. `ropeway dev`: the same while they are written, with reload."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropeway.cli import output
from ropeway.cli.options import Tenant, Url
from ropeway.core.errors import ConfigurationError

if TYPE_CHECKING:
    from ropeway.worker.options import WorkerOptions
    from ropeway.worker.program import Chores

#: As a port: none.
OFF = -1

App = Annotated[
    str | None,
    typer.Argument(
        metavar="[APP]", help="tasks.py, pkg.tasks or pkg.tasks:app; default ROPEWAY_APP.", show_default=False
    ),
]
Queues = Annotated[
    str, typer.Option("-q", "--queues", help="Which queues: a,b is strict order, mail:5,default are weights.")
]
Concurrency = Annotated[
    int | None,
    typer.Option("-c", "--concurrency", help="Jobs at once, per process; default 100.", show_default=False),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port", help="For /health, /ready and /metrics; 0 any, -1 none; default 9091.", show_default=False
    ),
]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="DEBUG, INFO, WARNING or ERROR.")]
LogFormat = Annotated[str | None, typer.Option("--log-format", help="auto, json or text.")]


def worker(
    app: App = None,
    queues: Queues = "default",
    concurrency: Concurrency = None,
    processes: Annotated[int, typer.Option("-p", "--processes", min=1, max=512, help="Child processes.")] = 1,
    caps: Annotated[
        list[str] | None,
        typer.Option("--max", help="At most so many of a queue at once, per process: --max mail=5."),
    ] = None,
    cpu_processes: Annotated[
        int | None,
        typer.Option("--cpu-processes", min=1, help="For tasks with process=True, per process; default: cores."),
    ] = None,
    max_jobs: Annotated[int, typer.Option("--max-jobs", min=0, help="Replace a child after so many jobs.")] = 0,
    max_memory: Annotated[
        int, typer.Option("--max-memory", min=0, help="Replace a child that holds more than so many MiB.")
    ] = 0,
    no_upkeep: Annotated[bool, typer.Option("--no-upkeep", help="Leave the maintenance loops to others.")] = False,
    lease_seconds: Annotated[
        float | None, typer.Option("--lease-seconds", help="How long a silent worker keeps its jobs; default 30.")
    ] = None,
    drain_seconds: Annotated[
        float | None, typer.Option("--drain-seconds", help="Time to finish when asked to stop; default 25.")
    ] = None,
    port: Port = None,
    url: Url = None,
    tenant: Tenant = "default",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run the tasks of an app.

    Ctrl-C or SIGTERM finishes what runs, a second one stops now; SIGTSTP (Ctrl-Z) stops claiming and SIGCONT goes
    on; SIGUSR1 prints what runs, with stacks.
    """
    from ropeway.worker.options import WorkerOptions, parse_caps, parse_queues, queue_name

    asked = parse_queues(queues)
    options = WorkerOptions(
        queues=asked,
        caps=dict(parse_caps(caps or [], [queue_name(queue) for queue in asked])),
        cpu_processes=cpu_processes or max(1, os.cpu_count() or 1),
        max_jobs=max_jobs,
        max_memory_bytes=max_memory << 20,
        tenant=tenant,
    )
    flags: dict[str, object] = {
        "url": url,
        "concurrency": concurrency,
        "worker_http_port": port,
        "lease_seconds": lease_seconds,
        "drain_seconds": drain_seconds,
        "log_level": log_level,
        "log_format": log_format,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    raise typer.Exit(_run(app, options, given, processes=processes, upkeep=not no_upkeep))


def dev(
    app: App = None,
    queues: Queues = "default",
    concurrency: Concurrency = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=-1,
            max=65_535,
            help="For the HTTP API; 0 any, -1 none; default 8000.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    log_level: LogLevel = None,
) -> None:
    """Run the tasks of an app while you write them, with the HTTP API beside them: the worker starts anew when a
    Python file changes.

    An app that cannot be imported is told, and tried again at the next change. Not for production.
    """
    from ropeway.worker.options import WorkerOptions, parse_queues

    if app is None and Path("tasks.py").is_file() and not os.environ.get("ROPEWAY_APP"):
        app = "tasks.py"
    flags: dict[str, object] = {
        "url": url,
        "concurrency": concurrency,
        "port": None if port == OFF else port,
        # Whatever is free, also when another worker runs on this host.
        "worker_http_port": OFF if port == OFF else None,
        "log_level": log_level,
        "log_format": "text",
        # A change should be seen soon: what runs has a moment to finish.
        "drain_seconds": 2.0,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    options = WorkerOptions(queues=parse_queues(queues))
    raise typer.Exit(_run(app, options, given, watch=True, beside=None if port == OFF else _api()))


def _api() -> Chores | None:
    """The API beside a worker, if what serves it is installed."""
    from ropeway.cli.server import beside_a_worker, check_installed

    try:
        check_installed()
    except ConfigurationError as error:
        output.note(f"No HTTP API: {error}")
        return None
    return beside_a_worker


def _run(
    app: str | None,
    options: WorkerOptions,
    flags: dict[str, object],
    *,
    processes: int = 1,
    upkeep: bool = True,
    watch: bool = False,
    beside: Chores | None = None,
) -> int:
    from ropeway.assembly import run_worker
    from ropeway.observability import logs
    from ropeway.runtime.loops import run_in_new_loop
    from ropeway.settings import Settings

    settings = Settings.load(flags)
    target = app or settings.app
    if target is None:
        raise ConfigurationError(
            "which app? name its file or module", hint="ropeway worker tasks.py, or set ROPEWAY_APP"
        )
    logs.configure(settings.log_level, settings.log_format)
    return run_in_new_loop(
        run_worker(target, options, flags, processes=processes, upkeep=upkeep, watch=watch, beside=beside)
    )
