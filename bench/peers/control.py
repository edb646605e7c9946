"""A peer's control program, seen from the harness: a process that is asked in JSON lines (see programs/kit.py)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers.failing import Deadline, PeerFailed, Unsupported
from bench.peers.groups import last_words
from bench.peers.sizing import Stage

#: How long it may take to close what it opened.
CLOSE_SECONDS = 2.0


class Control:
    """Asks one thing at a time and waits for the answer, no longer than the deadline lets it.

    PeerFailed when the peer raised an error, died or took too long; Unsupported when it has no such call.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path, deadline: Deadline) -> None:
        self._deadline = deadline
        self._folder = folder
        self._log = folder / f"control-{os.urandom(4).hex()}.log"
        self._unread = b""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._answer()  # it says when it is ready
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── what may be asked ──

    def setup(self) -> None:
        self.ask("setup")

    def single(self, first: int, number: int, *, in_flight: int = 50) -> dict[str, Any]:
        """Enqueue one by one; `seconds` it took and `cpu_seconds` of the producer."""
        return self.ask("single", first=first, number=number, in_flight=in_flight)

    def bulk(self, first: int, number: int, *, batch: int = 1_000) -> dict[str, Any]:
        """The same by the peer's call for many."""
        return self.ask("bulk", first=first, number=number, batch=batch)

    def paced(self, first: int, pauses: Sequence[float]) -> array[float]:
        """One job after each pause; when each call was made, in seconds since 1970."""
        return self._timed("paced", first, pauses=list(pauses))[0]

    def load(self, first: int, stages: Sequence[Stage]) -> tuple[array[float], list[int]]:
        """So many jobs a second for so many seconds, stage after stage, or as many of them as it can send: when
        each call was made, and how many there were in each stage."""
        times, answer = self._timed("load", first, stages=[[*stage, stage.jobs] for stage in stages])
        return times, list(map(int, answer["sent"]))

    def _timed(self, do: str, first: int, **about: Any) -> tuple[array[float], dict[str, Any]]:
        path = self._folder / f"sent-{first}"
        answer = self.ask(do, first=first, path=str(path), **about)
        times = array("d")
        times.frombytes(path.read_bytes())
        return times, answer

    def hold(self, index: int) -> None:
        self.ask("hold", index=index)

    def pending(self) -> int:
        return int(self.ask("pending")["pending"])

    def finished(self) -> int | None:
        number = self.ask("finished")["finished"]
        return None if number is None else int(number)

    def ask(self, do: str, **about: Any) -> dict[str, Any]:
        self.send(do, **about)
        return self._answer()

    def send(self, do: str, **about: Any) -> None:
        """Ask without waiting: `receive` gives the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **about}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._gone() from error

    def receive(self) -> dict[str, Any]:
        return self._answer()

    def close(self) -> None:
        """The end of its input is its sign to close what it opened; it is killed if it takes too long."""
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            # One that has not answered in time is not listening.
            self._process.wait(timeout=CLOSE_SECONDS if self._deadline.remaining > 0 else 0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    # ── lines ──

    def _answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._line())
        if "unsupported" in answer:
            raise Unsupported(answer["unsupported"] or "it has no such call")
        if "error" in answer:
            raise PeerFailed(str(answer["error"])[:600])
        return answer

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._process.stdout], [], [], self._deadline.left)
            if not ready:
                continue  # the deadline says so when it is asked again
            news = os.read(self._process.stdout.fileno(), 65_536)
            if not news:
                raise self._gone()
            self._unread += news
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _gone(self) -> PeerFailed:
        return PeerFailed(f"its control program ended: {last_words(self._log)}")
