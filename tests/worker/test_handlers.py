"""What a handler can say and be told, in one process on the memory engine and under real workers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, timedelta
from typing import Any

import pytest

from ropeway.core.retry import RetryPolicy
from ropeway.core.states import DeadReason, State
from ropeway.engines.open import engine_for
from ropeway.settings import Settings
from ropeway.worker.inprocess import InProcessWorker
from ropeway.worker.options import WorkerOptions
from tests.worker.facts import VARIABLE, Facts
from tests.worker.kit import StartWorker, Store, opened, until

SOON = RetryPolicy(base=0.05, cap=0.1)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> str:
    """Where the handlers run: `memory` is this process, a URL a real worker."""
    return "memory" if request.param == "memory" else request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def serving(place: str, start_worker: StartWorker, facts: Facts, monkeypatch: pytest.MonkeyPatch) -> Any:
    @asynccontextmanager
    async def serve() -> AsyncIterator[Store]:
        if place != "memory":
            async with opened(place) as store:
                start_worker("-c", "10", url=place)
                yield store
            return
        monkeypatch.setenv(VARIABLE, str(facts.folder))
        from tests.worker import tasks

        async with (
            engine_for(Settings(url="memory://")) as engine,
            InProcessWorker(tasks.app.program, engine, WorkerOptions(concurrency=10)),
        ):
            yield Store(engine)

    return serve


def result(job: Any) -> Any:
    return None if job.result is None else json.loads(job.result)


async def test_results_middleware_and_shared_state(serving: Any, facts: Facts) -> None:
    async with serving() as store:
        (id,) = await store.add("seen_by_middleware")
        (job,) = await store.reach([id], State.SUCCEEDED)
        assert result(job) == {"wrapped": "hello hello"}
        assert [note.word for note in facts.notes("before", "after")] == ["before", "after"]
        assert facts.notes("lifespan-entered")
        values = [None, 7, "é", [1, {"a": 2.5}], {"deep": [[[]]]}]
        ids = [(await store.add("returns", value=value))[0] for value in values]
        jobs = await store.reach(ids, State.SUCCEEDED)
        assert [result(job) for job in jobs] == values
        (odd,) = await store.reach(await store.add("returns_something_odd"), State.SUCCEEDED)
        assert result(odd) == "<class 'object'>"


@pytest.mark.parametrize("kind", ["noop", "noop_thread", "noop_process"])
async def test_every_kind_of_handler_runs(serving: Any, kind: str, facts: Facts) -> None:
    async with serving() as store:
        ids = await store.add(kind, 12, n=3)
        for job in await store.reach(ids, State.SUCCEEDED):
            assert (result(job), job.attempts) == (3, 1)
        assert sorted(note.job_id for note in facts.notes("ran")) == sorted(str(id) for id in ids)


async def test_progress_and_log_lines_are_seen_while_it_runs(serving: Any, facts: Facts) -> None:
    async with serving() as store:
        (id,) = await store.add("tells", lines=3, gate="go")

        async def told() -> Any:
            return (await store.job(id)).progress

        progress = await until(told, "progress is seen")
        assert (progress.done, progress.total, progress.message) == (1, 2, "half")

        async def lines() -> Any:
            found = await store.engine.log_of(id)
            return found if len(found) == 3 else None

        lines = await until(lines, "three lines are seen")
        assert [(line.message, line.level, line.attempt) for line in lines] == [
            ("line 0", "warning", 1),
            ("line 1", "info", 1),
            ("line 2", "info", 1),
        ]
        assert (await store.job(id)).state is State.RUNNING
        facts.open_gate("go")
        await store.reach([id], State.SUCCEEDED)


async def test_no_line_is_lost_when_a_handler_tells_much_and_ends(serving: Any, facts: Facts) -> None:
    facts.open_gate("go")
    async with serving() as store:
        (id,) = await store.add("tells", lines=900, gate="go")
        await store.reach([id], State.SUCCEEDED)
        lines = await store.engine.log_of(id, limit=500) + await store.engine.log_of(id, after=500, limit=500)
        assert [line.message for line in lines] == [f"line {n}" for n in range(900)]


async def test_snooze_costs_no_attempt_and_retry_does(serving: Any) -> None:
    async with serving() as store:
        (snoozed,) = await store.add("snoozes")
        (retried,) = await store.add("asks_for_retry")
        (job,) = await store.reach([snoozed], State.SUCCEEDED)
        assert (job.attempts, job.failures, result(job)) == (1, 0, "attempt 2")
        assert await store.outcomes(snoozed) == ["snoozed", "succeeded"]
        (job,) = await store.reach([retried], State.SUCCEEDED)
        assert (job.attempts, job.failures, result(job)) == (2, 1, "attempt 2")
        failed = (await store.history(retried))[0]
        assert failed.error is not None
        assert (failed.outcome, failed.error.message, failed.retry_in_ms) == ("failed", "not yet", 50)


async def test_what_is_given_up(serving: Any) -> None:
    async with serving() as store:
        cases = {
            "discards": (DeadReason.REJECTED, "discarded", "no use", 1),
            "gives_up": (DeadReason.REJECTED, "KeyError", "no use", 1),
            "fails": (DeadReason.MAX_ATTEMPTS, "ValueError", "always", 3),
        }
        options = {"max_attempts": 3, "retry": SOON}
        for kind, (reason, error, message, attempts) in cases.items():
            (job,) = await store.reach(await store.add(kind, options=options), State.DEAD)
            assert job.last_error is not None
            assert (job.dead_reason, job.last_error.type, job.attempts) == (reason, error, attempts)
            assert message in job.last_error.message


async def test_an_unknown_type_is_a_failed_attempt(serving: Any) -> None:
    async with serving() as store:
        (id,) = await store.add("nope", options={"max_attempts": 2, "retry": SOON})
        (job,) = await store.reach([id], State.DEAD)
        assert job.last_error is not None
        assert (job.dead_reason, job.attempts, job.last_error.type) == (DeadReason.MAX_ATTEMPTS, 2, "unknown_task")
        assert "noop" in job.last_error.message, "what may have been meant"


async def test_arguments_that_do_not_fit_are_rejected_at_once(serving: Any) -> None:
    async with serving() as store:
        wrong = [{"n": "text"}, {"n": 1, "more": 2}]
        ids = [(await store.add("noop", **payload))[0] for payload in wrong] + await store.add("wait")
        for job in await store.reach(ids, State.DEAD):
            assert job.last_error is not None
            assert (job.dead_reason, job.attempts) == (DeadReason.REJECTED, 1)
            assert job.last_error.type == "bad_arguments"


async def test_a_run_outside_its_window_waits_for_it(serving: Any) -> None:
    async with serving() as store:
        (id,) = await store.add("at_midnight")

        async def moved() -> bool:
            return (await store.job(id)).state in (State.SCHEDULED, State.SUCCEEDED)

        await until(moved, "it waits, or it is midnight")
        job = await store.job(id)
        if job.state is State.SCHEDULED:
            assert job.attempts == 0
            at = job.run_at.astimezone(UTC)
            assert (at.hour, at.minute) == (0, 0)
            assert at - job.created_at < timedelta(days=1)
