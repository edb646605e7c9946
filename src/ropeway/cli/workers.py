"""`ropeway workers list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from ropeway.cli import output
from ropeway.cli.options import DEFAULT, Json, Tenant, Url, use
from ropeway.cli.output import Column

if TYPE_CHECKING:
    from datetime import datetime

    from ropeway.cli.services import Services
    from ropeway.core.fleet import WorkerInfo

app = typer.Typer(help="See who is at work.", no_args_is_help=True)


@app.command("list")
def list_workers(url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """List the workers that were heard of within the last minute."""

    async def work(services: Services) -> None:
        found = await services.fleet.workers()
        if as_json:
            from ropeway.wire.objects import worker_object

            output.say_json({"workers": [worker_object(worker) for worker in found]})
        elif not found:
            output.note("No workers. Start one with `ropeway worker`.")
        else:
            _show(found, await services.now())

    use(url, tenant, work)


def _show(found: list[WorkerInfo], now: datetime) -> None:
    columns = (
        Column("WORKER", flex=True, least=10),
        Column("STATE"),
        Column("BUSY", right=True),
        Column("QUEUES", flex=True, least=8),
        Column("MEMORY", right=True),
        Column("UP", right=True),
        Column("SEEN"),
    )
    output.show_table(columns, [_row(worker, now) for worker in found])


def _row(worker: WorkerInfo, now: datetime) -> list[Any]:
    memory = "-" if worker.rss_bytes is None else f"{worker.rss_bytes / 1_048_576:,.0f} MiB"
    up = "-" if worker.started_at is None else output.span((now - worker.started_at).total_seconds())
    state = worker.state if worker.state == "running" else output.coloured(worker.state, "yellow")
    busy = f"{worker.running}/{worker.slots}"
    seen = output.ago(worker.seen_at, now)
    return [worker.id, state, busy, output.joined(worker.queues), memory, up, seen]
