"""Every row of the table of bad inputs, on SQLite and on PostgreSQL: the same refusal, and nothing has changed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ropeway.core.access import Scope
from ropeway.core.keytext import key_text
from ropeway.engines.protocol import Engine
from ropeway.service.keys import Keys
from tests.api.corpus import ALL_SCOPES, ROWS, Row
from tests.api.served import Answer, Served, a_store, exchange, request_bytes, server

ENGINES = ("sqlite", "postgres")
#: A refusal is read by people and kept in logs.
LONGEST_PROBLEM = 4_096
#: What must never be in an answer, whatever went wrong inside.
INTERNALS = (b"Traceback", b"SELECT ", b"INSERT ", b"sqlite3", b"asyncpg", b"msgspec", b".py")

_numbers = count()


@pytest.fixture(scope="module", params=[ENGINES[0], pytest.param(ENGINES[1], marks=pytest.mark.slow)])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with _server(request, request.param, tmp_path_factory.mktemp("served")) as running:
        yield running


def _server(request: pytest.FixtureRequest, engine: str, folder: Path) -> Any:
    return server(a_store(request, engine, folder), folder, "--no-upkeep", "--compat")


class Scene:
    """A tenant of its own, and in it what a row must find; `names` are what the row may name."""

    def __init__(self, served: Served, row: Row) -> None:
        self.served = served
        self.tenant = f"row-{next(_numbers)}"
        self.everything = served.key(*ALL_SCOPES, tenant=self.tenant)
        self.token = self.everything if row.scopes == ALL_SCOPES else served.key(*row.scopes, tenant=self.tenant)
        self.names: dict[str, str] = {}
        if row.scene:
            self.names = getattr(self, row.scene)()

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        answer = self.served.ask(method, path, body, token=token or self.everything)
        assert answer.status in (200, 201, 202, 204), answer
        return answer.json if answer.body else None

    def queued(self) -> dict[str, str]:
        return {"job": self.ask("POST", "/v1/jobs", {"type": "a"})["id"]}

    def leased(self) -> dict[str, str]:
        self.queued()
        return self._lease()

    def _lease(self) -> dict[str, str]:
        (lease,) = self.ask("POST", "/v1/queues/default/lease", {"worker_id": "w"})["leases"]
        return {"job": lease["job"]["id"], "token": lease["lease_token"]}

    def leased_again(self) -> dict[str, str]:
        old = self.leased()
        self.ask("POST", f"/v1/jobs/{old['job']}/release", {"lease_token": old["token"]})
        return {**self._lease(), "old": old["token"]}

    def two_leased(self) -> dict[str, str]:
        return {"other": self.leased()["token"], **self.leased()}

    def acked(self) -> dict[str, str]:
        names = self.leased()
        self.ask("POST", f"/v1/jobs/{names['job']}/ack", {"lease_token": names["token"]})
        return names

    def cancelled(self) -> dict[str, str]:
        names = self.leased()
        self.ask("POST", f"/v1/jobs/{names['job']}/cancel", {})
        return names

    def keyed(self) -> dict[str, str]:
        made = self.ask("POST", "/v1/jobs", {"type": "a", "payload": 1, "idempotency_key": "k"})
        return {"job": made["id"]}

    def foreign_key(self) -> dict[str, str]:
        other = self.served.key("enqueue", tenant=f"{self.tenant}-other")
        self.ask("POST", "/v1/jobs", {"type": "a", "payload": 2, "idempotency_key": "foreign"}, token=other)
        return {}

    def paged(self) -> dict[str, str]:
        cursor = self._cursor(self.everything)
        foreign = self._cursor(self.served.key(*ALL_SCOPES, tenant=f"{self.tenant}-other"))
        middle = len(cursor) // 2
        changed = cursor[:middle] + ("B" if cursor[middle] == "A" else "A") + cursor[middle + 1 :]
        return {"cursor": cursor, "foreign": foreign, "cut": cursor[:-5], "changed": changed}

    def _cursor(self, token: str) -> str:
        for _ in range(3):
            self.ask("POST", "/v1/jobs", {"type": "a"}, token=token)
        page = self.ask("GET", "/v1/jobs?limit=1", token=token)
        return str(page["next_cursor"])

    def own_key(self) -> dict[str, str]:
        """A good key and all that can be wrong with one. (rw, environment, id, secret, checksum)"""

        async def make(engine: Engine) -> dict[str, str]:
            keys = Keys(engine, tenant=self.tenant)
            scopes = frozenset({Scope.READ})
            good = (await keys.create("good", scopes))[1]
            revoked, revoked_token = await keys.create("revoked", scopes)
            await keys.revoke(revoked.id)
            # Exchanged without an overlap, it ends at once.
            ended, ended_token = await keys.create("ends", scopes)
            await keys.rotate(ended.id, overlap=0)
            return {"key": good, "revoked": revoked_token, "expired": ended_token}

        names = self.served.on_engine(make)
        head, environment, id, secret, checksum = names["key"].split("_")
        other_secret = secret[:-1] + ("a" if secret[-1] != "a" else "b")
        return {
            **names,
            "wrong_secret": key_text(environment, id, other_secret),
            "bad_checksum": "_".join(
                [head, environment, id, secret, checksum[:-1] + ("0" if checksum[-1] != "0" else "1")]
            ),
            "unknown_id": key_text(environment, id[:-1] + ("a" if id[-1] != "a" else "b"), secret),
        }


def _fill(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"%{name}%", value)
    return text


def send(scene: Scene, row: Row) -> Answer:
    body = None if row.body is None else row.body
    if body is not None and scene.names:
        for name, value in scene.names.items():
            body = body.replace(f"%{name}%".encode(), value.encode())
    headers = {name: value if value is None else _fill(value, scene.names) for name, value in row.headers.items()}
    path = _fill(row.path, scene.names)
    sent = request_bytes(row.method, path, body, token=scene.token, headers=headers)
    return exchange(scene.served.port, sent, method=row.method)


def check_problem(answer: Answer, row: Row) -> None:
    """It is a problem as promised, and tells nothing that is not the caller's to know."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.body) <= LONGEST_PROBLEM
    problem = answer.json
    assert {"type", "title", "status", "detail", "code", "request_id"} <= problem.keys()
    assert problem["type"] == f"/errors/{problem['code']}"
    assert problem["status"] == answer.status
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert not [word for word in INTERNALS if word in answer.body]
    for error in problem.get("errors", ()):
        assert {"pointer", "code", "message"} <= error.keys()
    if row.pointer is not None:
        assert [error["pointer"] for error in problem["errors"]] == [row.pointer], problem
    if answer.status == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")
    if answer.status == 405:
        assert answer.headers["allow"]


