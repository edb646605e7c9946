"""A peer of a few lines, on SQLite: what the tests of the harness measure.

FAKE says how it misbehaves: `twice` runs each job twice, `deaf` takes none, `dies` ends at once, `silent` never
answers, `forgets` stores every other job.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from typing import Any

import kit

MODE = os.environ.get("FAKE", "")


def connect() -> sqlite3.Connection:
    store = sqlite3.connect(kit.url().removeprefix("sqlite:///"), timeout=10, isolation_level=None)
    store.execute("PRAGMA synchronous = OFF")  # nobody looks at its figures
    return store


class Control:
    def __init__(self) -> None:
        self._store = connect()

    async def setup(self) -> dict[str, Any]:
        self._store.execute("CREATE TABLE jobs (i INTEGER PRIMARY KEY, task TEXT, state TEXT DEFAULT 'waiting')")
        return {}

    async def enqueue(self, index: int) -> None:
        if MODE == "silent":
            await asyncio.sleep(3600)
        if MODE == "forgets" and index % 2:
            return
        self._store.execute("INSERT INTO jobs (i, task) VALUES (?, 'noop')", (index,))

    async def enqueue_many(self, indexes: Sequence[int]) -> None:
        raise NotImplementedError("it has no such call")

    async def enqueue_held(self, index: int) -> None:
        self._store.execute("INSERT INTO jobs (i, task) VALUES (?, 'hold')", (index,))

    async def pending(self) -> int:
        return int(self._store.execute("SELECT count(*) FROM jobs WHERE state <> 'done'").fetchone()[0])

    async def finished(self) -> int | None:
        return int(self._store.execute("SELECT count(*) FROM jobs WHERE state = 'done'").fetchone()[0])

    async def close(self) -> None:
        self._store.close()


async def make() -> Control:
    return Control()


def run_jobs() -> None:
    if MODE == "dies":
        sys.exit("it could not go on")
    store = connect()
    claim = (
        "UPDATE jobs SET state = 'running' WHERE i = (SELECT min(i) FROM jobs WHERE state = 'waiting') RETURNING *"
    )
    while True:
        job = None if MODE == "deaf" else store.execute(claim).fetchone()
        if job is None:
            time.sleep(0.01)
            continue
        index, task, _ = job
        kit.hold(index) if task == "hold" else kit.ran(index)
        if MODE == "twice":
            kit.ran(index)
        store.execute("UPDATE jobs SET state = 'done' WHERE i = ?", (index,))


def supervise() -> None:
    """Start a child, and another when it dies, whose job waits again."""
    while True:
        child = os.fork()
        if child == 0:
            run_jobs()
        os.waitpid(child, 0)
        connect().execute("UPDATE jobs SET state = 'waiting' WHERE state = 'running'")


if __name__ == "__main__":
    kit.main(make, run_jobs if MODE == "dies" else supervise)
