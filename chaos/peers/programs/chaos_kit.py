"""What the handler of every peer does under faults. It runs in the peer's own environment: standard library only.

    CHAOS_SETTINGS   default or safest: which of its settings the peer is to use
    CHAOS_LEDGER     the file that handlers append to: a line when a run starts, a line when its effect is done
    CHAOS_SCRIPT     a file with a JSON list: what the job of each index is to do; jobs beyond it do nothing
    CHAOS_LEASE      seconds of a lease that is renewed while a job runs, in the safest settings
    CHAOS_TIMEOUT    seconds of what must be longer than the longest job, in the safest settings

A line is one write to a file opened with O_APPEND: lines of several processes do not mix, and what is written
stays when its writer is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

_numbers = itertools.count(1)


def safest() -> bool:
    """Whether the safest settings are asked for."""
    return os.environ.get("CHAOS_SETTINGS") == "safest"


def lease() -> int:
    return int(os.environ["CHAOS_LEASE"])


def timeout() -> int:
    return int(os.environ["CHAOS_TIMEOUT"])


class Step(NamedTuple):
    """What one run of a job does: `do` it for so many seconds."""

    do: str
    seconds: float


def perform(index: int) -> Any:
    """The job of that index, in a plain handler; what the handler is to return."""
    run, step = _begin(index)
    if step.do == "sleep":
        time.sleep(step.seconds)
    else:
        _in_the_way(step)
    return _end(index, run, step)


async def aperform(index: int) -> Any:
    """The same in an async handler, which blocks its event loop where the job is to be in the way."""
    run, step = _begin(index)
    if step.do == "sleep":
        await asyncio.sleep(step.seconds)
    else:
        _in_the_way(step)
    return _end(index, run, step)


def _in_the_way(step: Step) -> None:
    match step.do:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(1)
        case "block":
            time.sleep(step.seconds)
        case "hold":
            _hold_the_interpreter(step.seconds)


def _hold_the_interpreter(seconds: float) -> None:
    """No other thread of the process runs meanwhile, as in a long call of a C library; it takes no CPU time."""
    library = ctypes.PyDLL(None)  # unlike CDLL it keeps the interpreter's lock
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        library.sleep(max(1, round(left)))  # a signal may end it early


def _begin(index: int) -> tuple[str, Step]:
    run = f"{os.getpid()}.{next(_numbers)}"
    step = _step(index, again=_ran_before(index))
    _note("start", index, run)
    return run, step


def _end(index: int, run: str, step: Step) -> Any:
    _note("effect", index, run)
    return "before\0after" if step.do == "nul" else None


def _step(index: int, *, again: bool) -> Step:
    script = json.loads(Path(os.environ["CHAOS_SCRIPT"]).read_text())
    if index >= len(script):
        return Step("sleep", 0.0)
    asked = script[index]
    return Step(asked["do"], asked["again"] if again else asked["seconds"])


def _ran_before(index: int) -> bool:
    ledger = Path(os.environ["CHAOS_LEDGER"])
    return ledger.exists() and f'"job": {index},'.encode() in ledger.read_bytes()


def _note(what: str, index: int, run: str) -> None:
    line = json.dumps({"t": time.time(), "op": what, "job": index, "run": run, "pid": os.getpid()})
    ledger = os.open(os.environ["CHAOS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(ledger, line.encode() + b"\n")
    finally:
        os.close(ledger)
