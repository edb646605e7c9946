"""The faults, each written down before it is done."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

from chaos.stage import Member, Stage

#: What is done to several processes at once is one fault: its lines have one number.
_acts = itertools.count(1)


def kill_child(stage: Stage, worker: Member) -> bool:
    """`kill -9` the process that runs the handlers; its supervisor lives. False: there is none just now."""
    children = worker.children()
    if not children:
        return False
    pid = stage.chance.choice(children)
    stage.nemesis.write("fault", "ok", kind="kill", target_pid=pid, whole=False, worker=worker.name)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return True


def kill_whole(stage: Stage, worker: Member) -> bool:
    """`kill -9` a worker with all it started, as the loss of its machine would."""
    if not worker.running:
        return False
    act = next(_acts)
    for pid in worker.tree():
        stage.nemesis.write("fault", "ok", kind="kill", target_pid=pid, whole=True, worker=worker.name, act=act)
    worker.signal_all(signal.SIGKILL)
    return True


async def pause(stage: Stage, worker: Member, seconds: float) -> bool:
    """Stop a worker with all it started, and let it go on: a machine that slept, a collector that took long."""
    if not worker.running:
        return False
    until = time.monotonic() + seconds
    pids, act = worker.tree(), next(_acts)
    for pid in pids:
        facts = {"target_pid": pid, "until": until, "whole": True, "worker": worker.name, "act": act}
        stage.nemesis.write("fault", "ok", kind="pause", **facts)
    _signal(pids, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        _signal(pids, signal.SIGCONT)
    return True


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


async def crash_database(stage: Stage) -> None:
    """Stop PostgreSQL without a checkpoint, and start it again: it recovers from its log."""
    assert stage.server is not None
    began = time.monotonic()
    await asyncio.to_thread(stage.server.restart, "immediate")
    stage.nemesis.write("fault", "ok", kind="database", until=time.monotonic(), began=began)


async def crash_backend(stage: Stage) -> bool:
    """`kill -9` one of PostgreSQL's processes: it ends all sessions and recovers."""
    import asyncpg

    connection = await asyncpg.connect(stage.direct)
    try:
        pid = await connection.fetchval(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend' ORDER BY random() LIMIT 1"
        )
    finally:
        with contextlib.suppress(asyncpg.PostgresError, OSError):
            await connection.close()
    if pid is None:
        return False
    began = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    await stage.until(lambda: not Path(f"/proc/{pid}").exists(), "the process is gone", within=30.0)
    # For a moment the server still takes connections: until it has seen the death and ended everybody.
    await asyncio.sleep(0.2)
    await stage.until(lambda: _takes_connections(stage), "PostgreSQL takes connections again", within=60.0)
    stage.nemesis.write("fault", "ok", kind="backend", began=began, until=time.monotonic())
    return True


async def _takes_connections(stage: Stage) -> bool:
    import asyncpg

    connection = await asyncpg.connect(stage.direct, timeout=5.0)
    await connection.close()
    return True
