"""The app that the workers of these tests run: handlers that wait, block and crash, and note what happened."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ropeway import Job, JobContext, Middleware, Ropeway
from tests.worker.facts import Facts

app = Ropeway()
facts = Facts()

#: Retries come soon, so that tests need not wait for them.
SOON = {"base": 0.05, "cap": 0.1}


# ── round everything ──


class Noting(Middleware):
    async def run(self, ctx: JobContext, call_next):  # type: ignore[no-untyped-def]
        if ctx.job.type != "seen_by_middleware":
            return await call_next()
        facts.note("before", ctx.job.id)
        try:
            return {"wrapped": await call_next()}
        finally:
            facts.note("after", ctx.job.id)


app.add_middleware(Noting())


@app.lifespan
@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    app.state.greeting = "hello"
    facts.note("lifespan-entered", "-")
    yield
    facts.note("lifespan-left", "-")


async def _open(gate: str) -> None:
    while not facts.is_open(gate):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.01)


# ── handlers that behave ──


@app.task
async def noop(job: Job, n: int = 0) -> int:
    facts.note("ran", job.id, job.attempt)
    return n


@app.task
def noop_thread(job: Job, n: int = 0) -> int:
    facts.note("ran", job.id, job.attempt)
    return n


@app.task(process=True)
def noop_process(job: Job, n: int = 0) -> int:
    facts.note("ran", job.id, job.attempt)
    return n


@app.task
async def wait(ctx: JobContext, gate: str) -> str:
    """Runs until the gate is opened."""
    facts.note("started", ctx.job.id, ctx.attempt)
    try:
        await _open(gate)
    except asyncio.CancelledError:
        facts.note("stopped", ctx.job.id, ctx.attempt)
        raise
    facts.note("finished", ctx.job.id, ctx.attempt)
    return "waited"


def _wait_here(ctx: JobContext, gate: str) -> str:
    facts.note("started", ctx.job.id, ctx.attempt)
    try:
        while not facts.is_open(gate):
            time.sleep(0.01)
    except BaseException:
        facts.note("stopped", ctx.job.id, ctx.attempt)
        raise
    facts.note("finished", ctx.job.id, ctx.attempt)
    return "waited"


@app.task
def wait_thread(ctx: JobContext, gate: str) -> str:
    return _wait_here(ctx, gate)


@app.task
def busy_thread(ctx: JobContext, gate: str) -> None:
    """Never the same stack for long, until the gate is opened."""
    facts.note("started", ctx.job.id, ctx.attempt)

    def deeper(levels: int) -> int:
        return deeper(levels - 1) + 1 if levels else len(str(ctx.job.id))

    while not facts.is_open(gate):
        for levels in range(20):
            deeper(levels)


@app.task(process=True)
def wait_process(ctx: JobContext, gate: str) -> str:
    return _wait_here(ctx, gate)


@app.task
async def seen_by_middleware(ctx: JobContext) -> str:
    return f"{ctx.state.greeting} {app.state.greeting}"


@app.task
def tells(ctx: JobContext, lines: int, gate: str) -> None:
    """Progress and log lines, then waits: they must be seen while it runs."""
    for n in range(lines):
        ctx.log(f"line {n}", "warning" if n == 0 else "info")
    ctx.progress(1, 2, "half")
    while not facts.is_open(gate):
        time.sleep(0.01)


@app.task
async def snoozes(ctx: JobContext) -> str:
    if ctx.attempt == 1:
        ctx.snooze(0.05)
    return f"attempt {ctx.attempt}"


@app.task
async def asks_for_retry(ctx: JobContext) -> str:
    if ctx.attempt == 1:
        ctx.retry(after=0.05, message="not yet")
    return f"attempt {ctx.attempt}"


@app.task
async def discards(ctx: JobContext) -> None:
    ctx.discard("no use")


@app.task(retry=SOON, max_attempts=3)
async def fails(job: Job) -> None:
    facts.note("ran", job.id, job.attempt)
    raise ValueError("always")


@app.cron("0 0 1 1 *", name="yearly")
async def by_the_clock() -> None: ...


@app.task(window="00:00-00:01", tz="UTC")
async def at_midnight() -> None: ...


@app.task(give_up_on=KeyError)
async def gives_up() -> None:
    raise KeyError("no use")


@app.task
async def returns(value: Any) -> Any:
    return value


@app.task
async def returns_something_odd() -> object:
    return object


@app.task
async def grows(job: Job, mebibytes: int) -> None:
    """Keeps memory for as long as its process lives."""
    _kept.append(bytearray(os.urandom(1024) * 1024 * mebibytes))
    facts.note("ran", job.id, job.attempt)


_kept: list[bytearray] = []


# ── handlers with a transaction of their own (PostgreSQL) ──

_EFFECT = "INSERT INTO effects (job_id, attempt) VALUES ($1, $2)"


@app.task(retry=SOON)
async def writes(ctx: JobContext, n: int = 0) -> None:
    """Notes each point at which it can be killed."""
    facts.note("began", ctx.job.id, ctx.attempt)
    async with ctx.transaction() as connection:
        facts.note("inside", ctx.job.id, ctx.attempt)
        await connection.execute(_EFFECT, ctx.job.id, ctx.attempt)
        facts.note("written", ctx.job.id, ctx.attempt)
        await asyncio.sleep(0.005)
        ctx.finish({"n": n})
    facts.note("committed", ctx.job.id, ctx.attempt)


@app.task(retry=SOON)
async def writes_and_waits(ctx: JobContext, gate: str) -> None:
    try:
        async with ctx.transaction() as connection:
            await connection.execute(_EFFECT, ctx.job.id, ctx.attempt)
            facts.note("written", ctx.job.id, ctx.attempt)
            await _open(gate)
    except BaseException as error:
        facts.note(type(error).__name__, ctx.job.id, ctx.attempt)
        raise


@app.task(retry=SOON)
async def fails_in_its_transaction(ctx: JobContext) -> None:
    async with ctx.transaction() as connection:
        await connection.execute(_EFFECT, ctx.job.id, ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("inside")


@app.task(retry=SOON)
async def fails_after_its_transaction(ctx: JobContext) -> str:
    async with ctx.transaction() as connection:
        await connection.execute(_EFFECT, ctx.job.id, ctx.attempt)
        ctx.finish("kept")
    raise ValueError("after")


@app.task(retry=SOON)
async def opens_two_transactions(ctx: JobContext) -> None:
    for _ in range(2):
        async with ctx.transaction() as connection:
            await connection.execute(_EFFECT, ctx.job.id, ctx.attempt)


# ── handlers that do not let go ──


@app.task
async def blocks_loop(job: Job, seconds: float) -> None:
    facts.note("started", job.id, job.attempt)
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point


@app.task
async def spins(job: Job, seconds: float) -> None:
    facts.note("started", job.id, job.attempt)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def _hold_interpreter(seconds: float) -> None:
    """C code that keeps the GIL for so long: no other thread of the process moves."""
    # A signal would end the sleep; another thread can take it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    ctypes.PyDLL(None).sleep(int(seconds))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


@app.task
def holds_interpreter(job: Job, seconds: float) -> None:
    facts.note("started", job.id, job.attempt)
    _hold_interpreter(seconds)


@app.task
async def holds_interpreter_on_loop(job: Job, seconds: float) -> None:
    facts.note("started", job.id, job.attempt)
    _hold_interpreter(seconds)


@app.task
def sleeps_in_thread(job: Job, seconds: float) -> None:
    """One call into C that lets go of the GIL and cannot be interrupted."""
    facts.note("started", job.id, job.attempt)
    time.sleep(seconds)


@app.task(process=True)
def sleeps_in_process(job: Job, seconds: float) -> None:
    facts.note("started", job.id, job.attempt)
    time.sleep(seconds)


@app.task
async def clings(job: Job, gate: str) -> None:
    """Does not listen when it is told to stop."""
    facts.note("started", job.id, job.attempt)
    while not facts.is_open(gate):
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            facts.note("clung", job.id, job.attempt)


# ── handlers that kill ──


@app.task
async def segfaults(job: Job) -> None:
    facts.note("started", job.id, job.attempt)
    ctypes.string_at(0)


@app.task
def exits_at_once(job: Job, code: int) -> None:
    facts.note("started", job.id, job.attempt)
    os._exit(code)


@app.task
async def kills_itself(job: Job) -> None:
    facts.note("started", job.id, job.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(process=True)
def kills_its_process(job: Job) -> None:
    facts.note("started", job.id, job.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(max_attempts=1)
def exhausts_memory(job: Job) -> None:
    """Takes all the memory that its process may have, as a leak in a container would. One at a time."""
    facts.note("started", job.id, job.attempt)
    held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115, PTH123
    resource.setrlimit(resource.RLIMIT_AS, (held + (64 << 20), resource.RLIM_INFINITY))
    try:
        _ = [bytearray(1 << 20) for _ in range(256)]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@app.task(max_attempts=1)
async def calls_exit() -> None:
    sys.exit(3)


@app.task(max_attempts=1)
def calls_exit_in_thread() -> None:
    sys.exit(3)


@app.task(max_attempts=1)
async def interrupts() -> None:
    raise KeyboardInterrupt


@app.task(max_attempts=1)
async def recurses() -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1) + 1

    deeper(0)


@app.task(max_attempts=1)
def stops_iteration() -> object:
    """The commonest slip: next() of something empty. StopIteration may not enter a future."""
    return next(iter([]))


@app.task(max_attempts=1)
async def stops_iteration_on_loop() -> object:
    return next(iter([]))


@app.task(max_attempts=1)
async def cancels_itself() -> None:
    raise asyncio.CancelledError
