"""The tasks of the fault experiments. Each says in the ledger outside the engine that it was started."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

from chaos import holding
from chaos.history import dying, ticket_of
from chaos.taking_part import recorder
from ropeway import JobContext, Ropeway

app = Ropeway()

#: How long the long ones take (E33).
LONG_SECONDS = 10.0

#: Seconds that a job may hold its process (E12, E13), and after which it has surely been killed for it.
HOLD_TIMEOUT = 2.0
KILLED_WITHIN = 30.0

#: The file that a process writes its number to in order to have little memory from then on (E12).
LITTLE_MEMORY = "CHAOS_LITTLE_MEMORY"


def started(ctx: JobContext) -> None:
    """One line before anything else: what was started, by whom, under which ticket."""
    recorder().write("start", "ok", job=str(ctx.job.id), attempt=ctx.attempt, token=ticket_of(ctx))


def last_words(ctx: JobContext, within: float = 0.0) -> None:
    """One line before this process dies of the job: at once, or `within` so many seconds by another's hand."""
    dying(recorder(), job=str(ctx.job.id), attempt=ctx.attempt, within=within)


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
        # Long enough for a fault to come between the row and the commit.
        await asyncio.sleep(random.uniform(0.0, 0.2))


@app.task(name="chaos.long")
async def long(ctx: JobContext) -> None:
    """Takes longer than a worker that is told to stop waits (E33)."""
    started(ctx)
    await asyncio.sleep(LONG_SECONDS)


@app.task(name="chaos.deaf")
def deaf(ctx: JobContext) -> None:
    """The same in a thread, which cannot be interrupted while it sleeps."""
    started(ctx)
    time.sleep(LONG_SECONDS)


@app.task(name="chaos.downstream", max_attempts=25, retry={"base": 50.0, "jitter": 0.5, "cap": 75.0})
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
    last_words(ctx)
    os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(60)


@app.task(name="chaos.exit")
async def leave(ctx: JobContext) -> None:
    started(ctx)
    last_words(ctx)
    os._exit(3)


@app.task(name="chaos.segfault")
async def segfault(ctx: JobContext) -> None:
    """Reads where nothing is."""
    started(ctx)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    last_words(ctx)
    ctypes.string_at(0)


@app.task(name="chaos.hog")
async def hog(ctx: JobContext) -> None:
    """Takes memory until the system kills it for that."""
    started(ctx)
    last_words(ctx, within=KILLED_WITHIN)
    Path(os.environ[LITTLE_MEMORY]).write_text(str(os.getpid()))  # noqa: ASYNC240 - a file of the kernel's
    held = []
    while True:
        held.append(b"x" * 2**20)


@app.task(name="chaos.hold", timeout=HOLD_TIMEOUT)
async def hold(ctx: JobContext) -> None:
    """Holds the interpreter for much longer than its timeout allows (E12, E13)."""
    started(ctx)
    last_words(ctx, within=KILLED_WITHIN)
    holding.multiply(4 * KILLED_WITHIN)


# ── those that would like to, and may not (E12) ──


@app.task(name="chaos.sysexit", max_attempts=3, retry={"base": 0.2, "cap": 1.0})
async def sysexit(ctx: JobContext) -> None:
    started(ctx)
    sys.exit(3)


@app.task(name="chaos.recursion", max_attempts=3, retry={"base": 0.2, "cap": 1.0})
async def recursion(ctx: JobContext) -> None:
    started(ctx)
    _deeper(0)


def _deeper(depth: int) -> int:
    return _deeper(depth + 1) + 1


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
    """One call into C that does not let go of the interpreter."""
    started(ctx)
    holding.multiply(seconds)


@app.task(name="chaos.regex")
async def regex(ctx: JobContext, seconds: float) -> None:
    """Another one, which looks harmless."""
    started(ctx)
    holding.match(seconds)
