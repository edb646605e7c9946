"""`ropeway jobs tail [ID]`: events as they happen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from ropeway.cli import completion, output, show, values
from ropeway.cli.options import DEFAULT, Json, Tenant, Url, use
from ropeway.core.errors import EngineError, FieldError
from ropeway.core.joblog import LogLine
from ropeway.core.states import EventName

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropeway.cli.services import Services
    from ropeway.core.events import Event
    from ropeway.core.job import Progress


def _complete_event(incomplete: str) -> list[str]:
    return [name.value for name in EventName if name.value.startswith(incomplete)]


def tail(
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="Only this job: all of its past, then what comes, until it ends.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Only this queue.", autocompletion=completion.queues)
    ] = None,
    type: Annotated[
        str | None, typer.Option("--type", help="Only this task.", autocompletion=completion.types)
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", "--state", "-s", help="Only events that led there.", autocompletion=completion.states
        ),
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option("--event", help="Only these events, such as job.dlq or dlq.", autocompletion=_complete_event),
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--all", help="Begin with the oldest event that is kept, not now.")
    ] = False,
    after: Annotated[
        str | None, typer.Option("--after", metavar="POSITION", help="Go on where a tail was stopped.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after so many events.")] = None,
    url: Url = None,
    tenant: Tenant = DEFAULT,
    as_json: Json = False,
) -> None:
    """Print events as they happen, one line each, until Ctrl-C. Waits for a store that goes away."""
    if from_start and after is not None:
        raise FieldError("give --all or --after, not both", code="conflicting_fields")
    wanted = _wanted(queue, type, status or [], event or [])

    async def work(services: Services) -> None:
        if id is not None:
            await _follow_job(services, id, wanted, limit, as_json=as_json)
            return
        start = after if after is not None or from_start else await services.events.now()
        await _follow(services, start, wanted, limit, as_json=as_json)

    use(url, tenant, work)


def _wanted(queue: str | None, type: str | None, status: list[str], events: list[str]) -> Callable[[Event], bool]:
    states = values.states(status)
    names = frozenset(_event_name(word) for text in events for word in text.split(",") if word) or None

    def wanted(event: Event) -> bool:
        return (
            (queue is None or event.queue == queue)
            and (type is None or event.type == type)
            and (states is None or event.state in states)
            and (names is None or event.event in names)
        )

    return wanted


def _event_name(word: str) -> EventName:
    name = word.strip().lower()
    try:
        return EventName(name if name.startswith("job.") else f"job.{name}")
    except ValueError:
        from ropeway.service.names import did_you_mean

        short = [known.value.removeprefix("job.") for known in EventName]
        hint = did_you_mean(name.removeprefix("job."), short) or f"one of {', '.join(short)}"
        raise FieldError(f"unknown event {word[:64]!r}", hint=hint) from None


def _away(error: EngineError) -> None:
    output.note(f"The store is away, waiting for it: {error}")


async def _follow(
    services: Services,
    position: str | None,
    wanted: Callable[[Event], bool],
    limit: int | None,
    *,
    as_json: bool,
) -> None:
    left = limit
    try:
        async for page in services.events.follow(position, away=_away):
            for event in page.events:
                if wanted(event) and left != 0:
                    _print(event, as_json=as_json, with_id=True)
                    left = None if left is None else left - 1
            position = page.position
            if left == 0:
                return
    except asyncio.CancelledError:
        # Ctrl-C. What was printed of the last page may come again, nothing is left out.
        if position is not None:
            output.note(f"To go on from here: ropeway jobs tail --after {position}")
        raise


async def _follow_job(
    services: Services, id: str, wanted: Callable[[Event], bool], limit: int | None, *, as_json: bool
) -> None:
    left = limit
    found = await services.jobs.starting_with(id)
    async for news in services.events.follow_job(found, away=_away):
        # Both have the store's times: what a handler said stands between the events round it.
        items: list[Event | LogLine] = [*news.events, *news.logs]
        for item in sorted(items, key=_time):
            if isinstance(item, LogLine):
                _print_line(str(found), item, as_json=as_json)
            elif wanted(item) and left != 0:
                _print(item, as_json=as_json, with_id=False)
                left = None if left is None else left - 1
        if news.progress is not None:
            _print_progress(str(found), news.progress, as_json=as_json)
        if left == 0:
            return


def _time(item: Event | LogLine) -> float:
    return 0.0 if item.at is None else item.at.timestamp()


def _print(event: Event, *, as_json: bool, with_id: bool) -> None:
    if as_json:
        from ropeway.wire.objects import event_object

        output.say_json_line(event_object(event))
        return
    out = output.console()
    line = output.cell("")
    line.append(output.exact(event.at)[11:-1], style="dim")
    line.append("  ")
    name = event.event.value.removeprefix("job.")
    line.append_text(output.coloured(f"{name:<11}", output.colour_of(event.state)))
    if with_id:
        # Enough of the id to go on with; wide terminals and pipes get all of it.
        line.append(f"  {output.shown_ids([event.job_id])[0]}")
        line.append_text(output.cell(f"  {event.type}"))
    line.append_text(output.cell(f"  {show.event_note(event)}"))
    out.print(line, no_wrap=True, overflow="ellipsis", crop=True)


def _print_line(id: str, line: LogLine, *, as_json: bool) -> None:
    if as_json:
        from ropeway.wire.objects import log_object

        output.say_json_line({"event": "job.log", "job_id": id, "data": log_object(line)})
    else:
        output.say(output.plain(f"{output.exact(line.at)[11:-1]}  {line.level:<11}  {_flat(line.message)}"))


def _print_progress(id: str, progress: Progress, *, as_json: bool) -> None:
    if as_json:
        from ropeway.wire.objects import progress_object

        output.say_json_line({"event": "job.progress", "job_id": id, "data": progress_object(progress)})
    else:
        text = show.progress_text(progress)
        output.say(output.plain(f"{output.exact(progress.at)[11:-1]}  {'progress':<11}  {_flat(text)}"))


def _flat(text: str) -> str:
    return " ".join(text.splitlines())
