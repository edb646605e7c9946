"""Random programs by Hypothesis, and a failing one told as briefly as can be found in a given time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar
from unittest import TestCase

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from ropeway.testing.conformance.subject import Harness
from ropeway.testing.model.calls import steps
from ropeway.testing.model.program import Broken, Call, Program
from ropeway.testing.model.records import Ask

#: How long a failing program is shortened. Hypothesis's own shrinking takes minutes where a step is a statement.
SHORTENING_SECONDS = 30.0

END = Call("everything_comes_to_an_end", {})


class ModelMachine(RuleBasedStateMachine):
    """One program. There is one rule, which draws any call.

    Hypothesis switches off about half of the rules in each example: with a rule per call most programs had no
    enqueue or no lease and did nothing at all (measured: 85 of 100).
    """

    harness: ClassVar[Harness]

    def __init__(self) -> None:
        super().__init__()
        self.program = Program(self.harness)

    @rule(call=steps)
    def step(self, call: Call) -> None:
        self.program.step(call)

    def teardown(self) -> None:
        try:
            if sys.exception() is None:
                self.program.do(END.method)
        finally:
            self.program.close()


def run_model(
    harness: Harness, *, examples: int = 200, steps: int = 50, shortening: float = SHORTENING_SECONDS
) -> None:
    """Run `examples` programs of `steps` calls on the engine of `harness`; `Broken` for the first that fails."""
    machine = type("Model", (ModelMachine,), {"harness": harness})
    size = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(machine, settings=size)
    except Broken as broken:
        raise shortened(harness, broken, shortening) from broken.__cause__


def model_test(harness: Harness, *, examples: int = 200, steps: int = 50) -> type[TestCase]:
    """The same as a test case."""

    class TestModel(TestCase):
        def test_random_programs(self) -> None:
            run_model(harness, examples=examples, steps=steps)

    return TestModel


def shortened(harness: Harness, broken: Broken, seconds: float) -> Broken:
    """The failure of the shortest program that still fails, as far as `seconds` allow."""
    deadline = time.monotonic() + seconds
    shortest = broken

    def fails(calls: Sequence[Call]) -> bool:
        nonlocal shortest
        again = None if time.monotonic() > deadline else _failure(harness, calls)
        shortest = again or shortest
        return again is not None

    # Large parts first, then single calls. The last call is the one that fails.
    length = len(shortest.calls) // 2
    while length:
        start = 0
        while start < len(shortest.calls) - 1:
            calls = shortest.calls
            if not fails([*calls[:start], *calls[min(start + length, len(calls) - 1) :]]):
                start += length
        length //= 2
    position = 0
    while position < len(shortest.calls):
        calls = shortest.calls
        method, arguments = calls[position]
        plainer = (
            [*calls[:position], Call(method, {**arguments, "asks": asks}), *calls[position + 1 :]]
            for asks in _plainer(arguments.get("asks", []))
        )
        if not any(fails(attempt) for attempt in plainer):
            position += 1
    return shortest


def _plainer(asks: Sequence[Ask]) -> Iterator[list[Ask]]:
    for position, ask in enumerate(asks):
        if len(asks) > 1:
            yield [*asks[:position], *asks[position + 1 :]]
        for plainer in ask.plainer():
            yield [*asks[:position], plainer, *asks[position + 1 :]]


def _failure(harness: Harness, calls: Sequence[Call]) -> Broken | None:
    program = Program(harness)
    try:
        for call in calls:
            if program.possible(call):
                program.do(call.method, **call.arguments)
    except Broken as broken:
        return broken
    finally:
        program.close()
    return None
