"""Connections: one statement, one snapshot; closing waits for the accepted; a broken one tells what is known."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from ropeway.core.errors import Indeterminate, Unavailable
from ropeway.core.fleet import WorkerInfo
from ropeway.core.joblog import LogLine
from ropeway.core.lease import Lease
from ropeway.core.outcome import Done
from ropeway.core.schedule import NewSchedule
from ropeway.core.states import State
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.connection import Address, Channel
from ropeway.engines.postgres.signalling import Wakeups
from ropeway.engines.protocol import Settlement
from ropeway.runtime import ids
from ropeway.testing.conformance.kit import (
    ack,
    enqueue_many,
    enqueue_one,
    lease_one,
    lease_some,
    nack,
    new_job,
    state_of,
    worker,
)
from tests.engines.pg_kit import connected, opened, waiting_for_lock


def after_each(channel: Channel, then: Callable[[], Awaitable[None]]) -> list[str]:
    """Do something after each statement of a channel; answers the statements."""
    fetch, seen = channel.fetch, []

    async def hooked(statement: str, *arguments: Any, **how: Any) -> Any:
        rows = await fetch(statement, *arguments, **how)
        seen.append(statement)
        await then()
        return rows

    channel.fetch = hooked  # type: ignore[method-assign]
    return seen


class TestOneSnapshot:
    """A job is in one table or in the other, never in neither, also for a reader that meets it on its way."""

    async def test_get_finds_a_job_that_ends_meanwhile(self, database: str) -> None:
        async with opened(database) as engine, opened(database) as other:
            id = await enqueue_one(engine)
            leased = await lease_one(engine)

            async def end() -> None:
                if await state_of(other, id) is State.RUNNING:
                    await ack(other, leased)

            assert after_each(engine.reads, end) == []
            (job,) = await engine.get([id])
            assert job is not None
            assert await state_of(other, id) is State.SUCCEEDED

    async def test_get_finds_a_job_that_is_redriven_meanwhile(self, database: str) -> None:
        async with opened(database) as engine, opened(database) as other:
            id = await enqueue_one(engine)
            await nack(engine, await lease_one(engine), retry=False)

            async def redrive() -> None:
                await other.redrive([id])

            after_each(engine.reads, redrive)
            (job,) = await engine.get([id])
            assert job is not None
            assert await state_of(other, id) is State.QUEUED


class TestClosing:
    @pytest.mark.parametrize("key", [None, "k"])
    async def test_it_waits_for_jobs_that_are_on_their_way(self, database: str, key: str | None) -> None:
        engine = PostgresEngine(database, days_ahead=1)
        async with connected(database) as other:
            await engine.open()
            holding = other.transaction()
            await holding.start()
            await other.execute("LOCK TABLE ropeway.events IN SHARE MODE")
            calls = [
                asyncio.create_task(engine.enqueue([new_job(idempotency_key=key and f"{key}{n}")]))
                for n in range(3)
            ]
            await waiting_for_lock(other, "ropeway.")
            closing = asyncio.create_task(engine.close())
            done, _ = await asyncio.wait([closing], timeout=0.05)
            assert not done, "it went away while jobs were on their way"
            await holding.rollback()
            await closing
            accepted = [answer.id for (answer,) in await asyncio.gather(*calls)]
        async with opened(database) as again:
            assert None not in await again.get(accepted)

    async def test_calls_after_it_are_refused(self, database: str) -> None:
        lease = Lease(ids.token(), 1, ids.token())
        info = WorkerInfo("w", "h", 1, "1", (), (), 1, 0)
        calls: list[Callable[[PostgresEngine], Awaitable[Any]]] = [
            lambda engine: engine.enqueue([new_job()]),
            lambda engine: engine.enqueue([new_job()] * 2),
            lambda engine: engine.enqueue([new_job(idempotency_key="k")]),
            lambda engine: engine.lease(["default"], 1, worker()),
            lambda engine: engine.settle([Settlement(lease, Done())]),
            lambda engine: engine.heartbeat([lease]),
            lambda engine: engine.heartbeat_owner(ids.token()),
            lambda engine: engine.end_grants(ids.token()),
            lambda engine: engine.log([(lease, LogLine("hello"))]),
            lambda engine: engine.log_of(lease.job_id),
            lambda engine: engine.get([lease.job_id]),
            lambda engine: engine.count(),
            lambda engine: engine.tail(),
            lambda engine: engine.cancel([lease.job_id]),
            lambda engine: engine.put_schedule(NewSchedule("s", "0 * * * *", "t")),
            lambda engine: engine.fire_due(),
            lambda engine: engine.rescue(),
            lambda engine: engine.prune(),
            lambda engine: engine.report_worker(info),
            lambda engine: engine.workers(),
        ]
        async with opened(database) as engine:
            await enqueue_one(engine)
        for call in calls:
            with pytest.raises(Unavailable, match="closed"):
                await call(engine)
        async with connected(database) as other:
            connections = (
                "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'ropeway' AND pid <> pg_backend_pid()"
            )
            assert await other.fetchval(connections + " AND datname = current_database()") == 0


class TestBrokenConnections:
    async def test_a_write_that_was_sent_is_indeterminate(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as other:
            (id,) = await enqueue_many(engine, 1)
            leased = await lease_one(engine)
            async with other.transaction():
                await other.execute("SELECT FROM ropeway.jobs FOR UPDATE")
                for call in (engine.settle([Settlement(leased.lease, Done())]), engine.cancel([id])):
                    task = asyncio.create_task(call)
                    (pid,) = await waiting_for_lock(other, "ropeway.")
                    await other.execute("SELECT pg_terminate_backend($1)", pid)
                    with pytest.raises(Indeterminate):
                        await task
            await ack(engine, leased)

    async def test_a_question_is_not(self, database: str) -> None:
        async with opened(database) as engine, connected(database) as other:
            await enqueue_one(engine)
            async with other.transaction():
                await other.execute("LOCK TABLE ropeway.jobs IN ACCESS EXCLUSIVE MODE")
                task = asyncio.create_task(engine.count())
                (pid,) = await waiting_for_lock(other, "ropeway.jobs")
                await other.execute("SELECT pg_terminate_backend($1)", pid)
                with pytest.raises(Unavailable):
                    await task

    async def test_a_question_asked_after_a_write_does_not_say_that_nothing_was_stored(
        self, database: str
    ) -> None:
        """Part of the batch was written; only what became of the rest could not be asked any more."""
        async with opened(database) as engine, opened(database) as other:
            await enqueue_many(engine, 2)
            first, second = await lease_some(engine, 2)
            await ack(other, second)

            async def no_answer(*_: Any, **__: Any) -> Any:
                raise Unavailable("the connection is gone")

            engine.last_tickets = no_answer  # type: ignore[method-assign]
            with pytest.raises(Indeterminate):
                await engine.settle([Settlement(each.lease, Done()) for each in (first, second)])
            assert await state_of(other, first.job.id) is State.SUCCEEDED

            free = await enqueue_one(engine)
            engine._states = no_answer  # type: ignore[method-assign]
            for verb in (engine.cancel, engine.redrive, engine.delete):
                with pytest.raises(Indeterminate):
                    await verb([free, ids.token()])
            assert await other.get([free]) == [None]


class TestLastWords:
    """A backend is ended, its last word arrives, and the end of the connection never does."""

    async def test_a_channel_connects_again(self, database: str) -> None:
        async with _never_hangs_up(database, ended=1) as url:
            channel = Channel(Address.parse(url))
            with pytest.raises(Unavailable, match="lost"):
                await channel.value("SELECT 1", writes=False)
            assert await channel.value("SELECT 1", writes=False) == 1
            await channel.close()

    async def test_a_listener_listens_again(self, database: str) -> None:
        async with _never_hangs_up(database, ended=1) as url:
            sender = Channel(Address.parse(database))
            heard = Wakeups("lanes", sender, Address.parse(url), pooled=False)
            subscription = await heard.subscribe("default", ["mail"])
            # Everyone is woken when there is a listener again, for signals may have been missed.
            assert await subscription.wait(timeout=45)
            await sender.value("SELECT pg_notify('lanes', $1)", '[["default", "mail"]]')
            assert await subscription.wait(timeout=45)
            await heard.close()
            await sender.close()


@asynccontextmanager
async def _never_hangs_up(database: str, *, ended: int) -> AsyncIterator[str]:
    """That database behind a relay which tells no client that its server has gone. The backends of the first
    `ended` connections are ended as soon as they are ready; the client hears both at once."""
    address = urlsplit(database)
    opened_ends: list[asyncio.StreamWriter] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            writer.write(piece)

    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        is_ended = len(opened_ends) < 2 * ended
        server, to_server = await asyncio.open_connection(address.hostname, address.port)
        opened_ends.extend((to_client, to_server))
        async with asyncio.TaskGroup() as both:
            both.create_task(pass_on(client, to_server))
            if is_ended:
                greeting = await server.readuntil(b"Z\0\0\0\5I")
                (pid,) = struct.unpack_from("!i", greeting, greeting.rindex(b"K\0\0\0\x0c") + 5)
                async with connected(database) as operator:
                    await operator.execute("SELECT pg_terminate_backend($1)", pid)
                to_client.write(greeting + await server.read())
            else:
                await pass_on(server, to_client)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        place = address.netloc.replace(str(address.port), str(port))
        yield address._replace(netloc=place, query="sslmode=disable").geturl()
        for end in opened_ends:
            end.transport.abort()
