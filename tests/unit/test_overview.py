"""The overview: what is summed up, and what of it is worth somebody's attention."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ropeway.core.fleet import WorkerInfo
from ropeway.core.job import NewJob
from ropeway.core.query import Count, QueueSettings, QueueStats
from ropeway.core.states import LIVE_STATES, State
from ropeway.engines.memory import MemoryEngine
from ropeway.runtime.clock import ManualClock
from ropeway.service.overview import (
    MISSED_SECONDS,
    SILENT_SECONDS,
    URGENCY,
    Concern,
    Overview,
    concerns,
    look,
    seconds_to_empty,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
AGE_TARGET = 60.0
QUEUED, RUNNING = frozenset({State.QUEUED}), frozenset({State.RUNNING})


def queue(name: str = "mails", *, paused: bool = False, **rest: Any) -> QueueStats:
    """A queue; what is named like a state is how many jobs it has in that state."""
    counts = {State(state): rest.pop(state) for state in list(rest) if state in set(State)}
    return QueueStats(name, paused, counts, **rest)


def worker(id: str = "w", *queues: str, silent: float = 0.0, **rest: Any) -> WorkerInfo:
    given = {"slots": 4, "running": 1, **rest}
    seen_at = NOW - timedelta(seconds=silent)
    return WorkerInfo(id, "host", 1, "1.0", queues or ("mails",), (), seen_at=seen_at, **given)


def found(*parts: QueueStats | WorkerInfo, died: dict[str, Count] | None = None) -> list[Concern]:
    queues = [part for part in parts if isinstance(part, QueueStats)]
    workers = [part for part in parts if isinstance(part, WorkerInfo)]
    return concerns(Overview(NOW, queues, workers, died or {}), age_target=AGE_TARGET)


def kinds(*parts: QueueStats | WorkerInfo) -> list[str]:
    return [concern.kind for concern in found(*parts)]


# ── Concerns ──


def test_where_nothing_is_wrong_there_is_nothing_to_tell() -> None:
    assert found() == []
    assert found(worker()) == []
    busy = queue(queued=900, running=4, retrying=3, succeeded=10, cancelled=2, oldest_age_seconds=AGE_TARGET)
    assert found(busy, worker(silent=SILENT_SECONDS)) == []


@pytest.mark.parametrize(("waiting", "words"), [(0, "nothing waits in it"), (1_234, "1,234 jobs wait in it")])
def test_a_paused_queue_is_told(waiting: int, words: str) -> None:
    (concern,) = found(queue(paused=True, queued=waiting), worker())
    assert (concern.kind, concern.queue, concern.worker) == ("paused", "mails", None)
    assert words in concern.message


def test_a_paused_queue_is_not_also_late_or_not_served() -> None:
    """Somebody has stopped it: both follow from that."""
    stopped = queue(paused=True, queued=5, oldest_age_seconds=9_999.0)
    assert kinds(stopped, worker("w", "other")) == ["paused"]


def test_a_queue_that_nobody_serves_is_told() -> None:
    (concern,) = found(queue(queued=3), worker("w", "other"))
    assert (concern.kind, concern.queue) == ("not_served", "mails")
    assert "3 jobs wait" in concern.message
    assert "--queues mails" in concern.advice


def test_a_worker_that_takes_no_more_does_not_serve() -> None:
    assert kinds(queue(queued=1), worker(state="draining")) == ["not_served"]
    assert kinds(queue(queued=1), worker(state="quiet")) == ["not_served"]
    assert kinds(queue(queued=1), worker("a", state="draining"), worker("b")) == []


def test_a_queue_without_due_jobs_needs_nobody() -> None:
    assert kinds(queue(scheduled=5, succeeded=3), worker("w", "other")) == []


@pytest.mark.parametrize(
    ("age", "words"), [(61.0, "1 min 1 s"), (600.0, "10 min"), (7_300.0, "2 h 1 min"), (200_000.0, "2 d 7 h")]
)
def test_a_queue_whose_jobs_wait_long_is_told(age: float, words: str) -> None:
    (concern,) = found(queue(queued=1, oldest_age_seconds=age), worker())
    assert (concern.kind, concern.queue) == ("late", "mails")
    assert f"has waited for {words}." in concern.message


@pytest.mark.parametrize(
    ("dead", "capped", "words"),
    [(1, False, "1 job of"), (2, False, "2 jobs of"), (10_000, True, "10,000+ jobs of")],
)
def test_dead_jobs_are_told(dead: int, capped: bool, words: str) -> None:
    others = frozenset(State) - {State.DEAD}
    (concern,) = found(queue(dead=dead, capped=frozenset(State) if capped else others), worker())
    assert (concern.kind, concern.queue) == ("dead", "mails")
    assert concern.message.startswith(words)


@pytest.mark.parametrize(
    ("died", "kind", "words"),
    [
        (Count(0), "dead", "12 jobs of mails are dead; none died within the last hour."),
        (Count(1), "dying", "1 job of mails died within the last hour; 12 are dead in all."),
        (Count(20, capped=True), "dying", "20+ jobs of mails died within the last hour; 12 are dead in all."),
        (Count(0, capped=True), "dead", "12 jobs of mails are dead."),
    ],
)
def test_dead_jobs_that_are_new_are_told_apart(died: Count, kind: str, words: str) -> None:
    (concern,) = found(queue(dead=12), worker(), died={"mails": died})
    assert (concern.kind, concern.queue, concern.message) == (kind, "mails", words)


def test_how_long_a_job_may_wait_is_a_setting() -> None:
    whole = Overview(NOW, [queue(queued=1, oldest_age_seconds=61.0)], [worker()])
    assert [concern.kind for concern in concerns(whole, age_target=60.0)] == ["late"]
    assert concerns(whole, age_target=61.0) == []


def test_a_queue_at_its_limit_is_told() -> None:
    """All jobs that have not ended count, as they do when one is refused."""
    limited = QueueSettings(depth_limit=10)
    (concern,) = found(queue(queued=4, running=3, scheduled=2, retrying=1, settings=limited), worker())
    assert (concern.kind, concern.queue) == ("full", "mails")
    assert "limit of 10 jobs" in concern.message
    assert kinds(queue(queued=9, succeeded=100, cancelled=9, settings=limited), worker()) == []


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
def test_work_without_any_worker_is_told_once(state: State) -> None:
    (concern,) = found(queue("a", **{state.value: 2}), queue("b", **{state.value: 1}))
    assert (concern.kind, concern.queue, concern.worker) == ("no_workers", None, None)
    assert "3 jobs wait" in concern.message


def test_jobs_that_were_not_counted_to_the_end_are_more_than_that() -> None:
    for about in (
        found(queue(queued=10_000, capped=QUEUED, paused=True), worker()),
        found(queue(queued=10_000, capped=QUEUED), worker("w", "other")),
        found(queue(queued=10_000, capped=QUEUED)),
    ):
        assert "more than 10,000 jobs wait" in about[0].message
    (concern,) = found(queue(queued=3, succeeded=10_000, capped=frozenset({State.SUCCEEDED})))
    assert "and 3 jobs wait" in concern.message


def test_no_worker_is_needed_when_there_is_no_work() -> None:
    assert kinds(queue(succeeded=3, cancelled=1)) == []


def test_a_silent_worker_is_told() -> None:
    (concern,) = found(worker("quiet one", silent=SILENT_SECONDS + 1), worker("loud one"))
    assert (concern.kind, concern.queue, concern.worker) == ("silent_worker", None, "quiet one")
    assert "26 s ago" in concern.message


def test_several_silent_workers_are_told_in_one_sentence() -> None:
    (concern,) = found(
        *(worker(name, silent=30.0 + number) for number, name in enumerate("abcde")), worker("loud")
    )
    assert (concern.kind, concern.worker) == ("silent_worker", "a")
    assert "5 workers fell silent and said no goodbye: a, b, c and 2 more; a was last heard of 30 s ago." in (
        concern.message
    )


def test_a_silent_worker_is_no_worker() -> None:
    """Neither its slots count nor its queues."""
    gone = worker("gone", silent=SILENT_SECONDS + 1)
    whole = Overview(NOW, [queue(queued=3)], [gone, worker("there", "other", slots=2, running=0)])
    assert (whole.slots, whole.slots_used) == (2, 0)
    assert ([one.id for one in whole.present], [one.id for one in whole.silent]) == (["there"], ["gone"])
    assert (whole.serving["mails"], whole.serving["other"]) == (0, 1)
    assert kinds(queue(queued=3), gone, worker("there", "other")) == ["not_served", "silent_worker"]
    assert kinds(queue(queued=3), gone) == ["no_workers", "silent_worker"]
    assert kinds(gone) == ["silent_worker"]


def test_the_most_urgent_comes_first() -> None:
    everything = [
        queue("died", dead=1),
        queue("dies", dead=1),
        queue("stopped", paused=True),
        queue("slow", queued=1, oldest_age_seconds=100.0),
        queue("full", queued=1, settings=QueueSettings(depth_limit=1)),
        queue("alone", queued=1),
    ]
    workers = [worker("w", "died", "stopped", "slow", "full"), worker("gone", "alone", silent=100.0)]
    met = [concern.kind for concern in found(*everything, *workers, died={"dies": Count(1)})]
    assert met == ["not_served", "full", "silent_worker", "late", "dying", "paused", "dead"]
    assert kinds(*everything)[0] == "no_workers"
    assert {*met, "no_workers"} == set(URGENCY), "each kind was met"


def test_one_queue_can_need_attention_in_several_ways() -> None:
    bad = queue(queued=5, dead=2, oldest_age_seconds=100.0, settings=QueueSettings(depth_limit=5))
    assert kinds(bad, worker()) == ["full", "late", "dead"]


# ── Sums ──


def test_the_whole_is_the_sum_of_the_queues() -> None:
    whole = Overview(
        NOW,
        [
            queue("a", queued=3, dead=1, enqueued_per_minute=2.0, finished_per_minute=1.0, oldest_age_seconds=5.0),
            queue("b", queued=4, running=2, enqueued_per_minute=0.5, capped=RUNNING, oldest_age_seconds=9.0),
            queue("c"),
        ],
        [worker("x", slots=4, running=3), worker("y", slots=8, running=0)],
    )
    expected = {State.QUEUED: 7, State.DEAD: 1, State.RUNNING: 2}
    assert whole.counts == {state: expected.get(state, 0) for state in State}
    assert whole.capped == {State.RUNNING}
    assert (whole.enqueued_per_minute, whole.finished_per_minute) == (2.5, 1.0)
    assert whole.oldest_age_seconds == 9.0
    assert (whole.slots, whole.slots_used) == (12, 3)
    assert whole.queue("b") is whole.queues[1]
    assert whole.queue("nobody") is None


def test_nothing_sums_up_to_nothing() -> None:
    empty = Overview(NOW, [], [])
    assert empty.counts == dict.fromkeys(State, 0)
    assert not empty.capped
    assert empty.oldest_age_seconds is None
    assert (empty.slots, empty.slots_used, empty.enqueued_per_minute) == (0, 0, 0)


def test_how_long_a_worker_is_silent() -> None:
    whole = Overview(NOW, [], [])
    assert whole.silent_for(worker(silent=12.5)) == 12.5
    assert whole.silent_for(worker(silent=-3.0)) == 0.0, "two looks may cross"
    assert whole.silent_for(WorkerInfo("w", "h", 1, "1", (), (), 1, 0)) == 0.0


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        (queue(), 0.0),
        (queue(scheduled=9, dead=3), 0.0),
        (queue(running=9, finished_per_minute=5.0, enqueued_per_minute=5.0), 0.0),
        (queue(queued=30, running=30, finished_per_minute=90.0, enqueued_per_minute=30.0), 60.0),
        (queue(queued=10, finished_per_minute=60.0), 10.0),
        (queue(queued=10), None),
        (queue(queued=10, finished_per_minute=5.0, enqueued_per_minute=5.0), None),
        (queue(queued=10, finished_per_minute=1.0, enqueued_per_minute=5.0), None),
    ],
)
def test_when_a_queue_will_be_empty(stats: QueueStats, expected: float | None) -> None:
    assert seconds_to_empty(stats) == expected


async def test_a_look_sees_the_tenant_and_no_other() -> None:
    async with MemoryEngine() as engine:
        await engine.enqueue([NewJob("work", queue="mine")] * 3)
        await engine.enqueue([NewJob("work", queue="theirs")], tenant="other")
        await engine.report_worker(worker("mine"))
        await engine.report_worker(worker("theirs"), tenant="other")
        seen = await look(engine)
        assert seen.queue("mine") is not None
        assert seen.queue("theirs") is None
        assert seen.counts[State.QUEUED] == 3
        assert [one.id for one in seen.workers] == ["mine"]
        capped = await look(engine, cap=2)
        assert capped.capped == {State.QUEUED}
        assert capped.counts[State.QUEUED] == 2


async def test_a_look_sees_those_who_fell_silent_for_an_hour() -> None:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        await engine.report_worker(worker("killed"))
        await engine.report_worker(worker("stopped"))
        await engine.forget_worker("stopped")
        clock.advance(SILENT_SECONDS + 1)
        await engine.report_worker(worker("there"))
        for passed in (0.0, MISSED_SECONDS - SILENT_SECONDS - 1):
            clock.advance(passed)
            seen = await look(engine)
            assert "killed" in [one.id for one in seen.silent]
            assert "stopped" not in [one.id for one in seen.workers], "it said goodbye"
        clock.advance(1.0)
        assert "killed" not in [one.id for one in (await look(engine)).workers]
