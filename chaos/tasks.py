"""The tasks of the fault experiments. Each says in the ledger outside the engine that it was started."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

from chaos.taking_part import recorder
from ropeway import JobContext, Ropeway

app = Ropeway()


def started(ctx: JobContext) -> None:
    """One line before anything else: what was started, by whom."""
    recorder().write("start", "ok", job=str(ctx.job.id), attempt=ctx.attempt)


@app.task(name="chaos.ok")
async def ok(ctx: JobContext) -> None:
    started(ctx)
    await asyncio.sleep(random.uniform(0.0, 0.05))


@app.task(name="chaos.slow")
async def slow(ctx: JobContext) -> None:
    started(ctx)
    await asyncio.sleep(random.uniform(0.3, 2.0))


@app.task(name="chaos.plain")
def plain(ctx: JobContext) -> None:
    """A plain function, in a thread."""
    started(ctx)
    time.sleep(random.uniform(0.0, 0.1))


@app.task(name="chaos.flaky", max_attempts=10, retry={"base": 0.2, "cap": 1.0})
async def flaky(ctx: JobContext) -> None:
    started(ctx)
    if ctx.job.failures < 2:
        raise RuntimeError("as asked")


@app.task(name="chaos.fail", max_attempts=3, retry={"base": 0.2, "cap": 1.0})
async def fail(ctx: JobContext) -> None:
    started(ctx)
    raise RuntimeError("as asked")


@app.task(name="chaos.snooze")
async def snooze(ctx: JobContext) -> None:
    started(ctx)
    if ctx.attempt == 1:
        ctx.snooze(0.5)


@app.task(name="chaos.effect")
async def effect(ctx: JobContext) -> None:
    """Its row and its completion are one transaction (PostgreSQL)."""
    started(ctx)
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO chaos_effects (job_id) VALUES ($1)", ctx.job.id)
        await asyncio.sleep(random.uniform(0.0, 0.05))


@app.task(name="chaos.downstream", max_attempts=25)
async def downstream(ctx: JobContext) -> None:
    """Fails for as long as a file says that what it needs is down (E16)."""
    started(ctx)
    if os.path.exists(os.environ["CHAOS_DOWN"]):  # noqa: ASYNC240, PTH110 - a look at one file
        raise ConnectionError("the other side is down")


# ── those that hold what must not be seen (E35) ──


@app.task(name="chaos.keep")
async def keep(ctx: JobContext, text: str) -> str:
    """What it got is its result too. (Not called a secret: what is so called is masked by its name.)"""
    started(ctx)
    return text


@app.task(name="chaos.drop", max_attempts=2, retry={"base": 0.2, "cap": 1.0})
async def drop(ctx: JobContext, text: str) -> None:
    """Fails with its payload at hand, and says nothing of it."""
    started(ctx)
    raise RuntimeError("as asked" if text else "nothing to keep")


@app.task(name="chaos.tell", max_attempts=2, retry={"base": 0.2, "cap": 1.0})
async def tell(ctx: JobContext) -> None:
    """Fails as drivers do, with an address and a password in its words."""
    started(ctx)
    raise ConnectionError(os.environ["CHAOS_TOLD"])


# ── those that kill the process they run in (E12) ──


@app.task(name="chaos.kill")
async def kill(ctx: JobContext) -> None:
    started(ctx)
    os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(60)


@app.task(name="chaos.exit")
async def leave(ctx: JobContext) -> None:
    started(ctx)
    os._exit(3)


@app.task(name="chaos.segfault")
async def segfault(ctx: JobContext) -> None:
    started(ctx)
    os.kill(os.getpid(), signal.SIGSEGV)
    await asyncio.sleep(60)


# ── those that hold the loop or the interpreter (E13) ──


@app.task(name="chaos.block")
async def block(ctx: JobContext, seconds: float) -> None:
    """Sleeps on the event loop itself."""
    started(ctx)
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point


@app.task(name="chaos.spin")
async def spin(ctx: JobContext, seconds: float) -> None:
    started(ctx)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@app.task(name="chaos.bigint")
async def bigint(ctx: JobContext, seconds: float) -> None:
    """One call into C after the other that does not let go of the interpreter."""
    started(ctx)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pow(3, 1_200_000)
