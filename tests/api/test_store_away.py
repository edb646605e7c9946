"""The store goes and comes back: refused, never lost, and nobody has to restart anything (G12)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.postgres import PrivatePostgres
from devtools.private import NotAvailable
from devtools.waiting import wait_until
from tests.api.corpus import ALL_SCOPES
from tests.api.served import Answer, server
from tests.conftest import NOT_RUN
from tests.engines.pg_kit import migrated


@pytest.fixture
def postgres() -> Iterator[PrivatePostgres]:
    """A server of this test's own, to be stopped."""
    try:
        made = PrivatePostgres()
    except NotAvailable as error:
        pytest.skip(f"{NOT_RUN}postgres: {error}")
    with made:
        yield made


def test_while_the_store_is_away_everything_is_503_and_afterwards_it_goes_on(
    postgres: PrivatePostgres, tmp_path: Path
) -> None:
    url = migrated(postgres.create_database("away"))
    with server(url, tmp_path) as served:
        token = served.key(*ALL_SCOPES)
        served.on_engine(lambda engine: engine.now())
        kept = served.ask("POST", "/v1/jobs", {"type": "a", "queue": "kept"}, token=token).json["id"]
        (lease,) = served.ask("POST", "/v1/queues/kept/lease", {"worker_id": "w"}, token=token).json["leases"]
        polled: list[Answer] = []
        body = {"worker_id": "w", "wait": 30}
        poll = threading.Thread(
            target=lambda: polled.append(served.ask("POST", "/v1/queues/polled/lease", body, token=token))
        )
        poll.start()
        postgres.stop("immediate")
        before = {"Idempotency-Key": "the-same"}
        for _ in range(3):
            for method, path, sent in (
                ("POST", "/v1/jobs", {"type": "a", "queue": "polled"}),
                ("POST", "/v1/jobs/batch", {"jobs": [{"type": "a"}] * 3}),
                ("GET", f"/v1/jobs/{kept}", None),
                ("GET", "/v1/queues", None),
                ("POST", "/v1/queues/kept/lease", {"worker_id": "w"}),
                ("POST", f"/v1/jobs/{kept}/ack", {"lease_token": lease["lease_token"]}),
            ):
                headers = before if path == "/v1/jobs" else {}
                answer = served.ask(method, path, sent, token=token, headers=headers)
                assert answer.status == 503, (method, path, answer)
                assert answer.code in ("unavailable", "indeterminate")
                assert int(answer.headers["retry-after"]) >= 1
                assert b"asyncpg" not in answer.body
                assert b"Traceback" not in answer.body
        assert served.ask("GET", "/health").status == 200
        wait_until(
            lambda: served.ask("GET", "/ready").status == 503, within=30, what="it says that it is not ready"
        )
        assert served.ask("GET", "/ready").json["checks"]["engine"] != "ok"

        postgres.start()
        wait_until(lambda: served.ask("GET", "/ready").status == 200, within=30, what="it is ready again")
        made = served.ask("POST", "/v1/jobs", {"type": "a", "queue": "polled"}, token=token, headers=before)
        assert made.status == 201, "nothing was stored while it was away"
        ack = served.ask("POST", f"/v1/jobs/{kept}/ack", {"lease_token": lease["lease_token"]}, token=token)
        assert ack.json["status"] == "succeeded", "the lease has outlived the outage"
        poll.join(40)
        (answer,) = polled
        assert answer.status in (200, 503), answer
        if answer.status == 200:
            assert answer.json["leases"][0]["job"]["id"] == made.json["id"]
