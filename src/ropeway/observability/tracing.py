"""OpenTelemetry spans from enqueue to run, joined by the W3C headers `traceparent` and `tracestate` of a job.

    with tracing.enqueue_span("email.send", "mail"):            # the producer's span, current inside
        job = NewJob("email.send", headers=tracing.inject(headers))
    ...
    with tracing.run_span(job, worker_id) as span:              # its child, in the worker
        ...
        span.ended(outcome)

All of it does nothing, at the price of a dictionary look-up, until the program has set up a tracer provider (the
SDK); opentelemetry is not even imported before someone else does.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast

from ropeway.core.errors import FieldError
from ropeway.core.fields import check_headers
from ropeway.core.outcome import Done, Failed, Lost, Outcome, Released, Snoozed
from ropeway.core.redact import redact

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from ropeway.core.job import Job

_MAX_STACK = 4_096


class RunSpan(Protocol):
    """What a run tells its span."""

    def ended(self, outcome: Outcome | None) -> None:
        """How the run ended; None: it was not this run's to say (cancelled, or completed in a transaction)."""
        ...


def active() -> bool:
    """Whether spans go anywhere."""
    return _tracer() is not None


def inject(headers: Mapping[str, str]) -> Mapping[str, str]:
    """These headers and those of the current span, if there is one; never more than a job's headers may be."""
    if _tracer() is None:
        return headers
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    # Only the trace: the global propagator may add baggage, which is not ours to store.
    TraceContextTextMapPropagator().inject(carrier)
    if not carrier:
        return headers
    traced = {**headers, **carrier}
    try:
        check_headers(traced)
    except FieldError:
        return headers  # a job without its trace is better than no job
    return traced


def enqueue_span(type: str, queue: str, *, count: int = 1) -> AbstractContextManager[None]:
    """The producer's span round one enqueue call; what is injected inside leads back to it."""
    tracer = _tracer()
    if tracer is None:
        return _NOTHING_TO_ENTER
    from opentelemetry.trace import SpanKind

    attributes: dict[str, str | int] = {
        "messaging.system": "ropeway",
        "messaging.operation.type": "send",
        "messaging.operation.name": "enqueue",
        "messaging.destination.name": queue,
        "ropeway.job.type": type,
    }
    if count != 1:
        attributes["messaging.batch.message_count"] = count
    span = tracer.start_as_current_span(
        f"enqueue {type}", kind=SpanKind.PRODUCER, attributes=attributes, record_exception=False
    )
    return cast("AbstractContextManager[None]", span)


def run_span(job: Job, worker_id: str) -> AbstractContextManager[RunSpan]:
    """The consumer's span round one run, current inside; a child of the span that enqueued the job.

    An exception that leaves the block marks it as failed, unless `ended` was called before. A cancelled run and
    the signals by which a handler asks to be called later are no failures.
    """
    tracer = _tracer()
    return _NO_SPAN if tracer is None else _Run(tracer, job, worker_id)


def flush(seconds: float = 2.0) -> None:
    """Send what is still held back: for a process that ends without Python's usual exit."""
    provider = _provider()
    if provider is not None and hasattr(provider, "force_flush"):
        provider.force_flush(int(seconds * 1000))


# ── With a provider ──


class _Run(AbstractContextManager["RunSpan"]):
    """One run's span."""

    def __init__(self, tracer: Tracer, job: Job, worker_id: str) -> None:
        self._tracer = tracer
        self._job = job
        self._worker_id = worker_id
        self._told = False

    def __enter__(self) -> Self:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        job = self._job
        context = TraceContextTextMapPropagator().extract(dict(job.headers))
        self._entered: AbstractContextManager[Span] = self._tracer.start_as_current_span(
            f"run {job.type}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes={
                "messaging.system": "ropeway",
                "messaging.operation.type": "process",
                "messaging.operation.name": "run",
                "messaging.destination.name": job.queue,
                "messaging.message.id": str(job.id),
                "ropeway.job.type": job.type,
                "ropeway.job.attempt": job.attempt,
                "ropeway.worker.id": self._worker_id,
            },
            record_exception=False,
            set_status_on_exception=False,
        )
        self._span = self._entered.__enter__()
        return self

    def ended(self, outcome: Outcome | None) -> None:
        self._told = True
        if outcome is None:
            return
        self._span.set_attribute("ropeway.job.outcome", _WORDS[type(outcome)])
        if isinstance(outcome, Failed):
            error = outcome.error
            self._failed(error.type, error.message, error.traceback or "")

    def _failed(self, kind: str, message: str, stack: str) -> None:
        from opentelemetry.trace import StatusCode

        # Not record_exception: a text could hold a password.
        message = redact(message)
        self._span.set_status(StatusCode.ERROR, f"{kind}: {message}")
        self._span.add_event(
            "exception",
            {
                "exception.type": kind,
                "exception.message": message,
                "exception.stacktrace": redact(stack)[-_MAX_STACK:],
            },
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if not self._told and isinstance(error, Exception):
            self._span.set_attribute("ropeway.job.outcome", _WORDS[Failed])
            text = "".join(traceback.format_exception(error))
            self._failed(type(error).__qualname__, str(error), text)
        self._entered.__exit__(kind, error, stack)


_WORDS: Final[Mapping[type, str]] = {
    Done: "succeeded",
    Failed: "failed",
    Snoozed: "snoozed",
    Released: "released",
    Lost: "lost",
}

#: The tracer of the provider that was found last.
_known: tuple[object, Tracer] | None = None


def _tracer() -> Tracer | None:
    global _known
    provider = _provider()
    if provider is None:
        return None
    if _known is None or _known[0] is not provider:
        _known = (provider, provider.get_tracer("ropeway"))
    return _known[1]


def _provider() -> TracerProvider | None:
    """What the program set up. Nobody can have set up anything before importing `opentelemetry.trace`."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider: TracerProvider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider


# ── Without one ──


class _NoSpan(AbstractContextManager["RunSpan"]):
    def __enter__(self) -> Self:
        return self

    def ended(self, outcome: Outcome | None) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        pass


class _NothingToEnter(AbstractContextManager[None]):
    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        pass


_NO_SPAN: Final = _NoSpan()
_NOTHING_TO_ENTER: Final = _NothingToEnter()
