"""An app whose program has set up OpenTelemetry: each span becomes a line of a file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from ropeway import Ropeway
from tests.worker.facts import VARIABLE


class ToFile(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with (Path(os.environ[VARIABLE]) / "spans").open("a") as file:
            for span in spans:
                told = {
                    "name": span.name,
                    "trace": format(span.context.trace_id, "032x"),
                    "parent": None if span.parent is None else format(span.parent.span_id, "016x"),
                }
                file.write(json.dumps(told) + "\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
# In batches, as in production, and so late that only a flush at the end brings them out in time.
provider.add_span_processor(BatchSpanProcessor(ToFile(), schedule_delay_millis=600_000))
trace.set_tracer_provider(provider)

app = Ropeway()


@app.task
async def on_the_loop() -> None: ...


@app.task(process=True)
def apart() -> None: ...
