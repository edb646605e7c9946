# mypy: ignore-errors
# It runs in the peer's own environment.
"""Celery under faults: the worker of the comparison in its default profile, with one more task."""

from __future__ import annotations

from typing import Any

import bench_celery
import chaos_kit
import kit
from bench_celery import app

if chaos_kit.safest():
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        result_backend=kit.url(),
        broker_transport_options={
            "visibility_timeout": chaos_kit.timeout(),
            # Lost messages are looked for at every tenth interval of ten seconds by default.
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    )


@app.task(name="faulty")
def faulty(index: int) -> Any:
    return chaos_kit.perform(index)


class Control(bench_celery.Control):
    def __init__(self) -> None:
        super().__init__()
        self.enqueue = kit.in_threads(faulty.delay, 1)


async def make() -> Control:
    return Control()


if __name__ == "__main__":
    kit.main(make, bench_celery.work)
