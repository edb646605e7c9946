"""What only PostgreSQL can get wrong: statements that wait for rows, late commits, keys in open transactions."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from ropeway.core.errors import ConflictError, FieldError, KeyInFlight, LeaseLost, RopewayError
from ropeway.core.job import NewJob, Progress
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done, Failed, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.states import EventName, State
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.cursors import SET_BACK
from ropeway.engines.protocol import Beat, Leased, Settled, Settlement
from ropeway.testing.conformance.kit import (
    ack,
    answer_to,
    check_log,
    enqueue_many,
    enqueue_one,
    event_names,
    job_of,
    lease_one,
    lease_some,
    leased_ids,
    new_job,
    refused,
    state_of,
    worker,
)
from tests.engines.pg_kit import connected, eventually, opened, waiting_for_lock


async def _leased(database: str, engine: PostgresEngine, number: int, *, elsewhere: bool) -> list[Leased]:
    """Jobs that this engine has claimed, or another one: then this one has to look for their rows by key."""
    if not elsewhere:
        return await lease_some(engine, number)
    async with opened(database) as other:
        return await lease_some(other, number)


@pytest.mark.parametrize("elsewhere", [False, True])
class TestAnAckThatWaits:
    """Another transaction holds the job's row while its ack arrives (design §4.5)."""

    @pytest.mark.parametrize("number", [1, 3])
    async def test_is_accepted_when_only_a_column_changed(
        self, database: str, number: int, elsewhere: bool
    ) -> None:
        async with opened(database) as engine, connected(database) as other:
            ids = await enqueue_many(engine, number)
            leased = await _leased(database, engine, number, elsewhere=elsewhere)
            holding = other.transaction()
            await holding.start()
            await other.execute("UPDATE ropeway.jobs SET progress = 'x' WHERE id = $1", ids[0])
            acks = asyncio.create_task(engine.settle([Settlement(each.lease, Done(b"7")) for each in leased]))
            await waiting_for_lock(other, "ropeway.complete_jobs(")
            await holding.commit()
            answers = await acks
            assert [type(answer) for answer in answers] == [Settled] * number, answers
            assert not any(answer.already for answer in answers)
            for id in ids:
                assert (await job_of(engine, id)).result == b"7"
                await check_log(engine, id)

    async def test_is_accepted_when_progress_was_noted_meanwhile(self, database: str, elsewhere: bool) -> None:
        """The same through the engine's own call: many notes race with many acks."""
        async with opened(database) as engine, opened(database) as other:
            ids = await enqueue_many(engine, 200)
            leased = await _leased(database, engine, 200, elsewhere=elsewhere)
            notes = asyncio.create_task(other.progress([(each.lease, Progress(1, 2)) for each in leased]))
            answers = await engine.settle([Settlement(each.lease, Done()) for each in reversed(leased)])
            await notes
            assert {type(answer) for answer in answers} == {Settled}
            assert {job.state for job in await engine.get(ids) if job} == {State.SUCCEEDED}

    async def test_is_refused_when_a_cancel_commits_first(self, database: str, elsewhere: bool) -> None:
        async with opened(database) as engine, connected(database) as other:
            id = await enqueue_one(engine)
            (leased,) = await _leased(database, engine, 1, elsewhere=elsewhere)
            holding = other.transaction()
            await holding.start()
            await _cancel(other, id)
            answer = asyncio.create_task(answer_to(engine, leased, Done()))
            await waiting_for_lock(other, "ropeway.complete_jobs(")
            await holding.commit()
            refused(await answer, LeaseLost)
            assert await state_of(engine, id) is State.CANCELLED
            await check_log(engine, id)

    async def test_is_accepted_when_the_cancel_is_rolled_back(self, database: str, elsewhere: bool) -> None:
        async with opened(database) as engine, connected(database) as other:
            id = await enqueue_one(engine)
            (leased,) = await _leased(database, engine, 1, elsewhere=elsewhere)
            holding = other.transaction()
            await holding.start()
            await _cancel(other, id)
            answer = asyncio.create_task(answer_to(engine, leased, Done()))
            await waiting_for_lock(other, "ropeway.complete_jobs(")
            await holding.rollback()
            assert isinstance(await answer, Settled)
            await check_log(engine, id)


