"""Who is at work: what a worker tells of itself, so that people can see the fleet."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, get_args

import msgspec

from ropeway.core import fields
from ropeway.core.errors import FieldError

WorkerState = Literal["running", "quiet", "draining"]

#: Seconds after which a worker that was not heard of is forgotten by `prune`.
FORGET_AFTER = 86_400.0

#: Seconds within which a worker counts as there, unless the question says otherwise: it reports every ten.
SEEN_WITHIN = 60.0

_MOST = 2**31 - 1


class WorkerInfo(msgspec.Struct, frozen=True):
    """One worker, as it last reported itself. Both times are the engine's: what a report says there is ignored.

    `started_at` is the first report of this process (host and pid), `seen_at` the newest.
    """

    id: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    types: tuple[str, ...]
    slots: int
    running: int
    rss_bytes: int | None = None
    state: WorkerState = "running"
    started_at: datetime | None = None
    seen_at: datetime | None = None

    def __post_init__(self) -> None:
        fields.check_text(self.id, "id", limit=128)
        fields.check_text(self.host, "host", limit=256)
        fields.check_text(self.version, "version", limit=64)
        for field in ("queues", "types"):
            names = getattr(self, field)
            if not isinstance(names, tuple):
                raise FieldError(f"{field} must be a tuple of names", pointer=f"/{field}")
            for name in names:
                fields.check_name(name, field)
        for field in ("pid", "slots", "running"):
            fields.check_integer(getattr(self, field), field, 0, _MOST)
        if self.rss_bytes is not None:
            fields.check_integer(self.rss_bytes, "rss_bytes", 0, 2**63 - 1)
        if self.state not in get_args(WorkerState):
            raise FieldError(f"state must be one of {', '.join(get_args(WorkerState))}", pointer="/state")

    def same_process(self, other: WorkerInfo) -> bool:
        """Whether two reports under one id come from one process; another one starts its own time."""
        return (self.host, self.pid) == (other.host, other.pid)


def check_seen_within(seconds: float) -> float:
    """How long ago a worker may have been heard of to be listed."""
    return fields.check_seconds(seconds, "seen_within", 0, fields.HORIZON_SECONDS)
