"""Large bodies: read beside the event loop, held within bounds, charged before they are read."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from ropeway.api import totals
from ropeway.api.budget import Budget
from ropeway.api.heavy import SLOW_BYTES, THREADS
from ropeway.api.reading import LEAST_RATE, ROUND_A_PAYLOAD, seconds_for
from ropeway.core.access import Limits, NewTenant
from ropeway.core.errors import QuotaExceeded, Unavailable
from ropeway.core.payload import MAX_PAYLOAD_BYTES, check_payload
from ropeway.engines.memory import MemoryEngine
from ropeway.service.keys import Keys
from tests.api.frame_kit import frame
from tests.api.routes_kit import ALL, Caller, Stage, on_memory, served_from_memory, until

MIB = 1_048_576
PADDING = {"type": "a", "payload": "x" * SLOW_BYTES}


async def limited(stage: Stage, name: str, **limits: Any) -> Caller:
    """A caller of a tenant with limits of its own."""
    await stage.engine.create_tenant(NewTenant(name, name, limits=Limits(**limits)))
    _, token = await Keys(stage.engine, tenant=name).create("a test", frozenset(ALL))
    return Caller(stage.http, stage.engine, token, name)


# ── Where they are read ──


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[threading.Thread, int]]:
    """The threads in which JSON was looked at, and how much of it."""
    seen: list[tuple[threading.Thread, int]] = []

    def noting(work: Any) -> Any:
        def noted(*given: Any, **named: Any) -> Any:
            sizes = [len(one) for one in given if isinstance(one, bytes)]
            seen.append((threading.current_thread(), max(sizes, default=0)))
            return work(*given, **named)

        return noted

    for module in ("ropeway.api.reading", "ropeway.api.batches"):
        monkeypatch.setattr(f"{module}.check_payload", noting(check_payload))
    monkeypatch.setattr("ropeway.core.job.check_payload", noting(check_payload))
    monkeypatch.setattr("ropeway.engines.settling.clean_result", noting(totals.clean_result))
    monkeypatch.setattr(totals.Total, "read", noting(totals.Total.read))
    monkeypatch.setattr(totals.Total, "read_items", noting(totals.Total.read_items))
    return seen


@on_memory
async def test_only_large_bodies_are_read_in_threads(
    stage: Stage, readers: list[tuple[threading.Thread, int]]
) -> None:
    caller = await stage.caller()
    here = threading.current_thread()
    text = "x" * SLOW_BYTES
    for payload, off in (("x", False), (text, True)):
        single = {"type": "a", "payload": payload}
        assert (await caller.post("/v1/jobs", single)).status_code == 201
        assert (await caller.post("/v1/jobs/batch", {"jobs": [single, {"type": "a"}]})).status_code == 201
        lines = json.dumps(single).encode()
        answer = await caller.ask("POST", "/v1/jobs/batch", raw=lines, Content_Type="application/x-ndjson")
        assert answer.status_code == 200
        id, token = await caller.leased()
        assert (await caller.post(f"/v1/jobs/{id}/ack", {**token, "result": payload})).status_code == 200
        id, token = await caller.leased()
        items = {"items": [{"id": id, **token, "error": payload}]}
        assert (await caller.post("/v1/leases/nack", items)).json()["results"][0]["ok"]
        looks = [thread is here for thread, size in readers if not off or size > SLOW_BYTES]
        # Twice at each of three ways in, at the body and at the payload; then at the ack, its result and the nack.
        assert (set(looks), len(looks) >= 9) == ({not off}, True)
        readers.clear()


@on_memory
async def test_no_more_are_read_at_once_than_there_are_threads(
    stage: Stage, readers: list[tuple[threading.Thread, int]]
) -> None:
    caller = await stage.caller()
    answers = await asyncio.gather(*(caller.post("/v1/jobs", PADDING) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {201}
    threads = {thread for thread, size in readers if size > SLOW_BYTES}
    assert 1 <= len(threads - {threading.current_thread()}) == len(threads) <= THREADS


@on_memory
@pytest.mark.parametrize("verb", ["heartbeat", "snooze", "release", "progress", "lose"])
async def test_a_verb_without_an_outcome_has_a_body_of_one_payload(stage: Stage, verb: str) -> None:
    caller = await stage.caller()
    await caller.job()
    id, token = await caller.leased()
    over = b" " * (MAX_PAYLOAD_BYTES + ROUND_A_PAYLOAD) + json.dumps({**token, "delay": 1}).encode()
    answer = await caller.ask("POST", f"/v1/jobs/{id}/{verb}", raw=over)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


# ── What is wrong with a large batch is told as of a small one ──

FLAWS = [
    '{"type":1}', '{"type":"a","x":1}', '{"type":"\\u0000"}', '{"type":"a","type":"b"}', "{}", "[]", "7",
    '{"type":"a","payload":{"a":{"b":1,"b":2}}}', '{"type":"a","payload":["\\ud800"]}',
    '{"type":"a","payload":[1e400]}', '{"type":"a","payload":' + "[" * 65 + "]" * 65 + "}",
    '{"type":"a","payload":' + "[" * 9_000 + "]" * 9_000 + "}",
    '{"type":"a","payload":NaN}', '{"type":"a",}', '{"type":"a"', '{"type":"a"}]', '{"type":"a","payload":"\xff"}',
    '{"type":"a"}],"jobs":[{"type":"a"}', '{"type":"a"}],"x":[1',
]  # fmt: skip


@on_memory
@pytest.mark.parametrize("flaw", FLAWS)
async def test_a_flaw_is_named_whatever_the_size(stage: Stage, flaw: str) -> None:
    caller = await stage.caller()

    async def told(first: dict[str, Any]) -> Any:
        items = [json.dumps(first), *['{"type":"a"}'] * 3, flaw, '{"type":"a"}']
        raw = f'{{"jobs":[{",".join(items)}]}}'.encode("latin-1")
        answer = (await caller.ask("POST", "/v1/jobs/batch", raw=raw)).json()
        where = [error["pointer"] for error in answer.get("errors", ())]
        return answer["status"], answer["code"], answer.get("index"), where

    small = await told({"type": "a"})
    assert small[0] in (400, 422)
    large = await told(PADDING)
    # Of a large one it may be known more exactly where it is.
    assert (large[:2], large[3], small[2] in (None, large[2])) == (small[:2], small[3], True)


@on_memory
async def test_a_job_of_a_batch_is_no_larger_than_one_alone(stage: Stage) -> None:
    caller = await stage.caller()
    large = {"type": "a", "payload": "x" * (MAX_PAYLOAD_BYTES - 2)}
    assert (await caller.post("/v1/jobs/batch", {"jobs": [large] * 3})).status_code == 201
    larger = {"type": "a", "payload": "x" * (MAX_PAYLOAD_BYTES + ROUND_A_PAYLOAD)}
    answer = await caller.post("/v1/jobs/batch", {"jobs": [large, larger]})
    assert (answer.status_code, answer.json()["code"], answer.json()["index"]) == (413, "payload_too_large", 1)


@on_memory
async def test_a_large_batch_of_too_many_jobs_is_not_looked_at(
    stage: Stage, readers: list[tuple[threading.Thread, int]]
) -> None:
    caller = await stage.caller()
    answer = await caller.post("/v1/jobs/batch", {"jobs": [PADDING, *[{"type": "a"}] * 1_000]})
    assert (answer.status_code, answer.json()["code"]) == (413, "batch_too_large")
    assert len(readers) <= 1


@on_memory
async def test_a_large_body_without_a_list_of_jobs_is_checked_too(stage: Stage) -> None:
    caller = await stage.caller()
    owner = '"owner":"0b9e4c9e-1111-4111-8111-0123456789ab"'
    padding = " " * SLOW_BYTES
    for raw, code in (
        (f"{{{owner},{padding}{owner}}}", "duplicate_key"),
        (f'{{{owner},{padding}"jobs":5}}', "unknown_field"),
        (f'{{{owner},{padding}"jobs":[]}}', "unknown_field"),
        (f"[{padding}]", "invalid_field"),
        (f"{{{owner},{padding}", "malformed_json"),
    ):
        assert (await caller.ask("POST", "/v1/owners/end", raw=raw.encode())).json()["code"] == code
    whole = f"{{{owner}{padding}}}".encode()
    assert (await caller.ask("POST", "/v1/owners/end", raw=whole)).status_code == 200


# ── Lines ──


@on_memory
async def test_lines_are_stored_before_they_fill_the_memory(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[int] = []
    enqueue = MemoryEngine.enqueue

    async def noted(engine: MemoryEngine, jobs: Any, **named: Any) -> Any:
        stored.append(len(jobs))
        assert stage.api.deps.bodies.bytes >= sum(len(job.payload) for job in jobs)
        return await enqueue(engine, jobs, **named)

    monkeypatch.setattr(MemoryEngine, "enqueue", noted)
    caller = await stage.caller()
    line = json.dumps({"type": "a", "payload": "x" * 1_000_000}).encode() + b"\n"
    answer = await caller.ask("POST", "/v1/jobs/batch", raw=line * 20, Content_Type="application/x-ndjson")
    assert len(answer.text.splitlines()) == 20
    assert stored == [16, 4]
    assert stage.api.deps.bodies.bytes == 0


@on_memory
async def test_lines_are_paid_for_also_with_a_small_burst(stage: Stage) -> None:
    caller = await limited(stage, "small", rate_per_second=5_000.0, burst=10)
    raw = b'{"type":"a"}\n' * 55
    answer = await caller.ask("POST", "/v1/jobs/batch", raw=raw, Content_Type="application/x-ndjson")
    assert answer.status_code == 200
    assert len(answer.text.splitlines()) == 55


@served_from_memory
async def test_lines_of_a_revoked_key_are_not_taken(stage: Stage) -> None:
    key, token = await Keys(stage.engine).create("a test", frozenset(ALL))
    other = await stage.caller()
    gone = asyncio.Event()

    async def body() -> Any:
        yield b'{"type":"a"}\n' * 1_000
        await gone.wait()
        yield b'{"type":"a"}\n' * 1_000

    async def refused() -> bool:
        return (await Caller(stage.http, stage.engine, token, "default").get("/v1/jobs")).status_code == 401

    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-ndjson"}
    upload = asyncio.create_task(stage.http.post("/v1/jobs/batch", content=body(), headers=headers))
    await until(lambda: _stored(stage, 1_000))
    assert (await other.ask("DELETE", f"/v1/keys/{key.id}")).status_code == 204
    await until(refused)
    gone.set()
    *told, last = [json.loads(line) for line in (await upload).text.splitlines()]
    assert len(told) == 1_000
    assert (last["error"]["code"], last["error"]["index"]) == ("unauthenticated", 1_000)
    assert await _stored(stage, 1_000)


async def _stored(stage: Stage, number: int) -> bool:
    return (await stage.engine.count()).number == number


# ── Bytes ──


def test_bytes_are_counted_for_a_tenant_and_in_all() -> None:
    budget = Budget(100, 60)
    one, two = budget.held("a"), budget.held("b")
    one.take(50)
    with pytest.raises(QuotaExceeded) as refused:
        one.take(11)
    assert refused.value.retry_in
    one.take(10)
    two.take(40)
    with pytest.raises(Unavailable):
        two.take(1)
    one.release()
    one.release()
    with budget.held("a", outcomes=True) as outcomes:
        outcomes.take(60)
        assert budget.bytes == 100
    two.release()
    assert (budget.bytes, len(budget._by_tenant)) == (0, 0)


def test_what_ends_jobs_has_bytes_of_its_own() -> None:
    budget = Budget(100, 50)
    budget.held("a").take(50)
    budget.held("a", outcomes=True).take(50)


@pytest.mark.parametrize(
    ("in_all", "of_a_tenant", "status", "code"),
    [(10_000_000, 500_000, 429, "quota_exceeded"), (500_000, 10_000_000, 503, "unavailable")],
)
async def test_bodies_beyond_the_bytes_that_may_be_held_are_refused(
    in_all: int, of_a_tenant: int, status: int, code: str
) -> None:
    body = b'{"name":"' + b"x" * 400_000 + b'"}'
    async with frame() as served:
        bodies = served.server.api.deps.bodies
        bodies.in_all, bodies.of_a_tenant = in_all, of_a_tenant
        async with served.connected() as line:
            await line.send(await served.head("POST", "/things", body), body[:-50_000])
            await until(lambda: bodies.bytes >= 350_000)
            answer = await served.ask("POST", "/things", body)
            assert (answer.status, answer.code) == (status, code)
            assert int(answer.headers["retry-after"]) >= 1
            # What is small is not refused for it.
            assert (await served.ask("POST", "/things", b'{"name":"a"}')).status == 200
            await line.send(body[-50_000:])
            assert (await line.answer()).status == 200
        assert (await served.ask("POST", "/things", body)).status == 200
        assert bodies.bytes == 0


async def test_a_client_that_hangs_up_gives_its_bytes_back() -> None:
    async with frame() as served:
        bodies = served.server.api.deps.bodies
        async with served.connected() as line:
            await line.send(await served.head("POST", "/things", b"x" * 900_000), b"x" * 300_000)
            await until(lambda: bodies.bytes)
        await until(lambda: bodies.bytes == 0)


def test_a_large_body_has_to_come_faster() -> None:
    assert seconds_for(0) == 0
    assert seconds_for(MIB) == MIB / LEAST_RATE
    assert seconds_for(16 * MIB) < 100


# ── What they cost ──


@on_memory
async def test_a_batch_that_is_refused_has_cost_a_request(stage: Stage) -> None:
    caller = await limited(stage, "bad", rate_per_second=0.01, burst=3)
    for left in (2, 1, 0):
        answer = await caller.ask("POST", "/v1/jobs/batch", raw=b'{"jobs":')
        assert (answer.status_code, answer.headers["ratelimit-remaining"]) == (400, str(left))
    answer = await caller.ask("POST", "/v1/jobs/batch", raw=b'{"jobs":')
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")


@on_memory
@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_a_batch_costs_as_much_as_it_has_jobs(stage: Stage, kind: str) -> None:
    caller = await limited(stage, "exact", rate_per_second=0.01, burst=20)
    json_body = json.dumps({"jobs": [{"type": "a"}] * 12}).encode()
    raw = json_body if kind == "application/json" else b'{"type":"a"}\n' * 12
    assert (await caller.ask("POST", "/v1/jobs/batch", raw=raw, Content_Type=kind)).status_code in (200, 201)
    answer = await caller.get("/v1/time")
    assert answer.headers["ratelimit-remaining"] == "7"


@on_memory
async def test_a_batch_beyond_the_burst_is_told_so(stage: Stage) -> None:
    caller = await limited(stage, "much", rate_per_second=0.01, burst=10)
    answer = await caller.post("/v1/jobs/batch", {"jobs": [{"type": "a"}] * 11})
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")


@on_memory
async def test_a_batch_that_comes_again_when_told_has_its_whole_price(stage: Stage) -> None:
    """What it paid before it was refused is gone, so it must be told to wait for that as well."""
    caller = await limited(stage, "again", rate_per_second=0.5, burst=10)
    await caller.post("/v1/jobs/batch", {"jobs": [{"type": "a"}] * 8})
    answer = await caller.post("/v1/jobs/batch", {"jobs": [{"type": "a"}] * 4})
    # Two were left and one of them is spent: three are missing now, and the first one again then.
    assert answer.status_code == 429
    assert 5 <= int(answer.headers["retry-after"]) <= 7


# ── Outcomes ──


@on_memory
@pytest.mark.parametrize(
    ("error", "message"),
    [("5", "5"), ("null", "null"), ("true", "true"), ('["a"]', '["a"]'), ('{"foo":1}', '{"foo":1}'),
     ('{"type":5,"message":"m"}', '{"type":5,"message":"m"}'), ("1" * 400, "1" * 400)],
)  # fmt: skip
@pytest.mark.parametrize("batch", [False, True])
async def test_an_error_of_any_shape_ends_the_attempt(stage: Stage, error: str, message: str, batch: bool) -> None:
    caller = await stage.caller()
    await caller.job()
    id, token = await caller.leased()
    said = f'"lease_token":"{token["lease_token"]}","error":{error}'
    if batch:
        raw = f'{{"items":[{{"id":"{id}",{said}}}]}}'.encode()
        (told,) = (await caller.ask("POST", "/v1/leases/nack", raw=raw)).json()["results"]
    else:
        told = (await caller.ask("POST", f"/v1/jobs/{id}/nack", raw=f"{{{said}}}".encode())).json()
    assert (told["status"], told["sanitized"]) == ("retrying", True), told
    job = (await caller.get(f"/v1/jobs/{id}")).json()
    assert job["last_error"]["message"].strip('"') == message
