"""`ropeway queues list|pause|resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropeway.cli import completion, output
from ropeway.cli.options import DEFAULT, Json, Tenant, Url, use
from ropeway.cli.output import Column
from ropeway.core.states import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ropeway.cli.services import Services
    from ropeway.core.query import QueueStats

app = typer.Typer(help="See what queues hold; pause and resume them.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="The queue.", show_default=False, autocompletion=completion.queues),
]

#: In this order; the others only where there is something to count.
_ALWAYS = (State.QUEUED, State.RUNNING, State.RETRYING, State.SCHEDULED, State.DEAD)
_SOMETIMES = (State.WAITING, State.SUCCEEDED)
_MOST = 10_000


@app.command("list")
def list_queues(url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """List queues with the number of jobs in each status and the age of the oldest that could run."""

    async def work(services: Services) -> None:
        found = await services.queues.all()
        if as_json:
            from ropeway.wire.objects import queue_object

            output.say_json({"queues": [queue_object(stats) for stats in found]})
        elif not found:
            output.note("No queues: none holds jobs or is paused.")
        else:
            _show(found)

    use(url, tenant, work)


def _show(found: list[QueueStats]) -> None:
    states = [
        *_ALWAYS,
        *(state for state in _SOMETIMES if any(stats.counts.get(state) for stats in found)),
    ]
    columns = [
        Column("QUEUE", flex=True, least=8),
        *(Column(state.value.upper(), right=True) for state in states),
        Column("OLDEST", right=True),
    ]
    output.show_table(columns, [_row(stats, states) for stats in found])


def _row(stats: QueueStats, states: list[State]) -> list[Any]:
    oldest = stats.oldest_age_seconds
    age = "-" if oldest is None else output.span(oldest)
    name = output.coloured(f"{stats.queue} (paused)", "yellow") if stats.paused else stats.queue
    return [name, *(_count(stats, state) for state in states), age]


def _count(stats: QueueStats, state: State) -> str:
    count = stats.counts.get(state, 0)
    return f"{count:,}+" if stats.counts_capped and count >= _MOST else f"{count:,}"


@app.command("pause")
def pause(
    queue: Name,
    force: Annotated[bool, typer.Option("--force", help="Also a queue that has no jobs yet.")] = False,
    url: Url = None,
    tenant: Tenant = DEFAULT,
    as_json: Json = False,
) -> None:
    """Let workers take no more jobs from a queue. What runs, runs on; new jobs wait."""
    _change(lambda services: services.queues.pause(queue, unknown=force), "paused", url, tenant, as_json=as_json)


@app.command("resume")
def resume(queue: Name, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Let workers take jobs from a queue again."""
    _change(lambda services: services.queues.resume(queue), "resumed", url, tenant, as_json=as_json)


def _change(
    verb: Callable[[Services], Awaitable[QueueStats]], did: str, url: str | None, tenant: str, *, as_json: bool
) -> None:
    stats = use(url, tenant, verb)
    if as_json:
        from ropeway.wire.objects import queue_object

        output.say_json(queue_object(stats))
    else:
        waiting = stats.counts.get(State.QUEUED, 0)
        output.say(f"{did} {stats.queue} ({output.one_of(waiting, 'job')} queued)")
