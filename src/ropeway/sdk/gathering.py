"""Enqueue calls of one client that are made at the same time: what comes while one is under way goes together."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ropeway.core.errors import Indeterminate
from ropeway.core.fields import MAX_BATCH
from ropeway.runtime.coalesce import Coalescer
from ropeway.wire import paths
from ropeway.wire.calls import Answer, Call
from ropeway.wire.gathering import told_each
from ropeway.wire.models import EnqueuedBrief

T = TypeVar("T")

#: One job on its way: a call of `plans.enqueue`.
OneJob = Call[EnqueuedBrief]


class Sends(Protocol):
    """Whoever sends a call and reads its answer."""

    def send(self, call: Call[T]) -> Awaitable[T]: ...


class Gathering:
    """The single enqueue calls of one client."""

    def __init__(self, transport: Sends) -> None:
        self._transport = transport
        self._calls: Coalescer[OneJob, EnqueuedBrief] = Coalescer(self._flush, limit=MAX_BATCH)

    def submit(self, call: OneJob) -> Awaitable[EnqueuedBrief]:
        """Send it, alone or with others."""
        return self._calls.submit(call)

    async def close(self) -> None:
        """Wait for what is under way."""
        await self._calls.close()

    async def _flush(self, calls: Sequence[OneJob]) -> list[EnqueuedBrief | Exception]:
        told = await told_each(
            calls,
            lambda some: self._transport.send(_joined(some)),
            lambda one: self._transport.send(one),
            size=lambda call: len(call.body or b""),
        )
        for call, answer in zip(calls, told, strict=True):
            if isinstance(answer, Indeterminate) and answer.keys:
                # In doubt everybody is to repeat with the key of their own job.
                answer.keys = call.keys
        return told


class _Batch(msgspec.Struct):
    jobs: list[Raw]
    durability: str | UnsetType = UNSET


def _joined(calls: Sequence[OneJob]) -> Call[list[EnqueuedBrief]]:
    def read(answer: Answer) -> list[EnqueuedBrief]:
        batch = msgspec.json.decode(answer.body, type=_Batch)
        return [
            _as_alone(call.read(answer._replace(body=bytes(job))), batch)
            for call, job in zip(calls, batch.jobs, strict=True)
        ]

    body = b'{"jobs":[' + b",".join(call.body or b"" for call in calls) + b"]}"
    keys = tuple(key for call in calls for key in call.keys)
    return Call("POST", paths.JOBS_BATCH, read, body=body, repeatable=True, keys=keys)


def _as_alone(made: EnqueuedBrief, batch: _Batch) -> EnqueuedBrief:
    """What the answer to a single call would have been: a batch tells a job's times as well."""
    made.created_at = made.run_at = UNSET
    made.durability = "relaxed" if batch.durability is not UNSET else UNSET
    return made
