"""The parts of batches that need a lease, as bytes; and what comes back for each.

Whatever a handler returns or says is sent in a form that the server takes, and marked if it had to be repaired for
that: an outcome is never refused for its contents (G14).
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from ropeway.core.errors import PayloadError, RopewayError
from ropeway.core.events import rfc3339
from ropeway.core.fields import MAX_BATCH
from ropeway.core.job import Progress
from ropeway.core.joblog import LogLine, kept_line
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Snoozed
from ropeway.core.payload import check_payload
from ropeway.core.retry import MAX_DELAY
from ropeway.core.states import State
from ropeway.engines import settling
from ropeway.engines.protocol import Beat, Settled
from ropeway.wire.problems import Problem, error_of
from ropeway.wire.requests import MAX_LOG_LINES
from ropeway.wire.tokens import format_token

#: Bytes of the items of one request: the server takes 16 MiB, with what is round them.
MAX_BODY = 16 * 1_048_576 - 1_024
#: A result beyond this is not sent, only that there was one: with the text round it, it would not fit a request.
MAX_RESULT = 11 * 1_048_576
#: Log lines that one item may bring.
MAX_LINES = MAX_LOG_LINES

_NOW = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_ATTEMPT = 2**31 - 1

_encode = msgspec.json.Encoder().encode


class Item(NamedTuple):
    """One part of a batch: where it stands in the caller's, whose lease it needs, and its bytes."""

    place: int
    lease: Lease
    body: bytes


class ItemReply(msgspec.Struct):
    """The answer to one item, of any verb."""

    id: UUID
    ok: bool
    error: Problem | None = None
    status: State | None = None
    attempts: int | None = None
    run_at: datetime | None = None
    retry_in_ms: float | None = None
    expires_in: float = 0.0
    revoked: tuple[UUID, ...] = ()
    sanitized: bool = False
    truncated: bool = False
    result_too_large: bool = False
    already_acked: bool = False
    already_nacked: bool = False
    already_snoozed: bool = False
    already_released: bool = False
    already_lost: bool = False

    @property
    def already(self) -> bool:
        return (
            self.already_acked
            or self.already_nacked
            or self.already_snoozed
            or self.already_released
            or self.already_lost
        )

    def settled(self) -> Settled:
        assert self.status is not None, "the reply to an outcome has a status"  # noqa: S101
        if self.already:
            return Settled(self.id, self.status, already=True)
        return Settled(
            self.id,
            self.status,
            attempts=self.attempts,
            run_at=self.run_at,
            retry_in=None if self.retry_in_ms is None else self.retry_in_ms / 1000,
            sanitized=self.sanitized,
            truncated=self.truncated,
            result_too_large=self.result_too_large,
        )

    def beat(self) -> Beat:
        return Beat(self.expires_in, self.revoked)

    def refusal(self) -> RopewayError:
        assert self.error is not None, "an item that is not ok says why"  # noqa: S101
        return error_of(self.error)


class BatchReply(msgspec.Struct):
    results: list[ItemReply]


def settle_item(lease: Lease, outcome: Outcome) -> bytes:
    """An outcome that `settling.clean` has passed."""
    item = _ticket(lease)
    match outcome:
        case Done(result):
            item.update(_result(result))
        case Failed():
            item.update(_failure(outcome))
        case Snoozed(delay, run_at):
            item.update({"delay": delay} if run_at is None else {"run_at": rfc3339(run_at)})
        case Lost():
            item.update(lost_fields(outcome))
    return _encode(item)


def heartbeat_item(lease: Lease, lease_seconds: float | None) -> bytes:
    item = _ticket(lease)
    if lease_seconds is not None:
        item["lease_seconds"] = lease_seconds
    return _encode(item)


def progress_item(lease: Lease, progress: Progress) -> bytes:
    note = settling.clean_progress(progress, _NOW)
    return _encode({**_ticket(lease), "done": note.done, "total": note.total, "message": note.message})


def log_item(lease: Lease, lines: Sequence[LogLine]) -> bytes:
    kept = [kept_line(line, attempt=0, n=0, at=None) for line in lines]
    logs = [{"level": line.level, "message": line.message} for line in kept]
    return _encode({**_ticket(lease), "logs": logs})


def lost_fields(lost: Lost) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(lost).items() if value is not None}


def _ticket(lease: Lease) -> dict[str, Any]:
    if not 0 <= lease.attempt <= _LARGEST_ATTEMPT:
        # No job has had such an attempt, nor attempt 0.
        lease = Lease(lease.job_id, 0, lease.token)
    return {"id": str(lease.job_id), "lease_token": format_token(lease)}


def _result(result: bytes | None) -> dict[str, Any]:
    if result is None:
        return {}
    if len(result) > MAX_RESULT:
        return {"result_too_large": True}
    try:
        check_payload(result, max_bytes=MAX_RESULT)
    except PayloadError:
        # Not JSON that can stand in a request: the store repairs it, and says so.
        return {"result_base64": b64encode(result).decode()}
    return {"result": msgspec.Raw(result)}


def _failure(outcome: Failed) -> dict[str, Any]:
    retry_after = outcome.retry_after
    if retry_after is not None:
        retry_after = None if math.isnan(retry_after) else min(max(retry_after, 0.0), MAX_DELAY)
    return {
        "error": msgspec.to_builtins(outcome.error),
        "retry": outcome.retry,
        "retry_after": retry_after,
        "reason": outcome.reason,
    }


def requests_of(sent: Iterable[Item]) -> Iterator[list[Item]]:
    """Items in order, as many together as one request may hold."""
    some: list[Item] = []
    size = 0
    for item in sent:
        if some and (len(some) == MAX_BATCH or size + len(item.body) > MAX_BODY):
            yield some
            some, size = [], 0
        some.append(item)
        size += len(item.body) + 1
    if some:
        yield some
