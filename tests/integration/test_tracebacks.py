"""The stored traceback of a failed job begins in the user's code, wherever the handler ran."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ropeway import Middleware, Ropeway, samples
from ropeway.engines.memory import MemoryEngine
from ropeway.testing.conformance.kit import job_of
from ropeway.worker.inprocess import InProcessWorker

TASKS = """
import os

from ropeway import Middleware, Ropeway

app = Ropeway("sqlite:///ropeway.db")


def fail(how):
    raise ValueError(how)


@app.task(max_attempts=1)
async def in_the_loop():
    fail("in the loop")


@app.task(max_attempts=1)
def on_a_thread():
    fail("on a thread")


@app.task(max_attempts=1, process=True)
def in_a_process():
    try:
        fail("first")
    except ValueError as error:
        apart = str(os.getpid()) != os.environ["WORKER_PID"]
        raise KeyError("in a process" if apart else "not in a process") from error


class Around(Middleware):
    async def run(self, ctx, call_next):
        return await call_next()


def with_middleware():
    app.add_middleware(Around())
"""

#: Runs the three tasks and prints their tracebacks, and where their handlers ran.
RUN = """
import asyncio, json, os, sys
from ropeway.engines.open import engine_for
from ropeway.worker.inprocess import InProcessWorker
from ropeway.worker.loading import load_program
from ropeway.worker.processes import Processes

target = sys.argv[1]

async def main():
    os.environ["WORKER_PID"] = str(os.getpid())
    program = load_program(target)
    processes = Processes(target, program.settings, worker_id="w", tenant="default", kept=1)
    import tasks
    async with tasks.app, engine_for(program.settings) as engine:
        made = [await task.aenqueue() for task in (tasks.in_the_loop, tasks.on_a_thread, tasks.in_a_process)]
        async with InProcessWorker(program, engine, processes=processes) as worker:
            await worker.drain()
        events = [await engine.events_of(handle.id) for handle in made]
    found = [error["traceback"] for history in events for event in history if (error := event.data.get("error"))]
    print(json.dumps(found))

if __name__ == "__main__":
    asyncio.run(main())
"""


def frames(traceback: str) -> list[tuple[str, str]]:
    """File and function of every frame, in order, of all parts of a chain."""
    return [(Path(file).name, name) for file, name in re.findall(r'File "([^"]+)", line \d+, in (.+)', traceback)]


@pytest.mark.parametrize("middleware", [False, True])
def test_in_the_loop_on_a_thread_and_in_a_process(tmp_path: Path, middleware: bool) -> None:
    (tmp_path / "tasks.py").write_text(TASKS + ("\nwith_middleware()\n" if middleware else ""))
    (tmp_path / "run.py").write_text(RUN)
    command = [sys.executable, "run.py", "tasks.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    loop, thread, process = json.loads(done.stdout)
    outer = [("tasks.py", "run")] if middleware else []
    assert frames(loop) == [*outer, ("tasks.py", "in_the_loop"), ("tasks.py", "fail")]
    assert frames(thread) == [*outer, ("tasks.py", "on_a_thread"), ("tasks.py", "fail")]
    assert frames(process) == [
        ("tasks.py", "in_a_process"),
        ("tasks.py", "fail"),
        *outer,
        ("tasks.py", "in_a_process"),
    ]
    for text, last in ((loop, "in the loop"), (thread, "on a thread")):
        assert text.startswith("Traceback (most recent call last):\n")
        assert text.rstrip().endswith(f"ValueError: {last}")
    assert process.rstrip().endswith("KeyError: 'in a process'")
    assert "The above exception was the direct cause" in process


async def traceback_of(app: Ropeway, task: Any, *args: Any) -> str:
    async with MemoryEngine() as engine, InProcessWorker(app.program, engine) as worker:
        handle = await task.options(max_attempts=1).aenqueue(*args)
        await worker.drain()
        error = (await job_of(engine, handle.id)).last_error
        assert error is not None
        assert error.traceback is not None
        return error.traceback


async def test_what_the_handler_calls_stays_though_it_is_ropeways() -> None:
    app = Ropeway("memory://")

    @app.task
    async def asks() -> None:
        app.get_task("nothing")

    found = frames(await traceback_of(app, asks))
    assert found == [("test_tracebacks.py", "asks"), ("app.py", "get_task")]


async def test_a_middleware_that_raises_is_shown() -> None:
    app = Ropeway("memory://")

    class Refusing(Middleware):
        async def run(self, ctx: Any, call_next: Any) -> Any:
            await call_next()
            raise ValueError("no")

    app.add_middleware(Refusing())

    @app.task
    def fine() -> None: ...

    assert frames(await traceback_of(app, fine)) == [("test_tracebacks.py", "run")]


async def test_a_sample_task_is_a_handler_like_any_other() -> None:
    found = frames(await traceback_of(samples.app, samples.mock, 0, 100))
    assert found[0] == ("samples.py", "mock")
    assert ("executor.py", "_call") not in found
