"""Several processes on one store: they open it, wait for the same start, drain, and tell what each one did."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

from bench import loads
from bench.stores import Store
from ropeway.engines.protocol import EngineRules


class Share(NamedTuple):
    """What one process did."""

    jobs: int
    began: float
    ended: float
    cpu_seconds: float


def run(main: object) -> None:
    """Run a coroutine function's result as the products' own processes do: on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)  # type: ignore[arg-type]
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)  # type: ignore[arg-type]


def drain(store: Store, processes: int, batch: int, queues: list[str]) -> list[Share]:
    """Drain `queues` with that many processes at once."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    answers: Queue[Share] = context.Queue()
    children = [
        context.Process(target=_child, args=(store, batch, queues, barrier, answers)) for _ in range(processes)
    ]
    for child in children:
        child.start()
    shares = [answers.get(timeout=600) for _ in children]
    for child in children:
        child.join()
    return shares


def _child(store: Store, batch: int, queues: list[str], barrier: Barrier, answers: Queue[Share]) -> None:
    async def work() -> None:
        async with store.engine(EngineRules()) as engine:
            await engine.queue_stats([])  # the connection is open and warm before the clock starts
            barrier.wait()
            cpu = time.process_time()
            began = time.time()
            jobs = await loads.drain(engine, queues, batch)
            answers.put(Share(jobs, began, time.time(), time.process_time() - cpu))

    run(work())


def rate(shares: list[Share]) -> float:
    """Jobs per second of the whole fleet, from the first start to the last end."""
    return sum(s.jobs for s in shares) / (max(s.ended for s in shares) - min(s.began for s in shares))
