"""The reply is lost after the server has done its part (E03): who asks again gets the same job, never a second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ropeway.sdk import AsyncClient, Client, Patience
from tests.api.corpus import ALL_SCOPES
from tests.api.cutting import cutting
from tests.api.served import Served, a_store, server

#: Of four replies one is lost, so of 150 calls some lose three in a row.
SHARE = 0.25
TRIES = Patience(tries=20, base=0.001, cap=0.01)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with server(a_store(request, request.param, folder), folder, "--no-upkeep") as running:
        yield running


def count(served: Served, token: str, query: str = "") -> int:
    return int(served.ask("GET", f"/v1/jobs/count?{query}", token=token).json["count"])


def test_a_lost_reply_to_an_enqueue_makes_no_second_job(served: Served) -> None:
    token = served.key(*ALL_SCOPES, tenant="blocking")
    with cutting(served.port, share=SHARE) as proxy:
        with Client(f"http://127.0.0.1:{proxy.port}", token, patience=TRIES) as client:
            made = [client.enqueue("a", {"n": n}) for n in range(150)]
            keyed = [client.enqueue("b", {"n": n}, idempotency_key=f"key-{n}") for n in range(50)]
        assert proxy.cuts > 20
    assert len({job.id for job in made + keyed}) == 200
    assert not any(job.deduplicated for job in made), "one's own repetition is no duplicate to the caller"
    assert count(served, token) == 200
    assert count(served, token, "type=a") == 150


async def test_nor_does_one_among_many_at_once(served: Served) -> None:
    token = await asyncio.to_thread(served.key, *ALL_SCOPES, tenant="awaited")
    with cutting(served.port, share=SHARE) as proxy:
        async with AsyncClient(f"http://127.0.0.1:{proxy.port}", token, patience=TRIES) as client:
            made = []
            # Three at a time: those of one moment share a request, or two.
            for _ in range(60):
                made += await asyncio.gather(*(client.enqueue("a", {"n": n}) for n in range(3)))
        assert proxy.cuts > 10
    assert len({job.id for job in made}) == 180
    assert not any(job.deduplicated for job in made)
    assert await asyncio.to_thread(count, served, token) == 180


def test_a_lost_reply_to_a_batch_makes_no_second_batch(served: Served) -> None:
    token = served.key(*ALL_SCOPES, tenant="batches")
    with cutting(served.port, share=0.4) as proxy:
        with Client(f"http://127.0.0.1:{proxy.port}", token, patience=TRIES) as client:
            made = [job for _ in range(30) for job in client.enqueue_batch([{"type": "a", "payload": 1}] * 20)]
        assert proxy.cuts > 10
    assert len({job.id for job in made}) == 600
    assert count(served, token) == 600


def test_a_lost_reply_to_an_ack_is_one_completion(served: Served) -> None:
    token = served.key(*ALL_SCOPES, tenant="acks")
    for _ in range(60):
        served.ask("POST", "/v1/jobs", {"type": "a"}, token=token)
    body = {"worker_id": "w", "count": 60}
    leases = served.ask("POST", "/v1/queues/default/lease", body, token=token).json["leases"]
    with cutting(served.port, share=SHARE) as proxy:
        with Client(f"http://127.0.0.1:{proxy.port}", token, patience=TRIES) as client:
            for lease in leases:
                answer = client.ack((lease["job"]["id"], lease["lease_token"]), {"done": True})
                assert answer.status == "succeeded"
        assert proxy.cuts > 5
    for lease in leases:
        events = served.ask("GET", f"/v1/jobs/{lease['job']['id']}/events", token=token).json["events"]
        assert [event["event"] for event in events] == ["job.enqueued", "job.started", "job.completed"]
