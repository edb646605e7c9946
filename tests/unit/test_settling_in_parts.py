"""A batch of outcomes is written in parts: what is said when the store goes away between two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID, uuid4

import pytest

from ropeway.core.decide import JobFacts
from ropeway.core.errors import EngineError, Indeterminate, Unavailable
from ropeway.core.lease import LastTicket, Lease
from ropeway.core.outcome import Done, Failed, Outcome
from ropeway.core.payload import JobError
from ropeway.core.retry import RetryPolicy
from ropeway.engines.protocol import EngineRules, Settlement
from ropeway.engines.settling import Applied, Change, Completion, settle

FAILED = Failed(JobError("Trouble", "of some kind"))


class GoesAway:
    """Acks are written; for all that comes after it is away."""

    def __init__(self, acks: int = 1) -> None:
        self.acks = acks

    async def complete(self, tenant: str, completions: Sequence[Completion]) -> list[bool]:
        if not self.acks:
            raise Unavailable("the store is away")
        self.acks -= 1
        return [True for _ in completions]

    async def facts(self, tenant: str, leases: Sequence[Lease]) -> list[JobFacts | None]:
        return [JobFacts(1, 5, 0, 0, RetryPolicy()) for _ in leases]

    async def apply(self, tenant: str, changes: Sequence[Change]) -> list[Applied | None]:
        raise Unavailable("the store is away")

    async def last_tickets(self, tenant: str, ids: Sequence[UUID]) -> Mapping[UUID, LastTicket]:
        raise Unavailable("the store is away")


def outcome(what: Outcome, lease: Lease | None = None) -> Settlement:
    return Settlement(lease or Lease(uuid4(), 1, uuid4()), what)


TWICE = Lease(uuid4(), 1, uuid4())


@pytest.mark.parametrize(
    ("store", "settlements", "error"),
    [
        (GoesAway(), [outcome(Done()), outcome(FAILED)], Indeterminate),
        (GoesAway(), [outcome(Done(), TWICE), outcome(Done(), TWICE)], Indeterminate),
        (GoesAway(), [outcome(FAILED)], Unavailable),
        (GoesAway(0), [outcome(Done()), outcome(FAILED)], Unavailable),
    ],
    ids=["acks_then_others", "the_same_job_twice", "nothing_before_others", "nothing_at_all"],
)
async def test_only_what_surely_changed_nothing_is_called_unavailable(
    store: GoesAway, settlements: list[Settlement], error: type[EngineError]
) -> None:
    with pytest.raises(EngineError) as raised:
        await settle(store, "default", settlements, EngineRules())
    assert type(raised.value) is error
