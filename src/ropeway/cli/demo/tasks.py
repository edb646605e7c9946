"""The demo's tasks: an app like any other, each task good for one thing that can happen to a job."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator

from ropeway import Job, JobContext, RetryPolicy, Ropeway

app = Ropeway()

#: Retries come soon enough to watch.
QUICK = RetryPolicy(base=0.8, factor=1.5, cap=2.0)


@app.lifespan
async def resources() -> AsyncIterator[None]:
    """Handlers note here what they saw; a real app puts its pools and clients on `app.state`."""
    app.state.interrupted = set()
    yield


@app.task(name="demo.hello")
async def hello(name: str) -> str:
    return f"Hello, {name}!"


@app.task(name="demo.flaky", max_attempts=5, retry=QUICK)
def flaky(ctx: JobContext) -> str:
    """A plain function, so it runs on a thread. It fails twice."""
    if ctx.attempt <= 2:
        raise ConnectionError("the mail server did not answer")
    return "sent"


@app.task(name="demo.later")
async def later() -> str:
    return "on time"


@app.task(name="demo.snooze")
async def snooze(ctx: JobContext) -> str:
    """Not ready yet: asks to be called again, which costs no attempt."""
    if ctx.attempt == 1:
        ctx.snooze(1.5)
    return "ready now"


@app.task(name="demo.import")
async def import_rows(ctx: JobContext, rows: int) -> dict[str, int]:
    for done in range(rows + 1):
        ctx.progress(done, rows, "rows")
        await asyncio.sleep(0.1)
    return {"rows": rows}


@app.task(name="demo.primes", process=True)
def primes(ctx: JobContext, below: int) -> dict[str, int]:
    """CPU-bound: in a process of its own, so that nothing else waits for it."""
    found = 0
    for number in range(2, below):
        found += all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
        if number % 20_000 == 0:
            ctx.progress(number, below)
    return {"primes": found, "process": os.getpid()}


@app.task(name="demo.crash", process=True)
def crash(ctx: JobContext) -> str:
    """The first run is killed, as the kernel does when memory runs out. The job is not lost."""
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@app.task(name="demo.broken", max_attempts=2, retry=QUICK)
async def broken() -> None:
    raise ValueError("this can never work")


@app.task(name="demo.discard")
async def discard(ctx: JobContext, customer: int) -> None:
    ctx.discard(f"customer {customer} is gone: no use to try again")


@app.task(name="demo.slow", timeout=1, max_attempts=1)
async def slow() -> None:
    await asyncio.sleep(60)


@app.task(name="demo.forever")
async def forever(ctx: JobContext) -> None:
    """Runs until someone cancels it."""
    try:
        for second in range(3600):
            ctx.progress(message=f"busy for {second} s")
            await asyncio.sleep(1)
    finally:
        ctx.state.interrupted.add(ctx.job.id)


@app.task(name="demo.errand")
async def errand() -> None:
    await asyncio.sleep(0.2)


@app.task(name="demo.tick")
async def tick(job: Job) -> str:
    return job.headers["ropeway-scheduled-for"]