def run_row(served: Served, row: Row) -> tuple[Scene, Answer]:
    """Send it and check all that the table says; the answer."""
    scene = Scene(served, row)
    before = served.holds(scene.tenant)
    answer = send(scene, row)
    assert answer.status == row.status, answer
    assert answer.code in row.codes, answer
    assert answer.headers["x-request-id"]
    if answer.status >= 400:
        check_problem(answer, row)
    if row.has:
        wanted = {
            name: _fill(value, scene.names) if isinstance(value, str) else value for name, value in row.has.items()
        }
        assert {name: answer.json.get(name) for name in wanted} == wanted, answer
    after = served.holds(scene.tenant)
    assert row.changes or after == before
    if row.stored is not None:
        again = served.ask("GET", f"/v1/jobs/{answer.json['id']}", token=scene.everything)
        assert b'"payload":' + row.stored + b"," in again.body
    # Whatever that was, the next one is served.
    assert served.ask("POST", "/v1/jobs", {"type": "a"}, token=scene.everything).status == 201
    return scene, answer


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_bad_input_is_answered_as_the_table_says(served: Served, row: Row) -> None:
    run_row(served, row)


@pytest.mark.slow
def test_both_engines_give_the_same_answers(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Word by word, but for ids and times."""
    answers: dict[str, dict[str, Any]] = {}
    for engine in ENGINES:
        folder = tmp_path / engine
        folder.mkdir()
        with _server(request, engine, folder) as served:
            quiet = served.rss_mib()
            for row in ROWS:
                scene = Scene(served, row)
                answer = send(scene, row)
                names = [*scene.names.values(), scene.tenant]
                if row.status >= 400:
                    answers.setdefault(row.name, {})[engine] = answer.without_marks(*names)
                else:
                    answers.setdefault(row.name, {})[engine] = (answer.status, sorted(answer.json))
            # The table's rule, for all of them together.
            assert served.rss_mib("VmHWM") - quiet < 64
    unlike = {name: both for name, both in answers.items() if both["sqlite"] != both["postgres"]}
    assert not unlike


def test_tokens_that_are_not_current_are_told_apart_by_nobody(served: Served) -> None:
    """Row 76: a random token, an empty one, an old one and another job's get one and the same answer."""
    rows = [row for row in ROWS if row.number == "76" and row.scene != "queued"]
    assert len(rows) == 5
    bodies = set()
    for row in rows:
        scene, answer = run_row(served, row)
        bodies.add(answer.without_marks(scene.names["job"])[2])
    assert len(bodies) == 1, bodies


def test_keys_that_are_not_good_are_told_apart_by_nobody(served: Served) -> None:
    """Row 92: another secret, a bad checksum, a revoked, an expired and an unknown key get one answer."""
    rows = [row for row in ROWS if row.number == "92"]
    answers = {run_row(served, row)[1].without_marks()[2] for row in rows}
    assert len(answers) == 1, answers


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_sent(served: Served) -> None:
    """Row 38."""
    token = served.key("enqueue")
    head = request_bytes(
        "POST", "/v1/jobs", b"", token=token, headers={"Content-Length": "100000000", "Expect": "100-continue"}
    )
    answer = exchange(served.port, head)
    assert (answer.status, answer.code) == (413, "payload_too_large")


def test_an_ack_twice_is_one_event(served: Served) -> None:
    """Row 77."""
    row = next(row for row in ROWS if row.number == "77")
    scene, _ = run_row(served, row)
    events = served.ask("GET", f"/v1/jobs/{scene.names['job']}/events", token=scene.everything).json["events"]
    assert [event["event"] for event in events] == ["job.enqueued", "job.started", "job.completed"]


def test_an_error_s_type_and_text_are_kept_as_text(served: Served) -> None:
    """Row 106."""
    row = next(row for row in ROWS if row.number == "106")
    scene, _ = run_row(served, row)
    job = served.ask("GET", f"/v1/jobs/{scene.names['job']}", token=scene.everything).json
    assert job["last_error"] == {"type": "os.system", "message": "id", "truncated": False}


def test_a_connection_with_nonsense_on_it_is_closed_and_the_server_goes_on(served: Served) -> None:
    for nonsense in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"\0" * 4096,
        b"GET / HTTP/9.9\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
            connection.sendall(nonsense)
            connection.shutdown(socket.SHUT_WR)
            said = b""
            while piece := connection.recv(65_536):
                said += piece
        assert not said or said.startswith(b"HTTP/1.1 4"), said
    assert served.ask("GET", "/health").status == 200


def test_a_cancelled_long_batch_leaves_nothing_half_done(served: Served) -> None:
    """Row 49, seen from the store: item 999 of 1,000 is bad, and none is there."""
    tenant = f"row-{next(_numbers)}"
    token = served.key(*ALL_SCOPES, tenant=tenant)
    before = served.holds(tenant)
    jobs = [{"type": "a", "payload": index} for index in range(999)] + [{"type": "a b"}]
    answer = served.ask("POST", "/v1/jobs/batch", json.dumps({"jobs": jobs}).encode(), token=token)
    assert (answer.status, answer.json["index"]) == (422, 999)
    assert served.holds(tenant) == before
