"""Everybody reaches PostgreSQL through a pooler of transactions that is not reliable: E09 and E09P.

Nothing that lives in a session survives there: each transaction may get another backend. Wake-ups have a direct
connection, as docs/operations.md asks for. E09 has PgBouncer, behind which tests/engines also runs the conformance
suite; E09P has a pooler of our own, which needs nothing installed and gives every transaction another backend.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString
from urllib.parse import urlsplit

import asyncpg
import psycopg
from psycopg.rows import dict_row

from chaos.checker import Violation
from chaos.experiment import MIXED, Experiment, Run, Size
from chaos.experiments.databases import back_in_time
from chaos.facts import Facts
from chaos.stage import RunBroken, Stage
from chaos.swapping import SwapProxy
from devtools.pgbouncer import PrivatePgBouncer, find_pgbouncer

#: Backends for everybody: far fewer than there are connections to the pooler.
BACKENDS: Final = 6

#: Per cent of transactions that another backend has to do than the one before on that connection.
SWAPPED: Final = 50.0

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
    while await _next_one(run):
        most = max(most, await asyncio.to_thread(_clients_per_backend, bouncer))
        fault = run.stage.chance.choice((_restarted, _killed, _without_backends, _without_backends))
        await fault(run.stage, bouncer)
        run.faults += 1
    run.notes["connections per backend"] = round(most, 1)


async def _next_one(run: Run) -> bool:
    """Whether there is to be another fault, after a while; not when the load is over."""
    if run.faults >= run.size.faults:
        return False
    await asyncio.sleep(run.stage.chance.uniform(4.0, 8.0))
    return run.producing()


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
    await _end_half(stage, await asyncio.to_thread(_backends, bouncer))


async def _end_half(stage: Stage, backends: list[int]) -> None:
    """About half of the pool's sessions are ended by the server, whatever they are doing."""
    pids = [pid for pid in backends if stage.chance.random() < 0.5]
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


# ── E09P ──


@asynccontextmanager
async def behind_a_swapper(stage: Stage) -> AsyncIterator[SwapProxy]:
    assert stage.server is not None
    proxy = SwapProxy(stage.server.port, stage.chance, size=BACKENDS)
    await proxy.open()
    stage.afterwards(proxy.close)
    address = urlsplit(stage.direct)
    place = address.netloc.replace(str(address.port), str(proxy.port))
    stage.url = f"{address._replace(netloc=place).geturl()}?pooled=1"
    stage.worker_env["ROPEWAY_LISTEN_URL"] = stage.direct
    yield proxy


async def unreliable_swapper(run: Run) -> None:
    """The pooler loses all of its connections, or some of its backends."""
    stage, proxy = run.stage, run.given
    most = 0.0
    while await _next_one(run):
        most = max(most, proxy.clients / max(1, len(proxy.backends)))
        if stage.chance.random() < 0.5:
            stage.nemesis.write("fault", "ok", kind="pooler restart")
            proxy.cut()
        else:
            await _end_half(stage, proxy.backends)
        run.faults += 1
    run.notes["connections per backend"] = round(most, 1)
    run.notes["transactions"] = proxy.transactions
    run.notes["with another backend than before, %"] = round(100 * proxy.swaps / max(1, proxy.transactions), 1)


def swapped_and_back_in_time(facts: Facts, run: Run) -> list[Violation]:
    """As with PgBouncer; and most transactions did get another backend."""
    return shared_and_back_in_time(facts, run) + swapped(run.notes["with another backend than before, %"])


def swapped(share: float) -> list[Violation]:
    if share >= SWAPPED:
        return []
    return [Violation("E09", "-", f"{share:g} % of transactions got another backend: the run proves nothing")]


EXPERIMENTS = (
    Experiment(
        id="E09",
        title="behind a transaction pooler that restarts, dies and loses backends",
        small=Size(10_000, 10),
        full=Size(60_000, 60),
        faults=unreliable_pooler,
        bar=shared_and_back_in_time,
        around=behind_a_pooler,
        engines=("postgres",),
        kinds=MIXED,
        rate=RATE,
    ),
    Experiment(
        id="E09P",
        title="behind a pooler that gives every transaction another backend, and loses some",
        small=Size(6_000, 6),
        full=Size(60_000, 60),
        faults=unreliable_swapper,
        bar=swapped_and_back_in_time,
        around=behind_a_swapper,
        engines=("postgres",),
        kinds=MIXED,
        rate=RATE,
    ),
)
