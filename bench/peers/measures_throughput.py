"""Rates: enqueueing one by one and in bulk, and draining a filled store with one and two processes."""

from __future__ import annotations

from bench.peers.failing import PeerFailed, Unsupported
from bench.peers.measuring import Figure, Subject
from bench.peers.runs import Run
from bench.peers.sizing import drain_jobs, jobs_for

#: The first calls open connections and import what is imported late.
WARM_UP = 200
WARM_UP_BULK = 2_000
BATCH = 1_000


def single(subject: Subject) -> Figure:
    """Jobs per second, one per call, 50 calls in flight."""
    number = jobs_for(subject.peer.enqueue_rate, subject.scale.seconds)
    with subject.run(1) as run:
        run.control.single(0, WARM_UP)
        before = run.place.written()
        taken = run.control.single(WARM_UP, number)
        return _enqueued(run, number, taken, before, warm_up=WARM_UP)


def bulk(subject: Subject) -> Figure:
    """Jobs per second by the peer's own call for many, 1,000 at a time."""
    rate = subject.peer.bulk_rate
    if rate is None:
        raise Unsupported("it has no call for many jobs")
    number = jobs_for(rate, subject.scale.seconds, multiple=BATCH)
    with subject.run(1) as run:
        run.control.bulk(0, WARM_UP_BULK)
        before = run.place.written()
        taken = run.control.bulk(WARM_UP_BULK, number, batch=BATCH)
        return _enqueued(run, number, taken, before, warm_up=WARM_UP_BULK)


def _enqueued(run: Run, number: int, taken: dict[str, float], before: int | None, *, warm_up: int) -> Figure:
    stored = run.control.pending()
    if stored < warm_up + number:
        raise PeerFailed(f"the store has {stored:,} of the {warm_up + number:,} jobs that were enqueued")
    extra = {"jobs": number, "producer_cpu_ms_per_job": taken["cpu_seconds"] / number * 1000}
    if before is not None:
        extra["store_bytes_per_job"] = ((run.place.written() or 0) - before) / number
    return Figure(number / taken["seconds"], "jobs/s", extra)


def drain1(subject: Subject) -> Figure:
    """Jobs per second of a filled store, one worker process."""
    return _drain(subject, 1)


def drain2(subject: Subject) -> Figure:
    """The same with two."""
    return _drain(subject, 2)


def _drain(subject: Subject, processes: int) -> Figure:
    number = drain_jobs(subject.peer, processes, subject.scale.drain_seconds)
    with subject.run(number) as run:
        run.fill(0, number)
        drained = run.drain(0, number, processes)
        finished = run.control.finished()
    if finished is not None and finished < number:
        raise PeerFailed(f"{finished:,} of {number:,} jobs are recorded as finished")
    return Figure(
        drained.rate,
        "jobs/s",
        {
            "jobs": number,
            "cpu_ms_per_job": drained.cpu_seconds_per_job * 1000,
            "rss_mib": drained.rss_mib,
            "store_bytes_per_job": drained.written_bytes / number,
            "exactly_once": not drained.irregular,
            "ran_by_count": {str(count): jobs for count, jobs in drained.irregular.items()},
        },
    )
