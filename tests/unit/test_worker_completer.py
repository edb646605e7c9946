"""Outcomes are sent until the engine has answered for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from ropeway.core.errors import LeaseLost, RopewayError, Unavailable
from ropeway.core.lease import Lease
from ropeway.core.outcome import Released
from ropeway.core.states import State
from ropeway.engines.protocol import Settled, Settlement
from ropeway.observability.logs import logger
from ropeway.observability.metrics import Tally
from ropeway.runtime.service import Outage
from ropeway.worker import completer as completing
from ropeway.worker.completer import Completer


class FlakyEngine:
    """Answers after it has failed so many times; remembers what it was told."""

    name = "flaky"

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls: list[list[Settlement]] = []

    async def settle(self, batch: Sequence[Settlement], *, tenant: str) -> list[Settled | RopewayError]:
        self.calls.append(list(batch))
        if self.failures:
            raise self.failures.pop(0)
        return [
            LeaseLost("gone") if one.lease.attempt == 13 else Settled(one.lease.job_id, State.QUEUED)
            for one in batch
        ]


def settlements(number: int, *, attempt: int = 1) -> list[Settlement]:
    return [Settlement(Lease(uuid4(), attempt, uuid4()), Released()) for _ in range(number)]


@pytest.fixture(autouse=True)
def _no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    class AtOnce:
        def next(self) -> float:
            return 0.0

        def reset(self) -> None: ...

    monkeypatch.setattr(completing, "Backoff", AtOnce)


def made(engine: Any) -> Completer:
    return Completer(engine, Tally(), "default", Outage(logger("test")))


async def test_a_batch_is_repeated_until_it_is_answered() -> None:
    engine = FlakyEngine(Unavailable("away"), Unavailable("away"))
    sender = made(engine)
    sent = settlements(3)
    sender.settle(sent)
    assert sender.unsettled == 3
    await sender.flush()
    assert engine.calls == [sent] * 3
    assert sender.unsettled == 0


async def test_a_defect_loses_no_outcome() -> None:
    engine = FlakyEngine(ValueError("a defect"))
    sender = made(engine)
    sent = settlements(3)
    sender.settle(sent)
    await sender.flush()
    assert engine.calls[0] == sent
    assert [one for call in engine.calls[1:] for one in call] == sent
    assert sender.unsettled == 0


async def test_what_comes_meanwhile_goes_with_the_next_batch() -> None:
    engine = FlakyEngine()
    sender = made(engine)
    first, more = settlements(1), settlements(2 * completing.LARGEST_BATCH + 1)
    sender.settle(first)
    sender.settle(more)
    await sender.flush()
    assert [len(call) for call in engine.calls] == [500, 500, 2]
    assert [one for call in engine.calls for one in call] == first + more


async def test_a_refusal_is_an_answer() -> None:
    engine = FlakyEngine()
    sender = made(engine)
    sender.settle(settlements(2) + settlements(1, attempt=13))
    await sender.flush()
    assert len(engine.calls) == 1
    assert sender.unsettled == 0


async def test_nothing_to_send_is_nothing_to_wait_for() -> None:
    sender = made(FlakyEngine())
    sender.settle([])
    await sender.flush()
