"""Outcomes to answers, the same for every engine: clean, decide in core, apply under the fence, explain refusals.

An engine brings four small operations (`SettlementStore`); this module brings the order in which they are used.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeVar
from uuid import UUID

import msgspec

from ropeway.core import fields
from ropeway.core.decide import JobFacts, Transition, decide
from ropeway.core.errors import FieldError, Indeterminate, RopewayError, Unavailable
from ropeway.core.job import Progress
from ropeway.core.lease import LastTicket, Lease, answer_spent
from ropeway.core.outcome import Done, Failed, Outcome, Snoozed
from ropeway.core.payload import CleanResult, JobError, clean_error, clean_result, clean_text
from ropeway.core.states import State, Verb
from ropeway.engines.protocol import EngineRules, Settled, Settlement, WorkerRef
from ropeway.runtime.faultpoints import fault

T = TypeVar("T")

#: Characters kept of a progress message.
MAX_PROGRESS_MESSAGE = 1_024

#: A result with more bytes is cleaned in a thread: that may take a while, and others wait for the loop.
_SLOW_BYTES = 262_144

_NO_RESULT = CleanResult(None)


class Completion(msgspec.Struct, frozen=True, gc=False):
    """One ack, with a result that can be stored whatever it was."""

    lease: Lease
    result: CleanResult


class Change(msgspec.Struct, frozen=True):
    """One decided transition, to be written if the lease is still current."""

    lease: Lease
    transition: Transition


class Applied(msgspec.Struct, frozen=True):
    """What a written transition came to."""

    state: State
    attempts: int
    run_at: datetime


class SettlementStore(Protocol):
    """What settling needs of an engine. Every operation checks the fence in the statement that writes."""

    async def complete(self, tenant: str, completions: Sequence[Completion]) -> list[bool]:
        """Ack; False for each lease that was not current."""
        ...

    async def facts(self, tenant: str, leases: Sequence[Lease]) -> list[JobFacts | None]:
        """What decisions need to know; None for each lease that is not current."""
        ...

    async def apply(self, tenant: str, changes: Sequence[Change]) -> list[Applied | None]:
        """Write transitions other than acks; None for each lease that was not current."""
        ...

    async def last_tickets(self, tenant: str, ids: Sequence[UUID]) -> Mapping[UUID, LastTicket]:
        """The newest spent ticket of each job that has one."""
        ...


async def settle(
    store: SettlementStore,
    tenant: str,
    settlements: Sequence[Settlement],
    rules: EngineRules,
    draw: Callable[[], float] = random.random,
) -> list[Settled | RopewayError]:
    """Write every outcome whose lease is current and answer each one, in order. Acks are written first:
    Indeterminate when the store went away between them and the others."""
    answers: dict[int, Settled | RopewayError] = {}
    fault("settle.before")
    for positions in _rounds(settlements):
        others = [i for i in positions if not isinstance(settlements[i].outcome, Done)]
        acks = [i for i in positions if isinstance(settlements[i].outcome, Done)] if others else positions
        if acks:
            acking = _acks(store, tenant, settlements, acks, rules, answers)
            await (after_write(acking) if answers else acking)
        if others:
            writing = _others(store, tenant, settlements, others, rules, draw, answers)
            await (after_write(writing) if answers else writing)
    fault("settle.committed")
    return [answers[i] for i in range(len(settlements))]


def _rounds(settlements: Sequence[Settlement]) -> list[list[int]]:
    """Positions in groups that name each job once, so that a set-based statement keeps the order of calls."""
    if len({s.lease.job_id for s in settlements}) == len(settlements):
        return [list(range(len(settlements)))] if settlements else []
    rounds: list[list[int]] = []
    used: dict[UUID, int] = {}
    for position, settlement in enumerate(settlements):
        number = used.get(settlement.lease.job_id, 0)
        used[settlement.lease.job_id] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(position)
    return rounds


async def _acks(
    store: SettlementStore,
    tenant: str,
    settlements: Sequence[Settlement],
    positions: list[int],
    rules: EngineRules,
    answers: dict[int, Settled | RopewayError],
) -> None:
    completions = []
    for i in positions:
        settlement = settlements[i]
        result = settlement.outcome.result if isinstance(settlement.outcome, Done) else None
        if result is None:
            cleaned = _NO_RESULT
        elif len(result) <= _SLOW_BYTES:
            cleaned = clean_result(result, max_bytes=rules.max_payload_bytes)
        else:
            cleaned = await asyncio.to_thread(clean_result, result, max_bytes=rules.max_payload_bytes)
        completions.append(Completion(settlement.lease, cleaned))
    written = await store.complete(tenant, completions)
    refused = []
    for i, completion, ok in zip(positions, completions, written, strict=True):
        if not ok:
            refused.append(i)
        elif completion.result is _NO_RESULT:
            answers[i] = Settled(completion.lease.job_id, State.SUCCEEDED)
        else:
            answers[i] = Settled(
                completion.lease.job_id,
                State.SUCCEEDED,
                sanitized=completion.result.sanitized,
                result_too_large=completion.result.too_large,
            )
    await _explain(store, tenant, settlements, refused, answers)


async def _others(
    store: SettlementStore,
    tenant: str,
    settlements: Sequence[Settlement],
    positions: list[int],
    rules: EngineRules,
    draw: Callable[[], float],
    answers: dict[int, Settled | RopewayError],
) -> None:
    outcomes: dict[int, Outcome] = {}
    for i in positions:
        try:
            outcomes[i] = clean(settlements[i].outcome)
        except FieldError as unfit:
            answers[i] = unfit
    positions = list(outcomes)
    facts = await store.facts(tenant, [settlements[i].lease for i in positions]) if positions else []
    current = [(i, known) for i, known in zip(positions, facts, strict=True) if known is not None]
    refused = [i for i, known in zip(positions, facts, strict=True) if known is None]
    changes = [
        Change(settlements[i].lease, decide(known, outcomes[i], draw(), rules.decisions)) for i, known in current
    ]
    applied = await store.apply(tenant, changes) if changes else []
    for (i, _), change, done in zip(current, changes, applied, strict=True):
        if done is None:
            refused.append(i)
            continue
        error = change.transition.error
        answers[i] = Settled(
            change.lease.job_id,
            done.state,
            attempts=done.attempts,
            run_at=None if done.state is State.DEAD else done.run_at,
            retry_in=change.transition.delay,
            sanitized=error is not None and error.sanitized,
            truncated=error is not None and error.truncated,
        )
    await _explain(store, tenant, settlements, refused, answers)


async def _explain(
    store: SettlementStore,
    tenant: str,
    settlements: Sequence[Settlement],
    refused: list[int],
    answers: dict[int, Settled | RopewayError],
) -> None:
    """Answer the leases that changed nothing: the same call again, an ended job, or a lost lease."""
    if not refused:
        return
    ids = [settlements[i].lease.job_id for i in refused]
    tickets = await after_write(store.last_tickets(tenant, ids))
    for i in refused:
        lease, outcome = settlements[i].lease, settlements[i].outcome
        verdict = answer_spent(lease, outcome.verb, tickets.get(lease.job_id))
        answers[i] = Settled(lease.job_id, verdict, already=True) if isinstance(verdict, State) else verdict


def clean(outcome: Outcome) -> Outcome:
    """An outcome that can be stored: texts cut and cleaned (never refused, G14). Raises FieldError for the time
    of a snooze that is none."""
    if isinstance(outcome, Failed):
        return msgspec.structs.replace(outcome, error=_clean_error(outcome.error))
    if isinstance(outcome, Snoozed):
        if outcome.run_at is not None and outcome.delay is not None:
            raise FieldError("give run_at or delay, not both", code="conflicting_fields", pointer="/run_at")
        if outcome.run_at is not None:
            fields.check_time(outcome.run_at, "run_at")
        else:
            fields.check_seconds(outcome.delay, "delay", 0, fields.HORIZON_SECONDS)
    return outcome


def _clean_error(error: JobError) -> JobError:
    cleaned = clean_error(error.type, error.message, error.traceback)
    if cleaned.truncated or cleaned.sanitized:
        return cleaned
    return error


async def after_write(question: Awaitable[T]) -> T:
    """A question asked after something was written: if it fails, what was written stays, so nothing is certain."""
    try:
        return await question
    except Unavailable as error:
        raise Indeterminate(f"it was written, but its answer is not known: {error.message}") from error


def refusal(lease: Lease, ticket: LastTicket | None) -> RopewayError:
    """What a heartbeat or progress call with a ticket that is not current is told."""
    verdict = answer_spent(lease, Verb.LEASE, ticket)
    assert not isinstance(verdict, State), "no ticket is spent by a lease"  # noqa: S101
    return verdict


def clean_progress(progress: Progress, now: datetime) -> Progress:
    """A progress note that can be stored, stamped with the engine's time."""
    message = None if progress.message is None else clean_text(progress.message, MAX_PROGRESS_MESSAGE)
    return Progress(_finite(progress.done), _finite(progress.total), message, now)


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def check_lease_call(count: int, worker: WorkerRef, lease_seconds: float) -> None:
    """The rules of a lease call that no store needs to see."""
    fields.check_integer(count, "count", 1, fields.MAX_LEASE_COUNT)
    fields.check_seconds(lease_seconds, "lease_seconds", 1, fields.MAX_LEASE_SECONDS)
    fields.check_text(worker.id, "worker_id", limit=128)
