"""The older faces, exactly as promised, and only when they are switched on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.routes_kit import Stage, _staged, on_memory, stage

with_compat = _staged("any_store", lambda url: stage(url, compat=True))

OLD_FIELDS = {
    "id",
    "queue_name",
    "payload",
    "status",
    "priority",
    "retry_count",
    "max_retries",
    "run_at",
    "locked_until",
    "locked_by",
    "created_at",
    "updated_at",
    "started_at",
    "finished_at",
    "result",
    "error_text",
    "dead_at",
    "dead_reason",
    "lease_lost_count",
}


@on_memory
async def test_they_are_off_by_default(stage: Stage) -> None:
    caller = await stage.caller()
    for method, path in (("POST", "/jobs"), ("POST", "/task"), ("GET", "/stats"), ("POST", "/dlq/retry")):
        assert (await caller.ask(method, path, {} if method == "POST" else None)).status_code == 404


@with_compat
async def test_the_queue_face(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.post("/jobs", {"queue_name": "mail", "payload": {"a": 1}, "priority": 3})
    assert made.status_code == 201
    assert set(made.json()) == {"job_id", "status"}
    assert made.json()["status"] == "pending"
    id = made.json()["job_id"]
    ours = (await caller.get(f"/v1/jobs/{id}")).json()
    assert (ours["type"], ours["queue"], ours["priority"], ours["max_attempts"]) == ("mail", "mail", 2, 4)
    job = (await caller.get(f"/jobs/{id}")).json()
    assert set(job) == OLD_FIELDS
    assert (job["queue_name"], job["priority"], job["max_retries"], job["payload"]) == ("mail", 3, 3, {"a": 1})
    lease = (await caller.post("/queues/mail/lease", {"worker_id": "w"})).json()
    assert set(lease) == {"job", "lease_token"}
    assert (lease["job"]["id"], lease["job"]["status"]) == (id, "processing")
    assert (await caller.post("/queues/mail/lease", {"worker_id": "w"})).status_code == 204
    token = {"lease_token": lease["lease_token"]}
    assert (await caller.post(f"/jobs/{id}/heartbeat", token)).status_code == 200
    assert (await caller.post(f"/jobs/{id}/nack", {**token, "error": "broken"})).json()["status"] == "retrying"
    job = (await caller.get(f"/jobs/{id}")).json()
    assert (job["status"], job["retry_count"], job["error_text"]) == ("pending", 1, "Error: broken")
    detail = (await caller.get(f"/jobs/{id}/detail")).json()
    assert set(detail) == OLD_FIELDS | {"attempt_history", "events", "logs"}
    assert (await caller.post(f"/jobs/{id}/cancel")).status_code == 200
    listed = (await caller.get("/jobs?status=cancelled")).json()["jobs"]
    assert [one["status"] for one in listed] == ["cancelled"]
    batch = await caller.post("/jobs/batch", {"jobs": [{"queue_name": "a"}, {"queue_name": "b", "type": "t"}]})
    assert batch.status_code == 201
    assert len(batch.json()["job_ids"]) == 2
    assert {one["queue"] for one in (await caller.get("/dashboard/queues")).json()["queues"]} == {"a", "b", "mail"}
    acked = (await caller.post("/queues/a/lease", {"worker_id": "w", "lease_seconds": 60})).json()
    await caller.post(f"/jobs/{acked['job']['id']}/ack", {"lease_token": acked["lease_token"], "result": 5})
    job = (await caller.get(f"/jobs/{acked['job']['id']}")).json()
    assert (job["status"], job["result"]) == ("completed", 5)


@pytest.mark.parametrize(("theirs", "ours"), [(-100, 9), (-4, 9), (0, 5), (4, 1), (100, 1)])
@with_compat
async def test_priorities_there_are_higher_first(stage: Stage, theirs: int, ours: int) -> None:
    caller = await stage.caller()
    made = (await caller.post("/jobs", {"queue_name": "q", "priority": theirs})).json()
    assert (await caller.get(f"/v1/jobs/{made['job_id']}")).json()["priority"] == ours


@with_compat
async def test_the_task_face(stage: Stage) -> None:
    caller = await stage.caller()
    task: dict[str, Any] = {"type": "a", "payload": [1], "priority": "high", "idempotency_key": "k"}
    made = await caller.post("/task", task)
    assert (made.status_code, set(made.json())) == (201, {"id", "status"})
    again = await caller.post("/task", task)
    assert (again.status_code, again.json()["id"]) == (200, made.json()["id"])
    assert (await caller.post("/task", {**task, "payload": [2]})).json()["code"] == "idempotency_mismatch"
    tasks = [{"type": "b"}, {"type": "c", "priority": "low"}, {"type": "d", "execute_at": "2036-01-01T00:00:00Z"}]
    several = await caller.post("/tasks", tasks)
    assert (several.status_code, len(several.json()["ids"])) == (201, 3)
    assert (await caller.get("/stats")).json() == {
        "pending_high": 1,
        "pending_default": 1,
        "pending_low": 1,
        "delayed": 1,
        "processing": 0,
        "dlq": 0,
    }
    bad = await caller.post("/tasks", [{"type": "x"}, {"type": "y", "priority": "urgent"}])
    assert bad.status_code == 422
    assert (await caller.get("/stats")).json()["pending_default"] == 1


@with_compat
async def test_the_run_face(stage: Stage) -> None:
    caller = await stage.caller()
    id = await caller.dead()
    stream = await caller.get(f"/runs/{id}/stream")
    assert "event: job.dlq" in stream.text
    assert (await caller.post("/dlq/retry", {"id": id})).json()["retried"] == 1
