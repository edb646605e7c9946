"""From the enqueue call to the handler's start: idle, at half load, round a spike, and how much load it bears."""

from __future__ import annotations

from array import array
from itertools import accumulate

from bench.peers.failing import PeerFailed
from bench.peers.groups import Work
from bench.peers.measuring import Figure, Subject, latencies_ms, latency_extra, percentile
from bench.peers.runs import START_SECONDS, Run
from bench.peers.sizing import Stage, known_rate, pauses_when_idle, steady_load

#: Jobs that wake everything up before the first one that counts.
WARM_UP = 20

#: How long the last jobs may take to start once the last call was made.
LATE_SECONDS = 20.0

#: A steady load is borne when 99 of 100 jobs start within this.
BORNE_MS = 200.0

#: A producer that makes fewer calls than this share of what it was asked for is what the load is limited by.
KEPT_UP = 0.95

#: Tries to find a load that the producer keeps up.
HALF_TRIES = 3

SPIKE_TIMES = 5


def idle(subject: Subject) -> Figure:
    """Milliseconds, one job at a time, for a worker that has nothing else to do."""
    number = subject.scale.latency_jobs
    with subject.run(WARM_UP + number, profile="latency") as run, run.work() as work:
        _warm_up(run, work)
        sent = run.control.paced(WARM_UP, pauses_when_idle(number))
        _all_started(run, work, number)
        taken = latencies_ms(sent, run.record.starts(WARM_UP, number))
    extra = latency_extra(taken)
    return Figure(extra["p50"], "ms", extra)


def half(subject: Subject) -> Figure:
    """The same under half of what the peer can do: drain with one process, or be filled, whichever is less.

    Settings for latency may cost a producer some of its speed. One that cannot send as much is asked again, for
    half of what it sent.
    """
    rate = capacity(subject) / 2
    for _ in range(HALF_TRIES):
        extra = _under_load(subject, rate, subject.scale.load_seconds)
        if extra["sent_rate"] >= KEPT_UP * rate:
            return Figure(extra["p50"], "ms", extra)
        rate = extra["sent_rate"] / 2
    raise PeerFailed(f"its producer does not keep up with {2 * rate:,.0f} jobs/s")


def capacity(subject: Subject) -> float:
    """Jobs per second that can go in one by one and out through one process."""
    return min(
        known_rate(subject.results, "drain1", subject.peer), known_rate(subject.results, "single", subject.peer)
    )


def _under_load(subject: Subject, rate: float, seconds: float) -> dict[str, float]:
    stage = steady_load(rate, seconds)
    with subject.run(WARM_UP + stage.jobs, profile="latency") as run, run.work() as work:
        _warm_up(run, work)
        sent, _ = run.control.load(WARM_UP, [stage])
        _all_started(run, work, len(sent))
        taken = latencies_ms(sent, run.record.starts(WARM_UP, len(sent)))
    return {"rate": rate, "sent_rate": len(sent) / stage.seconds, **latency_extra(taken)}


# ── a spike ──


def spike(subject: Subject) -> Figure:
    """Seconds after a spike until 99 of 100 jobs start as quickly as before it.

    The spike is the highest load that the peer bore for some seconds, as `steady` found it; before and after it is
    a fifth of that. So nobody is asked for more than it can do, and everybody for as much.
    """
    rate = _borne(subject) / SPIKE_TIMES
    scale = subject.scale
    storm = Stage(rate * SPIKE_TIMES, scale.spike_seconds)
    stages = {
        "before": Stage(rate, scale.calm_seconds),
        "during": storm,
        "after": Stage(rate, 2 * scale.calm_seconds),
    }
    most = sum(stage.jobs for stage in stages.values())
    limit = scale.limit_seconds + 3 * scale.spike_seconds
    with subject.run(WARM_UP + most, profile="latency", limit_seconds=limit) as run, run.work() as work:
        _warm_up(run, work)
        sent, numbers = run.control.load(WARM_UP, list(stages.values()))
        _all_started(run, work, len(sent), within=scale.limit_seconds)
        starts = run.record.starts(WARM_UP, len(sent))
    ends = list(accumulate(numbers))
    parts = {name: slice(end - number, end) for name, number, end in zip(stages, numbers, ends, strict=True)}
    p99 = {name: percentile(latencies_ms(sent[part], starts[part]), 0.99) for name, part in parts.items()}
    over = sent[0] + scale.calm_seconds + scale.spike_seconds
    back = seconds_until_back(sent[parts["after"]], starts[parts["after"]], since=over, normal_ms=p99["before"])
    extra = {f"{name}_p99": value for name, value in p99.items()}
    sent_rate = numbers[1] / storm.seconds
    return Figure(back, "s", {**extra, "rate": rate, "spike_rate": storm.rate, "spike_sent_rate": sent_rate})


def _borne(subject: Subject) -> float:
    """Jobs per second that the peer bears, or half of what it can do: as much is borne by nearly everybody."""
    found = subject.results.figure("steady", subject.peer.name)
    return found.median if found else capacity(subject) / 2


def seconds_until_back(sent: array[float], starts: array[float], *, since: float, normal_ms: float) -> float:
    """Seconds since then from which on the p99 of every second is normal again.

    Normal is twice what it was before, or 10 ms more: less is how the clock of a shared machine wavers.
    """
    bound = max(2 * normal_ms, normal_ms + 10.0)
    by_second: dict[int, list[float]] = {}
    for called, at in zip(sent, starts, strict=True):
        by_second.setdefault(int(called - since), []).append((at - called) * 1000)
    bad = [second for second, taken in by_second.items() if percentile(sorted(taken), 0.99) > bound]
    return float(max(bad) + 1) if bad else 0.0


# ── the highest load that is borne ──


def steady(subject: Subject) -> Figure:
    """Jobs per second, at most, at which 99 of 100 start within 200 ms: found by halving the range."""
    low, high = 0.0, 1.2 * capacity(subject)
    best: dict[str, float] = {}
    limited_by = "producer"
    rate = high
    for _ in range(subject.scale.steady_tries):
        tried = _tried(subject, rate)
        if tried is not None and tried["sent_rate"] < KEPT_UP * rate:
            high, limited_by = rate, "producer"
        elif tried is None or tried["p99"] > BORNE_MS:
            high, limited_by = rate, "worker"
        else:
            low, best = rate, tried
        if low == high:
            break
        rate = (low + high) / 2
    if not best:
        raise PeerFailed(f"no rate down to {rate:,.0f} jobs/s is borne with a p99 under {BORNE_MS:g} ms")
    return Figure(low, "jobs/s", {**best, "limited_by": limited_by, "tries": subject.scale.steady_tries})


def _tried(subject: Subject, rate: float) -> dict[str, float] | None:
    """None: it fell so far behind that it did not get there."""
    try:
        return _under_load(subject, rate, subject.scale.load_seconds)
    except PeerFailed:
        return None


# ── what they share ──


def _warm_up(run: Run, work: Work) -> None:
    run.control.single(0, WARM_UP, in_flight=1)
    run.until(
        lambda: run.record.all_ran(0, WARM_UP), work, within=START_SECONDS, what="the first jobs did not start"
    )


def _all_started(run: Run, work: Work, number: int, *, within: float = LATE_SECONDS) -> None:
    """Wait until all that were sent after those of the warm-up have started."""
    run.until(
        lambda: run.record.all_ran(WARM_UP, number), work, within=within, what="not all jobs started", every=0.05
    )
