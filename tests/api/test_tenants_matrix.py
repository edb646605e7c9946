"""Every route, every method, every scope, two tenants: what is another's answers as what is not there (E31)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from ropeway.api.routes import ROUTES
from ropeway.api.routing import Route
from ropeway.core.access import Scope
from tests.api.corpus import ALL_SCOPES
from tests.api.served import Answer, Served, server, sqlite_url

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
#: What may be asked without a key, and nothing else.
PUBLIC = {("GET", "/health"), ("GET", "/ready"), ("GET", "/openapi.json")}
#: Whoever administers tenants sees all of them and their keys: that is the scope.
ACROSS_TENANTS = re.compile(r"/v1/(tenants|keys)(/|\Z)")
#: An operator of a tenant may read all of it. Nothing else implies anything.
#: A place in a list is hidden under bytes that are never the same twice: all that can be seen of it is its length.
PLACE = re.compile(rb'(?<="next_after":")[\w-]+')
IMPLIED = {Scope.ADMIN: (Scope.READ, Scope.READ_PAYLOAD), Scope.READ_PAYLOAD: (Scope.READ,)}
#: The canary in everything that is the other tenant's.
THEIRS = "belongs-to-the-other-tenant"


class Names(NamedTuple):
    """What a request may name; all of it the other tenant's, or all of it made up."""

    job: str
    token: str
    queue: str
    schedule: str
    worker: str
    key: str
    tenant: str
    owner: str

    def fill(self, path: str) -> str:
        parts = {
            "id": self.job,
            "queue": self.queue,
            "queue_name": self.queue,
            "name": self.schedule,
            "worker_id": self.worker,
            "key_id": self.key,
            "tenant_id": self.tenant,
            "verb": "ack",
        }
        return re.sub(r"{(\w+)}", lambda found: parts[found[1]], path)


class World(NamedTuple):
    served: Served
    theirs: Names
    nobodys: Names
    #: Tokens of the tenant that asks: one per scope.
    keys: Mapping[Scope, str]
    everything: str
    #: Other jobs of the tenant that does not ask, by status.
    jobs: Mapping[str, str]
    cursor: str
    position: str
    ticket: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("served")
    with server(sqlite_url(folder), folder, "--no-upkeep", env={"ROPEWAY_COMPAT": "1"}) as served:
        yield _settle_two_tenants(served)


def _settle_two_tenants(served: Served) -> World:
    keys = {scope: served.key(scope, tenant="asks") for scope in Scope}
    everything = served.key(*ALL_SCOPES, tenant="asks")
    theirs = served.key(*ALL_SCOPES, tenant="theirs")

    def do(method: str, path: str, body: Any = None) -> Any:
        answer = served.ask(method, path, body, token=theirs)
        assert answer.status in (200, 201, 202, 204), (method, path, answer)
        return answer.json if answer.body else None

    def enqueue(**fields: Any) -> str:
        job = {
            "type": THEIRS,
            "queue": THEIRS,
            "payload": THEIRS,
            "idempotency_key": f"{THEIRS}-{uuid4()}",
            **fields,
        }
        return str(do("POST", "/v1/jobs", job)["id"])

    def lease() -> tuple[str, str]:
        body = {"worker_id": THEIRS, "owner": owner, "lease_seconds": 3_600}
        (got,) = do("POST", f"/v1/queues/{THEIRS}/lease", body)["leases"]
        return got["job"]["id"], got["lease_token"]

    owner = str(uuid4())
    jobs = {}
    enqueue()
    jobs["succeeded"], token = lease()
    do("POST", f"/v1/jobs/{jobs['succeeded']}/ack", {"lease_token": token, "result": THEIRS})
    enqueue()
    jobs["dead"], token = lease()
    do("POST", f"/v1/jobs/{jobs['dead']}/nack", {"lease_token": token, "error": THEIRS, "retry": False})
    jobs["cancelled"] = enqueue()
    do("POST", f"/v1/jobs/{jobs['cancelled']}/cancel", {})
    enqueue()
    jobs["running"], token = lease()
    jobs["queued"] = enqueue()
    jobs["scheduled"] = enqueue(delay=3_600)
    do("POST", "/v1/schedules", {"name": THEIRS, "cron": "0 3 * * *", "type": THEIRS, "payload": THEIRS})
    do("PUT", f"/v1/workers/{THEIRS}", {"host": THEIRS, "pid": 1, "version": "1"})
    do("PATCH", f"/v1/queues/{THEIRS}", {"depth_limit": 1_000})
    key = do("POST", "/v1/keys", {"name": THEIRS})["id"]
    return World(
        served,
        Names(jobs["running"], token, THEIRS, THEIRS, THEIRS, key, "theirs", owner),
        Names(str(uuid4()), "A" * 40, "nobody", "nobody", "nobody", "a" * 12, "nobody", str(uuid4())),
        keys,
        everything,
        jobs,
        do("GET", "/v1/jobs?limit=1")["next_cursor"],
        served.ask("GET", "/v1/events?limit=2", token=theirs, headers=ONE_PAGE).json["next_after"],
        do("POST", "/v1/streams/ticket", {})["ticket"],
    )


