"""`ropeway jobs list|show|explain|cancel|retry|tail`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropeway.cli import acting, completion, output, show, tail, values
from ropeway.cli.ids import Id, Ids, change_each, tell_changes
from ropeway.cli.options import DEFAULT, Json, Tenant, Url, use
from ropeway.cli.output import Column
from ropeway.core.query import DEFAULT_PAGE, JobFilter
from ropeway.core.states import State

if TYPE_CHECKING:
    from datetime import datetime

    from ropeway.cli.services import Services
    from ropeway.core.job import Job
    from ropeway.core.query import Order

app = typer.Typer(help="List jobs, look at one, cancel, retry, watch.", no_args_is_help=True)

Queue = Annotated[
    str | None, typer.Option("--queue", "-q", help="Only this queue.", autocompletion=completion.queues)
]
Type = Annotated[str | None, typer.Option("--type", help="Only this task.", autocompletion=completion.types)]
Status = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        "--state",
        "-s",
        help="Only these statuses; repeat, or use commas. Older words such as pending and failed are understood.",
        autocompletion=completion.states,
    ),
]
Since = Annotated[str | None, typer.Option("--since", metavar="WHEN", help="Created since: 2h, 7d, or a time.")]
Until = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Created before: 1h, or a time.")]
Tag = Annotated[str | None, typer.Option("--tag", help="Only jobs with this tag.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")]
All = Annotated[bool, typer.Option("--all", help="All of them, however many.")]
After = Annotated[str | None, typer.Option("--after", metavar="CURSOR", help="Go on where a list ended.")]


@app.command("list")
def list_jobs(
    queue: Queue = None,
    status: Status = None,
    type: Type = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only the job with this idempotency key.")] = None,
    since: Since = None,
    until: Until = None,
    tag: Tag = None,
    error: Annotated[str | None, typer.Option("--error", help="Only with this text in the last error.")] = None,
    limit: Limit = DEFAULT_PAGE,
    everything: All = False,
    after: After = None,
    url: Url = None,
    tenant: Tenant = DEFAULT,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    states = values.states(status or [])

    async def work(services: Services) -> None:
        now = await services.now()
        where = JobFilter(
            queue=queue,
            type=type,
            states=states,
            idempotency_key=key,
            error=error,
            created_after=None if since is None else values.past(since, "--since", now),
            created_before=None if until is None else values.past(until, "--until", now),
            tag=tag,
        )
        await show_list(
            services, where, order="newest", limit=None if everything else limit, after=after, as_json=as_json
        )

    use(url, tenant, work)


async def show_list(
    services: Services, where: JobFilter, *, order: Order, limit: int | None, after: str | None, as_json: bool
) -> None:
    """Print what a filter finds, page by page: also of millions only one page is in memory."""
    rows = _JsonRows() if as_json else _TableRows(await services.now(), dead=order == "died")
    found, more = 0, None
    async for page in services.jobs.pages(where, order=order, limit=limit, after=after):
        found += len(page.jobs)
        more = page.next
        rows.add(page.jobs)
    rows.end(more)
    if not as_json and not found:
        await _tell_nothing(services, where, dead=order == "died")
    elif not as_json and more is not None:
        output.note(f"{output.one_of(found, 'job')} shown, there are more: --all, or --after {more}")


class _JsonRows:
    """One JSON document, written as the pages come."""

    def __init__(self) -> None:
        self._empty = True

    def add(self, jobs: Sequence[Job]) -> None:
        from ropeway.wire.objects import job_object

        for job in jobs:
            # No line break can be inside a JSON string, so this only moves lines to the right.
            indented = output.pretty_json(job_object(job)).replace("\n", "\n    ")
            output.say_raw(('{\n  "jobs": [\n    ' if self._empty else ",\n    ") + indented)
            self._empty = False

    def end(self, more: str | None) -> None:
        opening = '{\n  "jobs": [' if self._empty else "\n  "
        cursor = "null" if more is None else f'"{more}"'
        output.say_raw(f'{opening}],\n  "next_cursor": {cursor}\n}}\n')


class _TableRows:
    def __init__(self, now: datetime, *, dead: bool) -> None:
        self._now = now
        self._dead = dead
        self._header = True

    def add(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            return
        row = self._dead_row if self._dead else self._row
        ids = output.shown_ids([job.id for job in jobs])
        rows = [row(id, job) for id, job in zip(ids, jobs, strict=True)]
        output.show_table(_DEAD_COLUMNS if self._dead else _COLUMNS, rows, header=self._header)
        self._header = False

    def end(self, more: str | None) -> None:
        pass

    def _row(self, id: str, job: Job) -> list[Any]:
        tries = f"{job.attempts}/{job.max_attempts}"
        return [id, output.status_text(job.state), job.type, job.queue, tries, _when(job, self._now)]

    def _dead_row(self, id: str, job: Job) -> list[Any]:
        error = job.last_error
        told = "-" if error is None else f"{error.type}: {error.message}"
        return [id, job.type, job.queue, output.ago(job.dead_at, self._now), job.dead_reason or "-", told]


_COLUMNS = (
    Column("ID"),
    Column("STATUS"),
    Column("TYPE", flex=True),
    Column("QUEUE", flex=True),
    Column("RUNS", right=True),
    Column("WHEN"),
)
_DEAD_COLUMNS = (
    Column("ID"),
    Column("TYPE", flex=True),
    Column("QUEUE", flex=True),
    Column("DIED"),
    Column("REASON", flex=True, least=8),
    Column("ERROR", flex=True, least=8),
)


def _when(job: Job, now: datetime) -> str:
    """The time that matters most in its state."""
    if job.state in (State.SCHEDULED, State.RETRYING):
        return output.ago(job.run_at, now)
    if job.state is State.RUNNING:
        return output.ago(job.started_at, now)
    return output.ago(job.finished_at or job.created_at, now)


async def _tell_nothing(services: Services, where: JobFilter, *, dead: bool) -> None:
    """Say that nothing was found, and whether a name was mistyped."""
    from ropeway.service.names import near

    text = "No dead jobs" if dead else "No jobs"
    if where != JobFilter():
        text += " match"
    if where.queue is not None and (meant := near(where.queue, await services.names.queues())):
        text += f": there is no queue {where.queue!r}, did you mean {meant}?"
    elif where.type is not None and (meant := near(where.type, await services.names.types())):
        text += f": no job of type {where.type!r} is known, did you mean {meant}?"
    else:
        text += "."
    output.note(text)


@app.command("show")
def show_job(id: Id, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Show everything about a job: attempts, events, progress, log, result, and why it died."""

    async def work(services: Services) -> None:
        detail = await services.jobs.detail(await services.jobs.starting_with(id))
        show.show(detail, await services.now(), as_json=as_json)

    use(url, tenant, work)


