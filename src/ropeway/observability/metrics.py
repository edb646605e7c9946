"""Metrics for Prometheus: every name, what it means, and the figures behind it.

`WorkerMetrics` adds up what a worker's children report (so a child's end loses nothing) and what its parent
knows. `Tally` and `produced` are where the counting itself is done; see `ropeway.observability.tally`. A program
that only enqueues and has metrics of its own calls `export_to(registry)`.

prometheus_client is imported when the first page is rendered, never by a worker's child.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from ropeway.core.query import QueueStats
from ropeway.core.states import State
from ropeway.observability.tally import (
    DURATION_BUCKETS,
    WAIT_BUCKETS,
    Counted,
    Produced,
    Spread,
    Tally,
    TallyDelta,
    Types,
    produced,
)

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import CollectorRegistry

__all__ = [
    "CATALOGUE",
    "CONTENT_TYPE",
    "Tally",
    "TallyDelta",
    "WorkerMetrics",
    "deduplicated",
    "enqueued",
    "export_to",
]

#: Of the text that `render` makes.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

HTTP_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Description(NamedTuple):
    """What is told about a metric once."""

    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


#: Every metric that Ropeway exposes. The names and labels are promised.
CATALOGUE: Final[Mapping[str, Description]] = {
    "ropeway_jobs_enqueued_total": Description("counter", ("queue", "type"), "Jobs that were stored."),
    "ropeway_jobs_deduplicated_total": Description(
        "counter", ("queue", "type"), "Jobs that were asked for again and answered with the first one."
    ),
    "ropeway_jobs_succeeded_total": Description("counter", ("queue", "type"), "Jobs that succeeded."),
    "ropeway_jobs_attempts_failed_total": Description(
        "counter", ("queue", "type"), "Runs that failed or timed out, whether or not they were the job's last."
    ),
    "ropeway_jobs_dead_total": Description("counter", ("queue", "type"), "Jobs that were given up."),
    "ropeway_jobs_retried_total": Description("counter", ("queue", "type"), "Failed runs that will be repeated."),
    "ropeway_leases_acquired_total": Description("counter", (), "Jobs that were leased by this worker."),
    "ropeway_leases_rejected_total": Description(
        "counter", (), "Claims that were woken up for work which others had taken already."
    ),
    "ropeway_leases_reclaimed_total": Description(
        "counter", (), "Jobs that this process took back from workers that were gone."
    ),
    "ropeway_worker_active_jobs": Description("gauge", (), "Jobs that this worker runs now."),
    "ropeway_worker_slots": Description("gauge", (), "Jobs that this worker can run at once."),
    "ropeway_job_duration_seconds": Description(
        "histogram", ("queue", "type", "outcome"), "How long handlers ran, by how they ended."
    ),
    "ropeway_job_wait_seconds": Description(
        "histogram", ("queue",), "How long jobs waited from the moment they were due to their start."
    ),
    "ropeway_queue_depth": Description("gauge", ("queue", "state"), "Jobs in a queue by state, counted to a cap."),
    "ropeway_queue_oldest_age_seconds": Description(
        "gauge", ("queue",), "How long the oldest job that could run now has waited; 0 when there is none."
    ),
    "ropeway_queue_depth_limit": Description(
        "gauge", ("queue",), "How many jobs that have not ended a queue takes, where a limit was set."
    ),
    "ropeway_http_requests_total": Description(
        "counter", ("method", "path_template", "status_code"), "HTTP requests that were answered."
    ),
    "ropeway_http_request_duration_seconds": Description(
        "histogram", ("method", "path_template", "status_code"), "How long HTTP requests took to answer."
    ),
    "ropeway_http_problems_total": Description(
        "counter", ("code",), "HTTP requests that were answered with a problem, by its code."
    ),
    "ropeway_http_waiting": Description(
        "gauge", ("kind",), "Long polls (`poll`) and event streams (`stream`) that are open now."
    ),
}

#: Runs that count as failed attempts.
_FAILED = frozenset({"failed", "timeout", "dead"})

_Labels: TypeAlias = tuple[str, ...]


def enqueued(queue: str, type: str, n: int = 1) -> None:
    """`n` new jobs were stored by this process."""
    produced.enqueued(queue, type, n)


def deduplicated(queue: str, type: str, n: int = 1) -> None:
    """`n` jobs were asked for by this process that were there already."""
    produced.deduplicated(queue, type, n)


class WorkerMetrics:
    """The figures of one worker (or upkeep) process and its children. Any thread may call any method."""

    def __init__(self, produced: Produced = produced) -> None:
        self._produced = produced
        self._lock = threading.Lock()
        self._types = Types()
        self._counts: dict[str, dict[_Labels, float]] = {}
        self._spreads: dict[str, dict[_Labels, Spread]] = {}
        self._gauges: dict[str, dict[_Labels, float]] = {}
        self._http: dict[_Labels, Spread] = self._spreads.setdefault("ropeway_http_request_duration_seconds", {})
        self._registry: CollectorRegistry | None = None
        self._waiting: tuple[Callable[[], int], Callable[[], int]] | None = None
        # A counter that is missing until it first counts cannot be told from one that does not exist.
        for name in ("acquired", "rejected", "reclaimed"):
            self._count(f"ropeway_leases_{name}_total", (), 0)

    # ── What is told ──

    def merge(self, delta: TallyDelta) -> None:
        """Add what a child did since its last report."""
        with self._lock:
            self._count("ropeway_leases_acquired_total", (), delta.leased)
            self._count("ropeway_leases_rejected_total", (), delta.rejected)
            for waits in delta.waits:
                self._spread("ropeway_job_wait_seconds", (waits.queue,), waits.seconds)
            for runs in delta.runs:
                self._add_runs(runs.queue, self._types.label(runs.type), runs.outcome, runs.seconds)
            self._add_counted("ropeway_jobs_retried_total", delta.retried)
            self._add_counted("ropeway_jobs_enqueued_total", delta.enqueued)
            self._add_counted("ropeway_jobs_deduplicated_total", delta.deduplicated)

    def reclaimed(self, n: int) -> None:
        """`n` jobs were taken back from workers that were gone."""
        with self._lock:
            self._count("ropeway_leases_reclaimed_total", (), n)

    def died(self, queue: str, type: str, n: int = 1) -> None:
        """Jobs became dead outside a run: their worker died too often, or they have no attempts left."""
        with self._lock:
            self._count("ropeway_jobs_dead_total", (queue, self._types.label(type)), n)

    def gauges(self, active: int, slots: int) -> None:
        """How many jobs run now, and how many could."""
        with self._lock:
            self._gauges["ropeway_worker_active_jobs"] = {(): active}
            self._gauges["ropeway_worker_slots"] = {(): slots}

    def queues(self, stats: Sequence[QueueStats]) -> None:
        """What the queues hold now; a queue that is not among them is forgotten."""
        depth: dict[_Labels, float] = {
            (each.queue, state.value): float(each.counts.get(state, 0)) for each in stats for state in State
        }
        age: dict[_Labels, float] = {(each.queue,): each.oldest_age_seconds or 0.0 for each in stats}
        limits: dict[_Labels, float] = {
            (each.queue,): float(each.settings.depth_limit)
            for each in stats
            if each.settings.depth_limit is not None
        }
        with self._lock:
            self._gauges["ropeway_queue_depth"] = depth
            self._gauges["ropeway_queue_oldest_age_seconds"] = age
            self._gauges["ropeway_queue_depth_limit"] = limits

    def http(self, method: str, path_template: str, status_code: int, seconds: float) -> None:
        """A request was answered. `path_template` is the route, never the path that was asked for."""
        # Once per request, so counted in place: the number of requests is the number of durations.
        labels = (method, path_template, str(status_code))
        with self._lock:
            spread = self._http.get(labels)
            if spread is None:
                spread = self._http[labels] = Spread.over(HTTP_BUCKETS)
            spread.counts[bisect_left(HTTP_BUCKETS, seconds)] += 1
            spread.sum += seconds

    def problem(self, code: str) -> None:
        """A request was answered with a problem of this code, one of `wire.problems.CODES`."""
        with self._lock:
            self._count("ropeway_http_problems_total", (code,), 1)

    def waiting(self, polls: Callable[[], int], streams: Callable[[], int]) -> None:
        """How to learn the number of open long polls and streams: asked for each page, never in between."""
        self._waiting = (polls, streams)

    # ── What is shown ──

    def render(self) -> bytes:
        """The page that Prometheus reads."""
        from prometheus_client.exposition import generate_latest
        from prometheus_client.registry import CollectorRegistry

        with self._lock:
            if self._registry is None:
                self._registry = CollectorRegistry(auto_describe=False)
                self._registry.register(self)
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """For a prometheus_client registry."""
        with self._lock:
            counts = {name: dict(values) for name, values in self._counts.items()}
            gauges = dict(self._gauges)
            if self._waiting is not None:
                polls, streams = self._waiting
                # Counted by another thread than the one that changes them: if they change just now, the next page
                # has them.
                with contextlib.suppress(RuntimeError):
                    gauges["ropeway_http_waiting"] = {("poll",): polls(), ("stream",): streams()}
            counts["ropeway_http_requests_total"] = {
                labels: spread.number for labels, spread in self._http.items()
            }
            spreads = {
                name: {labels: Spread(list(spread.counts), spread.sum) for labels, spread in values.items()}
                for name, values in self._spreads.items()
            }
        for name, mine in zip(_PRODUCED, self._produced.untaken(), strict=True):
            values = counts.setdefault(name, {})
            for each in mine:
                values[each.queue, each.type] = values.get((each.queue, each.type), 0) + each.number
        for name, description in CATALOGUE.items():
            if description.kind == "histogram":
                yield _histogram(name, spreads.get(name, {}))
            else:
                yield _numbers(name, (counts if description.kind == "counter" else gauges).get(name, {}))

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry then does not ask for the figures only to learn the names."""
        return []

    # ── With the lock held ──

    def _count(self, name: str, labels: _Labels, n: float) -> None:
        values = self._counts.setdefault(name, {})
        values[labels] = values.get(labels, 0) + n

    def _add_counted(self, name: str, counted: Iterable[Counted]) -> None:
        for each in counted:
            self._count(name, (each.queue, self._types.label(each.type)), each.number)

    def _spread(self, name: str, labels: _Labels, spread: Spread) -> None:
        values = self._spreads.setdefault(name, {})
        if labels in values:
            values[labels].add(spread)
        else:
            values[labels] = Spread(list(spread.counts), spread.sum)

    def _add_runs(self, queue: str, type: str, outcome: str, seconds: Spread) -> None:
        self._spread("ropeway_job_duration_seconds", (queue, type, outcome), seconds)
        if outcome == "succeeded":
            self._count("ropeway_jobs_succeeded_total", (queue, type), seconds.number)
        if outcome in _FAILED:
            self._count("ropeway_jobs_attempts_failed_total", (queue, type), seconds.number)
        if outcome == "dead":
            self._count("ropeway_jobs_dead_total", (queue, type), seconds.number)


