"""Metrics: the promised names, what each one counts, and that clients cannot blow them up."""

from __future__ import annotations

import subprocess
import sys
import threading

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from ropeway.core.query import QueueSettings, QueueStats
from ropeway.core.states import State
from ropeway.observability import metrics
from ropeway.observability.metrics import CATALOGUE, WorkerMetrics
from ropeway.observability.tally import DURATION_BUCKETS, MAX_TYPES, WAIT_BUCKETS, Produced, Tally, TallyDelta

#: The promise, word for word: a name that is missing here or there fails.
PROMISED = {
    "ropeway_jobs_enqueued_total": ("queue", "type"),
    "ropeway_jobs_succeeded_total": ("queue", "type"),
    "ropeway_jobs_attempts_failed_total": ("queue", "type"),
    "ropeway_jobs_dead_total": ("queue", "type"),
    "ropeway_jobs_deduplicated_total": ("queue", "type"),
    "ropeway_jobs_retried_total": ("queue", "type"),
    "ropeway_leases_acquired_total": (),
    "ropeway_leases_rejected_total": (),
    "ropeway_leases_reclaimed_total": (),
    "ropeway_worker_active_jobs": (),
    "ropeway_worker_slots": (),
    "ropeway_job_duration_seconds": ("queue", "type", "outcome"),
    "ropeway_job_wait_seconds": ("queue",),
    "ropeway_http_request_duration_seconds": ("method", "path_template", "status_code"),
    "ropeway_http_requests_total": ("method", "path_template", "status_code"),
    "ropeway_queue_depth": ("queue", "state"),
    "ropeway_queue_oldest_age_seconds": ("queue",),
    "ropeway_queue_depth_limit": ("queue",),
    "ropeway_http_problems_total": ("code",),
    "ropeway_http_waiting": ("kind",),
}

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def values(page: bytes) -> Values:
    """Every sample of a page, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def value(page: bytes, name: str, **labels: str) -> float | None:
    return values(page).get((name, frozenset(labels.items())))


@pytest.fixture
def tally() -> Tally:
    return Tally(Produced())


@pytest.fixture
def worker() -> WorkerMetrics:
    return WorkerMetrics(Produced())


def over_the_wire(delta: TallyDelta) -> TallyDelta:
    """As a parent gets it from its child."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(delta), type=TallyDelta)


def test_the_names_and_labels_are_the_promised_ones() -> None:
    assert {name: description.labels for name, description in CATALOGUE.items()} == PROMISED


def test_every_metric_is_on_the_page_with_help_and_kind_before_anything_happened(
    worker: WorkerMetrics,
) -> None:
    families = {family.name: family for family in text_string_to_metric_families(worker.render().decode())}
    for name, description in CATALOGUE.items():
        family = families[name.removesuffix("_total")]
        assert family.type == description.kind
        assert family.documentation == description.help
        assert len(description.help) > 10
    assert len(families) == len(CATALOGUE)


def test_a_child_s_work_reaches_the_page(tally: Tally, worker: WorkerMetrics) -> None:
    tally.leased(3)
    tally.rejected(1)
    tally.started("mail", "email.send", 0.004)
    tally.started("mail", "email.send", -1.0)
    tally.finished("mail", "email.send", "succeeded", 0.2)
    tally.finished("mail", "email.send", "failed", 0.2)
    tally.finished("mail", "email.send", "timeout", 60.0)
    tally.finished("mail", "email.send", "dead", 4000.0)
    tally.finished("mail", "email.send", "snoozed", 0.1)
    tally.retried("mail", "email.send")
    worker.merge(over_the_wire(tally.take()))
    page = worker.render()
    job = {"queue": "mail", "type": "email.send"}
    assert value(page, "ropeway_leases_acquired_total") == 3
    assert value(page, "ropeway_leases_rejected_total") == 1
    assert value(page, "ropeway_jobs_succeeded_total", **job) == 1
    assert value(page, "ropeway_jobs_attempts_failed_total", **job) == 3
    assert value(page, "ropeway_jobs_dead_total", **job) == 1
    assert value(page, "ropeway_jobs_retried_total", **job) == 1
    assert value(page, "ropeway_job_wait_seconds_count", queue="mail") == 2
    assert value(page, "ropeway_job_wait_seconds_bucket", queue="mail", le="0.001") == 1, "never less than 0"
    assert value(page, "ropeway_job_wait_seconds_sum", queue="mail") == pytest.approx(0.004)
    duration = {"queue": "mail", "type": "email.send", "outcome": "succeeded"}
    assert value(page, "ropeway_job_duration_seconds_bucket", **duration, le="0.1") == 0
    assert value(page, "ropeway_job_duration_seconds_bucket", **duration, le="0.25") == 1
    assert value(page, "ropeway_job_duration_seconds_bucket", **duration, le="+Inf") == 1
    assert value(page, "ropeway_job_duration_seconds_sum", **duration) == pytest.approx(0.2)
    dead = {**duration, "outcome": "dead"}
    assert value(page, "ropeway_job_duration_seconds_bucket", **dead, le="3600.0") == 0
    assert value(page, "ropeway_job_duration_seconds_bucket", **dead, le="+Inf") == 1


