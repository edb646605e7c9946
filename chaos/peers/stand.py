"""A peer at work on an empty store: jobs go in, workers are kept, and the ledger tells what was done."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from bench.peers import environments
from bench.peers.control import Control
from bench.peers.environments import Environment
from bench.peers.failing import PeerFailed
from bench.peers.places import Places
from bench.peers.runs import START_SECONDS, running
from chaos.peers import ledger
from chaos.peers.ledger import Handled
from chaos.peers.settings import LEASE_SECONDS, PROGRAMS, TIMEOUT_SECONDS, Contender, Kind
from chaos.peers.workers import Workers

#: One can be killed or stopped, and the other is there to take its jobs over.
WORKERS = 2

#: How often workers and ledger are looked at.
LOOK_SECONDS = 0.1

#: Between the first job and the faults: the second worker cannot be seen to be ready, so it is given time.
SETTLE_SECONDS = 2.0

#: What an experiment may take beside the time that is waited for lost jobs.
PLAY_SECONDS = 600.0


#: By then a tick has run if it ever will.
TICK_SECONDS = 10.0

T = TypeVar("T")


class Stopped(Exception):
    """Somebody wants an end: whoever waits gives up."""


@dataclass(frozen=True)
class Step:
    """What a job is to do (see programs/chaos_kit.py), for how long, and for how long when it runs again."""

    do: str = "sleep"
    seconds: float = 0.0
    again: float = 0.0


@dataclass(frozen=True)
class Tally:
    """How many jobs a store has as unfinished and as succeeded (None: it does not tell), and ticks that ran."""

    unfinished: int
    finished: int | None
    ticks: int

    def more_done_than(self, before: Tally) -> bool:
        """Whether the store counts a job as done since then that is no tick."""
        ticks = self.ticks - before.ticks
        fewer = before.unfinished - self.unfinished - ticks
        more = 0 if self.finished is None or before.finished is None else self.finished - before.finished - ticks
        return fewer > 0 or more > 0


class Stand:
    """Job 0 is the first to run and shows that a worker is there; jobs beyond the script are quick ticks."""

    def __init__(
        self, control: Control, workers: Workers, path: Path, script: Sequence[Step], stopping: threading.Event
    ) -> None:
        self.workers = workers
        self._control = control
        self._path = path
        self._first_tick = len(script)
        #: When each was enqueued.
        self._ticks: dict[int, float] = {}
        self._due: deque[tuple[float, int]] = deque()
        self._stopping = stopping

    # ── jobs ──

    def enqueue(self, job: int) -> None:
        """Returns when the store has accepted it; PeerFailed when it does not."""
        self._control.single(job, 1, in_flight=1)

    def pace(self, jobs: Sequence[int], *, per_second: float) -> None:
        """Have these enqueued one after the other while something is waited for."""
        now = time.monotonic()
        self._due.extend((now + place / per_second, job) for place, job in enumerate(jobs))

    def tick(self) -> None:
        """One quick job that does not count: some look for lost jobs only when others come."""
        tick = self._first_tick + len(self._ticks)
        self._control.single(tick, 1, in_flight=1)
        self._ticks[tick] = time.monotonic()

    def runs(self) -> list[Handled]:
        """What handlers have done so far."""
        return ledger.read(self._path)

    def counted(self) -> list[Handled]:
        """The same without ticks and without the first job."""
        return [run for run in self.runs() if 0 < run.job < self._first_tick]

    def ticks_done(self) -> int:
        return sum(job >= self._first_tick for job in ledger.done(self.runs()))

    def unfinished(self) -> int:
        """How many jobs the store does not have as finished, ticks included."""
        return self._control.pending()

    def pending(self) -> int:
        """The same without ticks on their way; one that is not done for long is lost, or held like a job."""
        recent = {tick for tick, at in self._ticks.items() if time.monotonic() - at < TICK_SECONDS}
        return max(0, self.unfinished() - len(recent - ledger.done(self.runs())))

    def finished(self) -> int | None:
        """How many the store has as succeeded, where it tells."""
        return self._control.finished()

    def tally(self) -> Tally:
        """Where the store stands now."""
        return Tally(self.unfinished(), self.finished(), self.ticks_done())

    # ── waiting ──

    def until(self, fact: Callable[[], T], seconds: float, *, ticking: bool = False) -> T:
        """Wait until it gives something; what it gave last, which is nothing when the time was up."""
        ends, next_tick = time.monotonic() + seconds, time.monotonic() + 1.0
        while not (given := fact()):
            now = time.monotonic()
            if now > ends:
                break
            if ticking and now > next_tick:
                self.tick()
                next_tick = now + 1.0
            self._look()
            time.sleep(LOOK_SECONDS)
        return given

    def until_done(self, job: int, seconds: float, *, ticking: bool = False) -> bool:
        return self.until(lambda: job in ledger.done(self.runs()), seconds, ticking=ticking)

    def until_still(self, job: int, seconds: float) -> bool:
        """Until nobody runs that job any more."""
        return self.until(lambda: all(run.effect is not None for run in self.runs() if run.job == job), seconds)

    def pause(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def warm(self) -> None:
        """PeerFailed, with what the workers said, when the first job does not run."""
        self._control.single(0, 1, in_flight=1)
        if not self.until_done(0, START_SECONDS):
            raise PeerFailed(f"no job ran within {START_SECONDS:g} s: {self.workers.last_words()}")
        self.pause(SETTLE_SECONDS)

    def drain(self, jobs: Collection[int], limit: float) -> bool:
        """Until all are sent, these are done and the store has nothing left; False when that took too long."""
        self.until(lambda: not self._due, PLAY_SECONDS)
        ends = time.monotonic() + limit
        while not (ledger.done(self.runs()).issuperset(jobs) and self.pending() == 0):
            if time.monotonic() > ends:
                return False
            self.tick()
            self.pause(1.0)
        return True

    def _look(self) -> None:
        if self._stopping.is_set():
            raise Stopped
        self.workers.tend()
        while self._due and self._due[0][0] <= time.monotonic():
            self.enqueue(self._due.popleft()[1])


@contextlib.contextmanager
def standing(
    contender: Contender,
    kind: Kind,
    environment: Environment,
    places: Places,
    *,
    script: Sequence[Step],
    folder: Path,
    limit: float,
    stopping: threading.Event,
) -> Iterator[Stand]:
    """The peer on an empty store with workers that have run a job. The ledger stays in `folder`."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    path, script_file = folder / "ledger.jsonl", folder / "script.json"
    script_file.write_text(json.dumps([asdict(step) for step in script]))
    faulty = replace(
        environment,
        program=PROGRAMS / contender.program,
        variables={
            **environment.variables,
            "PYTHONPATH": os.pathsep.join((str(PROGRAMS), str(environments.PROGRAMS))),
            "CHAOS_SETTINGS": kind,
            "CHAOS_LEDGER": str(path.resolve()),
            "CHAOS_SCRIPT": str(script_file.resolve()),
            "CHAOS_LEASE": str(LEASE_SECONDS),
            "CHAOS_TIMEOUT": str(TIMEOUT_SECONDS),
        },
    )
    most = limit + PLAY_SECONDS
    with (
        running(contender.peer, faulty, places, jobs=1, limit_seconds=most, profile="default") as run,
        Workers(run.work, WORKERS) as workers,
    ):
        stand = Stand(run.control, workers, path, script, stopping)
        stand.warm()
        yield stand
