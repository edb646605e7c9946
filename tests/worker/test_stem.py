"""What jobs' own processes are forked from: there from the start, replaced when it dies, gone with its worker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from ropeway.core.states import State
from ropeway.worker.stem_handle import Stem, StemGone
from tests.worker import apart, inside
from tests.worker.facts import Facts
from tests.worker.inside import NEVER, processes, stored, working
from tests.worker.kit import ROOT, StartWorker, is_alive, opened, process_state, until


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def test_it_is_there_before_the_first_job_and_goes_with_its_child(
    sqlite_url: str, start_worker: StartWorker, facts: Facts
) -> None:
    async with opened(sqlite_url) as store:
        worker = start_worker(url=sqlite_url)
        await worker.says("worker_started")
        (child,) = worker.children()
        (stem,) = children_of(child)
        ids = await store.add("wait_process", gate="go")
        await until(lambda: facts.notes("started"), "it runs")
        (note,) = facts.notes("started")
        assert parent_of(note.pid) == stem
        os.kill(child, signal.SIGKILL)
        await until(lambda: not is_alive(stem) and not is_alive(note.pid), "nothing of it is left")
        facts.open_gate("go")
        (job,) = await store.reach(ids, State.SUCCEEDED)
        assert job.attempt == 2


#: Linux: whose parents die become children of this process, as they do of process 1.
INHERIT_ORPHANS = """
import ctypes, sys
if sys.orig_argv[1:4] == ["-m", "ropeway", "worker"]:
    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
