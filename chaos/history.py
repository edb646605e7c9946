"""Histories: what every process asked for and was told, one JSON line each, in files outside the engine.

A line is appended in one write, and the page cache outlives a `kill -9`, so what a process said before it died is
there. Times are those of the machine's monotonic clock, which all processes share and no fault moves.

Lines of calls come in pairs: `invoke` before the call, then `ok` (answered), `fail` (refused: nothing was done) or
`info` (nobody knows). A call whose process died has no second line, which is `info` too.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

if TYPE_CHECKING:
    from ropeway import JobContext

#: What a process does besides calls: `start` and `end` of handlers, `fault` of the nemesis, `phase` of the run.
INVOKE: Final = "invoke"
OK: Final = "ok"
FAIL: Final = "fail"
INFO: Final = "info"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Recorder:
    """One process's history. Safe to use from threads: each line is one `write` to a file opened for appending."""

    def __init__(
        self, folder: Path, process: str, *, clock: Callable[[], float] = time.monotonic, pid: int | None = None
    ) -> None:
        self.process = process
        self._clock = clock
        self._numbers = itertools.count(1)
        folder.mkdir(parents=True, exist_ok=True)
        self.pid = os.getpid() if pid is None else pid
        name = folder / f"{process}.{self.pid}.jsonl"
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, op: str, phase: str, **facts: Any) -> None:
        line = {"t": self.now(), "process": self.process, "pid": self.pid, "op": op, "phase": phase}
        os.write(self._file, _encode(line | facts) + b"\n")

    def invoke(self, op: str, **facts: Any) -> int:
        """A call is about to be made; its number ties it to its answer."""
        number = next(self._numbers)
        self.write(op, INVOKE, n=number, **facts)
        return number

    def now(self) -> float:
        return round(self._clock(), 6)

    def close(self) -> None:
        os.close(self._file)


class Lines:
    """The same in memory, for simulated processes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.lines: list[dict[str, Any]] = []
        self._clock = clock
        self._numbers = itertools.count(1)

    def recorder(self, process: str) -> LineRecorder:
        return LineRecorder(self, process)

    def add(self, process: str, pid: int, op: str, phase: str, facts: dict[str, Any]) -> None:
        line = {"t": self._clock(), "process": process, "pid": pid, "op": op, "phase": phase}
        self.lines.append(line | facts)

    def number(self) -> int:
        return next(self._numbers)


class LineRecorder:
    """One simulated process's part of it. It gets its number when it starts."""

    def __init__(self, lines: Lines, process: str) -> None:
        self.process = process
        self.pid = 0
        self._lines = lines

    def write(self, op: str, phase: str, **facts: Any) -> None:
        self._lines.add(self.process, self.pid, op, phase, facts)

    def invoke(self, op: str, **facts: Any) -> int:
        number = self._lines.number()
        self.write(op, INVOKE, n=number, **facts)
        return number


def dying(recorder: Recorder, *, job: str, attempt: int, within: float = 0.0) -> None:
    """The last words of a process that a job is about to end: at once, or when somebody ends it for that, `within`
    so many seconds. A fault of the kind `pill`, of this very process."""
    until = recorder.now() + within
    facts = {"kind": "pill", "target_pid": recorder.pid, "whole": False, "until": until}
    recorder.write("fault", OK, **facts, job=job, attempt=attempt)


def read(folder: Path) -> list[dict[str, Any]]:
    """All lines of all processes of one run, by time. A last line that was cut off is left out."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in _lines_of(path)]
    return sorted(lines, key=lambda line: float(line["t"]))


def _lines_of(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for raw in file:
            if raw.endswith(b"\n"):
                yield _decode(raw)


def token_hash(token: UUID) -> str:
    """What a history says of a lease's secret: enough to tell two apart, nothing to use."""
    return hashlib.blake2b(token.bytes, digest_size=8).hexdigest()


def ticket_of(ctx: JobContext) -> str:
    """The same of the lease that a handler runs under: the one which its worker will report with."""
    backend: Any = ctx._backend  # noqa: SLF001 - handlers have no use for it, histories do
    return token_hash(backend._run.leased.lease.token)  # noqa: SLF001
