"""Somebody holds what requests need in the store: they are answered soon, and nothing of them is done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.api.corpus import ALL_SCOPES
from tests.api.served import Answer, Served, a_store, server

#: Two seconds for a lock, five for a statement; the rest is for a machine that is busy with other things.
SOON = 15.0


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    with server(a_store(request, "postgres", tmp_path), tmp_path) as served:
        yield served


def test_a_lock_that_somebody_holds_costs_a_request_a_few_seconds(served: Served) -> None:
    token = served.key(*ALL_SCOPES)

    def ask(method: str, path: str, body: Any = None) -> Answer:
        began = time.monotonic()
        answer = served.ask(method, path, body, token=token)
        assert time.monotonic() - began < SOON, (method, path)
        return answer

    waiting = ask("POST", "/v1/jobs", {"type": "a", "queue": "waiting"}).json["id"]
    running = ask("POST", "/v1/jobs", {"type": "a", "queue": "running"}).json["id"]
    (lease,) = ask("POST", "/v1/queues/running/lease", {"worker_id": "w", "lease_seconds": 600}).json["leases"]
    ticket = {"lease_token": lease["lease_token"]}
    requests = [
        ("POST", "/v1/jobs", {"type": "a", "queue": "new"}),
        ("POST", "/v1/jobs", {"type": "a", "queue": "new", "idempotency_key": "k"}),
        ("POST", "/v1/jobs/batch", {"jobs": [{"type": "a", "queue": "new"}] * 3}),
        ("POST", f"/v1/jobs/{waiting}/cancel", {}),
        ("POST", f"/v1/jobs/{waiting}/reschedule", {"delay": 60}),
        ("POST", f"/v1/jobs/{running}/ack", ticket),
        ("GET", f"/v1/jobs/{waiting}", None),
    ]
    before = {id: ask("GET", f"/v1/jobs/{id}/detail").json for id in (waiting, running)}
    with psycopg.connect(served.url) as somebody:
        somebody.execute("LOCK TABLE ropeway.jobs IN ACCESS EXCLUSIVE MODE")
        with ThreadPoolExecutor(len(requests)) as threads:
            answers = list(threads.map(lambda request: ask(*request), requests))
        for (method, path, body), answer in zip(requests, answers, strict=True):
            expected = (409, "key_in_flight") if body and "idempotency_key" in body else (503, "unavailable")
            assert (answer.status, answer.code) == expected, (method, path, answer)
            assert int(answer.headers["retry-after"]) >= 1
    assert {id: ask("GET", f"/v1/jobs/{id}/detail").json for id in (waiting, running)} == before
    assert ask("GET", "/v1/jobs?queue=new").json["jobs"] == []
    for method, path, body in requests[:3]:
        assert ask(method, path, body).status == 201
    assert ask("POST", f"/v1/jobs/{running}/ack", ticket).json["status"] == "succeeded"
