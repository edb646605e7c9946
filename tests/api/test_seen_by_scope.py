"""What each scope sees: payloads and results only with `read:payload`, tickets only whoever leased (API3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from ropeway.api.routes import ROUTES
from ropeway.core.access import Scope
from tests.api.corpus import ALL_SCOPES
from tests.api.served import Served, server, sqlite_url

PAYLOAD, RESULT = "the-canary-in-the-payload", "the-canary-in-the-result"
#: Who may see payloads and results: by name, or because an operator may read all of its tenant.
SEES = {Scope.READ_PAYLOAD, Scope.ADMIN}


class World(NamedTuple):
    served: Served
    everything: str
    job: str
    lease_token: str
    owner: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("served")
    with server(sqlite_url(folder), folder, "--no-upkeep", env={"ROPEWAY_COMPAT": "1"}) as served:
        everything = served.key(*ALL_SCOPES)

        def do(method: str, path: str, body: Any = None) -> Any:
            answer = served.ask(method, path, body, token=everything)
            assert answer.status < 300, answer
            return answer.json

        owner = "0b1c1d6e-3c1f-4b5e-9a6d-0123456789ab"
        for _ in range(2):
            do("POST", "/v1/jobs", {"type": "a", "queue": "q", "payload": PAYLOAD})
        body = {"worker_id": "w", "count": 2, "owner": owner, "lease_seconds": 3_600}
        first, second = do("POST", "/v1/queues/q/lease", body)["leases"]
        id = first["job"]["id"]
        do("POST", f"/v1/jobs/{id}/ack", {"lease_token": first["lease_token"], "result": RESULT})
        do("POST", "/v1/schedules", {"name": "s", "cron": "0 3 * * *", "type": "a", "payload": PAYLOAD})
        yield World(served, everything, id, second["lease_token"], owner)


def paths(world: World) -> list[str]:
    """Every GET that does not go on for ever, with all that it may be asked for."""
    names = {"id": world.job, "queue": "q", "name": "s", "key_id": "x", "tenant_id": "default", "worker_id": "w"}
    found = []
    for route in ROUTES:
        if route.method == "GET" and not route.path.endswith("stream"):
            path = route.path
            for name, value in names.items():
                path = path.replace(f"{{{name}}}", value)
            found.append(path)
    return [
        *found,
        "/v1/jobs?include=payload,result",
        "/v1/jobs?include=payload",
        "/v1/dlq?include=payload,result",
    ]


@pytest.mark.parametrize("scope", sorted(set(Scope)))
def test_payloads_and_results_are_seen_by_those_who_may(world: World, scope: Scope) -> None:
    token = world.served.key(scope, "read") if scope is Scope.READ_PAYLOAD else world.served.key(scope)
    seen = set()
    for path in paths(world):
        answer = world.served.ask("GET", path, token=token, headers={"Accept": "application/json"})
        assert answer.status < 500
        seen |= {(path, canary) for canary in (PAYLOAD, RESULT) if canary.encode() in answer.body}
    lookup = world.served.ask("POST", "/v1/jobs/lookup", {"ids": [world.job]}, token=token)
    seen |= {("lookup", canary) for canary in (PAYLOAD, RESULT) if canary.encode() in lookup.body}
    if scope in SEES:
        assert {canary for _, canary in seen} == {PAYLOAD, RESULT}
    elif scope is Scope.WORK:
        # A worker is handed payloads to work on; through it a worker's program asks for the results of its jobs.
        assert {place for place, _ in seen} <= {"lookup"}
    else:
        assert not seen


def test_what_a_key_may_not_see_is_absent_not_null(world: World) -> None:
    job = world.served.ask("GET", f"/v1/jobs/{world.job}", token=world.served.key("read")).json
    assert not {"payload", "result"} & job.keys()
    assert job["status"] == "succeeded"


def test_tickets_and_owners_are_seen_by_nobody_else(world: World) -> None:
    for path in paths(world):
        answer = world.served.ask("GET", path, token=world.everything, headers={"Accept": "application/json"})
        assert world.lease_token.encode() not in answer.body, path
        assert world.owner.encode() not in answer.body, path


def test_a_producer_cannot_read_another_s_payload_by_way_of_a_unique_key(world: World) -> None:
    """`unique` answers with the job that is there, whatever the body: that job may be somebody else's."""
    unique = {"by": "key", "key": "one-at-a-time"}
    body = {"type": "a", "queue": "unique", "unique": unique}
    world.served.ask("POST", "/v1/jobs", {**body, "payload": PAYLOAD}, token=world.everything)
    curious = world.served.ask("POST", "/v1/jobs", {**body, "payload": 1}, token=world.served.key("enqueue"))
    assert (curious.status, curious.json["deduplicated"]) == (200, True)
    assert PAYLOAD.encode() not in curious.body
    seer = world.served.key("enqueue", "read:payload")
    assert PAYLOAD.encode() in world.served.ask("POST", "/v1/jobs", {**body, "payload": 1}, token=seer).body


def test_a_producer_sees_what_it_sent_itself(world: World) -> None:
    token = world.served.key("enqueue")
    body = {"type": "a", "queue": "own", "payload": PAYLOAD, "idempotency_key": "own"}
    for status in (201, 200):
        answer = world.served.ask("POST", "/v1/jobs", body, token=token)
        assert answer.status == status
        assert answer.json["payload"] == PAYLOAD
    assert "payload" not in world.served.ask("GET", f"/v1/jobs/{answer.json['id']}", token=token).json
