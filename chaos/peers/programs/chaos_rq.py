# mypy: ignore-errors
# It runs in the peer's own environment.
"""RQ under faults: the Worker that forks for each job, its default."""

from __future__ import annotations

from typing import Any

import bench_rq
import chaos_kit
import kit
import rq
from bench_rq import connection, queue

#: RQ finds a function by its dotted name.
FAULTY = "chaos_rq.faulty"

#: Sooner than this it does not see that a worker is gone: it adds a minute to the monitoring interval.
WORKER = {"worker_ttl": 20, "job_monitoring_interval": 5, "maintenance_interval": 5} if chaos_kit.safest() else {}
JOB = {"retry": rq.Retry(max=3)} if chaos_kit.safest() else {}


def faulty(index: int) -> Any:
    return chaos_kit.perform(index)


class Control(bench_rq.Control):
    def __init__(self) -> None:
        super().__init__()
        self.enqueue = kit.in_threads(lambda index: queue.enqueue(FAULTY, index, **JOB), 1)


async def make() -> Control:
    return Control()


def work() -> None:
    rq.Worker([queue], connection=connection, **WORKER).work(logging_level="WARNING")


if __name__ == "__main__":
    kit.main(make, work)
