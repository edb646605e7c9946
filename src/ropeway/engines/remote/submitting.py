"""Submitting: one request per batch, so that it is stored whole or not at all; single calls share requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ropeway.core.errors import BatchTooLarge, RopewayError
from ropeway.core.fields import MAX_BATCH
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.states import State
from ropeway.engines.protocol import Enqueued
from ropeway.engines.remote.connection import RemoteConnection, reader
from ropeway.runtime.coalesce import Batches
from ropeway.wire import models, paths, records
from ropeway.wire.calls import Call
from ropeway.wire.gathering import Together

#: Bytes of one request. The server takes no more, and a batch that needs two of them could be stored by half.
MAX_BODY = 16 * 1_048_576


#: Bytes of a job beside its payload, about.
_BESIDE = 300


class RemoteSubmitting(RemoteConnection):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Apart, because only a request whose jobs all have keys may be sent again.
        plain = Together(self._together, self._alone, size=_size, keyed=False)
        keyed = Together(self._together, self._alone, size=_size, keyed=True)
        self._company = (plain, keyed)
        self._plain: Batches[NewJob, Enqueued] = Batches(plain.answer, limit=MAX_BATCH)
        self._keyed: Batches[NewJob, Enqueued] = Batches(keyed.answer, limit=MAX_BATCH)

    async def close(self) -> None:
        """Wait for what was submitted, then close."""
        for calls in (self._plain, self._keyed, *self._company):
            await calls.close()
        await super().close()

    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[Enqueued]:
        """As every engine. A lost reply is followed by the same request only if each job has an idempotency key:
        otherwise it is Indeterminate, as with any other store. A key made up here would show in the jobs."""
        if not jobs:
            return []
        self.check_tenant(tenant)
        if len(jobs) == 1:
            calls = self._plain if jobs[0].idempotency_key is None else self._keyed
            return [await calls.submit(jobs[0])]
        return await self._enqueue(jobs)

    async def _together(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return await self._enqueue(jobs, hasty=True)

    async def _alone(self, job: NewJob, after: RopewayError) -> Enqueued:
        (answer,) = await self._enqueue([job], after=after)
        return answer

    async def _enqueue(
        self, jobs: Sequence[NewJob], *, hasty: bool = False, after: RopewayError | None = None
    ) -> list[Enqueued]:
        if len(jobs) > MAX_BATCH:
            raise BatchTooLarge(
                f"at most {MAX_BATCH:,} jobs in one call to a server, these are {len(jobs):,}",
                hint="split the batch",
            )
        body = msgspec.json.encode({"jobs": [_body(job) for job in jobs]})
        if len(body) > MAX_BODY:
            raise BatchTooLarge(
                f"at most {MAX_BODY >> 20} MiB in one call to a server, this is {len(body) >> 20} MiB",
                hint="split the batch",
            )
        repeatable = all(job.idempotency_key is not None for job in jobs)
        read = reader(models.EnqueuedBatch)
        call = Call("POST", paths.JOBS_BATCH, read, body=body, repeatable=repeatable, hasty=hasty)
        reply = await self.send(call, limits=True, after=after)
        return [_enqueued(one) for one in reply.jobs]


def _size(job: NewJob) -> int:
    return len(job.payload) + _BESIDE


def _enqueued(one: models.EnqueuedBrief) -> Enqueued:
    return Enqueued(
        one.id,
        None if one.status == "pruned" else State(one.status),
        one.deduplicated,
        one.created_at or None,
        one.run_at or None,
    )


def _body(job: NewJob) -> dict[str, Any]:
    """What the job asks for, fields at their default left out.

    With a key also what tells its body from another: it is the same through a server as with the store itself, so
    that a job may be asked for again by either way.
    """
    body = records.lean(records.enqueue_body(job))
    if job.idempotency_key is not None:
        body["fingerprint"] = _fingerprint(job).hex()
    return body


def _fingerprint(job: NewJob) -> bytes:
    """A server believes only the fingerprint of what it gets. One that was made before the job was changed on its
    way, as when it was moved into its task's window, is replaced by that of all but the time."""
    own = job.fields_fingerprint()
    return own if job.fingerprint in (None, own) else job.fields_fingerprint(timeless=True)
