"""The faults, each written down before it is done."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

from chaos.stage import Member, Stage


def kill_child(stage: Stage, worker: Member) -> bool:
    """`kill -9` the process that runs the handlers; its supervisor lives. False: there is none just now."""
    children = worker.children()
    if not children:
        return False
    pid = stage.chance.choice(children)
    stage.nemesis.write("fault", "ok", kind="kill", target_pid=pid, whole=False)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return True


def kill_whole(stage: Stage, worker: Member) -> bool:
    """`kill -9` a worker with all it started, as the loss of its machine would."""
    if not worker.running:
        return False
    for pid in worker.tree():
        stage.nemesis.write("fault", "ok", kind="kill", target_pid=pid, whole=True)
    worker.signal_all(signal.SIGKILL)
    return True


async def pause(stage: Stage, worker: Member, seconds: float) -> bool:
    """Stop a worker with all it started, and let it go on: a machine that slept, a collector that took long."""
    if not worker.running:
        return False
    until = time.monotonic() + seconds
    pids = worker.tree()
    for pid in pids:
        stage.nemesis.write("fault", "ok", kind="pause", target_pid=pid, until=until)
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
    stage.nemesis.write("fault", "ok", kind="backend", until=time.monotonic() + 5.0)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return True
