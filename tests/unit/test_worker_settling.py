"""An outcome that cannot be written holds up no other one, and its job does not stay running."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from ropeway.core.errors import FieldError, InputError, RopewayError
from ropeway.core.job import Job
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Outcome
from ropeway.core.states import State
from ropeway.engines.protocol import Leased, Settled, Settlement
from ropeway.observability.logs import logger
from ropeway.observability.metrics import Tally
from ropeway.runtime.service import Outage
from ropeway.worker import completer as completing
from ropeway.worker.completer import Completer
from ropeway.worker.run import Run

BAD = Done(b"bad")


class PickyEngine:
    """Does not take a bad outcome: it says so, or breaks."""

    name = "picky"

    def __init__(self, *, breaks: bool = False, takes_failures: bool = True) -> None:
        self.breaks = breaks
        self.takes_failures = takes_failures
        self.written: dict[Any, Outcome] = {}
        self.calls = 0

    async def settle(self, batch: Sequence[Settlement], *, tenant: str) -> list[Settled | RopewayError]:
        self.calls += 1
        if self.breaks and any(self._is_bad(one.outcome) for one in batch):
            raise TypeError("a defect")
        return [self._answer(one) for one in batch]

    def _answer(self, one: Settlement) -> Settled | RopewayError:
        if self._is_bad(one.outcome):
            return FieldError("the result is no good")
        self.written[one.lease.job_id] = one.outcome
        return Settled(one.lease.job_id, State.SUCCEEDED)

    def _is_bad(self, outcome: Outcome) -> bool:
        return outcome == BAD or (isinstance(outcome, Failed) and not self.takes_failures)


@pytest.fixture(autouse=True)
def _no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    class AtOnce:
        def next(self) -> float:
            return 0.0

        def reset(self) -> None: ...

    monkeypatch.setattr(completing, "Backoff", AtOnce)


def ended(outcome: Outcome) -> Run:
    now = datetime.now(UTC)
    id = uuid4()
    job = Job(
        id=id,
        tenant="default",
        type="task",
        queue="default",
        state=State.RUNNING,
        priority=5,
        payload=b"{}",
        attempt=1,
        attempts=1,
        max_attempts=5,
        run_at=now,
        created_at=now,
        updated_at=now,
    )
    run = Run(Leased(job, Lease(id, 1, uuid4())), None)
    run.outcome = outcome
    return run


async def settle(engine: Any, *runs: Run) -> Completer:
    """Put all of them and wait until each was answered."""
    sender = Completer(engine, Tally(), "default", Outage(logger("test")))
    sender.put(runs)
    await asyncio.wait_for(sender.flush(), 10)
    return sender


@pytest.mark.parametrize("breaks", [False, True], ids=["refused", "breaks"])
async def test_an_outcome_that_cannot_be_kept_becomes_a_failure(breaks: bool) -> None:
    engine = PickyEngine(breaks=breaks)
    bad, before, after = ended(BAD), ended(Done(b"1")), ended(Done(b"2"))
    sender = await settle(engine, before, bad, after)
    assert engine.written[before.leased.job.id] == Done(b"1")
    assert engine.written[after.leased.job.id] == Done(b"2")
    failed = engine.written[bad.leased.job.id]
    assert isinstance(failed, Failed)
    assert failed.error.type == "invalid_outcome"
    assert failed.retry is not False
    assert ("a defect" if breaks else "the result is no good") in failed.error.message
    assert sender.unsettled == 0


@pytest.mark.parametrize("breaks", [False, True], ids=["refused", "breaks"])
async def test_a_failure_that_cannot_be_kept_either_is_given_up(breaks: bool) -> None:
    """Its job is the lease's to take back; the outcomes behind it still go out."""
    engine = PickyEngine(breaks=breaks, takes_failures=False)
    bad, after = ended(BAD), ended(Done(b"2"))
    sender = await settle(engine, bad, after)
    assert list(engine.written) == [after.leased.job.id]
    assert sender.unsettled == 0
    assert sender.grants() == {bad.leased.lease.token}, "who gave it back would run it again and again"
    assert engine.calls < 12


async def test_a_refusal_of_the_lease_is_not_replaced() -> None:
    class Fenced(PickyEngine):
        def _answer(self, one: Settlement) -> Settled | RopewayError:
            return RopewayError("not the job's lease any more")

    engine = Fenced()
    await settle(engine, ended(Done(b"1")))
    assert engine.calls == 1


def test_a_field_error_is_an_input_error() -> None:
    """What the completer asks for is what engines answer with."""
    assert issubclass(FieldError, InputError)
