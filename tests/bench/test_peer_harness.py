"""The harness itself, with a peer of a few lines: what it measures, what it refuses, that it leaves nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from peer_kit import TINY, subject

from bench.peers import measures_latency, runs
from bench.peers.failing import Deadline, NeverHappened, PeerFailed, Unsupported
from bench.peers.groups import Work
from bench.peers.measures_latency import half, idle, spike, steady
from bench.peers.measures_recovery import recovery, recovery_group
from bench.peers.measures_throughput import bulk, drain1, single
from bench.peers.measuring import Figure, Subject
from bench.peers.programs import kit
from devtools.waiting import wait_until


def test_a_drain_is_counted_from_its_record_and_its_store() -> None:
    with subject() as one:
        found = drain1(one)
    assert found.value > 0
    assert found.extra["jobs"] == 200
    assert found.extra["exactly_once"]
    assert found.extra["rss_mib"] > 1
    assert found.extra["store_bytes_per_job"] >= 0


def test_jobs_that_ran_twice_are_told() -> None:
    with subject("twice") as one:
        found = drain1(one)
    assert not found.extra["exactly_once"]
    assert found.extra["ran_by_count"] == {"2": 200}


def test_enqueueing_is_timed_by_the_peer() -> None:
    with subject() as one:
        found = single(one)
        with pytest.raises(Unsupported):
            bulk(one)
    assert found.value > 0
    assert found.unit == "jobs/s"


def test_jobs_that_the_store_does_not_have_are_missed() -> None:
    with subject("forgets") as one, pytest.raises(PeerFailed, match=r"the store has 200 of the 400 jobs"):
        single(one)


def test_half_load_is_half_of_what_the_producer_can_send(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def under_load(_subject: Subject, rate: float, _seconds: float) -> dict[str, float]:
        asked.append(rate)
        return {"rate": rate, "sent_rate": min(rate, 300.0), "p50": 1.0}

    monkeypatch.setattr(measures_latency, "capacity", lambda _: 1_000.0)
    monkeypatch.setattr(measures_latency, "_under_load", under_load)
    with subject() as one:
        assert half(one).extra["sent_rate"] == 150.0
    assert asked == [500.0, 150.0]


def test_latency_is_measured_from_the_call_to_the_start() -> None:
    with subject() as one:
        found = idle(one)
    assert found.extra["jobs"] == 5
    assert 0 < found.extra["p50"] <= found.extra["p99"] <= found.extra["max"]


def test_a_spike_and_the_highest_load(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever a busy machine makes of it is borne.
    monkeypatch.setattr(measures_latency, "BORNE_MS", 1e9)
    monkeypatch.setattr(measures_latency, "KEPT_UP", 0.0)
    with subject() as one:
        slow = replace(one, peer=replace(one.peer, rate=100, enqueue_rate=100))
        found = spike(slow).extra
        assert {"before_p99", "during_p99", "after_p99"} <= found.keys()
        assert found["spike_rate"] == 50.0, "half of what it is said to do, as nobody knows what it bears"
        assert steady(slow).value > 0
        slow.results.add("steady", slow.peer.name, 1, 80.0, "jobs/s")
        found = spike(slow).extra
        assert (found["rate"], found["spike_rate"]) == (16.0, 80.0)


def test_a_load_is_made_of_stages_that_end_in_time() -> None:
    """Two calls a second for two seconds, then ten a second for one, by a sender that needs 0.3 s for each; then a
    stage that is over before it comes to it."""
    clock, sent, times = [100.0], [0, 0, 0], []
    for at in kit.due([(2, 2.0, 4), (10, 1.0, 10), (10, 0.1, 1)], sent, lambda: clock[0]):
        times.append(at)
        clock[0] = max(clock[0], at) + 0.3
    assert times == pytest.approx([100.0, 100.5, 101.0, 101.5, 102.0, 102.1, 102.2, 102.3, 103.0])
    assert sent == [4, 4, 1]


async def test_a_sender_has_so_many_calls_under_way_and_tells_of_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit, "UNDER_WAY", 3)
    store = SlowStore()
    past = [0.0] * 10
    await kit.send(store, 5, past, str(tmp_path / "sent"))
    assert store.taken == list(range(5, 15))
    assert store.most == 3
    assert (tmp_path / "sent").stat().st_size == 8 * 10
    store.refuses = 7
    with pytest.raises(ConnectionError):
        await kit.send(store, 5, past, str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


class SlowStore:
    """Answers some turns of the loop later."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.under_way = self.most = 0
        self.refuses: int | None = None

    async def enqueue(self, index: int) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(5):
            await asyncio.sleep(0)
        self.under_way -= 1
        if index == self.refuses:
            raise ConnectionError
        self.taken.append(index)


def test_a_killed_process_and_a_killed_worker() -> None:
    with subject() as one:
        (found,) = recovery([one]).values()
        assert isinstance(found, Figure)
        assert found.value >= 0
        (found,) = recovery_group([replace(one, scale=replace(TINY, recovery_seconds=1.0))]).values()
        # Nobody tells its new worker that the old one is gone.
        assert isinstance(found, NeverHappened)
        assert "not within 1 s" in str(found)


def test_one_that_fails_does_not_keep_the_others_from_recovering() -> None:
    with subject() as good, subject("dies") as bad:
        bad = replace(bad, peer=replace(bad.peer, name="bad"))
        found = recovery([bad, good])
    assert isinstance(found["bad"], PeerFailed)
    assert isinstance(found["fake"], Figure)


def test_a_worker_that_dies_says_so_at_once() -> None:
    with subject("dies") as one, pytest.raises(PeerFailed, match="it could not go on"):
        drain1(one)


def test_a_worker_that_takes_nothing_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "START_SECONDS", 0.2)
    with subject("deaf") as one, pytest.raises(PeerFailed, match=r"no job started within 0\.2 s"):
        drain1(one)


def test_a_producer_that_hangs_is_killed() -> None:
    with (
        subject("silent", scale=replace(TINY, limit_seconds=1.5)) as one,
        pytest.raises(PeerFailed, match="longer than"),
    ):
        single(one)


STRAY = """
import os, pathlib, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()}\\n")
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""


def test_a_group_is_found_and_ended_wherever_its_processes_went(tmp_path: Path) -> None:
    """Also a process that left its session and whose parent is gone."""
    note = tmp_path / "pid"
    with Work([sys.executable, "-c", STRAY, str(note)], dict(os.environ)) as work:
        stray = int(wait_until(lambda: note.exists() and note.read_text().partition("\n")[0]))
        assert stray in work.members()
        assert work.running
        assert work.cpu_seconds() >= 0
    assert not Path(f"/proc/{stray}").exists()
    assert not Path(f"/proc/{work.pid}").exists()


def test_a_deadline_ends() -> None:
    assert Deadline(10).left > 0
    with pytest.raises(PeerFailed, match="longer than 0 s"):
        assert Deadline(0).left
