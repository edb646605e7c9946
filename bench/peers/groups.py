"""A worker with all processes that it starts: the time they use, the memory they hold, and their end.

They live under a guard process (devtools.private.Household): it inherits whatever a worker leaves behind, so every
process of the group is found, also one in a session of its own, and none outlives the harness, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.peers.failing import PeerFailed
from devtools.private import Household

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 1024**2

#: How long a worker may take to stop when it is asked to; what it would do afterwards is of no interest.
STOP_SECONDS = 1.0


class Work:
    """A running worker. Leaving the `with` block ends it: asked first, then killed with all its processes."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._home = Household("ropeway-bench-work-", account=None, stop_signal=signal.SIGKILL)
        self._log = self._home.folder / "log"
        try:
            self.pid = self._home.start(command, log=self._log, env=dict(env))
        except BaseException:
            self._home.close()
            raise

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._home.close()

    # ── whether it runs ──

    @property
    def running(self) -> bool:
        return self._home.exit_code(self.pid) is None

    def check(self) -> None:
        """Raise PeerFailed if it has ended: nothing that is waited for would come."""
        code = self._home.exit_code(self.pid)
        if code is not None:
            raise PeerFailed(f"the worker ended with {code}: {self.last_words()}")

    def last_words(self) -> str:
        """The end of what it wrote, as one line."""
        return last_words(self._log)

    # ── what it uses ──

    def members(self) -> list[int]:
        """Every living process of the group."""
        children: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                children.setdefault(int(_fields(stat)[1]), []).append(int(stat.parent.name))
        found: list[int] = []
        unseen = self._home.processes()
        while unseen:
            pid = unseen.pop()
            found.append(pid)
            unseen += children.get(pid, [])
        return found

    def cpu_seconds(self) -> float:
        """Processor time of the group so far, with that of its processes that have ended."""
        return cpu_seconds_of(self.members())

    def written_bytes(self) -> int:
        """What the group has sent to disks so far, with what its ended processes have."""
        written = 0
        for pid in self.members():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/io").read_text().splitlines():
                    if line.startswith("write_bytes:"):
                        written += int(line.split()[1])
        return written

    # ── its end ──

    def stop(self) -> None:
        """SIGTERM, and after a while the end of the whole group."""
        if self.running:
            self._home.signal(self.pid, signal.SIGTERM)
            until = time.monotonic() + STOP_SECONDS
            while self.running and time.monotonic() < until:
                time.sleep(0.01)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of the group; returns when all are gone."""
        until = time.monotonic() + 10.0
        while members := self.members():
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > until:
                raise PeerFailed(f"processes {members} could not be killed")
            time.sleep(0.01)


class MemoryWatch:
    """The most memory that a group held at once, looked at now and then: looking takes time from the worker."""

    EVERY_SECONDS = 0.25
    #: Processes come and go seldom.
    MEMBERS_EVERY_SECONDS = 1.0

    def __init__(self, work: Work, now: Callable[[], float] = time.monotonic) -> None:
        self._work = work
        self._now = now
        self._members: list[int] = []
        self._members_at = -1e9
        self._looked_at = -1e9
        self.most_mib = 0.0

    def look(self) -> None:
        """Look, if it is time to."""
        now = self._now()
        if now - self._looked_at < self.EVERY_SECONDS:
            return
        if now - self._members_at >= self.MEMBERS_EVERY_SECONDS:
            self._members, self._members_at = self._work.members(), now
        self._looked_at = now
        self.most_mib = max(self.most_mib, sum(map(rss_mib, self._members)))


def rss_mib(pid: int) -> float:
    """Memory that a process holds now; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MIB
    except OSError:
        return 0.0


def cpu_seconds_of(pids: Sequence[int]) -> float:
    """Processor time of these processes, and of children that they have waited for."""
    used = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            # Its own time in user and kernel mode, then that of its children.
            used += sum(map(int, _fields(Path(f"/proc/{pid}/stat"))[11:15]))
    return used / _CLOCK_TICKS


def last_words(log: Path) -> str:
    """The end of a log, as one line."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "(nothing)"
    return " ".join(line.strip() for line in lines[-6:] if line.strip())[-600:] or "(nothing)"


def _fields(stat: Path) -> list[str]:
    """What follows the name: state, parent, … The name itself may hold anything."""
    return stat.read_text().rpartition(")")[2].split()
