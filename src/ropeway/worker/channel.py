"""What parent and child say to one another."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from ropeway.core.schedule import NewSchedule
from ropeway.observability.metrics import TallyDelta
from ropeway.worker.options import WorkerOptions

# ── parent → child ──


class Begin(msgspec.Struct, tag="begin"):
    """The first message: who the child is and what it does. `owner` is the secret its grants belong to."""

    target: str
    flags: dict[str, Any]
    options: WorkerOptions
    worker_id: str
    owner: UUID


class Kept(msgspec.Struct, tag="kept"):
    """From now on the parent beats for this child: it may claim."""


class Revoked(msgspec.Struct, tag="revoked"):
    """These jobs are no longer this child's: stop them, write nothing."""

    ids: list[UUID]


class Recheck(msgspec.Struct, tag="recheck"):
    """The parent could not beat for a whole lease: ask the engine which leases are still good."""


class Quiet(msgspec.Struct, tag="quiet"):
    """Stop (or go on) claiming; what runs goes on."""

    on: bool


class Stop(msgspec.Struct, tag="stop"):
    """Claim nothing more, finish for at most so many seconds (None: however long), release the rest, exit."""

    drain_seconds: float | None


# ── child → parent ──


class Hello(msgspec.Struct, tag="hello"):
    """The app is loaded: what the parent needs of it."""

    settings: dict[str, Any]
    types: list[str]
    schedules: list[NewSchedule]


class Refused(msgspec.Struct, tag="refused"):
    """It cannot work as it is set up; trying again would not help."""

    message: str


class Ready(msgspec.Struct, tag="ready"):
    """Claiming has begun."""


class Told(msgspec.Struct, tag="told"):
    """What was counted since the last time."""

    delta: TallyDelta


class Retiring(msgspec.Struct, tag="retiring"):
    """The child has reached one of its limits: it drains and exits, start another."""

    reason: str


ToChild = Begin | Kept | Revoked | Recheck | Quiet | Stop
ToParent = Hello | Refused | Ready | Told | Retiring
