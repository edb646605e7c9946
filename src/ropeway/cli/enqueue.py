"""`ropeway enqueue TYPE key=value ...`: put a job in, and wait for its end if asked to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ropeway.cli import completion, output, values
from ropeway.cli.options import DEFAULT, Json, Tenant, Url, use
from ropeway.core.errors import FieldError
from ropeway.core.states import PRUNED, State
from ropeway.settings import Settings

if TYPE_CHECKING:
    from ropeway.cli.services import Services
    from ropeway.core.job import Job, NewJob
    from ropeway.engines.protocol import Enqueued

#: How --wait without a number is written for the parser, which wants one.
FOR_EVER = "for-ever"

#: Seconds after which a waiting person is told why nothing happens, if that can be told.
SOON = 3.0

_DURATION = re.compile(r"\d+(\.\d+)?(ms|[smhdw])?\Z")


class EnqueueCommand(TyperCommand):
    """Understands `--wait` with and without a time behind it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = list(args)
        for place, word in enumerate(args):
            following = args[place + 1] if place + 1 < len(args) else ""
            if word == "--":
                break
            if word == "--wait" and not _DURATION.match(following):
                args[place] = f"--wait={FOR_EVER}"
        return super().parse_args(ctx, args)


def enqueue(
    type: Annotated[
        str,
        typer.Argument(
            metavar="TYPE", help="The task's name.", show_default=False, autocompletion=completion.types
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="The payload's members. A value is JSON if it can be read as JSON, else text; "
            "KEY:=VALUE must be JSON, KEY==VALUE is always text.",
            show_default=False,
        ),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option("--payload", "-p", metavar="JSON|@FILE|-", help="The whole payload: JSON, a file, or stdin."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", help="The queue; default `default`.", autocompletion=completion.queues),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(
            "--priority",
            help="1 (first) to 9, or critical high default low bulk; default 5.",
            autocompletion=completion.priorities,
        ),
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="TIME", help="Start that much later: 30, 45s, 10m, 1h30m.")
    ] = None,
    run_at: Annotated[
        str | None, typer.Option("--run-at", metavar="WHEN", help="Start then: 2026-01-31T09:00:00Z.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Idempotency key: a second job with it is the first one.")
    ] = None,
    unique: Annotated[
        bool, typer.Option("--unique", help="Not if the same job (type, queue, payload) has not ended yet.")
    ] = False,
    unique_key: Annotated[
        str | None, typer.Option("--unique-key", help="The same, but told apart by this key.")
    ] = None,
    unique_within: Annotated[
        str | None,
        typer.Option("--unique-within", metavar="TIME", help="With --unique: nor if one succeeded that recently."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", help="Runs in all, 1 to 25; default 5.")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", metavar="TIME", help="The longest one run may take, 0 for no limit; default 1h."
        ),
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option("--expires-in", metavar="TIME", help="Cancel it if not started by then.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be repeated.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="[TIME]", help="Wait for its end (at most so long) and print the result."),
    ] = None,
    declared_in: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="APP",
            help="Take the task's own options from this file or module, and check the arguments; "
            "default ROPEWAY_APP.",
        ),
    ] = None,
    url: Url = None,
    tenant: Tenant = DEFAULT,
    as_json: Json = False,
) -> None:
    """Enqueue a job and print its id.

    With --wait, exits 1 when the job ends dead or cancelled, or has not ended in time.
    """
    asked: dict[str, Any] = {
        "queue": queue,
        "priority": None if priority is None else values.priority(priority),
        "max_attempts": max_attempts,
        "delay": None if delay is None else values.seconds(delay, "--delay"),
        "run_at": None if run_at is None else values.instant(run_at, "--run-at"),
        "idempotency_key": key,
        "unique": _unique(unique, unique_key, unique_within),
        "timeout": None if timeout is None else values.seconds(timeout, "--timeout"),
        "expires_in": None if expires_in is None else values.seconds(expires_in, "--expires-in"),
        "tags": tuple(tag) if tag else None,
        "headers": values.pairs(header, "--header") if header else None,
    }
    settings = Settings.load({"url": url, "app": declared_in})
    job = _new_job(type, values.payload_of(arguments or [], payload), asked, settings)
    limit = None if wait in (None, FOR_EVER) else values.seconds(str(wait), "--wait")

    async def work(services: Services) -> bool:
        answer = await services.jobs.enqueue(job)
        if not as_json:
            _tell_id(answer)
        if wait is None or answer.state is None:
            if as_json:
                output.say_json(_answer(answer))
            return True
        ended = await _until_ended(services, answer, limit)
        return _tell_end(ended, answer, as_json=as_json)

    if not use(url, tenant, work, makes_store=True):
        raise typer.Exit(1)


