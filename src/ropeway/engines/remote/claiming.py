"""Claims, and the owners of what was claimed: heartbeats of whole processes, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from ropeway.core.errors import (
    ConfigurationError,
    EngineError,
    Indeterminate,
    LimitError,
    QuotaExceeded,
    RopewayError,
    Unavailable,
)
from ropeway.core.job import DEFAULT_TENANT
from ropeway.core.outcome import Lost
from ropeway.core.states import State
from ropeway.engines import settling
from ropeway.engines.choosing import queue_order
from ropeway.engines.protocol import Beat, LeaseBatch, Leased, Rescued, Weighted, WorkerRef
from ropeway.engines.remote import items
from ropeway.engines.remote.connection import RemoteConnection, reader, reader_or_none
from ropeway.engines.remote.holding import Holding
from ropeway.runtime.backoff import Backoff
from ropeway.wire import models, paths, records
from ropeway.wire.calls import Answer
from ropeway.wire.tokens import parse_token

#: Seconds after which a claim whose answer was lost is looked for, again and again: the server may still be at it
#: when the first look finds nothing.
LOOK_FOR_LOST = (0.0, 0.5, 2.0, 10.0, 30.0)
#: Seconds until the next look for jobs when the tenant holds as many leases as it may.
FULL_SECONDS = 1.0


class RemoteClaiming(RemoteConnection):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._holding = Holding()
        #: Owners that missed an answer and are being looked after; whether another one was missed since.
        self._missing: dict[UUID, bool] = {}

    async def lease(
        self,
        queues: Sequence[str | Weighted],
        count: int,
        worker: WorkerRef,
        *,
        lease_seconds: float = 30.0,
        tenant: str = DEFAULT_TENANT,
    ) -> LeaseBatch:
        settling.check_lease_call(count, worker, lease_seconds)
        order = queue_order(queues)
        body = {
            "worker_id": worker.id,
            "owner": worker.owner,
            "queues": order,
            "count": count,
            "lease_seconds": lease_seconds,
        }
        async with self._holding.turn(worker.owner):
            try:
                batch = await self.tell(
                    "POST",
                    paths.LEASE,
                    lambda answer: _read_leases(answer, tenant, lease_seconds),
                    body,
                    tenant=tenant,
                    limits=True,
                )
            except QuotaExceeded:
                return LeaseBatch([], lease_seconds, FULL_SECONDS)
            except LimitError as error:
                raise Unavailable(error.message, hint=error.hint) from None
            except (Indeterminate, _Unreadable, asyncio.CancelledError):
                self._missed(worker.owner, tenant)
                raise
            self._holding.opened(worker.owner, (one.lease for one in batch.leases))
        return batch

    def _missed(self, owner: UUID, tenant: str) -> None:
        """The answer to a claim never came, or cannot be read. What it took is released, soon: the owner's
        heartbeats would keep it alive for as long as the process lives."""
        already = owner in self._missing
        self._missing[owner] = True
        if not already:
            self.in_background(self._give_back(owner, tenant))

    async def _give_back(self, owner: UUID, tenant: str) -> None:
        try:
            while self._missing[owner]:
                self._missing[owner] = False
                for pause in LOOK_FOR_LOST:
                    await asyncio.sleep(pause)
                    await self._end_unknown(owner, tenant)
        finally:
            del self._missing[owner]

    async def _end_unknown(self, owner: UUID, tenant: str) -> None:
        """One look that counts: while the server is away nothing was looked at."""
        backoff = Backoff(0.5, 10.0)
        while True:
            try:
                async with self._holding.turn(owner):
                    others = await self.other_grants(owner, self._holding.grants(owner), tenant=tenant)
                    if others:
                        await self.end_grants(owner, started=(), only=others, tenant=tenant)
            except EngineError:
                await asyncio.sleep(backoff.next())
            else:
                return

    # ── owners ──

    async def heartbeat_owner(self, owner: UUID, *, tenant: str = DEFAULT_TENANT) -> Beat | None:
        reply = await self.tell(
            "POST",
            paths.OWNER_HEARTBEAT,
            reader_or_none(models.OwnerBeat),
            {"owner": owner},
            tenant=tenant,
            repeatable=True,
        )
        return None if reply is None else Beat(reply.expires_in, tuple(reply.revoked))

    async def other_grants(
        self, owner: UUID, known: Collection[UUID], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        reply = await self.tell(
            "POST",
            paths.OWNER_OTHER_GRANTS,
            reader(models.OtherGrants),
            {"owner": owner, "known": list(known)},
            tenant=tenant,
            repeatable=True,
        )
        return reply.grants

    async def end_grants(
        self,
        owner: UUID,
        *,
        started: Collection[UUID] | None = None,
        lost: Lost = Lost(),
        only: Collection[UUID] | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Rescued]:
        body = items.lost_fields(lost)
        if started is not None:
            body["started"] = list(started)
        if only is not None:
            body["only"] = list(only)
        rescued = await self._end(owner, tenant, body)
        if only is None:
            self._holding.ended(owner)
        return rescued

    async def _end(self, owner: UUID, tenant: str, body: dict[str, Any]) -> list[Rescued]:
        # Whose reply was lost is ended already: the next call ends what is left, which is nothing.
        reply = await self.tell(
            "POST",
            paths.OWNER_END,
            reader(models.OwnerEnded),
            {"owner": owner, **body},
            tenant=tenant,
            repeatable=True,
        )
        return [Rescued(tenant, one.id, State(one.status)) for one in reply.rescued]


class _Unreadable(ConfigurationError):
    """A claim that succeeded, in words that are not understood here."""


def _read_leases(answer: Answer, tenant: str, lease_seconds: float) -> LeaseBatch:
    """Read to the end before anything is taken for leased: all of it, or _Unreadable."""
    try:
        if answer.status == 204:
            due = answer.headers.get("next-due-in")
            return LeaseBatch([], lease_seconds, None if due is None else float(due))
        reply = msgspec.json.decode(answer.body, type=models.LeaseReply)
        leases = [_leased(one, tenant) for one in reply.leases]
    except (msgspec.DecodeError, ValueError, RopewayError) as error:
        raise _Unreadable(
            f"the server's answer to a claim cannot be read: {error}", hint="update this worker, or the server"
        ) from None
    granted = reply.leases[0].lease_seconds if reply.leases else lease_seconds
    return LeaseBatch(leases, granted, None if reply.next_due_in is UNSET else reply.next_due_in)


def _leased(one: models.LeasedJob, tenant: str) -> Leased:
    lease = parse_token(one.job.id, one.lease_token)
    if lease is None:
        raise ValueError("its lease tokens are of another form")
    return Leased(records.job_of(one.job, tenant=tenant), lease)