def routes() -> list[Route]:
    return list(ROUTES)


def with_names(path: str) -> bool:
    return "{" in path


def body_of(route: Route, names: Names) -> Any:
    """A body that the route accepts, so that what it answers is about the names."""
    last = route.path.rsplit("/", 1)[-1]
    token = {"lease_token": names.token}
    bodies: dict[str, Any] = {
        "ack": token,
        "nack": {**token, "error": "x"},
        "heartbeat": token,
        "snooze": {**token, "delay": 5},
        "release": token,
        "progress": {**token, "done": 1},
        "lose": token,
        "lease": {"worker_id": "w"},
        "reschedule": {"delay": 5},
        "rotate": {"overlap_seconds": 5},
        "{name}": {"name": names.schedule, "cron": "0 5 * * *", "type": "a"},
        "{worker_id}": {"host": "h", "pid": 1, "version": "1"},
        "{verb}": {"items": [{"id": names.job, **token}]},
    }
    if route.method == "PATCH":
        return {"{queue}": {"require_key": False}, "{name}": {"cron": "0 4 * * *"}, "{tenant_id}": {"name": "x"}}[
            last
        ]
    if route.method in ("GET", "DELETE"):
        return None
    return bodies.get(last, {})


#: A page, where there is a choice: a stream would not end.
ONE_PAGE = {"Accept": "application/json"}


def ask(world: World, route: Route, names: Names, token: str | None) -> Answer:
    """Ask a route about these names."""
    body = body_of(route, names)
    return world.served.ask(route.method, names.fill(route.path), body, token=token, headers=ONE_PAGE)


def label(route: Route) -> str:
    return f"{route.method} {route.path}"


# ── The table itself ──


def test_every_route_names_a_scope_or_is_public_on_purpose() -> None:
    unguarded = {(route.method, route.path) for route in routes() if not route.scopes}
    assert unguarded <= PUBLIC
    assert all(isinstance(scope, Scope) for route in routes() for scope in route.scopes)


def test_every_route_is_in_the_document_and_nothing_else(world: World) -> None:
    document = world.served.ask("GET", "/openapi.json").json
    documented = {
        (method.upper(), path)
        for path, item in document["paths"].items()
        for method in item
        if method != "parameters"
    }
    served = {(route.method, route.path) for route in routes() if not route.hidden}
    assert served <= documented
    assert documented - served <= PUBLIC | {("GET", "/metrics")}


def test_the_document_says_which_scopes_a_route_needs(world: World) -> None:
    document = world.served.ask("GET", "/openapi.json").json
    for route in routes():
        if route.hidden:
            continue
        operation = document["paths"][route.path][route.method.lower()]
        assert bool(operation.get("security", document["security"])) == bool(route.scopes), label(route)


# ── Keys ──


@pytest.mark.parametrize("route", routes(), ids=label)
def test_without_a_key_nothing_is_told_or_done(world: World, route: Route) -> None:
    for token in (None, "rw_live_nobody"):
        answers = [ask(world, route, names, token) for names in (world.theirs, world.nobodys)]
        if (route.method, route.path) in PUBLIC:
            assert {answer.status for answer in answers} == {200}
            continue
        assert {(answer.status, answer.code) for answer in answers} == {(401, "unauthenticated")}
        assert len({repr(answer.without_marks()) for answer in answers}) == 1


@pytest.mark.parametrize("route", routes(), ids=label)
def test_a_key_without_the_scope_is_refused(world: World, route: Route) -> None:
    if not route.scopes:
        pytest.skip("public")
    for scope in set(Scope):
        if {scope, *IMPLIED.get(scope, ())} & set(route.scopes):
            continue
        for names in (world.theirs, world.nobodys):
            answer = ask(world, route, names, world.keys[scope])
            assert (answer.status, answer.code) == (403, "missing_scope"), scope


