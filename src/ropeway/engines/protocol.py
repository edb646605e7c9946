"""The engine protocol: what every store can do, in small parts. `Engine` is their sum.

Every call is batch-first (one job is a batch of one), scoped to a tenant, and total: each item gets its own
answer, in order. A refused item of a worker's or operator's batch is answered with an error *value*; nothing else
of the batch is affected. `enqueue` alone is all or nothing: it raises the first refusal, with its `index`.

Engines apply transitions, `ropeway.core` decides them. Payloads and results are bytes of JSON that an engine
never parses, reorders or rewrites. Only the engine's clock decides what is due and what has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self
from uuid import UUID

import msgspec

from ropeway.core.access import ApiKey, Limits, NewKey, NewTenant, Tenant
from ropeway.core.auditlog import Action, ActionFilter, NewAction
from ropeway.core.decide import Rules
from ropeway.core.errors import RopewayError
from ropeway.core.events import Event, EventPage
from ropeway.core.fleet import SEEN_WITHIN, WorkerInfo
from ropeway.core.history import Depth, Observed, Sample
from ropeway.core.job import DEFAULT_TENANT, Job, NewJob, Progress
from ropeway.core.joblog import DEFAULT_LINES, LogLine
from ropeway.core.lazily import MadeLazily
from ropeway.core.lease import Lease
from ropeway.core.limits import Taken
from ropeway.core.outcome import Lost, Outcome
from ropeway.core.payload import MAX_PAYLOAD_BYTES
from ropeway.core.query import Count, JobFilter, JobPage, Order, QueueSettings, QueueStats, RedriveReport
from ropeway.core.schedule import Fired, NewSchedule, Schedule
from ropeway.core.states import State
from ropeway.engines.capabilities import Capability


class EngineRules(msgspec.Struct, frozen=True):
    """The settings that an engine's behaviour depends on; the same names as in `ropeway.settings`."""

    decisions: Rules = Rules()
    ageing_seconds: float = 60.0
    #: How long a lane's order of priorities may be reused before its oldest jobs are looked up again.
    ageing_lookup_seconds: float = 1.0
    idempotency_window: float = 86_400.0
    keep_succeeded: float = 86_400.0
    keep_cancelled: float = 604_800.0
    keep_dead: float = 1_209_600.0
    keep_events: float = 1_209_600.0
    #: How long the actions of operators are kept.
    keep_actions: float = 7_776_000.0
    #: The largest payload that is accepted and the largest result that is kept.
    max_payload_bytes: int = MAX_PAYLOAD_BYTES

    def keep(self, state: State) -> float:
        """Seconds that an ended job is kept, by the way it ended."""
        return {
            State.SUCCEEDED: self.keep_succeeded,
            State.CANCELLED: self.keep_cancelled,
            State.DEAD: self.keep_dead,
        }[state]

    @property
    def keep_log(self) -> float:
        """Seconds that events are kept: never less than the longest of the jobs they tell of."""
        return max(self.keep_events, self.keep_succeeded, self.keep_cancelled, self.keep_dead)


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """The answer to one new job. A duplicate carries the first job's id; its state is None once it was pruned."""

    id: UUID
    state: State | None
    deduplicated: bool = False
    #: When the store took it, and its place in line, exactly as `get` will show them. None for a duplicate.
    created_at: datetime | None = None
    run_at: datetime | None = None


class EnqueuedAlike(MadeLazily[Enqueued]):
    """The answers to jobs that were all stored at one time, in one state.

    `places` makes each one's place in line; it is called if somebody asks for that.
    """

    __slots__ = ("_places", "created_at", "ids", "state")

    def __init__(
        self, ids: Sequence[UUID], state: State, created_at: datetime, places: Callable[[], Sequence[datetime]]
    ) -> None:
        super().__init__()
        self.ids = ids
        self.state = state
        self.created_at = created_at
        self._places = places

    def __len__(self) -> int:
        return len(self.ids)

    def make(self) -> list[Enqueued]:
        return [
            Enqueued(id, self.state, created_at=self.created_at, run_at=place)
            for id, place in zip(self.ids, self._places(), strict=True)
        ]


class Weighted(NamedTuple):
    """A queue drawn by weight instead of strict order."""

    queue: str
    weight: int


class WorkerRef(msgspec.Struct, frozen=True):
    """Who leases. `owner` is a secret of one worker process (128 bits, never listed); `id` is what people see."""

    id: str
    owner: UUID


