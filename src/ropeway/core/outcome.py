"""How a run ended, as the worker saw it. Core turns an outcome into a `Transition` (decide.py)."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

import msgspec

from ropeway.core.payload import JobError
from ropeway.core.states import DeadReason, Verb


class Done(msgspec.Struct, frozen=True):
    """The handler finished. `result` is JSON bytes; whatever is wrong with it, the job has succeeded (G14)."""

    verb: ClassVar[Verb] = Verb.ACK
    result: bytes | None = None


class Failed(msgspec.Struct, frozen=True):
    """The handler failed. `retry` False gives up at once; `retry_after` overrides the policy's delay (seconds)."""

    verb: ClassVar[Verb] = Verb.NACK
    error: JobError
    retry: bool = True
    retry_after: float | None = None
    reason: DeadReason = DeadReason.REJECTED


class Snoozed(msgspec.Struct, frozen=True):
    """The handler wants to be called again later; the attempt does not count. Exactly one field is set."""

    verb: ClassVar[Verb] = Verb.SNOOZE
    delay: float | None = None
    run_at: datetime | None = None


class Released(msgspec.Struct, frozen=True):
    """Not run after all (shutdown, unstarted prefetch): back to its place in line, the attempt does not count."""

    verb: ClassVar[Verb] = Verb.RELEASE


class Lost(msgspec.Struct, frozen=True):
    """The owner of the lease is gone: its lease expired, or its supervisor saw the process die (`timeout`: it was
    killed for a job that would not stop when its time was over)."""

    verb: ClassVar[Verb] = Verb.LOSE
    cause: Literal["expired", "crashed", "timeout"] = "crashed"
    exit_code: int | None = None
    signal: int | None = None
    peak_rss_bytes: int | None = None


Outcome = Done | Failed | Snoozed | Released | Lost
