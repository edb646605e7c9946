"""Everybody reaches PostgreSQL through PgBouncer in transaction mode, and the pooler is not reliable: E09.

Nothing that lives in a session survives there: each transaction may get another backend. Wake-ups have a direct
connection, as docs/operations.md asks for. The conformance suite behind the same pooler is in tests/engines.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString

import asyncpg
import psycopg
from psycopg.rows import dict_row

from chaos.checker import Violation
from chaos.experiment import MIXED, Experiment, Run, Size
from chaos.experiments.databases import back_in_time
from chaos.facts import Facts
from chaos.stage import RunBroken, Stage
from devtools.pgbouncer import PrivatePgBouncer, find_pgbouncer

#: Backends for everybody: far fewer than there are connections to the pooler.
BACKENDS: Final = 6

#: Jobs per second that are asked for.
RATE: Final = 120.0


@asynccontextmanager
async def behind_a_pooler(stage: Stage) -> AsyncIterator[PrivatePgBouncer]:
    """RunBroken where there is no PgBouncer: nothing is installed for an experiment, nothing else stands in."""
    if find_pgbouncer() is None:
        raise RunBroken("PgBouncer is not installed (apt install pgbouncer)")
    assert stage.server is not None
    bouncer = await asyncio.to_thread(
        PrivatePgBouncer, stage.server.url, pool_mode="transaction", default_pool_size=BACKENDS
    )

    async def close() -> None:
        await asyncio.to_thread(bouncer.close)

    stage.afterwards(close)
    stage.url = f"{bouncer.url_for('chaos')}?pooled=1"
    stage.worker_env["ROPEWAY_LISTEN_URL"] = stage.direct
    yield bouncer


async def unreliable_pooler(run: Run) -> None:
    """The pooler ends and comes back, is killed and comes back, or loses backends in the middle of their work."""
    bouncer: PrivatePgBouncer = run.given
    most = 0.0
    while run.faults < run.size.faults:
        await asyncio.sleep(run.stage.chance.uniform(4.0, 8.0))
        most = max(most, await asyncio.to_thread(_clients_per_backend, bouncer))
        fault = run.stage.chance.choice((_restarted, _killed, _without_backends, _without_backends))
        await fault(run.stage, bouncer)
        run.faults += 1
    run.notes["connections per backend"] = round(most, 1)


async def _restarted(stage: Stage, bouncer: PrivatePgBouncer) -> None:
    await _away(stage, bouncer, "pooler restart")


async def _killed(stage: Stage, bouncer: PrivatePgBouncer) -> None:
    assert bouncer.pid is not None
    os.kill(bouncer.pid, signal.SIGKILL)
    await _away(stage, bouncer, "pooler kill")


async def _away(stage: Stage, bouncer: PrivatePgBouncer, kind: str) -> None:
    began = time.monotonic()
    await asyncio.to_thread(bouncer.stop)
    await asyncio.to_thread(bouncer.start)
    stage.nemesis.write("fault", "ok", kind=kind, began=began, until=time.monotonic())


async def _without_backends(stage: Stage, bouncer: PrivatePgBouncer) -> None:
    """About half of the pool's sessions are ended by the server, whatever they are doing."""
    pids = [pid for pid in await asyncio.to_thread(_backends, bouncer) if stage.chance.random() < 0.5]
    stage.nemesis.write("fault", "ok", kind="backends")
    connection = await asyncpg.connect(stage.direct)
    try:
        await connection.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) pid", pids)
    finally:
        await connection.close()


def _console(bouncer: PrivatePgBouncer, question: LiteralString) -> list[dict[str, Any]]:
    """What the pooler says of the run's database."""
    with psycopg.connect(bouncer.admin_url, autocommit=True, row_factory=dict_row) as console:
        return [row for row in console.execute(question).fetchall() if row["database"] == "chaos"]


def _backends(bouncer: PrivatePgBouncer) -> list[int]:
    return [server["remote_pid"] for server in _console(bouncer, "SHOW SERVERS")]


def _clients_per_backend(bouncer: PrivatePgBouncer) -> float:
    pools = _console(bouncer, "SHOW POOLS")
    clients = sum(pool["cl_active"] + pool["cl_waiting"] for pool in pools)
    backends = sum(pool["sv_active"] + pool["sv_idle"] + pool["sv_used"] for pool in pools)
    return clients / backends if backends else 0.0


def shared_and_back_in_time(facts: Facts, run: Run) -> list[Violation]:
    """Connections did share backends, and after each fault starts are soon as frequent as before it."""
    found = back_in_time(facts, run, most=RATE)
    if run.notes["connections per backend"] <= 1:
        found.append(Violation("E09", "-", "every connection had a backend of its own: the run proves nothing"))
    return found


EXPERIMENTS = (
    Experiment(
        id="E09",
        title="behind a transaction pooler that restarts, dies and loses backends",
        small=Size(8_000, 10),
        full=Size(40_000, 60),
        faults=unreliable_pooler,
        bar=shared_and_back_in_time,
        around=behind_a_pooler,
        engines=("postgres",),
        kinds=MIXED,
        rate=RATE,
    ),
)
