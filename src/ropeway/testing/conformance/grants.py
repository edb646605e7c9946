"""Grants: heartbeats that reach all jobs of a lease call, and what happens when they stop."""

from __future__ import annotations

from datetime import timedelta
from math import inf, nan

import pytest

from ropeway.core.errors import FieldError, JobEnded, LeaseLost
from ropeway.core.outcome import Done, Lost, Released
from ropeway.core.states import EventName, State
from ropeway.engines.protocol import Beat, Engine, Leased, Rescued, WorkerRef
from ropeway.runtime import ids
from ropeway.testing.conformance.kit import (
    HOUR,
    OTHER_TENANT,
    ack,
    answer_to,
    check_log,
    enqueue_many,
    enqueue_one,
    event_names,
    forged,
    job_of,
    last_event,
    lease_one,
    lease_some,
    leased_ids,
    nack,
    nothing_changes,
    refused,
    release,
    state_of,
    states_of,
    worker,
)
from ropeway.testing.conformance.subject import Harness


async def beat(engine: Engine, leased: Leased, lease_seconds: float | None = None) -> Beat:
    (answer,) = await engine.heartbeat([leased.lease], lease_seconds=lease_seconds)
    assert isinstance(answer, Beat), f"expected the heartbeat to be taken, got {answer!r}"
    return answer


async def beat_owner(engine: Engine, by: WorkerRef) -> Beat:
    answer = await engine.heartbeat_owner(by.owner)
    assert answer is not None, "expected the owner to hold a grant"
    return answer