"""


async def test_a_worker_that_is_process_1_leaves_no_zombies(
    sqlite_url: str, start_worker: StartWorker, facts: Facts, tmp_path: Path
) -> None:
    """In a container without an init."""
    (tmp_path / "sitecustomize.py").write_text(INHERIT_ORPHANS)
    path = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "src")])
    async with opened(sqlite_url) as store:
        worker = start_worker(url=sqlite_url, env={"PYTHONPATH": path})
        await worker.says("worker_started")
        (child,) = worker.children()
        (stem,) = children_of(child)
        await store.add("wait_process", gate="go")
        await until(lambda: facts.notes("started"), "it runs")
        (note,) = facts.notes("started")
        os.kill(child, signal.SIGKILL)
        await until(
            lambda: {process_state(pid) for pid in (child, stem, note.pid)} == {"X"}, "not even zombies are left"
        )
        facts.open_gate("go")


def _from_root(path: Path) -> str:
    return os.path.relpath(path, ROOT)


async def test_an_app_that_goes_to_another_folder_is_found_where_it_was_loaded(
    sqlite_url: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    app = tmp_path / "wanders.py"
    as_told = _from_root(app)
    app.write_text(
        f"import os\nfrom ropeway import Ropeway\nos.chdir({str(tmp_path)!r})\napp = Ropeway()\n\n"
        "@app.task(process=True)\ndef parent() -> int:\n    return os.getppid()\n"
    )
    async with opened(sqlite_url) as store:
        worker = start_worker(url=sqlite_url, target=as_told)
        await worker.says("worker_started")
        (child,) = worker.children()
        (stem,) = children_of(child)
        (job,) = await store.reach(await store.add("parent"), State.SUCCEEDED)
        assert job.result is not None
        assert msgspec.json.decode(job.result) == stem
        os.kill(stem, signal.SIGKILL)
        (job,) = await store.reach(await store.add("parent"), State.SUCCEEDED)
        assert job.attempt <= 2


LEFT_BEHIND = {
    "a thread": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
    "a connection": "import socket\nleft = socket.socketpair()",
    "a pipe": "import os\nleft = os.pipe()",
    "a loop": "import asyncio\nleft = asyncio.new_event_loop()",
}


@pytest.mark.parametrize("left", LEFT_BEHIND.values(), ids=LEFT_BEHIND.keys())
async def test_what_an_import_has_opened_is_not_shared(
    sqlite_url: str, start_worker: StartWorker, tmp_path: Path, left: str
) -> None:
    """The child itself goes on with it: a process of its own must come from elsewhere."""
    app = tmp_path / "opens.py"
    app.write_text(
        f"import os\nfrom ropeway import Ropeway\n{left}\napp = Ropeway()\n\n"
        "@app.task(process=True)\ndef ancestors() -> list[int]:\n    return [os.getpid(), os.getppid()]\n"
    )
    async with opened(sqlite_url) as store:
        worker = start_worker(url=sqlite_url, target=str(app))
        await worker.says("worker_started")
        (child,) = worker.children()
        assert children_of(child) == []
        (job,) = await store.reach(await store.add("ancestors"), State.SUCCEEDED)
        assert job.result is not None
        own, stem = msgspec.json.decode(job.result)
        assert parent_of(stem) == child
        assert "ropeway.worker.stem" in command_of(stem)
        assert parent_of(own) == stem


async def test_one_that_died_is_replaced(facts: Facts) -> None:
    """What it has started goes on; what is to be started has another one."""
    folder = str(facts.folder)
    async with stored() as store, working(apart.app, store.engine, processes(2), poll_seconds=0.05):
        waiting = await store.add("waits_apart", folder=folder, gate="go")
        await until(lambda: facts.notes("started"), "it runs")
        (note,) = facts.notes("started")
        stem = parent_of(note.pid)
        os.kill(stem, signal.SIGKILL)
        await until(lambda: not is_alive(stem), "it is gone")
        (other,) = await store.reach(await store.add("tells_pid", folder=folder), State.SUCCEEDED)
        assert other.result is not None
        assert parent_of(int(other.result)) not in (stem, os.getpid())
        facts.open_gate("go")
        (job,) = await store.reach(waiting, State.SUCCEEDED)
        assert (job.attempt, other.attempt) == (1, 1)


async def test_a_job_outlives_it_and_its_own_death_is_still_noticed(facts: Facts) -> None:
    """Only how it ended is not known then."""
    folder = str(facts.folder)
    async with stored() as store, working(apart.app, store.engine, processes(), poll_seconds=0.05):
        (id,) = await store.add("waits_apart", folder=folder, gate="go")
        await until(lambda: facts.notes("started"), "it runs")
        (note,) = facts.notes("started")
        stem = parent_of(note.pid)
        os.kill(stem, signal.SIGKILL)
        await until(lambda: not is_alive(stem), "it is gone")
        assert is_alive(note.pid)
        os.kill(note.pid, signal.SIGKILL)
        await until(lambda: len(facts.notes("started")) == 2, "it runs again")
        facts.open_gate("go")
        (job,) = await store.reach([id], State.SUCCEEDED)
        assert (job.attempt, job.lease_lost_count) == (2, 1)
        lost, _ = await store.history(id)
        assert (lost.outcome, lost.signal, lost.exit_code) == ("crashed", None, None)


async def test_one_that_is_started_while_the_worker_ends_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for, may_start, spawned = threading.Event(), threading.Event(), Stem.spawned
    started: list[Stem] = []

    def at_the_last_moment(target: str, folder: Path | None = None) -> Stem:
        asked_for.set()
        may_start.wait(30)
        started.append(spawned(target, folder))
        return started[0]

    monkeypatch.setattr(Stem, "spawned", at_the_last_moment)
    isolation = processes()
    starting = asyncio.create_task(isolation._started())
    await until(asked_for.is_set, "one is about to be started")
    await isolation.close()
    may_start.set()
    with pytest.raises(StemGone):
        await starting
    await until(lambda: not is_alive(started[0]._pid), "it is gone")


async def test_a_request_that_nobody_waits_for_is_not_answered_to_the_next() -> None:
    stem = Stem.spawned(inside.APART)
    lines = [socket.socketpair() for _ in range(2)]
    (given_up, its_end), (ours, theirs) = lines
    waiting = asyncio.create_task(stem.fork(its_end))
    await until(lambda: stem._asked == 1, "the first is on its way")
    waiting.cancel()
    await asyncio.wait([waiting])
    its_end.close()
    given_up.close()
    process = await stem.fork(theirs)
    theirs.close()
    await until(lambda: list(stem._living) == [process.pid], "the first has left, the second has not")
    ours.close()
    assert (await asyncio.wait_for(process.ended, 30)).exit_code == 0
    await stem.close()


@pytest.mark.parametrize("left", ["", LEFT_BEHIND["a thread"]], ids=["forked", "spawned"])
async def test_what_a_handler_prints_is_not_lost_with_its_process(
    sqlite_url: str, start_worker: StartWorker, tmp_path: Path, left: str
) -> None:
    """Nor is what its app has printed told by each of them."""
    app = tmp_path / "prints.py"
    app.write_text(
        f"import os\nfrom ropeway import Ropeway\n{left}\napp = Ropeway()\nprint('imported')\n\n"
        "@app.task(process=True, max_attempts=1)\ndef prints():\n    print('at work')\n    os._exit(3)\n"
    )
    async with opened(sqlite_url) as store:
        worker = start_worker(url=sqlite_url, target=str(app), env={"ROPEWAY_CRASH_LIMIT": "2"})
        await store.reach(await store.add("prints"), State.DEAD)
        assert worker.other_output().split().count("imported") == (2 if left else 1), (
            "once by each that imports it"
        )
        assert worker.other_output().count("at work") == 2


async def test_what_a_handler_leaves_behind_does_not_hide_its_death(
    sqlite_url: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    """A process that it has forked holds its end of the line."""
    app = tmp_path / "leaves.py"
    app.write_text(
        "import os, time\nfrom ropeway import Ropeway\napp = Ropeway()\n\n"
        "@app.task(process=True, max_attempts=1)\ndef leaves():\n"
        f"    if os.fork() == 0:\n        time.sleep({NEVER})\n    os._exit(3)\n"
    )
    async with opened(sqlite_url) as store:
        start_worker(url=sqlite_url, target=str(app), env={"ROPEWAY_CRASH_LIMIT": "1"})
        ids = await store.add("leaves")
        await store.reach(ids, State.DEAD)
        assert [(one.outcome, one.exit_code) for one in await store.history(ids[0])] == [("crashed", 3)]


async def test_a_pool_inside_a_handler_ends(sqlite_url: str, start_worker: StartWorker, tmp_path: Path) -> None:
    """Its processes are ended by SIGTERM, whatever they are at."""
    app = tmp_path / "pools.py"
    app.write_text(
        "import multiprocessing, time\nfrom ropeway import Ropeway\napp = Ropeway()\n\n"
        "@app.task(process=True, max_attempts=1)\ndef pools() -> list[int]:\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        f"        pool.apply_async(time.sleep, ({NEVER},))\n        return pool.map(abs, [-1, -2])\n"
    )
    async with opened(sqlite_url) as store:
        start_worker(url=sqlite_url, target=str(app))
        (job,) = await store.reach(await store.add("pools"), State.SUCCEEDED)
        assert job.result == b"[1,2]"


async def test_a_child_of_the_apps_own_import_is_nobodys_business(
    sqlite_url: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    """A stem that imports the app has it for a child, and hears of its end."""
    app = tmp_path / "helped.py"
    app.write_text(
        f"import os, subprocess, sys\nfrom ropeway import Ropeway\n{LEFT_BEHIND['a thread']}\napp = Ropeway()\n"
        "subprocess.Popen([sys.executable, '-c', ''])\n\n"
        "@app.task(process=True, max_attempts=1)\ndef dies():\n    os._exit(3)\n\n"
        "@app.task(process=True)\ndef lives():\n    pass\n"
    )
    async with opened(sqlite_url) as store:
        start_worker(url=sqlite_url, target=str(app), env={"ROPEWAY_CRASH_LIMIT": "3"})
        await store.reach(await store.add("dies"), State.DEAD)
        await store.reach(await store.add("lives"), State.SUCCEEDED)