# ── Names in paths ──


@pytest.mark.parametrize("route", [route for route in routes() if with_names(route.path)], ids=label)
def test_what_is_another_s_answers_as_what_is_not_there(world: World, route: Route) -> None:
    before = world.served.holds("theirs")
    for scope in route.scopes:
        if scope is Scope.TENANT_ADMIN and ACROSS_TENANTS.match(route.path):
            continue
        told = []
        for names in (world.theirs, world.nobodys):
            answer = ask(world, route, names, world.keys[scope])
            assert answer.status != 422, answer
            told.append(answer.without_marks(*names))
        assert told[0] == told[1], scope
        assert THEIRS.encode() not in told[0][2]
    assert world.served.holds("theirs") == before


@pytest.mark.parametrize("status", ["queued", "scheduled", "succeeded", "dead", "cancelled"])
@pytest.mark.parametrize("route", [route for route in routes() if "{id}" in route.path], ids=label)
def test_so_it_is_for_a_job_in_any_state(world: World, route: Route, status: str) -> None:
    before = world.served.holds("theirs")
    told = []
    for names in (world.theirs._replace(job=world.jobs[status]), world.nobodys):
        answer = ask(world, route, names, world.everything)
        assert 400 <= answer.status < 500
        told.append(answer.without_marks(*names))
    assert told[0] == told[1]
    assert world.served.holds("theirs") == before


@pytest.mark.parametrize("path", sorted({route.path for route in routes()}))
def test_a_method_that_a_path_lacks_is_refused_alike(world: World, path: str) -> None:
    known = {route.method for route in routes() if route.path == path}
    for method in set(METHODS) - known:
        answers = [
            world.served.ask(method, names.fill(path), {} if method not in ("GET", "DELETE") else None, token=key)
            for names in (world.theirs, world.nobodys)
            for key in (world.everything, None)
        ]
        assert {(answer.status, answer.code) for answer in answers} == {(405, "method_not_allowed")}
        assert {frozenset(answer.headers["allow"].replace(" ", "").split(",")) for answer in answers} >= {
            frozenset(known)
        } or all(known <= set(answer.headers["allow"].replace(" ", "").split(",")) for answer in answers)


# ── Names in bodies and queries ──


def _length(place: re.Match[bytes]) -> bytes:
    return b"%d characters" % len(place[0])


