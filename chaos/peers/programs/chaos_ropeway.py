# mypy: ignore-errors
# It is read beside bench's programs, which are not on the checker's path.
"""Ropeway under faults: the library and worker of the comparison, with one more task."""

from __future__ import annotations

import os
from typing import Any

import bench_ropeway
import chaos_kit
import kit
from bench_ropeway import LIVE_STATES, JobFilter, app

WORKER = ["--lease-seconds", str(chaos_kit.lease())] if chaos_kit.safest() else []


@app.task
async def faulty(index: int) -> Any:
    return await chaos_kit.aperform(index)


class Control(bench_ropeway.Library):
    async def enqueue(self, index: int) -> None:
        await faulty.aenqueue(index)

    async def pending(self) -> int:
        engine = await app.engine()
        return (await engine.count(JobFilter(states=LIVE_STATES), cap=10_000)).number


async def make() -> Control:
    return Control()


def work() -> None:
    options = ["--url", kit.url(), "--port", "-1", "--log-level", "WARNING", *WORKER]
    command = bench_ropeway.ropeway("worker", __file__, *options)
    os.execv(command[0], command)


if __name__ == "__main__":
    kit.main(make, work)
