"""An app in real processes: how programs end that use it, and what a fork does to it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ropeway import Ropeway, State
from tests.engines.pg_kit import migrated

HEAD = """
import asyncio, os, sys, threading
from ropeway import Ropeway, UsageError

app = Ropeway(sys.argv[1])

@app.task
def add(a: int, b: int = 1) -> int:
    return a + b

def say(line):
    # One write: parent and child share the pipe, and an unbuffered print sends its newline apart.
    os.write(1, f"{line}\\n".encode())
"""


@pytest.fixture(scope="module")
def postgres_url(make_postgres_database: Any) -> str:
    return migrated(make_postgres_database())


def _url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ropeway.db"
    return request.getfixturevalue("postgres_url")


url = pytest.fixture(
    _url, params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)], name="url"
)
#: What is in memory stays in its process.
shared_url = pytest.fixture(_url, params=["sqlite", "postgres"], name="shared_url")


def run(program: str, url: str, *, code: int = 0) -> str:
    """The program's output. It must end by itself, soon, and say nothing on stderr, with all warnings on."""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", HEAD + textwrap.dedent(program), url],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == code
    return done.stdout


# ── The end of a program ──


def test_a_program_that_never_closes_ends_quietly_after_sync_calls(url: str) -> None:
    assert run("print(add.enqueue(1).status)", url) == "queued\n"


def test_and_after_one_async_call(url: str) -> None:
    # Nothing is left for it to wait for: its wake-up is still on the way.
    assert run("print(asyncio.run(add.aenqueue(1)).status)", url) == "queued\n"


def test_and_after_several_loops(url: str) -> None:
    program = """
    async def main():
        handle = await add.aenqueue(1)
        print((await handle.refresh()).state)

    asyncio.run(main())
    asyncio.run(main())
    """
    assert run(program, url) == "queued\nqueued\n"


def test_and_after_both_with_results_awaited_in_vain(url: str) -> None:
    program = """
    async def main():
        handle = await add.aenqueue(1)
        waiting = asyncio.ensure_future(handle.result())
        await asyncio.sleep(0)

    first = add.enqueue(1)
    asyncio.run(main())
    try:
        first.result(timeout=0.05)
    except TimeoutError:
        print("in time")
    """
    assert run(program, url) == "in time\n"


def test_a_program_that_fails_ends_with_its_own_error_only(url: str) -> None:
    program = """
    add.enqueue(1)
    sys.exit(3)
    """
    assert run(program, url, code=3) == ""


def test_threads_that_outlive_the_main_thread_may_still_enqueue(url: str) -> None:
    program = """
    main = threading.main_thread()

    def late():
        main.join()
        print(add.enqueue(2).status)

    add.enqueue(1)
    threading.Thread(target=late).start()
    """
    assert run(program, url) == "queued\n"


def test_a_loop_that_is_not_closed_the_usual_way(url: str) -> None:
    program = """
    async def main():
        await add.aenqueue(1)
        await app.aclose()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    print("done")
    """
    assert run(program, url) == "done\n"


def test_what_was_accepted_is_there_after_the_program(shared_url: str) -> None:
    program = """
    async def main():
        return (await add.aenqueue(2)).id

    print(add.enqueue(1).id, asyncio.run(main()))
    """
    ids = run(program, shared_url).split()
    app = Ropeway(shared_url)
    try:
        assert [app.sync.job(id).status for id in ids] == [State.QUEUED] * 2
    finally:
        app.close()


# ── Forks ──


def test_a_fork_after_use_says_what_to_do(url: str) -> None:
    program = """
    print(add.enqueue(1).status, flush=True)
    child = os.fork()
    if child == 0:
        for call in (lambda: add.enqueue(2), lambda: asyncio.run(add.aenqueue(2))):
            try:
                call()
            except UsageError as error:
                assert "after a fork" in str(error) and "app.after_fork()" in str(error), error
        app.after_fork()
        add.enqueue(3)
        asyncio.run(add.aenqueue(4))
        print("child", flush=True)
        sys.exit(5)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 5
    # The parent's own connections are none the worse for it.
    print(add.enqueue(5).status)
    """
    assert run(program, url) == "queued\nchild\nqueued\n"


def test_a_fork_inside_a_loop_leaves_the_parents_connections_alone(url: str) -> None:
    program = """
    async def main():
        await add.aenqueue(1)
        child = os.fork()
        if child == 0:
            app.after_fork()
            print(add.enqueue(2).status, flush=True)
            os._exit(0)
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            await asyncio.sleep(0.01)
        print((await add.aenqueue(3)).status, flush=True)

    asyncio.run(main())
    """
    assert run(program, url) == "queued\nqueued\n"


def test_a_fork_before_use_needs_nothing(url: str) -> None:
    program = """
    child = os.fork()
    say(add.enqueue(1).status)
    if child:
        os.waitpid(child, 0)
    """
    assert run(program, url) == "queued\nqueued\n"


def test_after_fork_may_be_called_anywhere(url: str) -> None:
    program = """
    os.register_at_fork(after_in_child=app.after_fork)
    app.after_fork()
    say(add.enqueue(1).status)
    app.after_fork()
    child = os.fork()
    say(add.enqueue(2).status)
    if child:
        os.waitpid(child, 0)
    """
    assert run(program, url) == "queued\nqueued\nqueued\n"


async def test_a_fork_does_not_take_a_running_loop_along(tmp_path: Path) -> None:
    app = Ropeway(f"sqlite:///{tmp_path}/r.db")

    @app.task
    def task() -> None: ...

    await task.aenqueue()
    assert app._engines._pid == os.getpid()
    app.after_fork()  # not forked: nothing is forgotten
    assert asyncio.get_running_loop() in app._engines._places
    await app.aclose()
