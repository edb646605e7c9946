"""`ropeway dead list|show|groups|retry`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ropeway.cli import acting, output, show, values
from ropeway.cli.ids import Id, change_each, tell_changes
from ropeway.cli.jobs import After, All, Limit, Queue, Since, Tag, Type, Until, show_list
from ropeway.cli.options import DEFAULT, Json, Tenant, Url, use
from ropeway.cli.output import Column
from ropeway.core.errors import FieldError, InvalidState
from ropeway.core.query import DEFAULT_PAGE, JobFilter
from ropeway.core.states import DeadReason, State

if TYPE_CHECKING:
    from ropeway.cli.services import Services
    from ropeway.service.dead import DeadGroup, Retried

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


@app.command("groups")
def groups(queue: Queue = None, url: Url = None, tenant: Tenant = DEFAULT, as_json: Json = False) -> None:
    """Put the newest dead jobs together by what killed them, the largest group first."""

    async def work(services: Services) -> None:
        found = await services.dead.groups(queue)
        if as_json:
            output.say_json(
                {"groups": [_group_object(group) for group in found.groups], "complete": found.complete}
            )
            return
        if not found.groups:
            output.note("No dead jobs.")
            return
        now = await services.now()
        rows = [
            [
                group.fingerprint,
                f"{group.count:,}",
                output.ago(group.last_at, now),
                str(group.sample_id),
                f"{group.type}: {group.message}",
            ]
            for group in found.groups
        ]
        output.show_table(_GROUP_COLUMNS, rows)
        if not found.complete:
            output.note(f"Only the newest {found.looked_at:,} dead jobs were looked at; there are more.")

    use(url, tenant, work)


_GROUP_COLUMNS = (
    Column("GROUP"),
    Column("JOBS", right=True),
    Column("LAST"),
    Column("NEWEST", flex=True, least=18),
    Column("ERROR", flex=True, least=8),
)


def _group_object(group: DeadGroup) -> dict[str, object]:
    from ropeway.core.events import rfc3339

    return {
        "fingerprint": group.fingerprint,
        "type": group.type,
        "message": group.message,
        "count": group.count,
        "first_at": rfc3339(group.first_at),
        "last_at": rfc3339(group.last_at),
        "sample_id": str(group.sample_id),
    }


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
    group: Annotated[
        str | None, typer.Option("--group", metavar="FINGERPRINT", help="Only this group; see `dead groups`.")
    ] = None,
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
    options = [queue, type, error, reason, since, until, tag, group]
    narrowed = any(option is not None for option in options)
    if ids and (narrowed or everything):
        raise FieldError("give ids or options, not both", code="conflicting_fields")
    if not ids and not narrowed and not everything:
        raise FieldError("which ones? Give ids, --all, or options such as --queue", hint="ropeway dead list")
    if ids and dry_run:
        raise FieldError("--dry-run goes with options, not with ids", hint="ropeway dead show ID")
    died_for = _reason(reason)

    async def by_ids(services: Services) -> None:
        verb = partial(services.jobs.retry, by=acting.actor())
        answers = await change_each(services, ids or [], verb, action="dlq.retry")
        tell_changes(answers, "retried", as_json=as_json)

    async def by_filter(services: Services) -> None:
        where = await _filter(services, queue, type, error, died_for, since, until, tag)
        planned = await services.dead.retry_where(where, fingerprint=group, limit=limit, dry_run=True)
        if dry_run or planned.matched == 0:
            _tell(planned, as_json=as_json)
            return
        if not yes:
            _ask(planned, quiet=as_json)
        report = await services.dead.retry_where(where, fingerprint=group, limit=limit, by=acting.actor())
        await acting.note(services, "dlq.retry", _asked(where, group), report.retried)
        _tell(report, as_json=as_json)

    use(url, tenant, by_ids if ids else by_filter)


def _asked(where: JobFilter, group: str | None) -> str:
    """A filter in words, for the log of actions."""
    given = {**msgspec.structs.asdict(where), "fingerprint": group}
    told = [f"{name}={value}" for name, value in given.items() if value is not None]
    return " ".join(told) or "all"


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
                "skipped": [{"id": str(one.id), "code": one.code} for one in report.skipped],
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
