"""What a child runs, as its parent reads it."""

from __future__ import annotations

import os
import signal
from uuid import UUID, uuid4

from ropeway.worker.ledger import Ledger, Running


def test_the_parent_sees_what_the_child_writes_also_when_the_child_is_dead() -> None:
    ledger = Ledger.create(slots=3)
    first, second = uuid4(), uuid4()
    pid = os.fork()
    if pid == 0:
        mine = Ledger(ledger.fd, 3)
        mine.start(0, first, 10.0, 20.0, isolated=False)
        mine.start(2, second, 11.0, 0.0, isolated=True)
        mine.start(1, UUID(int=1), 12.0, 0.0, isolated=False)
        mine.end(1)
        mine.alive(1.5)
        mine.watched(2.5)
        mine.claimed(3.5)
        mine.finished(7)
        os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert ledger.running() == [Running(first, 10.0, 20.0, False), Running(second, 11.0, 0.0, True)]
    assert (ledger.last_alive(), ledger.last_watched(), ledger.last_claimed()) == (1.5, 2.5, 3.5)
    assert ledger.jobs_finished() == 7
    assert not ledger.has_left()
    ledger.close()


def test_a_start_counts_when_it_was_written_to_the_end() -> None:
    """The first byte is the last written: whoever dies before it has told nothing."""
    ledger = Ledger.create(slots=1)
    ledger.start(0, uuid4(), 1.0, 2.0, isolated=False)
    ledger.end(0)
    assert ledger.running() == []
    # The entry's body of a start that was cut off, and the byte that makes it count still missing.
    ledger._map[72:88] = uuid4().bytes
    assert ledger.running() == []
    ledger.close()


def test_who_leaves_says_so() -> None:
    ledger = Ledger.create(slots=1)
    ledger.leave()
    assert ledger.has_left()
    ledger.close()
