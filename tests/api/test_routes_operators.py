"""Operators over HTTP: lists, changes, queues, dead letters, schedules, workers, keys, tenants, audit."""

from __future__ import annotations

from typing import Any

import pytest

from ropeway.core.access import Scope
from tests.api.routes_kit import Caller, Stage, on_every_engine, on_memory

MISSING = "01a1dfde-0000-7000-8000-000000000000"


async def ids(caller: Caller, query: str) -> list[str]:
    answer = await caller.get(f"/v1/jobs?{query}")
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["jobs"]]


async def actions(caller: Caller) -> list[tuple[str, str, int | None]]:
    entries = (await caller.get("/v1/audit")).json()["entries"]
    return [(entry["action"], entry["target"], entry["count"]) for entry in reversed(entries)]


# ── Lists ──


@on_every_engine
async def test_a_list_is_walked_by_cursor(stage: Stage) -> None:
    caller = await stage.caller()
    made = [(await caller.job(payload=n, queue="q"))["id"] for n in range(7)]
    await caller.job(queue="other")
    for order, expected in (("newest", made[::-1]), ("oldest", made)):
        seen: list[str] = []
        cursor = ""
        while True:
            page = (await caller.get(f"/v1/jobs?queue=q&order={order}&limit=3{cursor}")).json()
            seen += [job["id"] for job in page["jobs"]]
            assert all("payload" not in job and "result" not in job for job in page["jobs"])
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert seen == expected


@on_memory
async def test_a_cursor_is_good_for_its_own_question_only(stage: Stage) -> None:
    caller, other = await stage.caller(), await stage.caller(tenant="other")
    for asker in (caller, other):
        for _ in range(3):
            await asker.job()
    cursor = (await caller.get("/v1/jobs?limit=1&queue=default")).json()["next_cursor"]
    good = f"/v1/jobs?limit=2&queue=default&cursor={cursor}"
    assert (await caller.get(good)).status_code == 200
    bad = [
        (caller, f"/v1/jobs?limit=1&cursor={cursor}"),
        (caller, f"/v1/jobs?limit=1&queue=default&order=oldest&cursor={cursor}"),
        (caller, f"/v1/dlq?limit=1&queue=default&cursor={cursor}"),
        (caller, f"/v1/jobs?limit=1&queue=default&cursor={cursor[:-3]}"),
        (caller, f"/v1/jobs?limit=1&queue=default&cursor={cursor[:-3]}AAA"),
        (caller, "/v1/jobs?limit=1&queue=default&cursor=x"),
        (caller, "/v1/jobs?limit=1&queue=default&cursor="),
        (other, good),
    ]
    for asker, path in bad:
        answer = await asker.get(path)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_cursor"), path


@on_every_engine
async def test_filters_narrow(stage: Stage) -> None:
    caller = await stage.caller()
    a = await caller.job("a", queue="x", tags=["red"], idempotency_key="k", priority=2)
    b = await caller.job("b", queue="y", delay=60)
    dead = await caller.dead("the disk is full", type="c", queue="z")
    for query, expected in {
        "queue=x": [a["id"]],
        "type=b": [b["id"]],
        "status=scheduled": [b["id"]],
        "status=delayed,dlq": [dead, b["id"]],
        "idempotency_key=k": [a["id"]],
        "tag=red": [a["id"]],
        "priority=2": [a["id"]],
        "error=disk": [dead],
        "reason=rejected": [dead],
        f"created_before={a['created_at']}": [],
        "finished_after=2020-01-01T00:00:00Z": [dead],
    }.items():
        assert await ids(caller, query) == expected, query
    assert (await caller.get("/v1/jobs/count?status=queued")).json() == {"count": 1, "capped": False}
    assert (await caller.get("/v1/jobs/count?cap=2")).json() == {"count": 2, "capped": True}


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=501",
        "limit=x",
        "order=died",
        "order=id;DROP",
        "status=nope",
        "status=",
        "queue=a%20b",
        "include=payload,everything",
        "created_after=2026-01-01",
        "created_after=2026-01-01T00:00:00",
        "sort=id",
        "limit=1&limit=2",
        "error=",
        "worker_id=%00",
    ],
)
@on_memory
async def test_what_a_list_may_not_be_asked(stage: Stage, query: str) -> None:
    assert (await (await stage.caller()).get(f"/v1/jobs?{query}")).status_code == 422


