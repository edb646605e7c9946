"""An app whose jobs a server keeps: the same program, another URL, and a key."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.served import ROOT, Served, server, sqlite_url

TASKS = """
import sys
from ropeway import Ropeway

app = Ropeway()

@app.task
def add(a: int, b: int = 1) -> int:
    return a + b

@app.task
async def chain(n: int) -> str:
    handle = await add.options(key=f"chain-{n}").aenqueue(n)
    return str(handle.id)
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "server"
    folder.mkdir()
    with server(sqlite_url(folder), folder) as served:
        yield served


@pytest.fixture
def environment(served: Served, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tasks.py").write_text(TASKS)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(tmp_path)]),
        "ROPEWAY_URL": f"http://127.0.0.1:{served.port}",
        "ROPEWAY_TOKEN": served.key("enqueue", "work", "read", "read:payload"),
    }


@pytest.fixture
def worker(environment: dict[str, str], tmp_path: Path) -> Iterator[None]:
    with (tmp_path / "worker.log").open("wb") as log:
        command = [sys.executable, "-m", "ropeway", "worker", "tasks.py", "--port", "-1"]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    yield
    process.terminate()
    assert process.wait(timeout=45) == 0


def run(program: str, environment: dict[str, str], folder: Path) -> str:
    """The program's output. It must end by itself and say nothing on stderr, with all warnings on."""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", textwrap.dedent(program)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.mark.usefixtures("worker")
def test_results_come_back_to_blocking_and_to_async_code(environment: dict[str, str], tmp_path: Path) -> None:
    said = run(
        """
        import asyncio
        from tasks import add, app, chain

        print(add.enqueue(2, b=3).result(timeout=45))

        async def main():
            handles = await asyncio.gather(*(add.aenqueue(n) for n in range(5)))
            print([await handle.result(timeout=45) for handle in handles])
            print(len(await (await chain.aenqueue(7)).result(timeout=45)))

        asyncio.run(main())
        """,
        environment,
        tmp_path,
    )
    assert said.split("\n")[:3] == ["5", "[1, 2, 3, 4, 5]", "36"]


def test_a_key_is_the_same_by_either_way(environment: dict[str, str], served: Served, tmp_path: Path) -> None:
    """Asked for through the server and through the store: one job, and no mismatch of bodies."""
    program = """
        from tasks import add
        handle = add.options(key="k", priority="high", tags=["x"], timeout=30, queue="q").enqueue(1, b=2)
        print(handle.id)
    """
    through_server = run(program, environment, tmp_path)
    straight = run(program, {**environment, "ROPEWAY_URL": served.url}, tmp_path)
    assert through_server == straight


def test_what_needs_the_store_itself_is_refused_by_name(environment: dict[str, str], tmp_path: Path) -> None:
    said = run(
        """
        from ropeway import NotSupported
        from tasks import add
        try:
            add.options(connection=object()).enqueue(1)
        except NotSupported as error:
            print(error)
        """,
        environment,
        tmp_path,
    )
    assert "transactional enqueue" in said
