"""The insert of one job that takes its wake-up along: two transactions in one call; only the first one matters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from ropeway.core.errors import EngineError, Indeterminate, Unavailable
from ropeway.core.states import State
from ropeway.engines.postgres import PostgresEngine, signalling
from ropeway.engines.postgres.signalling import PostgresSubscription
from ropeway.engines.postgres.submitting import inserting
from ropeway.testing.conformance.kit import enqueue_one, lease_one, state_of
from tests.engines.pg_kit import INSERT, connected, opened, telling_otherwise

#: A statement that took too long, a lock that was not to be had, a queue of notifications that is full.
REFUSALS = ["57014", "55P03", "54000"]


@asynccontextmanager
async def two_engines(database: str) -> AsyncIterator[tuple[PostgresEngine, PostgresEngine, PostgresSubscription]]:
    """One to enqueue with; another one and what it hears."""
    async with opened(database) as here, opened(database) as there:
        heard = await there.subscribe(["default", "other"])
        assert await heard.wait(timeout=45), "everyone is woken when there is a listener"
        yield here, there, heard


async def jobs(connection: Any) -> int:
    number: int = await connection.fetchval("SELECT count(*) FROM ropeway.jobs")
    return number


async def test_others_hear_of_it_in_the_same_call(database: str) -> None:
    async with two_engines(database) as (here, there, heard):
        await here.signals.close()  # so that a call of its own for the wake-up would fail
        id = await enqueue_one(here)
        assert await heard.wait(timeout=45)
        assert (await lease_one(there)).job.id == id


async def test_what_follows_at_once_is_heard_as_well(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signalling, "PAUSE", 2.0)  # so that the second one does come in the pause after the first
    async with two_engines(database) as (here, there, heard):
        await here.inserts.value("SELECT 1", writes=False)  # so that the pause does not go by while it connects
        await enqueue_one(here)
        assert await heard.wait(timeout=45)
        other = await enqueue_one(here, queue="other")
        assert here.wakeups.to_take_along(("default", "other")) is None
        assert await heard.wait(timeout=45)
        assert (await lease_one(there, "other")).job.id == other


@pytest.mark.parametrize("code", REFUSALS)
async def test_a_job_that_is_stored_is_accepted_though_telling_of_it_failed(database: str, code: str) -> None:
    async with two_engines(database) as (here, there, heard), connected(database) as operator:
        await telling_otherwise(operator, f"{INSERT} COMMIT; RAISE 'not told' USING ERRCODE = '{code}';")
        id = await enqueue_one(here)
        assert await state_of(there, id) is State.QUEUED
        assert await jobs(operator) == 1
        assert await heard.wait(timeout=45), "it is told by the next message"


async def test_a_server_that_tells_the_parameters_of_a_failed_call_hides_nothing(database: str) -> None:
    """A payload that looks like the function in which an error happened."""
    async with two_engines(database) as (here, _, _), connected(database) as operator:
        await here.inserts.value(
            "SELECT set_config('log_parameter_max_length_on_error', '-1', false)", writes=False
        )
        await telling_otherwise(operator, f"{INSERT} COMMIT; RAISE 'not told' USING ERRCODE = '57014';")
        id = await enqueue_one(here, payload=b'"insert_job("')
        assert await state_of(here, id) is State.QUEUED
        assert await jobs(operator) == 1


def test_where_it_happened_is_told_by_the_functions_inside_the_procedure() -> None:
    outside = "PL/pgSQL function ropeway.insert_job_and_tell(text,uuid) line 3 at assignment"
    parameters = "unnamed portal with parameters: $7 = 'insert_job('"
    assert inserting(f"PL/pgSQL function ropeway.insert_job(text,uuid) line 5 at SQL statement\n{outside}")
    assert not inserting(outside)
    assert not inserting(f"{outside}\n{parameters}")
    assert not inserting("")


@pytest.mark.parametrize("code", REFUSALS)
async def test_a_job_that_is_not_stored_is_refused(database: str, code: str) -> None:
    async with two_engines(database) as (here, _, _), connected(database) as operator:
        await telling_otherwise(operator, f"{INSERT} RAISE 'not stored' USING ERRCODE = '{code}';")
        with pytest.raises((Unavailable, asyncpg.PostgresError), match=r"not stored|cancelled"):
            await enqueue_one(here)
        assert await jobs(operator) == 0


async def test_what_cannot_be_looked_up_is_not_known(database: str) -> None:
    async with two_engines(database) as (here, _, _), connected(database) as operator:
        await telling_otherwise(operator, f"{INSERT} COMMIT; RAISE 'not told' USING ERRCODE = '57014';")
        value = here.inserts.value

        async def away(statement: str, *arguments: Any, **how: Any) -> Any:
            if how.get("writes") is False:
                raise Unavailable("no connection")
            return await value(statement, *arguments, **how)

        here.inserts.value = away  # type: ignore[method-assign]
        with pytest.raises(Indeterminate):
            await enqueue_one(here)


async def test_a_store_that_was_never_reached_has_stored_nothing(database: str) -> None:
    async with two_engines(database) as (here, _, _):
        here.inserts._address = type(here.address)("postgresql://127.0.0.1:1/nobody")
        with pytest.raises(EngineError) as refused:
            await enqueue_one(here)
        assert isinstance(refused.value, Unavailable)
