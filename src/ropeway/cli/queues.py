"""`ropeway queues list|pause|resume|set`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import UNSET, UnsetType

from ropeway.cli import acting, completion, output, values
from ropeway.cli.options import DEFAULT, Json, Tenant, Url, use
from ropeway.cli.output import Column
from ropeway.core.errors import FieldError
from ropeway.core.states import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ropeway.cli.services import Services
    from ropeway.core.query import QueueSettings, QueueStats
    from ropeway.service.queues import Queues

app = typer.Typer(help="See what queues hold; pause, resume and set them.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="The queue.", show_default=False, autocompletion=completion.queues),
]

#: In this order; the others only where there is something to count.
_ALWAYS = (State.QUEUED, State.RUNNING, State.RETRYING, State.SCHEDULED, State.DEAD)
_SOMETIMES = (State.WAITING, State.SUCCEEDED)


@app.command("list")
def list_queues(url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """List queues with the number of jobs in each status and the age of the oldest that could run."""

    async def work(services: Services) -> None:
        found = await services.queues.all()
        if as_json:
            from ropeway.wire.objects import queue_object

            output.say_json({"queues": [queue_object(stats) for stats in found]})
        elif not found:
            output.note("No queues: none holds jobs, is paused or has settings.")
        else:
            _show(found)

    use(url, tenant, work)


def _show(found: list[QueueStats]) -> None:
    states = [
        *_ALWAYS,
        *(state for state in _SOMETIMES if any(stats.counts.get(state) for stats in found)),
    ]
    limited = any(stats.settings.depth_limit is not None for stats in found)
    columns = [
        Column("QUEUE", flex=True, least=8),
        *(Column(state.value.upper(), right=True) for state in states),
        Column("OLDEST", right=True),
        *([Column("LIMIT", right=True)] if limited else []),
    ]
    rows = [[*_row(stats, states), *([_limit(stats)] if limited else [])] for stats in found]
    output.show_table(columns, rows)


def _row(stats: QueueStats, states: list[State]) -> list[Any]:
    oldest = stats.oldest_age_seconds
    age = "-" if oldest is None else output.span(oldest)
    name = output.coloured(f"{stats.queue} (paused)", "yellow") if stats.paused else stats.queue
    return [name, *(_count(stats, state) for state in states), age]


def _count(stats: QueueStats, state: State) -> str:
    count = stats.counts.get(state, 0)
    return f"{count:,}+" if count and state in stats.capped else f"{count:,}"


def _limit(stats: QueueStats) -> str:
    limit = stats.settings.depth_limit
    return "-" if limit is None else f"{limit:,}"


@app.command("pause")
def pause(
    queue: Name,
    force: Annotated[bool, typer.Option("--force", help="Also a queue that has no jobs yet.")] = False,
    url: Url = None,
    tenant: Tenant = DEFAULT,
    as_json: Json = False,
) -> None:
    """Let workers take no more jobs from a queue. What runs, runs on; new jobs wait."""
    _change(queue, "pause", lambda queues: queues.pause(queue, unknown=force), url, tenant, as_json=as_json)


@app.command("resume")
def resume(queue: Name, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Let workers take jobs from a queue again."""
    _change(queue, "resume", lambda queues: queues.resume(queue), url, tenant, as_json=as_json)


@app.command("set")
def set_queue(
    queue: Name,
    depth_limit: Annotated[
        str | None,
        typer.Option(
            "--depth-limit", metavar="N", help="Refuse jobs beyond so many that have not ended; or none."
        ),
    ] = None,
    require_key: Annotated[
        bool | None,
        typer.Option("--require-key/--no-require-key", help="Take only jobs with an idempotency key, or any."),
    ] = None,
    lease_seconds: Annotated[
        str | None,
        typer.Option(
            "--lease-seconds", metavar="TIME", help="How long leases over HTTP are unless asked; or none."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also a queue that has no jobs yet.")] = False,
    url: Url = None,
    tenant: Tenant = DEFAULT,
    as_json: Json = False,
) -> None:
    """Set what the HTTP server heeds when it takes jobs for a queue. Not given: as it was."""
    if depth_limit is None and require_key is None and lease_seconds is None:
        raise FieldError("nothing to set", hint="--depth-limit, --require-key or --lease-seconds")
    limit = _number_or_none(depth_limit)
    seconds: float | UnsetType | None = UNSET
    if lease_seconds is not None:
        seconds = None if lease_seconds == "none" else values.seconds(lease_seconds, "--lease-seconds")

    def change(queues: Queues) -> Awaitable[QueueSettings]:
        return queues.set(
            queue,
            depth_limit=limit,
            require_key=UNSET if require_key is None else require_key,
            lease_seconds=seconds,
            unknown=force,
        )

    _change(queue, "set", change, url, tenant, as_json=as_json)


def _number_or_none(text: str | None) -> int | UnsetType | None:
    if text is None:
        return UNSET
    if text == "none":
        return None
    digits = text.replace("_", "").replace(",", "")
    if not digits.isascii() or not digits.isdigit():
        raise FieldError(f"--depth-limit: {text!r} is not a number", hint="such as 10000, or none to take it away")
    return int(digits)


_DID = {"pause": "paused", "resume": "resumed", "set": "set"}


def _change(
    queue: str,
    word: str,
    verb: Callable[[Queues], Awaitable[object]],
    url: str | None,
    tenant: str,
    *,
    as_json: bool,
) -> None:
    async def work(services: Services) -> QueueStats:
        await verb(services.queues)
        await acting.note(services, f"queue.{word}", queue)
        return await services.queues.stats(queue)

    stats = use(url, tenant, work)
    if as_json:
        from ropeway.wire.objects import queue_object

        output.say_json(queue_object(stats))
    elif word == "set":
        output.say(f"set {stats.queue}: {_told(stats.settings)}")
    else:
        waiting = stats.counts.get(State.QUEUED, 0)
        output.say(f"{_DID[word]} {stats.queue} ({output.one_of(waiting, 'job')} queued)")


def _told(settings: QueueSettings) -> str:
    limit, lease = settings.depth_limit, settings.lease_seconds
    return ", ".join(
        (
            "any number of jobs" if limit is None else f"at most {output.one_of(limit, 'job')}",
            "each needs a key" if settings.require_key else "no key needed",
            "leases as asked for" if lease is None else f"leases of {lease:g} s",
        )
    )
