"""Handlers for processes of their own that a test starts from its own: each is told its folder of facts, for such
a process has the environment of the first test that wanted one."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from ropeway import Job, Ropeway
from tests.worker.facts import Facts

app = Ropeway("memory://")


@app.task(process=True)
def tells_pid(job: Job, folder: str) -> int:
    Facts(Path(folder)).note("started", job.id, job.attempt)
    return os.getpid()


@app.task(process=True)
def waits_apart(job: Job, folder: str, gate: str) -> int:
    facts = Facts(Path(folder))
    facts.note("started", job.id, job.attempt)
    while not facts.is_open(gate):
        time.sleep(0.01)
    return os.getpid()


@app.task(process=True)
def sleeps_apart(job: Job, folder: str, seconds: float) -> None:
    """Cannot be interrupted, only killed."""
    Facts(Path(folder)).note("started", job.id, job.attempt)
    time.sleep(seconds)


@app.task
async def hangs() -> None:
    await asyncio.Event().wait()
