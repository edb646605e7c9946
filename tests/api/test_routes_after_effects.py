"""The store goes away between what was done and what is told of it: the answer never says that nothing was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ropeway.core.access import Scope
from ropeway.core.errors import EngineError, Indeterminate, Unavailable
from ropeway.service import dead, notes
from tests.api.routes_kit import Caller, Stage, on_memory, stage, until

WHERE = "could not connect to 10.1.2.3:5432 as user jobs"


class Away:
    """Methods of an engine that fail for as long as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engine: Any, *names: str, after: int = 0) -> None:
        self.away = True
        self._left = after
        for name in names:
            monkeypatch.setattr(engine, name, self._failing(getattr(engine, name)))

    def _failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def failing(*given: Any, **named: Any) -> Any:
            if self.away and self._left <= 0:
                raise Unavailable(WHERE)
            self._left -= 1
            return await call(*given, **named)

        return failing


async def entries(caller: Caller) -> list[tuple[str, str]]:
    found = (await caller.get("/v1/audit")).json()["entries"]
    return [(entry["action"], entry["target"]) for entry in reversed(found)]


SCHEDULE = {"name": "nightly", "cron": "0 3 * * *", "type": "report"}


@on_memory
async def test_an_unwritten_note_fails_no_answer_and_is_written_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = await stage.caller()
    stage.api.deps.notes._pause = 0.01
    job = (await caller.job())["id"]
    died = await caller.dead(queue="d")
    store = Away(monkeypatch, stage.engine, "note_actions")
    made = await caller.post("/v1/keys", {"name": "k", "scopes": ["read"]})
    assert made.status_code == 201, made.text
    assert made.json()["token"]
    for method, path, body, status in (
        ("POST", "/v1/schedules", SCHEDULE, 201),
        ("PATCH", "/v1/schedules/nightly", {"cron": "0 4 * * *"}, 200),
        ("POST", "/v1/schedules/nightly/pause", None, 200),
        ("POST", "/v1/schedules/nightly/run", None, 201),
        ("DELETE", "/v1/schedules/nightly", None, 204),
        ("POST", f"/v1/jobs/{job}/cancel", None, 200),
        ("POST", "/v1/queues/default/pause", None, 200),
        ("PATCH", "/v1/queues/default", {"depth_limit": 5}, 200),
        ("POST", "/v1/dlq/retry", {"id": died}, 200),
        ("POST", f"/v1/keys/{made.json()['id']}/rotate", None, 201),
        ("DELETE", f"/v1/keys/{made.json()['id']}", None, 204),
    ):
        answer = await caller.ask(method, path, body)
        assert answer.status_code == status, (path, answer.text)
    assert stage.api.deps.notes.unwritten == 12
    assert await entries(caller) == []
    store.away = False
    await until(lambda: stage.api.deps.notes.unwritten == 0)
    assert [action for action, _ in await entries(caller)] == [
        "key.create", "schedule.create", "schedule.change", "schedule.pause", "schedule.run", "schedule.delete",
        "job.cancel", "queue.pause", "queue.set", "dlq.retry", "key.rotate", "key.revoke",
    ]  # fmt: skip


async def test_at_the_end_notes_are_tried_once_more(memory_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(memory_store) as staged:
        caller = await staged.caller()
        store = Away(monkeypatch, staged.engine, "note_actions")
        await caller.post("/v1/queues/q/pause")
        assert staged.api.deps.notes.unwritten == 1
        store.away = False
        await staged.api.deps.notes.close()
        assert await entries(caller) == [("queue.pause", "q")]


@on_memory
async def test_no_more_notes_are_kept_than_there_is_room_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "MOST_KEPT", 2)
    caller = await stage.caller()
    Away(monkeypatch, stage.engine, "note_actions")
    for _ in range(4):
        assert (await caller.post("/v1/queues/q/pause")).status_code == 200
    assert stage.api.deps.notes.unwritten == 2


