"""Where a job's row lies: a completion is told by the claim, and is right whatever became of the row since."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from ropeway.core.errors import LeaseLost
from ropeway.core.job import Progress
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done
from ropeway.core.states import State
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.grants import Spot
from ropeway.engines.protocol import Leased, Settled, Settlement
from ropeway.engines.settling import Completion
from ropeway.testing.conformance.kit import (
    answer_to,
    check_log,
    enqueue_many,
    lease_some,
    new_job,
    refused,
    state_of,
)
from tests.engines.pg_kit import connected, opened


class Counted(PostgresEngine):
    """Counts the statements of completions: of many jobs, with how many spots that were known, and of one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.batches: list[tuple[int, int]] = []
        self.singles = 0

    async def _complete_many(
        self, tenant: str, completions: Sequence[Completion], spots: Sequence[Spot | None]
    ) -> list[bool]:
        self.batches.append((len(completions), sum(spot is not None for spot in spots)))
        return await super()._complete_many(tenant, completions, spots)

    async def _complete_one(self, tenant: str, completion: Completion) -> bool:
        self.singles += 1
        return await super()._complete_one(tenant, completion)


async def _acked(engine: PostgresEngine, leased: Sequence[Leased]) -> None:
    answers = await engine.settle([Settlement(each.lease, Done(b"1")) for each in leased])
    assert {type(answer) for answer in answers} == {Settled}, answers
    for each in leased:
        assert await state_of(engine, each.job.id) is State.SUCCEEDED
        await check_log(engine, each.job.id)


def _swap(engine: PostgresEngine, one: Leased, other: Leased) -> None:
    """The book takes the row of each for that of the other, as if both had moved and met."""
    _, jobs = engine.grants._open[one.lease.token]
    jobs[one.job.id], jobs[other.job.id] = jobs[other.job.id], jobs[one.job.id]


async def test_a_row_that_stays_is_found_where_it_lies(database: str) -> None:
    async with Counted(database, days_ahead=1) as engine:
        await enqueue_many(engine, 20)
        await _acked(engine, await lease_some(engine, 20))
        assert (engine.batches, engine.singles) == ([(20, 20)], 0)


async def test_rows_that_were_changed_here_are_found_by_their_keys(database: str) -> None:
    async with Counted(database, days_ahead=1) as engine:
        await enqueue_many(engine, 20)
        leased = await lease_some(engine, 20)
        await engine.progress([(each.lease, Progress(1, 2)) for each in leased[:5]])
        await _acked(engine, leased)
        assert (engine.batches, engine.singles) == ([(20, 15)], 0)


async def test_rows_that_were_changed_elsewhere_are_found_together(database: str) -> None:
    async with Counted(database, days_ahead=1) as engine, opened(database) as other:
        await enqueue_many(engine, 20)
        leased = await lease_some(engine, 20)
        await other.progress([(each.lease, Progress(1, 2)) for each in leased[:5]])
        await _acked(engine, leased)
        assert (engine.batches, engine.singles) == ([(20, 20), (5, 0)], 0)


async def test_jobs_that_another_engine_has_claimed_are_found_by_their_keys(database: str) -> None:
    async with Counted(database, days_ahead=1) as engine, opened(database) as other:
        await enqueue_many(engine, 20)
        theirs, ours = await lease_some(other, 10), await lease_some(engine, 10)
        await _acked(engine, [*theirs[:5], *ours, *theirs[5:]])
        assert (engine.batches, engine.singles) == ([(20, 10)], 0)


async def test_another_job_at_that_spot_is_left_alone(database: str) -> None:
    async with Counted(database, days_ahead=1) as engine:
        await enqueue_many(engine, 3)
        one, other, third = await lease_some(engine, 3)
        _swap(engine, one, other)
        await _acked(engine, [one, third])
        assert await state_of(engine, other.job.id) is State.RUNNING, "nobody has acked it"
        assert engine.batches == [(2, 2), (2, 0)], "the first statement undid everything"
        await _acked(engine, [other])


async def test_tickets_that_are_none_of_ours_are_not_looked_for_where_ours_lie(database: str) -> None:
    async with Counted(database, days_ahead=1) as engine:
        await enqueue_many(engine, 3)
        leased = await lease_some(engine, 3)
        refused(await answer_to(engine, leased[0], Done(), tenant="other"), LeaseLost)
        wrong = Lease(leased[0].job.id, leased[0].lease.attempt + 1, leased[0].lease.token)
        tickets = [wrong, *(each.lease for each in leased[1:])]
        answers = await engine.settle([Settlement(ticket, Done()) for ticket in tickets])
        assert [type(answer) for answer in answers] == [LeaseLost, Settled, Settled]
        assert engine.batches == [(1, 0), (3, 2)]
        assert await state_of(engine, leased[0].job.id) is State.RUNNING


async def test_two_jobs_that_have_met_are_both_completed(database: str) -> None:
    async with Counted(database, days_ahead=1) as engine:
        await enqueue_many(engine, 2)
        one, other = await lease_some(engine, 2)
        _swap(engine, one, other)
        await _acked(engine, [other, one])
        assert (engine.batches, engine.singles) == ([(2, 2)], 0)


async def test_kinds_that_are_mixed_are_packed_by_themselves(database: str) -> None:
    """What there is enough of is one row of the log, the rest are rows of their own."""
    async with opened(database) as engine:
        jobs = [new_job(type=f"t{number % 2}", queue="q") for number in range(40)]
        jobs += [new_job(type="rare", queue="q") for _ in range(3)]
        ids = [answer.id for answer in await engine.enqueue(jobs)]
        leased = await lease_some(engine, 43, "q")
        await _acked(engine, leased)
        assert Counter(each.job.id for each in leased) == Counter(ids)
    async with connected(database) as connection:
        packs = await connection.fetch("SELECT event::text, type, number, millis FROM ropeway.event_packs")
        rows = await connection.fetch(
            "SELECT event::text, type FROM ropeway.events WHERE event <> 'job.enqueued' ORDER BY 1"
        )
    steps = "job.started", "job.completed"
    assert {tuple(pack)[:3] for pack in packs} == {(step, kind, 20) for step in steps for kind in ("t0", "t1")}
    assert all((pack["millis"] is not None) == (pack["event"] == "job.completed") for pack in packs)
    assert Counter(map(tuple, rows)) == {(step, "rare"): 3 for step in steps}


@pytest.mark.parametrize("number", [3, 20])
async def test_the_version_before_claims_and_completes(database: str, number: int) -> None:
    """By the functions that it knows, while this version reads what it did."""
    async with opened(database) as engine, connected(database) as other:
        ids = await enqueue_many(engine, number)
        token = uuid.uuid4()
        rows = await other.fetch(
            """SELECT id FROM ropeway.claim(
                'default', '{default}', '{5}', '{-infinity}', '{0}', 100, $1, gen_random_uuid(), 'old', 30)""",
            token,
        )
        assert {row["id"] for row in rows} == set(ids)
        written = await other.fetchval(
            "SELECT ropeway.complete('default', $1, '{1}', $2, $2, '{}', '{}', '{}', '{}')", ids, [token]
        )
        assert written is None, "all of them"
        for id in ids:
            assert await state_of(engine, id) is State.SUCCEEDED
            await check_log(engine, id)