def test_what_was_taken_is_not_taken_again_and_children_add_up(worker: WorkerMetrics) -> None:
    for _ in range(2):
        child = Tally(Produced())
        for _ in range(3):
            child.leased(1)
            child.finished("q", "t", "succeeded", 0.01)
            worker.merge(over_the_wire(child.take()))
        assert child.take() == TallyDelta()
    page = worker.render()
    assert value(page, "ropeway_leases_acquired_total") == 6
    assert value(page, "ropeway_jobs_succeeded_total", queue="q", type="t") == 6


def test_a_measurement_on_a_bound_belongs_to_it(tally: Tally, worker: WorkerMetrics) -> None:
    tally.finished("q", "t", "succeeded", 0.005)
    worker.merge(tally.take())
    labels = {"queue": "q", "type": "t", "outcome": "succeeded"}
    assert value(worker.render(), "ropeway_job_duration_seconds_bucket", **labels, le="0.005") == 1


def test_the_buckets_reach_from_milliseconds_to_an_hour() -> None:
    assert (DURATION_BUCKETS[0], DURATION_BUCKETS[-1]) == (0.005, 3600)
    assert (WAIT_BUCKETS[0], WAIT_BUCKETS[-1]) == (0.001, 3600)
    for bounds in (DURATION_BUCKETS, WAIT_BUCKETS):
        assert list(bounds) == sorted(set(bounds))


def test_types_beyond_the_first_200_are_one(worker: WorkerMetrics) -> None:
    produced = Produced()
    for child in (Tally(produced), Tally(produced)):
        for number in range(300):
            name = f"{id(child)}-{number}"
            child.finished("q", name, "succeeded", 0.01)
            child.retried("q", name)
            produced.enqueued("q", name)
        worker.merge(over_the_wire(child.take()))
    seen = {
        dict(labels)["type"]: number
        for (name, labels), number in values(worker.render()).items()
        if name == "ropeway_jobs_succeeded_total"
    }
    assert len(seen) == MAX_TYPES + 1
    assert seen["other"] == 600 - MAX_TYPES
    for name in ("ropeway_jobs_retried_total", "ropeway_jobs_enqueued_total"):
        assert sum(number for (found, _), number in values(worker.render()).items() if found == name) == 600


def test_what_the_parent_knows(worker: WorkerMetrics) -> None:
    worker.gauges(active=7, slots=100)
    worker.gauges(active=8, slots=100)
    worker.reclaimed(4)
    worker.died("mail", "email.send")
    worker.http("GET", "/jobs/{id}", 200, 0.02)
    stats = QueueStats("mail", False, {State.QUEUED: 5, State.DEAD: 2}, oldest_age_seconds=12.5)
    worker.queues([stats, QueueStats("gone", False, {State.QUEUED: 1})])
    worker.queues([stats])
    page = worker.render()
    assert value(page, "ropeway_worker_active_jobs") == 8
    assert value(page, "ropeway_worker_slots") == 100
    assert value(page, "ropeway_leases_reclaimed_total") == 4
    assert value(page, "ropeway_jobs_dead_total", queue="mail", type="email.send") == 1
    assert value(page, "ropeway_queue_depth", queue="mail", state="queued") == 5
    assert value(page, "ropeway_queue_depth", queue="mail", state="dead") == 2
    assert value(page, "ropeway_queue_depth", queue="mail", state="running") == 0
    assert value(page, "ropeway_queue_depth", queue="gone", state="queued") is None
    assert value(page, "ropeway_queue_oldest_age_seconds", queue="mail") == 12.5
    http = {"method": "GET", "path_template": "/jobs/{id}", "status_code": "200"}
    assert value(page, "ropeway_http_requests_total", **http) == 1
    assert value(page, "ropeway_http_request_duration_seconds_bucket", **http, le="0.025") == 1


