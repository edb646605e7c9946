"""Producers over HTTP: what is stored is what is told, keys, spellings, times, batches and lines."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from ropeway.core.access import Scope
from ropeway.core.events import rfc3339
from ropeway.core.job import NewJob
from ropeway.core.query import QueueSettings
from ropeway.core.states import State
from tests.api import routes_kit
from tests.api.routes_kit import Caller, Stage, on_every_engine, on_memory, until

FUTURE = rfc3339(datetime.now(UTC) + timedelta(days=400))


async def refused(caller: Caller, body: Any, status: int, code: str, **headers: str) -> dict[str, Any]:
    answer = await caller.post("/v1/jobs", body, **headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    return answer.json()


# ── What a new job is told ──


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"payload": [1, "zwei", None], "queue": "mail", "priority": "high", "timeout": 0},
        {"delay": 3600, "max_attempts": 3, "tags": ["a", "b"], "headers": {"x": "y"}},
        {"run_at": FUTURE, "expires_at": "2036-01-01T00:00:00+02:00", "retry": {"policy": "atlas", "base": 20}},
        {"expires_in": 60, "max_retries": 0, "unique": {"by": "args"}, "idempotency_key": "k"},
    ],
)
@on_every_engine
async def test_a_new_job_is_told_as_the_store_has_it(stage: Stage, fields: dict[str, Any]) -> None:
    caller = await stage.caller()
    answer = await caller.post("/v1/jobs", {"type": "email.send", **fields})
    made = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/jobs/{made['id']}"
    assert (made.pop("run_id"), made.pop("deduplicated")) == (made["id"], False)
    assert made == (await caller.get(f"/v1/jobs/{made['id']}")).json()


@on_every_engine
async def test_payload_comes_back_byte_for_byte(stage: Stage) -> None:
    caller = await stage.caller()
    payload = '{"n": [-0, 1.0, 1.10, 9007199254740993, 1e5], "e": [], "t":  "\\u00e9\\/" }'
    answer = await caller.ask("POST", "/v1/jobs", raw=b'{"type":"a","payload":' + payload.encode() + b"}")
    assert f'"payload":{payload}' in answer.text
    again = await caller.get(f"/v1/jobs/{answer.json()['id']}")
    assert f'"payload":{payload}' in again.text
    (leased,) = await caller.lease()
    assert leased["job"]["payload"] == json.loads(payload)


@on_memory
async def test_a_short_answer_is_given_on_request(stage: Stage) -> None:
    caller = await stage.caller()
    answer = await caller.post("/v1/jobs", {"type": "a"}, Prefer="return=minimal")
    assert set(answer.json()) == {"id", "run_id", "status", "deduplicated"}
    assert answer.status_code == 201
    assert answer.headers["preference-applied"] == "return=minimal"


@on_memory
async def test_what_a_producer_sees_of_its_job_later(stage: Stage) -> None:
    producer = await stage.caller(Scope.ENQUEUE)
    reader = await stage.caller(Scope.READ)
    made = await producer.job(payload={"secret": 1})
    for caller in (producer, reader):
        seen = (await caller.get(f"/v1/jobs/{made['id']}")).json()
        assert "payload" not in seen
        assert "result" not in seen
        assert seen["status"] == "queued"
    whole = (await (await stage.caller(Scope.READ, Scope.READ_PAYLOAD)).get(f"/v1/jobs/{made['id']}")).json()
    assert whole["payload"] == {"secret": 1}
    assert whole["result"] is None


async def test_relaxed_durability_is_told_with_every_accept(sqlite_store: str) -> None:
    async with routes_kit.stage(sqlite_store, durability="relaxed") as relaxed:
        caller = await relaxed.caller()
        assert (await caller.job())["durability"] == "relaxed"
        batch = await caller.post("/v1/jobs/batch", {"jobs": [{"type": "a"}]})
        assert batch.json()["durability"] == "relaxed"
        lines = await caller.ask(
            "POST", "/v1/jobs/batch", raw=b'{"type":"a"}', Content_Type="application/x-ndjson"
        )
        assert lines.json()["durability"] == "relaxed"


# ── Keys ──


@on_every_engine
async def test_the_same_key_and_body_is_the_first_job(stage: Stage) -> None:
    caller = await stage.caller()
    first = await caller.job(payload={"a": 1}, idempotency_key="order-7")
    again = await caller.ask(
        "POST", "/v1/jobs", raw=b'{ "idempotency_key":"order-7", "payload": { "a":1 },"type":"work"}'
    )
    assert again.status_code == 200
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["deduplicated"] is True
    assert again.json()["id"] == first["id"]
    assert again.json()["payload"] == {"a": 1}
    by_header = await caller.post("/v1/jobs", {"type": "work", "payload": {"a": 1}}, Idempotency_Key="order-7")
    assert by_header.json()["id"] == first["id"]
    both = await caller.post(
        "/v1/jobs", {"type": "work", "payload": {"a": 1}, "idempotency_key": "order-7"}, Idempotency_Key="order-7"
    )
    assert both.json()["id"] == first["id"]


@pytest.mark.parametrize("payload", ["1.0", "1", "-1", '"1"', "1.00"])
@on_memory
async def test_another_body_under_the_same_key_is_a_mismatch(stage: Stage, payload: str) -> None:
    caller = await stage.caller()

    async def send(text: str) -> Any:
        raw = b'{"type":"a","idempotency_key":"k","payload":' + text.encode() + b"}"
        return await caller.ask("POST", "/v1/jobs", raw=raw)

    assert (await send("1.000")).status_code == 201
    assert (await send(payload)).json()["code"] == "idempotency_mismatch"
    assert (await send(" 1.000 ")).status_code == 200


@on_memory
async def test_two_keys_in_one_request_conflict(stage: Stage) -> None:
    caller = await stage.caller()
    await refused(caller, {"type": "a", "idempotency_key": "x"}, 422, "conflicting_fields", Idempotency_Key="y")


@on_memory
async def test_a_repeat_in_another_trace_is_a_repeat(stage: Stage) -> None:
    caller = await stage.caller()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    first = await caller.post("/v1/jobs", {"type": "a", "idempotency_key": "k"}, traceparent=trace)
    assert first.json()["headers"] == {"traceparent": trace}
    again = await caller.post(
        "/v1/jobs", {"type": "a", "idempotency_key": "k", "headers": {"traceparent": trace.replace("0a", "1b")}}
    )
    assert again.json()["deduplicated"] is True
    other = await caller.post("/v1/jobs", {"type": "a", "idempotency_key": "k", "headers": {"x": "y"}})
    assert other.json()["code"] == "idempotency_mismatch"


@on_every_engine
async def test_a_key_whose_job_is_gone_says_so(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.job(idempotency_key="k")
    assert (await caller.ask("DELETE", f"/v1/jobs/{made['id']}")).status_code == 204
    again = await caller.post("/v1/jobs", {"type": "work", "idempotency_key": "k"})
    assert again.status_code == 200
    assert again.json() == {"id": made["id"], "run_id": made["id"], "status": "pruned", "deduplicated": True}


@on_memory
async def test_a_unique_hit_answers_whatever_the_body(stage: Stage) -> None:
    caller = await stage.caller()
    unique = {"by": "key", "key": "nightly"}
    first = await caller.job(unique=unique, payload=1)
    again = await caller.post("/v1/jobs", {"type": "work", "unique": unique, "payload": 2})
    assert (again.status_code, again.json()["id"], again.json()["deduplicated"]) == (200, first["id"], True)


@on_memory
async def test_no_body_passes_for_another_by_a_fingerprint_of_its_own(stage: Stage) -> None:
    caller = await stage.caller()
    ours = NewJob("work", idempotency_key="k", payload=b"1").body_fingerprint().hex()
    body = {"type": "work", "idempotency_key": "k", "payload": 1, "fingerprint": ours}
    assert (await caller.post("/v1/jobs", body)).status_code == 201
    assert (await caller.post("/v1/jobs", body)).status_code == 200
    for key in ("k", "another"):
        for print in (ours, "0" * 64, "x", ours.upper()):
            other = {**body, "payload": 2, "idempotency_key": key, "fingerprint": print}
            await refused(caller, other, 422, "invalid_field")
    await refused(caller, {**body, "fingerprint": "0" * 64, "idempotency_key": None}, 422, "invalid_field")


@on_memory
@pytest.mark.parametrize(
    ("window", "status"), [(0, 201), (86_400, 201), (86_399.9, 422), (0.001, 422), (-1, 422), (1e12, 422)]
)
async def test_no_key_holds_for_less_than_a_day(stage: Stage, window: float, status: int) -> None:
    caller = await stage.caller()
    body = {"type": "work", "idempotency_key": "k", "key_window": window}
    assert (await caller.post("/v1/jobs", body)).status_code == status


@on_memory
async def test_a_queue_may_require_keys_and_have_a_limit(stage: Stage) -> None:
    caller = await stage.caller()
    await caller.engine.set_queue("strict", QueueSettings(require_key=True, depth_limit=1))
    await refused(caller, {"type": "a", "queue": "strict"}, 422, "key_required")
    made = await caller.job(queue="strict", idempotency_key="1")
    await refused(caller, {"type": "a", "queue": "strict", "idempotency_key": "2"}, 429, "queue_full")
    again = await caller.post("/v1/jobs", {"type": "work", "queue": "strict", "idempotency_key": "1"})
    assert (again.status_code, again.json()["id"]) == (200, made["id"]), "a repeated request needs no room"
    await refused(
        caller, {"type": "other", "queue": "strict", "idempotency_key": "1"}, 422, "idempotency_mismatch"
    )


@on_every_engine
async def test_a_unique_hit_needs_no_room(stage: Stage) -> None:
    """On a full queue, and for a tenant at its quota: nothing is created, so it is answered as with room."""
    caller = await stage.caller()
    body = {"type": "work", "queue": "full", "payload": {"a": 1}, "unique": {"by": "args"}}
    made = await caller.post("/v1/jobs", body)
    assert made.status_code == 201
    await caller.engine.set_queue("full", QueueSettings(depth_limit=1))
    stage.api.deps.admission.forget_settings(caller.tenant)
    again = await caller.post("/v1/jobs", body)
    assert (again.status_code, again.json()["id"], again.json()["deduplicated"]) == (200, made.json()["id"], True)
    batch = await caller.post("/v1/jobs/batch", {"jobs": [body, body]})
    assert [one["id"] for one in batch.json()["jobs"]] == [made.json()["id"]] * 2
    await refused(caller, {**body, "payload": {"a": 2}}, 429, "queue_full")
    # What the rule no longer finds is new, and there is room for it again.
    id, token = await caller.leased("full")
    assert (await caller.post(f"/v1/jobs/{id}/ack", token)).status_code == 200
    await until(lambda: _made(caller, body))


async def _made(caller: Caller, body: dict[str, Any]) -> bool:
    answer = await caller.post("/v1/jobs", body)
    return answer.status_code == 201


# ── Fields ──


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_retries": 0}, {"max_attempts": 1}),
        ({"max_retries": 24}, {"max_attempts": 25}),
        ({"priority": "critical"}, {"priority": 1}),
        ({"priority": "bulk"}, {"priority": 9}),
        ({"execute_at": FUTURE}, {"run_at": FUTURE, "status": "scheduled"}),
        ({"run_at": "2036-06-30T23:59:59.123456789Z"}, {"run_at": "2036-06-30T23:59:59.123456Z"}),
        ({"run_at": "2036-06-30T23:59:59+02:00"}, {"run_at": "2036-06-30T21:59:59.000000Z"}),
        ({"run_at": "2020-01-01T00:00:00Z"}, {"status": "queued"}),
    ],
)
@on_memory
async def test_spellings_that_are_accepted(stage: Stage, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    made = await (await stage.caller()).job(**fields)
    assert {name: made[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"max_retries": 1, "max_attempts": 2}, "conflicting_fields"),
        ({"run_at": FUTURE, "delay": 1}, "conflicting_fields"),
        ({"run_at": FUTURE, "execute_at": FUTURE}, "conflicting_fields"),
        ({"expires_at": FUTURE, "expires_in": 1}, "conflicting_fields"),
        ({"run_at": "2026-01-01T00:00:00"}, "timezone_required"),
        ({"run_at": "2026-01-01"}, "invalid_time"),
        ({"run_at": "2026-W01-1"}, "invalid_time"),
        ({"run_at": "20260101T000000Z"}, "invalid_time"),
        ({"run_at": "2026-06-30T23:59:60Z"}, "invalid_time"),
        ({"run_at": "9999-12-31T23:59:59-14:00"}, "invalid_time"),
        ({"run_at": "294277-01-01T00:00:00Z"}, "invalid_time"),
        ({"run_at": "infinity"}, "invalid_time"),
        ({"run_at": "2126-01-01T00:00:00Z"}, "invalid_time"),
        ({"run_at": "2036-02-30T00:00:00Z"}, "invalid_time"),
        ({"max_attempts": True}, "invalid_field"),
        ({"max_attempts": "3"}, "invalid_field"),
        ({"max_attempts": 26}, "invalid_field"),
        ({"priority": 0}, "invalid_field"),
        ({"priority": "urgent"}, "invalid_field"),
        ({"type": "a b"}, "invalid_field"),
        ({"tenant_id": "other"}, "unknown_field"),
        ({"idempotency_key": ""}, "invalid_field"),
        ({"idempotency_key": "x" * 513}, "invalid_field"),
        ({"retry": {"base": 1e308}}, "invalid_field"),
        ({"timeout": 0.5}, "invalid_field"),
    ],
)
@on_memory
async def test_what_is_refused_and_where(stage: Stage, fields: dict[str, Any], code: str) -> None:
    caller = await stage.caller()
    problem = await refused(caller, {"type": "a", **fields}, 422, code)
    assert "index" not in problem
    assert problem["errors"][0]["pointer"].split("/")[1] in fields
    assert (await caller.engine.count()).number == 0


# ── Batches ──


@on_every_engine
async def test_a_batch_is_stored_in_order(stage: Stage) -> None:
    caller = await stage.caller()
    jobs = [{"type": f"t{n}", "queue": f"q{n % 3}", "idempotency_key": f"k{n}"} for n in range(5)]
    first = (await caller.post("/v1/jobs/batch", {"jobs": jobs})).json()["jobs"]
    stored = await caller.post("/v1/jobs/lookup", {"ids": [one["id"] for one in first]})
    for told, job, wanted in zip(first, stored.json()["jobs"], jobs, strict=True):
        assert job["type"] == wanted["type"]
        assert (told["status"], told["deduplicated"]) == ("queued", False)
        assert (told["created_at"], told["run_at"]) == (job["created_at"], job["run_at"])
    again = await caller.post("/v1/jobs/batch", {"jobs": [*jobs, {"type": "new"}]})
    assert again.status_code == 201
    assert [one["deduplicated"] for one in again.json()["jobs"]] == [True] * 5 + [False]
    assert [one["id"] for one in again.json()["jobs"][:5]] == [one["id"] for one in first]


@pytest.mark.parametrize(
    ("bad", "status", "code"),
    [
        ({"type": "a", "run_at": "x"}, 422, "invalid_time"),
        ({"type": "a", "priority": 10}, 422, "invalid_field"),
        ({"type": "a", "nope": 1}, 422, "unknown_field"),
        ({"queue": "a"}, 422, "invalid_field"),
        ({"type": "a", "payload": {"x": "\0"}}, 422, "nul_character"),
        ({"type": "a", "idempotency_key": "taken"}, 422, "idempotency_mismatch"),
    ],
)
@on_memory
async def test_one_bad_item_is_named_and_nothing_is_stored(
    stage: Stage, bad: dict[str, Any], status: int, code: str
) -> None:
    caller = await stage.caller()
    await caller.job("other", idempotency_key="taken")
    jobs = [{"type": "ok"}] * 7 + [bad] + [{"type": "ok"}]
    answer = await caller.post("/v1/jobs/batch", {"jobs": jobs})
    assert (answer.status_code, answer.json()["code"], answer.json()["index"]) == (status, code, 7), answer.text
    assert (await caller.engine.count()).number == 1


@on_memory
async def test_the_size_of_a_batch_has_bounds(stage: Stage) -> None:
    caller = await stage.caller()
    none = await caller.post("/v1/jobs/batch", {"jobs": []})
    assert (none.status_code, none.json()["code"]) == (422, "invalid_field")
    many = await caller.post("/v1/jobs/batch", {"jobs": [{"type": "a"}] * 1_001})
    assert (many.status_code, many.json()["code"]) == (413, "batch_too_large")
    keyed = await caller.post("/v1/jobs/batch", {"jobs": [{"type": "a"}]}, Idempotency_Key="k")
    assert keyed.status_code == 422
    assert (await caller.engine.count()).number == 0


async def lines(caller: Caller, *jobs: Any, body: bytes | None = None) -> Any:
    raw = body if body is not None else b"\n".join(json.dumps(job).encode() for job in jobs)
    return await caller.ask("POST", "/v1/jobs/batch", raw=raw, Content_Type="application/x-ndjson")


@on_every_engine
async def test_lines_are_answered_in_order(stage: Stage) -> None:
    caller = await stage.caller()
    jobs = [{"type": "a", "payload": n, "idempotency_key": f"k{n}"} for n in range(2_300)]
    answer = await lines(caller, *jobs)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    told = [json.loads(line) for line in answer.text.splitlines()]
    assert len(told) == 2_300
    assert {one["status"] for one in told} == {"queued"}
    last = await caller.get(f"/v1/jobs/{told[-1]['id']}")
    assert last.json()["payload"] == 2_299
    again = await lines(caller, *jobs[:3], {"type": "b", "idempotency_key": "new"})
    assert [json.loads(line)["deduplicated"] for line in again.text.splitlines()] == [True, True, True, False]


@on_memory
async def test_lines_stop_at_the_first_bad_one_and_say_which(stage: Stage) -> None:
    caller = await stage.caller()
    jobs: list[Any] = [{"type": "a"}] * 1_500
    jobs[1_200] = {"type": "a", "priority": 99}
    answer = await lines(caller, *jobs)
    assert answer.status_code == 200
    *told, last = [json.loads(line) for line in answer.text.splitlines()]
    assert len(told) == 1_000
    assert (last["error"]["code"], last["error"]["index"]) == ("invalid_field", 1_200)
    # The thousand of the bad line is not stored, the one before it is.
    assert (await caller.engine.count()).number == 1_000


@on_memory
async def test_lines_of_which_none_is_good_are_refused(stage: Stage) -> None:
    caller = await stage.caller()
    bad = await lines(caller, {"type": "a"}, {"type": 5})
    assert (bad.status_code, bad.json()["code"], bad.json()["index"]) == (422, "invalid_field", 1)
    for nothing in (b"", b"\n \r\n"):
        assert (await lines(caller, body=nothing)).json()["code"] == "malformed_json"
    long = await lines(caller, body=b'{"type":"a","payload":"' + b"x" * 1_048_576 + b'"}')
    assert (long.status_code, long.json()["code"]) == (413, "payload_too_large")
    assert (await caller.engine.count()).number == 0


@on_memory
async def test_lines_may_end_anyhow(stage: Stage) -> None:
    caller = await stage.caller()
    answer = await lines(caller, body=b'{"type":"a"}\r\n\n{"type":"b"}\n')
    assert len(answer.text.splitlines()) == 2
    assert (await caller.engine.count()).number == 2


@on_memory
async def test_states_told_are_those_of_the_store(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.job(delay=60)
    (job,) = await caller.engine.get([UUID(made["id"])])
    assert job is not None
    assert (made["status"], job.state) == ("scheduled", State.SCHEDULED)
