"""Capabilities: what an engine lacks is declared and refused; what it declares, works."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from ropeway.core.errors import LeaseLost, NotSupported
from ropeway.core.lease import Lease
from ropeway.core.states import EventName, State
from ropeway.engines.capabilities import Capability
from ropeway.runtime import ids
from ropeway.testing.conformance.kit import (
    ack,
    check_log,
    enqueue_one,
    job_of,
    lease_one,
    leased_ids,
    new_job,
    nothing_changes,
    state_of,
    worker,
)
from ropeway.testing.conformance.subject import Harness, Subject


class _Undo(Exception):
    """Rolls a test's transaction back."""


@asynccontextmanager
async def _undone(subject: Subject) -> AsyncIterator[Any]:
    """A transaction of the caller's that does not commit."""
    with suppress(_Undo):
        async with subject.transaction() as connection:
            yield connection
            raise _Undo


class TestDeclarations:
    async def test_an_engine_says_what_it_is(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            assert engine.name == harness.name
            assert engine.capabilities == harness.capabilities
            assert engine.durability in ("full", "relaxed", "none")
            assert (engine.durability == "none") == (Capability.DURABLE not in engine.capabilities)

    async def test_the_clock_stands_until_it_is_moved(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            before = await engine.now()
            assert before.utcoffset() is not None
            assert await engine.now() == before
            await subject.advance(1.5)
            assert (await engine.now() - before).total_seconds() == 1.5

    async def test_a_fresh_subject_is_empty(self, harness: Harness) -> None:
        for _ in range(2):
            async with harness.subject() as subject:
                assert (await subject.engine.count()).number == 0
                assert await subject.engine.schedules() == []
                await enqueue_one(subject.engine)


class TestShared:
    async def test_another_handle_sees_the_same_jobs_or_is_refused(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            if Capability.SHARED not in harness.capabilities:
                with pytest.raises(NotSupported):
                    await subject.another()
                return
            other = await subject.another()
            id = await enqueue_one(subject.engine)
            assert await job_of(other, id) == await job_of(subject.engine, id)
            leased = await lease_one(other)
            assert await state_of(subject.engine, id) is State.RUNNING
            await ack(subject.engine, leased)
            assert await state_of(other, id) is State.SUCCEEDED
            assert await other.now() == await subject.engine.now()
            await subject.engine.pause("default")
            await enqueue_one(subject.engine)
            assert await leased_ids(other) == [], "a pause holds for every process"


class TestTransactionalEnqueue:
    async def test_a_job_comes_and_goes_with_the_callers_transaction(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            if Capability.TRANSACTIONAL_ENQUEUE not in harness.capabilities:
                with pytest.raises(NotSupported):
                    await engine.enqueue_in(object(), [new_job()])
                assert (await engine.count()).number == 0
                return
            async with subject.transaction() as connection:
                first, second = await engine.enqueue_in(connection, [new_job(payload=b"1"), new_job()])
                assert await engine.get([first, second]) == [None, None], "seen before it was committed"
                assert await leased_ids(engine) == []
            assert (await job_of(engine, first)).payload == b"1"
            assert len(await check_log(engine, first)) == 1
            assert await leased_ids(engine) == [first, second]
            async with _undone(subject) as connection:
                (undone,) = await engine.enqueue_in(connection, [new_job(idempotency_key="k")])
            assert await engine.get([undone]) == [None]
            await enqueue_one(engine, idempotency_key="k")


class TestTransactionalCompletion:
    async def test_a_completion_comes_and_goes_with_the_handlers_transaction(self, harness: Harness) -> None:
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            if Capability.TRANSACTIONAL_COMPLETION not in harness.capabilities:
                async with nothing_changes(engine, id):
                    with pytest.raises(NotSupported):
                        await engine.settle_in(object(), leased.lease)
                return
            async with _undone(subject) as connection:
                await engine.settle_in(connection, leased.lease, b"1")
            assert await state_of(engine, id) is State.RUNNING
            async with subject.transaction() as connection:
                assert (await engine.settle_in(connection, leased.lease, b"2")).state is State.SUCCEEDED
                assert await state_of(engine, id) is State.RUNNING, "seen before it was committed"
            assert (await job_of(engine, id)).result == b"2"
            assert (await check_log(engine, id))[-1].event is EventName.COMPLETED
            with pytest.raises(LeaseLost):
                async with subject.transaction() as connection:
                    await engine.settle_in(connection, Lease(id, 1, ids.token()))


class TestHandlersTransaction:
    """A connection of the engine's own, in a transaction that ends with the job."""

    async def test_it_is_refused_where_it_is_not_declared(self, harness: Harness) -> None:
        if Capability.TRANSACTIONAL_COMPLETION in harness.capabilities:
            pytest.skip("this engine has it")
        async with harness.subject() as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            async with nothing_changes(engine, id):
                with pytest.raises(NotSupported):
                    async with engine.transaction(leased.lease, lambda: None):
                        pytest.fail("the block was entered")

    async def test_the_handlers_writes_and_the_end_of_the_job_are_one(self, harness: Harness) -> None:
        async with _transactional(harness) as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            results: list[bytes] = []
            async with engine.transaction(leased.lease, lambda: results[0]) as connection:
                (written,) = await engine.enqueue_in(connection, [new_job()])
                assert await engine.get([written]) == [None], "seen before it was committed"
                assert await state_of(engine, id) is State.RUNNING
                results.append(b'{"n": 1}')
            assert (await job_of(engine, id)).result == b'{"n": 1}'
            assert (await check_log(engine, id))[-1].event is EventName.COMPLETED
            assert await state_of(engine, written) is State.QUEUED

    async def test_a_block_that_raises_leaves_nothing(self, harness: Harness) -> None:
        async with _transactional(harness) as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            written = []

            async def handler() -> None:
                async with engine.transaction(leased.lease, lambda: b"1") as connection:
                    written.extend(await engine.enqueue_in(connection, [new_job()]))
                    raise _Undo

            async with nothing_changes(engine, id):
                with pytest.raises(_Undo):
                    await handler()
                with pytest.raises(ZeroDivisionError):
                    async with engine.transaction(leased.lease, lambda: b"%d" % (1 // 0)):
                        pass
            assert await engine.get(written) == [None]
            async with engine.transaction(leased.lease, lambda: None):
                pass
            assert await state_of(engine, id) is State.SUCCEEDED

    async def test_a_lost_lease_rolls_the_handlers_writes_back(self, harness: Harness) -> None:
        async with _transactional(harness) as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            written = []

            async def handler() -> None:
                async with engine.transaction(leased.lease, lambda: None) as connection:
                    written.extend(await engine.enqueue_in(connection, [new_job()]))
                    await engine.cancel([id])

            with pytest.raises(LeaseLost):
                await handler()
            assert await engine.get(written) == [None]
            assert await state_of(engine, id) is State.CANCELLED
            await enqueue_one(engine)
            leased = await lease_one(engine)
            with pytest.raises(LeaseLost):
                async with engine.transaction(leased.lease, lambda: None, tenant="other"):
                    pass
            assert await state_of(engine, leased.job.id) is State.RUNNING

    async def test_it_ends_a_job_only_once(self, harness: Harness) -> None:
        async with _transactional(harness) as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            leased = await lease_one(engine)
            async with engine.transaction(leased.lease, lambda: None):
                pass
            async with nothing_changes(engine, id):
                with pytest.raises(LeaseLost):
                    async with engine.transaction(leased.lease, lambda: None):
                        pass
                assert (await ack(engine, leased)).already, "the same ticket is told that its work was taken"

    async def test_heartbeats_go_on_while_it_is_open(self, harness: Harness) -> None:
        async with _transactional(harness) as subject:
            engine = subject.engine
            id = await enqueue_one(engine)
            by = worker()
            leased = await lease_one(engine, by=by)
            async with engine.transaction(leased.lease, lambda: None):
                await subject.advance(20)
                beat = await engine.heartbeat_owner(by.owner)
                assert beat is not None
                assert beat.expires_in == 30
                await subject.advance(20)
                assert await engine.rescue() == []
            assert await state_of(engine, id) is State.SUCCEEDED


@asynccontextmanager
async def _transactional(harness: Harness) -> AsyncIterator[Subject]:
    if Capability.TRANSACTIONAL_COMPLETION not in harness.capabilities:
        pytest.skip("this engine has no transactional completion")
    async with harness.subject() as subject:
        yield subject