def test_names_in_bodies_and_queries_answer_alike(world: World) -> None:
    before = world.served.holds("theirs")

    def both(method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Ask with the other tenant's names and with made up ones; one of the two answers, which are the same."""
        told = []
        for names in (world.theirs, world.nobodys):
            filled = _filled(body, names)
            answer = world.served.ask(
                method, _filled(path, names), filled, token=world.everything, headers=dict(headers or {})
            )
            status, sent, text = answer.without_marks(*names)
            told.append((status, sent, PLACE.sub(_length, text)))
        assert told[0] == told[1], (method, path)
        assert THEIRS.encode() not in told[0][2]
        return answer

    item = {"id": "<job>", "lease_token": "<token>"}
    for verb, more in {
        "ack": {"result": 1},
        "nack": {"error": "x"},
        "heartbeat": {},
        "snooze": {"delay": 1},
        "release": {},
        "progress": {"done": 1},
        "lose": {},
    }.items():
        (result,) = both("POST", f"/v1/leases/{verb}", {"items": [{**item, **more}]}).json["results"]
        assert (result["ok"], result["error"]["code"]) == (False, "lease_lost")
    assert both("POST", "/v1/jobs/lookup", {"ids": ["<job>"]}).json == {"jobs": [None]}
    assert both("POST", "/v1/owners/heartbeat", {"owner": "<owner>"}).status == 204
    assert both("POST", "/v1/owners/other-grants", {"owner": "<owner>"}).json == {"grants": []}
    assert both("POST", "/v1/owners/end", {"owner": "<owner>"}).json == {"rescued": []}
    for choice in ({"id": "<job>"}, {"ids": ["<job>"]}, {"filter": {"queue": "<queue>"}}):
        for dry_run in (True, False):
            assert both("POST", "/v1/dlq/retry", {**choice, "dry_run": dry_run}).json["retried"] == 0
    for query in (
        "queue=<queue>",
        "worker_id=<worker>",
        "type=<queue>",
        "idempotency_key=<queue>",
        "error=<queue>",
    ):
        assert both("GET", f"/v1/jobs?{query}").json["jobs"] == []
        assert both("GET", f"/v1/jobs/count?{query}").json["count"] == 0
        assert both("GET", f"/v1/dlq?{query}").json["jobs"] == []
    assert both("GET", "/v1/dlq/groups?queue=<queue>").json["groups"] == []
    assert both("GET", "/v1/events?queue=<queue>", headers=ONE_PAGE).json["events"] == []
    assert both("GET", "/v1/audit?actor=<key>").json["entries"] == []
    assert both("POST", "/v1/lease", {"worker_id": "w", "queues": ["<queue>"]}).status == 204
    assert world.served.holds("theirs") == before


def _filled(value: Any, names: Names) -> Any:
    if isinstance(value, str):
        return re.sub(r"<(\w+)>", lambda found: getattr(names, found[1]), value)
    if isinstance(value, dict):
        return {key: _filled(inner, names) for key, inner in value.items()}
    return [_filled(inner, names) for inner in value] if isinstance(value, list) else value


def test_lists_and_sums_hold_nothing_of_another_s(world: World) -> None:
    for route in routes():
        if route.method != "GET" or with_names(route.path) or (route.method, route.path) in PUBLIC:
            continue
        if ACROSS_TENANTS.match(route.path):
            scopes: tuple[str, ...] = ("admin",)
        else:
            scopes = ALL_SCOPES
        # Not the one that asks: what it asked about is in its own audit log.
        token = world.served.key(*scopes, tenant="looks")
        answer = world.served.ask("GET", route.path, token=token, headers=ONE_PAGE)
        assert answer.status in (200, 403), label(route)
        assert THEIRS.encode() not in answer.body, label(route)
        assert not [name for name in world.jobs.values() if name.encode() in answer.body], label(route)
    stats = world.served.ask("GET", "/v1/stats", token=world.served.key("read", tenant="looks")).json
    assert not any(stats["counts"].values())


def test_positions_cursors_and_tickets_are_their_tenant_s(world: World) -> None:
    cursor = world.served.ask("GET", f"/v1/jobs?limit=1&cursor={world.cursor}", token=world.everything)
    assert (cursor.status, cursor.code) == (400, "bad_cursor")
    page = world.served.ask("GET", f"/v1/events?after={world.position}", token=world.everything, headers=ONE_PAGE)
    assert page.status == 400 or page.json["events"] == []
    own = world.served.ask("POST", "/v1/jobs", {"type": "a"}, token=world.everything).json["id"]
    # The ticket stands for the key that asked for it, so our job is not there for it.
    stream = world.served.ask("GET", f"/v1/jobs/{own}/stream?ticket={world.ticket}")
    assert (stream.status, stream.code) == (404, "not_found")


def test_the_same_names_may_be_used_by_both(world: World) -> None:
    """A key, a schedule, a worker and a queue of the same name are two things, and each tenant has its own."""
    before = world.served.holds("theirs")
    token = world.served.key(*ALL_SCOPES, tenant="the-same-names")
    ask = world.served.ask
    job = ask("POST", "/v1/jobs", {"type": "a", "queue": THEIRS, "idempotency_key": THEIRS}, token=token)
    assert (job.status, job.json["deduplicated"]) == (201, False)
    schedule = {"name": THEIRS, "cron": "0 5 * * *", "type": "a"}
    assert ask("POST", "/v1/schedules", schedule, token=token).status == 201
    assert ask("PUT", f"/v1/workers/{THEIRS}", {"host": "h", "pid": 2, "version": "2"}, token=token).status == 200
    assert ask("POST", f"/v1/queues/{THEIRS}/pause", {}, token=token).json["paused"] is True
    (lease,) = itertools.chain(
        *(
            ask("POST", f"/v1/queues/{THEIRS}/{verb}", body, token=token).json.get("leases", ())
            for verb, body in (("resume", {}), ("lease", {"worker_id": THEIRS, "count": 10}))
        )
    )
    assert lease["job"]["id"] == job.json["id"]
    assert ask("DELETE", f"/v1/schedules/{THEIRS}", token=token).status == 204
    assert ask("DELETE", f"/v1/workers/{THEIRS}", token=token).status == 204
    assert world.served.holds("theirs") == before
