"""The state table: closed, consistent with core, and drawn truthfully in ARCHITECTURE.md."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ropeway.core.decide import JobFacts, Rules, decide
from ropeway.core.events import event_state
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.states import (
    LIVE_STATES,
    TABLE,
    TERMINAL_STATES,
    EventName,
    State,
    Verb,
    live_state,
    may,
    mermaid,
)

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ERROR = JobError("E", "boom")


def test_the_diagram_in_the_architecture_is_the_table() -> None:
    assert ARCHITECTURE.exists(), (
        "ARCHITECTURE.md is missing: it must hold the generated state diagram between the lines\n"
        "<!-- states:begin --> and <!-- states:end -->, as a ```mermaid block; print it with\n"
        "python -c 'from ropeway.core.states import mermaid; print(mermaid())'"
    )
    block = re.search(
        r"<!-- states:begin -->\s*```mermaid\n(.*?)```\s*<!-- states:end -->", ARCHITECTURE.read_text(), re.DOTALL
    )
    assert block is not None, (
        "ARCHITECTURE.md has no ```mermaid block between <!-- states:begin --> and <!-- states:end -->"
    )
    assert block[1].strip() == mermaid().strip(), (
        "the state diagram in ARCHITECTURE.md is not the table of core/states.py; put this in its place:\n\n"
        + mermaid()
    )


def test_the_diagram_shows_every_arrow() -> None:
    lines = mermaid().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert len(lines) - 1 == sum(len(cell.arrows) for cell in TABLE.values())
    assert len(set(lines)) == len(lines)
    assert "    [*] --> queued: enqueue (due now)" in lines
    assert "    running --> succeeded: ack" in lines
    assert "    dead --> [*]: prune (retention is over, or deleted)" in lines


def test_every_state_is_live_or_ended() -> None:
    assert set(State) == LIVE_STATES | TERMINAL_STATES
    assert not LIVE_STATES & TERMINAL_STATES


def test_every_verb_and_event_is_used() -> None:
    assert {verb for _, verb in TABLE} == set(Verb)
    assert {arrow.event for cell in TABLE.values() for arrow in cell.arrows} == {*EventName, None}


def test_only_a_redrive_leads_out_of_an_end() -> None:
    for (state, verb), cell in TABLE.items():
        if state in TERMINAL_STATES and verb is not Verb.REDRIVE:
            assert cell.targets == {None}


def test_every_live_job_can_end() -> None:
    """From every live state some way leads to an end, whatever else happens."""
    reached = set(TERMINAL_STATES)
    for _ in State:
        reached |= {state for (state, _), cell in TABLE.items() if state and cell.targets & reached}
    assert reached == set(State)


def test_targets_of_a_cell_have_one_event_each() -> None:
    for cell in TABLE.values():
        assert len(cell.targets) == len(cell.arrows)
        assert cell.by


@pytest.mark.parametrize("state", [None, *State])
@pytest.mark.parametrize("verb", Verb)
def test_may_reads_the_table(state: State | None, verb: Verb) -> None:
    assert may(state, verb) == ((state, verb) in TABLE)


@pytest.mark.parametrize(
    ("leased", "blockers", "ahead", "failures", "state"),
    [
        (True, 0, 0, 0, State.RUNNING),
        (True, 1, 10, 3, State.RUNNING),
        (False, 1, 0, 0, State.WAITING),
        (False, 2, 10, 1, State.WAITING),
        (False, 0, 10, 0, State.SCHEDULED),
        (False, 0, 10, 1, State.RETRYING),
        (False, 0, 0, 0, State.QUEUED),
        (False, 0, 0, 4, State.QUEUED),
        (False, 0, -10, 0, State.QUEUED),
    ],
)
def test_the_state_of_a_live_job_is_derived(
    leased: bool, blockers: int, ahead: float, failures: int, state: State
) -> None:
    run_at = NOW + timedelta(seconds=ahead)
    assert live_state(leased=leased, blockers=blockers, run_at=run_at, failures=failures, now=NOW) is state


@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize(
    "outcome",
    [
        Done(),
        Failed(ERROR),
        Failed(ERROR, retry=False),
        Failed(ERROR, retry_after=0.0),
        Snoozed(delay=0.0),
        Snoozed(delay=5.0),
        Snoozed(run_at=NOW),
        Released(),
        Lost(),
    ],
    ids=repr,
)
def test_every_decision_is_an_arrow_of_the_table(outcome: Outcome, failures: int) -> None:
    facts = JobFacts(attempts=2, max_attempts=5, failures=failures, lost=0)
    transition = decide(facts, outcome, 0.5, Rules())
    assert transition.verb is outcome.verb
    arrows = {(arrow.target, arrow.event) for arrow in TABLE[State.RUNNING, transition.verb].arrows}
    assert (transition.target, transition.event) in arrows
    told = event_state(transition.event, at=NOW, run_at=NOW, failed=failures > 0)
    assert told is transition.target, "the event tells another state than the answer"
