"""`ropeway audit`: what operators did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropeway.cli import output, values
from ropeway.cli.options import DEFAULT, Json, Tenant, Url, use
from ropeway.cli.output import Column
from ropeway.core.auditlog import ActionFilter
from ropeway.core.query import DEFAULT_PAGE, MAX_PAGE

if TYPE_CHECKING:
    from datetime import datetime

    from ropeway.cli.services import Services
    from ropeway.core.auditlog import Action


def _complete_action(incomplete: str) -> list[str]:
    from ropeway.service.actions import ACTIONS

    return [action for action in ACTIONS if action.startswith(incomplete)]


def audit(
    actor: Annotated[str | None, typer.Option("--actor", help="Only by them, such as cli:ada.")] = None,
    action: Annotated[
        str | None,
        typer.Option("--action", help="Only these, such as queue.pause.", autocompletion=_complete_action),
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="WHEN", help="Since: 2h, 7d, or a time.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Before: 1h, or a time.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = DEFAULT_PAGE,
    after: Annotated[
        int | None, typer.Option("--after", metavar="CURSOR", min=1, help="Go on where a list ended.")
    ] = None,
    url: Url = None,
    tenant: Tenant = DEFAULT,
    as_json: Json = False,
) -> None:
    """List what operators did, over HTTP or by commands, newest first."""

    async def work(services: Services) -> None:
        now = await services.now()
        where = ActionFilter(
            actor=actor,
            action=action,
            after=None if since is None else values.past(since, "--since", now),
            before=None if until is None else values.past(until, "--until", now),
        )
        found, more = await _read(services, where, limit, after)
        if as_json:
            from ropeway.wire.objects import action_object

            output.say_json({"entries": [action_object(one) for one in found], "next_cursor": more})
            return
        if not found:
            output.note("No actions." if where == ActionFilter() else "No actions match.")
            return
        output.show_table(_COLUMNS, [_row(one, now) for one in found])
        if more is not None:
            output.note(f"{output.one_of(len(found), 'action')} shown, there are more: --after {more}")

    use(url, tenant, work)


async def _read(
    services: Services, where: ActionFilter, limit: int, before_n: int | None
) -> tuple[list[Action], str | None]:
    """Up to `limit` of them, and where to go on if there are more."""
    found: list[Action] = []
    while len(found) <= limit:
        size = min(MAX_PAGE, limit + 1 - len(found))
        page = await services.actions.page(where, size, found[-1].n if found else before_n)
        found += page
        if len(page) < size:
            break
    more = str(found[limit - 1].n) if len(found) > limit else None
    return found[:limit], more


_COLUMNS = (
    Column("WHEN"),
    Column("ACTOR", flex=True, least=10),
    Column("ACTION"),
    Column("TARGET", flex=True, least=10),
    Column("COUNT", right=True),
)


def _row(action: Action, now: datetime) -> list[Any]:
    count = "-" if action.count is None else f"{action.count:,}"
    return [output.ago(action.at, now), action.actor, action.action, action.target, count]