@pytest.mark.parametrize(
    ("failing", "method", "path", "body"),
    [
        ("get", "POST", "/v1/jobs/{id}/cancel", None),
        ("get", "POST", "/v1/jobs/{id}/reschedule", {"delay": 60}),
        ("get", "POST", "/v1/jobs/{dead}/retry", None),
        ("get", "POST", "/v1/schedules/nightly/run", None),
        ("queue_stats", "POST", "/v1/queues/q/pause", None),
        ("queue_stats", "POST", "/v1/queues/q/resume", None),
        ("queue_stats", "PATCH", "/v1/queues/q", {"depth_limit": 5}),
    ],
)
async def test_a_read_that_fails_after_the_effect_is_indeterminate(
    memory_store: str, monkeypatch: pytest.MonkeyPatch, failing: str, method: str, path: str, body: Any
) -> None:
    async with stage(memory_store) as staged:
        caller = await staged.caller()
        ids = {"id": (await caller.job())["id"], "dead": await caller.dead(queue="d")}
        await caller.post("/v1/schedules", SCHEDULE)
        Away(monkeypatch, staged.engine, failing)
        answer = await caller.ask(method, path.format(**ids), body)
        assert (answer.status_code, answer.json()["code"]) == (503, "indeterminate"), answer.text


@pytest.mark.parametrize("by", ["ids", "filter"])
async def test_a_retry_that_breaks_off_tells_what_it_did(
    memory_store: str, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(dead, "STEP", 2)
    async with stage(memory_store) as staged:
        caller = await staged.caller()
        ids = [await caller.dead(queue="d") for _ in range(5)]
        Away(monkeypatch, staged.engine, "redrive", "redrive_where", after=1)
        body = {"ids": ids} if by == "ids" else {"filter": {"queue": "d"}}
        answer = await caller.post("/v1/dlq/retry", body)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert told["retried"] == 2
        if by == "ids":
            assert [(one["id"], one["code"]) for one in told["skipped"]] == [(id, "unavailable") for id in ids[2:]]
            assert await entries(caller) == [("dlq.retry", id) for id in ids[:2]]
        else:
            assert told["more"] is True


@on_memory
async def test_many_at_once_are_noted_each(stage: Stage) -> None:
    caller = await stage.caller()
    ids = [(await caller.job())["id"] for _ in range(30)]
    assert (await caller.post("/v1/jobs/cancel", {"ids": ids})).status_code == 200
    assert (await caller.post("/v1/jobs/retry-where", {"filter": {"queue": "default"}})).status_code in (200, 404)
    assert [entry for entry in await entries(caller) if entry[0] == "job.cancel"] == [
        ("job.cancel", id) for id in ids
    ]


@pytest.mark.parametrize("error", [Unavailable, Indeterminate, EngineError])
async def test_no_answer_tells_where_the_store_is(
    memory_store: str, monkeypatch: pytest.MonkeyPatch, error: type[EngineError]
) -> None:
    async with stage(memory_store) as staged:
        caller = await staged.caller(Scope.READ)

        async def away(*given: Any, **named: Any) -> Any:
            raise error(WHERE, hint="see the server 10.1.2.3")

        monkeypatch.setattr(staged.engine, "queue_stats", away)
        answer = await caller.get("/v1/queues")
        assert answer.status_code == 503
        assert "10.1.2.3" not in answer.text
        assert answer.json()["hint"]


async def test_closing_does_not_wait_for_a_store_that_hangs(
    memory_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "LAST_TRY", 0.01)
    async with stage(memory_store) as staged:
        caller = await staged.caller()
        Away(monkeypatch, staged.engine, "note_actions")
        await caller.post("/v1/queues/q/pause")

        async def hanging(*given: Any, **named: Any) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(staged.engine, "note_actions", hanging)
        await staged.api.deps.notes.close()
        assert staged.api.deps.notes.unwritten == 0
