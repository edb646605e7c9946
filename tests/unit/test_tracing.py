"""Traces: from enqueue to run through the job's headers, with an SDK; nothing at all without one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ropeway.core.fields import MAX_HEADER_BYTES, MAX_HEADERS
from ropeway.core.job import Job, NewJob
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.payload import JobError
from ropeway.core.states import State
from ropeway.observability import tracing

ID = UUID("0198c0de-1234-7abc-8000-0123456789ab")
AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """An SDK, set up for this test alone: the API itself allows that only once per process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def job(headers: Mapping[str, str]) -> Job:
    return Job(
        id=ID, tenant="default", type="email.send", queue="mail", state=State.RUNNING, priority=5, payload=b"{}",
        attempt=2, attempts=2, max_attempts=5, run_at=AT, created_at=AT, updated_at=AT, headers=headers,
    )  # fmt: skip


def one(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = [span for span in spans.get_finished_spans() if span.name == name]
    return span


def test_a_run_is_the_child_of_the_enqueue_that_made_it(spans: InMemorySpanExporter) -> None:
    tracer = trace.get_tracer("a program")
    with tracer.start_as_current_span("request"), tracing.enqueue_span("email.send", "mail"):
        new = NewJob("email.send", headers=tracing.inject({"mine": "1"}))
    assert set(new.headers) == {"mine", "traceparent"}
    with tracing.run_span(job(new.headers), "worker-1") as span:
        with tracer.start_as_current_span("query"):
            pass
        span.ended(Done())
    request, enqueue, run, query = (
        one(spans, name) for name in ("request", "enqueue email.send", "run email.send", "query")
    )
    assert enqueue.parent is not None
    assert enqueue.parent.span_id == request.context.span_id
    assert run.parent is not None
    assert run.parent.span_id == enqueue.context.span_id
    assert run.parent.is_remote
    assert query.parent is not None
    assert query.parent.span_id == run.context.span_id
    assert len({span.context.trace_id for span in (request, enqueue, run, query)}) == 1
    assert (enqueue.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)


def test_spans_say_what_they_are_about(spans: InMemorySpanExporter) -> None:
    with tracing.enqueue_span("email.send", "mail", count=3):
        pass
    with tracing.run_span(job({}), "worker-1") as span:
        span.ended(Done())
    enqueue = one(spans, "enqueue email.send").attributes or {}
    run = one(spans, "run email.send").attributes or {}
    assert enqueue["messaging.batch.message_count"] == 3
    assert enqueue["messaging.destination.name"] == run["messaging.destination.name"] == "mail"
    assert run["messaging.message.id"] == str(ID)
    assert run["ropeway.job.attempt"] == 2
    assert run["ropeway.worker.id"] == "worker-1"
    assert run["ropeway.job.outcome"] == "succeeded"


@pytest.mark.parametrize(
    ("outcome", "word", "status"),
    [
        (Done(), "succeeded", StatusCode.UNSET),
        (Snoozed(delay=5), "snoozed", StatusCode.UNSET),
        (Released(), "released", StatusCode.UNSET),
        (Lost(), "lost", StatusCode.UNSET),
        (Failed(JobError("ValueError", "no")), "failed", StatusCode.ERROR),
        (None, None, StatusCode.UNSET),
    ],
)
def test_the_outcome_is_told(
    outcome: Outcome | None, word: str | None, status: StatusCode, spans: InMemorySpanExporter
) -> None:
    with tracing.run_span(job({}), "worker-1") as span:
        span.ended(outcome)
    run = one(spans, "run email.send")
    assert (run.attributes or {}).get("ropeway.job.outcome") == word
    assert run.status.status_code is status


def test_an_error_is_told_without_its_secrets(spans: InMemorySpanExporter) -> None:
    text = "cannot reach postgresql://bob:hunter2@db"
    with tracing.run_span(job({}), "worker-1") as span:
        span.ended(Failed(JobError("OSError", text, f"Traceback\nOSError: {text}")))
    with pytest.raises(OSError, match="hunter2"), tracing.run_span(job({}), "worker-1"):
        raise OSError(text)
    for run in spans.get_finished_spans():
        assert run.status.description == "OSError: cannot reach postgresql://bob:***@db"
        (event,) = run.events
        told: Mapping[str, Any] = event.attributes or {}
        assert told["exception.type"] == "OSError"
        assert "bob:***@db" in told["exception.stacktrace"]
        assert "hunter2" not in str(dict(told))


@pytest.mark.parametrize("signal", [asyncio.CancelledError, KeyboardInterrupt])
def test_what_is_no_error_is_not_told_as_one(signal: type[BaseException], spans: InMemorySpanExporter) -> None:
    with pytest.raises(signal), tracing.run_span(job({}), "worker-1"):
        raise signal
    run = one(spans, "run email.send")
    assert run.status.status_code is StatusCode.UNSET
    assert not run.events


@pytest.mark.parametrize(
    "headers",
    [{f"h{n}": "x" for n in range(MAX_HEADERS)}, {"large": "x" * (MAX_HEADER_BYTES - 20)}],
)
def test_a_job_s_own_headers_come_first(headers: dict[str, str], spans: InMemorySpanExporter) -> None:
    with tracing.enqueue_span("email.send", "mail"):
        assert tracing.inject(headers) == headers
        NewJob("email.send", headers=tracing.inject(headers))


def test_without_a_current_span_headers_stay_as_they_are(spans: InMemorySpanExporter) -> None:
    assert tracing.inject({"mine": "1"}) == {"mine": "1"}


@pytest.mark.parametrize(
    "text", ["", "nonsense", "00-00000000000000000000000000000000-0000000000000000-01", "\x00"]
)
def test_headers_that_lead_nowhere_start_a_new_trace(text: str, spans: InMemorySpanExporter) -> None:
    with tracing.run_span(job({"traceparent": text}), "worker-1"):
        pass
    assert one(spans, "run email.send").parent is None


def test_the_trace_is_no_part_of_what_a_key_stands_for(spans: InMemorySpanExporter) -> None:
    def made(**headers: str) -> bytes:
        return NewJob("email.send", idempotency_key="k", headers=headers).body_fingerprint()

    with tracing.enqueue_span("email.send", "mail"):
        first = tracing.inject({})
    with tracing.enqueue_span("email.send", "mail"):
        second = tracing.inject({})
    assert first != second
    assert made(**first) == made(**second) == made()
    assert made(**first, mine="1") == made(mine="1") != made()


def test_flush_sends_what_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    with tracing.run_span(job({}), "worker-1"):
        pass
    assert not exporter.get_finished_spans()
    tracing.flush()
    assert len(exporter.get_finished_spans()) == 1
    provider.shutdown()


def test_without_a_provider_nothing_happens() -> None:
    assert not tracing.active()
    headers = {"mine": "1"}
    with tracing.enqueue_span("email.send", "mail"):
        assert tracing.inject(headers) is headers
    with tracing.run_span(job({}), "worker-1") as span:
        span.ended(Failed(JobError("ValueError", "no")))
        assert not trace.get_current_span().is_recording()
    with pytest.raises(ValueError, match="through"), tracing.run_span(job({}), "worker-1"):
        raise ValueError("through")
    tracing.flush()


def test_without_a_provider_nothing_is_imported() -> None:
    program = """
import sys
import ropeway
from ropeway.observability import logs, metrics, tracing
assert tracing.active() is False
with tracing.enqueue_span("t", "q"):
    assert tracing.inject({}) == {}
with tracing.run_span(None, "w") as span:
    span.ended(None)
tracing.flush()
assert not [name for name in sys.modules if name.startswith("opentelemetry")], "imported for nothing"
import opentelemetry.trace
assert tracing.active() is False
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")], "the SDK is not ours to load"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
