"""`kill -9` in the middle of a job, default settings: when does the job run again?

All wait at the same time, each on a store of its own: an idle worker disturbs nobody, and some take minutes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from bench.peers.failing import NeverHappened, NoFigure, PeerFailed
from bench.peers.groups import Work
from bench.peers.measuring import Figure, Subject
from bench.peers.runs import START_SECONDS, Run

#: One is killed, the other lives: somebody is there who could take the job over.
PROCESSES = 2

#: Workers that are started at once.
STARTED_AT_ONCE = 4

#: Between one kill and the next: a supervisor starts a new process meanwhile, undisturbed.
PAUSE_SECONDS = 0.8

#: The jobs: one that shows that the worker is at work, and the one that is held.
WARM, HELD = 0, 1


def recovery(subjects: Iterable[Subject]) -> Mapping[str, Figure | NoFigure]:
    """The process that runs the job is killed; by peer, the seconds until the job starts again."""
    return _all(subjects, whole_group=False)


def recovery_group(subjects: Iterable[Subject]) -> Mapping[str, Figure | NoFigure]:
    """The whole worker is killed and a new one started at once."""
    return _all(subjects, whole_group=True)


def _all(subjects: Iterable[Subject], *, whole_group: bool) -> dict[str, Figure | NoFigure]:
    waiting = [_Waiting(subject, whole_group=whole_group) for subject in subjects]
    try:
        _each_of(waiting, _Waiting.prepare)
        for each in _still(waiting):
            each.kill()
            _look_for(waiting, PAUSE_SECONDS)
        while list(_still(waiting)):
            for each in _still(waiting):
                each.look()
            time.sleep(0.1)
    finally:
        _each_of(waiting, _Waiting.close)
    return {each.subject.peer.name: each.found for each in waiting if each.found is not None}


def _look_for(waiting: Iterable[_Waiting], seconds: float) -> None:
    """Look after those who were killed already: a worker that ended with its child is started again at once."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for each in _still(waiting):
            if each.killed:
                each.look()
        time.sleep(0.1)


class _Waiting:
    """One peer on its way from a worker that is ready to a job that has run again."""

    def __init__(self, subject: Subject, *, whole_group: bool) -> None:
        self.subject = subject
        self.found: Figure | NoFigure | None = None
        self._whole_group = whole_group
        self._open = contextlib.ExitStack()
        self._run: Run
        self._work: Work
        self._killed_at = 0.0
        self._restarted = False

    def prepare(self) -> None:
        """An empty store, and a worker that has shown that it is at work."""
        with self._noting_failure():
            limit = self.subject.scale.recovery_seconds + 600
            self._run = self._open.enter_context(self.subject.run(2, profile="default", limit_seconds=limit))
            self._work = self._open.enter_context(self._run.work(PROCESSES))
            self._run.control.single(WARM, 1)
            self._run.until(
                lambda: self._run.record.count(WARM) > 0, self._work, within=START_SECONDS, what="no job started"
            )

    def kill(self) -> None:
        """Let it take the job, and kill at once: some run a job again after a while although nobody died."""
        with self._noting_failure():
            run = self._run
            run.control.hold(HELD)
            run.until(
                lambda: run.record.holder is not None, self._work, within=START_SECONDS, what="it did not start"
            )
            holder = run.record.holder
            assert holder is not None
            self._killed_at = time.time()
            if self._whole_group:
                self._work.kill()
                self._start_again()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(holder, signal.SIGKILL)

    @property
    def killed(self) -> bool:
        return self._killed_at > 0

    def look(self) -> None:
        """Note what has become of it, if it is decided."""
        with self._noting_failure():
            if self._run.record.count(HELD) > 1:
                seconds = self._run.record.start(HELD) - self._killed_at
                self.found = Figure(max(0.0, seconds), "s", {"restarted": self._restarted})
            elif time.time() - self._killed_at > self.subject.scale.recovery_seconds:
                limit = self.subject.scale.recovery_seconds
                raise NeverHappened(f"not within {limit:g} s", limit=limit)
            elif not self._work.running:
                if self._restarted:
                    self._work.check()
                self._start_again()

    def close(self) -> None:
        self._open.close()

    def _start_again(self) -> None:
        """As any process manager would."""
        self._restarted = True
        self._work = self._open.enter_context(self._run.work(PROCESSES))

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except NoFigure as reason:
            self.found = reason
        except Exception as error:  # noqa: BLE001 - one peer's trouble must not end the wait of the others
            self.found = PeerFailed(f"{type(error).__name__}: {error}")


def _still(waiting: Iterable[_Waiting]) -> Iterator[_Waiting]:
    return (each for each in waiting if each.found is None)


def _each_of(waiting: Iterable[_Waiting], do: Callable[[_Waiting], None]) -> None:
    """Some at once; after Ctrl-C, only those that have begun."""
    pool = ThreadPoolExecutor(STARTED_AT_ONCE)
    try:
        list(pool.map(do, waiting))
    finally:
        pool.shutdown(cancel_futures=True)
