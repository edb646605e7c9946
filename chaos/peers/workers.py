"""Workers of a peer that are kept: whoever ends is started again at once, as a process manager would."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

from bench.peers.groups import Work
from chaos.peers.ledger import Handled, Kill


@dataclass(frozen=True)
class Busy:
    """A worker that runs something, and one process of it that does."""

    work: Work
    pid: int
    jobs: frozenset[int]


class Workers:
    """So many workers of one process each. All of them are gone after the `with` block."""

    def __init__(self, start: Callable[[], Work], number: int) -> None:
        self._start = start
        self._number = number
        self._works: list[Work] = []
        self.restarts = 0

    def __enter__(self) -> Workers:
        try:
            while len(self._works) < self._number:
                self._works.append(self._start())
        except BaseException:
            self._end_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_all()

    def tend(self) -> None:
        """Start again whoever has ended."""
        for place, work in enumerate(self._works):
            if not work.running:
                _end(work)
                self._works[place] = self._start()
                self.restarts += 1

    def last_words(self) -> str:
        """What they wrote last."""
        return " | ".join(work.last_words() for work in self._works)

    def busy(self, runs: Iterable[Handled]) -> list[Busy]:
        """Those that run a handler now."""
        running = [run for run in runs if run.effect is None]
        found = []
        for work in self._works:
            members = set(work.members())
            own = [run for run in running if run.pid in members]
            if own:
                found.append(Busy(work, own[0].pid, frozenset(run.job for run in own)))
        return found

    def kill(self, busy: Busy, *, whole: bool) -> Kill:
        """SIGKILL to the process that runs a handler, or to the whole worker."""
        pids = freeze(busy.work) if whole else [busy.pid]  # nobody of a dying host sees the others die
        at = time.time()
        if whole:
            busy.work.kill()
        else:
            _signal(pids, signal.SIGKILL)
        return Kill(at, frozenset(pids), whole)

    def _end_all(self) -> None:
        for work in self._works:
            _end(work)


def freeze(work: Work) -> list[int]:
    """Stop every process of a worker where it stands; which they are."""
    pids = work.members()
    _signal(pids, signal.SIGSTOP)
    return pids


def thaw(pids: Iterable[int]) -> None:
    """Let them go on."""
    _signal(pids, signal.SIGCONT)


def _end(work: Work) -> None:
    with work:
        pass  # leaving it ends it


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
