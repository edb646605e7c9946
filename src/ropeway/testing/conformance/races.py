"""Races: calls that meet. In each exactly one wins, and the log agrees (C2, C5, C8, C11)."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest

from ropeway.core.access import ApiKey, Limits, NewTenant
from ropeway.core.auditlog import NewAction
from ropeway.core.errors import ConflictError, InvalidState, LeaseLost, RopewayError
from ropeway.core.joblog import LogLine
from ropeway.core.outcome import Done, Failed
from ropeway.core.query import JobFilter, QueueSettings
from ropeway.core.states import EventName, State
from ropeway.core.unique import Unique
from ropeway.engines.protocol import Beat, Changed, Engine, Leased, Settled, Settlement
from ropeway.testing.conformance.kit import (
    BOOM,
    QUEUE,
    ack,
    answer_to,
    check_log,
    drive_to,
    enqueue_many,
    enqueue_one,
    event_names,
    handles,
    job_of,
    lease_one,
    lease_some,
    new_job,
    refused,
    state_of,
    worker,
)
from ropeway.testing.conformance.subject import Harness
from ropeway.testing.conformance.tenancy import new_key, with_tenants

#: How often each race is run: the schedulers of the loop and of the store decide who is first.
ROUNDS = 10


class TestKeyRaces:
    async def test_fifty_enqueues_with_one_key_are_one_job(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engines = await handles(harness, subject, 4)
            job = new_job(idempotency_key="k", payload=b"[1]")
            answers = await asyncio.gather(*(engines[n % 4].enqueue([job]) for n in range(50)))
            assert len({answer.id for (answer,) in answers}) == 1
            assert sum(not answer.deduplicated for (answer,) in answers) == 1
            assert await event_names(subject.engine, answers[0][0].id) == [EventName.ENQUEUED]
            assert (await subject.engine.count()).number == 1

    async def test_fifty_unique_enqueues_are_one_job(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engines = await handles(harness, subject, 4)
            job = new_job(unique=Unique())
            answers = await asyncio.gather(*(engines[n % 4].enqueue([job]) for n in range(50)))
            assert len({answer.id for (answer,) in answers}) == 1
            assert sum(not answer.deduplicated for (answer,) in answers) == 1
            assert (await subject.engine.count()).number == 1

    async def test_batches_that_share_keys_in_other_orders_all_come_through(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engines = await handles(harness, subject, 4)
            keys = [f"k{n}" for n in range(20)]
            batches = [
                [new_job(idempotency_key=key) for key in (keys if n % 2 else keys[::-1])] for n in range(12)
            ]
            answers = await asyncio.gather(*(engines[n % 4].enqueue(batch) for n, batch in enumerate(batches)))
            by_key: dict[str | None, set[UUID]] = {}
            for batch, answer in zip(batches, answers, strict=True):
                for job, one in zip(batch, answer, strict=True):
                    by_key.setdefault(job.idempotency_key, set()).add(one.id)
            assert {key: len(found) for key, found in by_key.items()} == dict.fromkeys(keys, 1)
            assert (await subject.engine.count()).number == 20


class TestLineRaces:
    async def test_lines_of_many_callers_are_numbered_one_after_the_other(self, harness: Harness) -> None:
        """In other orders too: nobody waits for the other for ever."""
        async with harness.subject() as subject:
            engines = await handles(harness, subject, 3)
            await enqueue_many(subject.engine, 4)
            leases = [leased.lease for leased in await lease_some(subject.engine, 4)]

            async def talk(number: int) -> None:
                for turn in range(5):
                    order = leases if (number + turn) % 2 else leases[::-1]
                    lines = [(lease, LogLine(f"{number}.{turn}")) for lease in order]
                    assert await engines[number].log(lines) == [None] * 4

            await asyncio.gather(*(talk(number) for number in range(3)))
            for lease in leases:
                lines = await subject.engine.log_of(lease.job_id)
                assert [line.n for line in lines] == [*range(1, 16)]
                for number in range(3):
                    own = [line.message for line in lines if line.message.startswith(f"{number}.")]
                    assert own == [f"{number}.{turn}" for turn in range(5)]

    async def test_nothing_is_left_of_a_job_that_is_deleted_while_it_talks(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine, other = await handles(harness, subject, 2)
            for _ in range(ROUNDS):
                await enqueue_one(engine)
                leased = await lease_one(engine)
                id = leased.job.id

                async def end(id: UUID = id) -> None:
                    await other.cancel([id])
                    (gone,) = await other.delete([id])
                    assert isinstance(gone, Changed)

                lines = [(leased.lease, LogLine("hello"))]
                await asyncio.gather(*(engine.log(lines) for _ in range(3)), end())
                assert await engine.get([id]) == [None]
                assert await engine.log_of(id) == []


class TestClaimRaces:
    async def test_eight_claimers_lease_each_of_200_jobs_once(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engines = await handles(harness, subject, 4)
            wanted = await enqueue_many(subject.engine, 200)
            claimed: list[Leased] = []

            async def claim(engine: Engine) -> None:
                by = worker()
                in_vain = 0
                # A claim may come back short while others hold their rows; it must not stay empty.
                while len(claimed) < 200 and in_vain < 200:
                    leased = await lease_some(engine, 5, by=by)
                    in_vain = 0 if leased else in_vain + 1
                    claimed.extend(leased)
                    await asyncio.sleep(0)

            await asyncio.gather(*(claim(engines[n % 4]) for n in range(8)))
            times = Counter(leased.job.id for leased in claimed)
            assert set(times) == set(wanted), f"{200 - len(times)} jobs were never leased"
            assert set(times.values()) == {1}, "a job was leased twice"
            answers = await asyncio.gather(
                *(answer_to(engines[n % 4], leased, Done()) for n, leased in enumerate(claimed))
            )
            assert all(isinstance(answer, Settled) for answer in answers)
            for id in wanted:
                assert len(await check_log(subject.engine, id)) == 3

    async def test_enqueues_claims_and_acks_all_at_once_lose_nothing(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engines = await handles(harness, subject, 4)
            done: list[UUID] = []
            total = 120

            async def produce(engine: Engine) -> None:
                for _ in range(total // 4 // 5):
                    await engine.enqueue([new_job()] * 5)
                    await asyncio.sleep(0)

            async def work(engine: Engine) -> None:
                by = worker()
                in_vain = 0
                while len(done) < total and in_vain < 1_000:
                    leased = await lease_some(engine, 7, by=by)
                    in_vain = 0 if leased else in_vain + 1
                    answers = await engine.settle([Settlement(one.lease, Done()) for one in leased])
                    done.extend(answer.id for answer in answers if isinstance(answer, Settled))
                    await asyncio.sleep(0)

            await asyncio.gather(*(produce(engine) for engine in engines), *(work(engine) for engine in engines))
            assert len(done) == len(set(done)) == total
            ended = JobFilter(states=frozenset({State.SUCCEEDED}))
            assert (await subject.engine.count(ended)).number == total


class TestSettlingRaces:
    async def test_an_ack_against_an_ack(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            first, second = await handles(harness, subject, 2)
            for _ in range(ROUNDS):
                id = await enqueue_one(first)
                leased = await lease_one(first)
                answers = await asyncio.gather(
                    *(answer_to(engine, leased, Done()) for engine in (first, second, first, second))
                )
                settled = [answer for answer in answers if isinstance(answer, Settled)]
                assert len(settled) == 4
                assert sorted(answer.already for answer in settled) == [False, True, True, True]
                assert len(await check_log(first, id)) == 3

    async def test_an_ack_against_a_nack(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            first, second = await handles(harness, subject, 2)
            for round in range(ROUNDS):
                id = await enqueue_one(first)
                leased = await lease_one(first)
                calls = [answer_to(first, leased, Done()), answer_to(second, leased, Failed(BOOM, retry=False))]
                done, failed = await _both(calls, swap=round % 2 == 1)
                assert isinstance(done, Settled) != isinstance(failed, Settled), "both or neither won"
                state = State.SUCCEEDED if isinstance(done, Settled) else State.DEAD
                assert await state_of(first, id) is state
                assert len(await check_log(first, id)) == 3

    async def test_an_ack_against_the_rescue(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            first, second = await handles(harness, subject, 2)
            for round in range(ROUNDS):
                id = await enqueue_one(first)
                leased = await lease_one(first, lease_seconds=30)
                await subject.advance(31)
                answer, rescued = await _both(
                    [answer_to(first, leased, Done()), second.rescue()], swap=round % 2 == 1
                )
                if isinstance(answer, Settled):
                    assert rescued == []
                    assert await state_of(first, id) is State.SUCCEEDED
                else:
                    refused(answer, LeaseLost)
                    assert [one.id for one in rescued] == [id]
                    assert await state_of(first, id) is State.QUEUED
                    await ack(first, await lease_one(first))
                await check_log(first, id)

    async def test_an_ack_against_a_cancel(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            first, second = await handles(harness, subject, 2)
            for round in range(ROUNDS):
                id = await enqueue_one(first)
                leased = await lease_one(first)
                answer, (cancelled,) = await _both(
                    [answer_to(first, leased, Done()), second.cancel([id])], swap=round % 2 == 1
                )
                assert isinstance(answer, Settled) != isinstance(cancelled, Changed), "both or neither won"
                state = State.SUCCEEDED if isinstance(answer, Settled) else State.CANCELLED
                assert await state_of(first, id) is state
                assert len(await check_log(first, id)) == 3

    async def test_an_ack_against_the_end_of_its_owner(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            first, second = await handles(harness, subject, 2)
            for round in range(ROUNDS):
                by = worker()
                wanted = await enqueue_many(first, 3)
                leased = await lease_some(first, 3, by=by)
                acks = [Settlement(one.lease, Done()) for one in leased[:2]]
                answers, rescued = await _both(
                    [first.settle(acks), second.end_grants(by.owner)], swap=round % 2 == 1
                )
                won = {one.id for one in answers if isinstance(one, Settled)}
                taken = {one.id for one in rescued}
                assert won | taken == set(wanted)
                assert not won & taken, "a job was finished and taken back"
                for id in taken:
                    assert (await job_of(first, id)).lease_lost_count == 1
                for one in await lease_some(first, 3):
                    await ack(first, one)
                for id in wanted:
                    assert (await check_log(first, id))[-1].event is EventName.COMPLETED

    async def test_a_heartbeat_against_the_rescue(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            first, second = await handles(harness, subject, 2)
            for round in range(ROUNDS):
                id = await enqueue_one(first)
                leased = await lease_one(first, lease_seconds=30)
                await subject.advance(31)
                (beat,), rescued = await _both(
                    [first.heartbeat([leased.lease]), second.rescue()], swap=round % 2 == 1
                )
                assert isinstance(beat, Beat) != bool(rescued), "a lease was extended and taken away"
                state = State.RUNNING if isinstance(beat, Beat) else State.QUEUED
                assert await state_of(first, id) is state
                await first.cancel([id])
                await check_log(first, id)


class TestUpkeepRaces:
    async def test_rescuers_take_each_job_back_once(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engines = await handles(harness, subject, 4)
            wanted = await enqueue_many(subject.engine, 20)
            for _ in range(5):
                await lease_some(subject.engine, 4, lease_seconds=30)
            await subject.advance(31)
            answers = await asyncio.gather(*(engine.rescue() for engine in engines * 2))
            rescued = [one.id for answer in answers for one in answer] + [
                one.id for one in await subject.engine.rescue()
            ]
            assert sorted(rescued) == sorted(wanted)
            for id in wanted:
                assert (await job_of(subject.engine, id)).lease_lost_count == 1
                assert len(await check_log(subject.engine, id)) == 3

    async def test_a_rescue_against_the_report_of_a_death(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            first, second = await handles(harness, subject, 2)
            for round in range(ROUNDS):
                by = worker()
                id = await enqueue_one(first)
                await lease_one(first, by=by, lease_seconds=30)
                await subject.advance(31)
                rescued, ended = await _both([first.rescue(), second.end_grants(by.owner)], swap=round % 2 == 1)
                assert [one.id for one in [*rescued, *ended]] == [id]
                assert (await job_of(first, id)).lease_lost_count == 1
                await first.cancel([id])
                await check_log(first, id)

    async def test_sweepers_expire_each_job_once(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engines = await handles(harness, subject, 4)
            wanted = await enqueue_many(subject.engine, 20, expires_in=60)
            await subject.advance(60)
            answers = await asyncio.gather(*(engine.expire() for engine in engines))
            expired = [id for answer in answers for id in answer] + await subject.engine.expire()
            assert sorted(expired) == sorted(wanted)
            for id in wanted:
                assert len(await check_log(subject.engine, id)) == 2


class TestOperatorRaces:
    async def test_a_redrive_against_a_redrive(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engines = await handles(harness, subject, 4)
            for _ in range(ROUNDS):
                id = (await drive_to(subject, State.DEAD)).id
                answers = [answer for (answer,) in await asyncio.gather(*(e.redrive([id]) for e in engines))]
                assert sum(isinstance(answer, Changed) for answer in answers) == 1
                assert all(type(answer) in (Changed, InvalidState) for answer in answers)
                assert [event.event for event in await check_log(subject.engine, id)].count(EventName.RETRIED) == 1
                await ack(subject.engine, await lease_one(subject.engine))

    async def test_redrives_by_filter_share_the_dead(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engines = await handles(harness, subject, 4)
            dead = [(await drive_to(subject, State.DEAD)).id for _ in range(12)]
            reports = await asyncio.gather(*(engine.redrive_where(JobFilter(), limit=5) for engine in engines))
            retried = [id for report in reports for id in report.retried]
            retried += (await subject.engine.redrive_where(JobFilter())).retried
            assert sorted(retried) == sorted(dead)
            for id in dead:
                assert len(await check_log(subject.engine, id)) == 4

    async def test_a_cancel_against_a_lease(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            first, second = await handles(harness, subject, 2)
            for round in range(ROUNDS):
                id = await enqueue_one(first)
                batch, (cancelled,) = await _both(
                    [first.lease([QUEUE], 1, worker()), second.cancel([id])], swap=round % 2 == 1
                )
                assert isinstance(cancelled, Changed)
                assert cancelled.before is (State.RUNNING if batch.leases else State.QUEUED)
                assert await state_of(first, id) is State.CANCELLED
                for leased in batch.leases:
                    refused(await answer_to(first, leased, Done()), LeaseLost)
                await check_log(first, id)

    async def test_a_delete_against_a_lease(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            first, second = await handles(harness, subject, 2)
            for round in range(ROUNDS):
                id = await enqueue_one(first)
                batch, (deleted,) = await _both(
                    [first.lease([QUEUE], 1, worker()), second.delete([id])], swap=round % 2 == 1
                )
                assert isinstance(deleted, Changed) != bool(batch.leases), "a running job was deleted"
                for leased in batch.leases:
                    await ack(first, leased)
                await check_log(first, id)

    async def test_a_reschedule_against_a_lease(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            first, second = await handles(harness, subject, 2)

            async def postpone(id: UUID) -> Changed | RopewayError:
                try:
                    return await second.reschedule(id, delay=3_600)
                except ConflictError as error:
                    return error

            for round in range(ROUNDS):
                id = await enqueue_one(first)
                batch, moved = await _both([first.lease([QUEUE], 1, worker()), postpone(id)], swap=round % 2 == 1)
                assert isinstance(moved, Changed) != bool(batch.leases), "a running job was rescheduled"
                await first.cancel([id])
                await check_log(first, id)


class TestAccessRaces:
    async def test_a_bucket_gives_no_more_than_it_has(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engines = await handles(harness, subject, 4)

            async def taken(wanted: float) -> float:
                return (await engines[next(turn) % 4].take_tokens("b", wanted, rate=5, burst=20)).granted

            turn = itertools.count()
            assert sum(await asyncio.gather(*(taken(1) for _ in range(60)))) == pytest.approx(20)
            await subject.advance(1)
            assert sum(await asyncio.gather(*(taken(0.75) for _ in range(20)))) == pytest.approx(5)
            total = 0.0
            for _ in range(ROUNDS):
                pouring = asyncio.ensure_future(subject.advance(0.5))
                total += sum(await asyncio.gather(*(taken(1) for _ in range(20))))
                await pouring
            total += await taken(100)
            assert total == pytest.approx(5 * 0.5 * ROUNDS), "what was poured in, and not a drop more"

    async def test_of_two_tenants_of_one_name_one_is_made(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engines = await handles(harness, subject, 4)
            for round in range(ROUNDS):
                same_id = [NewTenant(id=f"id-{round}", name=f"{round}.{n}") for n in range(4)]
                same_name = [NewTenant(id=f"{round}.{n}", name=f"name {round}") for n in range(4)]
                for tenants in (same_id, same_name):
                    calls = zip(engines, tenants, strict=True)
                    answers = await _all(engine.create_tenant(tenant) for engine, tenant in calls)
                    assert sorted(type(answer).__name__ for answer in answers) == ["NameTaken"] * 3 + ["Tenant"]
            names = [tenant.name for tenant in await subject.engine.tenants()]
            assert len(set(names)) == len(names) == 2 * ROUNDS + 1

    async def test_of_two_tenants_that_take_a_name_one_gets_it(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engines = await handles(harness, subject, 4)
            for n in range(4):
                await subject.engine.create_tenant(NewTenant(id=f"t{n}", name=f"n{n}"))
            for round in range(ROUNDS):
                answers = await _all(
                    engine.change_tenant(f"t{n}", name=f"new {round}") for n, engine in enumerate(engines)
                )
                assert sorted(type(answer).__name__ for answer in answers) == ["NameTaken"] * 3 + ["Tenant"]

    async def test_changes_of_a_tenant_do_not_undo_each_other(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            first, second = await handles(harness, subject, 2)
            await first.create_tenant(NewTenant(id="t", name="n"))
            for round in range(ROUNDS):
                await _both(
                    [
                        first.change_tenant("t", email=f"{round}@example.com"),
                        second.change_tenant("t", limits=Limits(burst=round + 1)),
                    ],
                    swap=round % 2 == 1,
                )
                tenant = (await first.tenants())[-1]
                assert (tenant.email, tenant.limits.burst) == (f"{round}@example.com", round + 1)

    async def test_a_key_has_one_successor(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engines = await handles(harness, subject, 4)
            for round in range(ROUNDS):
                await subject.engine.create_key(new_key(f"old-{round}"))
                answers = await _all(
                    engine.rotate_key(f"old-{round}", new_key(f"{round}.{n}"), overlap=0)
                    for n, engine in enumerate(engines)
                )
                assert sorted(type(answer).__name__ for answer in answers) == ["ApiKey"] + ["NotFound"] * 3
            assert len(await subject.engine.keys()) == 2 * ROUNDS

    async def test_a_revoked_key_stays_revoked_whoever_rotates_it(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            first, second = await handles(harness, subject, 2)
            for round in range(ROUNDS):
                id, successor = f"old-{round}", f"new-{round}"
                await first.create_key(new_key(id))
                calls = [first.rotate_key(id, new_key(successor), overlap=3_600), second.revoke_key(id)]
                rotated, revoked = await _all(calls if round % 2 else calls[::-1], swap=round % 2 == 0)
                assert isinstance(revoked, ApiKey)
                old = await first.find_key(id)
                assert old is not None
                assert old[0].revoked_at is not None
                assert isinstance(rotated, ApiKey) == (await first.find_key(successor) is not None)

    async def test_no_action_is_lost_and_no_number_is_given_twice(self, harness: Harness) -> None:
        async with with_tenants(harness) as subject:
            engines = await handles(harness, subject, 4)
            batches = [[NewAction("a", "b", f"{n}.{m}") for m in range(3)] for n in range(20)]
            await asyncio.gather(*(engines[n % 4].note_actions(batch) for n, batch in enumerate(batches)))
            found = await subject.engine.actions(limit=100)
            assert len({action.n for action in found}) == 60
            assert {action.target for action in found} == {one.target for batch in batches for one in batch}

    async def test_settings_and_a_pause_of_one_queue_both_hold(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            first, second = await handles(harness, subject, 2)
            for round in range(ROUNDS):
                settings = QueueSettings(depth_limit=round + 1)
                await _both([first.set_queue(QUEUE, settings), second.pause(QUEUE)], swap=round % 2 == 1)
                (stats,) = await first.queue_stats()
                assert (stats.paused, stats.settings) == (True, settings)
                await _both([first.set_queue(QUEUE, QueueSettings()), second.resume(QUEUE)], swap=round % 2 == 1)
                assert await first.queue_stats() == []


async def _all(calls: Iterable[Awaitable[Any]], *, swap: bool = False) -> list[Any]:
    """What each of the calls made at once gets, its error or its answer; `swap` gives them in reverse."""

    async def told(call: Awaitable[Any]) -> Any:
        try:
            return await call
        except RopewayError as error:
            return error

    answers = await asyncio.gather(*(told(call) for call in calls))
    return answers[::-1] if swap else list(answers)


async def _both(calls: Sequence[Awaitable[Any]], *, swap: bool) -> list[Any]:
    """Two calls at once, answers in order; `swap` lets the second one start first."""
    answers = await asyncio.gather(*(reversed(calls) if swap else calls))
    return answers[::-1] if swap else list(answers)
