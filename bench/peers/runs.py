"""One run of one peer: an empty store, its control program, a record, and workers when they are wanted."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.peers.catalogue import Peer, Profile
from bench.peers.control import Control
from bench.peers.environments import Environment
from bench.peers.failing import Deadline, PeerFailed
from bench.peers.groups import MemoryWatch, Work
from bench.peers.places import Place, Places
from bench.peers.record import Record

#: Variables of the caller that would reach into a peer's programs.
_FOREIGN = ("PYTHON", "ROPEWAY_", "BENCH_", "PG", "REDIS", "NODE_", "VIRTUAL_ENV", "CELERY", "UV_", "PIP_")

#: How long a worker may take from its start to its first job.
START_SECONDS = 40.0

#: How often the record is looked at while a worker is at it.
LOOK_SECONDS = 0.01
#: How often the store is asked at the end of a drain.
PENDING_SECONDS = 0.02


@dataclass(frozen=True)
class Drained:
    """What a drain took, counted from the first job's start until the store had all as finished."""

    jobs: int
    seconds: float
    cpu_seconds_per_job: float
    rss_mib: float
    written_bytes: int
    #: How many jobs ran not exactly once, by how often they did.
    irregular: dict[int, int]

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


class Run:
    """A peer at work on an empty store. `jobs` is how many indexes the record has room for."""

    def __init__(
        self,
        peer: Peer,
        environment: Environment,
        place: Place,
        folder: Path,
        jobs: int,
        deadline: Deadline,
        profile: Profile,
    ) -> None:
        self.peer = peer
        self.place = place
        self.deadline = deadline
        self.record = Record(folder / "record", jobs)
        self._environment = environment
        self._folder = folder
        self._profile = profile
        self.control = self.controller()

    def controller(self) -> Control:
        """One more control program: the first is `control`, others are further producers."""
        return Control(self._environment.command("control"), self._variables(1), self._folder, self.deadline)

    def work(self, processes: int = 1) -> Work:
        """Start a worker of so many processes."""
        return Work(self._environment.command("work"), self._variables(processes))

    def fill(self, first: int, number: int) -> None:
        """Enqueue by the quickest way that the peer has."""
        if self.peer.bulk_rate is None:
            self.control.single(first, number)
        else:
            self.control.bulk(first, number)

    def drain(self, first: int, number: int, processes: int) -> Drained:
        """Start a worker on a store that holds these jobs and wait until all ran and are recorded as finished."""
        before = self.place.written()
        with self.work(processes) as work:
            self.until(
                lambda: self.record.ran(first, number) > 0, work, within=START_SECONDS, what="no job started"
            )
            cpu, started = work.cpu_seconds(), self.record.ran(first, number)
            memory = MemoryWatch(work)

            def as_many_ran() -> bool:
                memory.look()
                return self.record.may_all_have_run(first, number)

            self.until(as_many_ran, work, what=lambda: self._left(first, number))
            # The store is asked before the record is read in full: that takes time which is not the worker's.
            ended = self.until_finished(work)
            self.until(lambda: self.record.all_ran(first, number), work, what=lambda: self._left(first, number))
            cpu = work.cpu_seconds() - cpu
            written = work.written_bytes() if before is None else (self.place.written() or 0) - before
        begun = min(self.record.starts(first, number))
        return Drained(
            jobs=number,
            seconds=ended - begun,
            cpu_seconds_per_job=cpu / max(1, number - started),
            rss_mib=memory.most_mib,
            written_bytes=written,
            irregular=self.record.irregular(first, number),
        )

    def until_finished(self, work: Work) -> float:
        """Wait until the store has nothing left to do; since when, at the latest.

        That is when it was asked: the answer tells of that moment, and counting may take long where cleaned-up
        jobs still lie about.
        """
        asked = 0.0

        def nothing_left() -> bool:
            nonlocal asked
            asked = time.time()
            return self.control.pending() == 0

        self.until(nothing_left, work, every=PENDING_SECONDS, what="not all are finished")
        return asked

    def until(
        self,
        fact: Callable[[], bool],
        work: Work,
        *,
        what: str | Callable[[], str],
        within: float | None = None,
        every: float = LOOK_SECONDS,
    ) -> None:
        """Wait for a fact while the worker runs; PeerFailed, with what is missing, when it does not come true."""
        until = None if within is None else time.monotonic() + within
        while not fact():
            work.check()
            left = self.deadline.remaining
            if left <= 0 or (until is not None and time.monotonic() > until):
                words = what if isinstance(what, str) else what()
                limit = self.deadline.seconds if left <= 0 else within
                raise PeerFailed(f"{words} within {limit:g} s; the worker said: {work.last_words()}")
            time.sleep(every)

    def _left(self, first: int, number: int) -> str:
        return f"{self.record.ran(first, number):,} of {number:,} jobs ran"

    def _variables(self, processes: int) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        return {
            **own,
            **self._environment.variables,
            "BENCH_URL": self.place.url,
            "BENCH_RECORD": str(self.record.path),
            "BENCH_PROFILE": self._profile,
            "BENCH_PROCESSES": str(processes),
        }


@contextlib.contextmanager
def running(
    peer: Peer,
    environment: Environment,
    places: Places,
    *,
    jobs: int,
    limit_seconds: float,
    profile: Profile = "throughput",
) -> Iterator[Run]:
    """A peer whose schema is made, on an empty store; everything of it is gone after the block."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(places.fresh(peer.store))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ropeway-bench-")))
        run = Run(peer, environment, place, folder, jobs, Deadline(limit_seconds), profile)
        stack.callback(run.record.close)
        stack.enter_context(run.control)
        run.control.setup()
        yield run
