"""Several engines on one file in one process, beside other processes: SQLite's locks must hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ropeway import NewJob, Settings, engine_for
from ropeway.engines.protocol import Engine

COUNT = """
import asyncio, sys
from ropeway import JobFilter, Settings, engine_for

async def main():
    async with engine_for(Settings.load({"url": sys.argv[1]}, environ={})) as engine:
        print((await engine.count(JobFilter())).number)

asyncio.run(main())
"""


def engine_on(file: Path) -> Engine:
    return engine_for(Settings.load({"url": f"sqlite:///{file}"}, environ={}))


def counted_elsewhere(file: Path) -> int:
    """How many jobs another process sees, which is then gone."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT, f"sqlite:///{file}"], capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


async def test_a_second_engine_in_a_process_does_not_undo_the_locks_of_the_first(tmp_path: Path) -> None:
    # Whoever closes a descriptor of a file drops all of its process's POSIX locks on it, also SQLite's. The last
    # process to leave would then take the log away from those that are still at work.
    file = tmp_path / "shared.db"
    async with engine_on(file) as first:
        await first.enqueue([NewJob("before")])
        async with engine_on(file) as second:
            assert counted_elsewhere(file) == 1
            await first.enqueue([NewJob("one")])
            await second.enqueue([NewJob("another")])
            assert counted_elsewhere(file) == 3
        await first.enqueue([NewJob("after")])
        assert counted_elsewhere(file) == 4
    assert counted_elsewhere(file) == 4
