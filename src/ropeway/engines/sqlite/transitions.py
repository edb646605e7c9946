"""Decided transitions, written to rows: the job, its event, and the grant that may be over with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from ropeway.core.decide import JobFacts, Rules, Transition, decide
from ropeway.core.events import event_state, milliseconds
from ropeway.core.outcome import Lost, Released
from ropeway.core.payload import JobError
from ropeway.core.states import EventName, State
from ropeway.engines.protocol import Rescued
from ropeway.engines.settling import Applied
from ropeway.engines.sqlfile import statements
from ropeway.engines.sqlite.rows import facts, micros, moment, optional_moment, optional_text, seconds
from ropeway.engines.sqlite.writer import Transaction
from ropeway.runtime.ids import uuid_from_bytes

SQL = statements("ropeway.engines.sqlite", "sql/settling.sql")
GRANTS = statements("ropeway.engines.sqlite", "sql/leasing.sql")


class Running(NamedTuple):
    """A running job, as far as its fate depends on it (the columns of `held_jobs`)."""

    place: int
    id: bytes
    tenant: str
    queue: str
    token: bytes
    worker: str
    attempts: int
    max_attempts: int
    failures: int
    lost: int
    retry: str | None
    run_at: int

    def facts(self) -> JobFacts:
        return facts(self.attempts, self.max_attempts, self.failures, self.lost, self.retry)


def apply_transition(tx: Transaction, job: Running, transition: Transition) -> Applied:
    """Write one transition other than an ack to a job whose fence was checked in this transaction."""
    run_at = job.run_at
    dead = transition.target is State.DEAD
    if not dead:
        if transition.delay is not None:
            run_at = tx.now + seconds(transition.delay)
        elif transition.run_at is not None:
            run_at = max(micros(transition.run_at), tx.now)
    tx.db.execute(
        SQL["bury" if dead else "put_back"],
        {
            "place": job.place,
            "refund": transition.refund,
            "failed": transition.failed,
            "lost": transition.lost,
            "verb": transition.verb.value,
            "error": optional_text(transition.error),
            "dead_reason": transition.dead_reason,
            "run_at": run_at,
            "now": tx.now,
        },
    )
    write_event(
        tx,
        job.place,
        transition.event,
        worker=job.worker,
        run_at=run_at if transition.event is EventName.SNOOZED else None,
        seconds=transition.delay if transition.event is EventName.FAILED else None,
        failed=job.failures > 0 or transition.failed,
        error=transition.error,
        detail=transition.detail(),
    )
    if not dead:
        tx.woken.add((job.tenant, job.queue))
    return Applied(transition.target, job.attempts - transition.refund, moment(run_at))


def write_event(
    tx: Transaction,
    place: int,
    event: EventName,
    *,
    worker: str | None = None,
    run_at: int | None = None,
    seconds: float | None = None,
    failed: bool = False,
    error: JobError | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Append a job's next event; its row was changed before, its `event_seq` too."""
    state = event_state(event, at=moment(tx.now), run_at=optional_moment(run_at), failed=failed)
    tx.db.execute(
        SQL["log"],
        {
            "place": place,
            "event": event.value,
            "state": state.value,
            "now": tx.now,
            "worker": worker,
            "run_at": run_at,
            "millis": None if seconds is None else milliseconds(seconds),
            "error": optional_text(error),
            "detail": optional_text(detail),
        },
    )


def end_settled_grants(tx: Transaction, tokens: Iterable[bytes]) -> None:
    """Remove the grants that hold nothing any more."""
    tx.db.executemany(GRANTS["end_settled_grant"], [(token,) for token in tokens])


def take_back(
    tx: Transaction, token: bytes, started: Collection[UUID] | None, lost: Lost, rules: Rules
) -> list[Rescued]:
    """End a grant: of the jobs it holds the started ones (None: all) are lost, the others released."""
    rescued = []
    for row in tx.db.execute(GRANTS["held_jobs"], {"token": token}).fetchall():
        job = Running(*row)
        id = uuid_from_bytes(job.id)
        outcome = lost if started is None or id in started else Released()
        applied = apply_transition(tx, job, decide(job.facts(), outcome, 0.0, rules))
        rescued.append(Rescued(job.tenant, id, applied.state))
    tx.db.execute(GRANTS["end_grant"], {"token": token})
    return rescued
