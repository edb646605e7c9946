"""`ropeway dead list|show|retry`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ropeway.cli import output, show, values
from ropeway.cli.ids import Id, change_each, tell_changes
from ropeway.cli.jobs import After, All, Limit, Queue, Since, Tag, Type, Until, show_list
from ropeway.cli.options import DEFAULT, Json, Tenant, Url, use
from ropeway.core.errors import FieldError, InvalidState
from ropeway.core.query import DEFAULT_PAGE, JobFilter
from ropeway.core.states import DeadReason, State

if TYPE_CHECKING:
    from ropeway.cli.services import Services
    from ropeway.service.dead import Retried

app = typer.Typer(help="Look at dead jobs and run them again after the fix.", no_args_is_help=True)


def _complete_reason(incomplete: str) -> list[str]:
    return [reason.value for reason in DeadReason if reason.value.startswith(incomplete)]


Error = Annotated[str | None, typer.Option("--error", help="Only with this text in the last error.")]
Reason = Annotated[
    str | None,
    typer.Option("--reason", help=f"Only this reason: {' '.join(DeadReason)}.", autocompletion=_complete_reason),
]


@app.command("list")
def list_dead(
    queue: Queue = None,
    type: Type = None,
    error: Error = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    tag: Tag = None,
    limit: Limit = DEFAULT_PAGE,
    everything: All = False,
    after: After = None,
    url: Url = None,
    tenant: Tenant = DEFAULT,
    as_json: Json = False,
) -> None:
    """List dead jobs, newest death first. --since and --until go by the time of death."""
    died_for = _reason(reason)

    async def work(services: Services) -> None:
        where = await _filter(services, queue, type, error, died_for, since, until, tag)
        await show_list(
            services, where, order="died", limit=None if everything else limit, after=after, as_json=as_json
        )

    use(url, tenant, work)


@app.command("show")
def show_dead(id: Id, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Show everything about a dead job, and why it died."""

    async def work(services: Services) -> None:
        detail = await services.jobs.detail(await services.jobs.starting_with(id))
        if detail.job.state is not State.DEAD:
            raise InvalidState(
                f"job {detail.job.id} is not dead but {detail.job.state.value}", hint="see ropeway jobs show"
            )
        show.show(detail, await services.now(), as_json=as_json)

    use(url, tenant, work)


@app.command("retry")
def retry_dead(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Job ids; their beginnings are enough.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead jobs.")] = False,
    queue: Queue = None,
    type: Type = None,
    error: Error = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    tag: Tag = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="How many at most.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be retried.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    tenant: Tenant = DEFAULT,
    as_json: Json = False,
) -> None:
    """Run dead jobs again: those with these ids, or all that the options name.

    A retry by options says how many jobs it will touch and asks, unless --yes.
    """
    options = [queue, type, error, reason, since, until, tag]
    narrowed = any(option is not None for option in options)
    if ids and (narrowed or everything):
        raise FieldError("give ids or options, not both", code="conflicting_fields")
    if not ids and not narrowed and not everything:
        raise FieldError("which ones? Give ids, --all, or options such as --queue", hint="ropeway dead list")
    if ids and dry_run:
        raise FieldError("--dry-run goes with options, not with ids", hint="ropeway dead show ID")
    died_for = _reason(reason)

    async def by_ids(services: Services) -> None:
        answers = await change_each(services, ids or [], lambda found: services.jobs.retry(found, by="cli"))
        tell_changes(answers, "retried", as_json=as_json)

    async def by_filter(services: Services) -> None:
        where = await _filter(services, queue, type, error, died_for, since, until, tag)
        planned = await services.dead.retry_where(where, limit=limit, dry_run=True)
        if dry_run or planned.matched == 0:
            _tell(planned, as_json=as_json)
            return
        if not yes:
            _ask(planned, quiet=as_json)
        _tell(await services.dead.retry_where(where, limit=limit, by="cli"), as_json=as_json)

    use(url, tenant, by_ids if ids else by_filter)


def _ask(planned: Retried, *, quiet: bool) -> None:
    number = _number(planned)
    if quiet or not sys.stdin.isatty():
        raise FieldError(f"this would retry {number}: say --yes", hint="or --dry-run to only count them")
    if not typer.confirm(f"Retry {number}?", err=True):
        output.note("Nothing was changed.")
        raise typer.Exit(1)


def _number(report: Retried) -> str:
    from ropeway.service.dead import MOST_COUNTED

    # Beyond the most that are counted there may be more; a limit of the caller's own is exact.
    more = "+" if report.dry_run and report.matched >= MOST_COUNTED else ""
    return f"{report.matched:,}{more} dead {'job' if report.matched == 1 else 'jobs'}"


def _tell(report: Retried, *, as_json: bool) -> None:
    if as_json:
        output.say_json(
            {
                "matched": report.matched,
                "retried": report.retried,
                "skipped": [],
                "more": report.more,
                "dry_run": report.dry_run,
            }
        )
    elif report.matched == 0:
        output.note("No dead jobs match.")
    else:
        output.say(f"{'would retry' if report.dry_run else 'retried'} {_number(report)}")


def _reason(word: str | None) -> DeadReason | None:
    if word is None:
        return None
    try:
        return DeadReason(word)
    except ValueError:
        from ropeway.service.names import did_you_mean

        hint = did_you_mean(word, DeadReason) or f"one of {', '.join(DeadReason)}"
        raise FieldError(f"unknown reason {word[:64]!r}", hint=hint) from None


async def _filter(
    services: Services,
    queue: str | None,
    type: str | None,
    error: str | None,
    reason: DeadReason | None,
    since: str | None,
    until: str | None,
    tag: str | None,
) -> JobFilter:
    now = await services.now()
    return JobFilter(
        queue=queue,
        type=type,
        error=error,
        reason=reason,
        finished_after=None if since is None else values.past(since, "--since", now),
        finished_before=None if until is None else values.past(until, "--until", now),
        tag=tag,
    )