def test_what_a_server_knows(worker: WorkerMetrics) -> None:
    polls = 3
    worker.waiting(lambda: polls, lambda: 2)
    worker.problem("rate_limited")
    worker.problem("rate_limited")
    worker.problem("not_found")
    worker.queues(
        [QueueStats("mail", False, {}, settings=QueueSettings(depth_limit=500)), QueueStats("q", False, {})]
    )
    polls = 4
    page = worker.render()
    assert value(page, "ropeway_http_problems_total", code="rate_limited") == 2
    assert value(page, "ropeway_http_problems_total", code="not_found") == 1
    assert value(page, "ropeway_http_waiting", kind="poll") == 4
    assert value(page, "ropeway_http_waiting", kind="stream") == 2
    assert value(page, "ropeway_queue_depth_limit", queue="mail") == 500
    assert value(page, "ropeway_queue_depth_limit", queue="q") is None


def test_queues_that_clients_make_up_are_bounded_too() -> None:
    produced = Produced()
    worker = WorkerMetrics(produced)
    for number in range(300):
        produced.enqueued(f"queue-{number}", "t")
        produced.deduplicated(f"queue-{number}", "t")
    page = worker.render()
    for name in ("ropeway_jobs_enqueued_total", "ropeway_jobs_deduplicated_total"):
        seen = {dict(labels)["queue"]: number for (found, labels), number in values(page).items() if found == name}
        assert len(seen) == MAX_TYPES + 1
        assert seen["other"] == 300 - MAX_TYPES


def test_labels_of_any_text_make_a_page_that_can_be_read(tally: Tally, worker: WorkerMetrics) -> None:
    worker.queues([QueueStats('a"b\\c\nd', False, {})])
    assert value(worker.render(), "ropeway_queue_oldest_age_seconds", queue='a"b\\c\nd') == 0


def test_a_producer_s_jobs_are_counted_once_whoever_shows_them() -> None:
    produced = Produced()
    worker = WorkerMetrics(produced)
    child_in_this_process = Tally(produced)
    produced.enqueued("mail", "email.send", 2)
    produced.deduplicated("mail", "email.send")
    job = {"queue": "mail", "type": "email.send"}
    assert value(worker.render(), "ropeway_jobs_enqueued_total", **job) == 2
    worker.merge(child_in_this_process.take())
    produced.enqueued("mail", "email.send")
    assert value(worker.render(), "ropeway_jobs_enqueued_total", **job) == 3
    assert value(worker.render(), "ropeway_jobs_deduplicated_total", **job) == 1
    assert [each.number for counts in produced.all() for each in counts] == [3, 1]


def test_a_program_that_only_enqueues_shows_it_on_its_own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    from prometheus_client import generate_latest

    monkeypatch.setattr(metrics, "produced", Produced())
    registry = CollectorRegistry()
    metrics.export_to(registry)
    metrics.enqueued("mail", "email.send", 5)
    metrics.deduplicated("mail", "email.send", 2)
    job = {"queue": "mail", "type": "email.send"}
    assert value(generate_latest(registry), "ropeway_jobs_enqueued_total", **job) == 5
    assert value(generate_latest(registry), "ropeway_jobs_deduplicated_total", **job) == 2


def test_threads_lose_no_count() -> None:
    produced = Produced()
    taken: list[int] = []

    def count() -> None:
        for _ in range(2_000):
            produced.enqueued("q", "t")

    def take() -> None:
        for _ in range(200):
            taken.extend(each.number for each in produced.take()[0])

    threads = [threading.Thread(target=work) for work in (count, count, count, take)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) + sum(each.number for each in produced.take()[0]) == 6_000


def test_counting_imports_no_prometheus() -> None:
    program = """
import sys
from ropeway.observability.metrics import Tally, TallyDelta, WorkerMetrics, enqueued
tally = Tally(); tally.leased(1); tally.finished("q", "t", "succeeded", 0.1); enqueued("q", "t"); tally.take()
assert not [name for name in sys.modules if name.startswith("prometheus_client")]
WorkerMetrics().render()
assert "prometheus_client" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
