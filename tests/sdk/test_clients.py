"""Every method of both clients, against a real server."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from ropeway.core.access import Limits
from ropeway.core.errors import (
    BatchTooLarge,
    FieldError,
    IdempotencyMismatch,
    InvalidState,
    JobEnded,
    LeaseLost,
    MissingScope,
    NotFound,
    PayloadError,
    Unauthenticated,
)
from ropeway.core.unique import Unique
from ropeway.sdk import AsyncClient, Client, value_of
from tests.api.cutting import cutting
from tests.api.served import Served
from tests.sdk.conftest import Both


@pytest.fixture
def queue() -> str:
    """A queue that no other test has jobs in."""
    return f"q-{uuid4().hex[:12]}"


class TestProducers:
    def test_a_job_goes_in_and_is_seen(self, client: Both, queue: str) -> None:
        run_at = datetime.now(UTC) + timedelta(hours=1)
        made = client.enqueue(
            "email.send",
            {"to": "a@example.com", "n": 1.5, "é": [None, True]},
            queue=queue,
            priority="high",
            max_attempts=3,
            run_at=run_at,
            tags=["x"],
            headers={"h": "v"},
            retry="dispatch",
        )
        assert (made.status, made.deduplicated) == ("scheduled", False)
        assert client.get_status(made.id) == "scheduled"
        job = client.get_job(str(made.id))
        assert (job.type, job.queue, job.priority, job.max_attempts, job.tags) == (
            "email.send",
            queue,
            3,
            3,
            ["x"],
        )
        assert (job.run_at, job.headers) == (run_at, {"h": "v"})
        assert value_of(job.payload) == {"to": "a@example.com", "n": 1.5, "é": [None, True]}
        detail = client.get_job_detail(made.id)
        assert [event.event for event in detail.events] == ["job.enqueued"]

    def test_a_payload_may_be_json_already(self, client: Both, queue: str) -> None:
        made = client.enqueue("t", msgspec.Raw(b'{"n": 9007199254740993, "b": 1, "a": 1.10}'), queue=queue)
        assert bytes(client.get_job(made.id).payload) == b'{"n": 9007199254740993, "b": 1, "a": 1.10}'
        assert bytes(client.get_job(client.enqueue("t", queue=queue).id).payload) == b"{}"
        assert bytes(client.get_job(client.enqueue("t", None, queue=queue).id).payload) == b"null"

    @pytest.mark.parametrize(
        ("payload", "code"),
        [(float("nan"), "number_range"), ([{"a": float("inf")}], "number_range"), (b"x", None), (object(), None)],
        ids=["nan", "deep inf", "bytes", "object"],
    )
    def test_what_json_has_no_form_for_is_refused_here(self, client: Both, payload: Any, code: str | None) -> None:
        with pytest.raises(PayloadError) as error:
            client.enqueue("t", payload)
        assert code is None or error.value.code == code

    def test_a_key_finds_the_first_job(self, client: Both, queue: str) -> None:
        key = f"k-{queue}"
        first = client.enqueue("t", {"a": 1}, queue=queue, idempotency_key=key)
        again = client.enqueue("t", {"a": 1}, queue=queue, idempotency_key=key)
        assert (again.id, again.deduplicated) == (first.id, True)
        with pytest.raises(IdempotencyMismatch):
            client.enqueue("t", {"a": 2}, queue=queue, idempotency_key=key)

    def test_a_unique_job_is_told_as_such(self, client: Both, queue: str) -> None:
        first = client.enqueue("t", {"a": 1}, queue=queue, unique=Unique())
        again = client.enqueue("t", {"a": 1}, queue=queue, unique=Unique())
        assert (again.id, again.deduplicated) == (first.id, True)

    def test_a_batch_is_all_or_none(self, client: Both, queue: str) -> None:
        made = client.enqueue_batch([{"type": "t", "payload": n, "queue": queue} for n in range(5)])
        assert [one.deduplicated for one in made] == [False] * 5
        assert [value_of(client.get_job(one.id).payload) for one in made] == list(range(5))
        too_late = datetime.now(UTC) + timedelta(days=4_000)
        with pytest.raises(FieldError) as error:
            client.enqueue_batch(
                [{"type": "t", "queue": queue}, {"type": "t", "queue": queue, "run_at": too_late}]
            )
        assert (error.value.index, error.value.code) == (1, "invalid_time")
        assert len(client.list_jobs(queue=queue)) == 5
        with pytest.raises(BatchTooLarge):
            client.enqueue_batch([{"type": "t"}] * 1_001)

    @pytest.mark.parametrize(
        ("fields", "index"),
        [
            ({"type": "t", "colour": 1}, 1),
            ({"queue": "x"}, 1),
            ({"type": "a b"}, 1),
            ({"type": "t", "priority": 99}, 1),
        ],
    )
    def test_a_wrong_job_of_a_batch_is_named(self, client: Both, fields: dict[str, Any], index: int) -> None:
        with pytest.raises(FieldError) as error:
            client.enqueue_batch([{"type": "fine"}, fields])
        assert error.value.index == index

    def test_lists_go_over_pages(self, client: Both, queue: str) -> None:
        made = client.enqueue_batch([{"type": f"t{n % 2}", "queue": queue} for n in range(7)])
        listed = client.list_jobs(queue=queue, page_size=3)
        assert [job.id for job in listed] == [one.id for one in reversed(made)]
        assert listed[0].payload is msgspec.UNSET
        some = client.list_jobs(queue=queue, type="t1", order="oldest", page_size=2, include=["payload"])
        assert [job.id for job in some] == [one.id for n, one in enumerate(made) if n % 2]
        assert value_of(some[0].payload) == {}
        assert client.list_jobs(queue=queue, status=["running", "dead"]) == []

    def test_cancel_and_retry(self, client: Both, queue: str) -> None:
        made = client.enqueue("t", queue=queue)
        with pytest.raises(InvalidState):
            client.retry_job(made.id)
        assert client.cancel_job(made.id, "no longer wanted").status == "cancelled"
        with pytest.raises(JobEnded) as error:
            client.cancel_job(made.id)
        assert error.value.status == "cancelled"
        assert client.retry_job(made.id).status == "queued"

    def test_what_is_not_there_is_not_found(self, client: Both) -> None:
        with pytest.raises(NotFound):
            client.get_job(UUID("0198c0de-0000-7000-8000-000000000000"))
        with pytest.raises(FieldError):
            client.get_job("not-an-id")


class TestWorkers:
    def test_a_life_of_work(self, client: Both, queue: str) -> None:
        ids = [
            one.id for one in client.enqueue_batch([{"type": "t", "payload": n, "queue": queue} for n in range(5)])
        ]
        leased = client.lease(queue, "w1", count=10, lease_seconds=60)
        assert [one.job.id for one in leased] == ids
        assert [value_of(one.job.payload) for one in leased] == list(range(5))
        done, failed, snoozed, released, dead = leased
        assert client.heartbeat(done, lease_seconds=90).lease_seconds == 90
        client.progress(done, 1, 2, "half")
        assert client.get_job(done.job.id).progress.message == "half"
        assert client.ack(done, {"ok": True}).status == "succeeded"
        assert client.ack(done).already_acked
        assert value_of(client.get_job(done.job.id).result) == {"ok": True}
        assert client.nack(failed, ValueError("boom"), retry_after=5).retry_in_ms == 5_000
        last = client.get_job(failed.job.id).last_error
        assert (last.type, last.message) == ("ValueError", "boom")
        assert client.snooze(snoozed, 60).status == "scheduled"
        assert client.release(released).status == "queued"
        assert client.nack((dead.job.id, dead.lease_token), "no", retry=False).status == "dead"
        with pytest.raises(LeaseLost):
            client.ack(released)
        with pytest.raises(JobEnded):
            client.release(done)
        stats = client.get_queue_stats(queue)
        assert {name: n for name, n in stats.counts.items() if n} == {
            "succeeded": 1, "retrying": 1, "scheduled": 1, "queued": 1, "dead": 1,
        }  # fmt: skip
        assert queue in [one.queue for one in client.list_queues()]

    def test_nothing_to_do_is_an_empty_list(self, client: Both, queue: str) -> None:
        assert client.lease(queue, "w1") == []
        assert client.lease([queue, f"{queue}2"], "w1", wait=0.05) == []

    def test_several_queues_in_order_or_by_weight(self, client: Both, queue: str) -> None:
        client.enqueue_batch([{"type": "t", "queue": queue + part} for part in ("b", "a")])
        leased = client.lease([queue + "a", queue + "b"], "w1", count=2)
        assert [one.job.queue for one in leased] == [queue + "a", queue + "b"]
        client.enqueue("t", queue=queue + "a")
        assert len(client.lease({queue + "a": 5, queue + "b": 1}, "w1", count=2)) == 1


class TestStreams:
    def test_a_jobs_life_is_told_until_its_end(self, client: Both, queue: str) -> None:
        made = client.enqueue("t", queue=queue)
        (leased,) = client.lease(queue, "w1")
        client.progress(leased, 1, 2)
        client.ack(leased)
        told = client.stream_job(made.id)
        assert [(one.event, one.seq) for one in told if one.seq] == [
            ("job.enqueued", 1), ("job.started", 2), ("job.completed", 3),
        ]  # fmt: skip
        assert told[-1].data["status"] == "succeeded"
        assert [one.seq for one in client.stream_job(made.id, after=2) if one.seq] == [3]
        assert client.stream_job(made.id, after=3) == []

    def test_a_stream_that_breaks_goes_on(self, connect: Callable[..., Both], client: Both, queue: str) -> None:
        ids = [one.id for one in client.enqueue_batch([{"type": "t", "queue": queue}] * 20)]
        for leased in client.lease(queue, "w1", count=20):
            client.ack(leased)
        port = int(client.client._transport.url.rpartition(":")[2])
        with cutting(port, share=0.12) as proxy:
            shaky = connect(to=f"http://127.0.0.1:{proxy.port}")
            for id in ids:
                assert [one.seq for one in shaky.stream_job(id) if one.seq] == [1, 2, 3]
            assert proxy.cuts

    def test_of_no_such_job_there_is_no_stream(self, client: Both) -> None:
        with pytest.raises(NotFound):
            client.stream_job("0198c0de-0000-7000-8000-000000000000")


class TestRefusals:
    def test_without_a_good_key(self, connect: Callable[..., Both]) -> None:
        for token in ("", "rw_live_firstkey2222_nonsense_000000"):
            with pytest.raises(Unauthenticated):
                connect(token=token).list_queues()

    def test_without_the_scope(self, connect: Callable[..., Both], served: Served) -> None:
        with pytest.raises(MissingScope):
            connect(token=served.key("enqueue")).lease("default", "w1")

    def test_the_key_comes_from_the_environment(
        self, kind: str, url: str, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ROPEWAY_TOKEN", served.key("read"))
        both = Both(kind, url, None)  # type: ignore[arg-type]
        both.list_queues()
        both.end()

    def test_a_rate_that_is_used_up_is_waited_for(self, connect: Callable[..., Both], served: Served) -> None:
        limits = Limits(rate_per_second=20, burst=1)
        slow = connect(token=served.key("read", tenant=f"slow-{uuid4().hex[:8]}", limits=limits))
        for _ in range(4):
            slow.list_queues()


def test_both_have_the_same_methods() -> None:
    ours = {name for name in vars(Client) if not name.startswith("_")} - {"close", "send"}
    theirs = {name for name in vars(AsyncClient) if not name.startswith("_")} - {"aclose", "send"}
    assert ours == theirs
    promised = {
        "enqueue", "enqueue_batch", "get_status", "get_job", "list_jobs", "cancel_job", "retry_job", "lease",
        "ack", "nack", "heartbeat", "get_queue_stats",
    }  # fmt: skip
    assert promised <= ours
    for name in ours - {"list_jobs", "stream_job"}:
        with Client("http://127.0.0.1:1", "rw_x") as client:
            method = getattr(client, name)
            assert inspect.getdoc(method), name
            assert inspect.signature(method).parameters or name == "list_queues", name
