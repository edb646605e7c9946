"""What wears a store down: an old transaction that stays open, a long backlog, and more work than it can take."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psycopg

from bench.peers.catalogue import Peer
from bench.peers.failing import NoFigure, PeerFailed, Unsupported
from bench.peers.measuring import Figure, Subject
from bench.peers.results import late_rate
from bench.peers.runs import LOOK_SECONDS, START_SECONDS, Run
from bench.peers.sizing import Scale, jobs_for

#: A peer that takes longer to fill is not measured with a backlog.
LONGEST_FILL_SECONDS = 180.0

#: Nor is one measured under a pinned xmin whose rounds would last longer: they are about a million jobs.
LONGEST_ROUND_SECONDS = 20.0

#: More processes that add less than this share mean that something is full.
STOPS_RISING = 1.05

#: A core that works for this share of the time has no more to give.
NEARLY = 0.9

#: Jobs that show that the worker is at work.
WARM_UP = 20


def pinned(subject: Subject) -> Figure:
    """Jobs per second of the last rounds, while an idle transaction keeps PostgreSQL from cleaning up."""
    if subject.peer.store != "postgres":
        raise Unsupported("only PostgreSQL has such transactions")
    number, rounds = subject.scale.pinned_round_jobs, subject.scale.pinned_rounds
    if not bears_rounds(subject.peer, subject.scale):
        raise Unsupported(f"{number * rounds:,} jobs would take too long")
    limit = subject.scale.limit_seconds * rounds
    rates: list[float] = []
    with subject.run(number * rounds, limit_seconds=limit) as run, psycopg.connect(run.place.url) as idle:
        idle.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        idle.execute("SELECT 1")  # the first statement takes the snapshot that is then kept
        for round_number in range(rounds):
            first = number * round_number
            run.fill(first, number)
            rates.append(run.drain(first, number, 1).rate)
        finished = run.control.finished()
    if finished is not None and finished < number * rounds:
        raise PeerFailed(f"{finished:,} of {number * rounds:,} jobs are recorded as finished")
    return Figure(late_rate(rates), "jobs/s", {"rounds": rates, "jobs": number * rounds, "round_jobs": number})


def bears_rounds(peer: Peer, scale: Scale) -> bool:
    """Whether a peer gets through the rounds of `pinned` in a time that can be waited for."""
    return scale.pinned_round_jobs / peer.rate <= LONGEST_ROUND_SECONDS


def backlog(subject: Subject) -> Figure:
    """Jobs per second over the first seconds, one process, with a million jobs waiting."""
    number, seconds = subject.scale.backlog_jobs, subject.scale.backlog_seconds
    if subject.peer.bulk_rate is None:
        raise Unsupported("it has no call for many jobs")
    if number / subject.peer.bulk_rate > LONGEST_FILL_SECONDS:
        raise Unsupported(f"a backlog of {number:,} jobs would take too long to make")
    limit = subject.scale.limit_seconds + 2 * LONGEST_FILL_SECONDS
    with subject.run(number, limit_seconds=limit) as run:
        run.fill(0, number)
        with run.work() as work:
            run.until(lambda: run.record.ran(0, number) > 0, work, within=START_SECONDS, what="no job started")
            begun, before = time.time(), run.record.ran(0, number)
            until = begun + seconds
            while time.time() < until and not run.record.all_ran(0, number):
                work.check()
                time.sleep(LOOK_SECONDS)
            taken, ran = time.time() - begun, run.record.ran(0, number) - before
    return Figure(ran / taken, "jobs/s", {"waiting": number, "jobs": ran, "seconds": taken})


# ── saturation ──


def saturation(subject: Subject) -> Figure:
    """Jobs per second that go in and out, at most, however many producers and worker processes there are."""
    steps: list[dict[str, Any]] = []
    for crowd in subject.scale.crowds:
        try:
            steps.append(_crowd(subject, crowd))
        except NoFigure:
            if not steps:
                raise
            break  # so many are more than it bears
        if len(steps) > 1 and steps[-1]["rate"] < STOPS_RISING * steps[-2]["rate"]:
            break
    best = max(steps, key=lambda step: float(step["rate"]))
    return Figure(best["rate"], "jobs/s", {**best, "steps": steps})


def _crowd(subject: Subject, crowd: int) -> dict[str, Any]:
    """So many producers and worker processes at once: what they get through, and what of the machine is used."""
    peer, seconds = subject.peer, subject.scale.seconds
    # Producers and workers share the machine: less than either alone would do.
    rate = min(peer.rate, peer.bulk_rate or peer.enqueue_rate)
    share = jobs_for(rate * min(crowd, 2) / crowd, seconds, multiple=1_000 if peer.bulk_rate else 100)
    number = share * crowd
    with subject.run(number + WARM_UP) as run:
        producers = [run.control, *(run.controller() for _ in range(crowd - 1))]
        try:
            with run.work(crowd) as work:
                run.control.single(number, WARM_UP)
                run.until(
                    lambda: run.record.all_ran(number, WARM_UP), work, within=START_SECONDS, what="no job started"
                )
                busy, store, began = machine_busy(), run.place.cpu_seconds(), time.time()
                for turn, producer in enumerate(producers):
                    _send(run, producer, turn * share, share)
                for producer in producers:
                    producer.receive()
                run.until(lambda: run.record.all_ran(0, number), work, what="not all jobs ran")
                seconds = run.until_finished(work) - began
                used, store_used = machine_busy() - busy, run.place.cpu_seconds()
        finally:
            for producer in producers[1:]:
                producer.close()
    if seconds <= 0:
        raise PeerFailed("it took no time at all")
    cores = {"machine_cores": used / seconds}
    if store is not None and store_used is not None:
        cores["store_cores"] = (store_used - store) / seconds
    full = what_is_full(cores["machine_cores"], cores.get("store_cores") if peer.store == "redis" else None)
    return {
        "rate": number / seconds,
        "producers": crowd,
        "processes": crowd,
        "jobs": number,
        "full": full,
        **cores,
    }


def what_is_full(machine_cores: float, one_core_of_the_store: float | None) -> str:
    """Which resource has nothing left, in words. Redis has one core to work with, however many there are."""
    if one_core_of_the_store is not None and one_core_of_the_store >= NEARLY:
        return "the store's one core"
    there = os.cpu_count() or 1
    return (
        f"all {there} cores" if machine_cores >= NEARLY * there else "no core: it waits for the disk or for locks"
    )


def _send(run: Run, producer: Any, first: int, number: int) -> None:
    if run.peer.bulk_rate is None:
        producer.send("single", first=first, number=number, in_flight=50)
    else:
        producer.send("bulk", first=first, number=number, batch=1_000)


def machine_busy() -> float:
    """Seconds that all cores together have worked since the machine's start."""
    fields = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    user, nice, system, _idle, _waiting, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
