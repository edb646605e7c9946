"""Programs that a type checker must accept, with the types they must get. Checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, assert_type

from ropeway import (
    AsyncClient,
    Client,
    Job,
    JobContext,
    JobHandle,
    Ropeway,
    SyncJobHandle,
    Unique,
    retry_policy,
)
from ropeway.wire import models

app = Ropeway("memory://")


@app.task
async def welcome(user_id: int, name: str = "you") -> str:
    return f"{name} {user_id}"


@app.task(queue="mail", priority="high", max_attempts=8, retry="atlas", timeout=timedelta(minutes=5))
def render(page: str, *, dpi: int = 300) -> bytes:
    return page.encode() * dpi


@app.task(
    retry=retry_policy("default", base=1), unique=Unique(), retry_on=OSError, give_up_on=(KeyError, TypeError)
)
async def with_context(ctx: JobContext, number: int) -> int:
    ctx.progress(done=1, total=number)
    return number


@app.task(process=True, window="22:00-06:00", tz="Europe/Paris")
def with_job(job: Job, number: int) -> list[int]:
    return [job.attempt, number]


@app.cron("0 9 * * 1-5", tz="Europe/Paris")
async def report() -> None: ...


@app.cron("0 * * * *", name="hourly-welcome", args={"user_id": 1})
@app.task
async def hourly(user_id: int) -> int:
    return user_id


async def async_program() -> None:
    handle = await welcome.aenqueue(user_id=7)
    assert_type(handle, JobHandle[str])
    assert_type(await handle.result(timeout=5), str)
    assert_type(await welcome(7), str)
    unawaited = welcome(7, name="a")
    _ = assert_type(unawaited, Coroutine[Any, Any, str])
    await welcome.options(priority="high", delay=30, key="u7").aenqueue(7, name="a")
    assert_type(await welcome.aenqueue_many([(1,), {"user_id": 2}]), list[JobHandle[str]])

    assert_type(await with_context.aenqueue(3), JobHandle[int])
    assert_type(await with_job.aenqueue(number=3), JobHandle[list[int]])
    await report.aenqueue()
    assert_type(await hourly.aenqueue(3), JobHandle[int])
    await app.aenqueue_many([welcome.call(1), with_job.options(queue="b").call(2)])


def sync_program(ctx: JobContext, job: Job) -> None:
    assert_type(render("a", dpi=2), bytes)
    assert_type(render.enqueue("a", dpi=2), SyncJobHandle[bytes])
    assert_type(render.options(queue="slow").enqueue("a").result(), bytes)
    # A plain call is the function's own.
    assert_type(with_job(job, 3), list[int])
    unawaited = with_context(ctx, 3)
    _ = assert_type(unawaited, Coroutine[Any, Any, int])


def over_http(client: Client) -> None:
    assert_type(client.enqueue("t", {"a": 1}, priority="high", delay=5), models.EnqueuedBrief)
    assert_type(client.enqueue_batch([{"type": "t", "payload": [1]}]), list[models.EnqueuedBrief])
    leased = client.lease(["a", "b"], "w1", count=5, wait=10)
    assert_type(leased, list[models.LeasedJob])
    assert_type(client.ack(leased[0], {"ok": True}), models.AckReply)
    for job in client.list_jobs(queue="a"):
        assert_type(job, models.Job)


async def over_http_async(client: AsyncClient) -> None:
    assert_type(await client.enqueue("t"), models.EnqueuedBrief)
    assert_type(await client.get_job("0198c0de-0000-7000-8000-000000000000"), models.Job)
    async for job in client.list_jobs():
        assert_type(job.attempts, int)