# ── A program that only enqueues ──

_PRODUCED = ("ropeway_jobs_enqueued_total", "ropeway_jobs_deduplicated_total")


class _ProducedCollector:
    def collect(self) -> Iterator[Metric]:
        for name, counted in zip(_PRODUCED, produced.all(), strict=True):
            yield _numbers(name, {(each.queue, each.type): each.number for each in counted})


def export_to(registry: CollectorRegistry) -> None:
    """Show what this process enqueued on a registry of the program's own, once per registry."""
    registry.register(_ProducedCollector())


# ── The families of prometheus_client ──

_BOUNDS: Final[Mapping[str, tuple[float, ...]]] = {
    "ropeway_job_duration_seconds": DURATION_BUCKETS,
    "ropeway_job_wait_seconds": WAIT_BUCKETS,
    "ropeway_http_request_duration_seconds": HTTP_BUCKETS,
}


def _numbers(name: str, values: Mapping[_Labels, float]) -> Metric:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    kind, labels, help = CATALOGUE[name]
    family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, help, labels=labels)
    for label_values, number in values.items():
        family.add_metric(label_values, number)
    return family


def _histogram(name: str, values: Mapping[_Labels, Spread]) -> Metric:
    from prometheus_client.metrics_core import HistogramMetricFamily

    _, labels, help = CATALOGUE[name]
    family = HistogramMetricFamily(name, help, labels=labels)
    for label_values, spread in values.items():
        buckets: list[tuple[str, float]] = []
        running = 0
        for bound, number in zip((*map(str, _BOUNDS[name]), "+Inf"), spread.counts, strict=True):
            running += number
            buckets.append((bound, float(running)))
        family.add_metric(label_values, buckets, spread.sum)
    return family
