"""A primary and its standby: one is lost and the other takes over (E06, asynchronously E06A)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg

from chaos.checker import Violation
from chaos.checker.ending import acks_stay
from chaos.experiment import MIXED, Experiment, Run, Size
from chaos.facts import Facts
from chaos.proxy import FaultProxy
from chaos.stage import Stage, children_of
from devtools.postgres import PrivatePostgres

#: Seconds that a standby has to catch up.
CATCH_UP = 60.0

#: What the history calls it.
FAILOVER = "failover"

#: Seconds for which an asynchronous standby has got nothing when the primary is lost.
BEHIND = 0.5

#: Seconds that one that gets everything may be behind all the same.
LAG = 1.0

#: Rules that are broken when what somebody was told is gone: jobs, leases, beats and acks.
LOSABLE = frozenset({"C1", "C3", "C5", "C6", "C7", "C8", "C18", "C20"})


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

    async def fail_over(self, *, behind: float = 0.0) -> None:
        """The primary is gone; the standby, which had got nothing for so many seconds, is the primary."""
        assert self.standby is not None
        began = time.monotonic()
        if behind:
            await self._cut_off(self.standby)
            await asyncio.sleep(behind)
        old, self.primary = self.primary, self.standby
        await asyncio.to_thread(old.kill, signal.SIGKILL)
        await self._on_primary("SELECT pg_promote(true, 60)")
        self._proxy.lead_to(self.primary.port)
        await self._stage.moved_to(self.primary)
        self._stage.nemesis.write("fault", "ok", kind=FAILOVER, until=time.monotonic(), began=began)
        await asyncio.to_thread(old.close)

    async def _cut_off(self, standby: Standby) -> None:
        """It hears no more of its primary, and serves on with what it has."""
        await _asked(standby, "ALTER SYSTEM SET primary_conninfo = ''")
        await _asked(standby, "SELECT pg_reload_conf()")

        async def heard_last() -> bool:
            return await _asked(standby, "SELECT count(*) FROM pg_stat_wal_receiver") == 0

        await self._stage.until(heard_last, "the standby is cut off", within=CATCH_UP)

    async def _on_primary(self, statement: str) -> object:
        return await _asked(self.primary, statement)

    async def _streaming(self) -> object:
        return await self._on_primary("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")

    async def _in_sync(self) -> object:
        return await self._on_primary("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")

    async def close(self) -> None:
        for server in (self.primary, self.standby):
            if server is not None:
                await asyncio.to_thread(server.close)


async def _asked(server: PrivatePostgres, statement: str) -> object:
    connection = await asyncpg.connect(server.url)
    try:
        return await connection.fetchval(statement)
    finally:
        with contextlib.suppress(asyncpg.PostgresError, OSError):
            await connection.close()


@asynccontextmanager
async def behind_a_proxy(stage: Stage) -> AsyncIterator[Pair]:
    """Everybody reaches the database through a proxy, as through the name of a service; servers too."""
    port = urlsplit(stage.direct).port
    assert port is not None
    stack = contextlib.AsyncExitStack()
    # For as long as there are servers: they are asked what they counted when the run is over.
    stage.afterwards(stack.aclose)
    proxy = await stack.enter_async_context(FaultProxy(port, stage.chance))
    way = proxy.way(stage.direct)
    if stage.over_http:
        await stage.serve_again(target=way)
    else:
        stage.url = way
    pair = Pair(stage, proxy)
    stack.push_async_callback(pair.close)
    yield pair


async def synchronous(run: Run) -> None:
    """Nothing is accepted that the standby does not have."""
    await _fail_over_and_over(run, synchronous=True)


async def asynchronous(run: Run) -> None:
    """What was accepted in the last moments is lost with the primary: how much is told."""
    await _fail_over_and_over(run, synchronous=False, behind=BEHIND)


async def _fail_over_and_over(run: Run, *, synchronous: bool, behind: float = 0.0) -> None:
    pair: Pair = run.given
    while run.faults < run.size.faults and run.producing():
        await pair.attach(synchronous=synchronous)
        await asyncio.sleep(run.stage.chance.uniform(2.0, 4.0))
        await pair.fail_over(behind=behind)
        run.faults += 1


# ── E06A: what an asynchronous standby loses ──


def lost_with_the_primary(facts: Facts, violation: Violation) -> bool:
    """Whether a rule is broken because the last moments before a failover are gone.

    Whoever was told something of the job in those moments was told of what is not there any more. What was told
    before them must have stayed, and what does not follow from such a loss stays forbidden: what is there, however
    old it looks, has to end.
    """
    if violation.rule == "C16":
        return _holds_what_it_counts(facts)
    if violation.rule not in LOSABLE or (violation.rule == "C1" and violation.job in facts.finals):
        return False
    told = _told_of(facts, violation.job)
    if violation.rule == "C7":
        # A lease may also have lost the beats that made it longer.
        told += [at for grant in facts.grants.get(violation.job, ()) for _, at in facts.beats.get(grant.owner, ())]
    return any(
        fault.at - LAG <= at <= fault.until for fault in facts.faults if fault.kind == FAILOVER for at in told
    )


def _holds_what_it_counts(facts: Facts) -> bool:
    """Whether only those are missing in the counts that are gone."""
    return dict(Counter(final.state for final in facts.finals.values())) == facts.counts


def _told_of(facts: Facts, job: str) -> list[float]:
    """When anybody was told anything of a job: that it is there, that it is theirs, what became of it."""
    enqueue = facts.accepted.get(job)
    times = [enqueue.ended if enqueue else None, *(call.ended for call in facts.calls.get(job, ()))]
    return [at for at in times if at is not None] + [grant.told for grant in facts.grants.get(job, ())]


def loss_is_told(facts: Facts, run: Run) -> list[Violation]:
    """How much was lost; what must not have been is for the rules."""
    run.notes["seconds behind"] = BEHIND
    run.notes["accepted and lost"] = lost = len(facts.accepted.keys() - facts.finals.keys())
    run.notes["acks undone"] = len(acks_stay(facts))
    if lost:
        return []
    return [Violation("E06A", "-", "nothing was lost, so the standby was not behind: the run proves nothing")]


EXPERIMENTS = (
    Experiment(
        id="E06",
        title="the primary is lost, a synchronous standby takes over",
        small=Size(6_000, 4),
        full=Size(20_000, 20),
        faults=synchronous,
        around=behind_a_proxy,
        engines=("postgres", "http-postgres"),
        kinds=MIXED,
        rate=80.0,
    ),
    Experiment(
        id="E06A",
        harmful=False,
        title="the primary is lost, an asynchronous standby takes over: the loss is told",
        small=Size(5_000, 3),
        full=Size(14_000, 10),
        faults=asynchronous,
        bar=loss_is_told,
        forgives=lost_with_the_primary,
        around=behind_a_proxy,
        engines=("postgres", "http-postgres"),
        kinds=MIXED,
        rate=80.0,
    ),
)
