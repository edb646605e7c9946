"""The ticket that can finish a job, and what a ticket that is no longer good is told."""

from __future__ import annotations

from uuid import UUID

import msgspec

from ropeway.core.errors import ConflictError, JobEnded, LeaseLost
from ropeway.core.states import TERMINAL_STATES, State, Verb


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to run one attempt of one job until its grant expires.

    `token` is the grant's secret (128 random bits), shared by the jobs of one lease call; together with the job
    and the attempt it fences every write of the worker.
    """

    job_id: UUID
    attempt: int
    token: UUID


class LastTicket(msgspec.Struct, frozen=True):
    """What a job remembers of the newest ticket that was used up on it: enough to answer the same call again."""

    attempt: int
    token: UUID | None
    verb: Verb | None
    state: State


def answer_spent(lease: Lease, verb: Verb, last: LastTicket | None) -> ConflictError | State:
    """What a ticket that changed nothing is told.

    The same verb with the same ticket again (its reply was lost) is answered with the job's state, as if it had
    just happened. A ticket whose job it ended itself, used for another verb, is told that the job has ended. All
    others lost their lease; a job that is missing or belongs to another tenant answers exactly like that too.
    """
    if last is None or last.token != lease.token or last.attempt != lease.attempt:
        return _lost()
    if last.verb is verb:
        return last.state
    if last.verb is not Verb.LOSE and last.state in TERMINAL_STATES:
        return JobEnded(f"the job has already ended: {last.state.value}", status=last.state.value)
    return _lost()


def _lost() -> LeaseLost:
    return LeaseLost(
        "this lease is not the job's current one",
        hint="stop working on the job: another attempt has it, or it was cancelled",
    )
