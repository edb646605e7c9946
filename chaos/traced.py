"""The experiments' tasks in a process that traces its runs: spans go to the file that CHAOS_TRACES names (E35)."""

from __future__ import annotations

import os
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from chaos.tasks import app

__all__ = ["app"]

_spans = Path(os.environ["CHAOS_TRACES"]).open("a", encoding="utf-8")  # noqa: SIM115 - for as long as the process
_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=_spans)))
trace.set_tracer_provider(_provider)
