"""Many at once: one job per key however many ask, whole batches or none, and one stale ticket spoils no other."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.api.corpus import ALL_SCOPES
from tests.api.served import Answer, Served, a_store, all_at_once, request_bytes, server

_tenants = count()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with server(a_store(request, request.param, folder), folder, "--no-upkeep") as running:
        yield running


@pytest.fixture
def tenant(served: Served) -> tuple[str, str]:
    """A tenant of this test's own, and a key that may do everything in it."""
    name = f"races-{next(_tenants)}"
    return name, served.key(*ALL_SCOPES, tenant=name)


def posts(token: str, bodies: list[Any], path: str = "/v1/jobs", **headers: str) -> list[bytes]:
    return [
        request_bytes("POST", path, json.dumps(body).encode(), token=token, headers=headers) for body in bodies
    ]


def at_once(served: Served, requests: list[bytes]) -> list[Answer]:
    return asyncio.run(all_at_once(served.port, requests))


@pytest.mark.parametrize("where", ["body", "header"])
def test_fifty_with_the_same_key_make_one_job(served: Served, tenant: tuple[str, str], where: str) -> None:
    name, token = tenant
    for round in range(5):
        key = f"key-{round}"
        if where == "body":
            sent = posts(token, [{"type": "a", "payload": round, "idempotency_key": key}] * 50)
        else:
            sent = posts(token, [{"type": "a", "payload": round}] * 50, **{"Idempotency-Key": key})
        answers = at_once(served, sent)
        assert Counter(answer.status for answer in answers) == {201: 1, 200: 49}
        assert len({answer.json["id"] for answer in answers}) == 1
        for answer in answers:
            first = answer.status == 201
            assert answer.json["deduplicated"] is not first
            assert answer.headers.get("idempotency-replayed") == (None if first else "true")
            assert answer.headers.get("location") == (f"/v1/jobs/{answer.json['id']}" if first else None)
    jobs = served.ask("GET", "/v1/jobs?limit=500", token=token).json["jobs"]
    assert len(jobs) == 5
    assert all(len(rows) == 5 for table, rows in served.holds(name).items() if table in ("jobs", "events", "keys"))


def test_the_same_key_with_other_bodies_makes_one_job_and_refuses_the_others(
    served: Served, tenant: tuple[str, str]
) -> None:
    _, token = tenant
    answers = at_once(
        served, posts(token, [{"type": "a", "payload": n, "idempotency_key": "k"} for n in range(50)])
    )
    assert Counter((answer.status, answer.code) for answer in answers) == {
        (201, None): 1,
        (422, "idempotency_mismatch"): 49,
    }
    (winner,) = [answer for answer in answers if answer.status == 201]
    (job,) = served.ask("GET", "/v1/jobs?include=payload", token=token).json["jobs"]
    assert (job["id"], job["payload"]) == (winner.json["id"], winner.json["payload"])


def test_the_same_key_of_two_tenants_is_two_keys(served: Served, tenant: tuple[str, str]) -> None:
    _, token = tenant
    other = served.key(*ALL_SCOPES, tenant=f"races-{next(_tenants)}")
    body = {"type": "a", "idempotency_key": "k"}
    answers = at_once(served, posts(token, [body] * 25) + posts(other, [body] * 25))
    for part in (answers[:25], answers[25:]):
        assert Counter(answer.status for answer in part) == {201: 1, 200: 24}
        assert len({answer.json["id"] for answer in part}) == 1
    assert answers[0].json["id"] != answers[-1].json["id"]


def test_batches_that_share_keys_agree_on_every_job(served: Served, tenant: tuple[str, str]) -> None:
    """The same twenty keys in twenty batches, each in another order: nobody waits for ever, nothing is doubled."""
    _, token = tenant
    jobs = [{"type": "a", "payload": n, "idempotency_key": f"k{n}"} for n in range(20)]
    batches = [jobs[turn:] + jobs[:turn] for turn in range(20)]
    answers = at_once(served, posts(token, [{"jobs": batch} for batch in batches], "/v1/jobs/batch"))
    made: Counter[str] = Counter()
    ids: dict[int, set[str]] = {}
    for batch, answer in zip(batches, answers, strict=True):
        assert answer.status == 201, answer
        for job, told in zip(batch, answer.json["jobs"], strict=True):
            ids.setdefault(job["payload"], set()).add(told["id"])
            made[told["id"]] += not told["deduplicated"]
    assert {len(each) for each in ids.values()} == {1}
    assert len(made) == 20
    assert set(made.values()) == {1}


def test_a_batch_with_a_bad_item_stores_none_while_good_ones_pass(served: Served, tenant: tuple[str, str]) -> None:
    _, token = tenant
    good = {"jobs": [{"type": "good"}] * 20}
    bad = {"jobs": [{"type": "bad" if n != 7 else "b a d"} for n in range(20)]}
    answers = at_once(served, posts(token, [good, bad] * 10, "/v1/jobs/batch"))
    for index, answer in enumerate(answers):
        if index % 2:
            assert (answer.status, answer.code, answer.json["index"]) == (422, "invalid_field", 7)
        else:
            assert answer.status == 201
    assert served.ask("GET", "/v1/jobs/count", token=token).json["count"] == 200
    assert served.ask("GET", "/v1/jobs/count?type=bad", token=token).json["count"] == 0


