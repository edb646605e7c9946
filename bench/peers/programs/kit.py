"""What every peer's program is built on. It runs in the peer's own environment: standard library only.

A program is called in two ways, with what it needs to know in the environment:

    python programs/NAME.py control     answers each JSON line on standard input with one on standard output
    python programs/NAME.py work        runs the peer's worker until it is told to stop

    BENCH_URL         where the store is: postgresql://…, redis://…, sqlite:///…
    BENCH_RECORD      the file in which handlers mark what ran, made by the harness
    BENCH_PROFILE     throughput, latency or default: which of its settings the peer is to use
    BENCH_PROCESSES   how many processes a worker is to be
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

#: Calls of one sender that may wait for their answers at once.
UNDER_WAY = 500

#: Brings a job's arguments to about 100 bytes.
PAD = "x" * 80

#: A held job sleeps this long when it runs for the first time: longer than any recovery is waited for.
HOLD_SECONDS = 3_600.0

_START = struct.Struct("<d")


def url() -> str:
    """Where the store is."""
    return os.environ["BENCH_URL"]


def profile() -> str:
    """Which settings are asked for: throughput, latency or default."""
    return os.environ.get("BENCH_PROFILE", "throughput")


def processes() -> int:
    """How many processes the worker is to be."""
    return int(os.environ.get("BENCH_PROCESSES", "1"))


# ── what the handlers do ──


class Record:
    """Which jobs ran, how often, and when each started last: a mapped file that all worker processes share.

    For n jobs: n bytes of counts, then n times eight bytes of start times (seconds since 1970, little endian).
    """

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123 - pathlib would be one more import in every worker
            self._map = mmap.mmap(file.fileno(), 0)
        self.size = len(self._map) // 9

    def ran(self, index: int) -> int:
        """Job `index` starts now; how often it has."""
        _START.pack_into(self._map, self.size + 8 * index, time.time())
        count = min(255, self._map[index] + 1)
        self._map[index] = count
        return count


_record: Record | None = None


def ran(index: int) -> int:
    """Mark in the record that job `index` starts now; how often it has."""
    global _record  # opened by the process that runs handlers, not by the one that forks it
    if _record is None:
        _record = Record(os.environ["BENCH_RECORD"])
    return _record.ran(index)


def held(index: int) -> bool:
    """The held job starts: leaves a note of the process that runs it. Whether it is to be held (its first run)."""
    first = ran(index) == 1
    if first:
        with open(os.environ["BENCH_RECORD"] + ".pid", "w") as file:  # noqa: PTH123
            file.write(str(os.getpid()))
    return first


def hold(index: int) -> None:
    """A handler that never ends when it first runs, and at once when it runs again."""
    if held(index):
        time.sleep(HOLD_SECONDS)


async def ahold(index: int) -> None:
    """The same for an async handler."""
    if held(index):
        await asyncio.sleep(HOLD_SECONDS)


# ── what the harness asks for ──


class Control(Protocol):
    """What a program answers. Each job runs the handler `noop(i, pad)`, which calls `ran(i)` and no more."""

    async def setup(self) -> dict[str, Any]:
        """Make the schema, if there is one. Called once, before anything else."""
        ...

    async def enqueue(self, index: int) -> None:
        """One job in one call, as the peer's documentation shows it; returns when the store has it."""
        ...

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        """Many jobs by the peer's own bulk call; NotImplementedError (with the reason) where there is none."""
        ...

    async def enqueue_held(self, index: int) -> None:
        """One job for the handler `hold(i)`."""
        ...

    async def pending(self) -> int:
        """Jobs that the store does not have as finished: waiting, running, or finished and not yet recorded."""
        ...

    async def finished(self) -> int | None:
        """Jobs that the store has as succeeded; None where it forgets them."""
        ...

    async def close(self) -> None: ...


async def _single(control: Control, first: int, number: int, in_flight: int) -> dict[str, Any]:
    indexes = iter(range(first, first + number))

    async def caller() -> None:
        for index in indexes:
            await control.enqueue(index)

    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}


async def _bulk(control: Control, first: int, number: int, batch: int) -> dict[str, Any]:
    cpu, began = time.process_time(), time.perf_counter()
    for start in range(first, first + number, batch):
        await control.enqueue_many(range(start, min(start + batch, first + number)))
    return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}


async def _paced(control: Control, first: int, pauses: Sequence[float], path: str) -> dict[str, Any]:
    """One job after each pause. A sender that falls behind does not skip any."""
    await send(control, first, _after(pauses), path)
    return {}


async def _load(
    control: Control, first: int, stages: Sequence[tuple[float, float, int]], path: str
) -> dict[str, Any]:
    """So many jobs a second for so many seconds, so many in all, stage after stage. A sender that falls behind
    skips none, but a stage is over when its time is, however many are left: `sent` is how many each had, one at
    least."""
    sent = [0] * len(stages)
    await send(control, first, due(stages, sent), path)
    return {"sent": sent}


