"""What the buttons do to many jobs: to those that were picked, to all that a filter finds, to the dead of a group.
All of it is asked first, with the number of jobs; the yes is to so many, and to none that came later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from ropeway.core import fields
from ropeway.core.errorgroups import is_fingerprint
from ropeway.core.errors import FieldError, RopewayError
from ropeway.core.query import JobFilter
from ropeway.dashboard import words
from ropeway.dashboard.acting import may_act, unknown
from ropeway.dashboard.asking import FILTERS, filter_of
from ropeway.dashboard.confirming import Asked, ask, asked_of, is_confirmed
from ropeway.service.bulk import MOST_AT_ONCE, Bulk
from ropeway.service.dead import DeadJobs
from ropeway.service.jobs import Jobs
from ropeway.service.steps import ended_by

if TYPE_CHECKING:
    from starlette.responses import Response

    from ropeway.dashboard.frame import Visit

#: Jobs that may be picked one by one.
MOST_PICKED = 500
#: Groups of dead jobs that the page names before they are replayed.
MOST_NAMED = 20

_AGAIN = "They run again with a fresh budget of attempts."
_ENDED = "Those that run are ended as well: their workers learn it at their next heartbeat."


async def bulk(visit: Visit) -> Response:
    """Cancel or retry the jobs that were picked, or all that a filter finds."""
    may_act(visit)
    verb = visit.form.one("verb")
    if verb not in ("cancel", "retry"):
        raise unknown(verb)
    ids = _picked(visit)
    if ids:
        return await _bulk_picked(visit, verb, ids)
    _require_pick(visit)
    return await _bulk_found(visit, verb)


async def _bulk_picked(visit: Visit, verb: str, ids: list[UUID]) -> Response:
    if not is_confirmed(visit):
        return await _ask_picked(visit, verb, ids)
    service = Jobs(visit.engine, tenant=visit.tenant)
    if verb == "cancel":
        answers = await service.cancel(ids)
    else:
        answers = await service.retry(ids, by=visit.viewer.principal.actor)
    done = [str(answer.id) for answer in answers if not isinstance(answer, RopewayError)]
    if done:
        await visit.note(f"job.{verb}", *done)
    return await visit.back(_told(verb, len(done), skipped=len(ids) - len(done)), "ui/jobs")


async def _ask_picked(visit: Visit, verb: str, ids: list[UUID]) -> Response:
    service = Bulk(visit.engine, tenant=visit.tenant)
    good = await (service.cancellable(ids) if verb == "cancel" else service.retriable(ids))
    lines = [_ENDED if verb == "cancel" else _AGAIN]
    if len(good) < len(ids):
        lines.append(f"The state of {len(ids) - len(good):,} of those picked does not allow it.")
    return ask(
        visit,
        f"{verb.capitalize()} {_number(len(good))}?",
        page="jobs",
        action="ui/jobs/bulk",
        label=f"{verb.capitalize()} {_number(len(good))}" if good else None,
        otherwise="ui/jobs",
        fields=[("verb", verb), *_fields("id", map(str, good))],
        lines=lines,
        danger=verb == "cancel",
    )


async def _bulk_found(visit: Visit, verb: str) -> Response:
    filters = {name: value for name, value in visit.form.mapping().items() if name in FILTERS and value}
    where = filter_of(filters)
    service = Bulk(visit.engine, tenant=visit.tenant)
    asked = asked_of(visit)
    if asked is None:
        return await _ask_found(visit, service, verb, filters, where)
    most = min(asked.number, MOST_AT_ONCE)
    if verb == "cancel":
        report = await service.cancel(where, limit=most, asked_at=asked.at)
    else:
        report = await service.retry(where, limit=most, asked_at=asked.at, by=visit.viewer.principal.actor)
    if report.done:
        target = " ".join(f"{name}={filters[name]}" for name in FILTERS if name in filters) or "all jobs"
        await visit.note(f"job.{verb}", target, count=report.done)
    # Where a search has to go on, the store cannot tell that there is no more of what was counted.
    more = report.more and asked.number > most
    told = _told(verb, report.done, more=more, broken_off=report.broken_off)
    return await visit.back(told, "ui/jobs")


async def _ask_found(
    visit: Visit, service: Bulk, verb: str, filters: dict[str, str], where: JobFilter
) -> Response:
    at = await service.now()
    count = await (service.count_cancellable(where) if verb == "cancel" else service.count_retriable(where))
    number = _number(count.number, capped=count.capped)
    return ask(
        visit,
        f"{verb.capitalize()} {number}?",
        page="jobs",
        action="ui/jobs/bulk",
        label=f"{verb.capitalize()} {number}" if count.number else None,
        otherwise="ui/jobs",
        fields=[("verb", verb), *filters.items(), *Asked(at, count.number).fields()],
        lines=[_which(verb, filters), *_in_goes(count.number)],
        danger=verb == "cancel",
    )


def _which(verb: str, filters: dict[str, str]) -> str:
    if filters:
        return f"Those with {', '.join(f'{name} {words.clipped(value, 100)}' for name, value in filters.items())}."
    kind = "that have not ended" if verb == "cancel" else "that died or were cancelled"
    return f"No filter is set: these are all jobs {kind}."


# ── Dead jobs ──


async def replay(visit: Visit) -> Response:
    """Dead jobs: those that were picked, those of groups, or all of a queue."""
    may_act(visit)
    ids = _picked(visit)
    fingerprints = list(dict.fromkeys(visit.form.all("fingerprint")))
    if ids and fingerprints:
        raise FieldError("pick jobs or groups, not both", pointer="/fingerprint", code="conflicting_fields")
    if not all(map(is_fingerprint, fingerprints)):
        # Before anything is done: what is done must be noted.
        raise FieldError("that is no group of dead jobs", pointer="/fingerprint", hint="load the page again")
    if ids:
        return await _replay_picked(visit, ids)
    if not fingerprints:
        _require_pick(visit)
    return await _replay_groups(visit, fingerprints)


async def _replay_picked(visit: Visit, ids: list[UUID]) -> Response:
    service = DeadJobs(visit.engine, tenant=visit.tenant)
    if not is_confirmed(visit):
        found = await service.retry(ids, dry_run=True)
        left = {one.id for one in found.skipped}
        lines = [_AGAIN]
        if left:
            lines.append(f"{_number(len(left))} of those picked cannot be replayed any more.")
        good = [str(id) for id in ids if id not in left]
        return _ask_replay(visit, found.matched, fields=_fields("id", good), lines=lines)
    report = await service.retry(ids, by=visit.viewer.principal.actor)
    skipped = {one.id for one in report.skipped}
    if report.retried:
        await visit.note("dlq.retry", *(str(id) for id in ids if id not in skipped))
    return await visit.back(_told("retry", report.retried, skipped=len(skipped)), "ui/dead")


async def _replay_groups(visit: Visit, fingerprints: list[str]) -> Response:
    """With no groups all there are, of the queue that is named or of every one."""
    service = DeadJobs(visit.engine, tenant=visit.tenant)
    queue = visit.form.one("queue") or None
    asked = asked_of(visit)
    if asked is None:
        return await _ask_groups(visit, service, queue, fingerprints)
    report = await service.retry_groups(
        ended_by(JobFilter(queue=queue), asked.at),
        fingerprints,
        limit=min(asked.number, MOST_AT_ONCE),
        by=visit.viewer.principal.actor,
    )
    if report.retried:
        target = ", ".join(fingerprints) if fingerprints else f"all of {queue or 'every queue'}"
        await visit.note("dlq.retry", target, count=report.retried)
    told = _told("retry", report.retried, more=report.more, broken_off=report.broken_off)
    return await visit.back(told, "ui/dead")


async def _ask_groups(visit: Visit, service: DeadJobs, queue: str | None, fingerprints: list[str]) -> Response:
    at = await Bulk(visit.engine, tenant=visit.tenant).now()
    found = await service.groups(queue)
    groups = [group for group in found.groups if not fingerprints or group.fingerprint in fingerprints]
    count = sum(group.count for group in groups)
    lines = [_AGAIN, f"Those of {queue} only."] if queue else [_AGAIN]
    return _ask_replay(
        visit,
        count,
        capped=not found.complete,
        fields=[("queue", queue or ""), *_fields("fingerprint", fingerprints), *Asked(at, count).fields()],
        lines=[*lines, *_in_goes(count, capped=not found.complete)],
        listed=[f"{group.count:,} × {group.type}: {group.message}" for group in groups[:MOST_NAMED]],
    )


def _ask_replay(
    visit: Visit,
    count: int,
    *,
    fields: list[tuple[str, str]],
    lines: list[str],
    listed: Sequence[str] = (),
    capped: bool = False,
) -> Response:
    return ask(
        visit,
        f"Replay {_number(count, capped=capped, kind='dead ')}?",
        page="dead",
        action="ui/dead/replay",
        label=f"Replay {_number(count, capped=capped)}" if count else None,
        otherwise="ui/dead",
        fields=fields,
        lines=lines,
        listed=listed,
    )


# ── What was picked, and the words ──


def _picked(visit: Visit) -> list[UUID]:
    ids = [fields.parse_id(text) for text in visit.form.all("id") if text]
    if len(ids) > MOST_PICKED:
        raise FieldError(f"at most {MOST_PICKED} jobs can be picked at once", pointer="/id")
    return list(dict.fromkeys(ids))


def _require_pick(visit: Visit) -> None:
    """A form of check boxes of which none is checked: it must not stand for all there are."""
    if visit.form.one("what") == "picked":
        raise FieldError("nothing was picked", pointer="/id", hint="go back and pick what you mean")


def _fields(name: str, values: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, value) for value in values]


def _number(count: int, *, capped: bool = False, kind: str = "") -> str:
    return f"{words.number(count, capped=capped)} {kind}{'job' if count == 1 else 'jobs'}"


def _in_goes(count: int, *, capped: bool = False) -> list[str]:
    """What to say of more jobs than one go takes."""
    too_many = count > MOST_AT_ONCE or (capped and count == MOST_AT_ONCE)
    return [f"One go takes the first {MOST_AT_ONCE:,}."] if too_many else []


def _told(verb: str, done: int, *, skipped: int = 0, more: bool = False, broken_off: bool = False) -> str:
    what = "cancelled" if verb == "cancel" else "run again"
    left = f"; the state of {skipped:,} did not allow it" if skipped else ""
    if broken_off:
        rest = " Then the store did not answer: do it again for the rest."
    else:
        rest = " There are more: do it again for the next." if more else ""
    return f"{_number(done)} {what}{left}.{rest}"