@on_memory
async def test_payloads_in_lists_are_for_those_who_may_see_them(stage: Stage) -> None:
    caller, reader = await stage.caller(), await stage.caller(Scope.READ)
    await caller.job(payload={"n": 1})
    whole = (await caller.get("/v1/jobs?include=payload,result")).json()["jobs"][0]
    assert (whole["payload"], whole["result"]) == ({"n": 1}, None)
    part = (await reader.get("/v1/jobs?include=payload,result")).json()["jobs"][0]
    assert "payload" not in part
    assert "result" not in part


@on_every_engine
async def test_several_jobs_are_looked_up_at_once(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.job()
    found = (await caller.post("/v1/jobs/lookup", {"ids": [MISSING, made["id"]]})).json()["jobs"]
    assert found[0] is None
    assert found[1]["id"] == made["id"]
    for bad, status in (([], 422), ([MISSING] * 1_001, 413), ([MISSING.upper()], 422), ([5], 422)):
        assert (await caller.post("/v1/jobs/lookup", {"ids": bad})).status_code == status


# ── One job ──


@on_every_engine
async def test_jobs_are_changed_and_it_is_written_down(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.job()
    moved = await caller.post(
        f"/v1/jobs/{made['id']}/reschedule", {"delay": 60, "priority": "low", "queue": "slow"}
    )
    assert (moved.json()["status"], moved.json()["priority"], moved.json()["queue"]) == ("scheduled", 7, "slow")
    cancelled = await caller.post(f"/v1/jobs/{made['id']}/cancel", {"reason": "not needed"})
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    again = await caller.post(f"/v1/jobs/{made['id']}/cancel")
    assert (again.status_code, again.json()["code"], again.json()["job_status"]) == (409, "terminal", "cancelled")
    retried = await caller.post(f"/v1/jobs/{made['id']}/retry")
    assert (retried.status_code, retried.json()["status"]) == (200, "queued")
    wrong = await caller.post(f"/v1/jobs/{made['id']}/retry", {})
    assert (wrong.status_code, wrong.json()["code"]) == (409, "invalid_state")
    await caller.leased("slow")
    held = await caller.ask("DELETE", f"/v1/jobs/{made['id']}")
    assert (held.status_code, held.json()["code"]) == (409, "invalid_state")
    other = await caller.job()
    gone = await caller.ask("DELETE", f"/v1/jobs/{other['id']}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert await actions(caller) == [
        ("job.reschedule", made["id"], None),
        ("job.cancel", f"{made['id']}: not needed", None),
        ("job.retry", made["id"], None),
        ("job.delete", other["id"], None),
    ]
    (entry, *_) = (await caller.get("/v1/audit?action=job.retry")).json()["entries"]
    assert entry["actor"].startswith("a test (")
    assert entry["request_id"] == retried.headers["x-request-id"]
    retry_event = (await caller.get(f"/v1/jobs/{made['id']}/events")).json()["events"][-2]
    assert retry_event["data"]["by"] == entry["actor"]


@on_memory
async def test_what_needs_an_operator(stage: Stage) -> None:
    producer = await stage.caller(Scope.ENQUEUE)
    made = await producer.job()
    for verb in ("retry", "reschedule"):
        assert (await producer.post(f"/v1/jobs/{made['id']}/{verb}", {"delay": 1})).status_code == 403
    assert (await producer.ask("DELETE", f"/v1/jobs/{made['id']}")).status_code == 403
    assert (await producer.get("/v1/jobs")).status_code == 403
    assert (await producer.post(f"/v1/jobs/{made['id']}/cancel")).status_code == 200


@on_every_engine
async def test_a_foreign_job_is_a_missing_one(stage: Stage) -> None:
    caller, other = await stage.caller(), await stage.caller(tenant="other")
    made = await caller.job()
    calls: list[tuple[str, str, Any]] = [
        *(("GET", f"/{part}", None) for part in ("detail", "explain", "events", "logs", "place", "stream")),
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/cancel", {}),
        ("POST", "/retry", {}),
        ("POST", "/reschedule", {"delay": 1}),
    ]
    for method, part, body in calls:
        foreign = await other.ask(method, f"/v1/jobs/{made['id']}{part}", body, X_Request_Id="r")
        missing = await other.ask(method, f"/v1/jobs/{MISSING}{part}", body, X_Request_Id="r")
        assert (foreign.status_code, foreign.content) == (404, missing.content), part
    assert (await caller.get(f"/v1/jobs/{made['id']}")).json()["status"] == "queued"


@pytest.mark.parametrize(
    "id", ["nope", "{" + MISSING + "}", f"urn:uuid:{MISSING}", MISSING.upper(), MISSING.replace("-", "")]
)
@on_memory
async def test_an_id_has_one_form(stage: Stage, id: str) -> None:
    answer = await (await stage.caller()).get(f"/v1/jobs/{id}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_id")


@on_every_engine
async def test_several_jobs_are_changed_with_an_answer_each(stage: Stage) -> None:
    caller = await stage.caller()
    one, two = (await caller.job())["id"], (await caller.job())["id"]
    results = (await caller.post("/v1/jobs/cancel", {"ids": [one, MISSING, two]})).json()["results"]
    assert [(each["ok"], each.get("status")) for each in results] == [
        (True, "cancelled"),
        (False, None),
        (True, "cancelled"),
    ]
    assert results[1]["error"]["code"] == "not_found"
    results = (await caller.post("/v1/jobs/retry", {"ids": [one], "by": "me"})).json()["results"]
    assert (results[0]["before"], results[0]["status"]) == ("cancelled", "queued")
    results = (await caller.post("/v1/jobs/delete", {"ids": [one]})).json()["results"]
    assert (results[0]["before"], results[0]["status"]) == ("queued", None)
    body = {"filter": {"status": "cancelled"}, "dry_run": True}
    assert (await caller.post("/v1/jobs/retry-where", body)).json() == {
        "matched": 1,
        "retried": [],
        "more": False,
        "dry_run": True,
    }
    body["dry_run"] = False
    assert (await caller.post("/v1/jobs/retry-where", body)).json()["retried"] == [two]


@on_memory
async def test_why_a_job_is_not_running(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.job(delay=60)
    told = (await caller.get(f"/v1/jobs/{made['id']}/explain")).json()
    assert (told["status"], told["reasons"][0]["code"], told["expected_start"]) == (
        "scheduled",
        "not_due",
        made["run_at"],
    )
    assert told["reasons"][0]["until"] == made["run_at"]
    first, second = await caller.job(), await caller.job()
    told = (await caller.get(f"/v1/jobs/{second['id']}/explain")).json()
    assert told["ahead"] == 1
    assert "no_worker" in [reason["code"] for reason in told["reasons"]]
    assert (await caller.get(f"/v1/jobs/{first['id']}/place")).json() == {"ahead": 0, "capped": False}


# ── Queues ──


@on_every_engine
async def test_queues_are_seen_paused_and_set(stage: Stage) -> None:
    caller = await stage.caller()
    await caller.job(queue="mail")
    (queue,) = (await caller.get("/v1/queues")).json()["queues"]
    assert (queue["queue"], queue["paused"], queue["counts"]["queued"]) == ("mail", False, 1)
    assert queue["enqueued_per_minute"] >= 1
    (same,) = (await caller.get("/v1/dashboard/queues")).json()["queues"]
    assert (same.keys(), same["counts"]) == (queue.keys(), queue["counts"])
    assert (await caller.post("/v1/queues/mail/pause")).json()["paused"] is True
    assert await caller.lease("mail") == []
    assert (await caller.post("/v1/queues/mail/resume", {})).json()["paused"] is False
    changed = await caller.ask("PATCH", "/v1/queues/mail", {"depth_limit": 5, "lease_seconds": 90})
    assert (changed.json()["depth_limit"], changed.json()["lease_seconds"]) == (5, 90)
    changed = await caller.ask("PATCH", "/v1/queues/mail", {"require_key": True, "lease_seconds": None})
    assert [changed.json()[name] for name in ("depth_limit", "require_key", "lease_seconds")] == [5, True, None]
    empty = (await caller.get("/v1/queues/nobody.knows")).json()
    assert (empty["counts"], empty["oldest_age_seconds"]) == ({}, None)
    assert (await caller.get("/v1/stats")).json()["counts"]["queued"] == 1
    scaling = (await caller.get("/v1/scaling/mail")).json()
    assert set(scaling) == {"queue", "backlog", "running", "oldest_age_seconds", "workers_wanted"}
    assert (scaling["backlog"], scaling["workers_wanted"]) == (1, 1)
    assert [action for action, _, _ in await actions(caller)] == [
        "queue.pause",
        "queue.resume",
        "queue.set",
        "queue.set",
    ]
    for wrong in ({"depth_limit": 0}, {"lease_seconds": 0}, {"paused": True}, {"require_key": 1}):
        assert (await caller.ask("PATCH", "/v1/queues/mail", wrong)).status_code == 422


# ── Dead letters ──


@on_every_engine
async def test_the_dead_are_listed_grouped_and_retried(stage: Stage) -> None:
    caller = await stage.caller()
    first = await caller.dead("no route to 10.0.0.1", queue="a")
    second = await caller.dead("no route to 10.0.0.2", queue="a")
    third = await caller.dead("disk full", queue="b")
    alive = (await caller.job())["id"]
    listed = (await caller.get("/v1/dlq?limit=2")).json()
    assert [job["id"] for job in listed["jobs"]] == [third, second]
    rest = (await caller.get(f"/v1/dlq?limit=2&cursor={listed['next_cursor']}")).json()
    assert [job["id"] for job in rest["jobs"]] == [first]
    assert [job["id"] for job in (await caller.get("/v1/dlq?queue=b&reason=rejected")).json()["jobs"]] == [third]
    groups = (await caller.get("/v1/dlq/groups?queue=a")).json()["groups"]
    assert [(group["count"], group["sample_id"]) for group in groups] == [(2, second)]
    fingerprint = groups[0]["fingerprint"]

    async def retry(**body: Any) -> Any:
        return (await caller.post("/v1/dlq/retry", body)).json()

    dry = await retry(filter={"fingerprint": fingerprint}, dry_run=True)
    assert dry == {"matched": 2, "retried": 0, "skipped": [], "more": False, "dry_run": True}
    assert (await retry(filter={"fingerprint": fingerprint}, limit=1))["more"] is True
    some = await retry(ids=[first, second, alive, MISSING])
    assert some["retried"] == 1
    assert {one["id"]: one["code"] for one in some["skipped"] if one["id"] in (alive, MISSING)} == {
        alive: "invalid_state",
        MISSING: "not_found",
    }
    assert (await retry(id=third))["retried"] == 1
    assert (await caller.get("/v1/dlq")).json()["jobs"] == []
    noted = [(action, count) for action, _, count in await actions(caller)]
    assert noted == [("dlq.retry", 1), ("dlq.retry", None), ("dlq.retry", None)], "a number, or each job"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_field"),
        ({"id": MISSING, "filter": {}}, "conflicting_fields"),
        ({"ids": []}, "invalid_field"),
        ({"ids": ["x"]}, "invalid_id"),
        ({"filter": {"fingerprint": "x"}}, "invalid_field"),
        ({"filter": {"status": "dead"}}, "unknown_field"),
        ({"filter": {}, "limit": 10_001}, "invalid_field"),
        ({"filter": {"dead_after": "2026-01-01"}}, "invalid_time"),
    ],
)
@on_memory
async def test_what_a_retry_of_the_dead_may_not_say(stage: Stage, body: Any, code: str) -> None:
    answer = await (await stage.caller()).post("/v1/dlq/retry", body)
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text


# ── Schedules ──

NIGHTLY = {"name": "nightly", "cron": "0 3 * * *", "type": "report", "payload": {"n": 1}}


@on_every_engine
async def test_the_life_of_a_schedule(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.post("/v1/schedules", NIGHTLY)
    assert made.status_code == 201
    assert made.headers["location"] == "/v1/schedules/nightly"
    spec = made.json()
    assert (spec["source"], spec["missed"], spec["tz"], spec["payload"]) == ("api", "once", "UTC", {"n": 1})
    assert (await caller.post("/v1/schedules", NIGHTLY)).json()["code"] == "name_taken"
    assert (await caller.get("/v1/schedules")).json()["schedules"] == [spec]
    assert (await caller.get("/v1/schedules/nightly")).json() == spec
    changed = await caller.ask(
        "PATCH", "/v1/schedules/nightly", {"cron": "0 4 * * *", "priority": "high", "paused": True}
    )
    assert [changed.json()[name] for name in ("cron", "priority", "paused", "type")] == [
        "0 4 * * *",
        3,
        True,
        "report",
    ]
    assert changed.json()["payload"] == {"n": 1}
    assert (await caller.post("/v1/schedules/nightly/resume")).json()["paused"] is False
    assert (await caller.post("/v1/schedules/nightly/pause")).json()["paused"] is True
    run = await caller.post("/v1/schedules/nightly/run")
    assert (run.status_code, run.json()["type"], run.json()["priority"]) == (201, "report", 3)
    assert (await caller.ask("DELETE", "/v1/schedules/nightly")).status_code == 204
    for method, part in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/run")):
        assert (await caller.ask(method, f"/v1/schedules/nightly{part}")).json()["code"] == "not_found"
    assert [action.partition(".")[2] for action, _, _ in await actions(caller)] == [
        "create",
        "change",
        "resume",
        "pause",
        "run",
        "delete",
    ]


@on_memory
async def test_a_worker_declares_what_is_in_its_code(stage: Stage) -> None:
    worker, caller = await stage.caller(Scope.WORK, Scope.ENQUEUE), await stage.caller()
    stored = await worker.ask("PUT", "/v1/schedules/nightly", NIGHTLY)
    assert (stored.status_code, stored.json()["source"]) == (200, "code")
    # What an operator changed stays until the code's own definition changes.
    await caller.ask("PATCH", "/v1/schedules/nightly", {"cron": "0 5 * * *"})
    await worker.ask("PUT", "/v1/schedules/nightly", NIGHTLY)
    assert (await caller.get("/v1/schedules/nightly")).json()["cron"] == "0 5 * * *"
    assert (await worker.ask("PUT", "/v1/schedules/other", NIGHTLY)).json()["code"] == "conflicting_fields"
    assert (await worker.post("/v1/schedules", {**NIGHTLY, "name": "x"})).status_code == 403


@pytest.mark.parametrize(
    "wrong", [{"cron": "nope"}, {"tz": "Mars/Phobos"}, {"missed": "never"}, {"type": "a b"}, {"run_at": "x"}]
)
@on_memory
async def test_what_a_schedule_may_not_say(stage: Stage, wrong: dict[str, Any]) -> None:
    caller = await stage.caller()
    assert (await caller.post("/v1/schedules", {**NIGHTLY, **wrong})).status_code == 422
    await caller.post("/v1/schedules", NIGHTLY)
    assert (await caller.ask("PATCH", "/v1/schedules/nightly", wrong)).status_code == 422
    assert (await caller.get("/v1/schedules/nightly")).json()["cron"] == "0 3 * * *"


# ── Workers ──


@on_every_engine
async def test_who_lives_and_what_they_run(stage: Stage) -> None:
    caller = await stage.caller()
    report = {
        "host": "h",
        "pid": 7,
        "version": "1",
        "queues": ["default"],
        "types": ["work"],
        "slots": 4,
        "running": 1,
    }
    assert (await caller.ask("PUT", "/v1/workers/w1", report)).json() == {"quiet": False, "stop": False}
    await caller.job()
    id, _ = await caller.leased()
    (worker,) = (await caller.get("/v1/workers")).json()["workers"]
    assert {name: worker[name] for name in report} == report
    assert (worker["worker_id"], worker["running_jobs"], worker["state"]) == ("w1", [id], "running")
    assert worker["last_seen_at"] >= worker["started_at"]
    assert (await caller.ask("DELETE", "/v1/workers/w1")).status_code == 204
    assert (await caller.get("/v1/workers")).json() == {"workers": []}
    assert (await caller.ask("PUT", f"/v1/workers/{'x' * 129}", report)).status_code == 422


# ── Keys and tenants ──


@on_every_engine
async def test_keys_are_made_exchanged_and_revoked(stage: Stage) -> None:
    caller = await stage.caller(Scope.ADMIN)
    made = await caller.post("/v1/keys", {"name": "a producer"})
    assert made.status_code == 201
    key = made.json()
    assert (key["scopes"], key["expires_at"]) == (["enqueue"], None)
    assert key["token"].startswith("rw_live_")
    producer = Caller(stage.http, stage.engine, key["token"], "default")
    assert (await producer.post("/v1/jobs", {"type": "a"})).status_code == 201
    rotated = (await caller.post(f"/v1/keys/{key['id']}/rotate", {"overlap_seconds": 60})).json()
    assert rotated["id"] != key["id"]
    listed = (await caller.get("/v1/keys")).json()["keys"]
    assert {key["id"], rotated["id"]} <= {one["id"] for one in listed}
    assert not any({"token", "digest"} & set(one) for one in listed)
    assert (await caller.ask("DELETE", f"/v1/keys/{rotated['id']}")).status_code == 204
    missing = await caller.ask("DELETE", "/v1/keys/nope", X_Request_Id="r")
    strange = await caller.ask("DELETE", "/v1/keys/n%20o", X_Request_Id="r")
    assert (missing.status_code, missing.content) == (404, strange.content)
    assert [action for action, _, _ in await actions(caller)] == ["key.create", "key.rotate", "key.revoke"]


@on_memory
async def test_nobody_gives_what_is_not_theirs_to_give(stage: Stage) -> None:
    admin = await stage.caller(Scope.ADMIN)
    await stage.caller(tenant="other")
    refused = await admin.post("/v1/keys", {"name": "x", "scopes": ["tenant-admin"]})
    assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")
    assert (await admin.get("/v1/keys?tenant=other")).status_code == 403
    assert (await admin.get("/v1/tenants")).status_code == 403
    care = await stage.caller(Scope.TENANT_ADMIN)
    strong = (await care.post("/v1/keys", {"name": "x", "scopes": ["tenant-admin"]})).json()
    assert (await admin.post(f"/v1/keys/{strong['id']}/rotate")).status_code == 403
    made = await care.post("/v1/keys?tenant=other", {"name": "theirs", "scopes": ["admin", "enqueue"]})
    theirs = Caller(stage.http, stage.engine, made.json()["token"], "other")
    assert (await theirs.job())["queue"] == "default"
    assert (await admin.get("/v1/jobs")).json()["jobs"] == []
    assert (await care.get("/v1/keys?tenant=nobody")).json()["code"] == "not_found"
    assert (await care.get("/v1/jobs")).status_code == 403


@on_every_engine
async def test_tenants_are_made_and_changed(stage: Stage) -> None:
    caller = await stage.caller()
    made = await caller.post("/v1/tenants", {"name": "Acme Ltd", "email": "a@b.c", "limits": {"max_queued": 5}})
    assert made.status_code == 201
    tenant = made.json()
    assert made.headers["location"] == f"/v1/tenants/{tenant['id']}"
    assert (tenant["is_active"], tenant["limits"]["max_queued"], tenant["limits"]["burst"]) == (True, 5, None)
    assert (await caller.post("/v1/tenants", {"name": "Acme Ltd"})).json()["code"] == "name_taken"
    path = f"/v1/tenants/{tenant['id']}"
    changed = (await caller.ask("PATCH", path, {"email": None, "is_active": False, "limits": {"burst": 2}})).json()
    assert [changed[name] for name in ("name", "email", "is_active")] == ["Acme Ltd", None, False]
    assert (changed["limits"]["max_queued"], changed["limits"]["burst"]) == (None, 2)
    assert (await caller.get(path)).json() == changed
    assert len((await caller.get("/v1/tenants")).json()["tenants"]) == 2
    for method in ("GET", "PATCH"):
        answer = await caller.ask(method, "/v1/tenants/nope", {} if method == "PATCH" else None)
        assert answer.json()["code"] == "not_found"
    assert (await caller.post("/v1/tenants", {"name": "x", "limits": {"max_queued": 0}})).status_code == 422


# ── The log of actions ──


@on_every_engine
async def test_the_log_of_actions_is_walked_by_cursor(stage: Stage) -> None:
    caller, other = await stage.caller(), await stage.caller(tenant="other")
    for n in range(5):
        await caller.post(f"/v1/queues/q{n}/pause")
    first = (await caller.get("/v1/audit?limit=3")).json()
    assert [entry["target"] for entry in first["entries"]] == ["q4", "q3", "q2"]
    second = (await caller.get(f"/v1/audit?limit=3&cursor={first['next_cursor']}")).json()
    assert [entry["target"] for entry in second["entries"]] == ["q1", "q0"]
    assert second["next_cursor"] is None
    stolen = await other.get(f"/v1/audit?limit=3&cursor={first['next_cursor']}")
    assert stolen.json()["code"] == "bad_cursor"
    assert (await other.get("/v1/audit")).json()["entries"] == []
    assert (await caller.get("/v1/audit?before=2020-01-01T00:00:00Z")).json()["entries"] == []
    assert (await caller.get("/v1/audit?action=nope&actor=nobody")).json()["entries"] == []
    assert (await (await stage.caller(Scope.READ)).get("/v1/audit")).status_code == 403


@on_memory
async def test_every_route_of_a_tenant_names_a_scope(stage: Stage) -> None:
    for route in stage.api.table.routes:
        assert route.scopes or route.path in ("/health", "/ready", "/openapi.json"), route.path
