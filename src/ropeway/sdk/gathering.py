"""Enqueue calls of one client that are made at the same time: what comes while one is under way goes together."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ropeway.core.errors import Indeterminate, RopewayError, UsageError
from ropeway.core.fields import MAX_BATCH
from ropeway.runtime.coalesce import Batches
from ropeway.wire import paths
from ropeway.wire.calls import Answer, Call
from ropeway.wire.gathering import Together
from ropeway.wire.models import EnqueuedBrief

T = TypeVar("T")

#: One job on its way: a call of `plans.enqueue`.
OneJob = Call[EnqueuedBrief]


class Sends(Protocol):
    """Whoever sends a call and reads its answer."""

    def send(self, call: Call[T], *, after: RopewayError | None = None) -> Awaitable[T]: ...


class Gathering:
    """The single enqueue calls of one client."""

    def __init__(self, transport: Sends) -> None:
        self._transport = transport
        # Every call has a key: `plans.enqueue` makes one where none is given.
        self._company: Together[OneJob, EnqueuedBrief] = Together(
            self._together, self._alone, size=lambda call: len(call.body or b""), keyed=True
        )
        self._calls: Batches[OneJob, EnqueuedBrief] = Batches(self._company.answer, limit=MAX_BATCH)
        self._closed = False

    async def submit(self, call: OneJob) -> EnqueuedBrief:
        """Send it, alone or with others."""
        if self._closed:
            raise UsageError("the client was closed")
        try:
            return await self._calls.submit(call)
        except Indeterminate as error:
            if error.keys:
                # In doubt everybody is to repeat with the key of their own job.
                error.keys = call.keys
            raise

    def cancel(self) -> None:
        """Give up what is under way and what waits; their callers are cancelled. Nothing is taken any more."""
        self._closed = True
        self._calls.cancel()
        self._company.cancel()

    async def close(self) -> None:
        """Wait for what is under way. Nothing is taken any more."""
        self._closed = True
        await self._calls.close()
        await self._company.close()

    async def _together(self, calls: Sequence[OneJob]) -> Sequence[EnqueuedBrief]:
        if len(calls) == 1:
            return [await self._transport.send(replace(calls[0], hasty=True))]
        return await self._transport.send(_joined(calls))

    async def _alone(self, call: OneJob, after: RopewayError) -> EnqueuedBrief:
        return await self._transport.send(call, after=after)


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
    return Call("POST", paths.JOBS_BATCH, read, body=body, repeatable=True, keys=keys, hasty=True)


def _as_alone(made: EnqueuedBrief, batch: _Batch) -> EnqueuedBrief:
    """What the answer to a single call would have been: a batch tells a job's times as well."""
    made.created_at = made.run_at = UNSET
    made.durability = "relaxed" if batch.durability is not UNSET else UNSET
    return made
