"""A primary and its synchronous standby: one is lost and the other takes over (E06), or stands still (E07)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg

from chaos.checker import Violation
from chaos.experiment import MIXED, Experiment, Run, Size
from chaos.experiments.direct import finish
from chaos.facts import Facts
from chaos.history import Recorder
from chaos.proxy import FaultProxy
from chaos.recording import RecordingEngine
from chaos.stage import Stage, children_of
from devtools.postgres import PrivatePostgres
from ropeway.core.errors import EngineError
from ropeway.core.job import NewJob
from ropeway.engines.postgres import PostgresEngine
from ropeway.engines.postgres.connection import Bounds

#: Seconds that a standby has to catch up.
CATCH_UP = 60.0


class Standby(PrivatePostgres):
    """A streaming copy of another server."""

    def __init__(self, primary: PrivatePostgres) -> None:
        self._primary = primary
        super().__init__(bindir=primary.bindir, shared_buffers="128MB")

    def _initdb(self) -> None:
        """Its data is the primary's, and it goes on receiving what is written there."""
        copy = ["-h", "127.0.0.1", "-p", str(self._primary.port), "-U", self.user, "-D", str(self._data)]
        code = self._home.run(
            [self.bindir / "pg_basebackup", *copy, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"],
            log=self.log_file,
        )
        if code != 0:
            raise self._failure(f"could not be copied (pg_basebackup ended with {code})")

    def signal_all(self, number: signal.Signals) -> None:
        """To each of its processes."""
        pid = self.pid
        assert pid is not None
        for each in (pid, *children_of(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, number)


class Pair:
    """The primary, its standby, and the proxy that leads to whoever is the primary."""

    def __init__(self, stage: Stage, proxy: FaultProxy) -> None:
        assert stage.server is not None
        self.primary = stage.server
        self.standby: Standby | None = None
        self._stage = stage
        self._proxy = proxy

    async def attach(self, *, synchronous: bool) -> None:
        """A new standby, and from its arrival on every commit waits for it if it is to be synchronous."""
        self.standby = await asyncio.to_thread(Standby, self.primary)
        await self._stage.until(self._streaming, "the standby follows", within=CATCH_UP)
        if synchronous:
            await self._on_primary("ALTER SYSTEM SET synchronous_standby_names = '*'")
            await self._on_primary("SELECT pg_reload_conf()")
            await self._stage.until(self._in_sync, "commits wait for the standby", within=CATCH_UP)

    async def fail_over(self) -> None:
        """The primary is gone; the standby is the primary."""
        assert self.standby is not None
        began = time.monotonic()
        old, self.primary = self.primary, self.standby
        await asyncio.to_thread(old.kill, signal.SIGKILL)
        await self._on_primary("SELECT pg_promote(true, 60)")
        self._proxy.lead_to(self.primary.port)
        await self._stage.moved_to(self.primary)
        self._stage.nemesis.write("fault", "ok", kind="failover", until=time.monotonic(), began=began)
        await asyncio.to_thread(old.close)

    async def _on_primary(self, statement: str) -> object:
        connection = await asyncpg.connect(self.primary.url)
        try:
            return await connection.fetchval(statement)
        finally:
            with contextlib.suppress(asyncpg.PostgresError, OSError):
                await connection.close()

    async def _streaming(self) -> object:
        return await self._on_primary("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")

    async def _in_sync(self) -> object:
        return await self._on_primary("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")

    async def close(self) -> None:
        for server in (self.primary, self.standby):
            if server is not None:
                await asyncio.to_thread(server.close)


@asynccontextmanager
async def behind_a_proxy(stage: Stage) -> AsyncIterator[Pair]:
    """Everybody reaches the database through a proxy, as through the name of a service."""
    address = urlsplit(stage.direct)
    assert address.port is not None
    async with FaultProxy(address.port, stage.chance) as proxy:
        stage.url = address._replace(netloc=address.netloc.replace(str(address.port), str(proxy.port))).geturl()
        pair = Pair(stage, proxy)
        try:
            yield pair
        finally:
            stage.afterwards(pair.close)


async def synchronous(run: Run) -> None:
    await _fail_over_and_over(run, synchronous=True)


async def _fail_over_and_over(run: Run, *, synchronous: bool) -> None:
    pair: Pair = run.given
    while run.faults < run.size.faults:
        await pair.attach(synchronous=synchronous)
        await asyncio.sleep(run.stage.chance.uniform(2.0, 4.0))
        await pair.fail_over()
        run.faults += 1


# ── E07: commits that cannot be copied ──


async def unconfirmed(run: Run) -> None:
    """The standby stands still, so no commit is confirmed: nothing may be accepted, and later everything is."""
    stage, pair = run.stage, run.given
    await pair.attach(synchronous=True)
    patient = await stage.recorded()
    hurried_engine = PostgresEngine(stage.direct, bounds=Bounds(statement=0.2, lock=0.2, idle=10.0))
    hurried = RecordingEngine(hurried_engine, Recorder(stage.histories, "hurried"))
    await hurried_engine.open()
    accepted = 0
    try:
        for turn in range(run.size.faults):
            jobs = [NewJob("chaos.ok", queue="copied", idempotency_key=f"copied-{turn}-{i}") for i in range(5)]
            stage.nemesis.write("fault", "ok", kind="standby", until=time.monotonic() + 1.0)
            pair.standby.signal_all(signal.SIGSTOP)
            try:
                await hurried.enqueue(jobs)
                accepted += 1
            except EngineError:
                pass
            finally:
                pair.standby.signal_all(signal.SIGCONT)
            await patient.enqueue(jobs)
            run.faults += 1
        await finish(patient, run, "copied")
    finally:
        await hurried_engine.close()
    run.notes["accepted without a copy"] = accepted


def nothing_without_a_copy(_facts: Facts, run: Run) -> list[Violation]:
    accepted = run.notes["accepted without a copy"]
    return [Violation("E07", "-", f"{accepted:g} calls were accepted without a copy")] if accepted else []


EXPERIMENTS = (
    Experiment(
        id="E07",
        title="the synchronous standby stands still",
        small=Size(200, 40),
        full=Size(1_000, 200),
        faults=unconfirmed,
        bar=nothing_without_a_copy,
        around=behind_a_proxy,
        engines=("postgres",),
        alone=True,
    ),
    Experiment(
        id="E06",
        title="the primary is lost, a synchronous standby takes over",
        small=Size(6_000, 4),
        full=Size(20_000, 20),
        faults=synchronous,
        around=behind_a_proxy,
        engines=("postgres",),
        kinds=MIXED,
        rate=80.0,
    ),
)
