"""One job in full, for people or programs."""

from __future__ import annotations

import signal
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ropeway.cli import output
from ropeway.cli.output import Column
from ropeway.core.states import CancelReason, DeadReason, EventName, State

if TYPE_CHECKING:
    from rich.console import Console

    from ropeway.core.events import Attempt, Event
    from ropeway.core.job import Job, Progress
    from ropeway.service.jobs import JobDetail

#: Lines of a payload, result or traceback, and log lines, that are shown; --json has all.
MOST_LINES = 30

_WHY_DEAD = {
    DeadReason.MAX_ATTEMPTS: "it failed and has no attempts left",
    DeadReason.REJECTED: "its failure was not to be retried",
    DeadReason.CRASH_LIMIT: "it lost its worker too often",
    DeadReason.BAD_PAYLOAD: "its payload is not JSON that can be kept",
}
_WHY_CANCELLED = {
    CancelReason.REQUESTED: "someone asked for it",
    CancelReason.EXPIRED: "it was not started in time",
}


def show(detail: JobDetail, now: datetime, *, as_json: bool) -> None:
    if as_json:
        from ropeway.wire.objects import detail_object

        output.say_json(detail_object(detail.job, detail.attempts, detail.events, detail.logs))
        return
    out = output.console()
    _facts(out, detail.job, now)
    _json(out, "Payload", detail.job.payload)
    if detail.job.state is State.SUCCEEDED:
        _json(out, "Result", detail.job.result or b"null")
    _error(out, detail)
    _attempts(out, detail.attempts)
    _logs(out, detail)
    _events(out, detail.events)


# ── Facts ──


def _facts(out: Console, job: Job, now: datetime) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("id", str(job.id))
    status = output.status_text(job.state)
    status.append(_why(job, now))
    grid.add_row("status", status)
    grid.add_row("type", output.cell(job.type))
    grid.add_row("queue", output.cell(f"{job.queue}, priority {job.priority}"))
    grid.add_row("runs", _runs(job))
    grid.add_row("created", output.both(job.created_at, now))
    if job.state in (State.SCHEDULED, State.RETRYING, State.QUEUED):
        grid.add_row("run at", output.both(job.run_at, now))
    for title, at in (("started", job.started_at), ("finished", job.finished_at), ("expires", job.expires_at)):
        if at is not None:
            grid.add_row(title, output.both(at, now))
    if job.locked_by is not None:
        grid.add_row("worker", output.cell(f"{job.locked_by}, lease until {output.both(job.locked_until, now)}"))
    if job.progress is not None:
        grid.add_row("progress", output.cell(progress_text(job.progress)))
    grid.add_row("timeout", "none" if job.timeout == 0 else output.took(job.timeout))
    if job.idempotency_key is not None:
        grid.add_row("key", output.cell(job.idempotency_key))
    if job.tags:
        grid.add_row("tags", output.cell(", ".join(job.tags)))
    for name, value in job.headers.items():
        grid.add_row("header", output.cell(f"{name}: {value}"))
    out.print(grid)


def _why(job: Job, now: datetime) -> str:
    if job.dead_reason is not None:
        return f": {_WHY_DEAD[job.dead_reason]} ({job.dead_reason.value})"
    if job.cancel_reason is not None:
        return f": {_WHY_CANCELLED[job.cancel_reason]} ({job.cancel_reason.value})"
    if job.state is State.RETRYING:
        return f": it failed and runs again {output.ago(job.run_at, now)}"
    return ""


def _runs(job: Job) -> str:
    text = f"{job.attempts} of {job.max_attempts} used"
    if job.attempt != job.attempts:
        text += f", {job.attempt} started in all"
    if job.lease_lost_count:
        text += f", {output.one_of(job.lease_lost_count, 'worker')} lost"
    return text


def progress_text(progress: Progress) -> str:
    """`[#####-----] 50 of 100 (50 %), halfway`."""
    parts = []
    if progress.done is not None and progress.total:
        share = min(max(progress.done / progress.total, 0.0), 1.0)
        filled = round(share * 20)
        parts.append(
            f"[{'#' * filled}{'-' * (20 - filled)}] {output.number(progress.done)} of"
            f" {output.number(progress.total)} ({share:.0%})"
        )
    elif progress.done is not None:
        parts.append(f"{output.number(progress.done)} done")
    if progress.message:
        parts.append(progress.message)
    return ", ".join(parts) or "-"


# ── Sections ──


def _heading(out: Console, title: str) -> None:
    out.print()
    out.print(title, style="bold")


