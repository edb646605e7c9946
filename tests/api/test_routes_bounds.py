"""What a key may do by its scopes, and the bounds on what is asked and told."""

from __future__ import annotations

import pytest

from ropeway.api import attendance
from ropeway.core.access import Scope
from tests.api.routes_kit import Stage, on_every_engine, on_memory

SCHEDULE = {"name": "nightly", "cron": "0 3 * * *", "type": "report"}
WORKER = {"host": "h", "pid": 1, "version": "1"}


@on_every_engine
async def test_what_no_store_can_keep_finds_no_actions(stage: Stage) -> None:
    caller = await stage.caller()
    for query in ("actor=%00", "action=%00", "actor=", "action=a%0a", f"actor={'a' * 257}"):
        answer = await caller.get(f"/v1/audit?{query}")
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_field"), query


@on_memory
async def test_an_operator_cannot_take_the_keys_of_those_above(stage: Stage) -> None:
    operator = await stage.caller(Scope.ADMIN)
    carer = await stage.caller(Scope.TENANT_ADMIN)
    for key in (await operator.get("/v1/keys")).json()["keys"]:
        if "tenant-admin" in key["scopes"]:
            answer = await operator.ask("DELETE", f"/v1/keys/{key['id']}")
            assert (answer.status_code, answer.json()["code"]) == (403, "missing_scope")
            assert (await carer.ask("DELETE", f"/v1/keys/{key['id']}")).status_code == 204
            break
    else:
        pytest.fail("there is such a key")
    made = await operator.post("/v1/keys", {"name": "k", "scopes": ["read"]})
    assert made.headers["location"] == f"/v1/keys/{made.json()['id']}"
    assert (await operator.ask("DELETE", made.headers["location"])).status_code == 204


@on_memory
async def test_who_may_see_payloads_may_read(stage: Stage) -> None:
    id = (await (await stage.caller()).job(payload={"a": 1}))["id"]
    reader = await stage.caller(Scope.READ_PAYLOAD)
    answer = await reader.get(f"/v1/jobs/{id}")
    assert (answer.status_code, answer.json().get("payload")) == (200, {"a": 1}), answer.text


@on_memory
async def test_a_schedule_is_declared_by_a_key_that_may_enqueue(stage: Stage) -> None:
    for scopes, status in (
        ((Scope.WORK,), 403),
        ((Scope.ENQUEUE,), 403),
        ((Scope.WORK, Scope.ENQUEUE), 200),
        ((Scope.ADMIN,), 200),
    ):
        caller = await stage.caller(*scopes)
        answer = await caller.ask("PUT", "/v1/schedules/nightly", SCHEDULE)
        assert answer.status_code == status, (scopes, answer.text)


@on_memory
async def test_the_number_of_workers_is_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "MOST_WORKERS", 2)
    caller, other = await stage.caller(Scope.WORK), await stage.caller(Scope.WORK, tenant="other")

    async def report(id: str, by: object = caller) -> int:
        answer = await by.ask("PUT", f"/v1/workers/{id}", WORKER)  # type: ignore[attr-defined]
        return int(answer.status_code)

    assert [await report(id) for id in ("a", "b", "a", "c", "b")] == [200, 200, 200, 429, 200]
    assert await report("c", other) == 200
    assert (await caller.ask("DELETE", "/v1/workers/a")).status_code == 204
    assert [await report(id) for id in ("c", "a")] == [200, 429]


@on_memory
async def test_a_worker_names_a_thousand_queues(stage: Stage) -> None:
    caller = await stage.caller(Scope.WORK)
    for field in ("queues", "types"):
        for number, status in ((1_000, 200), (1_001, 422)):
            answer = await caller.ask("PUT", "/v1/workers/w", {**WORKER, field: ["q"] * number})
            assert answer.status_code == status, (field, number, answer.text)


@on_memory
async def test_a_number_in_a_url_is_digits(stage: Stage) -> None:
    caller = await stage.caller()
    for text, status in (("1", 200), ("500", 200), ("1.0", 422), ("1e2", 422), ("0x1", 422), ("-1", 422)):
        answer = await caller.get(f"/v1/jobs?limit={text}")
        assert answer.status_code == status, (text, answer.text)


@on_memory
async def test_why_a_job_was_cancelled_is_noted(stage: Stage) -> None:
    caller = await stage.caller()
    ids = [(await caller.job())["id"] for _ in range(3)]
    for id, body, status in (
        (ids[0], {"reason": "a duplicate"}, 200),
        (ids[1], None, 200),
        (ids[2], {"reason": "a\nb"}, 422),
        (ids[2], {"reason": ""}, 200),
    ):
        assert (await caller.post(f"/v1/jobs/{id}/cancel", body)).status_code == status
    entries = (await caller.get("/v1/audit")).json()["entries"]
    assert [entry["target"] for entry in reversed(entries)] == [f"{ids[0]}: a duplicate", ids[1], ids[2]]