def test_a_batch_whose_key_clashes_in_item_7_stores_none(served: Served, tenant: tuple[str, str]) -> None:
    name, token = tenant
    served.ask("POST", "/v1/jobs", {"type": "a", "payload": 0, "idempotency_key": "taken"}, token=token)
    before = served.holds(name)
    jobs = [{"type": "a", "payload": n, "idempotency_key": "taken" if n == 7 else f"k{n}"} for n in range(20)]
    answer = served.ask("POST", "/v1/jobs/batch", {"jobs": jobs}, token=token)
    assert (answer.status, answer.code, answer.json["index"]) == (422, "idempotency_mismatch", 7)
    assert served.holds(name) == before


def test_one_stale_ticket_in_a_batch_spoils_no_other(served: Served, tenant: tuple[str, str]) -> None:
    """E28: of 100 acks with one stale token 99 are written and one is answered 409."""
    _, token = tenant
    for stale in (0, 41, 99):
        served.ask("POST", "/v1/jobs/batch", {"jobs": [{"type": "a"}] * 100}, token=token)
        leases = served.ask(
            "POST", "/v1/lease", {"queues": ["default"], "worker_id": "w", "count": 100}, token=token
        )
        items = [
            {"id": lease["job"]["id"], "lease_token": lease["lease_token"], "result": n}
            for n, lease in enumerate(leases.json["leases"])
        ]
        assert len(items) == 100
        items[stale]["lease_token"] = items[stale - 1]["lease_token"]
        answer = served.ask("POST", "/v1/leases/ack", {"items": items}, token=token)
        assert answer.status == 200
        results = answer.json["results"]
        assert [result["id"] for result in results] == [item["id"] for item in items]
        refused = [n for n, result in enumerate(results) if not result["ok"]]
        assert refused == [stale]
        assert (results[stale]["error"]["status"], results[stale]["error"]["code"]) == (409, "lease_lost")
        assert {result["status"] for n, result in enumerate(results) if n != stale} == {"succeeded"}
        job = served.ask("GET", f"/v1/jobs/{items[stale]['id']}", token=token).json
        assert (job["status"], job["result"]) == ("running", None)


def test_of_many_acks_with_one_ticket_one_counts(served: Served, tenant: tuple[str, str]) -> None:
    _, token = tenant
    served.ask("POST", "/v1/jobs", {"type": "a"}, token=token)
    (lease,) = served.ask("POST", "/v1/queues/default/lease", {"worker_id": "w"}, token=token).json["leases"]
    id, ticket = lease["job"]["id"], lease["lease_token"]
    answers = at_once(served, posts(token, [{"lease_token": ticket, "result": 1}] * 30, f"/v1/jobs/{id}/ack"))
    assert {answer.status for answer in answers} == {200}
    assert Counter(answer.json.get("already_acked", False) for answer in answers) == {False: 1, True: 29}
    events = served.ask("GET", f"/v1/jobs/{id}/events", token=token).json["events"]
    assert [event["event"] for event in events] == ["job.enqueued", "job.started", "job.completed"]


def test_an_ack_and_a_cancel_at_once_have_one_winner(served: Served, tenant: tuple[str, str]) -> None:
    _, token = tenant
    for _ in range(10):
        served.ask("POST", "/v1/jobs", {"type": "a"}, token=token)
        (lease,) = served.ask("POST", "/v1/queues/default/lease", {"worker_id": "w"}, token=token).json["leases"]
        id = lease["job"]["id"]
        ack, cancel = at_once(
            served,
            posts(token, [{"lease_token": lease["lease_token"]}], f"/v1/jobs/{id}/ack")
            + posts(token, [{}], f"/v1/jobs/{id}/cancel"),
        )
        job = served.ask("GET", f"/v1/jobs/{id}", token=token).json
        if ack.status == 200:
            assert (cancel.status, cancel.code, job["status"]) == (409, "terminal", "succeeded")
        else:
            assert (ack.status, cancel.status, job["status"]) == (409, 202, "cancelled")


def test_pollers_of_one_queue_share_its_jobs_without_doubles(served: Served, tenant: tuple[str, str]) -> None:
    """Thirty wait, ten jobs come: ten get one each, and no job is handed out twice."""
    _, token = tenant

    async def race() -> list[Answer]:
        polls = asyncio.create_task(
            all_at_once(served.port, posts(token, [{"worker_id": "w", "wait": 3}] * 30, "/v1/queues/race/lease"))
        )
        jobs = [{"type": "a", "queue": "race"} for _ in range(10)]
        await all_at_once(served.port, posts(token, jobs))
        return await polls

    answers = asyncio.run(race())
    assert Counter(answer.status for answer in answers) == {200: 10, 204: 20}
    got = [lease["job"]["id"] for answer in answers if answer.status == 200 for lease in answer.json["leases"]]
    assert len(set(got)) == len(got) == 10
