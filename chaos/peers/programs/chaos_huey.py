# mypy: ignore-errors
# It runs in the peer's own environment.
"""huey under faults, on Redis or SQLite: the consumer of the comparison in its default profile."""

from __future__ import annotations

from typing import Any

import bench_huey
import chaos_kit
import kit
from bench_huey import huey


@huey.task(name="faulty", **({"retries": 3} if chaos_kit.safest() else {}))
def faulty(index: int) -> Any:
    return chaos_kit.perform(index)


class Control(bench_huey.Control):
    async def enqueue(self, index: int) -> None:
        faulty(index)


async def make() -> Control:
    return Control()


if __name__ == "__main__":
    kit.main(make, bench_huey.work)