@app.command("explain")
def explain_job(id: Id, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Say why a job is not running, how many are before it and when its turn may come."""

    async def work(services: Services) -> None:
        from ropeway.service.explain import explain

        found = await explain(services.engine, await services.jobs.starting_with(id), tenant)
        if as_json:
            from ropeway.wire.objects import time_or_none

            reasons = [
                {"code": reason.code, "message": reason.message, "until": time_or_none(reason.until)}
                for reason in found.reasons
            ]
            output.say_json(
                {
                    "id": str(found.id),
                    "status": found.state.value,
                    "reasons": reasons,
                    "ahead": found.ahead,
                    "expected_start": time_or_none(found.expected_start),
                }
            )
            return
        output.say(f"{found.id} is {found.state.value}.")
        for reason in found.reasons:
            output.say(reason.message)
        if found.expected_start is not None:
            output.say(f"It may start {output.both(found.expected_start, await services.now())}.")

    use(url, tenant, work)


@app.command("cancel")
def cancel_jobs(ids: Ids, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Cancel jobs that have not ended. A running one is stopped at its worker's next heartbeat."""

    async def work(services: Services) -> None:
        answers = await change_each(services, ids, services.jobs.cancel, action="job.cancel")
        tell_changes(answers, "cancelled", as_json=as_json)

    use(url, tenant, work)


@app.command("retry")
def retry_jobs(ids: Ids, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Run dead or cancelled jobs again, with a fresh budget of attempts."""

    async def work(services: Services) -> None:
        verb = partial(services.jobs.retry, by=acting.actor())
        answers = await change_each(services, ids, verb, action="job.retry")
        tell_changes(answers, "retried", as_json=as_json)

    use(url, tenant, work)


app.command("tail")(tail.tail)
