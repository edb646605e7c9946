"""Spans of a real worker: they belong to the trace that enqueued their job, and none is lost at its end (O7)."""

from __future__ import annotations

import json
import signal

from ropeway.core.states import State
from tests.worker.facts import Facts
from tests.worker.kit import StartWorker, opened

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


async def test_a_run_is_a_child_of_the_span_that_enqueued_its_job(
    sqlite_url: str, start_worker: StartWorker, facts: Facts
) -> None:
    options = {"headers": {"traceparent": f"00-{TRACE}-{SPAN}-01"}}
    async with opened(sqlite_url) as store:
        ids = await store.add("on_the_loop", options=options) + await store.add("apart", options=options)
        worker = start_worker(target="tests/worker/traced.py", url=sqlite_url)
        await store.reach(ids, State.SUCCEEDED)
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
    spans = [json.loads(line) for line in (facts.folder / "spans").read_text().splitlines()]
    assert {(span["name"], span["trace"], span["parent"]) for span in spans} == {
        ("run on_the_loop", TRACE, SPAN),
        ("run apart", TRACE, SPAN),
    }
