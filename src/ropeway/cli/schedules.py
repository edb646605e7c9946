"""`ropeway schedules list|show|pause|resume|run|delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ropeway.cli import acting, completion, output
from ropeway.cli.options import DEFAULT, Json, Tenant, Url, use
from ropeway.cli.output import Column

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from ropeway.cli.services import Services
    from ropeway.core.schedule import NewSchedule, Schedule

app = typer.Typer(help="See recurring jobs; pause, resume, run them now, delete them.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The schedule.", show_default=False, autocompletion=completion.schedules),
]

#: Coming instants that `show` tells.
COMING = 5


@app.command("list")
def list_schedules(url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """List schedules with their next and last runs."""

    async def work(services: Services) -> None:
        found = await services.schedules.all()
        if as_json:
            from ropeway.wire.objects import schedule_object

            output.say_json({"schedules": [schedule_object(schedule) for schedule in found]})
        elif not found:
            output.note("No schedules. @app.cron declares one; a worker that runs the app stores it.")
        else:
            _show_all(found, await services.now())

    use(url, tenant, work)


def _show_all(found: list[Schedule], now: datetime) -> None:
    columns = (
        Column("NAME", flex=True, least=8),
        Column("CRON", flex=True, least=9),
        Column("ZONE", flex=True, least=6),
        Column("TYPE", flex=True, least=8),
        Column("NEXT"),
        Column("LAST"),
    )
    rows = [
        [
            schedule.name,
            schedule.spec.cron,
            schedule.spec.tz,
            schedule.spec.type,
            output.coloured("paused", "yellow") if schedule.spec.paused else output.ago(schedule.next_run_at, now),
            output.ago(schedule.last_run_at, now),
        ]
        for schedule in found
    ]
    output.show_table(columns, rows)


@app.command("show")
def show_schedule(name: Name, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Show a schedule, its payload and the next times it fires."""

    async def work(services: Services) -> None:
        schedule = await services.schedules.get(name)
        if as_json:
            from ropeway.wire.objects import schedule_object

            output.say_json(schedule_object(schedule))
        else:
            _show(schedule, services.schedules.coming(schedule, COMING), await services.now())

    use(url, tenant, work)


def _show(schedule: Schedule, coming: list[datetime], now: datetime) -> None:
    from rich.table import Table

    spec = schedule.spec
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("name", spec.name)
    grid.add_row("cron", output.cell(f"{spec.cron}  ({spec.tz})"))
    grid.add_row("status", output.coloured("paused", "yellow") if spec.paused else "active")
    grid.add_row("makes", output.cell(f"{spec.type} in {spec.queue}, priority {spec.priority}"))
    grid.add_row("runs", f"at most {spec.max_attempts} per job, {_timeout(spec.timeout)}")
    for label, text in _options(spec):
        grid.add_row(label, output.cell(text))
    grid.add_row("missed", _MISSED[spec.missed])
    grid.add_row("declared", "in code" if spec.source == "code" else "through the API")
    grid.add_row("payload", output.cell(spec.payload.decode()))
    grid.add_row("last", output.both(schedule.last_run_at, now))
    if schedule.last_job_id is not None:
        grid.add_row("last job", str(schedule.last_job_id))
    for place, at in enumerate(coming):
        grid.add_row("" if place else "next", output.both(at, now))
    output.console().print(grid)


def _timeout(seconds: float) -> str:
    return f"each {seconds:g} s at most" if seconds else "without a timeout"


def _options(spec: NewSchedule) -> list[tuple[str, str]]:
    """What its jobs have beyond the usual, for people."""
    told = []
    if (retry := spec.retry) is not None:
        waits = f"from {retry.base:g} s to {retry.cap:g} s, times {retry.factor:g}, jitter {retry.jitter:g}"
        told.append(("retries", f"{waits} ({retry.shape})"))
    if (rule := spec.unique) is not None:
        what = "the same arguments" if rule.by == "args" else f"the key {rule.key}"
        within = "" if rule.within is None else f", within {rule.within:g} s"
        told.append(("unique", f"one job with {what}{within}, while {', '.join(sorted(rule.blocking_states))}"))
    if spec.expires_in is not None:
        told.append(("expires", f"unless started within {spec.expires_in:g} s"))
    if spec.tags:
        told.append(("tags", ", ".join(spec.tags)))
    if spec.headers:
        told.append(("headers", ", ".join(f"{name}: {value}" for name, value in spec.headers.items())))
    return told


_MISSED = {
    "skip": "skip: an instant that was missed is left out",
    "once": "once: missed instants are made up for by one run",
    "all": "all: every missed instant is made up for",
}


@app.command("pause")
def pause(name: Name, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Let a schedule fire no more until it is resumed."""
    _change(lambda services: services.schedules.pause(name), "pause", url, tenant, as_json=as_json)


@app.command("resume")
def resume(name: Name, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Let a schedule fire again."""
    _change(lambda services: services.schedules.resume(name), "resume", url, tenant, as_json=as_json)


def _change(
    verb: Callable[[Services], Awaitable[Schedule]], word: str, url: str | None, tenant: str, *, as_json: bool
) -> None:
    async def work(services: Services) -> None:
        schedule = await verb(services)
        await acting.note(services, f"schedule.{word}", schedule.name)
        if as_json:
            from ropeway.wire.objects import schedule_object

            output.say_json(schedule_object(schedule))
            return
        following = (
            "" if schedule.spec.paused else f", next {output.both(schedule.next_run_at, await services.now())}"
        )
        output.say(f"{_DID[word]} {schedule.name}{following}")

    use(url, tenant, work)


_DID = {"pause": "paused", "resume": "resumed"}


@app.command("run")
def run(name: Name, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Make a schedule's job now, besides its times, and print the job's id."""

    async def work(services: Services) -> None:
        job = await services.schedules.run(name)
        await acting.note(services, "schedule.run", name)
        if as_json:
            from ropeway.wire.objects import job_object

            output.say_json(job_object(job))
        else:
            output.say(str(job.id))

    use(url, tenant, work)


@app.command("delete")
def delete(name: Name, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Delete a schedule, also one that cannot be read here. A worker whose code declares it stores it again."""

    async def work(services: Services) -> None:
        await services.schedules.delete(name)
        await acting.note(services, "schedule.delete", name)
        if as_json:
            output.say_json({"name": name, "deleted": True})
        else:
            output.say(f"deleted {name}")

    use(url, tenant, work)
