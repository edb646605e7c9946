"""The synchronous standby stands still, so that no commit is confirmed: E07."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast
from uuid import UUID

import httpx
import msgspec

from chaos.checker import Violation
from chaos.experiment import Experiment, Run, Size
from chaos.experiments.batches import what_is_wrong
from chaos.experiments.direct import finish
from chaos.experiments.failover import Pair, behind_a_proxy
from chaos.facts import Facts
from chaos.history import Recorder
from chaos.recording import RecordingEngine
from chaos.stage import Stage
from ropeway.core.errors import Indeterminate, RopewayError, Unavailable
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.connection import Bounds
from ropeway.engines.protocol import Engine, Enqueued
from ropeway.wire import paths, records

#: Calls that wait for the standby at the same time: each engine has one connection for them, a server puts those
#: of all its clients together.
ENGINES, CLIENTS = 4, 20

#: Jobs of one call to an engine.
JOBS: Final = 5

#: Seconds that an answer of a server may take: it waits longer for its store than a client would.
PATIENCE: Final = 60.0

QUEUE: Final = "copied"

#: What must not be, and what there must be some of.
WRONG: Final = ("accepted without a copy", "answered otherwise", "stored in part", "refused and stored")
UNKNOWN: Final = "told that nobody knows"

#: Asks for jobs, once: what it is told instead of their ids, or None when they are accepted.
Ask = Callable[[Sequence[NewJob]], Awaitable[RopewayError | None]]


async def unconfirmed(run: Run) -> None:
    """While the standby stands still nothing may be accepted; later everything is, under the same keys."""
    stage, pair = run.stage, run.given
    run.notes |= dict.fromkeys((*WRONG, UNKNOWN), 0.0)
    await pair.attach(synchronous=True)
    patient = await stage.recorded()
    async with _askers(stage) as askers:
        while run.faults < run.size.faults:
            calls = [_jobs(run.faults + number, 1 if stage.over_http else JOBS) for number in range(len(askers))]
            errors = await _asked_in_vain(stage, pair, askers, calls)
            for jobs, error in zip(calls, errors, strict=True):
                known = [answer.deduplicated for answer in await patient.enqueue(jobs)]
                for word in judged(error, known):
                    run.notes[word] += 1
            run.faults += len(calls)
    await finish(patient, run, QUEUE)


def _jobs(call: int, number: int) -> list[NewJob]:
    return [NewJob("chaos.ok", queue=QUEUE, idempotency_key=f"copied-{call}-{i}") for i in range(number)]


async def _asked_in_vain(
    stage: Stage, pair: Pair, askers: Sequence[Ask], calls: Sequence[Sequence[NewJob]]
) -> list[RopewayError | None]:
    """What each call is told while the standby stands still."""
    assert pair.standby is not None
    began = time.monotonic()
    pair.standby.signal_all(signal.SIGSTOP)
    try:
        return await asyncio.gather(*(ask(jobs) for ask, jobs in zip(askers, calls, strict=True)))
    finally:
        pair.standby.signal_all(signal.SIGCONT)
        stage.nemesis.write("fault", "ok", kind="standby", began=began, until=time.monotonic())


def judged(error: RopewayError | None, known: Sequence[bool]) -> list[str]:
    """What is to be said of a call that was told this, by which of its jobs were known afterwards."""
    if error is None:
        return ["accepted without a copy"]
    if not isinstance(error, Indeterminate | Unavailable):
        return ["answered otherwise"]
    wrong = what_is_wrong(known, error)
    return [*([UNKNOWN] if isinstance(error, Indeterminate) else []), *([wrong] if wrong else [])]


@asynccontextmanager
async def _askers(stage: Stage) -> AsyncIterator[list[Ask]]:
    """Engines with little patience; or clients of the servers, which go by the HTTP status alone."""
    async with contextlib.AsyncExitStack() as stack:
        askers = []
        for number in range(CLIENTS if stage.over_http else ENGINES):
            engine = await stack.enter_async_context(
                Client(stage.urls[number % len(stage.urls)], stage.token)
                if stage.over_http
                else PostgresEngine(stage.direct, bounds=Bounds(statement=0.2, lock=0.2, idle=10.0))
            )
            recorder = Recorder(stage.histories, f"hurried{number}")
            askers.append(_once(RecordingEngine(cast("Engine", engine), recorder)))
        yield askers


def _once(engine: RecordingEngine) -> Ask:
    async def ask(jobs: Sequence[NewJob]) -> RopewayError | None:
        try:
            await engine.enqueue(jobs)
        except RopewayError as error:
            return error
        return None

    return ask


class Client(httpx.AsyncClient):
    """As much of an engine as is needed here. It tries nothing again, and believes nothing but the HTTP status."""

    def __init__(self, url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        super().__init__(base_url=url, headers=headers, timeout=PATIENCE, trust_env=False)

    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        del tenant  # the key's
        bodies = [
            records.lean(records.enqueue_body(job)) | {"fingerprint": job.body_fingerprint().hex()} for job in jobs
        ]
        answer = await self.post(paths.JOBS_BATCH, content=msgspec.json.encode({"jobs": bodies}))
        if answer.is_success:
            return [Enqueued(UUID(one["id"]), None, one["deduplicated"]) for one in answer.json()["jobs"]]
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            raise RopewayError(f"{answer.status_code}: {answer.text[:200]}")
        words = answer.json()
        raise (Indeterminate if words["code"] == Indeterminate.code else Unavailable)(words["detail"])


def nothing_without_a_copy(_facts: Facts, run: Run) -> list[Violation]:
    found = [Violation("E07", "-", f"{run.notes[word]:g} calls were {word}") for word in WRONG if run.notes[word]]
    if not run.notes[UNKNOWN]:
        found.append(Violation("E07", "-", "no commit was left without its copy: the run proves nothing"))
    return found


EXPERIMENTS = (
    Experiment(
        id="E07",
        title="the synchronous standby stands still",
        small=Size(200, 40),
        full=Size(1_000, 200),
        faults=unconfirmed,
        bar=nothing_without_a_copy,
        around=behind_a_proxy,
        engines=("postgres", "http-postgres"),
        alone=True,
    ),
)
