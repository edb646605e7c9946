"""Fault points: named places in the code where the fault experiments may end, delay or fail this process.

They are off, and cost one call of a function that does nothing, unless ROPEWAY_FAULTS is set when the process
starts: `settle.committed=kill:0.01,enqueue.committed=raise:0.2,lease.committed=sleep2:0.05`. Each entry is a
point, what happens there, and how often. `kill` is a SIGKILL to this very process, `sleepN` blocks it for N
seconds, and `raise` is an Indeterminate: done, but nobody is told. What was done is told in the file that
ROPEWAY_FAULTS_LOG names, before it is done; once there is a file of that name with `.healed` behind it, nothing
more is done.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ropeway.core.errors import ConfigurationError, Indeterminate

#: Every point there is. A name that is not here is a mistake of whoever sets the variable. (At `lease.received`
#: `raise` would leave jobs with a worker that beats for them and does not know of them: no network does that.)
POINTS = frozenset(
    {
        # In the store's client, when all is written and not committed: any transaction of SQLite's, and those of
        # PostgreSQL's that have several statements.
        "commit.before",
        # There too, about a commit; most of them before its caller is told.
        "enqueue.committed",
        "lease.committed",
        "settle.before",
        "settle.committed",
        "beat.committed",
        "end.committed",
        "cancel.committed",
        # In a worker, after the answer and before anything is done with it.
        "lease.received",
        "settle.answered",
        # In upkeep, and in what takes many steps.
        "rescue.before",
        "rescue.committed",
        "expire.committed",
        "redrive.between",
        "migrate.between",
        # In a server, when all is done and nobody has been told.
        "api.before_reply",
    }
)


class _Trouble(NamedTuple):
    kind: str
    seconds: float
    share: float


def _nothing(point: str) -> None:
    """The usual case."""


def armed(asked: str, log: str | None = None) -> Callable[[str], None]:
    """What `fault` is when the variable has this value. Raises ConfigurationError."""
    troubles = dict(_entry(each) for each in asked.split(",") if each.strip())

    def fault(point: str) -> None:
        trouble = troubles.get(point)
        if trouble is not None and random.random() < trouble.share:
            if log is not None and Path(f"{log}.healed").exists():
                return
            _tell(log, point, trouble)
            _do(point, trouble)

    return fault


def _entry(text: str) -> tuple[str, _Trouble]:
    point, _, rest = text.strip().partition("=")
    what, _, share = rest.partition(":")
    kind = what.rstrip("0123456789.")
    if point not in POINTS or kind not in ("kill", "sleep", "raise"):
        raise ConfigurationError(
            f"ROPEWAY_FAULTS: {text.strip()!r} is not point=kill|sleepN|raise:share",
            hint=f"the points are {', '.join(sorted(POINTS))}",
        )
    return point, _Trouble(kind, float(what.removeprefix(kind) or 0), float(share or 1))


def _tell(log: str | None, point: str, trouble: _Trouble) -> None:
    if log is None:
        return
    now = time.monotonic()
    line = {
        "t": now,
        "process": "faultpoint",
        "pid": os.getpid(),
        "op": "fault",
        "phase": "ok",
        "kind": "kill" if trouble.kind == "kill" else "point",
        "point": point,
        "target_pid": os.getpid(),
        "until": now + trouble.seconds,
    }
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def _do(point: str, trouble: _Trouble) -> None:
    match trouble.kind:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(trouble.seconds)
        case _:
            raise Indeterminate(f"the fault point {point} was told to lose the answer")


#: Called where something may go wrong.
fault: Callable[[str], None] = (
    armed(os.environ["ROPEWAY_FAULTS"], os.environ.get("ROPEWAY_FAULTS_LOG"))
    if os.environ.get("ROPEWAY_FAULTS")
    else _nothing
)
