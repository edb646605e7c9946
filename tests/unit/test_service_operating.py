"""Dead jobs by group, retries that say what they skipped, queue settings, scaling, explanations, actions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from ropeway.core.auditlog import ActionFilter
from ropeway.core.errorgroups import fingerprint
from ropeway.core.errors import FieldError, NotFound
from ropeway.core.fleet import WorkerInfo
from ropeway.core.outcome import Failed
from ropeway.core.payload import clean_error
from ropeway.core.query import JobFilter, QueueSettings, QueueStats
from ropeway.core.states import State
from ropeway.engines.memory import MemoryEngine
from ropeway.engines.protocol import Settlement, WorkerRef
from ropeway.service import dead
from ropeway.service.actions import ACTIONS, MAX_TARGET, Actions
from ropeway.service.dead import DeadJobs, Retried, Skipped
from ropeway.service.explain import explain
from ropeway.service.queues import Queues
from ropeway.service.scaling import workers_wanted
from ropeway.testing.conformance.kit import ack, enqueue_many, enqueue_one, lease_one, lease_some, state_of
from tests.unit.service_kit import START, counting


async def die_of(engine: MemoryEngine, type: str, message: str, number: int = 1, **fields: Any) -> list[UUID]:
    made = await enqueue_many(engine, number, max_attempts=1, **fields)
    for leased in await lease_some(engine, number, fields.get("queue", "default")):
        await engine.settle([Settlement(leased.lease, Failed(clean_error(type, message)))])
    return made


def worker(id: str = "w", **fields: Any) -> WorkerInfo:
    told = {"host": "h", "pid": 1, "version": "1", "queues": ("default",), "types": (), "slots": 10, "running": 0}
    return WorkerInfo(id=id, **(told | fields))


# ── groups of the dead ──


async def test_the_dead_are_put_together_by_what_killed_them() -> None:
    async with counting() as (engine, time):
        first = await die_of(engine, "ValueError", "no user 1")
        time.advance(10)
        await die_of(engine, "KeyError", "'x'")
        time.advance(10)
        (newest,) = await die_of(engine, "ValueError", "no user 22")
        await die_of(engine, "ValueError", "no user 22", queue="mail")
        found = await DeadJobs(engine).groups()
        assert (found.looked_at, found.complete) == (4, True)
        users, keys = found.groups
        assert (users.type, users.message, users.count) == ("ValueError", "no user <n>", 3)
        assert (users.first_at, users.last_at) == (START, START + timedelta(seconds=20))
        assert (keys.type, keys.message, keys.count) == ("KeyError", "<text>", 1)
        (mail,) = (await DeadJobs(engine).groups("mail")).groups
        assert (mail.fingerprint, mail.count) == (users.fingerprint, 1)
        default = (await DeadJobs(engine).groups("default")).groups[0]
        assert (default.count, default.sample_id) == (2, newest)
        assert default.sample_id not in first
        assert (await DeadJobs(engine, tenant="other").groups()).groups == []


async def test_the_newest_of_the_dead_come_with_their_groups() -> None:
    async with counting() as (engine, time):
        (old,) = await die_of(engine, "ValueError", "no user 1")
        time.advance(10)
        (key,) = await die_of(engine, "KeyError", "'x'")
        time.advance(10)
        (new,) = await die_of(engine, "ValueError", "no user 22")
        graves = DeadJobs(engine)
        assert (await graves.groups()).jobs == ()
        assert [job.id for job in (await graves.groups(show=5)).jobs] == [new, key, old]
        assert [job.id for job in (await graves.groups(show=2)).jobs] == [new, key]
        users = fingerprint("ValueError", "no user <n>")
        found = await graves.groups(show=5, only=users)
        assert [job.id for job in found.jobs] == [new, old]
        assert len(found.groups) == 2


async def test_a_job_that_left_no_error_goes_by_its_reason() -> None:
    async with counting() as (engine, _):
        await enqueue_one(engine)
        for _ in range(3):
            owner = uuid4()
            await engine.lease(["default"], 1, WorkerRef("w", owner))
            await engine.end_grants(owner)
        groups = (await DeadJobs(engine).groups()).groups
        assert [group.count for group in groups] == [1]
        assert groups[0].type


async def test_a_look_that_was_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "MOST_LOOKED_AT", 5)
    monkeypatch.setattr(dead, "LOOK", 2)
    async with counting() as (engine, _):
        await die_of(engine, "E", "x", 5)
        assert (await DeadJobs(engine).groups()).complete
        await die_of(engine, "E", "x", 2)
        found = await DeadJobs(engine).groups()
        assert (found.looked_at, found.complete, found.groups[0].count) == (5, False, 5)


async def test_a_group_is_retried_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "LOOK", 2)
    async with counting() as (engine, _):
        users = await die_of(engine, "ValueError", "no user 1", 3)
        keys = await die_of(engine, "KeyError", "'x'", 3)
        graves = DeadJobs(engine)
        print_ = next(group.fingerprint for group in (await graves.groups()).groups if group.type == "ValueError")
        dry = await graves.retry_where(JobFilter(), fingerprint=print_, dry_run=True)
        assert dry == Retried(3, 0, dry_run=True)
        assert await graves.retry_where(JobFilter(queue="mail"), fingerprint=print_) == Retried(0, 0)
        assert await graves.retry_where(JobFilter(), fingerprint=print_, limit=2) == Retried(2, 2, more=True)
        assert await graves.retry_where(JobFilter(), fingerprint=print_, limit=2) == Retried(1, 1)
        assert [await state_of(engine, id) for id in users] == [State.QUEUED] * 3
        assert [await state_of(engine, id) for id in keys] == [State.DEAD] * 3
        with pytest.raises(FieldError, match="16 hexadecimal"):
            await graves.retry_where(JobFilter(), fingerprint="x")


async def test_more_ends_when_a_group_is_beyond_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "MOST_LOOKED_AT", 4)
    async with counting() as (engine, time):
        await die_of(engine, "Old", "x", 2)
        time.advance(1)
        await die_of(engine, "New", "x", 6)
        graves = DeadJobs(engine)
        assert await graves.retry_where(JobFilter(), fingerprint=fingerprint("Old", "x")) == Retried(0, 0)
        calls = 0
        while (await graves.retry_where(JobFilter(), fingerprint=fingerprint("New", "x"))).more:
            calls += 1
            assert calls < 10
        assert (await graves.count(JobFilter())).number == 2


async def test_ids_are_retried_one_by_one_and_the_others_are_named() -> None:
    async with counting() as (engine, _):
        gone, running = uuid4(), await enqueue_one(engine, queue="slow")
        await lease_some(engine, 1, "slow")
        cancelled = await enqueue_one(engine, queue="off")
        await engine.cancel([cancelled])
        (one,) = await die_of(engine, "E", "x")
        ids = [one, gone, running, cancelled, one]
        skipped = (
            Skipped(gone, "not_found"),
            Skipped(running, "invalid_state"),
            Skipped(cancelled, "invalid_state"),
        )
        graves = DeadJobs(engine)
        assert await graves.retry(ids, dry_run=True) == Retried(1, 0, dry_run=True, skipped=skipped)
        assert await state_of(engine, one) is State.DEAD
        assert await graves.retry(ids, by="me") == Retried(1, 1, skipped=skipped)
        assert await state_of(engine, one) is State.QUEUED
        # A foreign id is skipped like one that is not there.
        foreign = await DeadJobs(engine, tenant="other").retry([one])
        assert foreign == Retried(0, 0, skipped=(Skipped(one, "not_found"),))


# ── queues ──


async def test_settings_are_changed_one_at_a_time() -> None:
    async with counting() as (engine, _):
        queues = Queues(engine)
        settings = await queues.set("mail", depth_limit=100, lease_seconds=90)
        assert settings == QueueSettings(depth_limit=100, lease_seconds=90)
        settings = await queues.set("mail", require_key=True, lease_seconds=None)
        assert settings == QueueSettings(depth_limit=100, require_key=True)
        await queues.pause("mail", unknown=True)
        assert await queues.set("mail", depth_limit=None) == QueueSettings(require_key=True)
        stats = await queues.stats("mail")
        assert (stats.paused, stats.settings) == (True, QueueSettings(require_key=True))
        assert (await queues.get("mail")).settings == stats.settings
        for wrong in ({"depth_limit": 0}, {"lease_seconds": 0.5}, {"depth_limit": True}):
            with pytest.raises(FieldError):
                await queues.set("mail", **wrong)  # type: ignore[arg-type]
        with pytest.raises(FieldError, match="queue"):
            await queues.set("no name", depth_limit=1)
        with pytest.raises(NotFound, match="did you mean mail"):
            await queues.set("mial", depth_limit=1, unknown=False)
        assert await Queues(engine, tenant="other").all() == []


async def test_one_queue_by_name() -> None:
    async with counting() as (engine, _):
        await enqueue_many(engine, 2, queue="mail")
        await engine.report_worker(worker(queues=("served",)))
        assert (await Queues(engine).get("mail")).counts[State.QUEUED] == 2
        assert (await Queues(engine).get("served")).counts == {}
        with pytest.raises(NotFound, match=r"no queue 'mial' .did you mean mail"):
            await Queues(engine).get("mial")


# ── scaling ──


def stats(
    queued: int, running: int, *, finished: float = 0, enqueued: float = 0, paused: bool = False
) -> QueueStats:
    return QueueStats(
        "default",
        paused,
        {State.QUEUED: queued, State.RUNNING: running},
        finished_per_minute=finished,
        enqueued_per_minute=enqueued,
    )


@pytest.mark.parametrize(
    ("seen", "workers", "wanted"),
    [
        # Nothing to do.
        (stats(0, 0), [], 0),
        (stats(0, 0, finished=600), [worker()], 0),
        # Nobody there: one, to begin with.
        (stats(5_000, 0), [], 1),
        (stats(5_000, 0), [worker(queues=("other",))], 1),
        # What runs must go on running.
        (stats(0, 25), [worker(), worker("v")], 3),
        # One slot runs 1 job/s. 600 waiting in a minute are 10/s: ten slots, one worker.
        (stats(600, 10, finished=600), [worker()], 1),
        # 6,000 waiting: a hundred slots, ten workers.
        (stats(6_000, 10, finished=600), [worker()], 10),
        # The same with 10/s coming in: eleven.
        (stats(6_000, 10, finished=600, enqueued=600), [worker()], 11),
        # Never more slots than jobs.
        (stats(5, 10, finished=1), [worker()], 2),
        # Nothing finished lately: twice what is there, at most.
        (stats(5_000, 10), [worker()], 2),
        (stats(3, 0), [worker()], 1),
        # Too short to be seen running; two workers finished 600 in a minute, 6,000 wait.
        (stats(6_000, 0, finished=600), [worker(), worker("v")], 20),
        # Paused: only to finish what runs.
        (stats(5_000, 25, finished=600, paused=True), [worker()], 3),
        (stats(5_000, 0, paused=True), [worker()], 0),
    ],
)
def test_workers_wanted(seen: QueueStats, workers: list[WorkerInfo], wanted: int) -> None:
    assert workers_wanted(seen, seen.counts[State.QUEUED], workers) == wanted


async def test_scaling_from_the_store() -> None:
    async with counting() as (engine, time):
        await enqueue_many(engine, 12, queue="mail")
        await enqueue_many(engine, 3, queue="mail", delay=1_000.0)
        await lease_some(engine, 2, "mail")
        time.advance(30)
        figures = await Queues(engine).scaling("mail")
        assert (figures.backlog, figures.running, figures.oldest_age_seconds) == (10, 2, 30)
        assert figures.workers_wanted == 1
        nothing = await Queues(engine).scaling("nowhere")
        assert (nothing.backlog, nothing.running, nothing.oldest_age_seconds, nothing.workers_wanted) == (
            0,
            0,
            None,
            0,
        )


async def test_a_backlog_beyond_the_usual_count_is_counted_further() -> None:
    async with counting() as (engine, _):
        for _ in range(11):
            await enqueue_many(engine, 1_000)
        assert (await Queues(engine).scaling("default")).backlog == 11_000


async def test_other_counts_beyond_their_cap_do_not_make_it_count_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with counting() as (engine, _):

        async def many_done(*_: object, **__: object) -> list[QueueStats]:
            counts = {State.QUEUED: 7, State.SUCCEEDED: 10_000}
            return [QueueStats("default", False, counts, frozenset({State.SUCCEEDED}))]

        async def counted(*_: object, **__: object) -> None:
            raise AssertionError("7 are 7")

        monkeypatch.setattr(engine, "queue_stats", many_done)
        monkeypatch.setattr(engine, "count", counted)
        assert (await Queues(engine).scaling("default")).backlog == 7


# ── explanations ──


async def told(engine: MemoryEngine, id: UUID) -> list[tuple[str, str]]:
    return [(reason.code, reason.message) for reason in (await explain(engine, id)).reasons]


async def test_why_a_job_waits_for_its_time() -> None:
    async with counting() as (engine, time):
        id = await enqueue_one(engine, delay=60.0)
        explanation = await explain(engine, id)
        (reason,) = explanation.reasons
        due = START + timedelta(seconds=60)
        assert (reason.code, reason.until, explanation.expected_start) == ("not_due", due, due)
        assert "2026-01-01 12:01:00 UTC" in reason.message
        assert (explanation.state, explanation.ahead) == (State.SCHEDULED, None)
        await engine.pause("default")
        explanation = await explain(engine, id)
        assert [reason.code for reason in explanation.reasons] == ["not_due", "queue_paused"]
        assert explanation.expected_start is None
        time.advance(60)
        assert [code for code, _ in await told(engine, id)] == ["queue_paused", "no_worker"]


async def test_why_a_job_waits_after_a_failure() -> None:
    async with counting() as (engine, _):
        id = await enqueue_one(engine)
        leased = await lease_one(engine)
        await engine.settle([Settlement(leased.lease, Failed(clean_error("E", "secret words"), retry_after=30.0))])
        explanation = await explain(engine, id)
        (reason,) = explanation.reasons
        assert (reason.code, reason.until) == ("retry_wait", START + timedelta(seconds=30))
        assert "Attempt 1 of 5 failed" in reason.message
        # Whoever may see the status may not see what the error says.
        assert "secret" not in reason.message


async def test_why_nobody_takes_a_job() -> None:
    async with counting() as (engine, time):
        id = await enqueue_one(engine, queue="mail", type="send")
        assert await told(engine, id) == [("no_worker", "No worker is alive; start one with `ropeway worker`.")]
        await engine.report_worker(worker(queues=("default", "slow")))
        ((code, message),) = await told(engine, id)
        assert (code, message.split(";")[1]) == ("no_worker", " those that are alive serve default, slow.")
        await engine.report_worker(worker(queues=("mail",), state="quiet"))
        assert "quiet" in (await told(engine, id))[0][1]
        await engine.report_worker(worker(queues=("mail",), types=("render",)))
        ((code, message),) = await told(engine, id)
        assert (code, message) == (
            "no_worker",
            "No worker of the queue mail knows the type send; they know render.",
        )
        await engine.report_worker(worker(queues=("mail",), types=("send",)))
        ((code, message),) = await told(engine, id)
        assert (code, "next in line" in message) == ("behind_others", True)
        explanation = await explain(engine, id)
        assert (explanation.ahead, explanation.expected_start) == (0, START)
        time.advance(61)
        assert (await told(engine, id))[0][0] == "no_worker"


async def test_what_is_before_a_job_and_when_its_turn_comes() -> None:
    async with counting() as (engine, _):
        await enqueue_many(engine, 20)
        for leased in await lease_some(engine, 20):
            await ack(engine, leased)
        await enqueue_many(engine, 9)
        id = await enqueue_one(engine)
        await engine.report_worker(worker(slots=5, running=5))
        explanation = await explain(engine, id)
        (reason,) = explanation.reasons
        assert (reason.code, explanation.ahead) == ("behind_others", 9)
        assert reason.message == "9 jobs of its queue are before it. 1 worker with 5 slots take from it."
        # Twenty finished within the minute: the tenth starts in half of one.
        assert explanation.expected_start == START + timedelta(seconds=30)
        # More urgent jobs go before it, less urgent ones do not.
        await enqueue_many(engine, 3, priority=1)
        await enqueue_many(engine, 3, priority=9)
        assert (await explain(engine, id)).ahead == 12
        # Slots that are free take it at once.
        await engine.report_worker(worker(slots=50, running=5))
        assert (await explain(engine, id)).expected_start == START


async def test_nobody_can_tell_when_nothing_finishes() -> None:
    async with counting() as (engine, _):
        await enqueue_one(engine)
        id = await enqueue_one(engine)
        await engine.report_worker(worker(slots=1, running=1))
        explanation = await explain(engine, id)
        assert (explanation.ahead, explanation.expected_start) == (1, None)


async def test_a_job_that_runs_or_has_ended() -> None:
    async with counting() as (engine, _):
        id = await enqueue_one(engine)
        leased = await lease_one(engine)
        ((code, message),) = await told(engine, id)
        assert code == "running"
        assert "attempt 1 of 5" in message
        await ack(engine, leased)
        assert (await told(engine, id))[0][1].startswith("It succeeded at 2026-01-01 12:00:00 UTC")
        (corpse,) = await die_of(engine, "E", "x")
        assert "max_attempts" in (await told(engine, corpse))[0][1]
        gone = await enqueue_one(engine)
        await engine.cancel([gone])
        assert await told(engine, gone) == [
            ("ended", "It was cancelled at 2026-01-01 12:00:00 UTC and runs no more unless it is retried.")
        ]
        with pytest.raises(NotFound):
            await explain(engine, id, "other")
        with pytest.raises(NotFound):
            await explain(engine, uuid4())


# ── actions ──


async def test_actions_are_noted_and_read_newest_first() -> None:
    async with counting() as (engine, time):
        actions = Actions(engine)
        await actions.note("ops (k1)", "queue.pause", "mail", request_id="r1")
        time.advance(1)
        await actions.note("cli:ada", "dlq.retry", "x" * 10_000, 17)
        newest, oldest = await actions.page()
        assert (newest.actor, newest.count, len(newest.target)) == ("cli:ada", 17, MAX_TARGET)
        assert (oldest.at, oldest.request_id) == (START, "r1")
        assert await actions.page(ActionFilter(action="queue.pause")) == [oldest]
        assert await actions.page(limit=1, before_n=newest.n) == [oldest]
        assert await Actions(engine, tenant="other").page() == []
        assert {"queue.pause", "dlq.retry"} <= ACTIONS.keys()
