"""A server with the dashboard in a thread of its own, and a store with jobs in every state behind it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple, TypeVar
from uuid import UUID, uuid4

from ropeway.asgi import Server
from ropeway.core.access import Scope
from ropeway.core.auditlog import NewAction
from ropeway.core.fleet import WorkerInfo
from ropeway.core.history import ALL_QUEUES, STEP, Sample, histogram, last_step
from ropeway.core.job import NewJob, Progress
from ropeway.core.joblog import LogLine
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Outcome
from ropeway.core.payload import clean_error
from ropeway.core.schedule import NewSchedule
from ropeway.engines.open import engine_for
from ropeway.engines.protocol import Engine, Settlement, WorkerRef
from ropeway.service.keys import Keys
from ropeway.settings import Settings

T = TypeVar("T")

#: Seconds that anything may take on a machine that is busy with other things.
PATIENCE = 20.0

TRACEBACK = """Traceback (most recent call last):
  File "/srv/mail/tasks.py", line 41, in send
    await smtp.deliver(message)
ConnectionRefusedError: [Errno 111] Connect call failed ('10.0.0.7', 25)"""

WORKER = WorkerRef("web-1:4711", uuid4())


class House:
    """The server while the block of `opened` lasts."""

    def __init__(self, url: str, *, auth: bool) -> None:
        self.store = url
        self.url = ""
        self._auth = auth
        self._up = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="dashboard", daemon=True)

    async def _live(self) -> None:
        settings = Settings.load({"url": self.store, "host": "127.0.0.1", "port": 0}, environ={})
        try:
            async with (
                engine_for(settings) as self._engine,
                Server(self._engine, settings, open_dashboard=not self._auth) as server,
            ):
                self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
                self.url = server.url
                self._up.set()
                await self._over.wait()
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._up.set()

    def start(self) -> None:
        self._thread.start()
        if not self._up.wait(PATIENCE) or not self.url:
            raise AssertionError("the server did not start") from self._failure

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def on_engine(self, work: Callable[[Engine], Awaitable[T]]) -> T:
        """Do something with the store itself."""

        async def use() -> T:
            return await work(self._engine)

        return asyncio.run_coroutine_threadsafe(use(), self._loop).result(PATIENCE)

    def enqueue(self, *jobs: NewJob) -> list[UUID]:
        return [made.id for made in self.on_engine(lambda engine: engine.enqueue(jobs))]

    def state_of(self, id: UUID) -> str:
        (job,) = self.on_engine(lambda engine: engine.get([id]))
        assert job is not None
        return job.state.value

    def key(self, *scopes: Scope) -> str:
        """A new key's token."""
        return self.on_engine(lambda engine: Keys(engine).create("a person", frozenset(scopes)))[1]


@contextmanager
def opened(url: str, *, auth: bool = False) -> Iterator[House]:
    """A server on this store. Without `auth` its pages ask nobody to sign in."""
    house = House(url, auth=auth)
    house.start()
    try:
        yield house
    finally:
        house.stop()


class Filled(NamedTuple):
    """The ids of what `fill` made."""

    queued: list[UUID]
    scheduled: UUID
    cancelled: UUID
    running: UUID
    retrying: UUID
    succeeded: UUID
    dead: list[UUID]

    def one_of_each(self) -> dict[str, UUID]:
        first = {"queued": self.queued[0], "dead": self.dead[0]}
        named = ("scheduled", "cancelled", "running", "retrying", "succeeded")
        return {**first, **{name: getattr(self, name) for name in named}}


async def run_all(engine: Engine, queue: str, outcome: Outcome | None) -> list[Lease]:
    """Take all due jobs of a queue, and end each like this; None leaves them running."""
    batch = await engine.lease([queue], 100, WORKER, lease_seconds=600)
    leases = [leased.lease for leased in batch.leases]
    if outcome is not None:
        await engine.settle([Settlement(lease, outcome) for lease in leases])
    return leases


