"""The stem as its worker has it: forked or spawned, asked for processes, and listened to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Self

from ropeway.runtime import printed
from ropeway.worker import stem
from ropeway.worker.line import Line

#: Seconds that the end of one that was killed may take to be heard of.
CLOSE_SECONDS = 1.0


class StemGone(OSError):
    """It has died: another one is needed."""


class Offspring:
    """A process that was started. `ended` is set when it is gone; never, when its stem went first."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: asyncio.Future[stem.Ended] = asyncio.get_running_loop().create_future()


class Stem:
    def __init__(self, pid: int, requests: socket.socket, news: socket.socket, reap: Callable[[], object]) -> None:
        self.gone = asyncio.Event()
        self._pid = pid
        self._requests = requests
        self._news = news
        self._reap = reap
        self._turn = asyncio.Lock()
        #: By the number of their request. Whoever asked may have been cancelled since.
        self._answers: dict[int, asyncio.Future[Offspring]] = {}
        self._asked = 0
        self._living: dict[int, Offspring] = {}
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    def forked(cls, ours: Collection[int]) -> Self | None:
        """From this process, before it has threads or a loop; None where it has something that must not be shared.

        `ours` are the descriptors of this process that are not for the stem.
        """
        if not _may_fork(ours):
            return None
        (requests, wanted), (news, told) = _sockets()
        printed.write_out()
        try:
            pid = os.fork()
        except OSError:
            for end in (requests, wanted, news, told):
                end.close()
            return None
        if pid == 0:
            stem.live(wanted, told, without=(requests.fileno(), news.fileno(), *ours))
        wanted.close()
        told.close()
        return cls(pid, requests, news, lambda: _wait_for(pid))

    @classmethod
    def spawned(cls, target: str, folder: Path | None = None) -> Self:
        """A program of its own, which loads the app: in a folder, or where this process is."""
        (requests, wanted), (news, told) = _sockets()
        ends = (wanted.fileno(), told.fileno())
        try:
            program = subprocess.Popen(  # noqa: S603 - every word of it is ours
                [sys.executable, "-m", stem.__name__, *map(str, ends), target],
                pass_fds=ends,
                stdin=subprocess.DEVNULL,
                cwd=folder,
            )
        except BaseException:
            requests.close()
            news.close()
            raise
        finally:
            wanted.close()
            told.close()
        return cls(program.pid, requests, news, program.wait)

    async def fork(self, end: socket.socket) -> Offspring:
        """Start a process that is served over this line. Raises OSError when the system has no room for it, and
        StemGone."""
        async with self._turn:
            if self._listening is None:
                self._listening = asyncio.create_task(self._listen())
            if self.gone.is_set():
                raise StemGone
            self._asked += 1
            answer: asyncio.Future[Offspring] = asyncio.get_running_loop().create_future()
            self._answers[self._asked] = answer
            try:
                socket.send_fds(self._requests, [self._asked.to_bytes(stem.NUMBER_BYTES, "big")], [end.fileno()])
            except OSError as error:
                del self._answers[self._asked]
                raise StemGone from error
            return await answer

    async def _listen(self) -> None:
        line = await Line.over(self._news, stem.Started | stem.Ended)
        try:
            while (message := await line.receive()) is not None:
                if isinstance(message, stem.Started):
                    self._answer(message)
                elif (
                    offspring := self._living.pop(message.pid, None)
                ) is not None:  # or a child of the app's import
                    offspring.ended.set_result(message)
        finally:
            self.gone.set()
            line.close()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(StemGone())
            self._reap_soon()

    def _answer(self, message: stem.Started) -> None:
        offspring = Offspring(message.pid)
        if message.pid:
            self._living[message.pid] = offspring
        answer = self._answers.pop(message.number)
        if answer.done():
            return  # nobody waits any more, and the other end of its line is closed: it leaves by itself
        if message.pid:
            answer.set_result(offspring)
        else:
            answer.set_exception(OSError(message.error))

    async def close(self) -> None:
        """End it; whoever it has started ends with its own line."""
        self._requests.close()
        if not self.gone.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=CLOSE_SECONDS)
        else:
            self._news.close()
            self._reap_soon()

    def _reap_soon(self) -> None:
        # Not one of the loop's threads: handlers that do not end may hold all of them.
        threading.Thread(target=self._reap, daemon=True, name="reap-stem").start()


def _sockets() -> tuple[tuple[socket.socket, socket.socket], tuple[socket.socket, socket.socket]]:
    """For requests, and for news: our end and the stem's."""
    return socket.socketpair(type=socket.SOCK_DGRAM), socket.socketpair()


def _wait_for(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # the app waits for whatever ends
        os.waitpid(pid, 0)


def _may_fork(ours: Collection[int]) -> bool:
    """Whether the app's import has left nothing that two processes must not share: threads, sockets, pipes, a
    loop. Known on Linux only."""
    try:
        if len(list(Path("/proc/self/task").iterdir())) > 1:
            return False
        theirs = {int(path.name) for path in Path("/proc/self/fd").iterdir()} - {0, 1, 2, *ours}
        return not any(_is_shared_badly(descriptor) for descriptor in theirs)
    except OSError:
        return False


def _is_shared_badly(descriptor: int) -> bool:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(("socket:", "pipe:", "anon_inode:"))
    except FileNotFoundError:  # that of the listing itself
        return False
