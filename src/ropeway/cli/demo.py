"""`ropeway demo`: a walk of jobs through an engine, told in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated
from uuid import UUID, uuid4

import typer
from rich.console import Console
from rich.table import Table

from ropeway.core.events import attempt_history
from ropeway.core.job import NewJob
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.retry import RetryPolicy
from ropeway.core.states import State
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine, Leased, Settlement, WorkerRef
from ropeway.settings import Settings

console = Console(highlight=False)

#: Retries come soon enough to watch.
QUICK = RetryPolicy(base=0.2, cap=1.0)

#: What the demo promises to show: each job and the state it must end in.
EXPECTED = {
    "succeeds": State.SUCCEEDED,
    "fails twice, then succeeds": State.SUCCEEDED,
    "waits for its time": State.SUCCEEDED,
    "asks to be called later": State.SUCCEEDED,
    "is given back unstarted": State.SUCCEEDED,
    "loses its worker": State.SUCCEEDED,
    "is asked for twice": State.SUCCEEDED,
    "gives up": State.DEAD,
    "is cancelled": State.CANCELLED,
}


def demo(
    url: Annotated[
        str | None, typer.Option("--url", help="An engine to use instead of a new SQLite file.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Run to the end and exit (it does anyway, for now).")
    ] = False,
) -> None:
    """Walk jobs through an engine: success, retry, delay, loss, duplicate, death and cancellation."""
    del once
    with _place(url) as address:
        failed = asyncio.run(_walk(address))
    if failed:
        console.print(f"[red]Not as promised:[/red] {', '.join(failed)}")
        raise typer.Exit(1)
    console.print("Every job reached the end it should. Nothing was lost on the way.")


@contextlib.contextmanager
def _place(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="ropeway-demo-") as folder:
        yield f"sqlite:///{Path(folder) / 'demo.db'}"


async def _walk(url: str) -> list[str]:
    async with engine_for(Settings.load({"url": url})) as engine:
        console.print(f"Engine [bold]{engine.name}[/bold], durability {engine.durability}\n")
        walk = _Walk(engine)
        await walk.enqueue()
        await walk.run()
        return await walk.tell()


class _Walk:
    """One run of the demo: a queue of its own, so that it can share a store with others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue = f"demo-{uuid4().hex[:6]}"
        self._worker = WorkerRef("demo-worker", uuid4())
        self._jobs: dict[str, UUID] = {}
        self._began: datetime | None = None

    async def enqueue(self) -> None:
        self._began = await self._engine.now()
        for title in EXPECTED:
            self._jobs[title] = await self._enqueue(title)
        again = await self._enqueue("is asked for twice")
        same = again == self._jobs["is asked for twice"]
        self._say("enqueue", "is asked for twice", "the first job answers" if same else "A SECOND JOB WAS MADE")
        await self._engine.cancel([self._jobs["is cancelled"]])
        self._say("cancel", "is cancelled", "before it started")

    async def _enqueue(self, title: str) -> UUID:
        job = NewJob(
            "demo.step",
            b'{"n": 1}',
            queue=self._queue,
            max_attempts=3,
            retry=QUICK,
            delay=0.5 if title == "waits for its time" else None,
            idempotency_key=f"{self._queue}-{title}" if title == "is asked for twice" else None,
        )
        (answer,) = await self._engine.enqueue([job])
        if not answer.deduplicated:
            self._say("enqueue", title, answer.state.value if answer.state else "")
        return answer.id

    async def run(self) -> None:
        """Lease and finish until every job has ended: what a worker does."""
        listener = await self._engine.subscribe([self._queue])
        try:
            while not await self._ended():
                batch = await self._engine.lease([self._queue], 10, self._worker)
                for leased in batch.leases:
                    await self._finish(leased)
                if not batch.leases:
                    await listener.wait(min(batch.next_due_in if batch.next_due_in is not None else 0.5, 0.5))
        finally:
            await listener.close()

    async def _ended(self) -> bool:
        jobs = await self._engine.get(list(self._jobs.values()))
        return all(job is not None and job.finished_at is not None for job in jobs)

    async def _finish(self, leased: Leased) -> None:
        title = next(name for name, id in self._jobs.items() if id == leased.job.id)
        outcome = _outcome(title, leased.job.attempt)
        (answer,) = await self._engine.settle([Settlement(leased.lease, outcome)])
        state = getattr(answer, "state", answer)
        self._say(outcome.verb.value, title, f"attempt {leased.job.attempt} → {state}")

    async def tell(self) -> list[str]:
        """The table at the end, and the jobs that did not end as they should."""
        table = Table("job", "status", "attempts", "history", title="\nWhere they are now", title_justify="left")
        failed = []
        for title, expected in EXPECTED.items():
            id = self._jobs[title]
            (job,) = await self._engine.get([id])
            history = attempt_history(await self._engine.events_of(id))
            told = ", ".join(attempt.outcome or "running" for attempt in history) or "never started"
            table.add_row(title, job.state.value if job else "?", str(job.attempt if job else "?"), told)
            if job is None or job.state is not expected:
                failed.append(title)
        console.print(table)
        return failed

    def _say(self, verb: str, title: str, note: str) -> None:
        console.print(f"  [cyan]{verb:<8}[/cyan] {title:<31} {note}")


def _outcome(title: str, attempt: int) -> Outcome:
    """How each run of the demo ends."""
    if title == "fails twice, then succeeds" and attempt <= 2:
        return Failed(JobError("ConnectionError", "the mail server did not answer"))
    if title == "gives up":
        return Failed(JobError("ValueError", "this can never work"), retry=attempt < 2)
    if title == "loses its worker" and attempt == 1:
        return Lost("crashed", signal=9)
    if title == "asks to be called later" and attempt == 1:
        return Snoozed(delay=0.3)
    if title == "is given back unstarted" and attempt == 1:
        return Released()
    return Done(b'{"ok": true}')