class Leased(msgspec.Struct, frozen=True, gc=False):
    """One job to run, and the ticket that can finish it."""

    job: Job
    lease: Lease


class LeaseBatch(msgspec.Struct, frozen=True):
    """What a lease call got. A batch that is not full says when the next job will be due, if one is known."""

    leases: list[Leased]
    lease_seconds: float
    next_due_in: float | None = None


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """One outcome to write: the ticket, and how the run ended."""

    lease: Lease
    outcome: Outcome


class Settled(msgspec.Struct, frozen=True, gc=False):
    """An outcome was written: the job's state after it. `already`: by an earlier call with the same ticket."""

    id: UUID
    state: State
    already: bool = False
    attempts: int | None = None
    run_at: datetime | None = None
    retry_in: float | None = None
    sanitized: bool = False
    truncated: bool = False
    result_too_large: bool = False


class Beat(msgspec.Struct, frozen=True):
    """A heartbeat was taken. `revoked` names jobs of these grants that must be stopped (cancelled, or lost);
    `expires_in` is 0 when the time is over already."""

    expires_in: float
    revoked: tuple[UUID, ...] = ()


class Changed(msgspec.Struct, frozen=True):
    """An operator's verb was applied: the state before and after (None: the job is gone)."""

    id: UUID
    before: State
    state: State | None


class Rescued(msgspec.Struct, frozen=True):
    """A job that upkeep took away from an owner that is gone."""

    tenant: str
    id: UUID
    state: State


class Pruned(msgspec.Struct, frozen=True):
    """What upkeep removed because its time was over."""

    jobs: int = 0
    events: int = 0
    keys: int = 0


class Subscription(Protocol):
    """A listener's place. A signal that arrives between two waits is not missed by this listener."""

    async def wait(self, timeout: float) -> bool:
        """True when new work may be there, False when `timeout` seconds passed. A hint, never a promise."""
        ...

    async def close(self) -> None: ...