def _json(out: Console, title: str, data: bytes | None) -> None:
    if data is None or data == b"{}":
        return
    _heading(out, title)
    _lines(out, msgspec.json.format(data, indent=2).decode().splitlines())


def _lines(out: Console, lines: list[str], *, last: bool = False) -> None:
    """At most MOST_LINES of them, from the start or the end, and a word about the rest."""
    left = len(lines) - MOST_LINES
    rest = f"  … {output.one_of(left, 'more line')}, see --json"
    if left > 0 and last:
        out.print(rest, style="dim")
    for line in lines[-MOST_LINES:] if last else lines[:MOST_LINES]:
        out.print(f"  {output.plain(line)}", soft_wrap=True)
    if left > 0 and not last:
        out.print(rest, style="dim")


def _error(out: Console, detail: JobDetail) -> None:
    error = detail.job.last_error
    if error is None:
        return
    _heading(out, "Last error")
    _lines(out, f"{error.type}: {error.message}".splitlines())
    tracebacks = [attempt.error.traceback for attempt in detail.attempts if attempt.error is not None]
    trace = error.traceback or next((text for text in reversed(tracebacks) if text), None)
    if trace:
        _heading(out, "Traceback")
        _lines(out, trace.rstrip().splitlines(), last=True)


def _attempts(out: Console, attempts: list[Attempt]) -> None:
    if not attempts:
        return
    _heading(out, "Attempts")
    columns = (
        Column("#", right=True),
        Column("STARTED"),
        Column("RAN", right=True),
        Column("OUTCOME"),
        Column("NEXT", right=True),
        Column("WORKER", flex=True, least=6),
        Column("ERROR", flex=True, least=8),
    )
    output.show_table(columns, [_attempt(attempt) for attempt in attempts])


def _attempt(attempt: Attempt) -> list[Any]:
    ran = "-"
    if attempt.finished_at is not None:
        ran = output.took((attempt.finished_at - attempt.started_at).total_seconds())
    following = "-" if attempt.retry_in_ms is None else output.span(attempt.retry_in_ms / 1000)
    return [
        str(attempt.attempt),
        output.exact(attempt.started_at)[5:],
        ran,
        attempt.outcome or "running",
        following,
        attempt.worker_id or "-",
        _attempt_error(attempt),
    ]


def _attempt_error(attempt: Attempt) -> str:
    if attempt.signal is not None:
        return f"killed by {_signal_name(attempt.signal)}"
    if attempt.exit_code is not None:
        return f"exit code {attempt.exit_code}"
    return "-" if attempt.error is None else f"{attempt.error.type}: {attempt.error.message}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _logs(out: Console, detail: JobDetail) -> None:
    if not detail.logs:
        return
    _heading(out, "Log")
    _lines(out, [log_text(line.at, line.level, line.message) for line in detail.logs], last=True)


def log_text(at: datetime | None, level: str, message: str) -> str:
    return f"{output.exact(at)[11:]}  {level:<7}  {' '.join(message.splitlines())}"


def _events(out: Console, events: list[Event]) -> None:
    if not events:
        return
    _heading(out, "Events")
    columns = (
        Column("SEQ", right=True),
        Column("AT"),
        Column("EVENT"),
        Column("STATUS"),
        Column("NOTE", flex=True, least=8),
    )
    rows = [
        [
            str(event.seq),
            output.exact(event.at)[5:],
            event.event.value,
            output.status_text(event.state),
            event_note(event),
        ]
        for event in events
    ]
    output.show_table(columns, rows)


def event_note(event: Event) -> str:
    """What an event tells beside its name."""
    data = event.data
    notes = []
    if event.event is EventName.STARTED:
        notes.append(f"attempt {event.attempt} by {event.worker_id or 'someone'}")
    if "duration_ms" in data:
        notes.append(f"took {output.took(data['duration_ms'] / 1000)}")
    notes += [str(data[name]) for name in ("reason", "cause") if data.get(name)]
    if data.get("by"):
        notes.append(f"by {data['by']}")
    if data.get("signal") is not None:
        notes.append(f"killed by {_signal_name(int(data['signal']))}")
    elif data.get("exit_code") is not None:
        notes.append(f"exit code {data['exit_code']}")
    if data.get("retry_in_ms") is not None:
        notes.append(f"again in {output.span(data['retry_in_ms'] / 1000)}")
    if data.get("error"):
        notes.append(f"{data['error']['type']}: {data['error']['message']}")
    return ", ".join(notes)