async def kill(engine: Engine, jobs: list[NewJob], type: str, message: str) -> list[UUID]:
    """Jobs that die of this at their first attempt; their queue must hold nothing else that is due."""
    made = await engine.enqueue(jobs)
    error = clean_error(type, message, TRACEBACK)
    await run_all(engine, jobs[0].queue, Failed(error, retry=False))
    return [one.id for one in made]


async def report(engine: Engine) -> None:
    """The worker is there; it is forgotten a minute after it said so."""
    queues = ("emails", "reports")
    await engine.report_worker(WorkerInfo(WORKER.id, "web-1", 4711, "0.1.0", queues, (), 8, 1, 92_274_688))


async def remember(engine: Engine) -> None:
    """A quarter of an hour that came and went in waves."""
    last = last_step(await engine.now())
    samples = []
    for ago in range(60):
        wave = 1 + math.sin(ago / 7)
        samples.append(
            Sample(
                "default",
                ALL_QUEUES,
                last - timedelta(seconds=ago * STEP),
                STEP,
                enqueued=49 * (1.2 + wave),
                succeeded=49 * (1.1 + wave * 0.9),
                failed=4 * wave,
                dead=1.0 if ago in (12, 31) else 0.0,
                waiting=round(49 * wave),
                running=8,
                oldest=2.0 + 3 * wave,
                waits=histogram([0.04 * wave, 0.2 * wave, 0.6 * wave]),
                runs=histogram([0.02, 0.09, 0.4, 1.1 * wave]),
            )
        )
    await engine.remember(samples)


async def fill(engine: Engine) -> Filled:
    """Jobs in every state, a worker, two schedules, a paused queue and an action."""
    mail = [NewJob("mail.send", b'{"to": "ada@example.com", "n": %d}' % n, "emails") for n in range(3)]
    dead = await kill(engine, mail, "ConnectionRefusedError", "Connect call failed ('10.0.0.7', 25)")
    charge = NewJob("billing.charge", b'{"invoice": 8812}', "billing", max_attempts=1)
    dead += await kill(engine, [charge], "CardDeclined", "the card was declined: insufficient funds")

    (retrying,) = await engine.enqueue([NewJob("mail.digest", queue="emails", max_attempts=5)])
    failed = Failed(clean_error("TimeoutError", "no answer within 30 s", TRACEBACK), retry_after=900)
    await run_all(engine, "emails", failed)

    (succeeded,) = await engine.enqueue([NewJob("report.build", b'{"month": "2026-10"}', "reports")])
    leases = await run_all(engine, "reports", None)
    await engine.log([(leases[0], LogLine("read 1,204 rows")), (leases[0], LogLine("2 rows skipped", "warning"))])
    await engine.settle([Settlement(leases[0], Done(b'{"pages": 12, "rows": 1204}'))])

    (running,) = await engine.enqueue([NewJob("report.export", b'{"format": "csv"}', "reports", tags=("big",))])
    (lease,) = await run_all(engine, "reports", None)
    await engine.progress([(lease, Progress(340, 1000, "writing rows"))])
    await engine.log([(lease, LogLine("opened the file")), (lease, LogLine("the disk is slow", "warning"))])

    queued = [one.id for one in await engine.enqueue([NewJob("image.resize", b"{}", "images") for _ in range(4)])]
    (scheduled,) = await engine.enqueue([NewJob("mail.reminder", queue="emails", delay=3_600)])
    (cancelled,) = await engine.enqueue([NewJob("image.crop", queue="images")])
    await engine.cancel([cancelled.id])

    await engine.put_schedule(NewSchedule("nightly-report", "0 3 * * *", "report.build", queue="reports"))
    await engine.put_schedule(NewSchedule("hourly-sync", "0 * * * *", "sync.run", tz="Europe/Berlin", paused=True))
    await report(engine)
    await engine.pause("billing")
    await engine.note_actions([NewAction("key_1 (deploy)", "queue.pause", "billing")])
    await remember(engine)
    return Filled(queued, scheduled.id, cancelled.id, running.id, retrying.id, succeeded.id, dead)