class Submitting(Protocol):
    async def enqueue(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> Sequence[Enqueued]:
        """Store all of `jobs`, durably, or none: a refusal is raised with the index of its job."""
        ...

    async def enqueue_in(
        self, connection: Any, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        """Enqueue inside the transaction open on the caller's own connection: it commits or vanishes with it."""
        ...

    def enqueue_in_sync(
        self, connection: Any, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        """As `enqueue_in`, through a blocking connection; may be called from any thread that owns one."""
        ...


class Leasing(Protocol):
    async def lease(
        self,
        queues: Sequence[str | Weighted],
        count: int,
        worker: WorkerRef,
        *,
        lease_seconds: float = 30.0,
        tenant: str = DEFAULT_TENANT,
    ) -> LeaseBatch:
        """Claim up to `count` due jobs under one new grant.

        Plain names are walked in strict order; with any `Weighted` the order is drawn by weight (a plain name
        weighs 1). Inside a queue: priority (aged), then first in, first out. Paused queues give nothing.

        A call that raises, or whose caller goes away, gives back what it took, at once or soon: the owner knows of
        no such lease, and its heartbeats would keep it for ever.
        """
        ...

    async def settle(
        self, settlements: Sequence[Settlement], *, tenant: str = DEFAULT_TENANT
    ) -> list[Settled | RopewayError]:
        """Write outcomes under the fence: ack, nack, snooze, release and lose in one batch."""
        ...

    async def settle_in(
        self, connection: Any, lease: Lease, result: bytes | None = None, *, tenant: str = DEFAULT_TENANT
    ) -> Settled:
        """Complete a job as the last statement of the handler's own transaction; raises LeaseLost."""
        ...

    def transaction(
        self, lease: Lease, result: Callable[[], bytes | None], *, tenant: str = DEFAULT_TENANT
    ) -> AbstractAsyncContextManager[Any]:
        """A connection in a transaction that completes the job with `result()` and commits when the block ends,
        or rolls back when it raises; LeaseLost: rolled back; Indeterminate: the commit's answer was lost."""
        ...

    async def progress(
        self, updates: Sequence[tuple[Lease, Progress]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        """Note how far running jobs are. Not a transition: no event."""
        ...

    async def log(
        self, lines: Sequence[tuple[Lease, LogLine]], *, tenant: str = DEFAULT_TENANT
    ) -> list[RopewayError | None]:
        """Append lines to the logs of running jobs, in order; each job keeps its newest 1,000, of 64 KiB."""
        ...

    async def heartbeat(
        self,
        leases: Sequence[Lease],
        *,
        lease_seconds: float | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Beat | RopewayError]:
        """Extend the grants of these leases, each with all the jobs it covers, never beyond the beating job's
        timeout and never shorter than it was."""
        ...

    async def heartbeat_owner(self, owner: UUID, *, tenant: str = DEFAULT_TENANT) -> Beat | None:
        """Extend every grant of one worker process in one statement; None when it holds none."""
        ...

    async def other_grants(
        self, owner: UUID, known: Collection[UUID], *, tenant: str = DEFAULT_TENANT
    ) -> list[UUID]:
        """The owner's grants that hold a job and are not among those it knows, in any order. Only true between two
        claims: of one whose answer never came, or of outcomes that a store which went back in time has forgotten.
        """
        ...

    async def end_grants(
        self,
        owner: UUID,
        *,
        started: Collection[UUID] | None = None,
        lost: Lost = Lost(),
        only: Collection[UUID] | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Rescued]:
        """The owner is gone: end its grants at once. Of the jobs they still hold, those in `started` (None: all)
        are lost, the others are released. An owner that lives names the `other_grants` that it ends in `only`: by
        name, so that a call that arrives late ends nothing that was granted since."""
        ...


class Inspecting(Protocol):
    async def get(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Job | None]: ...

    async def find(
        self,
        where: JobFilter = JobFilter(),
        *,
        order: Order = "newest",
        limit: int = 50,
        after: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> JobPage:
        """A page of jobs, payload and result included. `newest`/`oldest` go by id (time of creation), `died` by
        time of death, newest first, and lists only the dead. `after` is the `next` of the page before."""
        ...

    async def count(
        self, where: JobFilter = JobFilter(), *, cap: int = 10_000, tenant: str = DEFAULT_TENANT
    ) -> Count: ...

    async def queue_stats(
        self, queues: Collection[str] | None = None, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT
    ) -> list[QueueStats]:
        """Counts per state for each queue that holds jobs, is paused or has settings, by name; each count stops at
        `cap`."""
        ...

    async def place(self, id: UUID, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> Count | None:
        """How many due jobs of its queue are in line before a job: a more urgent priority (ageing left aside), or
        the same one and an earlier place. None unless the job is queued, that is due and not leased."""
        ...

    async def events_of(self, id: UUID, *, tenant: str = DEFAULT_TENANT) -> list[Event]:
        """All kept events of one job in `seq` order."""
        ...

    async def log_of(
        self, id: UUID, *, after: int = 0, limit: int = DEFAULT_LINES, tenant: str = DEFAULT_TENANT
    ) -> list[LogLine]:
        """The kept lines of one job's log with numbers beyond `after`, in order; none once the job is gone."""
        ...

    async def tail(self, position: str | None = None, *, limit: int = 500, tenant: str | None = None) -> EventPage:
        """The next events after `position` (None: the oldest kept). In `seq` order per job; a late commit is
        never skipped. `tenant` None reads all tenants. A page that is not full has seen the end of the log,
        unless it says that it is not `whole`."""
        ...

    async def tail_position(self) -> str:
        """The end of the log as it is now."""
        ...

    async def newest_events(self, *, limit: int = 500, tenant: str | None = None) -> EventPage:
        """The last events of the log in its order, and where to go on from: of the last `limit` of all tenants
        those of `tenant` (None: all of them)."""
        ...


class Operating(Protocol):
    async def cancel(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        """End jobs that have not ended, running ones too: their worker learns it at its next heartbeat."""
        ...

    async def redrive(
        self, ids: Sequence[UUID], *, by: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> list[Changed | RopewayError]:
        """Dead and cancelled jobs run again, with a fresh budget."""
        ...

    async def redrive_where(
        self,
        where: JobFilter,
        *,
        limit: int = 10_000,
        dry_run: bool = False,
        by: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> RedriveReport:
        """Redrive what a filter finds among the dead and cancelled (only the dead unless it says otherwise)."""
        ...

    async def reschedule(
        self,
        id: UUID,
        *,
        run_at: datetime | None = None,
        delay: float | None = None,
        priority: int | None = None,
        queue: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Changed: ...

    async def delete(self, ids: Sequence[UUID], *, tenant: str = DEFAULT_TENANT) -> list[Changed | RopewayError]:
        """Remove jobs that do not run. One that has not ended is cancelled first, so its log has an end."""
        ...

    async def pause(self, queue: str, *, tenant: str = DEFAULT_TENANT) -> None: ...

    async def resume(self, queue: str, *, tenant: str = DEFAULT_TENANT) -> None: ...

    async def queue_settings(self, *, tenant: str = DEFAULT_TENANT) -> dict[str, QueueSettings]:
        """The queues that were given settings, by name. The engine keeps them; whoever admits jobs heeds them."""
        ...

    async def set_queue(self, queue: str, settings: QueueSettings, *, tenant: str = DEFAULT_TENANT) -> None:
        """Replace a queue's settings (the defaults take them away); whether it is paused stays as it is."""
        ...


class Scheduling(Protocol):
    async def put_schedule(
        self, schedule: NewSchedule, *, replace: bool = True, tenant: str = DEFAULT_TENANT
    ) -> Schedule:
        """Store a schedule. `replace` False raises NameTaken if the name exists. A schedule declared in code
        keeps what an operator changed until the code's own definition changes."""
        ...

    async def schedules(self, *, tenant: str = DEFAULT_TENANT) -> list[Schedule]:
        """All that can be read here, by name."""
        ...

    async def get_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        """Raises NotFound, and ConfigurationError, with the reason, when it cannot be read here."""
        ...

    async def pause_schedule(self, name: str, paused: bool, *, tenant: str = DEFAULT_TENANT) -> Schedule: ...

    async def delete_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None: ...

    async def run_schedule(self, name: str, *, tenant: str = DEFAULT_TENANT) -> UUID:
        """Make the schedule's job now, besides its times."""
        ...

    async def fire_due(self, *, limit: int = 100) -> list[Fired]:
        """Fire what is due, for all tenants. Any number of schedulers fire an instant once."""
        ...


class Upkeeping(Protocol):
    """Chores for all tenants; any number of processes may run them at once."""

    async def rescue(self, *, limit: int = 1_000) -> list[Rescued]:
        """Take jobs back from grants that expired."""
        ...

    async def audit(self, *, limit: int = 1_000) -> list[Rescued]:
        """Take back jobs that carry a token without a grant."""
        ...

    async def expire(self, *, limit: int = 1_000) -> list[UUID]:
        """Cancel jobs that were not started in time."""
        ...

    async def prune(self) -> Pruned:
        """Remove ended jobs, events, keys and actions whose time is over, by whole UTC days, and workers and
        buckets not seen for a day (of tickets: ten minutes); log each dead job removed on `ropeway.purged`."""
        ...


class Remembering(Protocol):
    """How it was, of all tenants; `core/history.py` says what is kept. Remote engines leave it to their server."""

    async def observe(self, since: datetime, until: datetime, *, most: int = 20_000) -> list[Observed]:
        """What happened from `since` until `until`, by tenant and queue. It costs the same however large the store
        is: about `most` of the newest events are looked at, and the times of a few of the jobs that ended. Where
        none of the time is among those, they stand for it: a store that writes so much is told as it is now."""
        ...

    async def remember(self, samples: Sequence[Sample]) -> None:
        """Keep samples; one that is there already (the same tenant, queue, step and time) stays as it is."""
        ...

    async def history(
        self,
        *,
        step: int,
        since: datetime,
        until: datetime | None = None,
        queue: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Sample]:
        """Kept samples of steps that began in that time, by time and queue. `prune` removes them when theirs is
        over."""
        ...

    async def latest(self, *, step: int, since: datetime, until: datetime, busy: bool = False) -> list[Sample]:
        """Of each tenant the newest kept sample of all its queues together, of steps that began in that time; with
        `busy` the newest that has anything to tell of. By tenant."""
        ...

    async def depths(self, *, cap: int = 10_000, tenant: str = DEFAULT_TENANT) -> list[Depth]:
        """How much of each queue waits and runs now, by name; queues with neither are left out. Of a queue about
        `cap` jobs are looked at: it costs the same however large the backlog is, and nothing else is counted."""
        ...


class Attending(Protocol):
    async def report_worker(self, info: WorkerInfo, *, tenant: str = DEFAULT_TENANT) -> None:
        """Note that a worker is there: its row is made or renewed, seen now by the engine's clock."""
        ...

    async def workers(self, *, seen_within: float = SEEN_WITHIN, tenant: str = DEFAULT_TENANT) -> list[WorkerInfo]:
        """The workers that were seen within so many seconds, by id."""
        ...

    async def forget_worker(self, id: str, *, tenant: str = DEFAULT_TENANT) -> None:
        """A worker is gone; nothing happens if it was not there."""
        ...


class Tenancy(Protocol):
    """Tenants and keys. The tenant `default` is there from the start and cannot be lost."""

    async def create_tenant(self, tenant: NewTenant) -> Tenant:
        """Raises NameTaken when the id or the name is in use."""
        ...

    async def tenants(self) -> list[Tenant]:
        """All of them, by id."""
        ...

    async def change_tenant(
        self,
        id: str,
        *,
        name: str | None = None,
        email: str | None = None,
        is_active: bool | None = None,
        limits: Limits | None = None,
    ) -> Tenant:
        """Change what is given (an empty email removes it); raises NotFound, NameTaken."""
        ...

    async def create_key(self, key: NewKey, *, tenant: str = DEFAULT_TENANT) -> ApiKey:
        """Raises NotFound when there is no such tenant, NameTaken when the id is in use."""
        ...

    async def keys(self, *, tenant: str = DEFAULT_TENANT) -> list[ApiKey]:
        """All keys of a tenant, also those that are no longer good, newest first."""
        ...

    async def find_key(self, id: str) -> tuple[ApiKey, Tenant] | None:
        """A key of any tenant, with its tenant: the first step of every authenticated request."""
        ...

    async def rotate_key(
        self, id: str, successor: NewKey, *, overlap: float, tenant: str = DEFAULT_TENANT
    ) -> ApiKey:
        """Store the successor and let the old key end after `overlap` seconds (never later than it would have), in
        one step. Raises NotFound unless the old key is still good."""
        ...

    async def revoke_key(self, id: str, *, tenant: str = DEFAULT_TENANT) -> ApiKey:
        """The key is good no more; again: the same answer. Raises NotFound."""
        ...

    async def note_use(self, key_ids: Collection[str]) -> None:
        """These keys, and with them their tenants, were used just now."""
        ...


class Limiting(Protocol):
    async def take_tokens(
        self, name: str, wanted: float, *, rate: float, burst: float, tenant: str = DEFAULT_TENANT
    ) -> Taken:
        """Take up to `wanted` tokens from a named bucket that all processes share (`core.limits.take`, in one
        step, by the engine's clock). A bucket that was not used for a day is forgotten by `prune`."""
        ...

    async def kept_out(self, jobs: Sequence[NewJob], *, tenant: str = DEFAULT_TENANT) -> list[bool]:
        """Which of these jobs a key or a unique rule keeps out now: `enqueue` stores nothing for them, it answers
        with an earlier job or refuses another body. How they keep out one another is not looked at."""
        ...


class Auditing(Protocol):
    async def note_actions(self, actions: Sequence[NewAction], *, tenant: str = DEFAULT_TENANT) -> None:
        """Write down what operators did, durably, at the engine's time."""
        ...

    async def actions(
        self,
        where: ActionFilter = ActionFilter(),
        *,
        limit: int = 50,
        before_n: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Action]:
        """The newest actions first, those numbered below `before_n` if it is given."""
        ...


class Signalling(Protocol):
    async def subscribe(self, queues: Collection[str], *, tenant: str = DEFAULT_TENANT) -> Subscription: ...


class Engine(
    Submitting,
    Leasing,
    Inspecting,
    Operating,
    Scheduling,
    Upkeeping,
    Remembering,
    Attending,
    Tenancy,
    Limiting,
    Auditing,
    Signalling,
    Protocol,
):
    """A store of jobs."""

    name: str
    capabilities: frozenset[Capability]
    #: What "accepted" survives: `full`, `relaxed`, or `none` for a store that lives in the process.
    durability: Literal["full", "relaxed", "none"]

    async def open(self) -> None:
        """Connect, check version, schema and durability; raises ConfigurationError or Unavailable."""
        ...

    async def close(self) -> None: ...

    async def now(self) -> datetime:
        """The engine's clock."""
        ...

    async def secret(self) -> bytes:
        """32 random bytes of the store, the same for each process that opens it, to sign what is handed out."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
