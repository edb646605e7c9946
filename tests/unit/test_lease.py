"""What a ticket is told that changed nothing: the whole truth table."""

from __future__ import annotations

from uuid import UUID

import pytest

from ropeway.core.errors import JobEnded, LeaseLost
from ropeway.core.lease import LastTicket, Lease, answer_spent
from ropeway.core.states import LIVE_STATES, TERMINAL_STATES, State, Verb

JOB, TOKEN, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)
LEASE = Lease(JOB, 2, TOKEN)

SPENDING = (Verb.ACK, Verb.NACK, Verb.SNOOZE, Verb.RELEASE, Verb.LOSE)
#: A heartbeat or progress call asks with the verb that spends nothing.
ASKING = (*SPENDING, Verb.LEASE)


@pytest.mark.parametrize("verb", ASKING)
def test_a_missing_job_has_no_lease(verb: Verb) -> None:
    assert isinstance(answer_spent(LEASE, verb, None), LeaseLost)


@pytest.mark.parametrize("verb", ASKING)
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(("attempt", "token"), [(2, OTHER), (1, TOKEN), (3, TOKEN), (3, OTHER), (2, None)])
def test_a_ticket_that_was_not_the_last_one_is_lost(
    verb: Verb, state: State, attempt: int, token: UUID | None
) -> None:
    """Whatever became of the job: only its own ticket may learn that."""
    last = LastTicket(attempt, token, verb, state)
    assert isinstance(answer_spent(LEASE, verb, last), LeaseLost)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("verb", SPENDING)
def test_the_same_call_again_is_answered_with_the_jobs_state(verb: Verb, state: State) -> None:
    assert answer_spent(LEASE, verb, LastTicket(2, TOKEN, verb, state)) is state


@pytest.mark.parametrize(
    ("asked", "spent"), [(asked, spent) for asked in ASKING for spent in (*SPENDING, None) if asked is not spent]
)
@pytest.mark.parametrize("state", State)
def test_another_call_with_a_spent_ticket(asked: Verb, spent: Verb | None, state: State) -> None:
    answer = answer_spent(LEASE, asked, LastTicket(2, TOKEN, spent, state))
    if state in TERMINAL_STATES and spent is not Verb.LOSE:
        assert isinstance(answer, JobEnded)
        assert (answer.code, answer.status) == ("terminal", state.value)
    else:
        assert isinstance(answer, LeaseLost)
        assert answer.code == "lease_lost"
        assert answer.hint


def test_all_lost_leases_are_told_the_same() -> None:
    """A foreign, a missing and an old ticket cannot be told apart (corpus 76)."""
    answers = [
        answer_spent(LEASE, Verb.ACK, None),
        answer_spent(LEASE, Verb.ACK, LastTicket(2, OTHER, Verb.ACK, State.SUCCEEDED)),
        answer_spent(LEASE, Verb.ACK, LastTicket(9, TOKEN, Verb.ACK, State.RUNNING)),
        answer_spent(LEASE, Verb.ACK, LastTicket(2, TOKEN, Verb.LOSE, State.DEAD)),
    ]
    assert len({str(answer) for answer in answers}) == 1


def test_the_table_covers_every_state() -> None:
    assert set(State) == LIVE_STATES | TERMINAL_STATES
