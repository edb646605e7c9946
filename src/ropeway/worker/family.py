"""One child as its parent knows it: the process, the line to it, its ledger, and how it died."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import NamedTuple
from uuid import UUID

from ropeway.core.outcome import Lost
from ropeway.runtime import ids
from ropeway.runtime.memory import held_bytes
from ropeway.worker.channel import Begin, ToChild, ToParent
from ropeway.worker.ledger import Ledger
from ropeway.worker.line import Line
from ropeway.worker.options import WorkerOptions, worker_name


class Death(NamedTuple):
    """How a process ended."""

    exit_code: int | None
    signal: int | None
    peak_rss_bytes: int

    @property
    def clean(self) -> bool:
        return self.exit_code == 0

    def as_lost(self, *, for_timeout: bool = False) -> Lost:
        return Lost(
            "timeout" if for_timeout else "crashed",
            exit_code=self.exit_code,
            signal=self.signal,
            peak_rss_bytes=self.peak_rss_bytes or None,
        )

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.exit_code}"
        with contextlib.suppress(ValueError):
            return f"signal {self.signal} ({signal.Signals(self.signal).name})"
        return f"signal {self.signal}"


class Child:
    """Start it with `await Child.start(..)`; `death` is done when it is gone."""

    def __init__(
        self, process: subprocess.Popen[bytes], line: Line, ledger: Ledger, name: str, owner: UUID
    ) -> None:
        self.process = process
        self.line = line
        self.ledger = ledger
        self.name = name
        self.owner = owner
        self.started = time.monotonic()
        self.ready = False
        self.retiring = False
        #: It was killed because a job's time was over: for `victim`, if it is known who held it up.
        self.killed_for_time = False
        self.victim: UUID | None = None
        #: When the engine last took a heartbeat for it.
        self.beaten = time.monotonic()
        #: The parent ended it on purpose: what runs is given back, not lost.
        self.put_down = False
        #: Its interpreter stands still, and that was told.
        self.held = False
        loop = asyncio.get_running_loop()
        self.death: asyncio.Future[Death] = loop.create_future()
        # A thread that waits is told at once, on every system; a loop's own child watcher gives no memory figures.
        threading.Thread(target=self._wait, args=(loop,), daemon=True, name=f"wait-{process.pid}").start()

    @classmethod
    async def start(cls, index: int, target: str, flags: dict[str, object], options: WorkerOptions) -> Child:
        ours, theirs = socket.socketpair()
        ledger = Ledger.create()
        try:
            process = cls._spawned(theirs, ledger)
        except BaseException:
            ours.close()
            ledger.close()
            raise
        finally:
            theirs.close()
        owner = ids.token()
        name = worker_name(index)
        line = await Line.over(ours, ToParent)
        line.send(Begin(target, flags, options, name, owner))
        return cls(process, line, ledger, name, owner)

    @staticmethod
    def _spawned(theirs: socket.socket, ledger: Ledger) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - every word of it is ours
            [sys.executable, "-m", "ropeway.worker.child", str(theirs.fileno()), str(ledger.fd)],
            pass_fds=(theirs.fileno(), ledger.fd),
            stdin=subprocess.DEVNULL,
            # A group of its own: the terminal's Ctrl-C does not reach it, and what it leaves behind can be ended.
            process_group=0,
        )

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        _, status, usage = os.wait4(self.process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        # ru_maxrss is in KiB on Linux, in bytes on macOS.
        peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        death = Death(code if code >= 0 else None, -code if code < 0 else None, peak)
        self.process.returncode = code
        self.kill_group()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            loop.call_soon_threadsafe(self._tell, death)
        # What it left behind has this process for a parent now, if it is the first one of a container.
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-self.process.pid, 0)

    def _tell(self, death: Death) -> None:
        if not self.death.done():
            self.death.set_result(death)

    @property
    def alive(self) -> bool:
        return not self.death.done()

    def send(self, message: ToChild) -> None:
        self.line.send(message)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.alive:
                os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End it and everything it started."""
        self.signal(signal.SIGKILL)
        self.kill_group()

    def kill_group(self) -> None:
        """End what a dead child left behind: processes of isolated jobs."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def went_on_purpose(self) -> bool:
        """It left by itself when its work was over, or the parent ended it."""
        return self.put_down or self.ledger.has_left()

    def guilty(self) -> set[UUID]:
        """The jobs that ran in the child itself when it ended: one of them may have killed it."""
        if self.went_on_purpose:
            return set()
        if self.victim is not None:
            return {self.victim}
        return {running.job_id for running in self.ledger.running() if not running.isolated}

    def rss_bytes(self) -> int | None:
        """What it holds now, where the system tells."""
        return held_bytes(self.process.pid)

    def close(self) -> None:
        self.line.close()
        self.ledger.close()