def _after(pauses: Sequence[float]) -> Iterator[float]:
    at = time.perf_counter()
    for pause in pauses:
        at += pause
        yield at


def due(
    stages: Sequence[tuple[float, float, int]],
    sent: list[int],
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[float]:
    """When each call of a load is due; in `sent` they are counted as they are asked for."""
    begins = clock()
    for stage, (rate, seconds, jobs) in enumerate(stages):
        ends = begins + seconds
        for number in range(jobs):
            if sent[stage] and clock() >= ends:
                break
            sent[stage] += 1
            yield begins + number / rate
        begins = ends


async def send(control: Control, first: int, times: Iterable[float], path: str) -> None:
    """One job at each of these times, sent on its way without waiting for the one before. The time of each call
    goes to the file `path`: eight bytes each, little endian."""
    sent = bytearray()
    under_way: set[asyncio.Task[None]] = set()
    failures: list[BaseException] = []
    room = asyncio.Semaphore(UNDER_WAY)

    def answered(task: asyncio.Task[None]) -> None:
        under_way.discard(task)
        room.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            failures.append(error)

    for index, at in enumerate(times, first):
        wait = at - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        await room.acquire()  # at once, but when the store cannot keep up; the times say so
        if failures:
            raise failures[0]
        sent += _START.pack(time.time())
        task = asyncio.ensure_future(control.enqueue(index))
        under_way.add(task)
        task.add_done_callback(answered)
    await asyncio.gather(*under_way)
    if failures:
        raise failures[0]
    with open(path, "wb") as file:  # noqa: PTH123, ASYNC230
        file.write(sent)


async def _answer(control: Control, request: dict[str, Any]) -> dict[str, Any]:
    match request.pop("do"):
        case "setup":
            return await control.setup() or {}
        case "single":
            return await _single(control, **request)
        case "bulk":
            return await _bulk(control, **request)
        case "paced":
            return await _paced(control, **request)
        case "load":
            return await _load(control, **request)
        case "hold":
            await control.enqueue_held(request["index"])
            return {}
        case "pending":
            return {"pending": await control.pending()}
        case "finished":
            return {"finished": await control.finished()}
        case other:
            return {"error": f"unknown request {other!r}"}


async def _serve(make: Callable[[], Awaitable[Control]]) -> None:
    loop = asyncio.get_running_loop()
    control = await make()
    # Libraries may print: only the harness's answers go to the real standard output.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"ready": True}), file=answers)
    try:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            try:
                answer = await _answer(control, json.loads(line))
            except NotImplementedError as error:
                answer = {"unsupported": str(error)}
            except Exception as error:  # noqa: BLE001 - told to the harness, which stops this peer's measurement
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers)
    finally:
        await control.close()


def run(loop_main: Awaitable[None]) -> None:
    """Run to the end, on uvloop where the peer's environment has it."""
    try:
        import uvloop  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        asyncio.run(loop_main)  # type: ignore[arg-type]
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(loop_main)  # type: ignore[arg-type]


def main(make: Callable[[], Awaitable[Control]], work: Callable[[], None]) -> None:
    """The program: `control` or `work`."""
    if sys.argv[1:] == ["control"]:
        run(_serve(make))
    elif sys.argv[1:] == ["work"]:
        work()
    else:
        sys.exit(f"usage: {sys.argv[0]} control|work")


# ── workers of several processes ──


def run_commands(commands: Sequence[Sequence[str]], env: dict[str, str] | None = None) -> None:
    """Run the peer's own command line, once per process; hand SIGTERM and SIGINT on; end when they have ended."""
    children = [subprocess.Popen(command, env={**os.environ, **(env or {})}) for command in commands]

    def hand_on(number: int, _: object) -> None:
        for child in children:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, hand_on)
    signal.signal(signal.SIGINT, hand_on)
    codes = [child.wait() for child in children]
    sys.exit(max(map(abs, codes)))


def fork(work: Callable[[], None]) -> None:
    """Run `work` in as many processes as were asked for; this one only waits, unless one is enough."""
    if processes() == 1:
        return work()
    program = [sys.executable, *sys.argv]
    return run_commands([program] * processes(), {"BENCH_PROCESSES": "1"})


def in_threads(calls: Callable[[int], Any], threads: int = 8) -> Callable[[int], Awaitable[Any]]:
    """A blocking enqueue call as an awaitable one, on so many threads: as a service does it."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(threads)

    async def call(index: int) -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool, calls, index)

    return call


def chunks(indexes: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """The same indexes in pieces."""
    for start in range(0, len(indexes), size):
        yield indexes[start : start + size]