def _new_job(type: str, payload: bytes, asked: dict[str, Any], settings: Settings) -> NewJob:
    """The job: what was asked for, else what the task's declaration says, else what the settings say."""
    from ropeway.core.job import NewJob

    fields: dict[str, Any] = {"max_attempts": settings.retry_max_attempts, "timeout": settings.job_timeout}
    given = {name: value for name, value in asked.items() if value is not None}
    if settings.app is not None:
        from ropeway.cli.declared import declared_fields

        fields |= declared_fields(settings.app, type, payload)
        if "delay" in given:
            fields.pop("run_at", None)
    return NewJob(type, payload, **{**fields, **given})


def _unique(asked: bool, key: str | None, within: str | None) -> Any:
    from ropeway.core.unique import Unique

    if not asked and key is None:
        if within is not None:
            raise FieldError("--unique-within goes with --unique or --unique-key")
        return None
    seconds = None if within is None else values.seconds(within, "--unique-within")
    return Unique("args" if key is None else "key", key, seconds)


def _tell_id(answer: Enqueued) -> None:
    output.say(str(answer.id))
    if answer.deduplicated:
        output.note(f"Not enqueued again: this is the earlier job, status {_status(answer)}.")


def _status(answer: Enqueued) -> str:
    return PRUNED if answer.state is None else answer.state.value


def _answer(answer: Enqueued) -> dict[str, Any]:
    id = str(answer.id)
    return {"id": id, "run_id": id, "status": _status(answer), "deduplicated": answer.deduplicated}


async def _until_ended(services: Services, answer: Enqueued, limit: float | None) -> Job:
    """The job at its end, or at the end of our patience; meanwhile a word if nobody is there to run it."""
    if limit is not None and limit <= SOON:
        return await services.jobs.until_ended(answer.id, timeout=limit)
    waiting = asyncio.create_task(services.jobs.until_ended(answer.id, timeout=limit))
    try:
        done, _ = await asyncio.wait([waiting], timeout=SOON)
        if not done:
            await _tell_why_it_waits(services, answer)
        return await waiting
    finally:
        waiting.cancel()


async def _tell_why_it_waits(services: Services, answer: Enqueued) -> None:
    job = await services.jobs.get(answer.id)
    if job.state is State.QUEUED and not _served(job.queue, await services.fleet.workers()):
        output.note(f"Still queued: no worker serves the queue {job.queue}. Start one with `ropeway worker`.")
    elif job.state in (State.SCHEDULED, State.RETRYING):
        output.note(f"Still {job.state.value}: it starts {output.ago(job.run_at, await services.now())}.")


def _served(queue: str, workers: Sequence[Any]) -> bool:
    return any(queue in worker.queues for worker in workers)


def _tell_end(job: Job, answer: Enqueued, *, as_json: bool) -> bool:
    """Print how it ended; True if well."""
    if as_json:
        from ropeway.wire.objects import job_object

        id = str(job.id)
        output.say_json({**job_object(job), "run_id": id, "deduplicated": answer.deduplicated})
    elif job.state is State.SUCCEEDED:
        output.say("null" if job.result is None else job.result.decode())
    elif job.state is State.DEAD:
        error = "" if job.last_error is None else f": {job.last_error.type}: {job.last_error.message}"
        output.complain(f"the job died{error} (ropeway jobs show {job.id})")
    elif job.state is State.CANCELLED:
        output.complain(f"the job was cancelled ({job.cancel_reason})")
    else:
        output.complain(f"the job has not ended in time: it is {job.state.value} (ropeway jobs show {job.id})")
    return job.state is State.SUCCEEDED