class TestHeartbeats:
    async def test_a_heartbeat_extends_all_jobs_of_its_lease_call(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 3)
            first, *_ = await lease_some(engine, lease_seconds=30)
            await subject.advance(20)
            assert await beat(engine, first) == Beat(30.0)
            until = await engine.now() + timedelta(seconds=30)
            assert [(await job_of(engine, id)).locked_until for id in wanted] == [until] * 3
            await subject.advance(29)
            assert await engine.rescue() == []

    async def test_it_extends_no_other_lease_call(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            wanted = await enqueue_many(engine, 2)
            first, _ = [await lease_one(engine, by=by, lease_seconds=30) for _ in wanted]
            await subject.advance(20)
            await beat(engine, first)
            await subject.advance(20)
            assert [rescued.id for rescued in await engine.rescue()] == [wanted[1]]

    async def test_it_may_ask_for_another_duration(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine)
            leased = await lease_one(engine, lease_seconds=30)
            assert (await beat(engine, leased, 300)).expires_in == 300
            await subject.advance(299)
            assert await engine.rescue() == []
            for seconds in (0, -1, 43_201, nan, inf):
                with pytest.raises(FieldError):
                    await engine.heartbeat([leased.lease], lease_seconds=seconds)

    async def test_it_never_shortens(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            by = worker()
            leased = await lease_one(engine, by=by, lease_seconds=300)
            until = (await job_of(engine, id)).locked_until
            assert (await beat(engine, leased, 1)).expires_in == 300
            assert (await job_of(engine, id)).locked_until == until
            await beat(engine, leased, 600)
            assert (await beat_owner(engine, by)).expires_in == 600

    async def test_it_never_goes_beyond_the_jobs_timeout(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, timeout=60)
            leased = await lease_one(engine, lease_seconds=30)
            await subject.advance(20)
            assert (await beat(engine, leased)).expires_in == 30
            await subject.advance(20)
            assert (await beat(engine, leased)).expires_in == pytest.approx(20)
            await subject.advance(19)
            await beat(engine, leased)
            assert await engine.rescue() == []
            await subject.advance(1)
            assert [rescued.id for rescued in await engine.rescue()] == [id]

    async def test_no_time_is_left_never_less_than_none(self, harness: Harness) -> None:
        """Nobody has rescued it yet, and its timeout is over: the beat changes nothing and says so."""
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            await enqueue_one(engine, timeout=10)
            leased = await lease_one(engine, by=by, lease_seconds=5)
            await subject.advance(100)
            assert await beat(engine, leased) == Beat(0.0)
            await engine.cancel([leased.job.id])
            told = await beat_owner(engine, by)
            assert told == Beat(0.0, (leased.job.id,)), "a grant with nothing but a revoked job ends with its time"

    async def test_a_job_without_timeout_may_beat_for_ever(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine, timeout=0)
            leased = await lease_one(engine, lease_seconds=40_000)
            for _ in range(5):
                await subject.advance(39_000)
                assert (await beat(engine, leased)).expires_in == 40_000
                assert await engine.rescue() == []

    async def test_it_saves_a_lease_that_expired_but_was_not_taken_back(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine)
            leased = await lease_one(engine, lease_seconds=30)
            await subject.advance(31)
            assert (await beat(engine, leased)).expires_in == 30
            assert await engine.rescue() == []
            await ack(engine, leased)

    async def test_a_ticket_that_is_not_current_has_no_heartbeat(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            old = await lease_one(engine)
            await release(engine, old)
            refused((await engine.heartbeat([old.lease]))[0], LeaseLost)
            leased = await lease_one(engine)
            async with nothing_changes(engine, id):
                for lease in (old.lease, forged(leased.lease)):
                    refused((await engine.heartbeat([lease], lease_seconds=600))[0], LeaseLost)
            await ack(engine, leased)
            assert refused((await engine.heartbeat([leased.lease]))[0], JobEnded).status == "succeeded"
            refused((await engine.heartbeat([old.lease]))[0], LeaseLost)

    async def test_after_a_death_of_its_own_doing_it_is_told_of_the_end(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_one(engine)
            leased = await lease_one(engine)
            await nack(engine, leased, retry=False)
            assert refused((await engine.heartbeat([leased.lease]))[0], JobEnded).status == "dead"

    async def test_a_batch_answers_each_in_order(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            await enqueue_many(engine, 3)
            leases = [(await lease_one(engine, lease_seconds=seconds)).lease for seconds in (30, 40, 50)]
            answers = await engine.heartbeat([leases[2], forged(leases[1]), leases[0]])
            assert answers[0] == Beat(50.0)
            refused(answers[1], LeaseLost)
            assert answers[2] == Beat(30.0)

    async def test_a_heartbeat_is_no_event_and_no_change_of_the_job(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine, lease_seconds=30)
            async with nothing_changes(engine, id):
                await beat(engine, leased)
            await subject.advance(5)
            before = await job_of(engine, id)
            await beat(engine, leased)
            assert (await job_of(engine, id)).updated_at == before.updated_at
            assert await event_names(engine, id) == [EventName.ENQUEUED, EventName.STARTED]


class TestOwners:
    async def test_one_call_extends_every_grant_of_an_owner(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            mine, other = worker("same-name"), worker("same-name")
            wanted = await enqueue_many(engine, 5)
            await lease_some(engine, 2, by=mine, lease_seconds=30)
            await lease_some(engine, 2, by=mine, lease_seconds=60)
            await lease_some(engine, 1, by=other, lease_seconds=30)
            await subject.advance(20)
            assert await beat_owner(engine, mine) == Beat(30.0), "the shortest of its grants counts"
            await subject.advance(29)
            assert [rescued.id for rescued in await engine.rescue()] == wanted[4:]
            await subject.advance(1)
            assert {rescued.id for rescued in await engine.rescue()} == set(wanted[:2])

    async def test_an_owner_without_grants_is_told_so(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            assert await engine.heartbeat_owner(by.owner) is None
            await enqueue_one(engine)
            leased = await lease_one(engine, by=by)
            assert await engine.heartbeat_owner(ids.token()) is None
            assert await engine.heartbeat_owner(by.owner, tenant=OTHER_TENANT) is None
            await ack(engine, leased)
            assert await engine.rescue() == []

    async def test_a_cancelled_job_is_revoked_at_the_next_heartbeat(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            wanted = await enqueue_many(engine, 2)
            first, second = await lease_some(engine, by=by)
            await engine.cancel([wanted[0]])
            refused((await engine.heartbeat([first.lease]))[0], LeaseLost)
            assert (await beat(engine, second)).revoked == (wanted[0],)
            assert (await beat_owner(engine, by)).revoked == (wanted[0],)
            await ack(engine, second)
            await check_log(engine, wanted[0])

    async def test_a_revoked_job_is_told_even_when_it_was_the_only_one(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            id = await enqueue_one(engine)
            await lease_one(engine, by=by)
            await engine.cancel([id])
            assert (await beat_owner(engine, by)).revoked == (id,)

    async def test_a_revoked_job_is_forgotten_after_the_lease(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            id = await enqueue_one(engine)
            await lease_one(engine, by=by, lease_seconds=30)
            await engine.cancel([id])
            for _ in range(4):
                await subject.advance(10)
                await engine.heartbeat_owner(by.owner)
            assert await engine.rescue() == []
            assert await engine.heartbeat_owner(by.owner) is None, "a grant without jobs lives on its heartbeats"

    async def test_a_revoked_job_does_not_shorten_what_the_others_have(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            wanted = await enqueue_many(engine, 2)
            for _ in wanted:
                await lease_one(engine, by=by, lease_seconds=30)
            await engine.cancel(wanted[:1])
            await subject.advance(20)
            assert await beat_owner(engine, by) == Beat(30.0, (wanted[0],))


class TestRescue:
    async def test_a_job_comes_back_when_its_lease_has_expired_not_before(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine, lease_seconds=30)
            await subject.advance(29.999)
            assert await engine.rescue() == []
            assert await leased_ids(engine) == []
            await subject.advance(0.001)
            assert await engine.rescue() == [Rescued("default", id, State.QUEUED)]
            event = await last_event(engine, id)
            assert (event.event, event.data["cause"]) == (EventName.RECLAIMED, "expired")
            async with nothing_changes(engine, id):
                assert await engine.rescue() == []
                refused(await answer_to(engine, leased, Done()), LeaseLost)
                refused((await engine.heartbeat([leased.lease]))[0], LeaseLost)
            again = await lease_one(engine)
            assert (again.job.id, again.lease.attempt) == (id, 2)

    async def test_an_expired_lease_is_nobody_elses_until_it_was_taken_back(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            await lease_one(engine, lease_seconds=30)
            await subject.advance(HOUR)
            assert await leased_ids(engine) == []
            assert await state_of(engine, id) is State.RUNNING

    async def test_only_jobs_that_still_run_come_back(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 6)
            leased = await lease_some(engine, lease_seconds=30)
            await ack(engine, leased[0])
            await nack(engine, leased[1])
            await release(engine, leased[2])
            await engine.cancel([wanted[3]])
            again = await lease_one(engine, lease_seconds=600)
            assert again.job.id == wanted[2]
            await subject.advance(31)
            async with nothing_changes(engine, *wanted[:4]):
                assert {rescued.id for rescued in await engine.rescue()} == set(wanted[4:])
            await ack(engine, again)

    async def test_a_grant_whose_jobs_are_all_settled_brings_nothing(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 3)
            first, second, _ = await lease_some(engine, lease_seconds=30)
            await ack(engine, first)
            await nack(engine, second, retry=False)
            await engine.cancel([wanted[2]])
            await subject.advance(31)
            async with nothing_changes(engine, *wanted):
                assert await engine.rescue() == []
                assert await engine.audit() == []

    async def test_it_works_for_all_tenants(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            tenants = ("default", OTHER_TENANT, "third")
            wanted = {tenant: await enqueue_one(engine, tenant=tenant) for tenant in tenants}
            for tenant in tenants:
                await lease_one(engine, tenant=tenant, lease_seconds=30)
            await subject.advance(31)
            rescued = {one.tenant: (one.id, one.state) for one in await engine.rescue()}
            assert rescued == {tenant: (id, State.QUEUED) for tenant, id in wanted.items()}

    async def test_a_limit_leaves_the_rest_for_the_next_call(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 6)
            for _ in range(6):
                await lease_one(engine, lease_seconds=30)
            await subject.advance(31)
            rescued = [one.id for one in await engine.rescue(limit=4)]
            assert 1 <= len(rescued) <= 4
            while more := await engine.rescue(limit=4):
                rescued += [one.id for one in more]
            assert sorted(rescued) == sorted(wanted)

    async def test_the_audit_finds_nothing_where_nothing_is_wrong(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            wanted = await enqueue_many(engine, 3)
            await lease_some(engine, 2, lease_seconds=30)
            async with nothing_changes(engine, *wanted):
                assert await engine.audit() == []


class TestEndOfAnOwner:
    async def test_started_jobs_are_lost_and_the_others_released(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            wanted = await enqueue_many(engine, 3)
            leased = await lease_some(engine, 2, by=by) + await lease_some(engine, 1, by=by)
            rescued = await engine.end_grants(by.owner, started=[wanted[1]], lost=Lost("crashed", signal=9))
            assert {(one.id, one.state) for one in rescued} == {(id, State.QUEUED) for id in wanted}
            jobs = [await job_of(engine, id) for id in wanted]
            assert [job.attempts for job in jobs] == [0, 1, 0]
            assert [job.lease_lost_count for job in jobs] == [0, 1, 0]
            names = [(await last_event(engine, id)).event for id in wanted]
            assert names == [EventName.RELEASED, EventName.RECLAIMED, EventName.RELEASED]
            data = (await last_event(engine, wanted[1])).data
            assert (data["cause"], data["signal"]) == ("crashed", 9)
            for ticket in leased:
                refused(await answer_to(engine, ticket, Done()), LeaseLost)
            assert await leased_ids(engine) == wanted, "all keep their place in line"

    async def test_without_a_report_all_jobs_are_lost(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            wanted = await enqueue_many(engine, 2)
            await lease_some(engine, by=by)
            await engine.end_grants(by.owner)
            assert [(await job_of(engine, id)).lease_lost_count for id in wanted] == [1, 1]

    async def test_with_none_started_all_are_released(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            wanted = await enqueue_many(engine, 2)
            await lease_some(engine, by=by)
            await engine.end_grants(by.owner, started=[])
            assert [(await job_of(engine, id)).attempts for id in wanted] == [0, 0]

    async def test_settled_jobs_and_other_owners_are_left_alone(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            mine, other = worker(), worker()
            wanted = await enqueue_many(engine, 4)
            first, second = await lease_some(engine, 2, by=mine)
            third = await lease_one(engine, by=other)
            await lease_one(engine, by=mine)
            await ack(engine, first)
            await nack(engine, second)
            async with nothing_changes(engine, *wanted[:3]):
                assert [one.id for one in await engine.end_grants(mine.owner)] == [wanted[3]]
            await ack(engine, third)

    async def test_the_second_report_finds_nothing(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            id = await enqueue_one(engine)
            await lease_one(engine, by=by, lease_seconds=30)
            await engine.end_grants(by.owner)
            async with nothing_changes(engine, id):
                assert await engine.end_grants(by.owner) == []
                assert await engine.end_grants(ids.token()) == []
                assert await engine.heartbeat_owner(by.owner) is None
            await subject.advance(31)
            assert await engine.rescue() == []

    async def test_an_owner_that_missed_an_answer_gives_back_what_it_does_not_know_of(
        self, harness: Harness
    ) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            wanted = await enqueue_many(engine, 3)
            known, also_known = [await lease_one(engine, by=by) for _ in range(2)]
            missed = await lease_one(engine, by=by)
            kept = {known.lease.token, also_known.lease.token}
            only = [missed.lease.token]
            assert await engine.other_grants(by.owner, kept) == only
            assert set(await engine.other_grants(by.owner, [])) == {*kept, *only}
            assert await engine.other_grants(worker().owner, []) == []
            assert await engine.other_grants(by.owner, [], tenant=OTHER_TENANT) == []
            async with nothing_changes(engine, *wanted[:2]):
                assert await engine.end_grants(by.owner, started=(), only=[]) == []
                assert await engine.end_grants(worker().owner, started=(), only=only) == [], "of another owner"
                rescued = await engine.end_grants(by.owner, started=(), only=only)
            assert [(one.id, one.state) for one in rescued] == [(missed.job.id, State.QUEUED)]
            assert (await job_of(engine, missed.job.id)).attempts == 0
            assert await engine.end_grants(by.owner, started=(), only=only) == []
            assert await engine.other_grants(by.owner, kept) == []
            assert set(await engine.other_grants(by.owner, [])) == kept
            for leased in (known, also_known):
                await ack(engine, leased)
            assert await engine.other_grants(by.owner, []) == [], "what is settled is held no more"

    async def test_another_tenants_word_counts_for_nothing(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            id = await enqueue_one(engine)
            leased = await lease_one(engine, by=by)
            async with nothing_changes(engine, id):
                assert await engine.end_grants(by.owner, tenant=OTHER_TENANT) == []
            await ack(engine, leased)

    async def test_a_third_loss_is_the_end(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine, max_attempts=25)
            for state in (State.QUEUED, State.QUEUED, State.DEAD):
                by = worker()
                await lease_one(engine, by=by)
                assert [one.state for one in await engine.end_grants(by.owner)] == [state]
            assert await states_of(engine, [id]) == [State.DEAD]

    async def test_a_released_tickets_own_release_is_answered_as_done(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            by = worker()
            await enqueue_one(engine)
            leased = await lease_one(engine, by=by)
            await engine.end_grants(by.owner, started=[])
            answer = await answer_to(engine, leased, Released())
            assert getattr(answer, "already", False), f"the job was released already, got {answer!r}"
