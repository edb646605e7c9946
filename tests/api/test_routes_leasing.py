"""Workers over HTTP: leases, tokens, outcomes that are never refused, batches, owners."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from ropeway.core.access import Scope
from ropeway.core.query import QueueSettings
from tests.api.routes_kit import Caller, Stage, on_every_engine, on_memory

VERBS = ("ack", "nack", "heartbeat", "snooze", "release", "progress", "lose")
NEEDED: dict[str, Any] = {"snooze": {"delay": 5}, "nack": {"error": "no"}}


async def say(caller: Caller, id: str, verb: str, body: Any) -> Any:
    return await caller.post(f"/v1/jobs/{id}/{verb}", body)


# ── Leases ──


@on_every_engine
async def test_a_lease_has_the_job_and_a_token(stage: Stage) -> None:
    caller = await stage.caller(Scope.ENQUEUE, Scope.WORK)
    made = await caller.job(payload={"n": 1}, retry={"policy": "article"})
    (lease,) = await caller.lease(lease_seconds=45)
    assert lease["job"]["id"] == made["id"]
    assert lease["job"]["status"] == "running"
    assert lease["job"]["payload"] == {"n": 1}
    assert lease["job"]["locked_by"] == "w1"
    assert lease["job"]["retry"]["base"] == 30
    assert lease["job"]["failures"] == 0
    assert (lease["attempt"], lease["lease_seconds"]) == (1, 45)
    assert lease["locked_until"] == lease["job"]["locked_until"] > made["created_at"]
    assert 0 < len(lease["lease_token"]) <= 128
    assert await caller.lease() == []


@on_memory
async def test_a_lease_that_is_not_full_says_when_the_next_job_is_due(stage: Stage) -> None:
    caller = await stage.caller()
    await caller.job()
    await caller.job(delay=50)
    answer = await caller.post("/v1/queues/default/lease", {"worker_id": "w", "count": 2})
    assert len(answer.json()["leases"]) == 1
    assert 40 < answer.json()["next_due_in"] <= 50


@on_every_engine
async def test_queues_are_walked_in_order_or_drawn_by_weight(stage: Stage) -> None:
    caller = await stage.caller()
    for queue in ("low", "low", "high", "high"):
        await caller.job(queue=queue)
    body = {"worker_id": "w", "count": 3, "queues": ["high", "low"]}
    leases = (await caller.post("/v1/lease", body)).json()["leases"]
    assert [one["job"]["queue"] for one in leases] == ["high", "high", "low"]
    weighted = {"worker_id": "w", "count": 9, "queues": [{"queue": "high", "weight": 5}, {"queue": "low"}]}
    leases = (await caller.post("/v1/lease", weighted)).json()["leases"]
    assert [one["job"]["queue"] for one in leases] == ["low"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"count": -1},
        {"count": 10_001},
        {"count": True},
        {"lease_seconds": 0},
        {"lease_seconds": 43_201},
        {"wait": -1},
        {"wait": "1"},
        {"worker_id": ""},
        {"worker_id": "x" * 129},
        {"worker_id": "a\u0000b"},
        {"owner": "me"},
        {"nope": 1},
    ],
)
@on_memory
async def test_what_a_lease_call_may_not_say(stage: Stage, wrong: dict[str, Any]) -> None:
    caller = await stage.caller()
    answer = await caller.post("/v1/queues/default/lease", {"worker_id": "w", **wrong})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"].lstrip("/") in wrong


@on_memory
async def test_a_queue_may_say_how_long_its_leases_are(stage: Stage) -> None:
    caller = await stage.caller()
    await caller.engine.set_queue("slow", QueueSettings(lease_seconds=600))
    for _ in range(3):
        await caller.job(queue="slow")
    (lease,) = await caller.lease("slow")
    assert lease["lease_seconds"] == 600
    (lease,) = await caller.lease("slow", lease_seconds=7)
    assert lease["lease_seconds"] == 7
    (lease,) = (await caller.post("/v1/lease", {"worker_id": "w", "queues": ["other", "slow"]})).json()["leases"]
    assert lease["lease_seconds"] == 600


# ── Tokens ──


@pytest.mark.parametrize("verb", VERBS)
@on_every_engine
async def test_every_bad_token_is_answered_alike(stage: Stage, verb: str) -> None:
    caller = await stage.caller()
    for _ in range(3):
        await caller.job()
    one, two = await caller.lease(count=2)
    gone = (await caller.lease())[0]
    await say(caller, gone["job"]["id"], "release", {"lease_token": gone["lease_token"]})
    cases = [
        (one["job"]["id"], ""),
        (one["job"]["id"], "x"),
        (one["job"]["id"], "\u00fc" * 40),
        (one["job"]["id"], "A" * 5_000),
        (one["job"]["id"], two["lease_token"]),
        (one["job"]["id"], one["lease_token"][:-1] + ("A" if one["lease_token"][-1] != "A" else "B")),
        (gone["job"]["id"], two["lease_token"]),
        (str(uuid4()), one["lease_token"]),
    ]
    if verb != "release":
        cases.append((gone["job"]["id"], gone["lease_token"]))
    answers = set()
    for id, token in cases:
        answer = await caller.ask(
            "POST", f"/v1/jobs/{id}/{verb}", {"lease_token": token, **NEEDED.get(verb, {})}, X_Request_Id="same"
        )
        assert answer.status_code == 409, answer.text
        answers.add(answer.text)
    assert len(answers) == 1
    assert json.loads(answers.pop())["code"] == "lease_lost"
    # Nothing happened to the jobs that are held.
    assert (await say(caller, one["job"]["id"], "ack", {"lease_token": one["lease_token"]})).status_code == 200
    assert (await say(caller, two["job"]["id"], "ack", {"lease_token": two["lease_token"]})).status_code == 200


@on_every_engine
async def test_the_same_verb_again_is_answered_as_done(stage: Stage) -> None:
    caller = await stage.caller()
    words = {"ack": "acked", "nack": "nacked", "snooze": "snoozed", "release": "released", "lose": "lost"}
    for verb, word in words.items():
        await caller.job(queue=verb)
        id, token = await caller.leased(verb)
        body = {**token, **NEEDED.get(verb, {})}
        first = (await say(caller, id, verb, body)).json()
        assert f"already_{word}" not in first
        events = (await caller.get(f"/v1/jobs/{id}/events")).json()["events"]
        again = await say(caller, id, verb, body)
        assert (again.status_code, again.json()[f"already_{word}"]) == (200, True), verb
        assert again.json()["status"] == first["status"]
        assert (await caller.get(f"/v1/jobs/{id}/events")).json()["events"] == events


@on_every_engine
async def test_a_beat_after_the_end_says_how_it_ended(stage: Stage) -> None:
    caller = await stage.caller()
    await caller.job()
    id, token = await caller.leased()
    await say(caller, id, "ack", token)
    for verb in ("heartbeat", "nack"):
        answer = await say(caller, id, verb, {**token, **NEEDED.get(verb, {})})
        assert (answer.status_code, answer.json()["code"]) == (409, "terminal")
        assert answer.json()["job_status"] == "succeeded"


@on_every_engine
async def test_cancelling_a_running_job_takes_its_lease(stage: Stage) -> None:
    caller = await stage.caller()
    await caller.job()
    await caller.job()
    one, other = await caller.lease(count=2)
    cancelled = await caller.post(f"/v1/jobs/{one['job']['id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (202, "cancelled")
    beat = await say(caller, other["job"]["id"], "heartbeat", {"lease_token": other["lease_token"]})
    assert beat.json()["revoked"] == [one["job"]["id"]]
    lost = await say(caller, one["job"]["id"], "ack", {"lease_token": one["lease_token"]})
    assert lost.json()["code"] == "lease_lost"


# ── Outcomes ──


@on_every_engine
async def test_replies_of_the_verbs(stage: Stage) -> None:
    caller = await stage.caller()

    async def leased() -> tuple[str, dict[str, Any]]:
        await caller.job()
        return await caller.leased()

    id, token = await leased()
    assert (await say(caller, id, "ack", {**token, "result": [1]})).json() == {"id": id, "status": "succeeded"}
    assert (await caller.get(f"/v1/jobs/{id}")).json()["result"] == [1]

    id, token = await leased()
    told = (await say(caller, id, "nack", {**token, "error": "broken", "retry_after": 3_600})).json()
    assert (told["status"], told["attempts"], told["retry_in_ms"]) == ("retrying", 1, 3_600_000)
    job = (await caller.get(f"/v1/jobs/{id}")).json()
    assert job["last_error"] == {"type": "Error", "message": "broken", "truncated": False}
    assert job["run_at"] == told["run_at"]

    id, token = await leased()
    error = {"type": "ValueError", "message": "no", "traceback": "line 1"}
    told = (await say(caller, id, "nack", {**token, "error": error, "retry": False})).json()
    assert (told["status"], told["run_at"]) == ("dead", None)
    detail = (await caller.get(f"/v1/jobs/{id}/detail")).json()
    assert detail["attempt_history"][0]["error"] == error
    assert detail["dead_reason"] == "rejected"

    id, token = await leased()
    beat = (await say(caller, id, "heartbeat", {**token, "lease_seconds": 60})).json()
    assert set(beat) == {"id", "lease_seconds", "locked_until", "expires_in", "revoked"}
    assert 55 < beat["lease_seconds"] <= 60
    told = (await say(caller, id, "release", token)).json()
    assert (told["id"], told["status"]) == (id, "queued")
    id, token = await caller.leased()
    told = (await say(caller, id, "snooze", {**token, "run_at": "2036-01-01T00:00:00Z"})).json()
    assert (told["status"], told["run_at"]) == ("scheduled", "2036-01-01T00:00:00.000000Z")

    id, token = await leased()
    told = (await say(caller, id, "lose", {**token, "exit_code": 1, "signal": 9})).json()
    assert (told["status"], told["lease_lost_count"]) == ("queued", 1)


@on_every_engine
async def test_progress_and_log_lines_are_kept(stage: Stage) -> None:
    caller = await stage.caller()
    await caller.job()
    id, token = await caller.leased()
    note = {"done": 1, "total": 4.5, "message": "a quarter", "logs": [{"message": "one"}, {"message": "two"}]}
    assert (await say(caller, id, "progress", {**token, **note})).json() == {"id": id}
    only_lines = {"logs": [{"message": "three", "level": "warning", "at": "2026-01-01T00:00:00Z"}]}
    await say(caller, id, "progress", {**token, **only_lines})
    job = (await caller.get(f"/v1/jobs/{id}")).json()
    assert {name: job["progress"][name] for name in ("done", "total", "message")} == {
        "done": 1,
        "total": 4.5,
        "message": "a quarter",
    }
    logs = (await caller.get(f"/v1/jobs/{id}/logs?after=1")).json()["logs"]
    assert [(line["n"], line["message"], line["level"]) for line in logs] == [
        (2, "two", "info"),
        (3, "three", "warning"),
    ]


SNOOZES: list[tuple[dict[str, Any], str]] = [
    ({}, "invalid_field"),
    ({"delay": 1, "run_at": "2036-01-01T00:00:00Z"}, "conflicting_fields"),
    ({"run_at": "2036-01-01T00:00:00"}, "timezone_required"),
    ({"delay": -1}, "invalid_field"),
]


@pytest.mark.parametrize(("when", "code"), SNOOZES)
@on_memory
async def test_a_snooze_says_when_in_one_way(stage: Stage, when: dict[str, Any], code: str) -> None:
    caller = await stage.caller()
    await caller.job()
    id, token = await caller.leased()
    answer = await say(caller, id, "snooze", {**token, **when})
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert (await say(caller, id, "ack", token)).status_code == 200


# ── Results that are never refused ──

RESULTS = [
    (b'{"a":"x\\u0000y"}', {"a": "x\ufffdy"}),
    (b'["\\ud800"]', ["\ufffd"]),
    (b'"\xff"', '"\ufffd"'),
    (b"NaN", None),
    (b'{"v":[1,NaN,-Infinity]}', {"v": [1, None, None]}),
    (b"1e400", None),
    (b"9223372036854775808", "9223372036854775808"),
    (b'{"a":1,"a":2}', {"a": 2}),
    (b"[" * 100 + b"]" * 100, None),
    (b"[" * 30_000 + b"]" * 30_000, None),
]


@pytest.mark.parametrize(("result", "kept"), RESULTS)
@pytest.mark.parametrize("form", ["single", "batch"])
@on_every_engine
async def test_whatever_a_result_holds_the_job_has_succeeded(
    stage: Stage, result: bytes, kept: Any, form: str
) -> None:
    caller = await stage.caller()
    await caller.job()
    id, token = await caller.leased()
    body = b'{"lease_token":"' + token["lease_token"].encode() + b'","result": ' + result
    if form == "single":
        told = (await caller.ask("POST", f"/v1/jobs/{id}/ack", raw=body + b" }")).json()
    else:
        item = body + b',"id":"' + id.encode() + b'"}'
        answer = await caller.ask("POST", "/v1/leases/ack", raw=b'{ "items" : [' + item + b"] }")
        (told,) = answer.json()["results"]
        assert told.pop("ok") is True
    assert told == {"id": id, "status": "succeeded", "sanitized": True}, told
    job = (await caller.get(f"/v1/jobs/{id}")).json()
    assert job["result_sanitized"] is True
    if kept is not None:
        assert job["result"] == kept


@on_every_engine
async def test_a_result_that_is_too_large_is_dropped_and_flagged(stage: Stage) -> None:
    caller = await stage.caller()
    await caller.job()
    id, token = await caller.leased()
    told = (await say(caller, id, "ack", {**token, "result": "x" * 2_000_000})).json()
    assert told == {"id": id, "status": "succeeded", "result_too_large": True}
    job = (await caller.get(f"/v1/jobs/{id}")).json()
    assert (job["result"], job["result_too_large"]) == (None, True)


ERRORS = [
    (b'"x\\u0000"', "x\ufffd"),
    (b'{"type":"T","message":"\\udfff!"}', "\ufffd!"),
    (b'{"message":"\xfe","traceback":"\\u0000"}', "\ufffd"),
]


@pytest.mark.parametrize(("error", "kept"), ERRORS)
@on_every_engine
async def test_whatever_an_error_holds_the_job_moves_on(stage: Stage, error: bytes, kept: str) -> None:
    caller = await stage.caller()
    await caller.job()
    id, token = await caller.leased()
    body = b'{"error":' + error + b',"lease_token":"' + token["lease_token"].encode() + b'"}'
    told = (await caller.ask("POST", f"/v1/jobs/{id}/nack", raw=body)).json()
    assert (told["status"], told["sanitized"]) == ("retrying", True)
    assert (await caller.get(f"/v1/jobs/{id}")).json()["last_error"]["message"] == kept


@on_every_engine
async def test_a_long_error_is_cut(stage: Stage) -> None:
    caller = await stage.caller()
    await caller.job()
    id, token = await caller.leased()
    told = (await say(caller, id, "nack", {**token, "error": {"message": "m" * 10_000_000}})).json()
    assert (told["status"], told["truncated"]) == ("retrying", True)
    assert len((await caller.get(f"/v1/jobs/{id}")).json()["last_error"]["message"]) == 4_096


MALFORMED = [
    (b"", 400, "malformed_json"),
    (b"{", 400, "malformed_json"),
    (b"[]", 400, "malformed_json"),
    (b'{"lease_token":"%s","result":1,}', 400, "malformed_json"),
    (b'{"lease_token":"%s","result":}', 400, "malformed_json"),
    (b'{"lease_token":"%s","result":[1}', 400, "malformed_json"),
    (b'{"result":NaN}', 422, "invalid_field"),
    (b'{"lease_token":5}', 422, "invalid_field"),
    (b'{"lease_token":"%s","result":NaN,"nope":1}', 422, "unknown_field"),
    (b'{"lease_token":"%s","nope":1}', 422, "unknown_field"),
]


@pytest.mark.parametrize(("body", "status", "code"), MALFORMED)
@on_memory
async def test_only_the_run_s_own_words_are_taken_as_they_are(
    stage: Stage, body: bytes, status: int, code: str
) -> None:
    caller = await stage.caller()
    await caller.job()
    id, token = await caller.leased()
    raw = body.replace(b"%s", token["lease_token"].encode())
    answer = await caller.ask("POST", f"/v1/jobs/{id}/ack", raw=raw)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert (await caller.get(f"/v1/jobs/{id}")).json()["status"] == "running"


# ── Batches ──


@on_every_engine
async def test_a_batch_answers_each_item(stage: Stage) -> None:
    caller = await stage.caller()
    for _ in range(3):
        await caller.job()
    leases = await caller.lease(count=3)
    items = [
        {"id": one["job"]["id"], "lease_token": one["lease_token"], "result": n} for n, one in enumerate(leases)
    ]
    items[1]["lease_token"] = items[0]["lease_token"]
    items.append({"id": "not-an-id", "lease_token": "x"})
    results = (await caller.post("/v1/leases/ack", {"items": items})).json()["results"]
    assert [one["ok"] for one in results] == [True, False, True, False]
    assert [one["id"] for one in results] == [item["id"] for item in items]
    assert [one["error"]["code"] for one in results if not one["ok"]] == ["lease_lost", "invalid_id"]
    statuses = [(await caller.get(f"/v1/jobs/{item['id']}")).json()["status"] for item in items[:3]]
    assert statuses == ["succeeded", "running", "succeeded"]


@pytest.mark.parametrize("verb", VERBS)
@on_memory
async def test_every_verb_has_a_batch_form(stage: Stage, verb: str) -> None:
    caller = await stage.caller()
    for _ in range(2):
        await caller.job()
    leases = await caller.lease(count=2)
    extra = NEEDED.get(verb, {})
    items = [{"id": one["job"]["id"], "lease_token": one["lease_token"], **extra} for one in leases]
    one_by_one = await say(caller, items[0]["id"], verb, {k: v for k, v in items[0].items() if k != "id"})
    results = (await caller.post(f"/v1/leases/{verb}", {"items": items[1:]})).json()["results"]
    assert results[0].pop("ok") is True
    assert set(results[0]) == set(one_by_one.json())


@on_memory
async def test_beats_of_different_lengths_in_one_batch(stage: Stage) -> None:
    caller = await stage.caller()
    items = []
    for length in (40, 80, None):
        await caller.job()
        id, token = await caller.leased()
        items.append({"id": id, **token} | ({} if length is None else {"lease_seconds": length}))
    items.append({**items[0], "lease_seconds": 99_999})
    results = (await caller.post("/v1/leases/heartbeat", {"items": items})).json()["results"]
    assert [round(one["lease_seconds"]) for one in results[:3]] == [40, 80, 30]
    assert results[3]["error"]["code"] == "invalid_field"


@on_memory
async def test_the_size_of_a_batch_of_items_has_bounds(stage: Stage) -> None:
    caller = await stage.caller()
    assert (await caller.post("/v1/leases/ack", {"items": []})).status_code == 422
    item = {"id": str(uuid4()), "lease_token": "x"}
    many = await caller.post("/v1/leases/ack", {"items": [item] * 1_001})
    assert (many.status_code, many.json()["code"]) == (413, "batch_too_large")


# ── Owners ──


@on_every_engine
async def test_an_owner_beats_for_all_it_holds_and_ends(stage: Stage) -> None:
    caller = await stage.caller()
    owner = str(uuid4())
    assert (await caller.post("/v1/owners/heartbeat", {"owner": owner})).status_code == 204
    ids = [(await caller.job())["id"] for _ in range(2)]
    await caller.lease(count=1, owner=owner)
    await caller.lease(count=1, owner=owner)
    beat = (await caller.post("/v1/owners/heartbeat", {"owner": owner})).json()
    assert 25 < beat["expires_in"] <= 30
    assert beat["revoked"] == []
    (_, other) = grants = (await caller.post("/v1/owners/other-grants", {"owner": owner})).json()["grants"]
    asked = {"owner": owner, "known": grants[:1]}
    assert (await caller.post("/v1/owners/other-grants", asked)).json() == {"grants": [other]}
    one = await caller.post("/v1/owners/end", {"owner": owner, "started": [], "only": [str(uuid4())]})
    assert one.json() == {"rescued": []}
    body = {"owner": owner, "started": [ids[0]], "exit_code": 137, "signal": 9}
    ended = await caller.post("/v1/owners/end", body)
    assert {one["id"]: one["status"] for one in ended.json()["rescued"]} == dict.fromkeys(ids, "queued")
    counts = [(await caller.get(f"/v1/jobs/{id}")).json()["lease_lost_count"] for id in ids]
    assert counts == [1, 0]


@on_memory
async def test_calls_without_an_owner_have_one_each(stage: Stage) -> None:
    caller = await stage.caller()
    await caller.job()
    await caller.job()
    await caller.lease()
    await caller.lease()
    owners = {grant.owner for grant in caller.engine.grants.values()}  # type: ignore[attr-defined]
    assert len(owners) == 2


@on_memory
async def test_scopes_of_workers_and_producers_are_apart(stage: Stage) -> None:
    producer, worker = await stage.caller(Scope.ENQUEUE), await stage.caller(Scope.WORK)
    assert (await producer.post("/v1/queues/default/lease", {"worker_id": "w"})).status_code == 403
    assert (await worker.post("/v1/jobs", {"type": "a"})).status_code == 403
    assert (await stage.stranger().post("/v1/jobs", {"type": "a"})).status_code == 401
