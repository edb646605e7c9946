"""Ten thousand workers with nothing to do wait on one server process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from bench.asking import Line, Reply, lines
from bench.http import poll_request, raise_file_limit, settled
from tests.api.corpus import ALL_SCOPES
from tests.api.served import Served, server, sqlite_url
from tests.worker.kit import until

POLLS = 10_000
QUEUES = 100
LARGEST_MIB = 400


async def _wait_and_work(served: Served, token: str) -> None:
    replies: dict[int, Reply] = {}
    async with lines(served.port, POLLS) as opened:
        for index, line in enumerate(opened):
            line.told = lambda reply, index=index: replies.__setitem__(index, reply)
            line.send(poll_request(token, f"q{index % QUEUES}", f"w{index}", wait=30))
        await settled(served.process.pid)
        assert not replies
        assert served.rss_mib() < LARGEST_MIB
        await _one_job_for_each_queue(served, token, replies, opened)
    assert served.rss_mib() < LARGEST_MIB


async def _one_job_for_each_queue(
    served: Served, token: str, replies: dict[int, Reply], opened: list[Line]
) -> None:
    jobs = {"jobs": [{"type": "a", "queue": f"q{number}"} for number in range(QUEUES)]}
    answer = await asyncio.to_thread(served.ask, "POST", "/v1/jobs/batch", jobs, token=token)
    assert answer.status == 201
    await until(lambda: len(replies) >= QUEUES, "a poll of each queue is answered")
    leases = [lease for reply in replies.values() for lease in json.loads(reply.body)["leases"]]
    assert {reply.status for reply in replies.values()} == {200}
    assert sorted(lease["job"]["queue"] for lease in leases) == sorted(f"q{number}" for number in range(QUEUES))
    assert len({lease["job"]["id"] for lease in leases}) == QUEUES
    for index, reply in replies.items():
        (lease,) = json.loads(reply.body)["leases"]
        assert lease["job"]["queue"] == f"q{index % QUEUES}"


@pytest.mark.slow
def test_ten_thousand_idle_polls_cost_little_and_each_queue_is_served_at_once(tmp_path: Path) -> None:
    raise_file_limit(POLLS + 1_000)
    with server(sqlite_url(tmp_path), tmp_path, "--no-upkeep") as served:
        token = served.key(*ALL_SCOPES)
        asyncio.run(_wait_and_work(served, token))
        assert served.ask("GET", "/ready").status == 200


@pytest.mark.slow
def test_a_server_that_stops_answers_those_who_wait(tmp_path: Path) -> None:
    """SIGTERM: a thousand waiting polls are answered, none is cut off."""

    async def stop_while_they_wait(served: Served, token: str) -> list[Reply]:
        async with lines(served.port, 1_000) as opened:
            waiting = [
                asyncio.ensure_future(line.ask(poll_request(token, "default", f"w{index}", wait=30)))
                for index, line in enumerate(opened)
            ]
            await settled(served.process.pid)
            served.process.terminate()
            return await asyncio.wait_for(asyncio.gather(*waiting), 20)

    with server(sqlite_url(tmp_path), tmp_path, "--no-upkeep") as served:
        replies = asyncio.run(stop_while_they_wait(served, served.key(*ALL_SCOPES)))
        assert {reply.status for reply in replies} == {204}
        assert served.process.wait(timeout=20) == 0