class TestACompletionInATransaction:
    async def test_makes_a_cancel_wait_and_wins(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as handler:
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            acking = handler.transaction()
            await acking.start()
            await engine.settle_in(handler, leased.lease)
            answer = asyncio.create_task(engine.cancel([id]))
            await waiting_for_lock(handler, "ropeway.cancel_jobs(")
            await acking.commit()
            assert isinstance((await answer)[0], ConflictError)
            assert await state_of(engine, id) is State.SUCCEEDED
            assert await event_names(engine, id) == [EventName.ENQUEUED, EventName.STARTED, EventName.COMPLETED]


class TestCancelAndRescue:
    async def test_cannot_deadlock(self, database: str) -> None:
        """A cancel locks the job, then the grant; a rescue the grant, then those jobs that are not locked."""
        async with opened(database) as engine, connected(database) as rescuer:
            id = await enqueue_one(engine)
            await lease_one(engine)
            rescue = rescuer.transaction()
            await rescue.start()
            tokens = [row["token"] for row in await rescuer.fetch("SELECT token FROM ropeway.grants FOR UPDATE")]
            answer = asyncio.create_task(engine.cancel([id]))
            await waiting_for_lock(rescuer, "ropeway.cancel_jobs(")
            assert await rescuer.fetch("SELECT * FROM ropeway.held_jobs($1)", tokens) == []
            assert await rescuer.fetchval("SELECT ropeway.delete_grants($1)", tokens) == 0
            await rescue.commit()
            assert (await answer)[0].before is State.RUNNING

    async def test_a_cancel_that_waits_for_a_handler_leaves_its_heartbeats_alone(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as handler:
            me = worker()
            ids = [await enqueue_one(engine), await enqueue_one(engine)]
            batch = await engine.lease(["default"], 2, me)
            completing = handler.transaction()
            await completing.start()
            await engine.settle_in(handler, batch.leases[1].lease)
            answer = asyncio.create_task(engine.cancel(ids))
            await waiting_for_lock(handler, "ropeway.cancel_jobs(")
            async with asyncio.timeout(1):
                assert isinstance(await engine.heartbeat_owner(me.owner), Beat)
            await completing.commit()
            first, second = await answer
            assert first.before is State.RUNNING
            assert isinstance(second, ConflictError)


class TestLostReplies:
    async def test_what_a_cancelled_lease_call_claimed_is_given_back(self, database: str) -> None:
        """Owner heartbeats would keep the unknown grant alive for ever."""
        async with opened(database) as engine, connected(database) as other:
            id = await enqueue_one(engine)
            blocking = other.transaction()
            await blocking.start()
            await other.execute("LOCK TABLE ropeway.grants IN ACCESS EXCLUSIVE MODE")
            call = asyncio.create_task(engine.lease(["default"], 1, worker()))
            await waiting_for_lock(other, "ropeway.claim_jobs(")
            call.cancel()
            await asyncio.wait([call])
            await blocking.rollback()

            async def free_again() -> bool:
                return await state_of(engine, id) is State.QUEUED

            await eventually(free_again, within=10)
            assert await other.fetchval("SELECT count(*) FROM ropeway.grants") == 0

    async def test_what_was_claimed_before_the_call_failed_is_given_back(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as other:
            id = await enqueue_one(engine)
            tokens: list[UUID] = []
            await engine._lease("default", ["default"], 1, worker(), 30.0, tokens)
            assert await state_of(engine, id) is State.RUNNING
            engine.give_back(tokens)

            async def free_again() -> bool:
                return await state_of(engine, id) is State.QUEUED

            await eventually(free_again, within=10)
            assert await other.fetchval("SELECT count(*) FROM ropeway.grants") == 0
            assert (await engine.get([id]))[0].attempts == 0


class TestGrantsOfAnOwner:
    async def test_those_without_running_jobs_end_though_their_owner_beats(self, database: str) -> None:
        """A parent beats for a child that nacks: finished grants must not live on."""
        async with opened(database) as child, opened(database) as parent, connected(database) as other:
            me = worker()
            for _ in range(5):
                await enqueue_one(child)
                leased = (await child.lease(["default"], 1, me, lease_seconds=1)).leases[0]
                await child.settle([Settlement(leased.lease, Failed(JobError("E", "no"), retry=False))])
            await other.execute("UPDATE ropeway.grants SET expires_at = '2000-01-01'")
            await parent.heartbeat_owner(me.owner)
            await parent.rescue()
            assert await other.fetchval("SELECT count(*) FROM ropeway.grants") == 0


class TestDeadlocks:
    async def test_nacks_and_cancels_of_the_same_jobs_in_other_orders(self, database: str) -> None:
        async with opened(database) as engine, opened(database) as operator:
            for _ in range(4):
                ids = [answer.id for answer in await engine.enqueue([NewJob("task")] * 100)]
                batch = await engine.lease(["default"], 100, worker())
                failed = [Settlement(one.lease, Failed(JobError("E", "no"))) for one in batch.leases]
                nacks, cancels = await asyncio.gather(engine.settle(failed), operator.cancel(ids[::-1]))
                assert len(nacks) == len(cancels) == 100
                assert all(isinstance(answer, Settled | ConflictError) for answer in nacks)
                await operator.cancel(ids)

    @pytest.mark.parametrize("call", ["progress", "heartbeat"])
    async def test_the_victim_among_beats_and_notes_tries_again(self, database: str, call: str) -> None:
        """Acks lock jobs in the order they lie in the table, notes in the order they are told."""
        async with opened(database) as engine, connected(database) as other:
            await enqueue_many(engine, 2)
            first, second = (await lease_some(engine, 1))[0].lease, (await lease_some(engine, 1))[0].lease
            # The other side is patient, so the engine is the victim.
            await other.execute("SET deadlock_timeout = '60s'")
            holding = other.transaction()
            await holding.start()
            await _lock(other, first)
            if call == "progress":
                told = asyncio.create_task(engine.progress([(each, Progress(1, 2)) for each in (second, first)]))
            else:
                told = asyncio.create_task(engine.heartbeat([second, first]))
            await waiting_for_lock(other, {"progress": "note_progress(", "heartbeat": "ropeway.heartbeat("}[call])
            await _lock(other, second)
            await holding.rollback()
            answers = await told
            assert not any(isinstance(answer, RopewayError) for answer in answers), answers


async def _lock(connection: asyncpg.Connection[asyncpg.Record], lease: Lease) -> None:
    """Hold the job and the grant of `lease`."""
    await connection.execute("SELECT FROM ropeway.jobs WHERE id = $1 FOR UPDATE", lease.job_id)
    await connection.execute("SELECT FROM ropeway.grants WHERE token = $1 FOR UPDATE", lease.token)


class TestLateCommits:
    async def test_a_claim_whose_cursor_has_passed_the_job_finds_it(self, database: str) -> None:
        """A deep sweep with the budget that production has."""
        async with opened(database) as engine, connected(database) as slow:
            late = slow.transaction()
            await late.start()
            id = await slow.fetchval("SELECT ropeway.enqueue('slow', '1')")
            place = await slow.fetchrow("SELECT run_at, seq FROM ropeway.jobs WHERE id = $1", id)

            async def past() -> bool:
                return await engine.now() > place["run_at"] + 2 * SET_BACK + timedelta(milliseconds=50)

            await eventually(past)
            for _ in range(3):
                await enqueue_many(engine, 10)
                assert len(await lease_some(engine, 10)) == 10
            assert engine.cursors.start("default", ("default", 5)) > tuple(place)
            await late.commit()
            # Claims that come back full must not hide it either.
            found: list[UUID] = []

            async def claimed() -> bool:
                await enqueue_many(engine, 5)
                found.extend(await leased_ids(engine, 5))
                return id in found

            await eventually(claimed)

    async def test_a_released_job_is_found_by_the_next_claim(self, database: str) -> None:
        async with opened(database) as engine:
            await enqueue_many(engine, 100)
            first = await lease_some(engine, 1)
            place = first[0].job.run_at

            async def past() -> bool:
                return await engine.now() > place + 2 * SET_BACK

            await eventually(past)
            await enqueue_many(engine, 10)
            await lease_some(engine, 109)
            (job,) = await engine.end_grants((await _owner(database, first[0].lease.token)), started=())
            assert job.id == first[0].job.id
            assert await leased_ids(engine, 1) == [job.id]


class TestKeysInFlight:
    """A key that someone's open transaction holds costs only those who ask for that key."""

    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    async def test_others_are_stored_at_once_and_the_one_gets_its_answer(self, database: str, ending: str) -> None:
        async with opened(database) as engine, connected(database) as foreign:
            job = new_job(idempotency_key="key-03")
            holding = foreign.transaction()
            await holding.start()
            (theirs,) = await engine.enqueue_in(foreign, [job])
            keys = [f"key-{number:02}" for number in range(8)]
            calls = {key: asyncio.create_task(engine.enqueue([new_job(idempotency_key=key)])) for key in keys}
            held = calls.pop("key-03")
            await asyncio.wait_for(asyncio.gather(*calls.values()), 1.9)
            assert not held.done(), "nobody has ended the transaction that holds the key"
            # Calls that come after it do not queue up behind it, single ones and batches alike.
            await asyncio.wait_for(engine.enqueue([new_job(idempotency_key="later")]), 1.0)
            await asyncio.wait_for(engine.enqueue([new_job(idempotency_key=f"l{n}") for n in range(3)]), 1.0)
            assert not held.done()
            await waiting_for_lock(foreign, "ropeway.add_keyed_jobs(")
            await (holding.commit() if ending == "commit" else holding.rollback())
            (answer,) = await held
            assert answer.deduplicated == (ending == "commit")
            assert (answer.id == theirs) == (ending == "commit")
            assert (await engine.count()).number == 8 + 1 + 3

    @pytest.mark.parametrize("number", [1, 2])
    async def test_whoever_waits_too_long_is_told_so(self, database: str, number: int) -> None:
        async with opened(database) as engine, connected(database) as foreign:
            async with foreign.transaction():
                await engine.enqueue_in(foreign, [new_job(idempotency_key="held")])
                began = asyncio.get_running_loop().time()
                jobs = [new_job(idempotency_key="mine"), new_job(idempotency_key="held")][-number:]
                with pytest.raises(KeyInFlight):
                    await engine.enqueue(jobs)
                assert 1.5 < asyncio.get_running_loop().time() - began < 4
            assert (await engine.count()).number == 1, "all or nothing"

    async def test_many_who_ask_for_held_keys_do_not_add_up(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as foreign:
            async with foreign.transaction():
                await engine.enqueue_in(foreign, [new_job(idempotency_key=f"k{n}") for n in range(6)])
                began = asyncio.get_running_loop().time()
                answers = await asyncio.gather(
                    *(engine.enqueue([new_job(idempotency_key=f"k{n}")]) for n in range(6)), return_exceptions=True
                )
                assert asyncio.get_running_loop().time() - began < 5
            assert [type(answer) for answer in answers] == [KeyInFlight] * 6

    async def test_a_unique_job_waits_the_same_way(self, database: str) -> None:
        from ropeway.core.unique import Unique

        async with opened(database) as engine, connected(database) as foreign:
            job = new_job(unique=Unique())
            holding = foreign.transaction()
            await holding.start()
            (theirs,) = await engine.enqueue_in(foreign, [job])
            mine = asyncio.create_task(engine.enqueue([job]))
            await waiting_for_lock(foreign, "ropeway.add_keyed_jobs(")
            await holding.commit()
            (answer,) = await mine
            assert (answer.id, answer.deduplicated) == (theirs, True)


class TestGrants:
    async def test_the_auditor_takes_back_a_job_whose_grant_is_gone(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as other:
            kept, orphan = await enqueue_one(engine), await enqueue_one(engine)
            await lease_one(engine)
            leased = await lease_one(engine)
            assert await engine.audit() == []
            await other.execute("DELETE FROM ropeway.grants WHERE token = $1", leased.lease.token)
            assert await engine.rescue() == [], "no grant, so nothing for the rescuer to find"
            assert [(r.id, r.state) for r in await engine.audit()] == [(orphan, State.QUEUED)]
            refused(await answer_to(engine, leased, Done()), LeaseLost)
            assert await state_of(engine, kept) is State.RUNNING
            assert await leased_ids(engine) == [orphan]
            assert (await event_names(engine, orphan))[2] is EventName.RECLAIMED

    async def test_a_refused_outcome_is_no_answer(self, database: str) -> None:
        """The job still runs, so its grant must not be deleted with the next batch of acks."""
        async with opened(database) as engine:
            await enqueue_many(engine, 2)
            leased = await lease_one(engine)
            other = await lease_one(engine)
            refused(await answer_to(engine, leased, Snoozed(delay=-1.0)), FieldError)
            await ack(engine, other)
            await ack(engine, await _one_more(engine))
            (beat,) = await engine.heartbeat([leased.lease])
            assert isinstance(beat, Beat)

    async def test_ended_grants_are_removed(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as other:
            await enqueue_many(engine, 30)
            for _ in range(3):
                leased = await lease_some(engine, 10)
                await engine.settle([Settlement(each.lease, Done()) for each in leased])
            assert await other.fetchval("SELECT count(*) FROM ropeway.grants") == 1, (
                "the last one goes with the next"
            )

    async def test_a_handlers_open_transaction_does_not_block_its_heartbeat(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as handler:
            await enqueue_many(engine, 2)
            leased = await lease_some(engine, 2)
            async with handler.transaction():
                await engine.settle_in(handler, leased[0].lease)
                beats = await asyncio.wait_for(engine.heartbeat([each.lease for each in leased]), 2.0)
                assert all(isinstance(beat, Beat) for beat in beats)


async def _cancel(connection: asyncpg.Connection, id: UUID) -> None:
    await connection.execute(
        "SELECT ropeway.cancel_jobs(ARRAY['default'], ARRAY[$1::uuid], 'requested', false, false)", id
    )


async def _owner(url: str, token: UUID) -> UUID:
    async with connected(url) as connection:
        owner: UUID = await connection.fetchval("SELECT owner FROM ropeway.grants WHERE token = $1", token)
        return owner


async def _one_more(engine):  # type: ignore[no-untyped-def]
    await enqueue_one(engine)
    return await lease_one(engine)
