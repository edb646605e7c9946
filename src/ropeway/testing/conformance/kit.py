"""The small steps that the suite is written in: jobs brought somewhere, and questions asked about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from ropeway.core.errors import RopewayError
from ropeway.core.events import Event
from ropeway.core.job import DEFAULT_TENANT, Job, NewJob
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.states import LIVE_STATES, EventName, State, Verb
from ropeway.engines.capabilities import Capability
from ropeway.engines.protocol import Changed, Engine, Leased, Settled, Settlement, Weighted, WorkerRef
from ropeway.runtime import ids
from ropeway.testing.conformance.subject import Harness, Subject

QUEUE = "default"
OTHER_TENANT = "other"
MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0

#: Further ahead than any test moves the clock by accident.
FAR = 10 * DAY
LONGEST_LEASE = 43_200.0

BOOM = JobError("ValueError", "boom", "Traceback ...\nValueError: boom")

#: States that no call of the protocol can bring about yet, and why. The one list of exceptions of the suite.
UNREACHABLE: dict[State, str] = {State.WAITING: "jobs that wait for other jobs cannot be enqueued yet"}

REACHABLE = tuple(state for state in State if state not in UNREACHABLE)

RefusedAs = TypeVar("RefusedAs", bound=RopewayError)


def worker(name: str = "w1") -> WorkerRef:
    """A worker process of its own."""
    return WorkerRef(name, ids.token())


# --- producers ------------------------------------------------------------------------------------


def new_job(**fields: Any) -> NewJob:
    return NewJob(**{"type": "task", **fields})


async def enqueue_one(engine: Engine, *, tenant: str = DEFAULT_TENANT, **fields: Any) -> UUID:
    """One new job; fails if an earlier one answered for it."""
    (answer,) = await engine.enqueue([new_job(**fields)], tenant=tenant)
    assert not answer.deduplicated, f"expected a new job, got the earlier one: {answer}"
    return answer.id


async def enqueue_many(engine: Engine, number: int, *, tenant: str = DEFAULT_TENANT, **fields: Any) -> list[UUID]:
    """Several new jobs alike, in one batch, in order."""
    answers = await engine.enqueue([new_job(**fields) for _ in range(number)], tenant=tenant)
    assert len(answers) == number
    return [answer.id for answer in answers]


# --- workers --------------------------------------------------------------------------------------


async def lease_some(
    engine: Engine,
    count: int = 100,
    *queues: str | Weighted,
    by: WorkerRef | None = None,
    lease_seconds: float = 30.0,
    tenant: str = DEFAULT_TENANT,
) -> list[Leased]:
    """What one lease call gets, in order."""
    batch = await engine.lease(
        queues or (QUEUE,), count, by or worker(), lease_seconds=lease_seconds, tenant=tenant
    )
    return batch.leases


async def lease_one(
    engine: Engine,
    *queues: str | Weighted,
    by: WorkerRef | None = None,
    lease_seconds: float = 30.0,
    tenant: str = DEFAULT_TENANT,
) -> Leased:
    """The next job; fails if there is none."""
    leased = await lease_some(engine, 1, *queues, by=by, lease_seconds=lease_seconds, tenant=tenant)
    assert len(leased) == 1, f"expected a job to lease from {queues or (QUEUE,)}, got {len(leased)}"
    return leased[0]


async def leased_ids(engine: Engine, count: int = 100, *queues: str | Weighted, **how: Any) -> list[UUID]:
    """The ids that one lease call gets, in order."""
    return [leased.job.id for leased in await lease_some(engine, count, *queues, **how)]


async def answer_to(
    engine: Engine, ticket: Leased | Lease, outcome: Outcome, *, tenant: str = DEFAULT_TENANT
) -> Settled | RopewayError:
    """The answer to one outcome, whatever it is."""
    lease = ticket.lease if isinstance(ticket, Leased) else ticket
    (answer,) = await engine.settle([Settlement(lease, outcome)], tenant=tenant)
    return answer


async def settle(
    engine: Engine, ticket: Leased | Lease, outcome: Outcome, *, tenant: str = DEFAULT_TENANT
) -> Settled:
    """Write one outcome; fails if it is refused."""
    return accepted(await answer_to(engine, ticket, outcome, tenant=tenant))


async def ack(engine: Engine, ticket: Leased | Lease, result: bytes | None = None) -> Settled:
    return await settle(engine, ticket, Done(result))


async def nack(engine: Engine, ticket: Leased | Lease, **how: Any) -> Settled:
    return await settle(engine, ticket, Failed(**{"error": BOOM, **how}))


async def snooze(engine: Engine, ticket: Leased | Lease, delay: float = FAR) -> Settled:
    return await settle(engine, ticket, Snoozed(delay=delay))


async def release(engine: Engine, ticket: Leased | Lease) -> Settled:
    return await settle(engine, ticket, Released())


async def lose(engine: Engine, ticket: Leased | Lease) -> Settled:
    return await settle(engine, ticket, Lost("crashed"))


def accepted(answer: Settled | RopewayError) -> Settled:
    assert isinstance(answer, Settled), f"expected the outcome to be written, got {answer!r}"
    return answer


def refused(answer: object, kind: type[RefusedAs]) -> RefusedAs:
    """The error in an answer; exactly that kind, because faces choose their reply by it."""
    assert type(answer) is kind, f"expected {kind.__name__}, got {answer!r}"
    return answer


def changed(answer: Changed | RopewayError) -> Changed:
    assert isinstance(answer, Changed), f"expected the change to be made, got {answer!r}"
    return answer


def forged(lease: Lease) -> Lease:
    """The same job and attempt with a token that nobody was given."""
    return msgspec.structs.replace(lease, token=ids.token())


# --- looking --------------------------------------------------------------------------------------


async def job_of(engine: Engine, id: UUID, *, tenant: str = DEFAULT_TENANT) -> Job:
    (job,) = await engine.get([id], tenant=tenant)
    assert job is not None, f"job {id} is gone"
    return job


async def state_of(engine: Engine, id: UUID) -> State:
    return (await job_of(engine, id)).state


async def states_of(engine: Engine, wanted: Sequence[UUID]) -> list[State | None]:
    return [None if job is None else job.state for job in await engine.get(wanted)]


async def last_event(engine: Engine, id: UUID) -> Event:
    events = await engine.events_of(id)
    assert events, f"job {id} has no events"
    return events[-1]


async def event_names(engine: Engine, id: UUID) -> list[EventName]:
    return [event.event for event in await engine.events_of(id)]


async def check_log(engine: Engine, id: UUID) -> list[Event]:
    """C2 and C11: `seq` 1, 2, 3 ..., first `enqueued`, nothing after an end, the last one is the state."""
    events = await engine.events_of(id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1)), "seq has gaps or doubles"
    assert events[0].event is EventName.ENQUEUED
    for before, after in pairwise(events):
        ended = before.state not in LIVE_STATES
        assert not ended or after.event is EventName.RETRIED, f"{after.event} follows {before.event}"
        assert before.at <= after.at
    (job,) = await engine.get([id])
    last = events[-1].state
    if job is None:
        assert last not in LIVE_STATES, f"the job is gone, but its log ends with {last}"
    elif job.state is not last:
        # Becoming due is not a transition and has no event.
        assert (last, job.state) in {(State.SCHEDULED, State.QUEUED), (State.RETRYING, State.QUEUED)}
    return events


@asynccontextmanager
async def nothing_changes(engine: Engine, *watched: UUID, tenant: str = DEFAULT_TENANT) -> AsyncIterator[None]:
    """Fails if the block changes any of these jobs or writes an event about them."""
    before = (
        await engine.get(watched, tenant=tenant),
        [await engine.events_of(id, tenant=tenant) for id in watched],
    )
    yield
    after = await engine.get(watched, tenant=tenant), [await engine.events_of(id, tenant=tenant) for id in watched]
    assert after[0] == before[0], "a call that must change nothing changed a job"
    assert after[1] == before[1], "a call that must change nothing wrote an event"


# --- bringing jobs somewhere ----------------------------------------------------------------------


class Driven(msgspec.Struct, frozen=True):
    """A job in the state that was asked for; its newest ticket, if it ever ran, and the verb that spent it."""

    id: UUID
    lease: Lease | None = None
    spent_by: Verb | None = None


async def drive_to(subject: Subject, state: State, *, failed: bool = False, **fields: Any) -> Driven:
    """A fresh job in any state of the table. `failed`: it has failed once before.

    It stays there for ten days: what is scheduled or retrying is due only then.
    """
    assert state not in UNREACHABLE, UNREACHABLE[state]
    engine = subject.engine
    if state is State.SCHEDULED:
        assert not failed, "a job that has failed is retrying, not scheduled"
        return Driven(await enqueue_one(engine, delay=FAR, **fields))
    id = await enqueue_one(engine, **fields)
    queue = fields.get("queue", QUEUE)
    if failed:
        await nack(engine, await _lease(engine, id, queue), retry_after=0.0)
    if state is State.QUEUED:
        return Driven(id)
    if state is State.CANCELLED:
        changed((await engine.cancel([id]))[0])
        return Driven(id)
    lease = (await _lease(engine, id, queue)).lease
    if state is State.RUNNING:
        return Driven(id, lease)
    if state is State.SUCCEEDED:
        await ack(engine, lease, b'"done"')
        return Driven(id, lease, Verb.ACK)
    await nack(engine, lease, retry=state is State.RETRYING, retry_after=FAR)
    return Driven(id, lease, Verb.NACK)


async def _lease(engine: Engine, id: UUID, queue: str) -> Leased:
    leased = await lease_one(engine, queue, lease_seconds=LONGEST_LEASE)
    assert leased.job.id == id, "another job came first: give driven jobs a queue of their own"
    return leased


async def advance_to(subject: Subject, moment: datetime) -> None:
    """Move the clock forward to a moment."""
    seconds = (moment - await subject.engine.now()).total_seconds()
    assert seconds >= 0, "the clock only goes forward"
    await subject.advance(seconds)


async def midnight(engine: Engine, days: int = 1) -> datetime:
    """The UTC midnight that many days ahead: 1 is the end of today."""
    today = (await engine.now()).replace(hour=0, minute=0, second=0, microsecond=0)
    return today + timedelta(days=days)


def inside_json(harness: Harness) -> bool:
    """Whether payloads travel inside other JSON; harnesses need not say that they do not."""
    return getattr(harness, "inside_json", False)


async def handles(harness: Harness, subject: Subject, number: int) -> list[Engine]:
    """Handles on the subject's store: as of several processes if the engine can be shared, else the same."""
    if Capability.SHARED not in harness.capabilities:
        return [subject.engine] * number
    return [subject.engine] + [await subject.another() for _ in range(number - 1)]
