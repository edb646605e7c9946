"""An engine that writes down what is asked of it and what it answers, for the histories."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar
from uuid import UUID

from chaos.history import FAIL, INFO, OK, token_hash
from ropeway.core.errors import Indeterminate, RopewayError
from ropeway.core.job import DEFAULT_TENANT, NewJob
from ropeway.core.lease import Lease
from ropeway.core.outcome import Lost
from ropeway.core.states import Verb
from ropeway.engines.protocol import (
    Beat,
    Changed,
    Engine,
    Enqueued,
    LeaseBatch,
    Rescued,
    Settled,
    Settlement,
    Weighted,
    WorkerRef,
)

Answer = TypeVar("Answer")

#: The engine that asks a server, and asks again by itself when an answer is lost.
REMOTE = "remote"


class Writes(Protocol):
    """What a recorder offers (`history.Recorder`, or the one in memory)."""

    def write(self, op: str, phase: str, **facts: Any) -> None: ...

    def invoke(self, op: str, **facts: Any) -> int: ...


class RecordingEngine:
    """Everything else goes straight to the engine beneath."""

    def __init__(self, engine: Engine, recorder: Writes) -> None:
        self._engine = engine
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def __aenter__(self) -> RecordingEngine:
        await self._engine.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.close()

    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> Sequence[Enqueued]:
        asked = [
            {
                "key": job.idempotency_key,
                "type": job.type,
                "max_attempts": job.max_attempts,
                "delay": job.delay,
            }
            for job in jobs
        ]
        return await self._call(
            "enqueue",
            lambda: self._engine.enqueue(jobs, tenant=tenant),
            lambda answers: {"answers": [[str(answer.id), answer.deduplicated] for answer in answers]},
            jobs=asked,
        )

    async def lease(
        self,
        queues: Sequence[str | Weighted],
        count: int,
        worker: WorkerRef,
        *,
        lease_seconds: float = 30.0,
        tenant: str = DEFAULT_TENANT,
    ) -> LeaseBatch:
        return await self._call(
            "lease",
            lambda: self._engine.lease(queues, count, worker, lease_seconds=lease_seconds, tenant=tenant),
            _told_of_leases,
            worker=worker.id,
            owner=token_hash(worker.owner),
            lease_seconds=lease_seconds,
        )

    async def settle(
        self, settlements: Sequence[Settlement], *, tenant: str = DEFAULT_TENANT
    ) -> list[Settled | RopewayError]:
        return await self._call(
            "settle",
            lambda: self._engine.settle(settlements, tenant=tenant),
            lambda answers: {"answers": [_settled(answer) for answer in answers]},
            items=[[*_lease(each.lease), each.outcome.verb.value] for each in settlements],
            **({"repeats": True} if self._engine.name == REMOTE else {}),
        )

    @asynccontextmanager
    async def transaction(
        self, lease: Lease, result: Callable[[], bytes | None], *, tenant: str = DEFAULT_TENANT
    ) -> AsyncIterator[Any]:
        number = self._recorder.invoke("settle", items=[[*_lease(lease), Verb.ACK.value]], transaction=True)
        try:
            async with self._engine.transaction(lease, result, tenant=tenant) as connection:
                yield connection
        except BaseException as error:
            self._failed("settle", number, error, certain=not isinstance(error, RopewayError))
            raise
        self._recorder.write("settle", OK, n=number, answers=[["succeeded", False]])

    async def heartbeat(
        self, leases: Sequence[Lease], *, lease_seconds: float | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[Beat | RopewayError]:
        return await self._call(
            "heartbeat",
            lambda: self._engine.heartbeat(leases, lease_seconds=lease_seconds, tenant=tenant),
            lambda answers: {"answers": [_beat(answer) for answer in answers]},
            items=[_lease(lease) for lease in leases],
        )

    async def heartbeat_owner(self, owner: UUID, *, tenant: str = DEFAULT_TENANT) -> Beat | None:
        return await self._call(
            "heartbeat_owner",
            lambda: self._engine.heartbeat_owner(owner, tenant=tenant),
            lambda beat: {"answer": None if beat is None else _beat(beat)},
            owner=token_hash(owner),
        )

    async def other_grants(
        self, owner: UUID, known: Collection[UUID], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        return await self._engine.other_grants(owner, known, tenant=tenant)

    async def end_grants(
        self,
        owner: UUID,
        *,
        started: Collection[UUID] | None = None,
        lost: Lost = Lost(),
        only: Collection[UUID] | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Rescued]:
        return await self._call(
            "end_grants",
            lambda: self._engine.end_grants(owner, started=started, lost=lost, only=only, tenant=tenant),
            lambda rescued: {"rescued": [str(each.id) for each in rescued]},
            owner=token_hash(owner),
            cause=lost.cause,
        )

    async def cancel(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        return await self._operated("cancel", self._engine.cancel, ids, tenant)

    async def redrive(
        self, ids: Sequence[UUID], *, by: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[Changed | RopewayError]:
        async def redrive(ids: Sequence[UUID], *, tenant: str) -> list[Changed | RopewayError]:
            return await self._engine.redrive(ids, by=by, tenant=tenant)

        return await self._operated("redrive", redrive, ids, tenant)

    async def _operated(
        self,
        op: str,
        call: Callable[..., Awaitable[list[Changed | RopewayError]]],
        ids: Sequence[UUID],
        tenant: str,
    ) -> list[Changed | RopewayError]:
        return await self._call(
            op,
            lambda: call(ids, tenant=tenant),
            lambda answers: {"answers": [_changed(answer) for answer in answers]},
            ids=[str(id) for id in ids],
        )

    async def _call(
        self,
        op: str,
        call: Callable[[], Awaitable[Answer]],
        told: Callable[[Answer], dict[str, Any]],
        **asked: Any,
    ) -> Answer:
        number = self._recorder.invoke(op, **asked)
        try:
            answer = await call()
        except BaseException as error:
            self._failed(op, number, error)
            raise
        self._recorder.write(op, OK, n=number, **told(answer))
        return answer

    def _failed(self, op: str, number: int, error: BaseException, *, certain: bool = False) -> None:
        """Refused, or nobody knows: only what the engine itself refuses is known not to have happened."""
        refused = certain or (isinstance(error, RopewayError) and not isinstance(error, Indeterminate))
        with contextlib.suppress(OSError):
            self._recorder.write(op, FAIL if refused else INFO, n=number, error=type(error).__name__)


def _lease(lease: Lease) -> list[Any]:
    return [str(lease.job_id), lease.attempt, token_hash(lease.token)]


def _told_of_leases(batch: LeaseBatch) -> dict[str, Any]:
    return {
        "leases": [_lease(each.lease) for each in batch.leases],
        "due": [each.job.run_at.timestamp() for each in batch.leases],
    }


def _settled(answer: Settled | RopewayError) -> list[Any]:
    if isinstance(answer, RopewayError):
        return [answer.code, False]
    return [answer.state.value, answer.already]


def _beat(answer: Beat | RopewayError) -> dict[str, Any]:
    if isinstance(answer, RopewayError):
        return {"refused": answer.code}
    return {"expires_in": answer.expires_in, "revoked": [str(id) for id in answer.revoked]}


def _changed(answer: Changed | RopewayError) -> list[Any]:
    if isinstance(answer, RopewayError):
        return [answer.code, None]
    return [answer.before.value, None if answer.state is None else answer.state.value]
