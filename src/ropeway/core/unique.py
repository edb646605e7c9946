"""Keys that keep a second job out: idempotency keys and unique jobs, and how long each holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import msgspec

from ropeway.core import fields
from ropeway.core.errors import FieldError
from ropeway.core.payload import canonical_json
from ropeway.core.states import LIVE_STATES, State

if TYPE_CHECKING:
    from ropeway.core.job import NewJob

#: Seconds that an idempotency key holds by default; 0 means for ever.
DEFAULT_WINDOW = 86_400.0

_LIVE_OR_SUCCEEDED = LIVE_STATES | {State.SUCCEEDED}


class KeyKind(StrEnum):
    """The two spaces of keys; they never meet."""

    IDEMPOTENCY = "idempotency"
    UNIQUE = "unique"


class Unique(msgspec.Struct, frozen=True):
    """Only one such job at a time (or within a window).

    `by="args"`: same type, queue and payload. `by="key"`: same type and `key`. A new job is answered with the
    existing one when that one is in `states` and, if `within` is given, was enqueued less than `within` seconds
    ago. Default states: the live ones; with `within` also `succeeded`.
    """

    by: Literal["args", "key"] = "args"
    key: str | None = None
    within: float | None = None
    states: frozenset[State] | None = None

    def __post_init__(self) -> None:
        if self.by not in ("args", "key"):
            raise FieldError("unique.by must be 'args' or 'key'", pointer="/unique/by")
        if (self.by == "key") != (self.key is not None):
            raise FieldError("unique.key goes with by='key', and only with it", pointer="/unique/key")
        if self.key is not None:
            fields.check_key(self.key, "unique/key")
        if self.within is not None:
            fields.check_seconds(self.within, "unique/within", 0.001, fields.HORIZON_SECONDS)

    @property
    def blocking_states(self) -> frozenset[State]:
        """The states of an existing job that keep a new one out."""
        if self.states is not None:
            return self.states
        return LIVE_STATES if self.within is None else _LIVE_OR_SUCCEEDED

    def hit(self, *, state: State | None, enqueued_at: datetime, now: datetime) -> bool:
        """Whether an existing job (`state` None: pruned) keeps a new one out."""
        if state is None or state not in self.blocking_states:
            return False
        return self.within is None or now - enqueued_at < timedelta(seconds=self.within)


def unique_key(job: NewJob) -> str | None:
    """The text under which a unique job is remembered; None when it is not unique."""
    if job.unique is None:
        return None
    if job.unique.by == "key":
        return f"key:{job.type}:{job.unique.key}"
    digest = hashlib.sha256(canonical_json(job.payload)).hexdigest()
    return f"args:{job.type}:{job.queue}:{digest}"


def fingerprint(body: Mapping[str, object], payload: bytes) -> bytes:
    """SHA-256 of a job's body as canonical JSON: the same key with another fingerprint is a mismatch.

    `body` holds everything but the payload and the key; the payload's numbers count as they were written.
    """
    digest = hashlib.sha256(msgspec.json.encode(body, order="sorted"))
    digest.update(b"\n")
    digest.update(canonical_json(payload))
    return digest.digest()


def key_until(now: datetime, window: float) -> datetime | None:
    """When an idempotency key's window ends; None is never."""
    return None if window == 0 else now + timedelta(seconds=window)


def key_is_free(*, until: datetime | None, now: datetime, job_ended: bool) -> bool:
    """A key may be taken over after its window and the end of its job."""
    return job_ended and until is not None and until <= now
